"""Counts the records ahead of a group that it will never see on the target.

They were before the flow's first run (`mirrorlake.start`), were lost on the way (gaps with a kind of `gap.LOSS`), or
were deleted on the target by retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mirrorlake.ledger.sql_text import literals
from mirrorlake.model.gap import LOSS, RESETS
from mirrorlake.partition_key import PartitionKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPANS = (
    "group_id STRING, topic STRING, partition INT, target_topic STRING, target_partition INT, upstream_offset BIGINT, "
    "log_start BIGINT, first_start BIGINT, target_start BIGINT"
)
LOST = """
WITH spans AS (SELECT *, greatest(upstream_offset, log_start) AS from FROM {spans}),
lost AS (
  SELECT s.group_id, s.topic, s.partition, s.target_topic, s.target_partition,
    sum(g.to_offset - greatest(g.from_offset, s.upstream_offset)) FILTER (WHERE g.kind IN ({loss})) AS lost,
    concat_ws(', ', sort_array(collect_set(g.kind) FILTER (WHERE g.kind IN ({loss})))) AS kinds,
    sum(greatest(0, least(g.to_offset, s.first_start) - greatest(g.from_offset, s.from))) AS covered
  FROM spans s JOIN {gaps} g ON g.topic = s.topic AND g.partition = s.partition AND g.to_offset > s.upstream_offset
    AND (g.kind IN ({loss}) OR g.from_offset < s.first_start)
  GROUP BY s.group_id, s.topic, s.partition, s.target_topic, s.target_partition
),
expired AS (
  SELECT s.group_id, s.topic, s.partition, s.target_topic, s.target_partition,
    sum(greatest(0, least(p.to_start + p.end - p.start, s.target_start) - p.to_start
      - greatest(0, s.from - p.start))) AS expired
  FROM spans s JOIN {pieces} p ON p.topic = s.topic AND p.partition = s.partition AND p.to_topic = s.target_topic
    AND p.to_partition = s.target_partition AND p.to_start < s.target_start AND p.end > s.from
  GROUP BY s.group_id, s.topic, s.partition, s.target_topic, s.target_partition
)
SELECT s.group_id, s.topic, s.partition, s.target_topic, s.target_partition,
  greatest(0, coalesce(s.first_start - s.from, 0) - coalesce(l.covered, 0)) AS before_mirror,
  coalesce(l.lost, 0) AS lost, coalesce(l.kinds, '') AS kinds, coalesce(e.expired, 0) AS expired
FROM spans s
LEFT JOIN lost l ON l.group_id = s.group_id AND l.topic = s.topic AND l.partition = s.partition
  AND l.target_topic = s.target_topic AND l.target_partition = s.target_partition
LEFT JOIN expired e ON e.group_id = s.group_id AND e.topic = s.topic AND e.partition = s.partition
  AND e.target_topic = s.target_topic AND e.target_partition = s.target_partition
"""


@dataclass(frozen=True, slots=True)
class Losses:
    """The source offsets at or after a group's position whose records it never sees on the target.

    Attributes:
        before_mirror: offsets before the first run that no gap explains.
        lost: offsets in gaps of a kind of `gap.LOSS`; transaction markers may be among them.
        kinds: these kinds, with commas.
        expired: mirrored records that retention has deleted on the target, and not on the source as far as is known.
    """

    before_mirror: int = 0
    lost: int = 0
    kinds: str = ""
    expired: int = 0

    @property
    def offsets(self) -> int:
        return self.before_mirror + self.lost + self.expired


SpanKey = tuple[str, PartitionKey, PartitionKey]  # group, and topics and partitions of source and target


class Span(NamedTuple):
    """A row of SPANS: a position and its place.

    `log_start` is the start of the source's log; None if it is unknown. `first_start` is the first source offset that
    the flow has mirrored to the place's log, or the flow's position if no record is; None if neither is known, or if
    the flow does not mirror the topic there. `target_start` is the start of that log.
    """

    group_id: str
    topic: str
    partition: int
    target_topic: str
    target_partition: int
    upstream_offset: int
    log_start: int | None
    first_start: int | None
    target_start: int | None

    @property
    def key(self) -> SpanKey:
        return self.group_id, (self.topic, self.partition), (self.target_topic, self.target_partition)


def losses_ahead(
    spark: SparkSession, spans: Iterable[Span], gaps: DataFrame, pieces: DataFrame
) -> dict[SpanKey, Losses]:
    """Counts what each group will never see.

    Args:
        spark: a session.
        spans: positions with their places.
        gaps: the flow's gaps that hold now (view `current_gaps`).
        pieces: the maps of both directions (`two_way.pieces`).

    Returns:
        Losses by group, by topic and partition of the source, and by topic and partition of the target.
    """
    rows = list(spans)
    if not rows:
        return {}
    query = LOST.replace("{loss}", literals(kind for kind in LOSS if kind not in RESETS))
    found = spark.sql(query, spans=spark.createDataFrame(rows, SPANS), gaps=gaps, pieces=pieces).collect()
    return {
        (row["group_id"], (row["topic"], row["partition"]), (row["target_topic"], row["target_partition"])): Losses(
            row["before_mirror"], row["lost"], row["kinds"], row["expired"]
        )
        for row in found
    }
