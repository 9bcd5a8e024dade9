"""The lost ends: records of a failed-over source that were mirrored, and that the source no longer has when it returns.

A source that comes back from lost disks, an unclean election or a restored backup may lack the end of its logs. What it
lacks exists on the target only, and no flow brings it home: the flow back leaves out all that the flow itself has
brought. Its offsets may be given out again, to other records. So the logs are compared with the flow's states before
anything else: the topics' ids, the ends of the logs, and the leader epochs (KIP-595).

The operator chooses one of two. In both cases the flow records a reset: its map is void from there on.

- **refill**: the flow back copies the records home, in their order on the target, exactly once, and in front of the
  records that were written there since. Not possible where both sides were written at once, or where the source has
  lost records that the flow back had brought.
- **accept**: they stay on the target for good.

The source may also have lost what the flow back had brought. That exists on the target, too, and the flow back mirrors
it again with **accept**: it is set back to the first of these records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, SourceError
from mirrorlake.ledger import views
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.log import event
from mirrorlake.model.gap import RESETS, Gap, GapKind
from mirrorlake.model.slot import NO_SLOT, Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import check
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.refill import Refill
from mirrorlake.translation.sql_join import current_runs

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

ACCEPT, REFILL, REFILLED = "accept", "refill", "refilled"
KEY = ["topic", "partition"]
PROBE_BYTES = 1  # a broker compares the leader epochs before it reads


@dataclass(frozen=True, slots=True)
class LostEnd:
    """The end of a source partition that was mirrored and that the source has lost: `[from_offset, to_offset)`.

    Attributes:
        topic: source topic.
        partition: source partition.
        from_offset: the offset from which on the logs differ; of a topic that was created anew, 0.
        to_offset: source offset up to which the partition was mirrored.
        kind: TRUNCATED, or RECREATED for a topic that was created anew.
        records: the mirrored records in between, which exist on the target only.
        downstream_from: target offset of the first of them; None if there are none.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    kind: GapKind
    records: int = 0
    downstream_from: int | None = None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


def table(lost: Iterable[LostEnd]) -> pd.DataFrame:
    """Returns one row for each lost end, for display."""
    import pandas as pd

    return pd.DataFrame([asdict(one) for one in lost], columns=list(LostEnd.__dataclass_fields__))


def lost_ends(
    flow: Flow, ledger: Ledger, source: Cluster, positions: Mapping[PartitionKey, Position]
) -> tuple[LostEnd, ...]:
    """Compares the logs of a source with what was mirrored of them.

    A topic that does not exist there has been deleted, which is no loss: a cluster that was built anew has another id.

    Args:
        flow: the flow that was failed over.
        ledger: tables with the map, to count records.
        source: its source, which has returned.
        positions: the flow's positions, from its states.

    Raises:
        SourceError: the source can't be read.
    """
    timeout_ms = flow.connect_timeout_ms
    known = {
        key: position
        for key, position in positions.items()
        if position.upstream_next and flow.mirrors_topic(key[0]) and not flow.policy.is_heartbeats_topic(key[0])
    }
    there = source.refresh({topic for topic, _ in known}, timeout_ms) if known else {}
    for topic in sorted({topic for topic, _ in known} - there.keys()):
        log.warning(event("topic_missing", flow=flow.name, cluster=flow.source, topic=topic))
    keys = [key for key in known if key[0] in there and key[1] in there[key[0]].leaders]
    ends = source.offsets(keys, LATEST_TIMESTAMP, timeout_ms) if keys else {}
    ends |= {key: 0 for key in known if key[0] in there and key[1] not in there[key[0]].leaders}
    new = {
        key
        for key in ends
        if key not in keys or (known[key].topic_id and known[key].topic_id != there[key[0]].topic_id)
    }
    starts = {key: 0 if key in new else min(end, known[key].upstream_next) for key, end in ends.items()}
    for key, at in _diverging(flow, source, {key: known[key] for key in ends.keys() - new}).items():
        starts[key] = min(starts[key], at)
    kinds = {key: GapKind.RECREATED if key in new else GapKind.TRUNCATED for key in starts}
    found = [
        LostEnd(*key, start, known[key].upstream_next, kinds[key])
        for key, start in sorted(starts.items())
        if start < known[key].upstream_next
    ]
    return _counted(flow, ledger, found) if found else ()


