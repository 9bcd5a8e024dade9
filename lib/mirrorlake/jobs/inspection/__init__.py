"""Looks at flows and clusters without Spark, and changes nothing: doctor, status, lag, assessment."""
