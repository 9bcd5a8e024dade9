"""Compares two logs record by record, by the map.

Each task turns the records that it reads into fingerprints: a SHA-256 of key, value and headers, and the timestamp. The
map gives each target record its upstream offset, and both sides are joined there. Equal records are counted at once.
Each mismatch is kept as a row for `jobs/verification/classify.py`. Payloads do not leave the task that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Offsets are divided into stretches of this length, so that many tasks share the sort of a large partition.
STRETCH_BITS = 18

SIDE = ("offset", "content", "timestamp", "key_hash", "is_tombstone")  # columns kept of each side of a mismatch


class Comparison(StrEnum):
    """The result of comparing a record with its copy."""

    EQUAL = "equal"
    LEFT_OUT = "left_out"
    MISMATCH = "mismatch"


def fingerprints(records: DataFrame) -> DataFrame:
    """Computes fingerprints of records that Spark's Kafka source has read with headers.

    Returns:
        Columns topic, partition, offset; content (SHA-256 of key, value and headers, including nulls, order and
        repetition of headers); timestamp (ms); key_hash, value_hash and headers_hash (64 bits, to tell which of them
        differs; key_hash is null for a null key); is_stamped (the broker set the timestamp), is_tombstone.
    """
    from pyspark.sql import functions as F

    nothing = F.lit(b"")
    headers = F.coalesce(F.array_join(F.transform("headers", _header), ","), F.lit(""))
    # Lengths come first, so that no two records have the same bytes; -1 distinguishes null from empty.
    lengths = [F.coalesce(F.octet_length(name), F.lit(-1)).cast("string") for name in ("key", "value")]
    whole = F.concat(
        F.encode(F.concat_ws(",", *lengths, headers), "UTF-8"), F.coalesce("key", nothing), F.coalesce("value", nothing)
    )
    return records.select(
        "topic",
        "partition",
        "offset",
        F.unhex(F.sha2(whole, 256)).alias("content"),
        F.unix_millis("timestamp").alias("timestamp"),
        F.when(F.col("key").isNotNull(), F.xxhash64("key")).alias("key_hash"),
        F.xxhash64(F.col("value"), F.col("value").isNull()).alias("value_hash"),
        F.xxhash64(headers).alias("headers_hash"),
        (F.col("timestampType") == 1).alias("is_stamped"),
        F.col("value").isNull().alias("is_tombstone"),
    )


def _header(header: Column) -> Column:
    from pyspark.sql import functions as F

    return F.concat(F.hex(F.encode(header["key"], "UTF-8")), F.lit(":"), F.coalesce(F.hex(header["value"]), F.lit("-")))


def disjoint(ranges: DataFrame, on: Sequence[str], start: str, end: str) -> DataFrame:
    """Merges ranges that overlap or adjoin; each sort of ranges, by the columns `on`, is merged by itself.

    Returns:
        Columns `on`, `start` and `end` (exclusive).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*on).orderBy(start)
    begins = F.coalesce(F.max(end).over(order.rowsBetween(Window.unboundedPreceding, -1)) < F.col(start), F.lit(True))
    first = F.last(F.when(F.col("_begins"), F.col(start)), ignorenulls=True)
    numbered = (
        ranges.filter(F.col(end) > F.col(start))
        .withColumn("_begins", begins)
        .withColumn("_first", first.over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow)))
    )
    return numbered.groupBy(*on, F.col("_first").alias(start)).agg(F.max(end).alias(end)).select(*on, start, end)


