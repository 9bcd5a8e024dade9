"""Translates positions by the maps of both directions: the counterpart of an offset on the other cluster.

`translation/sql_join.py` uses the map of one flow. Both clusters may also write to the same topic, in turn or at the
same time. The log on the position's cluster then holds records of two kinds:

- records that were written on this cluster; the flow to the other cluster mirrors them;
- records that the flow back brought; their offset on the other cluster is the one that they came from.

*Pieces* cover both kinds: the runs of the flow to the other cluster, and the inverted runs of the flow back. A piece
maps offsets of the position's cluster to offsets of the other cluster, one to one.

The counterpart of an offset o is the smallest offset on the other cluster of any record at or after o. Past the last
piece, it is the end of all mapped offsets. A group that continues at its counterpart therefore skips no record that is
mapped. If the records of a partition have the same order on both clusters (one side writes at a time), the group also
reads no record twice. Otherwise the column `again` counts the records that the group has read and that lie at or after
its counterpart.

For a flow without a flow back, the result equals that of `sql_join.translate`, offset by offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from mirrorlake.partition_key import PartitionKey
from mirrorlake.translation import sql_join
from mirrorlake.translation.sql_join import current_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The log may be that of either cluster, so this reason does not name the source
WORDS: dict[str, Any] = {**sql_join.WORDS, "past_the_log": "past the end of the log"}

PIECES = (
    "topic STRING, partition INT, start BIGINT, end BIGINT, to_topic STRING, to_partition INT, to_start BIGINT, "
    "is_back BOOLEAN"
)
KNOWN = (
    "topic STRING, partition INT, log_start BIGINT, log_end BIGINT, upstream_next BIGINT, downstream_next BIGINT, "
    "back_next BIGINT, resumed_at BIGINT, back_resumed_at BIGINT, to_topic STRING, to_partition INT"
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
    min(start) FILTER (WHERE NOT is_back) AS own_start,
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
placed AS (
  SELECT p.group_id, p.topic, p.partition, p.upstream_offset, p.metadata, t.to_topic AS target_topic,
    t.to_partition AS target_partition, a.next_piece, e.first_start, e.own_start, e.last_end,
    k.log_start, k.log_end, k.upstream_next, k.downstream_next, k.resumed_at,
    greatest(coalesce(e.to_end, 0), coalesce(k.resumed_at, 0)) AS map_end,
    greatest(coalesce(e.mapped_there, 0), coalesce(k.resumed_at, 0)) >= k.downstream_next AS has_all_there,
    greatest(coalesce(e.mapped_back, 0), coalesce(k.back_resumed_at, 0)) >= k.back_next AS has_all_back,
    a.next_piece IS NULL AND (e.topic IS NULL OR coalesce(e.to_end < k.resumed_at, false)) AS has_no_piece
  FROM {positions} p
  JOIN {known} k ON k.topic = p.topic AND k.partition = p.partition
  JOIN places t ON t.topic = p.topic AND t.partition = p.partition
  LEFT JOIN answers a ON a.topic = t.topic AND a.partition = t.partition AND a.to_topic = t.to_topic
    AND a.to_partition = t.to_partition AND a.at = p.upstream_offset AND a.asks = 1
  LEFT JOIN ends e ON e.topic = t.topic AND e.partition = t.partition AND e.to_topic = t.to_topic
    AND e.to_partition = t.to_partition
),
ended AS (
  SELECT *, has_no_piece AND upstream_offset >= upstream_next AS is_at_end,
    CASE
      WHEN next_piece IS NULL AND resumed_at IS NOT NULL AND upstream_offset > log_end THEN {not_mirrored_yet}
      WHEN has_no_piece AND upstream_offset < upstream_next AND NOT has_all_there THEN {not_covered}
    END AS without_place
  FROM placed
),
found AS (
  SELECT *, (has_all_there OR is_at_end) AND has_all_back AS is_complete,
    CASE WHEN is_at_end THEN greatest(map_end, downstream_next) ELSE map_end END AS mirrored_end,
    CASE
      WHEN without_place IS NOT NULL THEN NULL
      WHEN is_at_end THEN greatest(map_end, downstream_next)
      WHEN next_piece IS NULL THEN map_end
      ELSE least(next_piece.to_start + greatest(0, upstream_offset - next_piece.start), next_piece.later_start)
    END AS downstream_offset
  FROM ended
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
    WHEN f.without_place IS NOT NULL THEN f.without_place
    WHEN f.next_piece IS NULL AND f.upstream_offset > coalesce(f.last_end, f.log_start, 0)
      AND NOT (f.upstream_offset <= f.upstream_next AND f.is_complete) THEN {clamped}
    WHEN f.upstream_offset < f.first_start THEN {before_mirror}
    ELSE {exact}
  END AS status,
  CASE
    WHEN f.without_place = {not_mirrored_yet} THEN {former_log}
    WHEN f.without_place = {not_covered} THEN {no_run}
    WHEN f.next_piece IS NULL AND f.upstream_offset > f.log_end THEN {past_the_log}
    WHEN f.next_piece IS NULL AND NOT f.is_complete THEN {ledger_behind}
    WHEN f.next_piece IS NULL AND f.upstream_offset > greatest(f.upstream_next, f.log_start)
      THEN {past_the_mirror}
  END AS reason,
  f.mirrored_end, f.is_complete, f.own_start, f.next_piece.start AS piece_start,
  f.next_piece.to_start AS piece_to_start, f.next_piece.later_start AS later_start,
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
    """Combines the maps of both directions into pieces.

    Args:
        there: rows of offset_syncs of the flow to the other cluster.
        gaps: rows of gaps of the same flow.
        back: rows of offset_syncs of the flow back; empty if it does not exist.
        back_gaps: rows of gaps of the flow back.

    Returns:
        Columns topic, partition, start, end (on the position's cluster), to_topic, to_partition, to_start (on the other
        cluster), is_back (true for records that the flow back brought).
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


