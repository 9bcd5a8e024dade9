"""The topics of the source that the flow back may have written: a failover has places for the groups that read them."""

from __future__ import annotations

import time

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.protocol.cluster import Cluster


class BroughtTopics:
    """Tells which topics of a flow's source are remote topics of the flow back, by the topics of the target.

    Args:
        config: the property file, which is read again with the groups.
        flow: the flow.
        target: its target, the source of the flow back.
    """

    def __init__(self, config: str, flow: Flow, target: Cluster) -> None:
        self._config, self._flow, self._target = config, flow, target
        self._names: frozenset[str] = frozenset()
        self._due = 0.0

    def __contains__(self, topic: object) -> bool:
        if self._flow.has_come_through_target(str(topic)):
            return True
        if time.monotonic() >= self._due:
            self._names = self._read()
            self._due = time.monotonic() + self._flow.refresh_groups_interval_s
        return topic in self._names

    def _read(self) -> frozenset[str]:
        try:
            back = self._flow.load_back(self._config)
        except ConfigurationError:  # the other flow's jobs tell it
            return self._names
        if back is None:
            return frozenset()
        topics = self._target.refresh(None, self._flow.connect_timeout_ms)
        return frozenset(back.policy.remote_topic(topic) for topic in topics if back.mirrors_topic(topic))
