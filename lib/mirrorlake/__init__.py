"""Kafka cross-cluster mirroring with exact consumer offset sync, on Spark with Delta Lake as the store of offset
history."""

__version__ = "0.1.0"
