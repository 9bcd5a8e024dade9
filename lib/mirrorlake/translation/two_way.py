"""Counterparts: where on the other cluster a group goes on that stands here, by the maps of both directions.

`translation/sql_join.py` knows one map. Where both clusters have written one topic, in turn or at once, the log here
holds records that were written here (the flow there has carried them, or will) and records that were brought from there
(their place there is where they came from). *Pieces* are both: the runs of the flow from here to there, and those of
the flow back, turned round. A piece maps offsets here to offsets there, one to one.

The counterpart of an offset o is the smallest place there of any record at or after o here; past the last piece, the
end of all places. So a group that goes on there skips no record that has a place. Where the records of a partition are
in the same order on both sides (one side writes at a time) it reads none again either. Where they are not, what
it has read here and lies at or behind its counterpart is counted: `again`.

For a flow without a way back this is the same as `translate.translate`, offset by offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mirrorlake.translation import sql_join
from mirrorlake.translation.sql_join import current_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# As in the translation by one map, but that the log is that of this side, which may be either.
WORDS: dict[str, Any] = {**sql_join.WORDS, "past_the_log": "past the end of the log"}

PIECES = (
    "topic STRING, partition INT, start BIGINT, end BIGINT, to_topic STRING, to_partition INT, to_start BIGINT, "
    "is_back BOOLEAN"
)
KNOWN = (
    "topic STRING, partition INT, log_start BIGINT, log_end BIGINT, upstream_next BIGINT, downstream_next BIGINT, "
    "back_next BIGINT, to_topic STRING, to_partition INT"
)

COUNTERPARTS = """
WITH pieces AS (
  SELECT topic, partition, to_topic, to_partition, start, end, to_start, is_back, to_start + end - start AS to_end,
    min(to_start) OVER (PARTITION BY topic, partition, to_topic, to_partition ORDER BY start DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS later_start,
    max(to_start + end - start) OVER (PARTITION BY topic, partition, to_topic, to_partition ORDER BY start
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier_end
  FROM {pieces}
),
ends AS (
  SELECT topic, partition, to_topic, to_partition, min(start) AS first_start, max(end) AS last_end,
    max(to_end) AS to_end,
    coalesce(max(to_end) FILTER (WHERE NOT is_back), 0) AS mapped_there, coalesce(max(end) FILTER (WHERE is_back),
      0) AS mapped_back
  FROM pieces GROUP BY topic, partition, to_topic, to_partition
),
places AS (
  SELECT DISTINCT topic, partition, to_topic, to_partition FROM (
    SELECT topic, partition, to_topic, to_partition FROM ends
    UNION ALL SELECT topic, partition, to_topic, to_partition FROM {known} WHERE to_topic IS NOT NULL
  )
),
events AS (
  SELECT topic, partition, to_topic, to_partition, end AS at, 0 AS asks, struct(start, to_start, later_start,
    earlier_end) AS piece FROM pieces
  UNION ALL
  SELECT DISTINCT p.topic, p.partition, t.to_topic, t.to_partition, p.upstream_offset, 1, NULL
  FROM {positions} p JOIN places t ON t.topic = p.topic AND t.partition = p.partition
),
-- Downwards from the end of the log, as in translate.py: each offset takes the nearest piece that ends behind it.
answers AS (
  SELECT topic, partition, to_topic, to_partition, at, asks,
    last_value(piece, true) OVER (PARTITION BY topic, partition, to_topic, to_partition ORDER BY at DESC, asks DESC
      ROWS UNBOUNDED PRECEDING) AS next_piece
  FROM events
),
found AS (
  SELECT p.group_id, p.topic, p.partition, p.upstream_offset, p.metadata, t.to_topic AS target_topic,
    t.to_partition AS target_partition, a.next_piece, e.first_start, e.last_end,
    k.log_start, k.log_end, k.upstream_next,
    coalesce(e.to_end, 0) AS mirrored_end,
    coalesce(e.mapped_there, 0) >= k.downstream_next AND coalesce(e.mapped_back, 0) >= k.back_next AS is_complete,
    CASE WHEN a.next_piece IS NULL THEN coalesce(e.to_end, 0)
      ELSE least(a.next_piece.to_start + greatest(0, p.upstream_offset - a.next_piece.start),
        a.next_piece.later_start) END AS downstream_offset
  FROM {positions} p
  JOIN {known} k ON k.topic = p.topic AND k.partition = p.partition
  JOIN places t ON t.topic = p.topic AND t.partition = p.partition
  LEFT JOIN answers a ON a.topic = t.topic AND a.partition = t.partition AND a.to_topic = t.to_topic
    AND a.to_partition = t.to_partition AND a.at = p.upstream_offset AND a.asks = 1
  LEFT JOIN ends e ON e.topic = t.topic AND e.partition = t.partition AND e.to_topic = t.to_topic
    AND e.to_partition = t.to_partition
),
-- Only where something before the offset has a place behind its counterpart: nowhere, as long as one side writes at a
-- time.
again AS (
  SELECT f.group_id, f.topic, f.partition, f.target_topic, f.target_partition,
    sum(greatest(0, x.to_start + least(x.end, f.upstream_offset) - x.start - greatest(x.to_start,
      f.downstream_offset))) AS records
  FROM found f JOIN pieces x ON x.topic = f.topic AND x.partition = f.partition AND x.to_topic = f.target_topic
    AND x.to_partition = f.target_partition AND x.start < f.upstream_offset
  WHERE f.next_piece.earlier_end > f.downstream_offset OR f.next_piece.start < f.upstream_offset
    AND f.downstream_offset < f.next_piece.to_start + f.upstream_offset - f.next_piece.start
  GROUP BY f.group_id, f.topic, f.partition, f.target_topic, f.target_partition
)
SELECT f.group_id, f.topic, f.partition, f.upstream_offset, f.metadata, f.target_topic, f.target_partition,
  f.downstream_offset,
  CASE
    WHEN f.next_piece IS NULL AND f.upstream_offset > coalesce(f.last_end, f.log_start, 0)
      AND NOT (f.upstream_offset <= f.upstream_next AND f.is_complete) THEN {clamped}
    WHEN f.upstream_offset < f.first_start THEN {before_mirror}
    ELSE {exact}
  END AS status,
  CASE
    WHEN f.next_piece IS NULL AND f.upstream_offset > f.log_end THEN {past_the_log}
    WHEN f.next_piece IS NULL AND NOT f.is_complete THEN {ledger_behind}
    WHEN f.next_piece IS NULL AND f.upstream_offset > greatest(f.upstream_next, f.log_start)
      THEN {past_the_mirror}
  END AS reason,
  f.mirrored_end, f.is_complete, f.next_piece.start AS piece_start, f.next_piece.to_start AS piece_to_start,
    f.next_piece.later_start AS later_start,
  coalesce(a.records, 0) AS again
FROM found f LEFT JOIN again a
  ON a.group_id = f.group_id AND a.topic = f.topic AND a.partition = f.partition AND a.target_topic = f.target_topic
    AND a.target_partition = f.target_partition
"""

BETWEEN = """
SELECT s.group_id, s.target_topic, s.target_partition, sum(greatest(0, least(p.to_start + p.end - p.start,
  s.to) - greatest(p.to_start, s.from))) AS records
FROM {spans} s JOIN {pieces} p ON p.to_topic = s.target_topic AND p.to_partition = s.target_partition
  AND p.to_start < s.to AND p.to_start + p.end - p.start > s.from
GROUP BY s.group_id, s.target_topic, s.target_partition
"""


def pieces(there: DataFrame, gaps: DataFrame, back: DataFrame, back_gaps: DataFrame) -> DataFrame:
    """The maps of both directions, seen from here.

    Args:
        there, gaps: rows of offset_syncs and gaps of the flow from here to there.
        back, back_gaps: those of the flow from there to here; empty where there is none.

    Returns:
        topic, partition, start, end (here), to_topic, to_partition, to_start (there), is_back: whether the records came
        from there.
    """
    from pyspark.sql import functions as F

    def with_name(rows: DataFrame, gaps: DataFrame) -> DataFrame:
        names = rows.groupBy("topic").agg(F.max_by("target_topic", "committed_at").alias("target_topic"))
        return current_runs(rows, gaps).join(F.broadcast(names), "topic")

    one = with_name(there, gaps).select(
        "topic",
        "partition",
        F.col("upstream_start").alias("start"),
        F.col("upstream_end").alias("end"),
        F.col("target_topic").alias("to_topic"),
        F.col("partition").alias("to_partition"),
        F.col("downstream_start").alias("to_start"),
        F.lit(False).alias("is_back"),
    )
    other = with_name(back, back_gaps).select(
        F.col("target_topic").alias("topic"),
        "partition",
        F.col("downstream_start").alias("start"),
        F.col("downstream_end").alias("end"),
        F.col("topic").alias("to_topic"),
        F.col("partition").alias("to_partition"),
        F.col("upstream_start").alias("to_start"),
        F.lit(True).alias("is_back"),
    )
    return one.unionByName(other)


def counterparts(positions: DataFrame, pieces: DataFrame, known: DataFrame) -> DataFrame:
    """Where each position goes on there.

    Args:
        positions: group_id, topic, partition, upstream_offset, metadata.
        pieces: both maps (`pieces`).
        known: one row for each partition here that has a place there: topic, partition, log_start and log_end (of the
            log here; null where it can't be asked), upstream_next and downstream_next (of the flow there: its slot's
            state; back_next and 0 where it doesn't carry this partition), back_next (where the log here ends of what
            the flow back has brought, by its states; 0 if it brings nothing or can't be asked), to_topic, to_partition
            (null where the flow there doesn't carry it).

    Returns:
        One row for each position and place there: group_id, topic, partition, upstream_offset, metadata, target_topic,
            target_partition, downstream_offset, status (`exact`, `clamped`,
        `before_mirror`), reason, mirrored_end (of all places there), is_complete (the ledger has what the states say),
        piece_start, piece_to_start and later_start (of the piece that was chosen, and the smallest place behind it;
        null past the last), again (records before the position whose place is at or behind downstream_offset).
    """
    return positions.sparkSession.sql(COUNTERPARTS, positions=positions, pieces=pieces, known=known, **WORDS)


def records_between(spans: DataFrame, pieces: DataFrame) -> DataFrame:
    """How many mapped records lie in stretches of the logs there.

    Args:
        spans: group_id, target_topic, target_partition, from, to (offsets there).

    Returns:
        group_id, target_topic, target_partition, records; none for spans without any.
    """
    return spans.sparkSession.sql(BETWEEN, spans=spans, pieces=pieces)


def by_definition(pairs: Iterable[tuple[int, int]], offset: int) -> tuple[int, int]:
    """The counterpart of an offset, and `again`, in their plainest form; `pairs` are the places of all records of a
    partition, (here, there)."""
    known = list(pairs)
    place = min(
        (there for here, there in known if here >= offset), default=max((there for _, there in known), default=-1) + 1
    )
    return place, sum(here < offset and there >= place for here, there in known)


def of_nobody(spark: SparkSession, like: DataFrame) -> DataFrame:
    """An empty frame with the columns of another."""
    empty: list[Any] = []
    return spark.createDataFrame(empty, like.schema)