def located(records: DataFrame, ranges: DataFrame, on: Sequence[str], start: str, end: str) -> DataFrame:
    """Adds to each record the range that contains it, as the struct `range`; null if there is none.

    The query is an as-of join: records and ranges are sorted together, and each record takes the nearest range that
    ends after it. There is no product, even with many ranges.

    Args:
        records: columns `on` and offset.
        ranges: columns `on`, `start` and `end` (exclusive). Where they overlap (`disjoint`), a record may get none.
        on: names of the columns that both frames share.
        start: name of the column with a range's first offset.
        end: name of the column with a range's end.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    stretches = F.sequence(F.shiftright(start, STRETCH_BITS), F.shiftright(F.col(end) - 1, STRETCH_BITS))
    pieces = ranges.filter(F.col(end) > F.col(start)).select(
        *on, F.col(end).alias("_end"), F.struct(*ranges.columns).alias("range"), F.explode(stretches).alias("_stretch")
    )
    clipped = F.least("_end", F.shiftleft(F.col("_stretch") + 1, STRETCH_BITS)).alias("_at")
    asked = records.select(
        *on,
        F.shiftright("offset", STRETCH_BITS).alias("_stretch"),
        F.col("offset").alias("_at"),
        F.lit(1).alias("_asks"),
        F.struct(*records.columns).alias("record"),
    )
    both = pieces.select(*on, "_stretch", clipped, F.lit(0).alias("_asks"), "range").unionByName(
        asked, allowMissingColumns=True
    )
    # In descending order. At the same offset, the record precedes the range that ends there, which does not contain it;
    # of ranges that are cut off there, the one that ends first comes last.
    order = (
        Window.partitionBy(*on, "_stretch")
        .orderBy(F.desc("_at"), F.desc("_asks"), F.desc(f"range.{end}"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    found = both.withColumn("range", F.last("range", ignorenulls=True).over(order)).filter("_asks = 1")
    return found.select("record.*", F.when(F.col("_at") >= F.col(f"range.{start}"), F.col("range")).alias("range"))


def compared(source: DataFrame, target: DataFrame, segments: DataFrame, *, is_shared: bool) -> DataFrame:
    """Compares both logs.

    Args:
        source: fingerprints of the source, with the column left_out: true for a record that need not be on the target.
        target: fingerprints of the target, with the target's topic names.
        segments: segments of the map (`jobs/verification/segments.py`); target records in segments that are not judged
            are ignored.
        is_shared: true if other programs write to the remote topics; unmapped records there are then left out.

    Returns:
        Columns topic, partition, kind and records. Each row of kind `mismatch` is one record, with further columns:

        - upstream_offset: the record's own, or the mapped one of a target record; null if there is none;
        - is_mapped, is_inferred: of the offset of a target record;
        - differs: which of key, value, headers and timestamp differ;
        - source, target: structs of SIDE; null if that side has no record.
    """
    from pyspark.sql import functions as F

    left = source.select("topic", "partition", F.col("offset").alias("at"), F.struct(*source.columns).alias("s"))
    right = placed(target, segments).select(
        "topic",
        "partition",
        F.coalesce("upstream_offset", -1 - F.col("offset")).alias("at"),
        F.struct(*target.columns, "is_inferred", "is_taken_over").alias("t"),
    )
    both = left.join(right, ["topic", "partition", "at"], "full_outer")
    has_both = F.col("s").isNotNull() & F.col("t").isNotNull()
    # Records that another mirror copied may have the timestamp of the target's broker; the take-over accepted it.
    same_time = (F.col("s.timestamp") == F.col("t.timestamp")) | (F.col("t.is_stamped") & F.col("t.is_inferred"))
    is_left_out = F.col("s").isNull() & (F.col("at") < 0) & (F.lit(is_shared) | F.col("t.is_taken_over")) | F.col(
        "t"
    ).isNull() & F.col("s.left_out")
    kind = (
        F.when(has_both & (F.col("s.content") == F.col("t.content")) & same_time, Comparison.EQUAL)
        .when(is_left_out, Comparison.LEFT_OUT)
        .otherwise(Comparison.MISMATCH)
    )
    rows = both.select("topic", "partition", kind.alias("kind"), "at", "s", "t", _differs(has_both).alias("differs"))

    def only(column: Column) -> Column:
        return F.when(F.col("kind") == Comparison.MISMATCH, column)

    def side(name: str) -> Column:
        return only(F.when(F.col(name).isNotNull(), F.struct(*(F.col(f"{name}.{field}") for field in SIDE))))

    kept = rows.select(
        "topic",
        "partition",
        "kind",
        only(F.when(F.col("at") >= 0, F.col("at"))).alias("upstream_offset"),
        only(F.when(F.col("t").isNotNull(), F.col("at") >= 0)).alias("is_mapped"),
        only(F.col("t.is_inferred")).alias("is_inferred"),
        only(F.col("differs")).alias("differs"),
        side("s").alias("source"),
        side("t").alias("target"),
    )
    # One pass over both logs: equal records collapse to one row for each partition.
    return kept.groupBy(*kept.columns).agg(F.count("*").alias("records"))


def placed(target: DataFrame, segments: DataFrame) -> DataFrame:
    """Returns target records with their source topic and partition, and the mapped upstream_offset.

    upstream_offset is null for records outside the map. is_inferred and is_taken_over are those of the segment.
    """
    from pyspark.sql import functions as F

    renamed = target.withColumnsRenamed({"topic": "target_topic", "partition": "target_partition"})
    found = located(
        renamed, segments, on=("target_topic", "target_partition"), start="downstream_from", end="downstream_end"
    ).filter("range.is_judged")
    steps = F.col("offset") - F.col("range.downstream_start")
    return found.select(
        "range.topic",
        "range.partition",
        "range.is_inferred",
        "range.is_taken_over",
        F.when(steps >= 0, F.col("range.upstream_start") + steps).alias("upstream_offset"),
        *target.columns[2:],
    )


def _differs(has_both: Column) -> Column:
    from pyspark.sql import functions as F

    parts = [
        F.when(~F.col(f"s.{name}_hash").eqNullSafe(F.col(f"t.{name}_hash")), name)
        for name in ("key", "value", "headers")
    ]
    return F.when(
        has_both, F.concat_ws(", ", *parts, F.when(F.col("s.timestamp") != F.col("t.timestamp"), "timestamp"))
    )
