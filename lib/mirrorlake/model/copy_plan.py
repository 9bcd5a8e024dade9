"""Plans: the offsets that each slot copies in one micro-batch.

A plan is data and has no side effects. Planning again yields another plan, from the flow's current positions. The end
of a range is a limit. Copying tasks copy whole batches, so they may pass an end, or stop short of it when their time is
up. Only the state that the slot commits is authoritative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorlake.model.lag import lag
from mirrorlake.model.slot import Position, emptiest
from mirrorlake.partition_key import PartitionKey


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of a source partition that a slot copies.

    `partitions` is the number of partitions of the topic. `incarnation` is that of the position before the range.
    `leader_epoch` is the epoch of the source's leader when the end was read, -1 if unknown.

    An empty range of a partition without a position makes the slot record its start offset. `is_new` is true for such a
    partition: its slot may have begun it, by a commit that could not be read yet. A range with `is_set_back` makes the
    task inspect a log that ends before the position.
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
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """The log of a source partition, from `first` up to the last stable offset `stable`.

    `is_anchored` is true for a partition without a position that starts after the beginning of its log. `is_set_back`
    is true if the log ends before the position, or if the remote topic was recreated. `replaced_at` is the first offset
    of a new log that replaced the one of the position, None if the log is the same.
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
    """Returns the next offset to copy: the position, or the first offset if the partition or its log is new."""
    if partition.replaced_at is not None:
        return partition.replaced_at
    position = positions.get((partition.topic, partition.partition))
    return partition.first if position is None else position.upstream_next


def total_lag(partitions: Iterable[Partition], positions: Mapping[PartitionKey, Position]) -> int:
    """Counts the upstream offsets that are stable and not mirrored yet, over all partitions."""
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
    """Plans the ranges of one micro-batch.

    Args:
        partitions: the partitions of the source.
        positions: the positions of the flow, with the slot of each partition. A new partition goes to the
            slot that owns the fewest.
        slots: the number of slots.
        max_records: the number of offsets that all ranges may span. Each range gets an equal share; larger partitions
            use the rest of smaller ones.
        until: the end offset (exclusive), by partition, for a run that copies only what was there at its start. Other
            partitions are left out.
        planned_before: the slot that earlier plans of this generation gave to partitions without a position. Such a
            partition keeps its slot: that slot's commit may not be visible yet, and no other slot would see it.
        max_transformed: a predicate for topics with a transform, and the number of offsets that their ranges may span.
    """
    loads = dict.fromkeys(range(slots), 0)
    given = {key: position.slot for key, position in positions.items()}
    given = {**(planned_before or {}), **given}
    for slot in given.values():
        loads[slot] += 1
    free = emptiest(loads)
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
            slot = given[key] if key in given else next(free)
            incarnation = positions[key].incarnation if key in positions else 0
            ranges.append(
                Range(
                    *key,
                    topic_id=partition.topic_id,
                    partitions=partition.partitions,
                    slot=slot,
                    start=start,
                    end=max(start, end),
                    is_set_back=partition.is_set_back,
                    incarnation=incarnation,
                    leader_epoch=partition.leader_epoch,
                    is_new=key not in positions,
                )
            )
    share = fair_share([planned.end - planned.start for planned in ranges], max_records)
    has_transform, most = max_transformed or (lambda topic: False, 0)
    transformed = min(
        share, fair_share([planned.end - planned.start for planned in ranges if has_transform(planned.topic)], most)
    )
    return [_at_most(planned, transformed if has_transform(planned.topic) else share) for planned in ranges]


def _at_most(planned: Range, offsets: int) -> Range:
    return planned if planned.end <= planned.start + offsets else replace(planned, end=planned.start + offsets)


def fair_share(wanted: list[int], total: int) -> int:
    """Returns the largest share with which all requests fit into `total`; at least 1, so that each partition moves."""
    left = total
    for count, size in enumerate(sorted(wanted)):
        cap = left // (len(wanted) - count)
        if size > cap:
            return max(1, cap)
        left -= size
    return max([1, *wanted])
