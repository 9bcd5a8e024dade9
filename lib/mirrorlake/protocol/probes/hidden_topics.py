"""Tells topics that a source hides from topics that it does not have: its list of topics leaves out both."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.errors import SourceError
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import TopicHeld


def require_visible(source: Cluster, flow: Flow, mirrored: Iterable[str], effect: str) -> None:
    """Checks that the principal may describe each topic of a flow that was mirrored, and that the source still has.

    Args:
        source: the source cluster.
        flow: the flow of the topics.
        mirrored: topics that the flow has mirrored; those that the source has listed need not be among them.
        effect: what a hidden topic prevents, and what to do if the right can't be granted.

    Raises:
        SourceError: a topic may not be described, or the source can't be read.
    """
    asked = sorted(filter(flow.mirrors_topic, mirrored))
    found = source.refresh(asked, flow.connect_timeout_ms, operations=True) if asked else {}
    for name, topic in sorted(found.items()):
        if not topic.leaders and topic.operations is not None and not topic.operations:
            reason = TopicHeld.NOT_PERMITTED.about(
                flow=flow.name, topic=name, operation="DESCRIBE", cluster=flow.source
            )
            raise SourceError(f"{reason}. {effect}")
