"""The diverged tail: records of a failed-over source that were not mirrored before it failed.

In each partition, it is the range at or after the flow's position, without the records that a flow has brought there
since. Heartbeats never count. The driver computes it, shows it, and exports it on request. The operator then chooses
one of two:

- **re-apply**: one run of the flow itself mirrors the tail, behind the records that were written on the target
  meanwhile. The flow stays closed for any other job. Each record is mirrored once, with its map. The flow back knows
  these records by their producer, and leaves them out like all that the flow has brought.
- **drop**: the tail stays on the source. The flow's positions advance past it, with gaps of kind `dropped`, so that no
  later job mirrors it.

What the retention of the source has deleted of the tail meanwhile leaves no choice: the flow's positions advance past
it, with gaps of kind `retention`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError, without_contents
from mirrorlake.ledger import views
from mirrorlake.ledger.offset_sync_rows import YEAR_1_MS, YEAR_9999_MS
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.slot import NO_SLOT, Position, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.open_transactions import HiddenEnd, hidden_ends
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.state import offset_syncs
from mirrorlake.translation.awaited import former_remotes

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

FORMATS = ("delta", "parquet", "json")
SAMPLE = 20
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # for example s3://bucket/tail or dbfs:/tail

# Python knows the years 1 to 9999 only; a producer may have sent microseconds. A day less, for any time zone.
DAY_MS = 86_400_000
SHOWN = f"timestamp_millis(greatest({YEAR_1_MS + DAY_MS}, least({YEAR_9999_MS - DAY_MS}, unix_millis(timestamp))))"
BUCKET = 4_096  # offsets; a record is compared with the ranges of its bucket only
BROUGHT = """
WITH buckets AS (
  SELECT *, explode(sequence(from_offset div {bucket}, (to_offset - 1) div {bucket})) AS bucket FROM {brought}
)
SELECT r.* FROM {records} r LEFT ANTI JOIN buckets b
  ON b.topic = r.topic AND b.partition = r.partition AND b.bucket = r.offset div {bucket}
  AND r.offset >= b.from_offset AND r.offset < b.to_offset
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """The diverged tail of one source partition: `records` records in the offsets `[from_offset, to_offset)`.

    The timestamps are the smallest and the largest of the records, within the years 1 to 9999. Retention has deleted
    what was in `[deleted_from, from_offset)`. No flow had brought `deleted` of these offsets: about as many records.
    """

    topic: str
    partition: int
    target_topic: str
    from_offset: int
    to_offset: int
    records: int
    first_timestamp: datetime | None
    last_timestamp: datetime | None
    deleted_from: int
    deleted: int

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(frozen=True)
class Divergence:
    """The diverged tails of a flow's partitions.

    `frame` has their records, with the columns of Spark's Kafka source. `ends` are the last stable offsets up to which
    the logs were read, and `hidden` what an open transaction hides behind them.
    """

    flow: Flow
    tails: tuple[Tail, ...]
    frame: DataFrame | None
    topic_ids: Mapping[str, str]
    positions: Mapping[PartitionKey, Position]
    brought: Mapping[PartitionKey, tuple[tuple[int, int], ...]]
    ends: Mapping[PartitionKey, int]
    hidden: Mapping[PartitionKey, HiddenEnd]

    @property
    def records(self) -> int:
        return sum(tail.records for tail in self.tails)

    @property
    def deleted(self) -> int:
        return sum(tail.deleted for tail in self.tails)

    def table(self) -> pd.DataFrame:
        """Returns one row for each partition that has diverged, for display."""
        import pandas as pd

        return pd.DataFrame(
            [asdict(tail) for tail in self.tails if tail.records or tail.deleted],
            columns=list(Tail.__dataclass_fields__),
        )

    def sample(self, records: int = SAMPLE) -> pd.DataFrame:
        """Returns the first diverged records: offsets, timestamps and sizes, without contents."""
        import pandas as pd

        columns = ["topic", "partition", "offset", "timestamp", "key_bytes", "value_bytes"]
        if self.frame is None:
            return pd.DataFrame(columns=columns)
        sized = self.frame.selectExpr(
            "topic",
            "partition",
            "offset",
            f"{SHOWN} AS timestamp",
            "octet_length(key) AS key_bytes",
            "octet_length(value) AS value_bytes",
        )
        return pd.DataFrame(
            [row.asDict() for row in sized.orderBy("topic", "partition", "offset").limit(records).collect()],
            columns=columns,
        )

    def export(self, where: str) -> None:
        """Writes the diverged records with their contents.

        Args:
            where: `delta:<catalog.schema.table>` or `delta:<directory>`, `parquet:<directory>` or `json:<directory>`
                (keys, values and headers in Base64). It must not exist, or hold all of these records already. A command
                that failed after its export can therefore be repeated with the same place.

        Raises:
            ConfigurationError: the place has another form, holds other data, or can't be written.
        """
        kind, _, place = where.partition(":")
        if kind not in FORMATS or not place:
            raise ConfigurationError(
                f"parameter export is '{where}'; allowed is delta:, parquet: or json: and a directory (or, for delta, "
                "a table), or empty"
            )
        if self.frame is None:
            return
        is_table = kind == "delta" and "/" not in place
        path = place if URI.match(place) else str(Path(place).absolute())
        writer = (
            self.frame.select("topic", "partition", "offset", "timestamp", "key", "value", "headers")
            .write.format(kind)
            .mode("ignore")
        )
        try:
            writer.saveAsTable(place) if is_table else writer.save(path)
            spark = self.frame.sparkSession
            reader = (
                spark.read.format(kind)
                if kind == "delta"
                else spark.read.format(kind).schema("topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP")
            )
            missing = self._missing(spark.table(place) if is_table else reader.load(path))
        except Exception as error:
            raise ConfigurationError(
                f"flow {self.flow.name}: the diverged records can't be written to {where}: {without_contents(error)}. "
                "No decision about these records was recorded"
            ) from None
        if missing:
            raise ConfigurationError(
                f"flow {self.flow.name}: {where} exists, but lacks the diverged records of {len(missing)} "
                f"partitions, such as {missing[0].topic}-{missing[0].partition}. Name another place. No decision "
                "about these records was recorded"
            )

    def _missing(self, stored: DataFrame) -> list[Tail]:
        """Returns the tails that a frame does not hold completely, by their offsets and timestamps."""
        tails = [tail for tail in self.tails if tail.records]
        spans = stored.sparkSession.createDataFrame(
            [(*tail.key, tail.from_offset, tail.to_offset) for tail in tails],
            "topic STRING, partition INT, from_offset BIGINT, to_offset BIGINT",
        )
        kept = (
            stored.select("topic", "partition", "offset", "timestamp")
            .join(spans, ["topic", "partition"])
            .filter("offset >= from_offset AND offset < to_offset")
        )
        found = _summed(self.flow, kept.dropDuplicates(["topic", "partition", "offset"]))
        return [
            tail
            for tail in tails
            if found.get(tail.key) != (tail.records, tail.to_offset - 1, tail.first_timestamp, tail.last_timestamp)
        ]

    def passed_over(self, *, drops: bool) -> tuple[tuple[Position, ...], tuple[Gap, ...]]:
        """Returns the positions behind what was deleted, and the gaps between the old positions and those.

        Args:
            drops: whether the tails are passed over, too.
        """
        positions, gaps = [], []
        ends = {tail.key: tail.to_offset if drops else tail.from_offset for tail in self.tails}
        for tail in (tail for tail in self.tails if tail.deleted_from < ends[tail.key]):
            brought = self.brought.get(tail.key, ())
            known = self.positions.get(tail.key)
            incarnation, downstream_next = (known.incarnation, known.downstream_next) if known else (0, 0)
            positions.append(
                Position(
                    *tail.key,
                    topic_id=known.topic_id if known else self.topic_ids[tail.topic],
                    target_topic=tail.target_topic,
                    target_partition=tail.partition,
                    upstream_next=ends[tail.key],
                    downstream_next=downstream_next,
                    slot=NO_SLOT,
                    incarnation=incarnation,
                    leader_epoch=-1,
                    target_topic_id=known.target_topic_id if known else "",
                )
            )
            gaps += [
                Gap(
                    *tail.key,
                    from_offset=start,
                    to_offset=end,
                    kind=kind,
                    incarnation=incarnation,
                    downstream_offset=downstream_next,
                )
                for start, end, kind in (
                    *deleted_stretches(tail.deleted_from, tail.from_offset, brought),
                    *stretches(tail.from_offset, ends[tail.key], brought),
                )
            ]
        return tuple(positions), tuple(gaps)


