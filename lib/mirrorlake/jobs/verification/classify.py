"""Classifies mismatches: each record that differs between the logs becomes a finding with both offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.jobs.verification.compare import Comparison, located

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRAY = "stray"  # a foreign record on the target, until it is known whether it is a copy


class FindingKind(StrEnum):
    """The kinds of findings; each is also a column of the table verifications.

    - MISSING: on the source, but not among the compared records of the target. The downstream offset is the mapped one.
    - DUPLICATED: an extra copy on the target, equal to the source's record at the upstream offset. It is outside the
      map, or in place of another record.
    - OUT_OF_ORDER: on the target, but not at its mapped offset. The downstream offset is the actual one.
    - DIFFERENT: at its mapped offset, with another key, value, headers or timestamp.
    - UNEXPECTED: on the target, but not on the source. The upstream offset is the mapped one, if there is one.
    """

    MISSING = "missing"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out_of_order"
    DIFFERENT = "different"
    UNEXPECTED = "unexpected"


# The queries name the kinds and STRAY by these keys; Spark quotes the values.
WORDS: dict[str, Any] = {**{kind.value: kind for kind in FindingKind}, "stray": STRAY}

# Equal records are paired in order. Of three copies where two belong, one is therefore left over.
CLASSIFICATION = """
WITH unexplained AS (SELECT * FROM {mismatches} WHERE NOT is_explained),
ours AS (
  SELECT topic, partition, upstream_offset, place, is_mapped, source.content, source.timestamp,
    row_number() OVER (PARTITION BY topic, partition, source.content, source.timestamp
      ORDER BY upstream_offset) AS number
  FROM unexplained WHERE source IS NOT NULL
),
theirs AS (
  SELECT topic, partition, upstream_offset, place, source IS NOT NULL AS is_taken, target.offset AS downstream_offset,
    target.content, target.timestamp,
    row_number() OVER (PARTITION BY topic, partition, target.content, target.timestamp ORDER BY target.offset) AS number
  FROM unexplained WHERE target IS NOT NULL
),
moved AS (
  SELECT o.topic, o.partition, o.upstream_offset, o.place, t.downstream_offset
  FROM ours o JOIN theirs t
    ON t.topic = o.topic AND t.partition = o.partition AND t.content = o.content AND t.timestamp = o.timestamp
      AND t.number = o.number
),
lost AS (SELECT o.* FROM ours o LEFT ANTI JOIN moved m ON m.topic = o.topic AND m.partition = o.partition
  AND m.upstream_offset = o.upstream_offset),
stray AS (SELECT t.* FROM theirs t LEFT ANTI JOIN moved m ON m.topic = t.topic AND m.partition = t.partition
  AND m.downstream_offset = t.downstream_offset),
-- Neither the record that belongs here nor the one that stands here was found elsewhere: the one is the other, changed.
changed AS (
  SELECT l.topic, l.partition, l.upstream_offset, s.downstream_offset
  FROM lost l JOIN stray s ON s.topic = l.topic AND s.partition = l.partition AND s.upstream_offset = l.upstream_offset
    AND s.is_taken
)
SELECT topic, partition, upstream_offset, downstream_offset, {out_of_order} AS kind,
  coalesce(concat('the map has the record at downstream offset ', place), 'the record is in no run of the map')
    AS detail, NULL AS content, NULL AS timestamp
FROM moved
UNION ALL
SELECT c.topic, c.partition, c.upstream_offset, c.downstream_offset, {different}, coalesce(nullif(o.differs, ''),
  'content'), NULL, NULL
FROM changed c JOIN unexplained o ON o.topic = c.topic AND o.partition = c.partition
  AND o.target.offset = c.downstream_offset
UNION ALL
SELECT l.topic, l.partition, l.upstream_offset, l.place, {missing}, CASE WHEN NOT l.is_mapped
  THEN 'the record is in no run of the map' END, NULL, NULL
FROM lost l LEFT ANTI JOIN changed c ON c.topic = l.topic AND c.partition = l.partition
  AND c.upstream_offset = l.upstream_offset
UNION ALL
SELECT s.topic, s.partition, s.upstream_offset, s.downstream_offset, {stray}, NULL, s.content, s.timestamp
FROM stray s LEFT ANTI JOIN changed c ON c.topic = s.topic AND c.partition = s.partition
  AND c.downstream_offset = s.downstream_offset
