"""Hands a flow back to MirrorMaker 2: no mirror job can write any more, and MirrorMaker 2 continues at mirrorlake's
offsets."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.replication_policy import RenameReplicationPolicy
from mirrorlake.errors import ConfigurationError
from mirrorlake.log import ending, event
from mirrorlake.model.slot import ClosedFor, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.connect_offsets import MirrorMaker
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed_for, promoted_topics
from mirrorlake.state.generation import Beginning, begin_again

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Handback:
    """One partition of a hand-back.

    `upstream_next` is the source offset at which MirrorMaker 2 continues. `mirrormaker_next` is its own offset before
    the hand-back; None if it never copied the partition.
    """

    topic: str
    partition: int
    target_topic: str
    upstream_next: int
    mirrormaker_next: int | None


@dataclass(frozen=True)
class HandbackResult:
    """The result of a hand-back, or of a dry run (generation 0)."""

    flow: str
    generation: int
    positions: tuple[Handback, ...]

    def table(self) -> pd.DataFrame:
        """Returns one row for each partition, for display."""
        import pandas as pd

        return pd.DataFrame(
            [asdict(position) for position in self.positions], columns=list(Handback.__dataclass_fields__)
        )

    def to_json(self) -> dict[str, Any]:
        return {"flow": self.flow, "generation": self.generation, "partitions": len(self.positions)}


def hand_back(flow: Flow, *, connector: str = "", dry_run: bool = False) -> HandbackResult:
    """Closes the flow for mirror jobs, and writes its positions as MirrorMaker 2's source offsets.

    Args:
        flow: flow to hand back.
        connector: name of MirrorMaker 2's source connector; see `MirrorMaker`.
        dry_run: if true, nothing is changed.

    Raises:
        ConfigurationError: MirrorMaker 2 can't rename topics like this flow, transform records, or leave out those
            that others have brought; there is nothing to hand back; or the flow or topics of it were failed over.
        TargetError: MirrorMaker 2 runs, or its offsets can't be written.
    """
    with ending(log, "handback", flow=flow.name):
        return _hand_back(flow, connector, dry_run=dry_run)


def _hand_back(flow: Flow, connector: str, *, dry_run: bool) -> HandbackResult:
    if isinstance(flow.policy, RenameReplicationPolicy):
        raise ConfigurationError(
            f"flow {flow.name}: MirrorMaker 2 can't rename topics as {type(flow.policy).__name__} does, so it would "
            "create new remote topics. The flow can't be handed back"
        )
    admin = Admin(flow.target_connection, "target", flow.name)
    mirrormaker = MirrorMaker(flow, admin, connector)
    target = Cluster(flow.target_connection, "target", f"{flow.name}|handback", flow.connect_timeout_ms).connect()
    try:
        mirrormaker.require_stopped(target)
        topic, timeout_ms = flow.offset_syncs_topic, flow.connect_timeout_ms
        states = offset_syncs.read_all_states(target, topic, timeout_ms)
        if not states:
            raise ConfigurationError(
                f"flow {flow.name}: {topic} on cluster {flow.target} holds no state: this flow has never been mirrored "
                "here"
            )
        if closed_for(states.values()) is ClosedFor.FAILOVER:
            raise ConfigurationError(
                f"flow {flow.name} was failed over: its target is in use, and MirrorMaker 2 would copy the diverged "
                "tail of the source onto it. Open the flow with notebooks/failback.ipynb first. Nothing was changed"
            )
        promoted = sorted(topic for topic in promoted_topics(states.values()) if flow.mirrors_topic(topic))
        if promoted:
            raise ConfigurationError(
                f"flow {flow.name}: topic {promoted[0]} was promoted, and MirrorMaker 2 would copy records onto it. "
                "Promote it on the flow back first, or exclude it here and from MirrorMaker 2 (topics.exclude)"
            )
        _require_a_counterpart(flow)
        theirs, generation = mirrormaker.positions(), 0
        handed_back_ms = max((state.created_ms for state in states.values() if state.closed), default=None)
        if not dry_run:
            mirrormaker.ensure_topic()
            generation = begin_again(flow, target, Beginning(closes=ClosedFor.HANDBACK))
            states = offset_syncs.read_all_states(target, topic, timeout_ms)
        positions = merge_positions(states.values())
        ahead: dict[PartitionKey, int] = {}
        if handed_back_ms is not None:
            # MirrorMaker 2 may have run since. An offset that it had written before may be of a log that was replaced.
            ahead = {key: at for key, at in theirs.items() if mirrormaker.written_ms[key] > handed_back_ms}
        result = tuple(
            Handback(*key, position.target_topic, max(position.upstream_next, ahead.get(key, 0)), theirs.get(key))
            for key, position in sorted(positions.items())
            if flow.mirrors_topic(key[0])
        )
        if not dry_run:
            mirrormaker.write({(one.topic, one.partition): one.upstream_next for one in result})
            log.info(
                event(
                    "flow_handed_back",
                    flow=flow.name,
                    generation=generation,
                    partitions=len(result),
                    offsets_topic=flow.mirrormaker.offsets_topic,
                )
            )
    finally:
        target.close()
    return HandbackResult(flow.name, generation, result)


def _require_a_counterpart(flow: Flow) -> None:
    """Raises ConfigurationError if MirrorMaker 2 would copy what this flow leaves out or changes."""
    if flow.transforms:
        name = flow.transforms[0].name
        raise ConfigurationError(
            f"flow {flow.name} has transform {name}, and MirrorMaker 2 would copy records of its topics unchanged. "
            "Exclude these topics here and from MirrorMaker 2 (topics.exclude), and leave mirrorlake.transforms out. "
            "Nothing was changed"
        )
    if flow.records == "local" or (flow.topics_shared and flow.minds_provenance):
        raise ConfigurationError(
            f"flow {flow.name} leaves out records that other flows have brought, which MirrorMaker 2 can't do: it "
            f"would copy them, and those of {flow.name_back} would go round for ever. Disable the flow "
            "back and mirrorlake.topics.shared, leave mirrorlake.records out, and hand the flow back then. Nothing was "
            "changed"
        )
