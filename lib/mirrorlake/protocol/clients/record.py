"""Appends one record to a topic, and waits until all of its replicas in sync have it."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from mirrorlake.config.connection import Connection
from mirrorlake.errors import TargetError
from mirrorlake.protocol.clients.settings import librdkafka


def append_record(
    connection: Connection, client_id: str, topic: str, key: bytes, value: bytes, timeout_s: float
) -> None:
    """Appends a record to partition 0 of a topic that exists.

    Raises:
        TargetError: the cluster has not acknowledged the record in time. It may still get it.
    """
    refused: list[Any] = []
    settings = {
        **librdkafka(connection, log_level=0),
        "client.id": client_id,
        "enable.idempotence": True,
        "message.timeout.ms": int(timeout_s * 1_000),
    }
    where = f"topic {topic} on cluster {connection.alias} can't be written"
    try:
        producer = Producer(settings)
        producer.produce(
            topic, value, key, partition=0, on_delivery=lambda error, _: refused.append(error) if error else None
        )
        left = producer.flush(timeout_s)
    except KafkaException as error:
        raise TargetError(f"{where}: {error.args[0].str()}") from None
    if refused and refused[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise TargetError(f"{where}: not authorised: the principal needs WRITE on this TOPIC. Grant it and try again")
    if left or refused:
        raise TargetError(f"{where}: {refused[0].str() if refused else 'no answer'}. Try again", retriable=True)
