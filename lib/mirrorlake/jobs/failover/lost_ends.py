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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, SourceError
from mirrorlake.ledger import views
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.model.gap import RESETS, Gap, GapKind
from mirrorlake.model.slot import NO_SLOT, Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster, by, check
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.refill import Refill
from mirrorlake.translation.sql_join import current_runs

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

ACCEPT, REFILL = "accept", "refill"
PROBE_BYTES = 1  # a broker compares the leader epochs before it reads


@dataclass(frozen=True, slots=True)
class LostEnd:
    """The end of a source partition that was mirrored and that the source has lost: `[from_offset, to_offset)`.

    Attributes:
        topic: source topic.
        partition: source partition.
        from_offset: the offset from which on the logs differ; of a topic that was deleted, or created anew, 0.
        to_offset: source offset up to which the partition was mirrored.
        kind: TRUNCATED, or RECREATED for a topic that was deleted, or created anew.
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

    Args:
        flow: the flow that was failed over.
        ledger: tables with the map, to count records.
        source: its source, which has returned.
        positions: the flow's positions, from its states.

    Raises:
        SourceError: the source can't be read.
    """
    timeout_ms = flow.connect_timeout_ms
    there = source.refresh(None, timeout_ms)
    known = {
        key: position
        for key, position in positions.items()
        if position.upstream_next and not flow.policy.is_heartbeats_topic(key[0])
    }
    is_same = {
        key: key[0] in there
        and key[1] in there[key[0]].leaders
        and (not position.topic_id or position.topic_id == there[key[0]].topic_id)
        for key, position in known.items()
    }
    same = [key for key in known if is_same[key]]
    ends = source.offsets(same, LATEST_TIMESTAMP, timeout_ms) if same else {}
    starts = {key: min(end, known[key].upstream_next) for key, end in ends.items()}
    for key, at in _diverging(flow, source, {key: known[key] for key in ends}).items():
        starts[key] = min(starts[key], at)
    found = [
        LostEnd(*key, starts.get(key, 0), position.upstream_next, _kind(is_same=is_same[key]))
        for key, position in sorted(known.items())
        if starts.get(key, 0) < position.upstream_next
    ]
    return _counted(flow, ledger, found) if found else ()


def _kind(*, is_same: bool) -> GapKind:
    return GapKind.TRUNCATED if is_same else GapKind.RECREATED


def _diverging(flow: Flow, source: Cluster, positions: Mapping[PartitionKey, Position]) -> dict[PartitionKey, int]:
    """Returns the offsets at which logs differ from those that were mirrored, by the leader epoch of the last batch."""
    asked = {key: position for key, position in positions.items() if position.leader_epoch >= 0}
    what = f"flow {flow.name}: comparing leader epochs (needs READ)"
    found: dict[PartitionKey, int] = {}
    for node, keys in by(lambda key: source.leader(*key), asked).items():
        of_node = {key: asked[key] for key in keys}
        found |= source.call(what, partial(_probe, source, node, of_node), flow.connect_timeout_ms)
    return found


async def _probe(source: Cluster, node: int, positions: Mapping[PartitionKey, Position]) -> dict[PartitionKey, int]:
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
        if fetched.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:  # then the end of the log says it
            check(fetched.error_code, f"{fetched.topic}-{fetched.partition}", key)
        if fetched.diverges_at is None:
            continue
        if fetched.diverges_at < position.upstream_next:
            found[key] = fetched.diverges_at
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


def require_refillable(
    home: Flow, away: Flow, lost: Iterable[LostEnd], carried: Mapping[PartitionKey, Position]
) -> None:
    """Requires that the flow back can copy home what the source has lost.

    Args:
        home: the flow back.
        away: the flow that was failed over.
        lost: the lost ends of the source of `away`.
        carried: the positions of `home`, by topic and partition of the target of `away`.

    Raises:
        ConfigurationError: it can't; says why. Nothing was changed.
    """
    for one in (one for one in lost if one.downstream_from is not None):
        remote = away.policy.remote_topic(one.topic)
        position = carried.get((remote, one.partition))
        if home.transforms:
            why = "the flow back transforms records"
        elif home.policy.remote_topic(remote) != one.topic or not home.mirrors_topic(remote):
            why = f"the flow back does not write topic {remote} to topic {one.topic}"
        elif position is None and not home.start.is_earliest_always:
            why = "the flow back does not begin at the first record (mirrorlake.start)"
        elif position is not None and position.downstream_next > one.from_offset:
            why = f"records that the flow back had brought, up to offset {position.downstream_next}, are lost as well"
        elif position is not None and position.upstream_next > (one.downstream_from or 0):
            why = f"both clusters were written at the same time: the flow back has passed offset {one.downstream_from}"
        else:
            continue
        raise ConfigurationError(
            f"flow {home.name}: topic {one.topic}, partition {one.partition}, offsets {one.from_offset} to "
            f"{one.to_offset} can't be copied home: {why}. Set parameter "
            "lost = accept, or restore the log. Nothing was changed"
        )


def pending_refills(away: Flow, ledger: Ledger, carried: Mapping[PartitionKey, Position]) -> tuple[Refill, ...]:
    """Returns what the operator has decided to copy home, and what the flow back has not copied yet.

    The decisions are rows of anomalies, and belong to resets of `away`. The map is that from before the reset.
    """
    from pyspark.sql import functions as F

    span = ["topic", "partition", "from_offset", "to_offset"]
    anomalies = ledger.of_flow("anomalies", away)
    decided = anomalies.filter(anomalies.action.startswith(f"{REFILL},")).select(*span).distinct()
    gaps, runs = (ledger.of_flow(name, away) for name in ("gaps", "offset_syncs"))
    resets = decided.join(gaps.filter(F.col("kind").isin(*RESETS)), span)
    found = []
    for reset in resets.select(*span, "incarnation", "downstream_offset").collect():
        of_partition = (F.col("topic") == reset["topic"]) & (F.col("partition") == reset["partition"])
        earlier = gaps.filter(of_partition & (F.col("incarnation") < reset["incarnation"]))
        until = runs.filter(of_partition & (F.coalesce("incarnation", F.lit(0)) <= reset["incarnation"]))
        mapped = _mapped(current_runs(until, earlier), [tuple(reset[name] for name in span)])
        key = away.policy.remote_topic(reset["topic"]), reset["partition"]
        done_to = carried[key].upstream_next if key in carried else 0
        for _, downstream_from in mapped.values():
            if done_to < reset["downstream_offset"]:
                found.append(Refill(*key, downstream_from, reset["downstream_offset"]))
    return tuple(found)


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
