"""Plans: which offsets of which partitions each slot copies in one micro-batch.

A plan is data: it has no side effects, and making it again gives another plan from wherever the flow then is. Its ends are a limit to
stop at, not a promise: a copy passes whole batches and may go past an end, or stop short of it when its time is up. What counts is
the state that the slot commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorlake.slot import Position, take_slot

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of a source partition, to be copied by a slot. `partitions` is how many the topic has.

    An empty one, of a partition without a position, makes the slot write down where it starts.
    """

    topic: str
    partition: int
    topic_id: str
    partitions: int
    slot: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Partition:
    """What a source partition offers: the log from `first` up to the last stable offset `stable`.

    `is_anchored` is true of a partition without a position that is to start later than where its log does.
    """

    topic: str
    partition: int
    topic_id: str
    partitions: int
    first: int
    stable: int
    is_anchored: bool = False


def start_of(partition: Partition, positions: Mapping[Key, Position]) -> int:
    """Where the copy of a partition goes on: its position, or its first offset when it is new."""
    position = positions.get((partition.topic, partition.partition))
    return partition.first if position is None else position.upstream_next


def lag(partitions: Iterable[Partition], positions: Mapping[Key, Position]) -> int:
    """Upstream offsets that are stable and not mirrored yet, over all partitions."""
    return sum(max(0, partition.stable - start_of(partition, positions)) for partition in partitions)


def make_plan(
    partitions: Iterable[Partition], positions: Mapping[Key, Position], slots: int, max_records: int, until: Mapping[Key, int] | None = None,
    planned_before: Mapping[Key, int] | None = None,
) -> list[Range]:  # fmt: skip
    """The ranges of one micro-batch.

    Args:
        partitions: what the source has.
        positions: what is mirrored, with the owner of each partition; a new one goes to the slot that owns the fewest.
        slots: how many slots there are.
        max_records: how many offsets all ranges may span, shared out evenly; what a small partition leaves goes to larger ones.
        planned_before: the slot that partitions without a position were given in earlier plans of this generation. They keep it: what that slot has
            committed may not be visible yet, and no other slot would see it.
        until: where to stop at the latest, for a run that drains what was there when it began; partitions not named are left alone.
    """
    loads = dict.fromkeys(range(slots), 0)
    given = {key: position.slot for key, position in positions.items()}
    given = {**(planned_before or {}), **given}
    for slot in given.values():
        loads[slot] += 1
    ranges = []
    for partition in sorted(partitions, key=lambda partition: (partition.topic, partition.partition)):
        key = (partition.topic, partition.partition)
        start = start_of(partition, positions)
        end = partition.stable if until is None else min(partition.stable, until.get(key, 0))
        if end > start or (partition.is_anchored and key not in positions):
            slot = given[key] if key in given else take_slot(loads)
            ranges.append(Range(*key, partition.topic_id, partition.partitions, slot, start, max(start, end)))
    share = fair_share([planned.end - planned.start for planned in ranges], max_records)
    return [Range(*_identity(planned), planned.start, min(planned.end, planned.start + share)) for planned in ranges]


def fair_share(wanted: list[int], total: int) -> int:
    """The largest cap under which all that is wanted fits into `total`; at least 1, so that everything moves."""
    left = total
    for count, size in enumerate(sorted(wanted)):
        cap = left // (len(wanted) - count)
        if size > cap:
            return max(1, cap)
        left -= size
    return max([1, *wanted])


def _identity(planned: Range) -> tuple[str, int, str, int, int]:
    return planned.topic, planned.partition, planned.topic_id, planned.partitions, planned.slot
