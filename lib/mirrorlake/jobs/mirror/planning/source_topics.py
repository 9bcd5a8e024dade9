"""Lists the source topics of a flow, with those that its principal may no longer describe."""

from __future__ import annotations

from collections.abc import Set

from mirrorlake.config.flow import Flow
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.requests.metadata import Topic


def source_topics(source: Cluster, flow: Flow, mirrored: Set[str]) -> dict[str, Topic]:
    """Lists the topics of a flow that the source has, by name, with what the principal may do.

    The source leaves a topic out of its list without an error if the principal may not describe it. So a topic that was
    mirrored and is missing there is asked for by name. If it was deleted, it is left out. If it may not be described,
    it has no partitions here, and allows no operation.

    Args:
        source: source cluster.
        flow: flow of the topics.
        mirrored: topics that the flow has mirrored and goes on to mirror.

    Raises:
        SourceError: the source can't be read.
    """
    timeout_ms = flow.connect_timeout_ms
    found = source.refresh(None, timeout_ms, operations=True)
    missing = sorted(name for name in mirrored - found.keys() if flow.mirrors_topic(name))
    if missing:
        found = found | source.refresh(missing, timeout_ms, operations=True)
    return {name: topic for name, topic in sorted(found.items()) if flow.mirrors_topic(name)}
