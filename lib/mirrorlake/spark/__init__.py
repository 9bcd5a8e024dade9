"""Spark without knowledge of the jobs: the loop around a streaming query, timing, logs as frames."""
