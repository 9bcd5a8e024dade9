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
from mirrorlake.errors import MirrorlakeError, TargetError
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
        self._foreign: set[str] = set()
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
    def foreign(self) -> frozenset[str]:
        """Topics whose remote topic holds records of others, or may hold some: nothing of it may be changed."""
        return frozenset(self._foreign)

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
        missing = sum(topics[topic].partitions for topic in unknown if remote_of[topic] not in remotes)
        # While there are fewer and fewer, as long as for all of them.
        self._wait_s = max(self._wait_s if self._waiting_since else 0, WAIT_S + WAIT_S_PER_PARTITION * missing)
        asked: dict[str, list[PartitionKey]] = {}
        for topic in unknown:
            remote = remotes.get(remote_of[topic])
            if remote is None:
                self._foreign.discard(topic)
                held[topic] = self._lacks_partitions(flow, topics[topic], remote_of[topic])
            elif (why := self._known_reason(flow, topics[topic], remote, began)) is not None:
                held[topic] = why
            else:
                asked[topic] = _unwritten(
                    flow, topic, min(topics[topic].partitions, remote.partitions), remote.name, positions
                )
        occupied, unread = (
            ({}, {}) if flow.topics_shared else first_records(target, asked, flow.connect_timeout_ms, self._blank)
        )
        is_passing = bool(occupied) and not is_settled()
        took_s = time.monotonic() - began
        for topic in asked:
            remote = remotes[remote_of[topic]]
            if topic in unread:
                held[topic] = self._unread(flow, topic, remote, unread[topic], took_s)
            elif topic in occupied:
                held[topic] = self._occupied(flow, topic, remote, occupied[topic], is_passing=is_passing)
            else:
                self._foreign.discard(topic)
                if remote.partitions < topics[topic].partitions:
                    held[topic] = self._lacks_partitions(flow, topics[topic], remote.name)
                    self._looks[topic] = Look(remote.topic_id, held[topic], time.monotonic() + LOOK_AGAIN_S)
                else:
                    self._looks.pop(topic, None)
                    self._waiting_since.pop(topic, None)
                    self._ready[topic] = topics[topic].partitions
        return held

    def _forget_others(self, topics: Mapping[str, Topic]) -> None:
        """Forgets topics that are gone: one of the same name is another topic, which is checked anew."""
        ids = {name: topic.topic_id for name, topic in topics.items()}
        for topic in [name for name, known in self._ids.items() if ids.get(name) != known]:
            self._ready.pop(topic, None)
            self._waiting_since.pop(topic, None)
            self._looks.pop(topic, None)
            self._foreign.discard(topic)
        self._ids = ids

    def _known_reason(self, flow: Flow, topic: Topic, remote: Topic, now_s: float) -> str | None:
        """Returns the reason for which a topic is held, without a look into its remote topic; None if it takes one."""
        for operation, number in (("DESCRIBE", DESCRIBE), ("WRITE", WRITE)):
            if not remote.allows(number):
                self._waiting_since.pop(topic.name, None)
                return lacks(flow, operation, remote.name, flow.target)
        look = self._looks.get(topic.name)
        may_be_ready = topic.name in self.waiting and remote.partitions >= topic.partitions
        return look.why if look and look.holds(remote.topic_id, now_s) and not may_be_ready else None

    def _lacks_partitions(self, flow: Flow, topic: Topic, remote: str) -> str:
        """Notes that a topic waits for its remote topic, or for partitions of it; returns the reason."""
        self._waiting_since.setdefault(topic.name, time.monotonic())
        return TopicHeld.FEWER_PARTITIONS.about(
            flow=flow.name, remote=remote, target=flow.target, partitions=topic.partitions
        )

    def _unread(self, flow: Flow, topic: str, remote: Topic, problem: tuple[PartitionKey, str], took_s: float) -> str:
        """Notes that the leader of a remote topic does not tell what it holds, an election perhaps; see `_occupied`."""
        (_, partition), error = problem
        why = TopicHeld.UNREAD.about(
            flow=flow.name, remote=remote.name, partition=partition, target=flow.target, error=error
        )
        now = time.monotonic()
        self._foreign.add(topic)
        self._waiting_since.setdefault(topic, now)
        self._looks[topic] = Look(remote.topic_id, why, now + min(WAITS_LESS * took_s, LONGEST_S))
        return why

    def _occupied(self, flow: Flow, topic: str, remote: Topic, key: PartitionKey, *, is_passing: bool) -> str:
        """Notes that a remote topic holds records of others; returns the reason for which the topic is held.

        If it passes, they may be the flow's own, by a commit whose positions can't be read yet.
        """
        why = TopicHeld.OCCUPIED.about(
            flow=flow.name,
            remote=remote.name,
            partition=key[1],
            target=flow.target,
            offset_syncs=flow.offset_syncs_topic,
        )
        now = time.monotonic()
        self._foreign.add(topic)
        if is_passing:
            self._waiting_since.setdefault(topic, now)
            self._looks.pop(topic, None)
        else:
            self._waiting_since.pop(topic, None)
            self._looks[topic] = Look(remote.topic_id, why, now + LOOK_AGAIN_S)
        return why


