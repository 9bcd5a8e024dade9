"""Kafka cross-cluster mirroring with exact consumer offset sync, on Spark.

Delta Lake stores the history of offsets.
"""

__version__ = "0.1.0"