def _diverging(flow: Flow, source: Cluster, positions: Mapping[PartitionKey, Position]) -> dict[PartitionKey, int]:
    """Returns the offsets at which logs differ from those that were mirrored, by the leader epoch of the last batch."""
    asked = {key: position for key, position in positions.items() if position.leader_epoch >= 0}
    first = source.offsets(asked, EARLIEST_TIMESTAMP, flow.connect_timeout_ms) if asked else {}
    what = f"flow {flow.name}: comparing leader epochs (needs READ)"
    found: dict[PartitionKey, int] = {}
    for node, keys in by(lambda key: source.leader(*key), first).items():
        of_node = {key: asked[key] for key in keys}
        found |= source.call(what, partial(_probe, source, node, of_node, first), flow.connect_timeout_ms)
    return found


async def _probe(
    source: Cluster, node: int, positions: Mapping[PartitionKey, Position], first: Mapping[PartitionKey, int]
) -> dict[PartitionKey, int]:
    response = await source.fetch(
        node,
        {key: position.upstream_next for key, position in positions.items()},
        max_bytes=PROBE_BYTES,
        partition_max_bytes=PROBE_BYTES,
        max_wait_ms=0,
        epochs={key: position.leader_epoch for key, position in positions.items()},
    )
    found = {}
    for fetched in source.fetched(response):
        key, position = (fetched.topic, fetched.partition), positions[fetched.topic, fetched.partition]
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # the log does not know so new an epoch
            if position.upstream_next >= first[key]:  # else retention has deleted all that was mirrored
                found[key] = max(position.epoch_from, first[key])
            continue
        check(fetched.error_code, f"{fetched.topic}-{fetched.partition}", key)
        if fetched.diverges_at is None:
            continue
        if fetched.diverges_at < position.upstream_next:
            found[key] = fetched.differs_from(position.leader_epoch, position.epoch_from) or 0
        # The log does not know the epoch. Where no compaction explains that, all that was read with it is in question.
        elif "compact" not in (await source.topic_config(fetched.topic, "cleanup.policy") or ""):
            found[key] = position.epoch_from if position.epoch_from >= 0 else position.upstream_next
    return found


def _counted(flow: Flow, ledger: Ledger, lost: Sequence[LostEnd]) -> tuple[LostEnd, ...]:
    """Adds to lost ends what the map says of them."""
    runs = rows_of_pair(views.read(ledger, "current_runs"), flow.source, flow.target)
    found = _mapped(runs, [(*one.key, one.from_offset, one.to_offset) for one in lost])
    return tuple(
        replace(one, records=found[one.key][0], downstream_from=found[one.key][1]) if one.key in found else one
        for one in lost
    )


def _mapped(runs: DataFrame, spans: list[tuple[str, int, int, int]]) -> dict[PartitionKey, tuple[int, int]]:
    """Returns the number of records of the runs in each span of source offsets, and the first target offset."""
    from pyspark.sql import functions as F

    schema = "topic STRING, partition INT, from_offset BIGINT, to_offset BIGINT"
    inside = F.least("upstream_end", "to_offset") - F.greatest("upstream_start", "from_offset")
    rows = (
        runs.join(runs.sparkSession.createDataFrame(spans, schema), ["topic", "partition"])
        .filter("upstream_end > from_offset AND upstream_start < to_offset")
        .groupBy("topic", "partition")
        .agg(
            F.sum(inside).alias("records"),
            F.min(F.expr("downstream_start + greatest(0, from_offset - upstream_start)")).alias("downstream_from"),
        )
    )
    return {(row["topic"], row["partition"]): (row["records"], row["downstream_from"]) for row in rows.collect()}


def resets(
    flow: Flow, source: Cluster, positions: Mapping[PartitionKey, Position], lost: Iterable[LostEnd]
) -> tuple[tuple[Position, ...], tuple[Gap, ...]]:
    """Returns the positions at which the flow continues in the logs that the source has now, and the resets.

    Raises:
        SourceError: the source can't be read.
    """
    ends = list(lost)
    keys = source.existing([one.key for one in ends], flow.connect_timeout_ms)
    first = source.offsets(keys, EARLIEST_TIMESTAMP, flow.connect_timeout_ms) if keys else {}
    new, gaps = [], []
    for one in ends:
        position = positions[one.key]
        new.append(
            replace(
                position,
                topic_id=source.topics[one.topic].topic_id if one.key in first else "",
                upstream_next=max(one.from_offset, first.get(one.key, 0)),
                slot=NO_SLOT,
                incarnation=position.incarnation + 1,
                leader_epoch=-1,
                epoch_from=-1,
            )
        )
        gaps.append(
            Gap(
                *one.key,
                from_offset=one.from_offset,
                to_offset=one.to_offset,
                kind=one.kind,
                incarnation=position.incarnation,
                downstream_offset=position.downstream_next,
            )
        )
    return tuple(new), tuple(gaps)


