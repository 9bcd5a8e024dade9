"""The input of copying tasks for topics with a transform: ranges, followed by the transformed records in order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.transform import Transform
from mirrorlake.model.copy_plan import Range
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.transforms.evaluate import apply
from mirrorlake.transforms.record import TransformedRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RANGE, RECORD = "range", "record"  # ranges sort before records
PATIENCE_MS = 30_000
RANGE_SCHEMA = """
  kind STRING, topic STRING, partition INT, topic_id STRING, partitions INT, slot INT, start BIGINT, end BIGINT,
    is_set_back BOOLEAN, incarnation INT, leader_epoch INT, is_new BOOLEAN, turn INT
"""
RANGE_COLUMNS = tuple(field.name for field in fields(Range))
RECORD_COLUMNS = tuple(field.name for field in fields(TransformedRecord))


def with_records(spark: SparkSession, flow: Flow, planned: Sequence[Range], slots: int, group: str) -> DataFrame:
    """Returns the ranges of a plan, and the transformed records in them.

    Args:
        spark: the session.
        flow: flow whose transforms apply.
        planned: the ranges.
        slots: number of slots of the flow.
        group: id of the consumer group that reads them (`ReaderGroup`).

    Returns:
        One Spark partition for each slot: first its ranges (kind `range`), then its records (kind `record`) in the
        same order of partitions, and by offset. The order is another one for each plan: a task that has no time for all
        records leaves out those of the last partitions.
    """
    from pyspark.sql import functions as F

    turns = random.sample(range(len(planned)), k=len(planned))
    rows = [(RANGE, *astuple(one), turn) for one, turn in zip(planned, turns, strict=True)]
    frames = [spark.createDataFrame(rows, RANGE_SCHEMA)]
    by_transform: dict[Transform, dict[Range, int]] = {}
    for one, turn in zip(planned, turns, strict=True):
        transform = flow.transform_of(one.topic)
        if transform is not None and one.end > one.start:
            by_transform.setdefault(transform, {})[one] = turn
    frames += [_records(spark, flow, transform, some, group) for transform, some in by_transform.items()]
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame, allowMissingColumns=True)
    for column in set(RECORD_COLUMNS) - set(union.columns):
        union = union.withColumn(column, F.lit(None))
    return union.repartitionById(slots, F.col("slot")).sortWithinPartitions("kind", "turn", "offset")


def _records(
    spark: SparkSession, flow: Flow, transform: Transform, ranges: Mapping[Range, int], group: str
) -> DataFrame:
    from pyspark.sql import functions as F

    start = {(one.topic, one.partition): one.start for one in ranges}
    end = {(one.topic, one.partition): one.end for one in ranges}
    # The task itself finds the cause of missing offsets in the log, so Spark's Kafka source need not fail on data loss.
    records = log_records(
        spark,
        flow.source_connection,
        start=start,
        end=end,
        isolation="read_committed",
        names={},
        options=_patience(flow) | {"kafka.group.id": group},
    )
    transformed = apply(records, transform)
    places = spark.createDataFrame(
        [(one.topic, one.partition, one.slot, turn) for one, turn in ranges.items()],
        "topic STRING, partition INT, slot INT, turn INT",
    )
    return (
        transformed.join(F.broadcast(places), ["topic", "partition"])
        .withColumn("kind", F.lit(RECORD))
        .select("kind", "slot", "turn", *RECORD_COLUMNS)
    )


def _patience(flow: Flow) -> dict[str, str]:
    """Returns for how long a read waits for a leader that has died since the plan was made, as all slots wait.

    The next plan leaves its partitions out.
    """
    found, given = {"kafkaConsumer.pollTimeoutMs": str(PATIENCE_MS)}, flow.source_connection.spark()
    if "kafka.default.api.timeout.ms" not in given:
        request_ms = int(given.get("kafka.request.timeout.ms") or 0)  # the client takes none that is shorter
        found["kafka.default.api.timeout.ms"] = str(max(PATIENCE_MS, request_ms))
    return found


def split(batches: Iterator[pa.RecordBatch]) -> tuple[list[Range], Iterator[list[TransformedRecord]]]:
    """Splits a task's rows into ranges and batches of records."""
    ranges: list[Range] = []
    rest: list[TransformedRecord] = []
    for batch in batches:
        kinds = batch.column("kind").to_pylist()
        count = kinds.count(RANGE)
        ranges += [Range(*row) for row in _rows(batch.slice(0, count), RANGE_COLUMNS)]
        if count < len(kinds):
            rest = [TransformedRecord(*row) for row in _rows(batch.slice(count), RECORD_COLUMNS)]
            break
    return ranges, _more(rest, batches)


def _more(first: list[TransformedRecord], batches: Iterator[pa.RecordBatch]) -> Iterator[list[TransformedRecord]]:
    if first:
        yield first
    for batch in batches:
        yield [TransformedRecord(*row) for row in _rows(batch, RECORD_COLUMNS)]


def _rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    if not batch.num_rows or not set(columns) <= set(batch.schema.names):
        return ()
    return zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
