"""Shared code of the notebooks: parameters and results, log output, the report, figures."""
