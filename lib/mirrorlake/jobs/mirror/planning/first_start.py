"""Checks of a flow that has copied nothing yet: it must copy no record a second time that MirrorMaker 2 has copied, and
none back to where it came from.

Usually records in a remote topic hold the topic (`readiness`). Where others write to the remote topics on purpose,
they don't. Nor does anything tell records that MirrorMaker 2 has brought to the source from those that were first
written there: it is no flow whose producers are known (`state/provenance.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from mirrorlake.config.flow import Flow, offset_syncs_topic
from mirrorlake.config.start import StartSpec
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.mirror.planning.readiness import first_records, require_told
from mirrorlake.model.slot import merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.connect_offsets import MirrorMaker
from mirrorlake.state.offset_syncs import read_all_states, was_taken_over


def require_first_copy(flow: Flow, source: Cluster, target: Cluster, topics: Collection[str]) -> None:
    """Requires that no record of these topics was copied before, as far as the clusters tell.

    Args:
        flow: the flow, which has copied nothing yet.
        source: its source.
        target: its target.
        topics: the topics that it is to mirror.

    Raises:
        ConfigurationError: MirrorMaker 2 has copied records in either direction.
        MirrorlakeError: what tells it can't be read.
    """
    begins_elsewhere = flow.start.flow != StartSpec()
    if flow.shares_by_default and not begins_elsewhere:
        _require_not_copied(flow, target, [topic for topic in topics if topic not in dict(flow.start.topics)])
    if flow.minds_provenance and not flow.start.is_chosen:
        _require_not_brought(flow, source, topics)


def _require_not_copied(flow: Flow, target: Cluster, topics: Collection[str]) -> None:
    """Requires that MirrorMaker 2 has not filled the remote topics, unless the file says that they are shared."""
    remote_of = flow.remote_topics(topic for topic in topics if not flow.policy.is_heartbeats_topic(topic))
    copied = MirrorMaker(flow, Admin(flow.target_connection, "target", flow.name, flow.connect_timeout_ms)).copied()
    there = target.refresh({remote_of[topic] for topic, _ in copied if topic in remote_of}, flow.connect_timeout_ms)
    asked: dict[str, list[PartitionKey]] = {}
    for topic, partition in sorted(copied):
        remote = there.get(remote_of.get(topic, ""))
        if remote is not None and partition in remote.leaders:
            asked.setdefault(topic, []).append((remote.name, partition))
    filled, unread = first_records(target, asked, flow.connect_timeout_ms, {})
    require_told(flow, unread)
    if filled:
        topic = min(filled)
        remote_topic, partition = filled[topic]
        raise ConfigurationError(
            f"flow {flow.name}: MirrorMaker 2 has copied topic {topic} (topic {flow.mirrormaker.offsets_topic} on "
            f"cluster {flow.target} has its offsets), and {remote_topic}, partition {partition} there holds records. "
            "The flow has no positions, and would copy all records of the topic again. Nothing was changed. Take the "
            f"flow over, with {flow.name_back}.enabled = false meanwhile. Or delete the remote topics, to have them "
            "filled anew. If others have written these records, and all are to be copied, set "
            "mirrorlake.topics.shared = true"
        )


def _require_not_brought(flow: Flow, source: Cluster, topics: Collection[str]) -> None:
    """Requires that the flow back has brought all of these topics itself, or that the file says where to begin."""
    timeout_ms = flow.connect_timeout_ms
    syncs = offset_syncs_topic(flow.target)
    there = source.refresh([syncs], timeout_ms, operations=True).get(syncs)
    if there is None or not there.leaders:  # a principal that may not describe it is told so where it is needed
        return
    states = read_all_states(source, syncs, timeout_ms)
    written = {one.target_topic for one in merge_positions(states.values()).values() if one.downstream_next}
    asked = sorted((written & {*topics}) - dict(flow.start.topics).keys())
    if asked and was_taken_over(source, syncs, states, timeout_ms):
        raise ConfigurationError(
            f"flow {flow.name}: flow {flow.name_back} was taken over from MirrorMaker 2, whose records on cluster "
            f"{flow.source} can't be told from those that were first written there. This flow would copy them to "
            f"{flow.target}, where they came from: those of {len(asked)} topics, such as {asked[0]}. Nothing was "
            f"changed. Set {flow.name}.mirrorlake.start to a time after the take-over, and before the first record "
            f"that others have written on {flow.source}; or {flow.name}.mirrorlake.start.topic.<topic> to the "
            "offsets behind MirrorMaker 2's records"
        )