def stretches(
    start: int, end: int, brought: Iterable[tuple[int, int]], left: GapKind = GapKind.DROPPED
) -> list[tuple[int, int, GapKind]]:
    """Cuts `[start, end)` into ranges that are left behind (`left`) and ranges that a flow has brought (`mirrored`), in
    order."""
    found: list[tuple[int, int, GapKind]] = []
    for first, last in sorted(brought):
        first, last = max(first, start), min(last, end)
        if first < last:
            found += [(start, first, left)] * (start < first) + [(first, last, GapKind.MIRRORED)]
            start = last
    return found + [(start, end, left)] * (start < end)


def deleted_stretches(start: int, end: int, brought: Iterable[tuple[int, int]]) -> list[tuple[int, int, GapKind]]:
    """Cuts `[start, end)`, which retention has deleted, into ranges of kind `retention` and ranges that a flow had
    brought, each with the marker of its transaction behind it. Else each micro-batch of that flow would be a loss."""
    with_markers = merged((first, last + 1) for first, last in brought)
    return stretches(start, end, with_markers, GapKind.RETENTION)


def diverged(
    flow: Flow,
    back: Flow,
    ledger: Ledger,
    *,
    source: Cluster,
    target: Cluster,
    differs_from: Mapping[PartitionKey, int],
) -> Divergence:
    """Computes the diverged tails of a flow; the ledger must have caught up with the flow and with the flow back.

    Args:
        flow: flow that was failed over.
        back: flow back.
        ledger: tables with the maps.
        source: its source cluster.
        target: its target cluster.
        differs_from: the offset from which on a log of the source is not the one that was mirrored (`lost_ends`), or
            from which on to look.

    Raises:
        MirrorlakeError: the source's log can't be read.
    """
    timeout_ms = flow.connect_timeout_ms
    positions = merge_positions(offset_syncs.read_all_states(target, flow.offset_syncs_topic, timeout_ms).values())
    topics = {
        name: topic
        for name, topic in source.refresh(None, timeout_ms).items()
        if flow.mirrors_topic(name) and not flow.policy.is_heartbeats_topic(name)
    }
    keys = [(name, partition) for name, topic in topics.items() for partition in range(topic.partitions)]
    hidden = hidden_ends(source, keys, timeout_ms)  # before the ends
    first, ends = (
        source.offsets(keys, at, timeout_ms) if keys else {} for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    )
    mirrored_to = {key: position.upstream_next for key, position in positions.items()} | dict(differs_from)
    mirrored_to = {key: mirrored_to.get(key, first[key]) for key in keys}  # what nobody has mirrored has no beginning
    starts = {key: max(first[key], mirrored_to[key]) for key in keys}
    open_ends = {key: end for key, end in ends.items() if starts[key] < end}
    written = merge_positions(offset_syncs.read_all_states(source, back.offset_syncs_topic, timeout_ms).values())
    former = former_remotes(written.values(), {name: topic.topic_id for name, topic in topics.items()})
    looked_at = {key for key in keys if mirrored_to[key] < starts[key] or key in open_ends} - former
    brought = _brought(flow, ledger, {key: mirrored_to[key] for key in looked_at})
    frame = None
    if open_ends:
        frame = _records(flow, ledger, starts={key: starts[key] for key in open_ends}, ends=open_ends, brought=brought)
    found = _summed(flow, frame)
    tails = []
    for key in sorted(keys):
        records, last, first_timestamp, last_timestamp = found.get(key, (0, starts[key] - 1, None, None))
        tails.append(
            Tail(
                *key,
                target_topic=flow.policy.remote_topic(key[0]),
                from_offset=starts[key],
                to_offset=last + 1,
                records=records,
                first_timestamp=first_timestamp,
                last_timestamp=last_timestamp,
                deleted_from=mirrored_to[key],
                deleted=sum(
                    end - start
                    for start, end, kind in deleted_stretches(mirrored_to[key], starts[key], brought.get(key, ()))
                    if kind is GapKind.RETENTION
                ),
            )
        )
    ids = {name: topic.topic_id for name, topic in topics.items()}
    return Divergence(
        flow=flow,
        tails=tuple(tails),
        frame=frame if found else None,
        topic_ids=ids,
        positions=positions,
        brought=brought,
        ends=ends,
        hidden=hidden,
    )


