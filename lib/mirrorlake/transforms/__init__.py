"""Transforms of records: checked, run in Spark, previewed; and schema ids of two registries."""
