"""Reads what a run has left, with librdkafka and the standard library. Imports nothing of mirrorlake.

The offset map is read from the offset-syncs topic: each record has runs and gaps (`states.py`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from chaos.checker import Partition, Piece, Record
from chaos.states import runs_and_gaps

DEADLINE_S = 60.0
PASSING = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
RESETS = "a reset: the map begins anew"


class LiveReader:
    """Reads the committed records of topics all the time, from a thread of its own.

    Attributes:
        seen: the records in the order of arrival, by partition with the topic's name on the target.
    """

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer({**reading(servers), "topic.metadata.refresh.interval.ms": 1_000})
        self._wanted: dict[TopicPartition, None] = {}
        self._assigned = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen: dict[Partition, list[Record]] = {}
        self.problems: list[str] = []
        self._thread.start()

    def follow(self, topic: str, partitions: int) -> None:
        """Adds the partitions of a topic, from the first record on."""
        for partition in range(partitions):
            self._wanted.setdefault(TopicPartition(topic, partition, 0))
            self.seen.setdefault((topic, partition), [])

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            if len(wanted := [*self._wanted]) > self._assigned:
                self._consumer.incremental_assign(wanted[self._assigned :])
                self._assigned = len(wanted)
            for message in self._consumer.consume(500, 0.1):
                if error := message.error():
                    if error.code() not in (*PASSING, *NOT_YET):
                        self.problems.append(f"the consumer of the target: {error}")
                    continue
                self.seen[message.topic(), message.partition()].append(record(message))


def reading(servers: str) -> dict[str, Any]:
    """Returns the configuration of a consumer that reads committed records, and commits nothing."""
    return {
        "bootstrap.servers": servers,
        "group.id": f"chaos-{uuid.uuid4().hex}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }


def record(message: Message) -> Record:
    """Returns a record with everything that is compared."""
    return Record(message.offset(), message.key(), message.value(), tuple(message.headers() or ()), message.timestamp())


def read_all(servers: str, topics: Iterable[str]) -> dict[Partition, list[Record]]:
    """Reads the committed records of topics up to their ends."""
    consumer = Consumer({**reading(servers), "enable.partition.eof": True})
    try:
        known = consumer.list_topics(timeout=DEADLINE_S).topics
        wanted = [
            TopicPartition(topic, number, 0) for topic in topics if topic in known for number in known[topic].partitions
        ]
        found: dict[Partition, list[Record]] = {(one.topic, one.partition): [] for one in wanted}
        consumer.assign(wanted)
        ended: set[Partition] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < len(found) and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.2):
                partition = (message.topic(), message.partition())
                if message.error() is None:
                    found[partition].append(record(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(partition)
                elif message.error().code() not in PASSING:
                    raise KafkaException(message.error())
        if len(ended) < len(found):
            raise AssertionError(f"could not read {sorted(found.keys() - ended)} to the end")
        return found
    finally:
        consumer.close()


def offset_map(servers: str, topic: str) -> dict[Partition, list[Piece]]:
    """Reads all runs and gaps of a flow from its offset-syncs topic.

    Raises:
        AssertionError: the map has a reset, which no fault here can cause.
    """
    found: dict[Partition, list[Piece]] = {}
    for records in read_all(servers, [topic]).values():
        for runs, gaps in (runs_and_gaps(one.value) for one in records if one.value):
            for run in runs:
                offsets = (run[f"{side}_{end}"] for side in ("upstream", "downstream") for end in ("start", "end"))
                found.setdefault((run["topic"], run["partition"]), []).append(Piece(*offsets))
            for gap in gaps:
                assert not gap["incarnation"], RESETS
                found.setdefault((gap["topic"], gap["partition"]), []).append(
                    Piece(gap["from_offset"], gap["to_offset"])
                )
    return found


def open_partitions(servers: str, of: str) -> list[str]:
    """Returns the partitions of topics with `of` in their names whose last stable offset is before the high
    watermark."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    ends: list[Mapping[Partition, int]] = []
    known = admin.list_topics(timeout=DEADLINE_S).topics
    wanted = [(name, number) for name, topic in known.items() if of in name for number in topic.partitions]
    for level in ("read_uncommitted", "read_committed"):
        consumer = Consumer({**reading(servers), "isolation.level": level})
        try:
            ends.append(
                {one: consumer.get_watermark_offsets(TopicPartition(*one), timeout=DEADLINE_S)[1] for one in wanted}
            )
        finally:
            consumer.close()
    high, stable = ends
    return [f"{topic}-{number}" for topic, number in wanted if stable[topic, number] < high[topic, number]]


def committed(servers: str, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Returns the committed offsets of a group. One whose coordinator has just moved is asked for again."""
    asked = [*partitions]
    consumer = Consumer({**reading(servers), "group.id": group})
    deadline = time.monotonic() + DEADLINE_S
    try:
        while True:
            try:
                found = consumer.committed([TopicPartition(*one) for one in asked], timeout=DEADLINE_S)
                return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}
            except KafkaException as error:
                if error.args[0].code() not in MOVING or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    finally:
        consumer.close()
