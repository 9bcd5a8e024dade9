"""Slots: the owners of partitions, and the positions of these partitions.

A slot is a set of topic-partitions owned by one transactional id. Every transaction of a slot writes one record
to the slot's own partition of the flow's offset-syncs topic: its state. A restart needs only the last committed
record of that partition.

Two properties make positions exact. Data and state are in one transaction, so they are committed together. The slot's
transactional id is the only writer of its partition. After InitProducerId, every transaction in that partition is
therefore committed or aborted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from mirrorlake.errors import TargetError
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run

VERSION, READ_VERSIONS = 3, (1, 2, 3)
NO_SLOT = -1  # of a position that no slot owns yet

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
        producer_ids: the producer ids of the slot before this one. A reader of the last record therefore recognises
            every batch of the slot by its header.
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
        """Encodes the state as JSON."""
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
        """Decodes a state; leaves out positions, which are most of it, unless `with_positions`.

        Raises:
            TargetError: a version that this one can't read has written the record.
        """
        value = json.loads(data)
        version = value.pop("version", None)
        if version not in READ_VERSIONS:
            raise TargetError(
                f"an offset-syncs record has format version {version}; this version of mirrorlake reads "
                f"{READ_VERSIONS[0]} to {READ_VERSIONS[-1]}. Upgrade mirrorlake"
            )
        try:
            return cls(**_decoded(value, with_positions=with_positions))
        except TypeError:
            names = ", ".join(_unknown(value)) or "the known ones, of which it lacks some"
            raise TargetError(
                f"an offset-syncs record of format {version} has the fields {names}. Another version of mirrorlake has "
                "written it. Upgrade mirrorlake"
            ) from None


def _decoded(value: Mapping[str, Any], *, with_positions: bool) -> dict[str, Any]:
    return {
        **value,
        "positions": tuple(Position(**position) for position in value["positions"]) if with_positions else (),
        "runs": tuple(Run(**run) for run in value["runs"]),
        "gaps": tuple(
            Gap(**{**gap, "kind": _known(GapKind, gap["kind"], "a gap of kind")}) for gap in value.get("gaps", ())
        ),
        "closed_for": _known(ClosedFor, value.get("closed_for", ""), "closed_for"),
        "promoted_topics": tuple(value.get("promoted_topics", ())),
        "producer_ids": tuple(value.get("producer_ids", ())),
    }


def _unknown(value: Mapping[str, Any]) -> list[str]:
    """Returns the names of fields, of a record and of its parts, that this version does not know."""
    parts: list[tuple[Any, Mapping[str, Any]]] = [(SlotState, value)]
    for name, kind in (("positions", Position), ("runs", Run), ("gaps", Gap)):
        parts += [(kind, part) for part in value.get(name, ())]
    return sorted({name for kind, part in parts for name in part.keys() - {field.name for field in fields(kind)}})


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
    for state in sorted(states, key=lambda state: state.generation):
        for position in state.positions:
            key = (position.topic, position.partition)
            known = merged.get(key)
            if known is None or _order(position) >= _order(known):
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
    for key in sorted(positions.keys() - assigned.keys()):
        assigned[key] = _owned_by(positions[key], take_slot(loads))
    return assigned


def take_slot(loads: dict[int, int]) -> int:
    """Returns the slot with the fewest partitions, and counts one more for it."""
    slot = min(loads, key=lambda candidate: (loads[candidate], candidate))
    loads[slot] += 1
    return slot


def _order(position: Position) -> tuple[int, int]:
    return position.incarnation, position.upstream_next


def _owned_by(position: Position, slot: int) -> Position:
    return replace(position, slot=slot) if position.slot != slot else position
