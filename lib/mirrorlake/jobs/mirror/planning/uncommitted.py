"""Records of the source behind its last stable offsets: the flow waits for transactions that are open.

A transaction that its producer has left hanging holds back every reader with read_committed, and the lag to the last
stable offset does not show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorlake.partition_key import PartitionKey
from mirrorlake.printable import named
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.open_transactions import OpenTransaction, oldest_open

LOOK_S = 10.0
MOST_DESCRIBED = 20  # partitions; of more, those that wait for the longest


@dataclass(frozen=True)
class WaitingFor:
    """A transaction on the source that the flow waits for.

    Attributes:
        topic: source topic.
        partition: source partition.
        offset: the last stable offset, which is the first one of the transaction.
        since_ms: its beginning, or the time when it was first seen, in ms since the epoch.
        who: its producer, in words.
    """

    topic: str
    partition: int
    offset: int
    since_ms: int
    who: str


class Uncommitted:
    """What one planner knows about records behind the last stable offsets.

    Args:
        clock: monotonic clock, in seconds.
        now: seconds since the epoch.

    Attributes:
        records: offsets between the last stable offsets and the high watermarks.
        waiting_for: the transactions that have not ended between two looks, in the order of partitions.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock, self._now = clock, now
        self._due = 0.0
        self._seen: dict[PartitionKey, tuple[int, int]] = {}  # the last stable offset, and since when it was seen
        self.records = 0
        self.waiting_for: tuple[WaitingFor, ...] = ()

    def look(self, source: Cluster, stable: Mapping[PartitionKey, int], *, is_only_look: bool) -> None:
        """Compares the last stable offsets with the high watermarks, every LOOK_S.

        Args:
            source: the source.
            stable: last stable offsets.
            is_only_look: True to describe what one look finds; otherwise a transaction must be open at two.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_S
        high = source.high_watermarks(stable)
        behind = {key: offset for key, offset in stable.items() if high.get(key, offset) > offset}
        self.records = sum(high[key] - offset for key, offset in behind.items())
        new, before = int(1000 * self._now()), self._seen
        known = {key: before[key] for key, offset in behind.items() if key in before and before[key][0] == offset}
        self._seen = {key: known.get(key, (offset, new)) for key, offset in behind.items()}
        old = behind if is_only_look else known
        hanging = sorted(sorted(old, key=lambda key: (self._seen[key][1], key))[:MOST_DESCRIBED])
        described = source.net.run(lambda: oldest_open(source, hanging)) if hanging else {}
        self.waiting_for = tuple(self._waiting_for(key, described.get(key)) for key in hanging)

    def _waiting_for(self, key: PartitionKey, found: OpenTransaction | None) -> WaitingFor:
        offset, seen_ms = self._seen[key]
        if found is None or found.first_offset != offset:
            return WaitingFor(*key, offset, seen_ms, "a producer that the cluster does not name")
        # The coordinator tells of the producer's present transaction. One whose marker is missing here is older.
        since_ms = min(found.started_ms, seen_ms) if found.started_ms >= 0 else seen_ms
        who = f"producer id {found.producer_id}"
        if found.transactional_id:
            who = f"transactional.id {named(found.transactional_id)}, {who}"
        else:
            who += " (its transactional.id is not listed; needs DESCRIBE on TRANSACTIONAL_ID, and Kafka 3.0)"
        return WaitingFor(*key, offset, since_ms, who)
