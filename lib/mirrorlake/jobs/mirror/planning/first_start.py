"""Checks of a flow that has copied nothing yet: it must copy no record a second time that MirrorMaker 2 has copied.

Usually records in a remote topic hold the topic (`readiness`). Where others write to the remote topics on purpose,
they don't.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import ARROW
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.mirror.planning.readiness import first_records
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.connect_offsets import MirrorMaker


def require_not_copied(flow: Flow, target: Cluster, topics: Iterable[str]) -> None:
    """Requires that MirrorMaker 2 has not filled the remote topics, unless the file says that they are shared.

    Args:
        flow: the flow, which has copied nothing yet.
        target: its target.
        topics: the topics that it is to mirror.

    Raises:
        ConfigurationError: MirrorMaker 2 has source offsets of the flow, and a remote topic holds records.
        TargetError: these can't be read.
    """
    if not flow.shares_by_default:
        return
    remote_of = flow.remote_topics(topic for topic in topics if not flow.policy.is_heartbeats_topic(topic))
    copied = MirrorMaker(flow, Admin(flow.target_connection, "target", flow.name, flow.connect_timeout_ms)).copied()
    there = target.refresh({remote_of[topic] for topic, _ in copied if topic in remote_of}, flow.connect_timeout_ms)
    asked: dict[str, list[PartitionKey]] = {}
    for topic, partition in sorted(copied):
        remote = there.get(remote_of.get(topic, ""))
        if remote is not None and partition in remote.leaders:
            asked.setdefault(topic, []).append((remote.name, partition))
    filled, unread = first_records(target, asked, flow.connect_timeout_ms, {})
    for _, error in unread.values():
        raise TargetError(f"flow {flow.name}: cluster {flow.target}: {error}", retriable=True)
    if filled:
        topic = min(filled)
        remote_topic, partition = filled[topic]
        back = f"{flow.target}{ARROW}{flow.source}"
        raise ConfigurationError(
            f"flow {flow.name}: MirrorMaker 2 has copied topic {topic} (topic {flow.mirrormaker.offsets_topic} on "
            f"cluster {flow.target} has its offsets), and {remote_topic}, partition {partition} there holds records. "
            "The flow has no positions, and would copy all records of the topic again. Nothing was changed. Take the "
            f"flow over, with {back}.enabled = false meanwhile. Or delete the remote topics, to have them filled anew. "
            "If others have written these records, and all are to be copied, set mirrorlake.topics.shared = true"
        )
