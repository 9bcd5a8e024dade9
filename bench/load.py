"""Topics full of records, written by an ordinary producer. Timestamps are fresh, so that retention leaves them
alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

WORDS, VALUES = 2_000, 5_000
LONGEST_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Load:
    """What a topic is filled with.

    Attributes:
        bytes: of each value; it has words in it, so that codecs find something to do.
        batch_records: records that the producer puts into one batch; fewer where they get too large.
    """

    records: int
    bytes: int = 512
    codec: str = "lz4"
    partitions: int = 8
    batch_records: int = 500


def fill(servers: str, topic: str, load: Load, first: int = 0) -> None:
    """Writes the records of a load into a topic, dealt out to its partitions; the keys are numbers from `first` on."""
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
        # A partition gets a whole batch before the next one's turn, so that its batches fill however many partitions
        # there are.
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
    """Values of that many bytes, the same in every run."""
    dice = random.Random(1)
    words = [f"{dice.getrandbits(64):016x}" for _ in range(WORDS)]
    return [",".join(dice.choices(words, k=size // 17 + 1))[:size].encode() for _ in range(VALUES)]


def create(servers: str, topic: str, partitions: int) -> None:
    """Creates a topic of one replica."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # has to live until its futures are done
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
