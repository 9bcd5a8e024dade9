"""Topics full of records, written by an ordinary producer.

Timestamps are current, so that retention deletes no record.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

WORDS, VALUES = 2_000, 5_000
LONGEST_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Load:
    """The records of a topic.

    Attributes:
        records: the number of records.
        bytes: the size of each value. Values consist of words, so that codecs can compress them.
        codec: the compression codec.
        partitions: the number of partitions.
        batch_records: the number of records in one batch; fewer if the batch would be too large.
    """

    records: int
    bytes: int = 512
    codec: str = "lz4"
    partitions: int = 8
    batch_records: int = 500


def fill(servers: str, topic: str, load: Load, first: int = 0) -> None:
    """Produces the records of a load to a topic, over all partitions; the keys are numbers from `first` on.

    Args:
        servers: the bootstrap servers.
        topic: the topic.
        load: the records.
        first: the key of the first record.
    """
    values = values_of(load.bytes)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": load.codec,
            "linger.ms": 50,
            "batch.size": LONGEST_BATCH_BYTES,
            "batch.num.messages": load.batch_records,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "log_level": 0,
        }
    )
    for number in range(load.records):
        # Consecutive records of one batch go to one partition, so that batches are full with any number of
        # partitions.
        partition = number // load.batch_records % load.partitions
        while True:
            try:
                producer.produce(topic, values[number % VALUES], str(first + number).encode(), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"topic {topic} could not be filled")


def values_of(size: int) -> list[bytes]:
    """Returns values of that many bytes, the same in every run."""
    dice = random.Random(1)
    words = [f"{dice.getrandbits(64):016x}" for _ in range(WORDS)]
    return [",".join(dice.choices(words, k=size // 17 + 1))[:size].encode() for _ in range(VALUES)]


def create(servers: str, topic: str, partitions: int) -> None:
    """Creates a topic with one replica."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # must live until its futures are done
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
