"""The flow back, where both flows keep a topic's name: each takes the other's remote topic for its source.

If both kept its configuration in step, whoever looks first would undo a change that was made on the other side, also of
`retention.ms` and `cleanup.policy`. So while both flows are open, neither does, until one of them is told not to. In
the usual property file for disaster recovery both are enabled, and one is open.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import ARROW
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state.closure import is_closed, promoted_topics
from mirrorlake.state.offset_syncs import read_all_states


class WayBack:
    """What the flow back keeps in step.

    Args:
        config: path of the property file, which is read at each look.
        source: source of the flow, which is the target of the flow back and has its states.
    """

    def __init__(self, config: str, source: Cluster) -> None:
        self._config, self._source = config, source

    def kept(self, flow: Flow, remote_of: Mapping[str, str]) -> set[str]:
        """Returns the topics of which the flow back keeps the configuration in step with that of their remote topics.

        Args:
            flow: the flow.
            remote_of: remote topic of each topic that is asked for.

        Raises:
            SourceError: the states of the flow back can't be read now.
        """
        back = self._flow_back(flow) if remote_of and flow.sync_topic_configs_enabled else None
        if back is None or not back.sync_topic_configs_enabled:
            return set()
        mutual = {
            topic
            for topic, remote in remote_of.items()
            if back.mirrors_topic(remote) and back.policy.remote_topic(remote) == topic
        }
        return mutual - self._left_alone(back, {remote_of[topic]: topic for topic in mutual}) if mutual else set()

    def _flow_back(self, flow: Flow) -> Flow | None:
        """Loads the flow back; None if the file has none, or one that can't run."""
        try:
            return Flow.load(self._config, f"{flow.target}{ARROW}{flow.source}")
        except ConfigurationError:
            return None

    def _left_alone(self, back: Flow, topic_of: Mapping[str, str]) -> set[str]:
        """Returns the topics that the flow back does not change now: all if it is not open, and those of promoted ones.

        If the principal may not read its states, it is taken for one that is not open: so it is in most files.
        """
        try:
            states = read_all_states(self._source, back.offset_syncs_topic, back.connect_timeout_ms).values()
        except MirrorlakeError as error:
            if error.retriable:
                raise
            return {*topic_of.values()}
        if not states or is_closed(states):
            return {*topic_of.values()}
        return {topic for remote, topic in topic_of.items() if remote in promoted_topics(states)}
