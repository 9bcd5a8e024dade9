"""Benchmarks; each module is run as `python -m bench.<name>`."""
