"""Translates the positions of all groups and partitions of a flow in one SQL join.

A position becomes the downstream offset of the first mirrored record at or after its upstream offset:

- in a run: `downstream_start + (offset - upstream_start)`;
- in a gap (markers, aborted records): the next run's `downstream_start`;
- at the end of what is mirrored: the last run's `downstream_end`;
- past that end: the same offset, with status `clamped`; a later cycle translates the position again;
- before the first run: that run's start, with status `before_mirror`.

Only runs advance a group. The positions in the slots' states only show whether the end of the runs is the end of what
is mirrored. There is one exception: the present log of a partition has no run. It is new (a reset has made all earlier
runs void), all of its records were left out, or a take-over has matched none. Then:

- at or past the position in the states: the downstream offset of that position, as later records come after it;
- before it: the same offset, if the ledger shows that all records were left out; otherwise none (`not_covered`), or
  `before_mirror`, if the flow has begun behind it (`mirrorlake.start`);

Past the end of a log that has begun anew there is none (`not_mirrored_yet`), whether that log has runs or not. The
position belongs to the former log, and the end of the new one is behind records that the group has not read.

Each position needs one run: the first that ends after its offset, or else the last run of the partition. The query is
therefore an as-of join: one sort of positions and runs, without a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrorlake.ledger.sql_text import literals
from mirrorlake.model.gap import RESETS, GapKind
from mirrorlake.model.lag import lag
from mirrorlake.model.recent_runs import Nearby, RunOffsets
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.reasons import PositionReason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POSITIONS = "group_id STRING, topic STRING, partition INT, upstream_offset BIGINT, metadata STRING"
POSITION_NAMES = tuple(column.split()[0] for column in POSITIONS.split(", "))
RUN_START = "run_upstream_start"  # column of a translated position, null past the last run
MIRRORED = (
    "topic STRING, partition INT, target_topic STRING, log_start BIGINT, log_end BIGINT, upstream_next BIGINT, "
    "downstream_next BIGINT, resumed_at BIGINT, log_high BIGINT"
)

# The query names statuses and reasons by these keys; Spark quotes the values.
WORDS: dict[str, Any] = {
    **{
        status.value: status
        for status in (
            Status.EXACT,
            Status.CLAMPED,
            Status.BEFORE_MIRROR,
            Status.NOT_COVERED,
            Status.NOT_MIRRORED_YET,
        )
    },
    "past_the_log": PositionReason.PAST_THE_LOG,
    "ledger_behind": PositionReason.LEDGER_BEHIND,
    "past_the_mirror": PositionReason.PAST_THE_MIRROR,
    "former_log": PositionReason.FORMER_LOG,
    "no_run": PositionReason.NO_RUN,
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

RESUMPTIONS = """
SELECT topic, partition, max(coalesce(incarnation, 0)) AS incarnation,
  max_by(CASE WHEN kind = {target_recreated} THEN 0 ELSE downstream_offset END, coalesce(incarnation, 0)) AS resumed_at
FROM {gaps} WHERE kind IN ({kinds}) GROUP BY topic, partition
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
),
begun AS (
  SELECT topic, partition, min(from_offset) AS begins FROM {gaps} GROUP BY topic, partition
),
found AS (
  SELECT p.group_id, p.topic, p.partition, p.upstream_offset, p.metadata, m.topic IS NOT NULL AS is_mirrored,
    e.last_run IS NULL AND m.resumed_at IS NULL AND p.upstream_offset < least(b.begins, m.upstream_next) AS is_before,
    m.target_topic, m.partition AS target_partition, m.log_start, m.log_end, m.upstream_next, m.downstream_next,
    m.resumed_at, m.log_high, a.next_run, e.first_run, e.last_run,
    greatest(coalesce(e.last_run.downstream_end, 0), coalesce(m.resumed_at, 0)) AS ledger_end,
    a.next_run IS NULL
      AND (e.last_run IS NULL OR coalesce(e.last_run.downstream_end < m.resumed_at, false)) AS has_no_run
  FROM {positions} p
  LEFT JOIN {mirrored} m ON m.topic = p.topic AND m.partition = p.partition
  LEFT JOIN answers a ON a.topic = p.topic AND a.partition = p.partition AND a.at = p.upstream_offset AND a.asks = 1
  LEFT JOIN ends e ON e.topic = p.topic AND e.partition = p.partition
  LEFT JOIN begun b ON b.topic = p.topic AND b.partition = p.partition
),
ended AS (
  SELECT *,
    CASE WHEN has_no_run AND upstream_offset >= upstream_next THEN greatest(ledger_end, downstream_next)
      ELSE ledger_end END AS mirrored_end,
    CASE
      WHEN next_run IS NULL AND resumed_at IS NOT NULL AND upstream_offset > coalesce(log_high, log_end)
        THEN {not_mirrored_yet}
      WHEN has_no_run AND upstream_offset < upstream_next AND ledger_end < downstream_next THEN {not_covered}
    END AS without_place
  FROM found
)
SELECT
  group_id, topic, partition, upstream_offset, metadata, target_topic, target_partition,
  CASE
    WHEN NOT is_mirrored OR without_place IS NOT NULL THEN NULL
    WHEN next_run IS NOT NULL THEN next_run.downstream_start + greatest(0, upstream_offset - next_run.upstream_start)
    ELSE mirrored_end
  END AS downstream_offset,
  CASE
    WHEN NOT is_mirrored THEN NULL
    WHEN without_place IS NOT NULL THEN without_place
    WHEN next_run IS NULL AND upstream_offset > coalesce(last_run.upstream_end, log_start)
      AND NOT (upstream_offset <= upstream_next AND mirrored_end = downstream_next) THEN {clamped}
    WHEN is_before OR upstream_offset < first_run.upstream_start THEN {before_mirror}
    ELSE {exact}
  END AS status,
  CASE
    WHEN without_place = {not_mirrored_yet} THEN {former_log}
    WHEN without_place = {not_covered} THEN {no_run}
    WHEN next_run IS NULL AND upstream_offset > log_end THEN {past_the_log}
    WHEN mirrored_end < downstream_next AND next_run IS NULL THEN {ledger_behind}
    WHEN next_run IS NULL AND upstream_offset > greatest(upstream_next, log_start) THEN {past_the_mirror}
  END AS reason,
  greatest(0, log_end - upstream_offset) AS source_lag,
  next_run.upstream_start AS run_upstream_start, next_run.downstream_start AS run_downstream_start, mirrored_end
