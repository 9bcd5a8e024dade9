"""Kafka's protocol: raw requests to one cluster, record batches, transactions, administration. Only here and in `local`
are kafka-python and confluent-kafka imported."""
