"""Journals of consumers: the records that a process has read, and the offsets that it has committed.

Each consumer process writes its own file while it works, one JSON object in a line. A process that is killed leaves a
file that ends where it died. Four kinds of files are read:

- `events`: the journal of `librdkafka_consumer.py` and `java/JournalConsumer.java`;
- `verifiable_events`: the output of Kafka's VerifiableConsumer, with `--verbose`;
- `acknowledged`: the output of Kafka's VerifiableProducer;
- `progress`: the output of Kafka's TransactionalMessageCopier, which names no records, only their number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

Key = tuple[str, int]  # topic and partition


class EventKind(StrEnum):
    """The kinds of events in a journal."""

    ASSIGNED = "assigned"  # the consumer begins to read a partition from its group's offset
    READ = "read"
    REWOUND = "rewound"  # the consumer goes back to an offset
    COMMITTING = "committing"  # written before the request is sent
    COMMITTED = "committed"  # written after the broker has confirmed the request


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a journal.

    Attributes:
        kind: what has happened.
        at_ms: when the line was written, in ms since the epoch.
        member: process that has written it.
        key: topic and partition.
        offset: offset of the record; of a commit or a rewind, the next offset to read; 0 for an assignment.
        value: value of the record; empty for other events.
    """

    kind: EventKind
    at_ms: float
    member: str
    key: Key
    offset: int = 0
    value: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of a TransactionalMessageCopier: how many records its process has committed by then."""

    at_ms: float
    total: int


def lines_from(path: Path, begin: int = 0) -> tuple[list[str], int]:
    """Returns the whole lines of a file from a byte on, and the byte behind them; a torn last line is left out."""
    if not path.exists():
        return [], begin
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    return data.decode(errors="replace").splitlines(), begin + len(data)


def events(lines: Iterable[str], member: str) -> list[Event]:
    """Returns the events of a consumer of this room."""
    return [
        Event(
            EventKind(row["event"]),
            row["at_ms"],
            member,
            (row["topic"], row["partition"]),
            row.get("offset", 0),
            row.get("value", ""),
        )
        for row in _rows(lines)
    ]


def verifiable_events(lines: Iterable[str], member: str) -> list[Event]:
    """Returns the events of a VerifiableConsumer.

    It commits what a poll has returned right after it has named these records, so a summary of a poll is the begin of
    a commit.
    """
    return [event for row in _rows(lines) for event in _verifiable(row, member)]


def _verifiable(row: Mapping[str, Any], member: str) -> Iterator[Event]:
    name, at_ms = row.get("name"), row.get("timestamp", 0)
    if name == "record_data":
        yield Event(EventKind.READ, at_ms, member, (row["topic"], row["partition"]), row["offset"], row["value"])
    elif name == "records_consumed":
        for one in row["partitions"]:
            key = (one["topic"], one["partition"])
            yield Event(EventKind.COMMITTING, at_ms, member, key, one["maxOffset"] + 1)
    elif name == "offsets_committed" and row["success"]:
        for one in row["offsets"]:
            yield Event(EventKind.COMMITTED, at_ms, member, (one["topic"], one["partition"]), one["offset"])
    elif name == "partitions_assigned":
        for one in row["partitions"]:
            yield Event(EventKind.ASSIGNED, at_ms, member, (one["topic"], one["partition"]))


def acknowledged(lines: Iterable[str]) -> list[str]:
    """Returns the values that a VerifiableProducer names as acknowledged."""
    return [row["value"] for row in _rows(lines) if row.get("name") == "producer_send_success"]


def progress(lines: Iterable[str]) -> list[Progress]:
    """Returns the progress of one process of a TransactionalMessageCopier."""
    return [Progress(_copier_ms(row["time"]), row["totalProcessed"]) for row in _rows(lines) if "totalProcessed" in row]


def _copier_ms(text: str) -> float:
    second, _, millisecond = text.rpartition(":")
    return time.mktime(time.strptime(second, "%Y/%m/%d %H:%M:%S")) * 1_000 + int(millisecond)


def renamed(events: Iterable[Event], names: Mapping[str, str]) -> list[Event]:
    """Returns the events with other names of topics; those of other topics are left out."""
    return [replace(event, key=(names[event.key[0]], event.key[1])) for event in events if event.key[0] in names]


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the objects of lines; those of other programs (the JVM, SLF4J) are passed over."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)