def set_back(
    home: Flow,
    away: Flow,
    ledger: Ledger,
    lost: Iterable[LostEnd],
    carried: Mapping[PartitionKey, Position],
    here: Cluster,
    there: Cluster,
) -> tuple[tuple[Position, ...], tuple[Gap, ...]]:
    """Returns the positions from which the flow back has to mirror again what the source has lost, and the resets.

    Args:
        home: the flow back.
        away: the flow that was failed over.
        ledger: tables with the map of `home`.
        lost: the lost ends of the source of `away`.
        carried: the positions of `home`, by topic and partition of the target of `away`.
        here: the target of `away`, which has the records.
        there: the source of `away`.

    Raises:
        SourceError, TargetError: a cluster can't be read.
    """
    ends = {(away.policy.remote_topic(one.topic), one.partition): one for one in lost}
    reached = {
        key: (position, ends[key])
        for key, position in carried.items()
        if key in ends
        and home.policy.remote_topic(key[0]) == ends[key].topic
        and (ends[key].kind is GapKind.RECREATED or position.downstream_next > ends[key].from_offset)
    }
    if not reached:
        return (), ()
    truncated = [(*key, one.from_offset) for key, (_, one) in reached.items() if one.kind is GapKind.TRUNCATED]
    begins = _begins(rows_of_pair(views.read(ledger, "current_runs"), home.source, home.target), truncated)
    keys, timeout_ms = here.existing([*reached], away.connect_timeout_ms), away.connect_timeout_ms
    first = here.offsets(keys, EARLIEST_TIMESTAMP, timeout_ms) if keys else {}
    new, gaps = [], []
    for key, (position, one) in reached.items():
        start = begins.get(key, position.upstream_next) if one.kind is GapKind.TRUNCATED else 0
        topic = there.topics.get(one.topic)
        new.append(
            replace(
                position,
                upstream_next=max(start, first.get(key, 0)),
                downstream_next=0,
                slot=NO_SLOT,
                incarnation=position.incarnation + 1,
                target_topic_id=topic.topic_id if topic else "",
                leader_epoch=-1,
                epoch_from=-1,
            )
        )
        gaps.append(
            Gap(
                *key,
                from_offset=start,
                to_offset=max(start, position.upstream_next),
                kind=GapKind.TARGET_RECREATED,
                incarnation=position.incarnation,
                downstream_offset=position.downstream_next,
            )
        )
    return tuple(new), tuple(gaps)


def _begins(runs: DataFrame, ends: list[tuple[str, int, int]]) -> dict[PartitionKey, int]:
    """Returns the first upstream offset of each partition whose record is at or behind an offset on the target."""
    from pyspark.sql import functions as F

    rows = (
        runs.join(runs.sparkSession.createDataFrame(ends, "topic STRING, partition INT, end BIGINT"), KEY)
        .filter("downstream_end > end")
        .groupBy(*KEY)
        .agg(F.min(F.expr("upstream_start + greatest(0, end - downstream_start)")).alias("start"))
    )
    return {(row["topic"], row["partition"]): row["start"] for row in rows.collect()}


def require_refillable(
    home: Flow,
    away: Flow,
    lost: Iterable[LostEnd],
    carried: Mapping[PartitionKey, Position],
    target: Cluster,
) -> None:
    """Requires that the flow back can copy home what the source has lost.

    Args:
        home: the flow back.
        away: the flow that was failed over.
        lost: the lost ends of the source of `away`.
        carried: the positions of `home`, by topic and partition of the target of `away`.
        target: the target of `away`, which has the records.

    Raises:
        ConfigurationError: it can't; says why. Nothing was changed.
        TargetError: the target can't be read.
    """
    for one in lost:
        if why := _why_not_refillable(home, away, one, carried, target):
            raise ConfigurationError(
                f"flow {home.name}: topic {one.topic}, partition {one.partition}, offsets {one.from_offset} to "
                f"{one.to_offset} can't be copied home: {why}. Set parameter lost = {ACCEPT}, or restore the log. "
                "Nothing was changed"
            )


