"""Translates the positions of all groups and partitions of a flow in one SQL join.

A position becomes the downstream offset of the first mirrored record at or after its upstream offset:

- in a run: `downstream_start + (offset - upstream_start)`;
- in a gap (markers, aborted records): the next run's `downstream_start`;
- at the end of what is mirrored: the last run's `downstream_end`;
- past that end: the same offset, with status `clamped`; a later cycle translates the position again;
- before the first run: that run's start, with status `before_mirror`;
- without any run in the ledger: the start of the remote partition, so that no record there is skipped.

Only runs advance a group. The positions in the slots' states only show whether the end of the runs is the end of what
is mirrored.

Each position needs one run: the first that ends after its offset, or else the last run of the partition. The query is
therefore an as-of join: one sort of positions and runs, without a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrorlake.ledger.sql_text import literals
from mirrorlake.model.gap import RESETS
from mirrorlake.model.lag import lag
from mirrorlake.model.status import Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.model.recent_runs import Nearby

POSITIONS = "group_id STRING, topic STRING, partition INT, upstream_offset BIGINT, metadata STRING"
POSITION_NAMES = tuple(column.split()[0] for column in POSITIONS.split(", "))
MIRRORED = (
    "topic STRING, partition INT, target_topic STRING, log_start BIGINT, log_end BIGINT, upstream_next BIGINT, "
    "downstream_next BIGINT"
)
PAST_THE_LOG = "past the end of the source log"
LEDGER_BEHIND = "the ledger is behind the mirror"
PAST_THE_MIRROR = "past what is mirrored"

# The query names statuses and reasons by these keys; Spark quotes the values.
WORDS: dict[str, Any] = {
    **{status.value: status for status in (Status.EXACT, Status.CLAMPED, Status.BEFORE_MIRROR)},
    "past_the_log": PAST_THE_LOG,
    "ledger_behind": LEDGER_BEHIND,
    "past_the_mirror": PAST_THE_MIRROR,
}

CURRENT_RUNS = """
WITH resets AS (
  SELECT topic, partition, collect_list(struct(incarnation, from_offset)) AS resets FROM {gaps} WHERE kind IN ({kinds})
    GROUP BY topic, partition
),
limited AS (
  SELECT r.*, coalesce(array_min(transform(filter(z.resets, x -> x.incarnation >= coalesce(r.incarnation, 0)),
    x -> x.from_offset)), r.upstream_end) AS limit
  FROM {runs} r LEFT JOIN resets z ON z.topic = r.topic AND z.partition = r.partition
)
SELECT topic, partition, upstream_start, least(upstream_end, limit) AS upstream_end, downstream_start,
  least(downstream_end, downstream_start + limit - upstream_start) AS downstream_end
FROM limited WHERE upstream_start < limit
"""

TRANSLATION = """
WITH runs AS (
  SELECT topic, partition, upstream_start, struct(upstream_start, upstream_end, downstream_start,
    downstream_end) AS run FROM {runs}
),
ends AS (
  SELECT topic, partition, min_by(run, upstream_start) AS first_run, max_by(run, upstream_start) AS last_run FROM runs
    GROUP BY topic, partition
),
events AS (
  SELECT topic, partition, run.upstream_end AS at, 0 AS asks, run FROM runs
  UNION ALL
  SELECT DISTINCT topic, partition, upstream_offset, 1, NULL FROM {positions}
),
-- Downwards from the end of the log; at one offset the question comes before the run that ends there, which is behind
-- it.
answers AS (
  SELECT topic, partition, at, asks, last_value(run, true) OVER (PARTITION BY topic, partition ORDER BY at DESC,
    asks DESC ROWS UNBOUNDED PRECEDING) AS next_run
  FROM events
)
SELECT
  p.group_id, p.topic, p.partition, p.upstream_offset, p.metadata, m.target_topic, m.partition AS target_partition,
  CASE
    WHEN m.topic IS NULL THEN NULL
    WHEN a.next_run IS NOT NULL THEN a.next_run.downstream_start + greatest(0,
      p.upstream_offset - a.next_run.upstream_start)
    ELSE coalesce(e.last_run.downstream_end, 0)
  END AS downstream_offset,
  CASE
    WHEN m.topic IS NULL THEN NULL
    WHEN a.next_run IS NULL AND p.upstream_offset > coalesce(e.last_run.upstream_end, m.log_start)
      AND NOT (p.upstream_offset <= m.upstream_next AND coalesce(e.last_run.downstream_end, 0) = m.downstream_next)
        THEN {clamped}
    WHEN p.upstream_offset < e.first_run.upstream_start THEN {before_mirror}
    ELSE {exact}
  END AS status,
  CASE
    WHEN a.next_run IS NULL AND p.upstream_offset > m.log_end THEN {past_the_log}
    WHEN coalesce(e.last_run.downstream_end, 0) < m.downstream_next AND a.next_run IS NULL THEN {ledger_behind}
    WHEN a.next_run IS NULL AND p.upstream_offset > greatest(m.upstream_next, m.log_start) THEN {past_the_mirror}
  END AS reason,
  greatest(0, m.log_end - p.upstream_offset) AS source_lag,
  a.next_run.upstream_start AS run_upstream_start, a.next_run.downstream_start AS run_downstream_start,
  coalesce(e.last_run.downstream_end, 0) AS mirrored_end
