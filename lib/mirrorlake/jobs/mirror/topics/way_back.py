"""The flow back, where both flows keep a topic's name: each takes the other's remote topic for its source.

If both kept its configuration in step, whoever looks first would undo a change that was made on the other side, also of
`retention.ms` and `cleanup.policy`. So while both flows are open, neither does, until one of them is told not to. In
the usual property file for disaster recovery both are enabled, and one is open. Rights to read are kept in step both
ways, but neither flow passes on those that the other has given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.log import event
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state.closure import is_closed, promoted_topics
from mirrorlake.state.offset_syncs import read_all_states

log = logging.getLogger(__name__)

LOOK_MS = 5_000  # for which a look may take; what is not known then is left alone, as nothing may wait for it


class WayBack:
    """What the flow back keeps in step.

    Args:
        config: path of the property file, which is read at each look.
        source: source of the flow, which is the target of the flow back and has its states; nothing else uses this
            connection after the start of a job.
    """

    def __init__(self, config: str, source: Cluster) -> None:
        self._config, self._source = config, source
        self._lock = threading.Lock()  # new topics are looked at by another thread than all of them, at times
        self._is_unreadable = False

    def kept(self, flow: Flow, remote_of: Mapping[str, str]) -> set[str]:
        """Returns the topics of which the flow back keeps the configuration in step with that of their remote topics.

        Args:
            flow: the flow.
            remote_of: remote topic of each topic that is asked for.
        """
        back = self._flow_back(flow) if remote_of and flow.sync_topic_configs_enabled else None
        return self._kept_by(back, flow, remote_of) if back is not None and back.sync_topic_configs_enabled else set()

    def giver(self, flow: Flow, remote_of: Mapping[str, str]) -> Flow | None:
        """Returns the flow back if it gives access to remote topics that are sources of the flow; None if it does not.

        A right that it gave is not the source's own. If the flow passed that on, each of both would keep the other's,
        also after it was revoked where it came from.
        """
        back = self._flow_back(flow) if remote_of and flow.sync_topic_acls_enabled else None
        if back is None or not (back.sync_topic_acls_enabled and self._kept_by(back, flow, remote_of)):
            return None
        return back

    def _kept_by(self, back: Flow, flow: Flow, remote_of: Mapping[str, str]) -> set[str]:
        """Returns the topics whose remote topics are topics of the flow back, while it is open."""
        mutual = {
            topic
            for topic, remote in remote_of.items()
            if back.mirrors_topic(remote) and back.policy.remote_topic(remote) == topic
        }
        if not mutual:
            return mutual
        with self._lock:
            return mutual - self._left_alone(flow, back, {remote_of[topic]: topic for topic in mutual})

    def _flow_back(self, flow: Flow) -> Flow | None:
        """Loads the flow back; None if the file has none, or one that can't run."""
        try:
            return Flow.load(self._config, flow.name_back)
        except ConfigurationError:
            return None

    def _left_alone(self, flow: Flow, back: Flow, topic_of: Mapping[str, str]) -> set[str]:
        """Returns the topics that the flow back does not change now: all if it is not open, and those of promoted ones.

        While its states can't be read, it may be open. If the principal may not read them, it counts as one that is
        not, which is what it is in most files.
        """
        try:
            states = read_all_states(self._source, back.offset_syncs_topic, LOOK_MS).values()
        except MirrorlakeError as error:
            self._say(flow, back, error)
            return set() if error.retriable else {*topic_of.values()}
        self._is_unreadable = False
        if not states or is_closed(states):
            return {*topic_of.values()}
        return {topic for remote, topic in topic_of.items() if remote in promoted_topics(states)}

    def _say(self, flow: Flow, back: Flow, error: MirrorlakeError) -> None:
        """Says once that the states can't be read."""
        if self._is_unreadable:
            return
        self._is_unreadable = True
        effect = "configurations wait" if error.retriable else "it is taken for one that is not open"
        reason = f"whether flow {back.name} keeps topics in step, too, can't be read: {error}. Meanwhile {effect}"
        topic = back.offset_syncs_topic
        log.warning(event("configs_not_synced", flow=flow.name, cluster=flow.source, topics=topic, reason=reason))
