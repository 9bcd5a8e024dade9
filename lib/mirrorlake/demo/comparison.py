"""Compares both clusters as their consumers see them, and lets each group continue on the target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from mirrorlake.demo.traffic import DEADLINE_S, READERS, TOPICS
from mirrorlake.partition_key import PartitionKey

EOF_REACHED = -191  # librdkafka's _PARTITION_EOF


def compare_topics(source: str, target: str, say: Callable[[str], None]) -> list[str]:
    """Compares both sides record by record, as read_committed consumers see them; returns the differences."""
    problems, total = [], 0
    for topic in TOPICS:
        for partition in range(topic.partitions):
            here = records(source, "demo-compare", topic.name, partition, 0)
            there = records(target, "demo-compare", f"a.{topic.name}", partition, 0)
            total += len(here)
            if [record[1:] for record in here] != [record[1:] for record in there]:
                problems.append(
                    f"{topic.name}-{partition}: {len(here)} records on a, {len(there)} on b, and they differ"
                )
    say(f"{total:,} records compared, key, value, headers, timestamp and order: {len(problems)} partitions differ")
    return problems + ([] if total else ["nothing was compared"])


@dataclass(frozen=True)
class Move:
    """One group and partition before and after it has moved.

    Attributes:
        group: the group.
        partition: topic and partition on the source.
        upstream, downstream: its committed offsets on both clusters.
        unread: records that it had not read on the source.
        again, skipped: records that it read again on the target, and that it never saw.
    """

    group: str
    partition: str
    upstream: int
    downstream: int
    unread: int
    again: int
    skipped: int


def compare_groups(source: str, target: str) -> tuple[list[Move], list[str]]:
    """Lets each group continue on the target, and compares its records with those that it had read on the source;
    returns the moves and the problems."""
    line = "  {:<9} {:<11} {:>9} {:>11} {:>9} {:>9} {:>8}"
    print("\n" + line.format("group", "partition", "upstream", "downstream", "unread", "re-read", "skipped"))
    problems, moves = [], []
    for reader in READERS:
        committed = {
            key: offset for key, offset in positions(source, reader.group, reader.topics).items() if offset >= 0
        }
        arrived = positions(target, reader.group, [f"a.{topic}" for topic in reader.topics])
        for (topic, partition), upstream in sorted(committed.items()):
            downstream = arrived[f"a.{topic}", partition]
            unread = {record[2] for record in records(source, "demo-compare", topic, partition, upstream)}
            got = (
                [record[2] for record in records(target, reader.group, f"a.{topic}", partition, downstream)]
                if downstream >= 0
                else []
            )
            again, skipped = len(set(got) & reader.read.get((topic, partition), set())), len(unread - set(got))
            move = Move(reader.group, f"{topic}-{partition}", upstream, downstream, len(unread), again, skipped)
            print(line.format(*asdict(move).values()))
            moves.append(move)
            if downstream < 0 or again or skipped or len(got) != len(unread):
                problems.append(
                    f"group {reader.group}, {topic}-{partition}: {again} re-read, {skipped} skipped, {len(got)} of "
                    f"{len(unread)} read"
                )
    print(f"\n  {len(moves)} positions moved, {len(problems)} wrong")
    return moves, problems + ([] if len(moves) > 5 else ["hardly any group has read anything"])


def positions(servers: str, group: str, topics: Iterable[str]) -> dict[PartitionKey, int]:
    """Returns the committed offsets of a group."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        asked = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        return {(found.topic, found.partition): found.offset for found in consumer.committed(asked, timeout=10)}
    finally:
        consumer.close()


def records(servers: str, group: str, topic: str, partition: int, start: int) -> list[tuple[object, ...]]:
    """Reads offset, key, value, headers and timestamp of every record of a partition, from an offset to the end.

    Args:
        servers: the bootstrap servers.
        group: the group id of the consumer.
        topic: the topic.
        partition: the partition.
        start: the first offset.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[tuple[object, ...]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(
                        (message.offset(), message.key(), message.value(), message.headers(), message.timestamp())
                    )
                elif error.code() == EOF_REACHED:
                    return found
                else:
                    raise KafkaException(error)
        raise TimeoutError(f"{topic}-{partition} could not be read to its end")
    finally:
        consumer.close()