def ranges_there(pieces: DataFrame, keys: Collection[PartitionKey]) -> dict[PartitionKey, list[tuple[int, int]]]:
    """Returns what a flow has written on the other cluster, as sorted ranges of offsets.

    Ranges with one offset between them are one range. That offset has the marker of the transaction before it, and each
    micro-batch leaves one.

    Args:
        pieces: the maps of both directions (`pieces`).
        keys: topics and partitions of the other cluster.
    """
    mine = pieces.filter("NOT is_back")
    return _merged(
        mine.selectExpr(
            "to_topic AS topic", "to_partition AS partition", "to_start AS from", "to_start + end - start AS to"
        ),
        keys,
    )


def ranges_brought(pieces: DataFrame, keys: Collection[PartitionKey]) -> dict[PartitionKey, list[tuple[int, int]]]:
    """Returns what the flow back has written on the position's cluster, as `ranges_there`.

    Args:
        pieces: the maps of both directions (`pieces`).
        keys: topics and partitions of the position's cluster.
    """
    return _merged(pieces.filter("is_back").selectExpr("topic", "partition", "start AS from", "end AS to"), keys)


def _merged(ranges: DataFrame, keys: Collection[PartitionKey]) -> dict[PartitionKey, list[tuple[int, int]]]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    wanted = ranges.filter(F.col("topic").isin(sorted({topic for topic, _ in keys})))
    before = Window.partitionBy("topic", "partition").orderBy("from")
    end = F.max("to").over(before.rowsBetween(Window.unboundedPreceding, -1))
    begins = wanted.withColumn("begins", (F.col("from") > end + 1).cast("int"))
    numbered = begins.withColumn("number", F.sum(F.coalesce("begins", F.lit(0))).over(before))
    merged = numbered.groupBy("topic", "partition", "number").agg(F.min("from").alias("from"), F.max("to").alias("to"))
    found: dict[PartitionKey, list[tuple[int, int]]] = {}
    for row in merged.orderBy("topic", "partition", "from").collect():
        found.setdefault((row["topic"], row["partition"]), []).append((row["from"], row["to"]))
    return found


def counterparts(positions: DataFrame, pieces: DataFrame, known: DataFrame) -> DataFrame:
    """Translates each position to its counterpart on the other cluster.

    Args:
        positions: columns group_id, topic, partition, upstream_offset, metadata.
        pieces: the maps of both directions (`pieces`).
        known: columns KNOWN, one row for each partition that has a counterpart. log_start and log_end are those of the
            log on the position's cluster; null if that cluster can't be reached. upstream_next and downstream_next come
            from the states of the flow to the other cluster. For a partition that it does not mirror, they are the
            log's end (back_next if that is unknown) and 0. back_next is the end, in the same log, of the records that
            the flow back has brought, by its states; it is 0 if there are none or the states can't be read. resumed_at
            and back_resumed_at are the ends of what the two flows had mirrored before the last reset of the partition
            (`sql_join.resumptions`), on the target of each; null without resets. to_topic and to_partition are null if
            the flow to the other cluster does not mirror the partition.

    Returns:
        One row for each position and target partition, with these columns:

        - group_id, topic, partition, upstream_offset, metadata: as in `positions`;
        - target_topic, target_partition, downstream_offset: the counterpart;
        - status (`exact`, `clamped`, `before_mirror`; `not_covered` and `not_mirrored_yet` without an offset, as
          `sql_join.translate` has them) and reason;
        - mirrored_end: end of all mapped offsets on the other cluster;
        - is_complete: true if the ledger has all that the states record;
        - own_start: the smallest start of a run of the flow to the other cluster; null without any;
        - piece_start, piece_to_start: both starts of the piece that was used; null past the last piece;
        - later_start: the smallest to_start of any later piece; null past the last piece;
        - again: number of records before the position that lie at or after downstream_offset.
    """
    return positions.sparkSession.sql(COUNTERPARTS, positions=positions, pieces=pieces, known=known, **WORDS)


def records_between(spans: DataFrame, pieces: DataFrame) -> DataFrame:
    """Counts the mapped records in ranges of the other cluster's logs.

    Args:
        spans: columns group_id, target_topic, target_partition, from, to (offsets on the other cluster).
        pieces: the maps of both directions (`pieces`).

    Returns:
        Columns group_id, target_topic, target_partition, records. Spans without mapped records have no row.
    """
    return spans.sparkSession.sql(BETWEEN, spans=spans, pieces=pieces)


def by_definition(pairs: Iterable[tuple[int, int]], offset: int) -> tuple[int, int]:
    """Returns the counterpart of an offset, and `again`, computed record by record.

    `pairs` are the offsets of all records of one partition: (on the position's cluster, on the other cluster).
    """
    known = list(pairs)
    place = min(
        (there for here, there in known if here >= offset), default=max((there for _, there in known), default=-1) + 1
    )
    return place, sum(here < offset and there >= place for here, there in known)
