"""Spark without knowledge of the jobs: the loop around a streaming query, retries, timing, logs as frames."""
