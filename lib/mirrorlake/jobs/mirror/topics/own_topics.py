"""Creates the topics that a flow has for itself on its target: for its offset syncs, and for dead letters."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.log import event
from mirrorlake.protocol.admin import Admin, NewTopic, Refusals
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.requests.metadata import WRITE
from mirrorlake.protocol.topic_changes import TIMESTAMP_BOUNDS, Entry, remote_config
from mirrorlake.reasons import TopicHeld
from mirrorlake.state.offset_syncs import TOPIC_CONFIG, topic_config

log = logging.getLogger(__name__)


class OwnTopics:
    """The topics that a flow has for itself.

    Args:
        flow: the flow.
        target: administration of the target.

    Attributes:
        loses_states: whether states have to be snapshots, as the offset-syncs topic may lose records.
    """

    def __init__(self, flow: Flow, target: Admin) -> None:
        self.flow, self._target = flow, target
        self.loses_states = False

    def ensure_offset_syncs(self, slots: int) -> int:
        """Creates the flow's offset-syncs topic, or adds partitions for more slots.

        Returns:
            The number of partitions of the topic.

        Raises:
            ConfigurationError: the topic loses records, but the property file asks for states that are changes.
        """
        topic = self.flow.offset_syncs_topic
        have = self._target.partitions().get(topic, 0)
        if have:
            found = self._target.configs([topic]).get(topic)
            if self.flow.state_changes_enabled:
                self._require_kept(topic, found)
            self._let_clocks_differ(topic, found or {})
        refusals: Refusals = {}
        if have == 0:
            refusals = self._create_offset_syncs(slots)
        elif have < slots:
            refusals = self._target.grow({topic: slots})
        if refusals:
            raise refusals[topic]
        return max(have, slots)

    def _create_offset_syncs(self, slots: int) -> Refusals:
        """Creates the topic with `TIMESTAMP_BOUNDS`, or without them on a cluster before 3.6, which refuses them."""
        topic, factor = self.flow.offset_syncs_topic, self.flow.offset_syncs_replication_factor
        for bounds in (TIMESTAMP_BOUNDS, {}):
            refusals = self._target.create([NewTopic(topic, slots, factor, config=topic_config(factor) | bounds)])
            if not refusals or refusals[topic].retriable:
                break
        return refusals

    def _let_clocks_differ(self, topic: str, found: Mapping[str, Entry]) -> None:
        """Lets a topic of an earlier version take the states of a machine whose clock is wrong.

        Where the principal may not configure the topic, it stays as it is.
        """
        wrong = {
            name: value for name, value in TIMESTAMP_BOUNDS.items() if name in found and found[name].value != value
        }
        if wrong:
            self._target.alter_configs({topic: wrong})

    def _require_kept(self, topic: str, found: Mapping[str, Entry] | None) -> None:
        """Checks that snapshots stay as long as the changes that name them.

        If they don't, or if this can't be known without DESCRIBE_CONFIGS, a flow whose file does not ask for changes
        goes on with snapshots. A log cleaner keeps the last state of each slot, which is then all that a start needs.
        """
        wanted = {name: TOPIC_CONFIG[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")}
        wrong = [name for name, value in wanted.items() if found and name in found and found[name].value != value]
        if found is None:
            if self.flow.state_changes_required:
                return
            what = "its configuration can't be read, so it may lose"
            better = "Grant DESCRIBE_CONFIGS on the TOPIC"
        elif wrong:
            values = ", ".join(f"{name} = {found[name].value}" for name in wrong)
            better = f"Set {', '.join(f'{name} = {wanted[name]}' for name in wrong)}"
            if self.flow.state_changes_required:
                raise ConfigurationError(
                    f"flow {self.flow.name}: topic {topic} on cluster {self.flow.target} has {values}, so it loses "
                    f"states that later ones are based on. {better} on the topic, or mirrorlake.state.changes.enabled "
                    "= false"
                )
            what = f"it has {values}, so it loses"
        else:
            return
        self.loses_states = True
        reason = (
            f"{what} records that the ledger may have to be rebuilt from. Each transaction writes all positions of its "
            f"slot meanwhile. {better}, and start the job again"
        )
        log.warning(event("states_not_kept", flow=self.flow.name, topic=topic, reason=reason))

    def ensure_dead_letters(self, target: Cluster) -> None:
        """Creates the flow's dead-letter topic if it does not exist, and requires that it may be written.

        Raises:
            TargetError: it can't be created, or the principal may not write to it.
        """
        topic = self.flow.dead_letter_topic
        if topic not in self._target.partitions():
            syncs = self.flow.offset_syncs_topic
            needed = remote_config(self._target.configs([syncs]).get(syncs, ()))
            config = {name: value for name, value in needed.items() if name != "compression.type"}
            kept = ("max.message.bytes", "cleanup.policy", "retention.ms", "retention.bytes")
            config |= {name: TOPIC_CONFIG[name] for name in kept}
            refusals = self._target.create([NewTopic(topic, 1, self.flow.replication_factor, config=config)])
            if refusals:
                raise refusals[topic]
        found = target.refresh([topic], self.flow.connect_timeout_ms, operations=True).get(topic)
        if found is not None and not found.allows(WRITE):
            raise TargetError(
                TopicHeld.NOT_PERMITTED.about(
                    flow=self.flow.name, topic=topic, operation="WRITE", cluster=self.flow.target
                )
            )
