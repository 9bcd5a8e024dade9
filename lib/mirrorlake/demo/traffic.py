"""The traffic of the demo: producers of three topics, and six consumer groups at different speeds."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from mirrorlake.partition_key import PartitionKey

DEADLINE_S = 60


@dataclass(frozen=True)
class DemoTopic:
    """A topic on the source, and its traffic."""

    name: str
    partitions: int
    codec: str
    per_second: int
    transactional: bool = False


@dataclass
class Reader:
    """A consumer group on the source: its topics, its speed, and the values that it has read by partition."""

    group: str
    topics: tuple[str, ...]
    per_second: float
    read: dict[PartitionKey, set[bytes]] = field(default_factory=dict)


TOPICS = (
    DemoTopic("orders", 4, "lz4", 800),
    DemoTopic("payments", 2, "zstd", 200, transactional=True),
    DemoTopic("clicks", 3, "none", 500),
)
READERS = (
    Reader("billing", ("orders",), 1e9),
    Reader("search", ("orders", "clicks"), 500),
    Reader("archive", ("orders", "payments", "clicks"), 150),
    Reader("fraud", ("payments",), 1e9),
    Reader("ledger", ("payments",), 60),
    Reader("sleepy", ("clicks",), 5),
)


def produce(servers: str, topic: DemoTopic, stop: threading.Event) -> None:
    """Produces records until it is stopped; every value begins with a number that is unique in its topic."""
    settings = {"transactional.id": f"demo-{topic.name}"} if topic.transactional else {}
    producer = Producer(
        {"bootstrap.servers": servers, "compression.type": topic.codec, "linger.ms": 20, "log_level": 0, **settings}
    )
    dice, number = random.Random(topic.name), 0
    if topic.transactional:
        producer.init_transactions(DEADLINE_S)
    while not stop.is_set():
        if topic.transactional:
            producer.begin_transaction()
        for _ in range(topic.per_second // 10):
            number += 1
            headers: list[Any] = [("trace", dice.randbytes(8)), ("attempt", None)][: dice.randint(0, 2)]
            value = f"{topic.name}/{number}/".encode() + dice.randbytes(60).hex().encode()
            producer.produce(
                topic.name,
                value,
                dice.choice([None, f"customer-{dice.randint(1, 500)}".encode()]),
                dice.randrange(topic.partitions),
                headers=headers,
            )
        producer.poll(0)
        if topic.transactional:
            producer.abort_transaction() if dice.random() < 0.2 else producer.commit_transaction()
        stop.wait(0.1)
    producer.flush(DEADLINE_S)


def consume(servers: str, reader: Reader, stop: threading.Event) -> None:
    """Reads at its own speed, and commits exactly what it has read."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": reader.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(list(reader.topics))
    started, count = time.monotonic(), 0
    while not stop.is_set():
        wanted = min(2_000, int((time.monotonic() - started) * reader.per_second) - count)
        messages = (
            [message for message in consumer.consume(wanted, 0.2) if message.error() is None] if wanted > 0 else []
        )
        if not messages:
            stop.wait(0.05)
            continue
        count += len(messages)
        next_offsets: dict[PartitionKey, int] = {}
        for message in messages:
            key = str(message.topic()), int(message.partition() or 0)
            reader.read.setdefault(key, set()).add(message.value() or b"")
            next_offsets[key] = int(message.offset() or 0) + 1
        consumer.commit(
            offsets=[
                TopicPartition(topic, partition, offset, f"read {count}")
                for (topic, partition), offset in next_offsets.items()
            ],
            asynchronous=False,
        )
    consumer.close()
