"""Reads the new records of one partition as consumers with read_committed see them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, TopicPartition

from mirrorlake.config.connection import Connection
from mirrorlake.errors import TargetError
from mirrorlake.protocol.clients.settings import librdkafka

TIMEOUT_S = 5.0


class Arrivals:
    """A consumer of one partition, from its present end on. It commits nothing.

    Args:
        connection: the connection to the cluster.
        topic: the topic.
        partition: the partition.
        client_id: the client id of the consumer.

    Raises:
        TargetError: the partition's end can't be read.
    """

    def __init__(self, connection: Connection, topic: str, partition: int, client_id: str) -> None:
        self._consumer = Consumer(
            {
                **librdkafka(connection, log_level=0),
                "client.id": client_id,
                "group.id": f"{client_id}|{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 100,
            }
        )
        place = TopicPartition(topic, partition)
        try:
            _, end = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        except KafkaException as error:
            self._consumer.close()
            raise TargetError(
                f"cluster {connection.alias}: the end of {topic}-{partition} can't be read: {error.args[0]}",
                retriable=True,
            ) from None
        self._consumer.assign([TopicPartition(topic, partition, end)])

    def poll(self, timeout_s: float) -> Iterator[tuple[bytes, bytes, int]]:
        """Yields key, value and offset of the records that have arrived; waits for the first one."""
        while (message := self._consumer.poll(timeout_s)) is not None:
            if message.error() is None:
                yield message.key() or b"", message.value() or b"", int(message.offset() or 0)
            timeout_s = 0.0

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()
