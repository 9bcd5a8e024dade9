"""Whose the states in an offset-syncs topic are: another flow's are not to be continued.

The topic is named after the source alone, so that other installations may use the same name, and a mirror of all topics
may copy it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.model.slot import SlotState

REMEDY = (
    "If an alias was changed in the property file, change it back. Else give the source another alias than {source}, "
    "so that its topic is another. Or, if a mirror has copied the topic, and this flow has no states there, exclude it "
    "there (topics.exclude) and delete the copy"
)


def others(flow: Flow, states: Iterable[SlotState]) -> str:
    """Says in words which other flow has states in the topic of a flow; empty if there is none."""
    foreign = next((one for one in states if (one.source, one.target) != (flow.source, flow.target)), None)
    if foreign is None:
        return ""
    return (
        f"topic {flow.offset_syncs_topic} on {flow.target} has states of flow {foreign.source}->{foreign.target}: "
        "another installation calls its clusters so, or a mirror has copied the topic there"
    )


def require_own(flow: Flow, states: Iterable[SlotState]) -> None:
    """Raises ConfigurationError if a state is another flow's."""
    if what := others(flow, states):
        raise ConfigurationError(f"flow {flow.name}: {what}. {REMEDY.format(source=flow.source)}")
