"""Lets partitions with few new records wait for each other (`mirrorlake.linger.ms`).

Each commit costs a marker in every partition that it touches, and a run for it in the map. Where a few records come in
a second, these outweigh the records. So such partitions wait, and go together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mirrorlake.model.copy_plan import Partition, start_of
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey

BATCH_RECORDS = 500  # offsets that are worth a commit of their own: a marker and a run take a hundredth of their bytes
CALLED = float("-inf")  # has waited for long enough


@dataclass
class Sighting:
    """New records of a partition.

    Attributes:
        end: offset up to which records are known that have waited `since` or been called.
        since: time at which the first of them was seen, on the monotonic clock; CALLED if they wait no longer.
    """

    end: int
    since: float


class Linger:
    """The partitions of one planner that wait.

    As soon as one has waited for `mirrorlake.linger.ms`, all go. So each gets one commit in that time at most, and the
    flow has fewer micro-batches, too.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sightings: dict[PartitionKey, Sighting] = {}
        self._is_begun = False

    def due(
        self, offered: list[Partition], positions: Mapping[PartitionKey, Position], linger_ms: int
    ) -> list[Partition]:
        """Leaves out the partitions that wait.

        It keeps partitions with BATCH_RECORDS new offsets, without a position, or with another log. It keeps those that
        went before until they are copied up to where they ended then. Records that are there when the job starts have
        waited for an unknown time, and go.

        Args:
            offered: the partitions that can be copied.
            positions: positions of the flow.
            linger_ms: time for which a partition may wait; 0 for none.
        """
        is_begun, self._is_begun = self._is_begun, True
        if not linger_ms:
            self._sightings.clear()
            return offered
        now = self._clock()
        waiting = {(one.topic, one.partition): one for one in self._waiting(offered, positions, now)}
        first_seen = min((self._sightings[key].since for key in waiting), default=now)
        if is_begun and now < first_seen + linger_ms / 1000:
            return [one for one in offered if (one.topic, one.partition) not in waiting]
        for key, one in waiting.items():
            self._sightings[key] = Sighting(one.stable, CALLED)
        return offered

    def _waiting(
        self, offered: Iterable[Partition], positions: Mapping[PartitionKey, Position], now: float
    ) -> Iterator[Partition]:
        """Yields the partitions with new records that may wait; notes when these were seen."""
        for one in offered:
            key = one.topic, one.partition
            start = start_of(one, positions)
            is_plain = key in positions and one.replaced_at is None and not one.is_set_back
            if not is_plain or one.stable <= start:
                continue
            seen = self._sightings.get(key)
            if seen is None or start >= seen.end:
                seen = self._sightings[key] = Sighting(one.stable, now)
            if one.stable - start >= BATCH_RECORDS:
                seen.end, seen.since = one.stable, CALLED
            if seen.since != CALLED:
                yield one
