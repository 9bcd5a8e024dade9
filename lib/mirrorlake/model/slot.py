"""Slots: the owners of partitions, and the positions of these partitions.

A slot is a set of topic-partitions owned by one transactional id. Every transaction of a slot writes one record
to the slot's own partition of the flow's offset-syncs topic: its state. Most states are written as changes
(`model/changes.py`). A restart needs only the last snapshot of that partition, and the changes that follow it.

Two properties make positions exact. Data and state are in one transaction, so they are committed together. The slot's
transactional id is the only writer of its partition. After InitProducerId, every transaction in that partition is
therefore committed or aborted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from heapq import heapreplace
from typing import Any, TypeVar

from mirrorlake.errors import TargetError
from mirrorlake.model.columns import from_columns, names, to_columns
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run

VERSION, READ_VERSIONS = 4, (1, 2, 3, 4)
FIRST_WITH_COLUMNS = 4
NO_STATE = "another program has written it. Only the flow's own principal should have WRITE on the topic"
NO_SLOT = -1  # of a position that no slot owns yet
TAKEN_OVER = -2  # in the place of an offset
SHARED_POSITIONS = 500  # that are decoded once where several states have the same ones, as opening states do

# Fields that are written as differences to another one.
NEAR_IN_POSITIONS = (("downstream_next", "upstream_next"), ("target_partition", "partition"))
NEAR_IN_GAPS = (("downstream_offset", "to_offset"), ("to_offset", "from_offset"))
NEAR_IN_RUNS = (
    ("last_timestamp", "first_timestamp"),
    ("upstream_end", "upstream_start"),  # from here on: the number of offsets
    ("records", "upstream_end"),
    ("downstream_end", "downstream_start"),
    ("downstream_end", "upstream_end"),
    ("downstream_start", "upstream_start"),
    ("target_partition", "partition"),
)

Word = TypeVar("Word", bound=StrEnum)


class ClosedFor(StrEnum):
    """Reasons for which a flow is closed, in its states."""

    NOTHING = ""  # open, or closed by an earlier version, which had hand-backs only
    HANDBACK = "handback"
    FAILOVER = "failover"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one partition.

    `upstream_next` is the next offset to read; `downstream_next` is the end of the last run (0 before the first).
    `slot` owns the partition. `incarnation` is the number of resets.

    Three fields reveal that a log was replaced; they are empty or -1 if unknown. `leader_epoch` is the epoch of the
    batch that was read last, and `epoch_from` the offset at which that epoch began. `target_topic_id` is the id of the
    topic that was written.

    In a position that a take-over has found, `epoch_from` is TAKEN_OVER until the flow has copied records itself: what
    is on the target behind the position was there before.
    """

    topic: str
    partition: int
    topic_id: str
    target_topic: str
    target_partition: int
    upstream_next: int
    downstream_next: int
    slot: int
    incarnation: int = 0
    leader_epoch: int = -1
    target_topic_id: str = ""
    epoch_from: int = -1

    @property
    def order(self) -> tuple[int, int]:
        """Returns what is higher for the further one of two positions of a partition."""
        return self.incarnation, self.upstream_next


