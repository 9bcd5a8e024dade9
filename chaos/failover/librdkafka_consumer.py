"""A consumer process by librdkafka that keeps a journal (`python -m chaos.failover.librdkafka_consumer SETTINGS`).

SETTINGS is JSON. It reads, commits at its own rhythm, and goes back now and then. Its journal has each of these:
what it has read before it commits, and a commit before and after the broker's answer. SIGTERM lets it commit and leave.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

Key = tuple[str, int]


class JournalConsumer:
    """One member of a group; `given` has the fields of `clients.ConsumerSettings`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._file = Path(given["journal"]).open("ab", buffering=0)  # noqa: SIM115 (for the life of the process)
        self._dice = random.Random(given["seed"])
        self._next: dict[Key, int] = {}
        self._is_stopped = False
        settings = {
            "bootstrap.servers": given["servers"],
            "group.id": given["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
            "on_commit": self._confirmed,
            **given["properties"],
        }
        self._consumer = Consumer(settings)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Reads until SIGTERM, then commits and leaves the group."""
        given, polls = self._given, 0
        self._consumer.subscribe(given["topics"], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._is_stopped:
            messages = [one for one in self._consumer.consume(given["batch"], 0.1) if one.error() is None]
            if not messages:
                continue
            self._write(
                {
                    "event": "read",
                    "topic": one.topic(),
                    "partition": one.partition(),
                    "offset": one.offset(),
                    "value": one.value().decode(),
                }
                for one in messages
            )
            for one in messages:
                self._next[one.topic(), one.partition()] = one.offset() + 1
            polls += 1
            if polls % given["every"] == 0:
                self._commit(is_async=given["is_async"])
            if self._dice.random() < given["rewinds"]:
                self._rewind()
            time.sleep(given["pause_ms"] / 1_000)  # the speed of this consumer
        self._commit(is_async=False)
        self._consumer.close()

    def _stop(self, *_: object) -> None:
        self._is_stopped = True

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._write({"event": "assigned", "topic": one.topic, "partition": one.partition} for one in partitions)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(is_async=False)
        for one in partitions:
            self._next.pop((one.topic, one.partition), None)

    def _rewind(self) -> None:
        key = self._dice.choice(sorted(self._next))
        back = max(0, self._next[key] - self._dice.randint(1, 40))
        self._consumer.seek(TopicPartition(*key, back))
        self._next[key] = back
        self._write([{"event": "rewound", "topic": key[0], "partition": key[1], "offset": back}])

    def _commit(self, *, is_async: bool) -> None:
        offsets = [TopicPartition(*key, offset) for key, offset in self._next.items()]
        if not offsets:
            return
        self._write_offsets("committing", offsets)
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=is_async)
        except KafkaException:
            return  # without a confirmation, it may have happened or not
        if not is_async:
            self._write_offsets("committed", [one for one in done if one.error is None])

    def _confirmed(self, error: object, offsets: list[TopicPartition]) -> None:
        if error is None and self._given["is_async"]:
            self._write_offsets("committed", [one for one in offsets if one.error is None])

    def _write_offsets(self, event: str, offsets: list[TopicPartition]) -> None:
        self._write(
            {"event": event, "topic": one.topic, "partition": one.partition, "offset": one.offset} for one in offsets
        )

    def _write(self, rows: Any) -> None:
        at_ms = time.time_ns() // 1_000_000
        self._file.write(b"".join(json.dumps({"at_ms": at_ms, **row}).encode() + b"\n" for row in rows))


if __name__ == "__main__":
    JournalConsumer(json.loads(sys.argv[1])).run()
