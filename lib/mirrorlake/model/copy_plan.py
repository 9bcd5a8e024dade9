"""Plans: which offsets of which partitions each slot copies in one micro-batch.

A plan is data: it has no side effects, and making it again gives another plan from wherever the flow then is. Its ends
are a limit to
stop at, not a promise: a copy passes whole batches and may go past an end, or stop short of it when its time is up.
What counts is the state that the slot commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorlake.model.lag import lag
from mirrorlake.model.slot import Position, take_slot
from mirrorlake.partition_key import PartitionKey


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of a source partition, to be copied by a slot. `partitions` is how many the topic has.

    An empty one, of a partition without a position, makes the slot write down where it starts; one that `is_set_back`,
    see what has become of a log that ends before the position. `incarnation` is that of the position it goes on from,
    `leader_epoch` that of the source's leader when its end was seen (-1: unknown).
    """

    topic: str
    partition: int
    topic_id: str
    partitions: int
    slot: int
    start: int
    end: int
    is_set_back: bool = False
    incarnation: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Partition:
    """What a source partition offers: the log from `first` up to the last stable offset `stable`.

    `is_anchored` is true of a partition without a position that is to start later than where its log does;
    `is_set_back` of one whose log ends before its position, or whose remote topic isn't the one that was written.
    `replaced_at` is the first offset of a log that isn't the one the position is of.
    """

    topic: str
    partition: int
    topic_id: str
    partitions: int
    first: int
    stable: int
    is_anchored: bool = False
    is_set_back: bool = False
    replaced_at: int | None = None
    leader_epoch: int = -1


def start_of(partition: Partition, positions: Mapping[PartitionKey, Position]) -> int:
    """Where the copy of a partition goes on: its position, or its first offset when it or its log is new."""
    if partition.replaced_at is not None:
        return partition.replaced_at
    position = positions.get((partition.topic, partition.partition))
    return partition.first if position is None else position.upstream_next


def total_lag(partitions: Iterable[Partition], positions: Mapping[PartitionKey, Position]) -> int:
    """Upstream offsets that are stable and not mirrored yet, over all partitions."""
    return sum(lag(partition.stable, start_of(partition, positions)) for partition in partitions)


def make_plan(
    partitions: Iterable[Partition],
    positions: Mapping[PartitionKey, Position],
    slots: int,
    max_records: int,
    until: Mapping[PartitionKey, int] | None = None,
    planned_before: Mapping[PartitionKey, int] | None = None,
    max_transformed: tuple[Callable[[str], bool], int] | None = None,
) -> list[Range]:
    """The ranges of one micro-batch.

    Args:
        partitions: what the source has.
        positions: what is mirrored, with the owner of each partition; a new one goes to the slot that owns the fewest.
        slots: how many slots there are.
        max_records: how many offsets all ranges may span, shared out evenly; what a small partition leaves goes to
            larger ones.
        planned_before: the slot that partitions without a position were given in earlier plans of this generation. They
            keep it: what that slot has committed may not be visible yet, and no other slot would see it.
        max_transformed: which topics have a transform, and how many offsets their ranges may span.
        until: where to stop at the latest, for a run that drains what was there when it began; partitions not named are
            left alone.
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
        if (
            end > start
            or partition.is_set_back
            or partition.replaced_at is not None
            or (partition.is_anchored and key not in positions)
        ):
            slot = given[key] if key in given else take_slot(loads)
            incarnation = positions[key].incarnation if key in positions else 0
            ranges.append(
                Range(
                    *key,
                    partition.topic_id,
                    partition.partitions,
                    slot,
                    start,
                    max(start, end),
                    partition.is_set_back,
                    incarnation,
                    partition.leader_epoch,
                )
            )
    share = fair_share([planned.end - planned.start for planned in ranges], max_records)
    has_transform, most = max_transformed or (lambda topic: False, 0)
    transformed = min(
        share, fair_share([planned.end - planned.start for planned in ranges if has_transform(planned.topic)], most)
    )
    return [
        replace(planned, end=min(planned.end, planned.start + (transformed if has_transform(planned.topic) else share)))
        for planned in ranges
    ]


def fair_share(wanted: list[int], total: int) -> int:
    """The largest cap under which all that is wanted fits into `total`; at least 1, so that everything moves."""
    left = total
    for count, size in enumerate(sorted(wanted)):
        cap = left // (len(wanted) - count)
        if size > cap:
            return max(1, cap)
        left -= size
    return max([1, *wanted])
