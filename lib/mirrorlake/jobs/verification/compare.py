"""Two logs compared record by record, at the places that the map says: what is the same, and what is not.

Every record becomes a fingerprint where it is read: a SHA-256 of key, value and headers, and its timestamp. A target
record is put at the upstream offset that the map gives it, and both sides are joined there. What is the same is counted
at once; what isn't is kept, one row each, for `jobs/verification/classify.py`. No payload leaves the task that reads
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Offsets are cut into stretches of this length, so that one large partition is sorted in many tasks.
STRETCH_BITS = 18

SIDE = ("offset", "content", "timestamp", "key_hash", "is_tombstone")  # what is kept of each side of a mismatch


class Comparison(StrEnum):
    """What comes of holding a record against its copy."""

    EQUAL = "equal"
    LEFT_OUT = "left_out"
    MISMATCH = "mismatch"


def fingerprints(records: DataFrame) -> DataFrame:
    """What is compared of records, as Spark's Kafka source has them with headers.

    Returns:
        topic, partition, offset; content (SHA-256 of key, value and headers: nulls, their order and repetition count);
        timestamp (ms); key_hash, value_hash and headers_hash (64 bits, to say which of them differs; null for a key
        that is null); is_stamped (the broker gave the timestamp), is_tombstone.
    """
    from pyspark.sql import functions as F

    nothing = F.lit(b"")
    headers = F.coalesce(F.array_join(F.transform("headers", _header), ","), F.lit(""))
    # Lengths go ahead, so that no two records give the same bytes; -1 tells null from empty.
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


def located(records: DataFrame, ranges: DataFrame, on: Sequence[str], start: str, end: str) -> DataFrame:
    """Records with the range they are in, as a struct `range` (null: none).

    An as-of join: both in one order, each record taking the nearest range that ends ahead of it. No product, however
    many ranges there are.

    Args:
        records: with the columns `on` and offset.
        ranges: with the columns `on`, `start` and `end` (exclusive).
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
    # Downwards; at one offset the record comes before the range that ends there, which is behind it.
    order = (
        Window.partitionBy(*on, "_stretch")
        .orderBy(F.desc("_at"), F.desc("_asks"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    found = both.withColumn("range", F.last("range", ignorenulls=True).over(order)).filter("_asks = 1")
    return found.select("record.*", F.when(F.col("_at") >= F.col(f"range.{start}"), F.col("range")).alias("range"))


def compared(source: DataFrame, target: DataFrame, segments: DataFrame, *, is_shared: bool) -> DataFrame:
    """Holds both logs against each other.

    Args:
        source: fingerprints of the source; with the column left_out, which is true for a record that needn't be on the
            target.
        target: fingerprints of the target, under the names of its own topics.
        segments: of the map (`jobs/verification/segments.py`); target records in those that are not judged are passed
            over.
        is_shared: others write to the remote topics too, so that what is not in the map says nothing.

    Returns:
        topic, partition, kind, records and, for kind `mismatch`, one row each: upstream_offset (the record's, or the
            one that the map gives the target record; null
        where it gives none); is_mapped and is_inferred (of the place of a target record); differs (which of key, value,
        headers and timestamp); and the structs source and target (SIDE; null where that side has no record).
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
    # What was copied by another mirror may have got the time of the target's broker; that is how it was taken over.
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
    # One pass over both logs: whatever is the same falls together to one row for each partition.
    return kept.groupBy(*kept.columns).agg(F.count("*").alias("records"))


def placed(target: DataFrame, segments: DataFrame) -> DataFrame:
    """Target records with topic and partition on the source, the upstream_offset that the map gives them (null: none),
    and is_inferred and is_taken_over of their segment."""
    from pyspark.sql import functions as F

    renamed = target.withColumnsRenamed({"topic": "target_topic", "partition": "target_partition"})
    found = located(
        renamed, segments, ("target_topic", "target_partition"), "downstream_from", "downstream_end"
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
