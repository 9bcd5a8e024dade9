"""Places that retention on the target has passed.

A consumer that continued before the start of a log would be out of range, and begin at its `auto.offset.reset`: with
`latest`, it would skip all that is there. So no group is moved to such a place, but to the start of the log.

A log that retention has emptied begins even behind all that is mapped, as the marker of the last transaction is deleted
together with the last record. The place of a group that has read everything is raised to that start itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster

LOOK_S = 30.0  # retention deletes segments every few minutes, by default


class LogStarts:
    """The log start offsets of a cluster's partitions, which are not asked for in each cycle.

    Args:
        cluster: the cluster of the logs.
        timeout_ms: the deadline for its metadata.
        clock: returns the time in seconds, monotonic.

    Attributes:
        unread: the partitions of which the cluster has never told the start, and does not tell it now.
    """

    def __init__(self, cluster: Cluster, timeout_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._timeout_ms, self._clock = cluster, timeout_ms, clock
        self._asked: set[PartitionKey] = set()
        self._starts: dict[PartitionKey, int] = {}
        self.unread: set[PartitionKey] = set()
        self._due = 0.0

    def of(self, partitions: Iterable[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Returns the starts of logs: those of now, not older than LOOK_S, or the last ones that were listed. The start
        of a log never falls, as long as it is the same log (`forget`)."""
        if self._clock() >= self._due:
            self._asked, self.unread, self._due = set(), set(), self._clock() + LOOK_S
        if new := {*partitions} - self._asked:
            there = self._cluster.existing(sorted(new), self._timeout_ms, operations=True)
            found, unread = self._cluster.log_starts(there)
            self._starts |= found
            self.unread |= unread - self._starts.keys()
            self._asked |= new
        return self._starts

    def forget(self) -> None:
        """Forgets all starts, as topics may have been created anew."""
        self._starts, self._due = {}, 0.0

    @property
    def known(self) -> Mapping[PartitionKey, int]:
        """The starts that were listed last."""
        return self._starts


def behind_all(row: Mapping[str, Any], piece_start: str) -> bool:
    """Tells whether a translated position has its place behind all mapped records.

    Args:
        row: a row of `sql_join.translate` or `two_way.counterparts`.
        piece_start: the name of the column that is null past the last piece of the map.
    """
    return row["downstream_offset"] is not None and row[piece_start] is None


def place_of(row: Mapping[str, Any]) -> PartitionKey:
    """Returns the remote partition of a translated position."""
    return row["target_topic"], row["target_partition"]


def at_log_start(row: dict[str, Any], starts: Mapping[PartitionKey, int], piece_start: str) -> dict[str, Any]:
    """Returns a translated position at the start of its log, if it is `behind_all` and before that."""
    if not behind_all(row, piece_start) or row["downstream_offset"] >= (start := starts.get(place_of(row), 0)):
        return row
    return row | {"downstream_offset": start, "mirrored_end": start}
