"""Records that the target refuses for their size: where an attempt ends for them, and when they are tried again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from mirrorlake.config.flow import Flow
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy.gap_recorder import place
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import HEADER_BYTES
from mirrorlake.protocol.batches.records import Record, pack
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.network.response_error import ResponseError, WireError
from mirrorlake.protocol.topic_changes import LARGEST_MESSAGE

BEHIND_S = 30.0  # in which a remote topic follows the size limit of the source, if it can


def end_behind_refused(flow: Flow, limits: Limits, stretches: Mapping[PartitionKey, Stretch]) -> None:
    """Ends stretches behind the first record that the target has refused, so that what is before it is committed.

    Of many such records, each attempt finds one only. Spark delivers the planned records of topics with a transform, so
    that these do not end earlier. Records that the flow has passed over are forgotten.
    """
    limits.refused -= {
        record
        for record in limits.refused
        if (stretch := stretches.get(record[:2])) is not None
        and record[2:] < (stretch.incarnation, stretch.upstream_next)
    }
    for topic, partition, incarnation, offset in limits.refused:
        stretch = stretches.get((topic, partition))
        if stretch is None or flow.transform_of(topic) is not None:
            continue
        if stretch.incarnation == incarnation and stretch.upstream_next <= offset:
            stretch.planned_end = min(stretch.planned_end, offset + 1)


def out_of_step(
    flow: Flow, source: Cluster, target: Cluster, stretches: Mapping[PartitionKey, Stretch], now_s: float
) -> TargetError | None:
    """Returns an error if a record was refused whose topic has a larger size limit on the source by now.

    The remote topic follows, with the next sync of configurations. If it has not followed in time, the record counts as
    too large.

    Args:
        flow: flow to mirror.
        source: source cluster.
        target: target cluster.
        stretches: stretches by topic and partition.
        now_s: the time on the monotonic clock.
    """
    limits = target.limits
    here_of = cache(partial(_size_limit, source))
    there_of = cache(partial(_size_limit, target))
    for record in sorted(limits.refused):
        stretch = stretches.get(record[:2])
        if stretch is None or record != stretch.record_id(max(record[-1], stretch.upstream_from)):
            continue  # passed over before
        here, there = here_of(stretch.topic), there_of(stretch.target_topic)
        if there >= here:  # it has followed, and may fall behind again
            limits.behind.pop((stretch.target_topic, here), None)
            continue
        since = limits.behind.setdefault((stretch.target_topic, here), now_s)
        if now_s < since + BEHIND_S:
            limits.refused.discard(record)
            return TargetError(
                f"{place(stretch, flow)}, offset {record[-1]}: topic {stretch.target_topic} on cluster {flow.target} "
                f"refuses the record for its size, as its {LARGEST_MESSAGE} is {there}. It follows that of the source, "
                f"{here}",
                retriable=True,
                out_of_step=True,
            )
    return None


@dataclass(frozen=True)
class KnownLimits:
    """The size limits of remote topics, as they are configured.

    Spark delivers a record once in an attempt. Of many that are too large, each attempt would learn one from the
    target's refusal.

    Attributes:
        source: source cluster.
        limits: takes the records that the target is going to refuse.
        allowed_bytes: size limit of each remote topic; those whose configuration can't be read are missing.
        now_s: time on the monotonic clock.
    """

    source: Cluster
    limits: Limits
    allowed_bytes: Mapping[str, int]
    now_s: float
    _here: dict[str, int | None] = field(default_factory=dict)  # size limits of topics on the source

    async def note(self, stretch: Stretch, record: Record, codec: int) -> None:
        """Notes a record that is too large, unless its topic may still follow a larger limit of the source."""
        allowed_bytes = self.allowed_bytes.get(stretch.target_topic)
        if allowed_bytes is None or len(record.rest) + HEADER_BYTES < allowed_bytes // 2:
            return
        if len(pack([record], codec).raw) <= allowed_bytes:
            return
        if stretch.topic not in self._here:
            self._here[stretch.topic] = await _limit_bytes(self.source, stretch.topic)
        here = self._here[stretch.topic]
        since = self.limits.behind.get((stretch.target_topic, here or 0), self.now_s)
        if here is not None and (allowed_bytes >= here or self.now_s >= since + BEHIND_S):
            self.limits.refused.add(stretch.record_id(record.offset))


def _size_limit(cluster: Cluster, topic: str) -> int:
    """Returns the size limit of a topic in bytes, 0 if it can't be read."""
    return cluster.net.run(lambda: _limit_bytes(cluster, topic)) or 0


async def _limit_bytes(cluster: Cluster, topic: str) -> int | None:
    """Returns the size limit of a topic in bytes, 0 if the principal may not read it, None if it can't be read now."""
    with contextlib.suppress(ResponseError, WireError):
        return int(await cluster.topic_config(topic, LARGEST_MESSAGE) or 0)
    return None
