"""What notebooks share: parameters and results, the report, figures."""
