"""Slots: who owns which partition, and how far it has come.

A slot is a set of topic-partitions owned by one transactional id. Every transaction of a slot writes one record to the
slot's own partition of the flow's offset-syncs topic: its state. The last committed record there is all a restart
needs.

Two things make it exact. Data and state are in one transaction, so they move together. And a slot's transactional id is
the only writer of its partition, so after InitProducerId everything in that partition is decided.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from mirrorlake.errors import TargetError
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run

VERSION, READ_VERSIONS = 2, (1, 2)
NO_SLOT = -1  # of a position that nobody owns yet

Word = TypeVar("Word", bound=StrEnum)


class ClosedFor(StrEnum):
    """Why a flow is closed, as its states say it."""

    NOTHING = ""  # it is open; or an earlier version has closed it, which knew handbacks only
    HANDBACK = "handback"
    FAILOVER = "failover"


@dataclass(frozen=True, slots=True)
class Position:
    """How far one partition has been mirrored. `upstream_next` is the next offset to read; `downstream_next` is the end
    of the last run (0 before the first). `slot` owns the partition. `incarnation` counts how often its log was set back
    or replaced; `leader_epoch` is that of the batch that was read last, which began at offset `epoch_from`, and
    `target_topic_id` that of the topic that was written, empty or -1 where they aren't known: by them it is noticed
    when a log isn't what it was."""

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


@dataclass(frozen=True)
class SlotState:
    """What one record of the offset-syncs topic says.

    Attributes:
        generation: which start of the job wrote it; a higher one is newer, and the older job stops.
        slots: how many slots the flow has.
        source_cluster_id: the cluster that was read, so that another one behind the same alias is noticed.
        positions: of every partition the slot owns. The record that opens a generation has those of all slots, so that
            partitions can change hands without an instant at which nobody knows their position.
        runs, gaps: of this transaction.
        inferred: true of runs that were rebuilt from the contents of both logs (`jobs/migration/takeover.py`).
        closed: true once the flow was given back to another mirror (`jobs/migration/handback.py`), or failed over
            (`jobs/failover/job.py`): no job may go on from here before it is opened again.
        closed_for: which of the two; NOTHING in records of earlier versions, which knew only the first.
        producer_ids: all that wrote before this one, so that whoever reads the last record knows every batch of the
            slot by its header.
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

    def owned(self) -> dict[tuple[str, int], Position]:
        """The positions of this slot's partitions, by topic and partition."""
        return {
            (position.topic, position.partition): position for position in self.positions if position.slot == self.slot
        }

    @property
    def all_producer_ids(self) -> tuple[int, ...]:
        """Every producer id that has written for this slot, up to this record's own."""
        return tuple(sorted({*self.producer_ids, self.producer_id}))

    def to_json(self) -> bytes:
        value = {
            "version": VERSION,
            **{
                name: getattr(self, name)
                for name in self.__dataclass_fields__
                if name not in ("positions", "runs", "gaps")
            },
        }
        value["positions"] = [asdict(position) for position in self.positions]
        value["runs"] = [asdict(run) for run in self.runs]
        value["gaps"] = [asdict(gap) for gap in self.gaps]
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, *, with_positions: bool = True) -> SlotState:
        """A state as it was written; positions, which are most of it, may be left out.

        Raises:
            TargetError: the record was not written by a version that this one understands.
        """
        value = json.loads(data)
        version = value.pop("version", None)
        if version not in READ_VERSIONS:
            raise TargetError(
                f"an offset-syncs record has format version {version}; this mirrorlake reads {READ_VERSIONS[0]} to "
                f"{READ_VERSIONS[-1]}. Upgrade it"
            )
        value["positions"] = tuple(Position(**position) for position in value["positions"]) if with_positions else ()
        value["runs"] = tuple(Run(**run) for run in value["runs"])
        value["gaps"] = tuple(
            Gap(**{**gap, "kind": _known(GapKind, gap["kind"], "a gap of kind")}) for gap in value.get("gaps", ())
        )
        value["closed_for"] = _known(ClosedFor, value.get("closed_for", ""), "closed_for")
        value["producer_ids"] = tuple(value.get("producer_ids", ()))
        return cls(**value)


def _known(words: type[Word], word: str, what: str) -> Word:
    try:
        return words(word)
    except ValueError:
        raise TargetError(
            f"an offset-syncs record has {what} '{word}', which this mirrorlake does not know. Upgrade it"
        ) from None


def merge_positions(states: Iterable[SlotState]) -> dict[tuple[str, int], Position]:
    """The position of every partition that any slot knows: the furthest one of the newest incarnation, owned as the
    newest generation says.

    Only one slot ever copies a partition, so the furthest position is the true one, even where an interrupted start has
    left states of two generations behind.
    """
    merged: dict[tuple[str, int], Position] = {}
    owners: dict[tuple[str, int], tuple[int, int]] = {}
    for state in sorted(states, key=lambda state: state.generation):
        for position in state.positions:
            key = (position.topic, position.partition)
            known = merged.get(key)
            if known is None or _order(position) >= _order(known):
                merged[key] = position
            owners[key] = max(owners.get(key, (-1, -1)), (state.generation, position.slot))
    return {key: _owned_by(position, owners[key][1]) for key, position in merged.items()}


def assign(positions: Mapping[tuple[str, int], Position], slots: int, *, keep: bool) -> dict[tuple[str, int], Position]:
    """Gives every partition a slot below `slots`: the one it has (`keep`), else those with the fewest partitions
    first."""
    loads = dict.fromkeys(range(slots), 0)
    assigned: dict[tuple[str, int], Position] = {}
    for key, position in positions.items():
        if keep and position.slot in loads:
            assigned[key] = position
            loads[position.slot] += 1
    for key in sorted(positions.keys() - assigned.keys()):
        assigned[key] = _owned_by(positions[key], take_slot(loads))
    return assigned


def take_slot(loads: dict[int, int]) -> int:
    """The slot with the fewest partitions, which then has one more."""
    slot = min(loads, key=lambda candidate: (loads[candidate], candidate))
    loads[slot] += 1
    return slot


def _order(position: Position) -> tuple[int, int]:
    return position.incarnation, position.upstream_next


def _owned_by(position: Position, slot: int) -> Position:
    return replace(position, slot=slot) if position.slot != slot else position
