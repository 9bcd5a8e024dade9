"""Kafka's protocol: raw requests to one cluster, record batches, transactions, administration.

Only this package and `local` import kafka-python and confluent-kafka.
"""
