"""Judges what a run has left on both clusters. Imports nothing of mirrorlake, and no client: it compares what was read.

Each finding is one sentence. No finding means: the records are equal, in order, and none is there twice; the offset map
names the right pairs of offsets; groups are at their places; no transaction is open; the flow has caught up in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

Partition = tuple[str, int]  # the topic by its name on the source
RECOVERY_S = 60.0
AT_MOST = 3  # findings of one kind for one partition


class Record(NamedTuple):
    """A record as a read_committed consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: tuple[int, int]

    @property
    def contents(self) -> tuple[Any, ...]:
        """Returns everything but the offset."""
        return self[1:]


class Piece(NamedTuple):
    """A run or a gap of the offset map; a gap has no offsets on the target."""

    start: int
    end: int
    target_start: int | None = None
    target_end: int | None = None


class GroupPosition(NamedTuple):
    """The committed offsets of a group in one partition; None on the target if there is none."""

    group: str
    partition: Partition
    source_offset: int
    target_offset: int | None


@dataclass(frozen=True)
class Evidence:
    """What a run has left.

    Attributes:
        source: the records of the source, by partition.
        target: the same of the target.
        live: the records that a read_committed consumer of the target has seen while it ran, in its order.
        pieces: the offset map.
        groups: the positions of groups.
        open_partitions: partitions of the target in which a transaction is open.
        stopped: errors with which jobs have ended that were not to end.
        recovered_s: the time from the end of the faults until the flow had caught up; None if it had not.
    """

    source: Mapping[Partition, Sequence[Record]]
    target: Mapping[Partition, Sequence[Record]]
    live: Mapping[Partition, Sequence[Record]]
    pieces: Mapping[Partition, Sequence[Piece]]
    groups: Sequence[GroupPosition] = ()
    open_partitions: Sequence[str] = ()
    stopped: Sequence[str] = ()
    recovered_s: float | None = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


def findings(evidence: Evidence) -> list[str]:
    """Returns everything that is wrong."""
    found = [*evidence.stopped]
    if evidence.recovered_s is None:
        found.append(f"the flow has not caught up within {RECOVERY_S:.0f} s after the faults")
    if not any(evidence.source.values()):
        found.append("the source has no records, so nothing was compared")
    for partition in sorted(evidence.source.keys() | evidence.target.keys() | evidence.live.keys()):
        source, target = evidence.source.get(partition, ()), evidence.target.get(partition, ())
        for one in (
            _differences(source, target, "the target"),
            _out_of_order(evidence.live.get(partition, ()), target),
            _false_pairs(source, target, evidence.pieces.get(partition, ())),
        ):
            found += [f"{partition[0]}-{partition[1]}: {text}" for text in _some(one)]
    found += [text for position in evidence.groups for text in _misplaced(position, evidence)]
    found += [f"{partition}: a transaction is open" for partition in evidence.open_partitions]
    return found


def is_in_place(source: Sequence[Record], target: Sequence[Record], source_offset: int, target_offset: int) -> bool:
    """Returns True if a group reads on the target what it had not read on the source, and nothing else.

    Both logs must have the same records in the same order.
    """
    left = sum(record.offset >= source_offset for record in source)
    return left == sum(record.offset >= target_offset for record in target)


def _some(texts: Iterable[str]) -> list[str]:
    found = list(texts)
    return found if len(found) <= AT_MOST else [*found[:AT_MOST], f"{len(found) - AT_MOST} more of this kind"]


def _differences(source: Sequence[Record], target: Sequence[Record], where: str) -> Iterator[str]:
    """Compares by position; says of the first difference what kind it is."""
    if len(source) != len(target):
        yield f"{len(source)} records on the source, {len(target)} on {where}"
    originals, copies = (Counter(record.contents for record in log) for log in (source, target))
    for record in source:
        if not copies[record.contents]:
            yield f"the record of offset {record.offset} is lost"
    for record in target:
        if copies[record.contents] > originals[record.contents]:
            times = f"{originals[record.contents]} times on the source and {copies[record.contents]} times there"
            yield f"the record of offset {record.offset} on {where} is {times}"
    for one, other in zip(source, target, strict=False):
        if one.contents != other.contents:
            yield f"the record of offset {one.offset} is not the one of offset {other.offset} on {where}: another order"
            return


def _out_of_order(live: Sequence[Record], target: Sequence[Record]) -> Iterator[str]:
    """Compares what a consumer has seen, in its order, with what is there in the end."""
    for before, after in pairwise(live):
        if after.offset <= before.offset:
            yield f"a consumer has seen offset {after.offset} after {before.offset}"
    if [*live] != [*target]:
        seen, there = {*live}, {*target}
        yield (
            f"a consumer has seen {len(seen - there)} records that are not there in the end, and has not seen "
            f"{len(there - seen)} that are"
        )


def _false_pairs(source: Sequence[Record], target: Sequence[Record], pieces: Sequence[Piece]) -> Iterator[str]:
    """Compares the map with both logs, record by record; each offset up to the last record has to be in one piece."""
    ordered = sorted(pieces)
    for before, after in pairwise(ordered):
        if before.end != after.start:
            what = "in two pieces" if before.end > after.start else "in no piece"
            yield f"source offsets around {before.end} to {after.start} are {what} of the map"
    said: dict[int, int] = {}
    for piece in ordered:
        if piece.target_start is None or piece.target_end is None:
            continue
        if piece.end - piece.start != piece.target_end - piece.target_start:
            yield f"the run of source offsets {piece.start} to {piece.end} has another length on the target"
        said.update(zip(range(piece.start, piece.end), range(piece.target_start, piece.target_end), strict=False))
    for one, other in zip(source, target, strict=False):
        if (there := said.pop(one.offset, None)) != other.offset:
            yield f"the map says {there} for source offset {one.offset}, the logs say {other.offset}"
    if said:
        yield f"the map has target offsets for {len(said)} source offsets without a record, the first is {min(said)}"


def _misplaced(position: GroupPosition, evidence: Evidence) -> Iterator[str]:
    source, target = (logs.get(position.partition, ()) for logs in (evidence.source, evidence.target))
    where = f"group {position.group}, {position.partition[0]}-{position.partition[1]}"
    if position.target_offset is None:
        yield f"{where}: it has no offset on the target, and {position.source_offset} on the source"
    elif not is_in_place(source, target, position.source_offset, position.target_offset):
        yield f"{where}: offset {position.source_offset} on the source is {position.target_offset} on the target"