def _why_not_refillable(
    home: Flow, away: Flow, one: LostEnd, carried: Mapping[PartitionKey, Position], target: Cluster
) -> str:
    """Returns the reason why a lost end can't be copied home; empty if it can."""
    key = away.policy.remote_topic(one.topic), one.partition
    position, begins = carried.get(key), one.downstream_from
    if position is not None and (position.downstream_next > one.from_offset or one.kind is GapKind.RECREATED):
        return f"the flow back has brought records up to offset {position.downstream_next}, and they are lost as well"
    if begins is None:
        return ""
    if home.transforms or away.transform_of(one.topic) is not None:
        return "a transform changes the records"
    if home.policy.remote_topic(key[0]) != one.topic or not home.mirrors_topic(key[0]):
        return f"the flow back does not write topic {key[0]} to topic {one.topic}"
    if position is None and not home.start.is_earliest_always:
        return "the flow back does not begin at the first record (mirrorlake.start)"
    if position is not None and position.upstream_next > begins:
        return f"both clusters were written at the same time: the flow back has passed offset {begins}"
    there = target.existing([key], away.connect_timeout_ms)
    first = target.offsets(there, EARLIEST_TIMESTAMP, away.connect_timeout_ms).get(key) if there else None
    if first is None or first > begins:
        return f"retention has deleted records from offset {begins} on from topic {key[0]} of {away.target}, too"
    return ""


def pending_refills(
    away: Flow, ledger: Ledger, carried: Mapping[PartitionKey, Position]
) -> tuple[tuple[LostEnd, Refill], ...]:
    """Returns what the operator has decided to copy home, and what the flow back has not copied yet.

    The decisions are rows of anomalies, of which the newest counts, and belong to resets of `away`. The map is that
    from before the reset.
    """
    from pyspark.sql import functions as F

    span = ["topic", "partition", "from_offset", "to_offset"]
    words = "|".join((ACCEPT, REFILL, REFILLED))
    decisions = ledger.of_flow("anomalies", away).filter(F.col("action").rlike(f"^({words}),")).groupBy(*span)
    decided = decisions.agg(F.max_by("action", "detected_at").alias("action"))
    gaps, runs = ledger.of_flow("gaps", away), views.runs_of_pair(ledger, away.source, away.target)
    resets = gaps.filter(F.col("kind").isin(*RESETS)).groupBy(*span)
    newest = resets.agg(
        F.max("incarnation").alias("incarnation"),
        F.max_by("kind", "incarnation").alias("kind"),
        F.max_by("downstream_offset", "incarnation").alias("downstream_offset"),
    )
    found = []
    for reset in decided.filter(F.col("action").startswith(f"{REFILL},")).join(newest, span).collect():
        of_partition = (F.col("topic") == reset["topic"]) & (F.col("partition") == reset["partition"])
        earlier = gaps.filter(of_partition & (F.col("incarnation") < reset["incarnation"]))
        until = runs.filter(of_partition & (F.coalesce("incarnation", F.lit(0)) <= reset["incarnation"]))
        mapped = _mapped(current_runs(until, earlier), [tuple(reset[name] for name in span)])
        key = away.policy.remote_topic(reset["topic"]), reset["partition"]
        done_to = carried[key].upstream_next if key in carried else 0
        for records, begins in mapped.values():
            if done_to < reset["downstream_offset"]:
                lost = LostEnd(
                    topic=reset["topic"],
                    partition=reset["partition"],
                    from_offset=reset["from_offset"],
                    to_offset=reset["to_offset"],
                    kind=GapKind(reset["kind"]),
                    records=records,
                    downstream_from=begins,
                )
                found.append((lost, Refill(*key, begins, reset["downstream_offset"])))
    return tuple(found)


def decisions(away: Flow, lost: Iterable[LostEnd], action: str, detail: str) -> list[Anomaly]:
    """Returns the rows of anomalies that record a decision about lost ends, or that it was carried out."""
    return [
        Anomaly.of_flow(
            away,
            one.kind,
            action,
            detail,
            topic=one.topic,
            partition=one.partition,
            from_offset=one.from_offset,
            to_offset=one.to_offset,
            records=one.records,
        )
        for one in lost
    ]


def require_same_cluster(flow: Flow, source: Cluster, source_cluster_id: str) -> None:
    """Requires that a cluster is the one from which the flow has mirrored.

    Raises:
        SourceError: it has another id.
    """
    if source_cluster_id and source.cluster_id and source.cluster_id != source_cluster_id:
        raise SourceError(
            f"flow {flow.name}: cluster {flow.source} has id {source.cluster_id}, but the records mirrored so far came "
            f"from cluster {source_cluster_id}. Nothing can return to a cluster that was built anew: give it another "
            f"alias, and mirror {flow.target} to it"
        )
