"""Closed flows and topics: one that was failed over or handed back is not continued before it is opened again."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.model.slot import ClosedFor, SlotState
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state import offset_syncs
from mirrorlake.state.whose import require_own

CLOSED = {
    ClosedFor.HANDBACK: "was handed back to MirrorMaker 2 (generation {generation}), so a mirror job would copy "
    "records a second time. Take the flow over again with notebooks/takeover.ipynb",
    ClosedFor.FAILOVER: "was failed over (generation {generation}): its target is in use, and the "
    "diverged tail of the source needs a decision. Open the flow again with notebooks/failback.ipynb",
}
CLOSED_TO_GROUPS = {
    ClosedFor.HANDBACK: "was handed back to MirrorMaker 2 (generation {generation}), which syncs its groups now. "
    "Remove the schedule of the checkpoint job, or take the flow over again with notebooks/takeover.ipynb",
    ClosedFor.FAILOVER: "was failed over (generation {generation}): its groups continue on the target, and the "
    "checkpoint job moves none of them any more. Pause its schedule until notebooks/failback.ipynb has opened the flow "
    "again",
}


def is_closed(states: Iterable[SlotState]) -> bool:
    """Returns True if any slot is closed; a flow that was closed or reopened only in part counts as closed."""
    return any(state.closed for state in states)


def closed_for(states: Iterable[SlotState]) -> ClosedFor:
    """Returns the reason for which a flow is closed, from its newest closed slot; NOTHING if it is open."""
    newest = max((state for state in states if state.closed), key=lambda state: state.generation, default=None)
    return ClosedFor.NOTHING if newest is None else newest.closed_for or ClosedFor.HANDBACK


def promoted_topics(states: Iterable[SlotState]) -> frozenset[str]:
    """Returns the source topics that were promoted; one that was promoted or opened only in part counts as promoted."""
    return frozenset(topic for state in states for topic in state.promoted_topics)


def closed(flow: Flow, reason: ClosedFor, generation: int) -> str:
    """Returns the message for a mirror job of a closed flow."""
    return f"flow {flow.name} {CLOSED[reason].format(generation=generation)}"


def require_open(flow: Flow, states: Iterable[SlotState]) -> None:
    """Raises ConfigurationError if a flow is closed, so that nothing of its target may be changed, or if these are not
    its states."""
    known = list(states)
    require_own(flow, known)
    if reason := closed_for(known):
        raise ConfigurationError(closed(flow, reason, max(state.generation for state in known)))


def require_open_to_groups(flow: Flow, target: Cluster) -> frozenset[str]:
    """Reads the states of a flow, and raises ConfigurationError if its groups must not be moved any more, or if these
    are not its states; returns the topics on which they must not, because they were promoted."""
    states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, flow.connect_timeout_ms).values()
    require_own(flow, states)
    if reason := closed_for(states):
        generation = max(state.generation for state in states)
        raise ConfigurationError(f"flow {flow.name} {CLOSED_TO_GROUPS[reason].format(generation=generation)}")
    return promoted_topics(states)
