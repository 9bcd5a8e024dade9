"""Reads the state of a flow from both clusters and the ledger, as the input of a plan. Only reads.

With a dead source, it reads the target and the ledger only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import SourceError
from mirrorlake.jobs.checkpoint.group_positions import ends_seen, partitions_seen
from mirrorlake.jobs.failover.plan import AUTO, DEAD, Choice
from mirrorlake.ledger import views
from mirrorlake.ledger.store import Ledger, rows_of_pair, standing_differences
from mirrorlake.model.gap import GapKind
from mirrorlake.model.slot import ClosedFor, Position, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.open_transactions import HiddenEnd, hidden_ends
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.reasons import PositionReason
from mirrorlake.state import offset_syncs
from mirrorlake.state.backlog import Unmirrored, unmirrored
from mirrorlake.state.closure import closed_for, promoted_topics
from mirrorlake.translation import two_way
from mirrorlake.translation.awaited import is_replaced_there, why_awaited
from mirrorlake.translation.sql_join import resumptions, without_reset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HIDES_GROUPS = (
    "Without it, the source hides the offsets of groups in the topic. If it can't be granted, run with source = dead: "
    "the last offsets that were read count then"
)
AUTO_DEADLINE_MS = 5_000  # time limit for a source that may be dead


@dataclass(frozen=True)
class LogReset:
    """A reset after which the log of a partition on the source is another one from an offset on.

    Attributes:
        committed_at: the time at which the mirror job has begun the new log, UTC.
        from_offset: the first offset that means another record since.
    """

    committed_at: datetime
    from_offset: int


@dataclass(frozen=True)
class Situation:
    """The state of a flow at one time.

    Attributes:
        flow: the flow.
        target: target cluster.
        source: source cluster; None if it is dead or not used.
        positions: positions of the flow by source topic and partition, from the slots' states on the target.
        committed_ms: last commit time of each partition's slot, in ms since the epoch.
        first: first offsets of the source's partitions.
        ends: last stable offsets of the source's partitions; empty with a dead source.
        hidden: ends of the source's partitions of the flow that an open transaction hides; empty with a dead source.
        unread: partitions of the source that have no ends now, with the reason, such as a leader that is away.
        lags: unmirrored records, by topic and partition; empty with a dead source.
        carried_to: positions of the flow back, by topic and partition of the target; empty with a dead source, if that
            flow was handed back, or if it has never run and the topics are not shared.
        seen: largest end of each source partition that the checkpoint job has recorded.
        pieces: the maps of both directions from the ledger.
        known: partitions that have a counterpart on the target (`two_way.counterparts`).
        partitions: keys of `known`.
        promoted: topics of the flow that were failed over by themselves.
        emptied: partitions whose resets the table gaps has lost.
        awaited: partitions whose log on the source is not the one that was mirrored (none with a dead source), or whose
            remote topic is not, with the reason.
        resets: the last reset after which a partition's log on the source is another one; empty if there is none.
        gaps: the flow's gaps that hold now, from the ledger (view `current_gaps`).
        failed: partitions in which a verification has found differences that stand (`standing_differences`).
        looked_at: time of the reading, UTC.
    """

    flow: Flow
    target: Cluster
    source: Cluster | None
    positions: Mapping[PartitionKey, Position]
    committed_ms: Mapping[PartitionKey, int]
    first: Mapping[PartitionKey, int]
    ends: Mapping[PartitionKey, int]
    hidden: Mapping[PartitionKey, HiddenEnd]
    unread: Mapping[PartitionKey, str]
    lags: Mapping[PartitionKey, Unmirrored]
    carried_to: Mapping[PartitionKey, int]
    seen: Mapping[PartitionKey, int]
    pieces: DataFrame
    known: DataFrame
    partitions: frozenset[PartitionKey]
    promoted: frozenset[str]
    emptied: frozenset[PartitionKey]
    awaited: Mapping[PartitionKey, str]
    resets: Mapping[PartitionKey, LogReset]
    gaps: DataFrame
    failed: frozenset[PartitionKey]
    looked_at: datetime


@contextlib.contextmanager
def connected(flow: Flow, choice: Choice) -> Iterator[tuple[Cluster, Cluster | None]]:
    """Connects to the target, and to the source if it is alive.

    Raises:
        TargetError: the target can't be reached.
        SourceError: the source can't be reached, though the operator says that it is alive.
    """
    client_id = f"{flow.name}|failover"
    target = Cluster(flow.target_connection, "target", client_id, flow.connect_timeout_ms).connect()
    source: Cluster | None = None
    try:
        if choice.source != DEAD:
            deadline_ms = (
                min(AUTO_DEADLINE_MS, flow.connect_timeout_ms) if choice.source == AUTO else flow.connect_timeout_ms
            )
            source = Cluster(flow.source_connection, "source", client_id, deadline_ms)
            try:
                source.connect()
            except SourceError:
                source.close()
                source = None
                if choice.source != AUTO:
                    raise
        yield target, source
    finally:
        target.close()
        if source is not None:
            source.close()


def look(flow: Flow, back: Flow | None, ledger: Ledger, target: Cluster, source: Cluster | None) -> Situation:
    """Reads the state of a flow once.

    States are read before the ledger, so that the ledger can only know more than they do.

    Args:
        flow: the flow.
        back: the flow back; None if there is none.
        ledger: tables with the maps.
        target: target cluster.
        source: source cluster; None if it is dead.
    """
    timeout_ms = flow.connect_timeout_ms
    states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, timeout_ms)
    positions = merge_positions(states.values())
    back_states = (
        offset_syncs.read_all_states(source, back.offset_syncs_topic, timeout_ms)
        if back is not None and source is not None
        else {}
    )
    back_positions = merge_positions(back_states.values())
    former = _of_former_logs(target, source, back_positions, timeout_ms)
    back_positions = {key: position for key, position in back_positions.items() if key not in former}
    brought = {
        (position.target_topic, position.target_partition): position.downstream_next
        for position in back_positions.values()
    }
    promoted = promoted_topics(states.values())
    if source is not None:
        require_visible(source, flow, {topic for topic, _ in positions} - promoted, HIDES_GROUPS)
    logs = _logs(flow, source, positions, brought)
    pieces = _pieces(flow, ledger, former)
    # A partition without records has no position; of a dead source, the ledger tells that there is one.
    there = {*logs.ends, *logs.unread} if source is not None else partitions_seen(ledger, flow)
    carried = _carried(flow, target, positions, there)
    resumed, back_resumed = (
        resumptions(ledger.of_pair("gaps", *aliases)) if any(one.incarnation for one in of.values()) else {}
        for of, aliases in (
            (positions, (flow.source, flow.target)),
            (back_positions, (flow.target, flow.source)),
        )
    )
    known = _known(
        flow,
        back,
        carried,
        positions,
        first=logs.first,
        ends=logs.ends,
        brought=brought,
        pieces=pieces,
        resumed={key: one.resumed_at for key, one in resumed.items()},
        back_resumed={key: one.resumed_at for key, one in back_resumed.items()},
    )
    return Situation(
        flow=flow,
        target=target,
        source=source,
        positions=positions,
        committed_ms=_committed_ms(states.values()),
        first=logs.first,
        ends=logs.ends,
        hidden=logs.hidden,
        unread=logs.unread,
        lags=logs.lags,
        carried_to=_carried_to(flow, back, back_states, known, former) if source is not None else {},
        seen={} if source is not None else ends_seen(ledger, flow),
        pieces=pieces,
        known=ledger.spark.createDataFrame(known, two_way.KNOWN),
        promoted=promoted,
        emptied=frozenset(without_reset({key: one.incarnation for key, one in positions.items()}, resumed)),
        partitions=frozenset((row[0], row[1]) for row in known),
        awaited=_awaited(source, positions, logs.ends)
        | _occupied(flow, target, carried, positions)
        | _replaced_there(flow, target, positions),
        resets=_resets(ledger, flow) if any(one.incarnation for one in positions.values()) else {},
        gaps=rows_of_pair(views.read(ledger, "current_gaps"), flow.source, flow.target),
        failed=_failed(ledger, flow),
        looked_at=datetime.now(UTC).replace(tzinfo=None),
    )


@dataclass(frozen=True)
class _Logs:
    """The logs of a living source; the attributes are those of `Situation`."""

    first: Mapping[PartitionKey, int] = field(default_factory=dict)
    ends: Mapping[PartitionKey, int] = field(default_factory=dict)
    hidden: Mapping[PartitionKey, HiddenEnd] = field(default_factory=dict)
    unread: Mapping[PartitionKey, str] = field(default_factory=dict)
    lags: Mapping[PartitionKey, Unmirrored] = field(default_factory=dict)


def _logs(
    flow: Flow, source: Cluster | None, positions: Mapping[PartitionKey, Position], brought: Iterable[PartitionKey]
) -> _Logs:
    if source is None:
        return _Logs()
    timeout_ms, others = flow.connect_timeout_ms, {topic for topic, _ in brought}
    topics = {
        name: topic
        for name, topic in source.refresh(None, timeout_ms).items()
        if flow.mirrors_topic(name) or name in others
    }
    every = [(name, partition) for name, topic in topics.items() for partition in range(topic.partitions)]
    _, unread = source.log_bounds(every)
    keys = [key for key in every if key not in unread]
    hidden = hidden_ends(source, [key for key in keys if flow.mirrors_topic(key[0])], timeout_ms)  # before the ends
    first, ends = (
        source.offsets(keys, at, timeout_ms) if keys else {} for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    )
    mine = {key: end for key, end in ends.items() if flow.mirrors_topic(key[0])}
    starts = {key: max(first[key], positions[key].upstream_next) if key in positions else first[key] for key in mine}
    return _Logs(first, ends, hidden, unread, unmirrored(source, flow, starts, mine))


def _of_former_logs(
    target: Cluster, source: Cluster | None, back_positions: Mapping[PartitionKey, Position], timeout_ms: int
) -> set[PartitionKey]:
    """Returns the partitions of the flow back whose topic, on either cluster, is not the one of its map any more.

    A flow back that is closed does not notice it, and records no reset.
    """
    if source is None or not back_positions:
        return set()
    here = target.refresh({topic for topic, _ in back_positions}, timeout_ms, operations=True)
    there = source.refresh({one.target_topic for one in back_positions.values()}, timeout_ms, operations=True)

    def is_other(known: str, topic: Topic | None) -> bool:
        return bool(known) and (topic is None or topic.topic_id not in ("", known))

    return {
        key
        for key, one in back_positions.items()
        if is_other(one.topic_id, here.get(key[0])) or is_other(one.target_topic_id, there.get(one.target_topic))
    }


def _pieces(flow: Flow, ledger: Ledger, former: Set[PartitionKey]) -> DataFrame:
    """Returns the maps of both directions, without those of the flow back that are of former logs."""
    rows = [
        frame
        for aliases in ((flow.source, flow.target), (flow.target, flow.source))
        for frame in (views.runs_of_pair(ledger, *aliases), ledger.of_pair("gaps", *aliases))
    ]
    pieces = two_way.pieces(*rows)
    if former:
        void = ledger.spark.createDataFrame(
            [(*key, True) for key in former], "to_topic STRING, to_partition INT, is_back BOOLEAN"
        )
        pieces = pieces.join(void, ["to_topic", "to_partition", "is_back"], "left_anti")
    return pieces.localCheckpoint()  # it is joined several times


def _carried(
    flow: Flow, target: Cluster, positions: Mapping[PartitionKey, Position], ends: Iterable[PartitionKey]
) -> set[PartitionKey]:
    """Returns the partitions that the flow mirrors, without those that have no remote partition."""
    remotes = {
        key: (flow.policy.remote_topic(key[0]), key[1])
        for key in {*positions, *ends}
        if flow.mirrors_topic(key[0]) and not flow.scatters(key[0])
    }
    there = {*target.existing(remotes.values(), flow.connect_timeout_ms, operations=True)}
    return {key for key, remote in remotes.items() if remote in there}


def _awaited(
    source: Cluster | None, positions: Mapping[PartitionKey, Position], ends: Mapping[PartitionKey, int]
) -> dict[PartitionKey, str]:
    """Returns the partitions whose log on the source is not the one that was mirrored, with the reason.

    The ends of the source's logs must have been read after the positions.
    """
    if source is None:
        return {}
    found = {}
    for key in positions.keys() & ends.keys():
        position = positions[key]
        if reason := why_awaited(position, source.topics[key[0]].topic_id, ends[key], position.upstream_next):
            found[key] = reason
    return found


def _replaced_there(flow: Flow, target: Cluster, positions: Mapping[PartitionKey, Position]) -> dict[PartitionKey, str]:
    """Returns the partitions whose remote topic is not the one that was written. Reads the metadata of `_carried`."""
    found = {}
    for key, position in positions.items():
        there = target.topics.get(flow.policy.remote_topic(key[0])) if flow.mirrors_topic(key[0]) else None
        if there is not None and is_replaced_there(position, there.topic_id):
            found[key] = str(PositionReason.REMOTE_REPLACED)
    return found


def _occupied(
    flow: Flow, target: Cluster, carried: Set[PartitionKey], positions: Mapping[PartitionKey, Position]
) -> dict[PartitionKey, str]:
    """Returns the partitions of which nothing was mirrored, and whose remote partition is not empty.

    Whether a group has read the records there, nobody knows.
    """
    remotes = {
        key: (flow.policy.remote_topic(key[0]), key[1])
        for key in carried
        if not flow.topics_shared and (key not in positions or positions[key].downstream_next == 0)
    }
    bounds, _ = target.log_bounds(remotes.values())
    return {
        key: str(PositionReason.NOT_BEGUN) for key, remote in remotes.items() if remote in bounds and bounds[remote][1]
    }


def _known(
    flow: Flow,
    back: Flow | None,
    carried: Set[PartitionKey],
    positions: Mapping[PartitionKey, Position],
    first: Mapping[PartitionKey, int],
    ends: Mapping[PartitionKey, int],
    brought: Mapping[PartitionKey, int],
    pieces: DataFrame,
    resumed: Mapping[PartitionKey, int],
    back_resumed: Mapping[PartitionKey, int],
) -> list[tuple[Any, ...]]:
    """Returns rows of `two_way.KNOWN`: partitions that the flow carries, and those that the flow back has written.

    Of a topic whose partitions the flow back decides about, no offset has a single counterpart.
    """
    rows: list[tuple[Any, ...]] = []
    for key in sorted(carried):
        position = positions.get(key)
        upstream_next, downstream_next = (
            (first.get(key, 0), 0) if position is None else (position.upstream_next, position.downstream_next)
        )
        rows.append(
            (
                *key,
                first.get(key),
                ends.get(key),
                upstream_next,
                downstream_next,
                brought.get(key, 0),
                resumed.get(key),
                back_resumed.get(key),
                flow.policy.remote_topic(key[0]),
                key[1],
            )
        )
    written = {
        (row["topic"], row["partition"])
        for row in pieces.filter("is_back").select("topic", "partition", "to_topic").distinct().collect()
        if back is None or not back.scatters(row["to_topic"])
    }
    for key in sorted(written - carried):
        end = ends.get(key)
        rows.append(
            (
                *key,
                first.get(key),
                end,
                brought.get(key, 0) if end is None else end,
                0,
                brought.get(key, 0),
                None,
                back_resumed.get(key),
                None,
                None,
            )
        )
    return rows


def _carried_to(
    flow: Flow,
    back: Flow | None,
    states: Mapping[int, SlotState],
    known: Iterable[tuple[Any, ...]],
    former: Set[PartitionKey],
) -> dict[PartitionKey, int]:
    """Returns the positions of the flow back in the partitions that both flows write.

    A flow back that has never run has position 0, but only if the topics are shared; so has one whose position is of a
    former log. One that was failed over has left
    behind what is after its positions. MirrorMaker 2 carries one that was handed back, so that it has no positions.
    """
    is_handed_back = closed_for(states.values()) is ClosedFor.HANDBACK
    if back is None or not (states or flow.topics_shared) or is_handed_back:
        return {}
    positions = merge_positions(states.values())
    there = {row[-2:] for row in known if row[-2] is not None and back.mirrors_topic(row[-2])}
    return {key: positions[key].upstream_next if key in positions and key not in former else 0 for key in there}


def _resets(ledger: Ledger, flow: Flow) -> dict[PartitionKey, LogReset]:
    from pyspark.sql import functions as F

    rows = ledger.of_flow("gaps", flow).filter(F.col("kind").isin(GapKind.RECREATED, GapKind.TRUNCATED))
    last = F.max_by(F.struct("committed_at", "from_offset"), F.struct("incarnation", "committed_at")).alias("last")
    found = rows.groupBy("topic", "partition").agg(last).select("topic", "partition", "last.*").collect()
    return {(row["topic"], row["partition"]): LogReset(row["committed_at"], row["from_offset"]) for row in found}


def _committed_ms(states: Iterable[SlotState]) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for state in states:
        for key in state.owned():
            found[key] = max(found.get(key, 0), state.created_ms)
    return found


def _failed(ledger: Ledger, flow: Flow) -> frozenset[PartitionKey]:
    """Returns the partitions in which a verification has found differences that stand."""
    if not ledger.spark.catalog.tableExists(ledger.table("verifications")):
        return frozenset()
    found = standing_differences(ledger.of_flow("verifications", flow)).select("topic", "partition").distinct()
    return frozenset((row["topic"], row["partition"]) for row in found.collect())
