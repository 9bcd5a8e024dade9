"""Which topics of a flow can be copied right now, and why the others have to wait: one bad topic must not stop the
rest.

A topic is ready when this principal may read it and write its remote topic, when that has enough partitions, and when
what stands there is
ours: a partition of which nothing is mirrored yet must hold no record, unless others are meant to write there too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import DESCRIBE, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ, WRITE, Cluster, Topic
from mirrorlake.protocol.log_reader import read_stretch

WAIT_S = 15.0  # until a topic that was just created is known to every broker
FETCH_BYTES = 1 << 20


class Readiness:
    """What is known about the topics of one flow; a topic that was ready once is not asked about again until
    `forget`."""

    def __init__(self) -> None:
        self._ready: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}

    def forget(self) -> None:
        self._ready.clear()

    @property
    def waiting(self) -> set[str]:
        """Held topics whose remote topics may turn up any moment: they are about to be created."""
        return {topic for topic, since in self._missing_since.items() if time.monotonic() - since < WAIT_S}

    def held(
        self, flow: Flow, topics: Mapping[str, Topic], target: Cluster, positions: Mapping[PartitionKey, Position]
    ) -> dict[str, str]:
        """Why topics have to wait, by name; the others are ready."""
        held = {
            topic: lacks(flow, "READ", topic, flow.source) for topic, found in topics.items() if not found.allows(READ)
        }
        unknown = [
            topic
            for topic, found in topics.items()
            if topic not in held and self._ready.get(topic, 0) < found.partitions
        ]
        if not unknown:
            return held
        remote_of = flow.remote_topics(topics)
        remotes = target.refresh({remote_of[topic] for topic in unknown}, flow.connect_timeout_ms, operations=True)
        for topic in unknown:
            why = self._why_not(
                flow,
                topic,
                topics[topic].partitions,
                remote_of[topic],
                remotes.get(remote_of[topic]),
                target,
                positions,
            )
            if why is None:
                self._ready[topic] = topics[topic].partitions
            else:
                held[topic] = why
        return held

    def _why_not(
        self,
        flow: Flow,
        topic: str,
        partitions: int,
        remote: str,
        found: Topic | None,
        target: Cluster,
        positions: Mapping[PartitionKey, Position],
    ) -> str | None:
        for operation, number in (("DESCRIBE", DESCRIBE), ("WRITE", WRITE)):
            if found is not None and not found.allows(number):
                return lacks(flow, operation, remote, flow.target)
        if found is None or found.partitions < partitions:
            self._missing_since.setdefault(topic, time.monotonic())
            return (
                f"flow {flow.name}: topic {remote} on cluster {flow.target} has not the {partitions} partitions it "
                "needs yet"
            )
        self._missing_since.pop(topic, None)
        if flow.scatters(topic) and any(known == topic for known, _ in positions):
            return None  # its records are in whatever partitions the transform has chosen
        new = [
            (remote, partition)
            for partition in range(partitions)
            if (topic, partition) not in positions or positions[topic, partition].downstream_next == 0
        ]
        occupied = None if flow.topics_shared else first_record(target, new, flow.connect_timeout_ms)
        if occupied is None:
            return None
        return (
            f"flow {flow.name}: topic {occupied[0]}, partition {occupied[1]} on cluster {flow.target} holds records "
            f"already, but {flow.offset_syncs_topic} has no "
            "position that says what they are: everything might be copied a second time. If MirrorMaker 2 wrote them, "
            "take over from it; if others write here on purpose, "
            "set mirrorlake.topics.shared = true; if that topic was lost, restore it; else delete the remote topics, "
            "or choose another alias"
        )


def lacks(flow: Flow, operation: str, topic: str, cluster: str) -> str:
    """What is said of a missing permission."""
    return (
        f"flow {flow.name}: topic {topic} (needs {operation}): the principal of cluster {cluster} lacks a permission "
        "on this TOPIC; grant it"
    )


def first_record(cluster: Cluster, keys: list[PartitionKey], timeout_ms: int) -> PartitionKey | None:
    """The first of these partitions that holds a committed record; what aborted transactions have left doesn't
    count."""
    ends = cluster.offsets(keys, LATEST_TIMESTAMP, timeout_ms) if keys else {}
    first = (
        cluster.offsets([key for key in keys if ends[key] > 0], EARLIEST_TIMESTAMP, timeout_ms)
        if any(ends.values())
        else {}
    )
    for key in sorted(first):
        try:
            if cluster.call(
                f"looking into {key[0]}-{key[1]} (needs READ)",
                partial(_holds_record, cluster, key, first[key], ends[key]),
                timeout_ms,
            ):
                return key
        except MirrorlakeError as error:
            if error.retriable:
                raise
            return key  # it can't be seen what is there, but something is
    return None


async def _holds_record(cluster: Cluster, key: PartitionKey, start: int, end: int) -> bool:
    async for batch, is_aborted in read_stretch(cluster, key, start, end, FETCH_BYTES):
        if not (is_aborted or batch.is_control):
            return True
    return False