"""

STRAYS = """
WITH copies AS (
  SELECT f.topic, f.partition, f.downstream_offset, min(s.offset) AS upstream_offset
  FROM {found} f JOIN {source} s ON s.topic = f.topic AND s.partition = f.partition AND s.content = f.content
    AND s.timestamp = f.timestamp
  WHERE f.kind = {stray} GROUP BY f.topic, f.partition, f.downstream_offset
)
SELECT f.topic, f.partition, coalesce(c.upstream_offset, f.upstream_offset) AS upstream_offset, f.downstream_offset,
  CASE WHEN f.kind <> {stray} THEN f.kind WHEN c.upstream_offset IS NULL
    THEN {unexpected} ELSE {duplicated} END AS kind,
  CASE
    WHEN f.kind <> {stray} THEN f.detail
    WHEN c.upstream_offset IS NOT NULL THEN 'an additional copy of the record'
    WHEN f.upstream_offset IS NOT NULL THEN 'the map has a source record here that the source does not have'
    ELSE 'the record is in no run of the map'
  END AS detail
FROM {found} f LEFT JOIN copies c ON f.kind = {stray} AND c.topic = f.topic AND c.partition = f.partition
  AND c.downstream_offset = f.downstream_offset
"""


def with_places(compared: DataFrame, segments: DataFrame) -> DataFrame:
    """Adds the map's data to the mismatches of `compare.compared`.

    The new columns are place and by_take_over. place is the mapped downstream offset (null if there is none).
    by_take_over is true for a source record that another mirror left out, and for one that it copied although it was
    aborted on the source. is_mapped is never null in the result.
    """
    from pyspark.sql import functions as F

    found = compared.filter(F.col("kind") == Comparison.MISMATCH).drop("kind", "records")
    alone = found.filter("target IS NULL").withColumn("offset", F.col("source.offset"))
    steps = F.col("offset") - F.col("range.upstream_start")
    known = (
        located(alone, segments, on=("topic", "partition"), start="upstream_from", end="upstream_end")
        .filter("range IS NOT NULL")
        .withColumns(
            {
                "place": F.when(steps >= 0, F.col("range.downstream_start") + steps),
                "is_mapped": steps >= 0,
                "by_take_over": (steps < 0) & F.col("range.is_inferred"),
            }
        )
    )
    others = found.filter("target IS NOT NULL").withColumns(
        {
            "place": F.when(F.col("is_mapped"), F.col("target.offset")),
            "by_take_over": F.col("source").isNull() & F.col("is_mapped") & F.col("is_inferred"),
        }
    )
    return known.drop("offset", "range").unionByName(others).drop("is_inferred")


@dataclass(frozen=True)
class Cleaned:
    """The records that the log cleaner has left on one side of compacted topics.

    Attributes:
        tombstones_before_ms: topics of the source, each with the time (ms since the epoch) before which the cleaner may
            have deleted its tombstones (delete.retention.ms).
        last_offsets: columns topic, partition (of the source), key_hash and last_offset (on that side).
    """

    tombstones_before_ms: Mapping[str, int]
    last_offsets: DataFrame


def with_reasons(
    mismatches: DataFrame, log_starts: DataFrame, source: Cleaned | None = None, target: Cleaned | None = None
) -> DataFrame:
    """Adds is_explained: true if the side without the record has deleted it, by retention or compaction.

    Args:
        mismatches: see `with_places`.
        log_starts: columns topic, partition, source_start, target_start; the first offsets of the logs.
        source: compacted topics on the source; None if there are none.
        target: compacted topics on the target; None if there are none.
    """
    from pyspark.sql import functions as F

    rows = mismatches.join(
        F.broadcast(log_starts.select("topic", "partition", "source_start", "target_start")), ["topic", "partition"]
    )
    lacks_target, lacks_source = (
        F.col("target").isNull() & F.col("is_mapped"),
        F.col("source").isNull() & F.col("is_mapped"),
    )
    reasons = (
        F.col("by_take_over")
        | lacks_target & (F.col("place") < F.col("target_start"))
        | lacks_source & (F.col("upstream_offset") < F.col("source_start"))
    )
    if target is not None:
        rows, is_cleaned = _cleaned(rows, target, "source", "place")
        reasons = reasons | lacks_target & is_cleaned
    if source is not None:
        rows, is_cleaned = _cleaned(rows, source, "target", "upstream_offset")
        reasons = reasons | lacks_source & is_cleaned
    return rows.select(*mismatches.columns, F.coalesce(reasons, F.lit(False)).alias("is_explained"))


def _cleaned(rows: DataFrame, cleaned: Cleaned, side: str, at: str) -> tuple[DataFrame, Column]:
    """Returns the rows, and whether the other side's cleaner would delete a record that only `side` has.

    It would delete records without a key, tombstones that are old enough, and records with a newer record of the same
    key. That newer record may be gone there, too, as tombstones go; it has to be explained itself. A tombstone only
    goes once no older record of its key is left. `at` is the column with the record's offset on the other side.
    """
    from pyspark.sql import functions as F

    other = "target" if side == "source" else "source"
    key, last, before = f"{side}_key", f"{side}_last", f"{side}_tombstones_before_ms"
    of_key, alone = ["topic", "partition", key], f"{side}_alone"
    left = cleaned.last_offsets.select(
        "topic", "partition", F.col("key_hash").alias(key), F.col("last_offset").alias(last)
    )
    limits = rows.sparkSession.createDataFrame(
        [*cleaned.tombstones_before_ms.items()], f"topic STRING, {before} BIGINT"
    )
    keyed = rows.withColumn(key, F.col(f"{side}.key_hash"))
    gone = keyed.filter(
        F.col(other).isNull() & F.col("is_mapped") & ~F.coalesce("by_take_over", F.lit(False)) & F.col(key).isNotNull()
    )
    newest = gone.groupBy(*of_key).agg(F.max(at).alias(alone))
    joined = keyed.join(left, of_key, "left").join(newest, of_key, "left")
    is_old_tombstone = F.col(f"{side}.is_tombstone") & (F.col(f"{side}.timestamp") < F.col(before))
    is_gone = (
        F.col(key).isNull()
        | is_old_tombstone & F.col(last).isNull()
        | F.coalesce(F.greatest(last, alone) > F.col(at), F.lit(False))
    )
    return joined.join(F.broadcast(limits), "topic", "left"), F.col(before).isNotNull() & is_gone


def with_doubts(found: DataFrame, source: Mapping[str, str], target: Mapping[str, str]) -> DataFrame:
    """Adds to the detail of findings why nobody can tell whether a side has itself deleted the record that it lacks.

    Args:
        found: see `findings`.
        source: topics of the source, with the reason; for records that the source lacks.
        target: the same, for records that the target lacks.
    """
    from pyspark.sql import functions as F

    doubts = [
        (topic, kind.value, reason)
        for kind, reasons in ((FindingKind.UNEXPECTED, source), (FindingKind.MISSING, target))
        for topic, reason in reasons.items()
    ]
    if not doubts:
        return found
    frame = found.sparkSession.createDataFrame(doubts, "topic STRING, kind STRING, doubt STRING")
    rows = found.join(F.broadcast(frame), ["topic", "kind"], "left")
    doubt = F.when(F.col("upstream_offset").isNotNull() & F.col("downstream_offset").isNotNull(), F.col("doubt"))
    detail = F.when(F.col("detail").isNotNull() | doubt.isNotNull(), F.concat_ws("; ", "detail", doubt))
    return rows.withColumn("detail", detail).select(*found.columns)


def findings(mismatches: DataFrame, source: DataFrame) -> DataFrame:
    """Classifies mismatches that are not explained.

    Args:
        mismatches: see `with_reasons`.
        source: fingerprints of the source. They are read only for stray records, to find the record that each is a copy
            of.

    Returns:
        One row for each finding: topic, partition, upstream_offset, downstream_offset, kind (`FindingKind`) and detail.
        The frame is checkpointed.
    """
    spark = mismatches.sparkSession
    found = spark.sql(CLASSIFICATION, mismatches=mismatches, **WORDS).localCheckpoint()
    if found.filter(found.kind == STRAY).isEmpty():
        return found.drop("content", "timestamp")
    return spark.sql(STRAYS, found=found, source=source, **WORDS).localCheckpoint()