FROM ended
"""


class Mirrored(NamedTuple):
    """A row of MIRRORED: the log of one partition on the source, and how far the flow has mirrored it.

    Where nothing was copied yet, upstream_next is the log's start, and downstream_next is 0. After a reset, the records
    of the new log are at or after the target offset resumed_at (`resumptions`); it is None without resets. log_end is
    the last stable offset, and log_high the high watermark, up to which read_uncommitted groups commit (None: same).
    """

    topic: str
    partition: int
    target_topic: str
    log_start: int
    log_end: int
    upstream_next: int
    downstream_next: int
    resumed_at: int | None = None
    log_high: int | None = None


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


class Resumption(NamedTuple):
    """The last reset of a partition: the incarnation that it ended, and the target offset at which the new log begins.

    The offset is 0 where the remote topic was created anew.
    """

    incarnation: int
    resumed_at: int


def resumptions(gaps: DataFrame) -> dict[PartitionKey, Resumption]:
    """Returns the last reset of each partition that has any.

    Args:
        gaps: the flow's rows of gaps (topic, partition, kind, incarnation, downstream_offset).
    """
    query = RESUMPTIONS.replace("{kinds}", literals(RESETS))
    rows = gaps.sparkSession.sql(query, gaps=gaps, target_recreated=GapKind.TARGET_RECREATED).collect()
    return {(row["topic"], row["partition"]): Resumption(row["incarnation"], row["resumed_at"]) for row in rows}


def without_reset(
    incarnations: Mapping[PartitionKey, int], resumed: Mapping[PartitionKey, Resumption]
) -> set[PartitionKey]:
    """Returns the partitions whose last reset is not in the table gaps, which somebody must have emptied.

    Resets never expire. Without them, runs that are void would count as current.

    Args:
        incarnations: the number of resets of each partition, by the states.
        resumed: the last reset of each partition, by the table.
    """
    return {
        key
        for key, number in incarnations.items()
        if number and (key not in resumed or resumed[key].incarnation < number - 1)
    }


def translate(positions: DataFrame, runs: DataFrame, gaps: DataFrame, mirrored: DataFrame) -> DataFrame:
    """Translates group positions.

    Args:
        positions: columns POSITIONS.
        runs: the flow's runs that hold now (`current_runs`).
        gaps: the flow's rows of gaps (topic, partition, from_offset).
        mirrored: columns MIRRORED, one row for each partition of the flow (`Mirrored`).

    Returns:
        One row for each position. Its columns are those of the checkpoints table up to status, then reason and
        source_lag. For the gate, it also has run_upstream_start and run_downstream_start (of the run that was used;
        null past the last run) and mirrored_end. For positions outside the flow, target_topic, target_partition,
        downstream_offset and status are null. Positions with status `not_covered` or `not_mirrored_yet` have no
        downstream_offset.
    """
    return positions.sparkSession.sql(
        TRANSLATION, positions=positions, runs=runs, gaps=gaps, mirrored=mirrored, **WORDS
    )


def by_gaps_at_hand(position: Mapping[str, Any], mirrored: Mirrored, begins: int) -> dict[str, Any]:
    """Translates one position in a partition without any run or reset, with the same result as `translate`.

    Args:
        position: columns POSITION_NAMES.
        mirrored: the partition; its downstream_next is 0.
        begins: where the flow has begun: the start of its first gap.
    """
    start = mirrored.log_start
    nothing = RunOffsets(start, start, 0, 0)
    found = by_runs_at_hand(position, mirrored, Nearby(None, nothing))
    is_before = position["upstream_offset"] < min(begins, mirrored.upstream_next)
    return found | ({"status": Status.BEFORE_MIRROR} if is_before else {})


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
            reason = PositionReason.PAST_THE_LOG
        elif last.downstream_end < mirrored.downstream_next:
            reason = PositionReason.LEDGER_BEHIND
        elif offset > max(mirrored.upstream_next, mirrored.log_start):
            reason = PositionReason.PAST_THE_MIRROR
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
