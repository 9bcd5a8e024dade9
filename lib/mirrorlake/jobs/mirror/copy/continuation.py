"""Where a slot continues: its plan, compared with what the slot has committed, and with the topics of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.model.anomaly import about
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.gap import GapKind
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.state import offset_syncs
from mirrorlake.state.fencing import fenced
from mirrorlake.translation.awaited import is_another, is_recreated


def committed_state(flow: Flow, target: Cluster, slot: int, generation: int) -> tuple[SlotState, int]:
    """Reads the last committed state of a slot.

    Args:
        flow: the flow of the slot.
        target: the cluster with the flow's offset-syncs topic.
        slot: number of the slot.
        generation: generation of the plan.

    Returns:
        The state, and the end of the slot's states, as they were read.

    Raises:
        TargetError: there is no state, or it is of an earlier generation.
        FencedError: it is of a newer generation.
    """
    topic = flow.offset_syncs_topic
    states, ends = offset_syncs.read_states_and_ends(target, topic, [slot], flow.connect_timeout_ms)
    state = states.get(slot)
    if state is None:
        raise TargetError(
            f"flow {flow.name}: {topic}-{slot} on cluster {flow.target} has no state, but the plan was made from one. "
            "The topic may have been deleted, or a broker that is not the leader any more has answered. Restore it. To "
            "start the flow anew instead, delete the topic together with the flow's remote topics, and the flow's rows "
            "of the tables offset_syncs and gaps",
            retriable=True,
        )
    if state.generation > generation:
        raise fenced(flow, generation, state.generation)
    if state.generation < generation:
        raise TargetError(
            f"flow {flow.name}: {topic}-{slot} went back from generation {generation} to {state.generation}, so "
            f"cluster {flow.target} has lost records of the topic, or a broker that is not the leader any more has "
            "answered. Restore these records, then start the job again",
            retriable=True,
        )
    return state, ends[slot]


def stretches_left(flow: Flow, state: SlotState, planned: Iterable[Range]) -> dict[PartitionKey, Stretch]:
    """Returns a stretch for each planned range of which something is left, from its committed position on.

    Raises:
        SourceError: a topic was created anew, and losses stop the flow.
        TargetError: a position is before the plan's start.
    """
    owned = state.owned()
    stretches = (_stretch(flow, one, owned.get((one.topic, one.partition))) for one in planned)
    return {stretch.key: stretch for stretch in stretches if stretch is not None}


def _stretch(flow: Flow, planned: Range, position: Position | None) -> Stretch | None:
    stretch = Stretch(
        topic=planned.topic,
        partition=planned.partition,
        topic_id=planned.topic_id,
        target_topic=flow.policy.remote_topic(planned.topic),
        upstream_from=planned.start,
        upstream_next=planned.start,
        downstream_from=0,
        planned_end=planned.end,
    )
    if position is None:
        return stretch
    if position.incarnation > planned.incarnation:
        return None  # a reset was committed after the plan was made
    start = position.upstream_next
    stretch = replace(
        stretch,
        upstream_from=start,
        upstream_next=start,
        downstream_from=position.downstream_next,
        incarnation=position.incarnation,
        leader_epoch=position.leader_epoch,
        target_topic_id=position.target_topic_id,
        epoch_from=position.epoch_from,
    )
    if is_recreated(position, planned.topic_id):
        what = f"topic {planned.topic} was deleted and created anew on cluster {flow.source}"
        _require_passing_over(flow, stretch, SourceError, GapKind.RECREATED, what)
        stretch.reset(planned.start, GapKind.RECREATED, 0)
        return stretch
    if planned.is_set_back:  # a fetch at this offset shows where the log continues
        stretch.planned_end = start + 1
        return stretch if start == planned.start else None
    if start < planned.start and not planned.is_new:  # of a new one, the log's start may have moved on meanwhile
        raise TargetError(
            f"flow {flow.name}, topic {planned.topic}, partition {planned.partition}: the committed position is "
            f"{start}, before the plan's start {planned.start}, so cluster {flow.target} has lost records of "
            f"{flow.offset_syncs_topic}, or a broker that is not the leader any more has answered. Restore these "
            "records, then start the job again",
            retriable=True,
        )
    if start > planned.start and 0 <= planned.leader_epoch < position.leader_epoch:
        return None  # the plan was made from an older position, with a leader that may not know its successor
    return stretch if start < planned.end else None


def require_remote_topics(flow: Flow, source: Cluster, target: Cluster, stretches: Iterable[Stretch]) -> None:
    """Checks that each remote topic exists and is the one that was written before.

    Raises:
        TargetError: a remote topic is missing, or was created anew while losses stop the flow.
    """
    confirmed: dict[str, Topic] = {}
    for stretch in stretches:
        remote = target.topics.get(stretch.target_topic)
        if remote is None:
            raise TargetError(
                f"flow {flow.name}: topic {stretch.target_topic} does not exist on cluster {flow.target}",
                retriable=True,
            )
        if is_another(stretch.target_topic_id, remote.topic_id):
            if remote.name not in confirmed:
                confirmed[remote.name] = _confirmed(flow, target, remote)
            remote = confirmed[remote.name]
        if is_another(stretch.target_topic_id, remote.topic_id):
            what = f"topic {stretch.target_topic} was deleted and created anew on cluster {flow.target}"
            _require_passing_over(flow, stretch, TargetError, GapKind.TARGET_RECREATED, what)
            first = source.offsets([stretch.key], EARLIEST_TIMESTAMP, flow.connect_timeout_ms)[stretch.key]
            stretch.reset(first, GapKind.TARGET_RECREATED, 0)
            stretch.downstream_from = 0
        stretch.target_topic_id = remote.topic_id


def _confirmed(flow: Flow, target: Cluster, remote: Topic) -> Topic:
    """Returns a remote topic as all brokers know it: one that is cut off may still know the topic before.

    Raises:
        TargetError: they do not agree, or one does not answer. Retriable.
    """
    found, doubts = target.call(
        "reading metadata", lambda: target.ask_every_broker([remote.name]), flow.connect_timeout_ms
    )
    if remote.name in doubts or remote.name not in found:
        why = doubts.get(remote.name, "it does not exist")
        raise TargetError(f"flow {flow.name}: topic {remote.name} may have been created anew: {why}", retriable=True)
    return found[remote.name]


def _require_passing_over(flow: Flow, stretch: Stretch, kind: type[MirrorlakeError], name: GapKind, what: str) -> None:
    if not flow.passes_over_losses:
        raise kind(
            f"flow {flow.name}, partition {stretch.partition}: {what}; the flow had mirrored up to offset "
            f"{stretch.upstream_next}. Find the cause. To mirror the records that the source has now, from the first "
            "one on, set mirrorlake.on.loss = continue",
            anomaly=about(name, stretch.key, 0, stretch.upstream_next),
        )