FROM {positions} p
LEFT JOIN {mirrored} m ON m.topic = p.topic AND m.partition = p.partition
LEFT JOIN answers a ON a.topic = p.topic AND a.partition = p.partition AND a.at = p.upstream_offset AND a.asks = 1
LEFT JOIN ends e ON e.topic = p.topic AND e.partition = p.partition
"""


class Mirrored(NamedTuple):
    """A row of MIRRORED: the log of one partition on the source, and how far the flow has mirrored it.

    Where nothing was copied yet, upstream_next is the log's start, and downstream_next is 0.
    """

    topic: str
    partition: int
    target_topic: str
    log_start: int
    log_end: int
    upstream_next: int
    downstream_next: int


def current_runs(runs: DataFrame, gaps: DataFrame) -> DataFrame:
    """Returns the runs that hold now: without the offsets that later resets (`gap.RESETS`) have made void.

    Args:
        runs: the flow's rows of offset_syncs (topic, partition, the four offsets, incarnation).
        gaps: the flow's rows of gaps (topic, partition, kind, from_offset, incarnation).

    Returns:
        Columns topic, partition, upstream_start, upstream_end, downstream_start, downstream_end. In each partition, the
        runs ascend on both sides.
    """
    return runs.sparkSession.sql(CURRENT_RUNS.replace("{kinds}", literals(RESETS)), runs=runs, gaps=gaps)


def translate(positions: DataFrame, runs: DataFrame, mirrored: DataFrame) -> DataFrame:
    """Translates group positions.

    Args:
        positions: columns POSITIONS.
        runs: the flow's runs that hold now (`current_runs`).
        mirrored: columns MIRRORED, one row for each partition of the flow (`Mirrored`).

    Returns:
        One row for each position. Its columns are those of the checkpoints table up to status, then reason and
        source_lag. For the gate, it also has run_upstream_start and run_downstream_start (of the run that was used;
        null past the last run) and mirrored_end. For positions outside the flow, target_topic, target_partition,
        downstream_offset and status are null.
    """
    return positions.sparkSession.sql(TRANSLATION, positions=positions, runs=runs, mirrored=mirrored, **WORDS)


def by_runs_at_hand(position: Mapping[str, Any], mirrored: Mirrored, near: Nearby) -> dict[str, Any]:
    """Translates one position by the recent runs of its partition, with the same result as `translate`.

    At least one of these runs must begin at or before the position.
    """
    offset, run, last = position["upstream_offset"], near.run, near.last
    status, reason = Status.EXACT, None
    if run is None:
        is_passed = offset <= mirrored.upstream_next and last.downstream_end == mirrored.downstream_next
        status = Status.EXACT if offset <= last.upstream_end or is_passed else Status.CLAMPED
        if offset > mirrored.log_end:
            reason = PAST_THE_LOG
        elif last.downstream_end < mirrored.downstream_next:
            reason = LEDGER_BEHIND
        elif offset > max(mirrored.upstream_next, mirrored.log_start):
            reason = PAST_THE_MIRROR
    return {
        **{name: position[name] for name in POSITION_NAMES},
        "target_topic": mirrored.target_topic,
        "target_partition": mirrored.partition,
        "downstream_offset": last.downstream_end
        if run is None
        else run.downstream_start + max(0, offset - run.upstream_start),
        "status": status,
        "reason": reason,
        "source_lag": lag(mirrored.log_end, offset),
        "run_upstream_start": run and run.upstream_start,
        "run_downstream_start": run and run.downstream_start,
        "mirrored_end": last.downstream_end,
    }