def _brought(
    flow: Flow, ledger: Ledger, starts: Mapping[PartitionKey, int]
) -> dict[PartitionKey, tuple[tuple[int, int], ...]]:
    """Returns the source offsets that the flow back has written behind the starts, by topic and partition.

    Those of former logs must not be among the starts: what the flow back wrote there is gone, and others have written
    at its offsets since.
    """
    if not starts:
        return {}
    bounds = ledger.spark.createDataFrame(
        [(*key, start) for key, start in starts.items()], "target_topic STRING, target_partition INT, start BIGINT"
    )
    runs = rows_of_pair(views.read(ledger, "current_runs"), flow.target, flow.source)
    ahead = runs.join(bounds, ["target_topic", "target_partition"]).filter("downstream_end > start")
    found: dict[PartitionKey, list[tuple[int, int]]] = {}
    for row in ahead.select("target_topic", "target_partition", "downstream_start", "downstream_end").collect():
        found.setdefault((row[0], row[1]), []).append((row[2], row[3]))
    return {key: merged(stretches) for key, stretches in found.items()}


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns ranges in order, with those that adjoin or overlap as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def _records(
    flow: Flow,
    ledger: Ledger,
    starts: Mapping[PartitionKey, int],
    ends: Mapping[PartitionKey, int],
    brought: Mapping[PartitionKey, Iterable[tuple[int, int]]],
) -> DataFrame:
    """Returns the records between two offsets of each partition, without those that a flow brought."""
    spark = ledger.spark
    records = log_records(spark, flow.source_connection, start=starts, end=ends, isolation="read_committed", names={})
    return without_brought(records, brought)


