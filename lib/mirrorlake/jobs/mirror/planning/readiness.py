"""Finds the topics of a flow that can be copied now, and the reasons why others are held.

A topic that is held must not stop the others. A topic is ready under three conditions:

- the principals may read the topic and write its remote topic;
- the remote topic has enough partitions;
- the remote topic holds only records of this flow: a partition without mirrored records must be empty, unless the
  topics are shared with other writers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.log_reader import UNKNOWN_LOG, log_identity, read_stretch
from mirrorlake.protocol.requests.metadata import DESCRIBE, READ, WRITE, Topic
from mirrorlake.reasons import TopicHeld

WAIT_S = 15.0  # until every broker knows a new topic, or the markers of a commit are in the logs
WAIT_S_PER_PARTITION = 0.02  # of those that are missing: a busy broker makes 200 logs in a second
FETCH_BYTES = 1 << 20
LOOK_AGAIN_S = 10.0  # between two looks into a log that holds records of others
WAITS_LESS, LONGEST_S = 10, 30.0  # where its leader is away: of the time that a look takes, and at most

# The identity of a log, and the offset before which it has no committed record
Blank = dict[PartitionKey, tuple[tuple[str, int], int]]


@dataclass(frozen=True)
class Look:
    """What a look into the logs of a remote topic has found that holds up the topic.

    Attributes:
        topic_id: the id of the remote topic.
        why: the reason, in words.
        holds_until_s: the time on the monotonic clock until which there is no other look.
    """

    topic_id: str
    why: str
    holds_until_s: float

    def holds(self, topic_id: str, now_s: float) -> bool:
        """Tells whether it is too early for another look."""
        return topic_id == self.topic_id and now_s < self.holds_until_s


class Readiness:
    """The readiness of the topics of one flow; a ready topic is not checked again until it is gone, or `forget`. The
    logs of one that is held are looked at from time to time."""

    def __init__(self) -> None:
        self._ready: dict[str, int] = {}
        self._waiting_since: dict[str, float] = {}
        self._ids: dict[str, str] = {}
        self._looks: dict[str, Look] = {}
        self._blank: Blank = {}
        self._wait_s = WAIT_S

    def forget(self) -> None:
        self._ready.clear()
        self._looks.clear()

    @property
    def waiting(self) -> set[str]:
        """Topics of `passing` that may be ready at any moment, as they have been held for a short time."""
        return {topic for topic, since in self._waiting_since.items() if time.monotonic() - since < self._wait_s}

    @property
    def passing(self) -> frozenset[str]:
        """Held topics whose reason may pass by itself: a remote topic or positions are missing, or a leader is."""
        return frozenset(self._waiting_since)

    def held(
        self,
        flow: Flow,
        topics: Mapping[str, Topic],
        target: Cluster,
        positions: Mapping[PartitionKey, Position],
        is_settled: Callable[[], bool],
    ) -> dict[str, str]:
        """Checks topics, and returns the reasons of those that are held.

        Args:
            flow: flow of the topics.
            topics: topics of the source, by name.
            target: cluster of the remote topics.
            positions: the flow's committed positions.
            is_settled: tells whether the positions were read behind all commits (`offset_syncs.is_settled`).

        Returns:
            Reasons by topic; topics without a reason are ready.
        """
        self._forget_others(topics)
        held = {
            topic: lacks(flow, "READ" if found.allows(DESCRIBE) else "DESCRIBE", topic, flow.source)
            for topic, found in topics.items()
            if not found.allows(READ)
        }
        unknown = [
            topic
            for topic, found in topics.items()
            if topic not in held and self._ready.get(topic, 0) < found.partitions
        ]
        if not unknown:
            return held
        remote_of, began = flow.remote_topics(topics), time.monotonic()
        remotes = target.refresh({remote_of[topic] for topic in unknown}, flow.connect_timeout_ms, operations=True)
        asked: dict[str, list[PartitionKey]] = {}
        missing = sum(topics[topic].partitions for topic in unknown if remote_of[topic] not in remotes)
        # While there are fewer and fewer, as long as for all of them.
        self._wait_s = max(self._wait_s if self._waiting_since else 0, WAIT_S + WAIT_S_PER_PARTITION * missing)
        for topic in unknown:
            remote, partitions = remote_of[topic], topics[topic].partitions
            why = self._why_not_writable(flow, topic, partitions, remote, remotes.get(remote))
            look = self._looks.get(topic)
            if why is None and look and look.holds(remotes[remote].topic_id, began) and topic not in self.waiting:
                held[topic] = look.why
            elif why is None:
                asked[topic] = _unwritten(flow, topic, partitions, remote, positions)
            else:
                held[topic] = why
        occupied, unread = (
            ({}, {}) if flow.topics_shared else first_records(target, asked, flow.connect_timeout_ms, self._blank)
        )
        is_passing = bool(occupied) and not is_settled()
        ended = time.monotonic()
        for topic in asked:
            self._looks.pop(topic, None)
            if topic in unread:
                (_, partition), error = unread[topic]
                held[topic] = TopicHeld.UNREAD.about(
                    flow=flow.name, remote=remote_of[topic], partition=partition, target=flow.target, error=error
                )
            elif topic in occupied:
                _, partition = occupied[topic]
                held[topic] = TopicHeld.OCCUPIED.about(
                    flow=flow.name,
                    remote=remote_of[topic],
                    partition=partition,
                    target=flow.target,
                    offset_syncs=flow.offset_syncs_topic,
                )
            else:
                self._ready[topic] = topics[topic].partitions
            # An election, or its own records, by a commit whose positions can't be read yet.
            if topic in unread or (topic in occupied and is_passing):
                self._waiting_since.setdefault(topic, time.monotonic())
            else:
                self._waiting_since.pop(topic, None)
            if topic in held and not (topic in occupied and is_passing):
                wait_s = min(WAITS_LESS * (ended - began), LONGEST_S) if topic in unread else LOOK_AGAIN_S
                self._looks[topic] = Look(remotes[remote_of[topic]].topic_id, held[topic], ended + wait_s)
        return held

    def _forget_others(self, topics: Mapping[str, Topic]) -> None:
        """Forgets topics that are gone: one of the same name is another topic, which is checked anew."""
        ids = {name: topic.topic_id for name, topic in topics.items()}
        for topic in [name for name, known in self._ids.items() if ids.get(name) != known]:
            self._ready.pop(topic, None)
            self._waiting_since.pop(topic, None)
            self._looks.pop(topic, None)
        self._ids = ids

    def _why_not_writable(
        self, flow: Flow, topic: str, partitions: int, remote: str, found: Topic | None
    ) -> str | None:
        for operation, number in (("DESCRIBE", DESCRIBE), ("WRITE", WRITE)):
            if found is not None and not found.allows(number):
                self._waiting_since.pop(topic, None)
                return lacks(flow, operation, remote, flow.target)
        if found is None or found.partitions < partitions:
            self._waiting_since.setdefault(topic, time.monotonic())
            return TopicHeld.FEWER_PARTITIONS.about(
                flow=flow.name, remote=remote, target=flow.target, partitions=partitions
            )
        return None


def _unwritten(
    flow: Flow, topic: str, partitions: int, remote: str, positions: Mapping[PartitionKey, Position]
) -> list[PartitionKey]:
    """Returns the remote partitions of a topic that must hold no record, as the flow has mirrored none to them."""
    if flow.scatters(topic) and any(known == topic for known, _ in positions):
        return []  # the transform chooses the partitions of its records
    return [
        (remote, partition)
        for partition in range(partitions)
        if (topic, partition) not in positions or positions[topic, partition].downstream_next == 0
    ]


def lacks(flow: Flow, operation: str, topic: str, cluster: str) -> str:
    """Returns the message about a missing permission.

    Args:
        flow: flow that needs the permission.
        operation: Kafka's name of the operation, for example READ.
        topic: topic that the permission is for.
        cluster: alias of the topic's cluster.
    """
    return TopicHeld.NOT_PERMITTED.about(flow=flow.name, topic=topic, operation=operation, cluster=cluster)


def first_records(
    cluster: Cluster, topics: Mapping[str, list[PartitionKey]], timeout_ms: int, blank: Blank
) -> tuple[dict[str, PartitionKey], dict[str, tuple[PartitionKey, str]]]:
    """Returns the first partition of each topic that holds a committed record; aborted records don't count.

    The bounds of all partitions are listed, with three requests to each leader. A leader that does not answer holds up
    its own topics: of each, the second result has a partition, and the error.

    Args:
        cluster: cluster of the partitions.
        topics: partitions that are looked at, by what they belong to.
        timeout_ms: deadline of each look into a log.
        blank: what earlier looks have read, and this one reads. A slot that fails for long before its first commit
            leaves a log of aborted records, which grows with each attempt.
    """
    keys = [key for of_topic in topics.values() for key in of_topic]
    bounds, failed = cluster.log_bounds(keys) if keys else ({}, {})
    unread = {topic: (key, failed[key]) for topic, of_topic in topics.items() for key in of_topic if key in failed}
    found = {
        topic: _first_record(cluster, of_topic, bounds, timeout_ms, blank)
        for topic, of_topic in topics.items()
        if topic not in unread
    }
    return {topic: key for topic, key in found.items() if key is not None}, unread


def _first_record(
    cluster: Cluster,
    keys: list[PartitionKey],
    bounds: Mapping[PartitionKey, tuple[int, int, int]],
    timeout_ms: int,
    blank: Blank,
) -> PartitionKey | None:
    for key in keys:
        start, end, _ = bounds.get(key, (0, 0, 0))
        log = log_identity(cluster, key)
        known_log, known_end = blank.get(key, (UNKNOWN_LOG, 0))
        if known_log == log != UNKNOWN_LOG and known_end <= end:
            start = max(start, known_end)
        try:
            if end > start and cluster.call(
                f"checking {key[0]}-{key[1]} for records (needs READ)",
                partial(_holds_record, cluster, key, start, end),
                timeout_ms,
            ):
                return key
            blank[key] = log, end
        except MirrorlakeError as error:
            if error.retriable:
                raise
            return key  # the log can't be read, but isn't empty
    return None


async def _holds_record(cluster: Cluster, key: PartitionKey, start: int, end: int) -> bool:
    async for batch, is_aborted in read_stretch(cluster, key, start=start, end=end, max_bytes=FETCH_BYTES):
        if not (is_aborted or batch.is_control):
            return True
    return False
