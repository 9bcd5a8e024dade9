"""Kafka cross-cluster mirroring with exact consumer offset sync, on Spark.

Delta Lake stores the history of offsets.
"""

__version__ = "0.2.0.dev0"