@dataclass(frozen=True)
class SlotState:
    """The content of one record of the offset-syncs topic.

    Attributes:
        generation: the start of the job that wrote the record. A higher one is newer, and the older job stops.
        slots: the number of slots of the flow.
        source_cluster_id: the id of the source cluster, which reveals another cluster behind the same alias.
        positions: the positions of every partition that the slot owns. The opening state of a generation has the
            positions of all slots. A partition's position is therefore known at any time while its slot changes.
        runs: the runs of this transaction.
        gaps: the gaps of this transaction.
        inferred: true if the runs were rebuilt from the contents of both logs (`jobs/migration/takeover.py`).
        closed: true once the flow was handed back (`jobs/migration/handback.py`) or failed over
            (`jobs/failover/job.py`). No job may continue the flow before it is opened again.
        closed_for: the reason. It is NOTHING in records of earlier versions, which had hand-backs only.
        topics_shared: true if others write to the remote topics, too (`mirrorlake.topics.shared`). It is false in
            records of earlier versions, which did not say it.
        promoted_topics: source topics that were failed over by themselves. No job mirrors them or moves groups on them
            before the same topics of the flow back are promoted.
        producer_ids: the producer ids of the slot before this one. A reader of the last state therefore recognises
            every batch of the slot by its header.
        snapshot: the offset of the last snapshot of the slot, of a state that was read; -1 if unknown.
        number: the number of states that follow the snapshot, up to this one; 0 for a snapshot.
        moves: the number of positions, runs and gaps in these states. It is not written.
        snapshot_ms: the time of the snapshot; -1 if unknown. It is not written.
    """

    source: str
    target: str
    source_cluster_id: str
    slot: int
    slots: int
    generation: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    positions: tuple[Position, ...] = ()
    runs: tuple[Run, ...] = ()
    created_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    producer_ids: tuple[int, ...] = ()
    inferred: bool = False
    closed: bool = False
    gaps: tuple[Gap, ...] = ()
    closed_for: ClosedFor = ClosedFor.NOTHING
    topics_shared: bool = False
    promoted_topics: tuple[str, ...] = ()
    snapshot: int = -1
    number: int = 0
    moves: int = 0
    snapshot_ms: int = -1

    def owned(self) -> dict[tuple[str, int], Position]:
        """Returns the positions of this slot's partitions, by topic and partition."""
        return {
            (position.topic, position.partition): position for position in self.positions if position.slot == self.slot
        }

    @property
    def all_producer_ids(self) -> tuple[int, ...]:
        """Returns every producer id of this slot, up to this record's own."""
        return tuple(sorted({*self.producer_ids, self.producer_id}))

    def to_json(self) -> bytes:
        """Encodes the state as JSON, as one record; fields that have their default are left out."""
        value: dict[str, Any] = {
            "version": VERSION,
            **{
                one.name: found
                for one in fields(self)
                if one.name not in NOT_PLAIN and ((found := getattr(self, one.name)) != one.default)
            },
        }
        if self.number:
            value["snapshot"] = self.snapshot
        parts = {
            "positions": _written_positions(self.positions),
            "runs": to_columns(self.runs, Run, NEAR_IN_RUNS),
            "gaps": to_columns(self.gaps, Gap, NEAR_IN_GAPS),
        }
        value |= {name: columns for name, columns in parts.items() if columns}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, *, with_positions: bool = True) -> SlotState:
        """Decodes one record; leaves out positions, which are most of a snapshot, unless `with_positions`.

        The positions of a record with changes are only those that it has itself (`model/changes.py`).

        Raises:
            TargetError: a version that this one can't read has written the record, or another program (NO_STATE).
        """
        return cls.from_value(parsed(data), with_positions=with_positions)

    @classmethod
    def from_value(cls, value: Mapping[str, Any], *, with_positions: bool = True) -> SlotState:
        """Does the same for JSON that was parsed."""
        value = dict(value)
        version = value.pop("version", None)
        if version not in READ_VERSIONS:
            raise TargetError(
                f"an offset-syncs record has format version {version}; this version of mirrorlake reads "
                f"{READ_VERSIONS[0]} to {READ_VERSIONS[-1]}. Upgrade mirrorlake"
            )
        try:
            return cls(**_decoded(value, with_positions=with_positions, is_older=version < FIRST_WITH_COLUMNS))
        except (TypeError, LookupError, ValueError, AttributeError):
            unknown = ", ".join(_unknown(value))
            if not unknown:
                raise TargetError(f"an offset-syncs record of format {version} is not whole: {NO_STATE}") from None
            raise TargetError(
                f"an offset-syncs record of format {version} has the fields {unknown}. Another version of mirrorlake "
                "has written it. Upgrade mirrorlake"
            ) from None


NOT_PLAIN = ("positions", "runs", "gaps", "snapshot", "moves", "snapshot_ms")
PARTS = (("positions", Position, NEAR_IN_POSITIONS), ("runs", Run, NEAR_IN_RUNS), ("gaps", Gap, NEAR_IN_GAPS))
_last_written: tuple[tuple[Position, ...], dict[str, Any]] = ((), {})


def parsed(data: bytes | None) -> Mapping[str, Any]:
    """Parses the JSON of one record.

    Raises:
        TargetError: it is no JSON object that names a format.
    """
    try:
        value = json.loads(data or b"")
    except ValueError:
        value = None
    if not isinstance(value, Mapping) or "version" not in value:
        raise TargetError(f"an offset-syncs record is no state: {NO_STATE}")
    return value


def _written_positions(positions: tuple[Position, ...]) -> dict[str, Any]:
    """Encodes positions; the same tuple once, as the opening states of all slots have it."""
    global _last_written
    known, written = _last_written  # at once: slots are copied in several threads
    if known is not positions:
        written = to_columns(positions, Position, NEAR_IN_POSITIONS)
        _last_written = positions, written
    return written