def without_brought(records: DataFrame, brought: Mapping[PartitionKey, Iterable[tuple[int, int]]]) -> DataFrame:
    """Returns the records of a frame that are in none of the ranges of offsets of their partitions."""
    rows = [(*key, start, end) for key, ranges in brought.items() for start, end in ranges]
    if not rows:
        return records
    spark = records.sparkSession
    return spark.sql(
        BROUGHT.replace("{bucket}", str(BUCKET)),
        records=records,
        brought=spark.createDataFrame(rows, "topic STRING, partition INT, from_offset BIGINT, to_offset BIGINT"),
    )


def _summed(flow: Flow, frame: DataFrame | None) -> dict[PartitionKey, tuple[int, int, datetime, datetime]]:
    """Returns the number of records, the last offset, and the first and last timestamp of each partition with any."""
    if frame is None:
        return {}
    from pyspark.sql import functions as F

    sums = frame.groupBy("topic", "partition").agg(
        F.count("*").alias("records"),
        F.max("offset").alias("last"),
        F.min(F.expr(SHOWN)).alias("first_timestamp"),
        F.max(F.expr(SHOWN)).alias("last_timestamp"),
    )
    try:
        return {
            (row["topic"], row["partition"]): (
                row["records"],
                row["last"],
                row["first_timestamp"],
                row["last_timestamp"],
            )
            for row in sums.collect()
        }
    except Exception as error:
        raise MirrorlakeError(
            f"flow {flow.name}: the log of cluster {flow.source} can't be read: {without_contents(error)}. Nothing was "
            "changed"
        ) from None
