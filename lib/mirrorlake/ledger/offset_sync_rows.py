"""Reads the records of the offset-syncs topic as frames, and makes rows of the tables offset_syncs and gaps of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mirrorlake.model.slot import SlotState, parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from mirrorlake.config.flow import Flow

EARLIEST = -2  # the earliest offset, for Spark's Kafka source
YEAR_1_MS, YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999

# The fields of a state that the rows of runs and gaps need, with Spark's names of their types.
PLAIN = {
    "version": "INT",
    "source": "STRING",
    "target": "STRING",
    "transactional_id": "STRING",
    "producer_id": "BIGINT",
    "producer_epoch": "INT",
    "inferred": "BOOLEAN",
    "topics_shared": "BOOLEAN",
}
PARTS = {
    "runs": {
        "topic": "STRING",
        "partition": "INT",
        "target_topic": "STRING",
        "target_partition": "INT",
        "upstream_start": "BIGINT",
        "upstream_end": "BIGINT",
        "downstream_start": "BIGINT",
        "downstream_end": "BIGINT",
        "records": "BIGINT",
        "bytes": "BIGINT",
        "first_timestamp": "BIGINT",
        "last_timestamp": "BIGINT",
        "digest": "BIGINT",
        "incarnation": "INT",
    },
    "gaps": {
        "topic": "STRING",
        "partition": "INT",
        "from_offset": "BIGINT",
        "to_offset": "BIGINT",
        "kind": "STRING",
        "incarnation": "INT",
        "downstream_offset": "BIGINT",
    },
}
PLACE = "sync_partition INT, sync_offset BIGINT, committed_at TIMESTAMP"


def offset_sync_records(
    session: SparkSession,
    flow: Flow,
    first: Mapping[int, int],
    end: Mapping[int, int] | None = None,
    *,
    is_whole: bool = False,
) -> DataFrame:
    """Reads the committed records of a flow's offset-syncs topic through Spark's Kafka source.

    Records of the topic are never deleted. If an operator has deleted some, the query fails with `is_whole`, as the
    ledger's stream does, and skips them without.

    Args:
        session: the session.
        flow: the flow of the topic.
        first: the first offset of each partition, or EARLIEST.
        end: the end offset of each partition; the end of the log if None.
        is_whole: whether deleted records are an error.
    """
    topic = flow.offset_syncs_topic
    reader = (
        session.read.format("kafka")
        .options(**flow.target_connection.spark())
        .option("kafka.isolation.level", "read_committed")
        .option("failOnDataLoss", str(is_whole).lower())
    )
    reader = reader.option("assign", json.dumps({topic: sorted(first)})).option(
        "startingOffsets", _offsets(topic, first)
    )
    return (reader if end is None else reader.option("endingOffsets", _offsets(topic, end))).load()


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def offset_sync_states(records: DataFrame) -> DataFrame:
    """Decodes records of the offset-syncs topic (columns key, value, partition, offset, timestamp), one row for each.

    Records of other programs, which have other keys, are left out. A state that this version can't decode fails the
    query (`SlotState.from_json`).
    """
    from pyspark.sql import functions as F

    is_state = F.col("key") == F.concat(F.lit("slot-"), F.col("partition")).cast("binary")
    wanted = records.filter(is_state).select("value", "partition", "offset", "timestamp")
    parts = (f"{name} ARRAY<STRUCT<{_columns(fields)}>>" for name, fields in PARTS.items())
    return wanted.mapInArrow(_decoded, ", ".join((_columns(PLAIN), *parts, PLACE)))


def _columns(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields.items())


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kinds = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}
    types = {name: kinds[kind] for name, kind in PLAIN.items()} | {
        name: pa.list_(pa.struct([(field, kinds[kind]) for field, kind in fields.items()]))
        for name, fields in PARTS.items()
    }
    for batch in batches:
        # One after the other: the positions of many snapshots would fill the worker's memory.
        values = (parsed(value.as_py()) for value in batch.column("value"))
        found = [
            {"version": value.get("version")} | _plain(SlotState.from_value(value, with_positions=False))
            for value in values
        ]
        columns = {name: pa.array([one[name] for one in found], kind) for name, kind in types.items()}
        place = {
            "sync_partition": batch.column("partition"),
            "sync_offset": batch.column("offset"),
            "committed_at": batch.column("timestamp"),
        }
        yield pa.RecordBatch.from_pydict(columns | place)


def _plain(state: SlotState) -> dict[str, Any]:
    """Returns the fields of a state as plain values, all but the version, which a state does not keep."""
    values = {name: getattr(state, name) for name in PLAIN if name != "version"}
    return values | {
        name: [{field: getattr(one, field) for field in fields} for one in getattr(state, name)]
        for name, fields in PARTS.items()
    }


def run_rows(states: DataFrame) -> DataFrame:
    """Makes rows of the table offset_syncs: one for each run."""
    from pyspark.sql import functions as F

    is_inferred = F.coalesce("inferred", F.lit(False))
    return (
        states.withColumn("is_inferred", is_inferred)
        .select("*", F.explode("runs").alias("run"))
        .select(
            "source",
            "target",
            "run.topic",
            "run.partition",
            "run.target_topic",
            "run.target_partition",
            "run.upstream_start",
            "run.upstream_end",
            "run.downstream_start",
            "run.downstream_end",
            "run.records",
            "run.bytes",
            _timestamp("run.first_timestamp").alias("first_timestamp"),
            _timestamp("run.last_timestamp").alias("last_timestamp"),
            F.when(~F.col("is_inferred"), F.lower(F.lpad(F.hex("run.digest"), 8, "0"))).alias("digest"),
            "transactional_id",
            "producer_id",
            "producer_epoch",
            "sync_partition",
            "sync_offset",
            "committed_at",
            F.col("is_inferred").alias("inferred"),
            F.coalesce("run.incarnation", F.lit(0)).alias("incarnation"),
            F.coalesce("topics_shared", F.lit(False)).alias("shared"),
        )
    )


def gap_rows(states: DataFrame) -> DataFrame:
    """Makes rows of the table gaps: one for each gap."""
    from pyspark.sql import functions as F

    return states.select("*", F.explode("gaps").alias("gap")).select(
        "source", "target", "gap.*", "sync_partition", "sync_offset", "committed_at"
    )


def _timestamp(column: str) -> Any:
    """Converts milliseconds to a timestamp; null outside of the years 1 to 9999, which producers may write."""
    from pyspark.sql import functions as F

    return F.when(F.col(column).between(YEAR_1_MS, YEAR_9999_MS), F.timestamp_millis(column))