@lru_cache(maxsize=4)
def _shared_positions(written: str) -> tuple[Position, ...]:
    return tuple(Position(**one) for one in from_columns(json.loads(written), NEAR_IN_POSITIONS))


def _read_positions(written: Mapping[str, Any]) -> tuple[Position, ...]:
    if written.get("rows", 0) >= SHARED_POSITIONS:
        return _shared_positions(json.dumps(written))
    return tuple(Position(**one) for one in from_columns(written, NEAR_IN_POSITIONS))


def _decoded(value: Mapping[str, Any], *, with_positions: bool, is_older: bool) -> dict[str, Any]:
    if is_older:
        runs, gaps = value["runs"], value.get("gaps", ())
        decoded = tuple(Position(**position) for position in value["positions"]) if with_positions else ()
    else:
        runs, gaps = (from_columns(value.get(name, {}), near) for name, _, near in PARTS[1:])
        decoded = _read_positions(value.get("positions", {})) if with_positions else ()
    return {
        **value,
        "positions": decoded,
        "runs": tuple(Run(**run) for run in runs),
        "gaps": tuple(Gap(**{**gap, "kind": _known(GapKind, gap["kind"], "a gap of kind")}) for gap in gaps),
        "closed_for": _known(ClosedFor, value.get("closed_for", ""), "closed_for"),
        "promoted_topics": tuple(value.get("promoted_topics", ())),
        "producer_ids": tuple(value.get("producer_ids", ())),
    }


def _unknown(value: Mapping[str, Any]) -> list[str]:
    """Returns the names of fields, of a record and of its parts, that this version does not know."""
    found = value.keys() - {one.name for one in fields(SlotState)}
    for name, kind, _ in PARTS:
        part = value.get(name, ())
        rows = [one for one in part if isinstance(one, Mapping)] if isinstance(part, list) else []
        given = names(part) if isinstance(part, Mapping) else {key for one in rows for key in one}
        found |= given - {one.name for one in fields(kind)}
    return sorted(found)


def _known(words: type[Word], word: str, what: str) -> Word:
    try:
        return words(word)
    except ValueError:
        raise TargetError(
            f"an offset-syncs record has {what} '{word}', which this version of mirrorlake does not know. Upgrade "
            "mirrorlake"
        ) from None


def merge_positions(states: Iterable[SlotState]) -> dict[tuple[str, int], Position]:
    """Merges the positions of all slots: the furthest position of the newest incarnation of each partition.

    The newest generation decides the owner. Only one slot ever copies a partition. The furthest position is therefore
    the right one, even after an interrupted start has left states of two generations.
    """
    merged: dict[tuple[str, int], Position] = {}
    owners: dict[tuple[str, int], tuple[int, int]] = {}
    done = set[tuple[int, int]]()  # opening states of a generation share their positions
    for state in sorted(states, key=lambda state: state.generation):
        shared = state.generation, id(state.positions)
        if shared in done:
            continue
        done.add(shared)
        for position in state.positions:
            key = (position.topic, position.partition)
            known = merged.get(key)
            if known is None or position.order >= known.order:
                merged[key] = position
            owners[key] = max(owners.get(key, (-1, -1)), (state.generation, position.slot))
    return {key: _owned_by(position, owners[key][1]) for key, position in merged.items()}


def assign(positions: Mapping[tuple[str, int], Position], slots: int, *, keep: bool) -> dict[tuple[str, int], Position]:
    """Assigns every partition to a slot below `slots`.

    With `keep`, a partition stays with its slot. All others go to the slots with the fewest partitions.
    """
    loads = dict.fromkeys(range(slots), 0)
    assigned: dict[tuple[str, int], Position] = {}
    for key, position in positions.items():
        if keep and position.slot in loads:
            assigned[key] = position
            loads[position.slot] += 1
    for key, slot in zip(sorted(positions.keys() - assigned.keys()), emptiest(loads), strict=False):
        assigned[key] = _owned_by(positions[key], slot)
    return assigned


def emptiest(loads: Mapping[int, int]) -> Iterator[int]:
    """Yields the slot with the fewest partitions, again and again, and counts one more for it each time.

    Args:
        loads: the number of partitions of each slot.
    """
    heap = sorted((load, slot) for slot, load in loads.items())
    while True:
        load, slot = heap[0]
        yield slot
        heapreplace(heap, (load + 1, slot))


def _owned_by(position: Position, slot: int) -> Position:
    return replace(position, slot=slot) if position.slot != slot else position
