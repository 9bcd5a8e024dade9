"""Answers of brokers that led a partition before, and do not know its successor.

A broker that is cut off from its controller goes on answering. Its log lacks what the successor has, and looks like one
that was truncated; a topic that was created anew looks like the one before. Therefore all brokers are asked before a
partition is believed to have lost records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set

from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.translation.awaited import is_recreated

ASK_AGAIN_S = 2.0  # every broker, while their answers leave doubts

Ends = Mapping[PartitionKey, tuple[int, int]]


class FormerLeaders:
    """Looks for the newest leaders of partitions that seem to have lost records.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: Set[str] = frozenset()
        self._doubts: Mapping[str, str] = {}
        self._since: dict[str, float] = {}  # for each doubt
        self._due = 0.0

    def look(
        self, source: Cluster, topics: Set[str], timeout_ms: int, patience_ms: int
    ) -> tuple[dict[str, Topic], Mapping[str, str]]:
        """Asks each broker who leads the partitions of topics; again after ASK_AGAIN_S.

        Args:
            source: cluster to ask, which knows the newest leaders then.
            topics: the topics of `suspects`.
            timeout_ms: deadline of the first answer.
            patience_ms: for how long a doubt counts; a broker that is named may be out of reach for good.

        Returns:
            The topics as most brokers know them; and the reasons to leave others alone for now.

        Raises:
            SourceError: no broker answers within `timeout_ms`.
        """
        now = self._clock()
        if topics <= self._asked and now < self._due:
            return {}, self._doubts
        wanted = sorted(topics)
        found, doubts = source.call(
            "reading metadata", lambda: source.ask_every_broker(wanted, operations=True), timeout_ms
        )
        self._asked, self._due = frozenset(topics), self._clock() + ASK_AGAIN_S
        self._since = {name: self._since.get(name, now) for name in doubts}
        self._doubts = {name: why for name, why in doubts.items() if now < self._since[name] + patience_ms / 1000}
        return {name: topic for name, topic in found.items() if name not in self._doubts}, self._doubts


def suspects(ends: Ends, positions: Mapping[PartitionKey, Position], topics: Mapping[str, Topic]) -> set[PartitionKey]:
    """Returns the partitions that seem to have lost records, or to be others than those that were mirrored.

    The log ends before the position, or its leader is older than the one whose records were read last, or the topic has
    another id.

    Args:
        ends: last stable offset and leader epoch of each partition; the epoch is -1 if it is unknown.
        positions: the flow's positions.
        topics: topics as the source describes them.
    """
    ids = {name: topic.topic_id for name, topic in topics.items()}
    return {
        key
        for key, (end, epoch) in ends.items()
        if (known := positions.get(key)) is not None
        and (
            end < known.upstream_next
            or (end > known.upstream_next and 0 <= epoch < known.leader_epoch)
            or (known.topic_id != ids[key[0]] and is_recreated(known, ids[key[0]]))
        )
    }