def foreign_topics(
    flow: Flow, topics: Mapping[str, Topic], target: Cluster, positions: Mapping[PartitionKey, Position]
) -> frozenset[str]:
    """Returns the topics whose remote topic holds records of others, or may hold some: see `Readiness.foreign`.

    Records of the flow itself count as those of others if the position of their commit can't be read yet.
    """
    readiness = Readiness()
    readiness.held(flow, topics, target, positions, is_settled=lambda: True)
    return readiness.foreign


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


def require_told(flow: Flow, unread: Mapping[str, tuple[PartitionKey, str]]) -> None:
    """Raises TargetError, which may pass, if a remote partition could not be looked into (`first_records`)."""
    for _, error in unread.values():
        raise TargetError(f"flow {flow.name}: cluster {flow.target}: {error}", retriable=True)


def first_records(
    cluster: Cluster, topics: Mapping[str, list[PartitionKey]], timeout_ms: int, blank: Blank
) -> tuple[dict[str, PartitionKey], dict[str, tuple[PartitionKey, str]]]:
    """Returns the first partition of each topic that holds a committed record; aborted records don't count.

    The bounds of all partitions are listed, with three requests to each leader. A leader that does not answer, or can't
    read a log, holds up its own topics: of each, the second result has a partition, and the error.

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
    found: dict[str, PartitionKey] = {}
    failing: dict[int, str] = {}  # leaders that list offsets, and don't read logs: each look would take its whole time
    for topic, of_topic in topics.items():
        for key in of_topic if topic not in unread else ():
            leader = cluster.leader(*key)
            if leader in failing:
                unread[topic] = key, failing[leader]
                break
            try:
                if not _has_record(cluster, key, bounds.get(key, (0, 0, 0)), timeout_ms, blank):
                    continue
                found[topic] = key
            except MirrorlakeError as error:
                if error.retriable:
                    unread[topic] = key, failing.setdefault(leader, str(error))
                else:
                    found[topic] = key  # the log can't be read, but isn't empty
            break
    return found, unread


def _has_record(
    cluster: Cluster, key: PartitionKey, bounds: tuple[int, int, int], timeout_ms: int, blank: Blank
) -> bool:
    start, end, _ = bounds
    log = log_identity(cluster, key)
    known_log, known_end = blank.get(key, (UNKNOWN_LOG, 0))
    if known_log == log != UNKNOWN_LOG and known_end <= end:
        start = max(start, known_end)
    what = f"checking {key[0]}-{key[1]} for records (needs READ)"
    if end > start and cluster.call(what, partial(_holds_record, cluster, key, start, end), timeout_ms):
        return True
    blank[key] = log, end
    return False


async def _holds_record(cluster: Cluster, key: PartitionKey, start: int, end: int) -> bool:
    async for batch, is_aborted in read_stretch(cluster, key, start=start, end=end, max_bytes=FETCH_BYTES):
        if not (is_aborted or batch.is_control):
            return True
    return False
