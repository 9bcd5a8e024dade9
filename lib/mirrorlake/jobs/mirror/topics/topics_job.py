"""The topics job: keeps the remote topics of a flow in step with the source, or says what it would change."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.mirror.planning.first_start import require_first_copy
from mirrorlake.jobs.mirror.planning.readiness import foreign_topics
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.jobs.mirror.topics.topology import Topology
from mirrorlake.jobs.mirror.topics.way_back import WayBack
from mirrorlake.log import ending, event
from mirrorlake.model.slot import merge_positions
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.topic_changes import Change, ChangeOutcome
from mirrorlake.state.closure import promoted_topics, require_open
from mirrorlake.state.offset_syncs import read_all_states

if TYPE_CHECKING:
    import pandas as pd

    from mirrorlake.ledger.store import Ledger

log = logging.getLogger(__name__)

FOREIGN = (
    "its remote topic holds records of others, or can't be looked into: nothing of it is changed, unless the flow is "
    "taken over"
)


@dataclass(frozen=True)
class TopologyResult:
    """The result of the topics job: every change that is due, with its outcome (`planned` in a dry run)."""

    flow: str
    topics: int
    outcomes: dict[Change, str] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        counts = Counter(
            outcome if outcome in (ChangeOutcome.APPLIED, ChangeOutcome.PLANNED) else ChangeOutcome.REFUSED
            for outcome in self.outcomes.values()
        )
        return {
            "flow": self.flow,
            "topics": self.topics,
            "changes": len(self.outcomes),
            **{outcome.value: counts[outcome] for outcome in ChangeOutcome},
        }

    def table(self) -> pd.DataFrame:
        """Returns one row for each change, for display."""
        import pandas as pd

        columns = ["kind", "topic", "target_topic", "name", "before", "after", "note", "outcome"]
        return pd.DataFrame(
            [
                {**asdict(change), "kind": change.kind.value, "outcome": outcome}
                for change, outcome in self.outcomes.items()
            ],
            columns=columns,
        ).fillna("")


def keep_in_step(config: str, flow: Flow, ledger: Ledger, *, dry_run: bool) -> TopologyResult:
    """Runs the topics job: syncs the remote topics of a flow with the source, or only plans it (`dry_run`).

    Args:
        config: path of the property file.
        flow: the flow of that file.
        ledger: tables that record the changes.
        dry_run: True to change nothing.

    Raises:
        MirrorlakeError: a cluster can't be reached, no topic can have its remote name, or the flow is closed.
    """
    with ending(log, "topics", flow=flow.name), ExitStack() as stack:
        client_id, timeout_ms = f"{flow.name}|topics", flow.connect_timeout_ms
        source, target = (
            stack.enter_context(closing(Cluster(connection, side, client_id, timeout_ms)))
            for connection, side in ((flow.source_connection, "source"), (flow.target_connection, "target"))
        )
        return _keep_in_step(config, flow, source, target, ledger, dry_run=dry_run)


def _keep_in_step(
    config: str, flow: Flow, source: Cluster, target: Cluster, ledger: Ledger, *, dry_run: bool
) -> TopologyResult:
    for warning in flow.warnings:
        log.warning(event("configuration_warning", flow=flow.name, detail=warning))
    states = read_all_states(target.connect(), flow.offset_syncs_topic, flow.connect_timeout_ms).values()
    require_open(flow, states)
    promoted = promoted_topics(states)
    positions = merge_positions(states)
    mirrored = {topic for topic, _ in positions}
    found = source_topics(source.connect(), flow, mirrored - promoted)
    unnamed = flow.unnamed(found, mirrored)
    if found and len(unnamed) == len(found):
        raise ConfigurationError(next(iter(unnamed.values())))
    for topic, why in unnamed.items():
        log.warning(event("topic_held", flow=flow.name, topic=topic, reason=why))
    topics = {name: topic.partitions for name, topic in found.items() if name not in unnamed}
    if not positions:
        require_first_copy(flow, source, target, topics)
    ledger.ensure_tables()
    topology = Topology(
        flow,
        Admin(flow.source_connection, "source", flow.name),
        Admin(flow.target_connection, "target", flow.name),
        ledger,
        WayBack(config, source),
    )
    topology.promoted = promoted
    mine = {name: found[name] for name in topics if name not in promoted}
    foreign = foreign_topics(flow, mine, target, positions)
    for topic in sorted(foreign):
        log.warning(event("topic_held", flow=flow.name, topic=topic, reason=FOREIGN))
    if states or not dry_run:  # else a plan of what a take-over would bring
        topology.foreign = foreign
    planned = topology.plan(topics)
    if dry_run:
        return TopologyResult(flow.name, len(topics), dict.fromkeys(planned, ChangeOutcome.PLANNED))
    return TopologyResult(flow.name, len(topics), topology.apply(planned))
