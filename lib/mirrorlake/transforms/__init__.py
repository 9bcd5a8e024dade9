"""Transforms of records: validation, evaluation in Spark, preview; translation of schema ids between two registries."""
