"""A steady stream of records that carry their send time, and a read_committed consumer of their copies."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.background import Background

SENT = struct.Struct(">dQ")  # seconds since the epoch, and the record's number
POLL_S = 0.05
SILENT_S = 30.0  # longer than a restart of a broker takes


class Trickle(Background):
    """Produces that many records per second to a topic, for the length of a block.

    After a restart of its broker, librdkafka may send nothing for minutes. So a producer that delivers nothing for
    SILENT_S is replaced; what it still had is not sent.

    Args:
        servers: the bootstrap servers.
        topic: the topic.
        partitions: the number of its partitions.
        per_second: the number of records per second.
        size: the size of each value in bytes.

    Attributes:
        sent: the send time of each record, in the order of their numbers.
        replaced: the number of producers that were replaced.
    """

    def __init__(self, servers: str, topic: str, partitions: int, per_second: int, size: int = 512) -> None:
        super().__init__()
        self.sent: list[float] = []
        self.replaced = 0
        self._settings = {"bootstrap.servers": servers, "linger.ms": 1, "log_level": 0}
        self._producer, self._delivered_at = Producer(self._settings), time.monotonic()
        self._topic, self._partitions, self._per_second, self._padding = (
            topic,
            partitions,
            per_second,
            b"." * (size - SENT.size),
        )

    def stop(self) -> None:
        super().stop()
        self._producer.flush(30)

    def work(self) -> None:
        due = time.time()
        while not self.stopping.is_set():
            now = time.time()
            if due > now:
                time.sleep(due - now)
            number, at = len(self.sent), time.time()
            self._producer.produce(
                self._topic,
                SENT.pack(at, number) + self._padding,
                partition=number % self._partitions,
                on_delivery=self._delivered,
            )
            self.sent.append(at)
            self._producer.poll(0)
            due += 1 / self._per_second
            if time.monotonic() - self._delivered_at > SILENT_S:
                self._producer, self._delivered_at = Producer(self._settings), time.monotonic()
                self.replaced += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._delivered_at = time.monotonic()


class Reader(Background):
    """Reads the remote topic as a read_committed consumer, for the length of a block.

    Args:
        servers: the bootstrap servers.
        topic: the topic.
        partitions: the number of its partitions.
        first: the offset from which each of them is read.

    Attributes:
        seen: the time at which each record was first read, by its number.
        repeated: the number of records that were read more than once.
    """

    def __init__(self, servers: str, topic: str, partitions: int, first: int = 0) -> None:
        super().__init__()
        self.seen: dict[int, float] = {}
        self.repeated = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"reader-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, first) for partition in range(partitions)])

    def stop(self) -> None:
        super().stop()
        self._consumer.close()

    def work(self) -> None:
        while not self.stopping.is_set():
            with suppress(KafkaException):  # the topic is not there yet
                message = self._consumer.poll(POLL_S)
                if message is not None and message.error() is None:
                    at = time.time()
                    _, number = SENT.unpack_from(message.value())
                    self.repeated += number in self.seen
                    self.seen.setdefault(number, at)
