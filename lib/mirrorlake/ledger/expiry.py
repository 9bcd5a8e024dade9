"""Expiry: selects the rows of the ledger that no query needs any more.

Runs and gaps expire from the beginning of a partition, up to one offset. The map therefore has no holes, and the
expired part is answered with `before_mirror`. That offset is at most the smallest of these:

- the smallest offset of any live group (a group is live until its newest checkpoint has the status deleted);
- the start of the source's log;
- the first run that is younger than the retention;
- the run that is the bookmark of the ledger's stream (the newest row of each partition of the offset-syncs topic).

If the start of the log is unknown, nothing expires. The last run of a partition never expires. Resets never expire,
because they show which earlier rows are void.

Of checkpoints, the rows stay that were valid at the beginning of the retention time, and all later ones. For each
position, the last row whose sync outcome is settled stays, too. The checkpoint job recognises a rewind by that row. Of
a group that was deleted before that time, the row of its deletion stays, and none of its positions.

Of counts, the last counting of each topic stays, and of an hour all rows or none. Of lag_samples, the newest row of
each flow stays; of cycles, that of each of its jobs. Of verifications, those stay that `incremental` continues from,
and those with differences that no later one has refuted. Operators' decisions (anomalies), and ACLs and configurations
(topology_changes) never expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.ledger import views
from mirrorlake.ledger.sql_text import literals
from mirrorlake.ledger.store import Ledger, standing_differences
from mirrorlake.model.anomaly import AnomalyAction
from mirrorlake.model.gap import RESETS
from mirrorlake.model.status import SETTLED, Status
from mirrorlake.protocol.topic_changes import OF_CONFIGS, UNANSWERED, ChangeKind, ChangeOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION = ("source", "target", "topic", "partition")
LOG_STARTS = "source STRING, target STRING, topic STRING, partition INT, log_start BIGINT"
LogStart = tuple[str, str, str, int, int]  # source, target, topic, partition, first offset of the source's log

OF_ACLS = (ChangeKind.CREATE_ACL, ChangeKind.DELETE_ACL)
# Tables whose rows expire by age, with the column of their time, and the rows that expire.
AGED = {
    "expectation_results": ("evaluated_at", "true"),
    # Any other action is an operator's decision, by which a failback goes on.
    "anomalies": ("detected_at", f"(action IS NULL OR action IN ({literals(AnomalyAction)}))"),
    # Only ACLs that mirrorlake has created are ever deleted (`Ledger.granted_acls`), and only properties that it has
    # set are reset (`Ledger.set_configs`).
    "topology_changes": (
        "changed_at",
        f"(kind NOT IN ({literals((*OF_ACLS, *OF_CONFIGS))}) OR "
        f"NOT (outcome = '{ChangeOutcome.APPLIED}' OR startswith(outcome, '{UNANSWERED}')))",
    ),
}
# Tables of which the newest row for some columns stays: it tells since when there is none. With the column of the time.
NEWEST = {
    "lag_samples": ("measured_at", ("source", "target")),
    "cycles": ("finished_at", ("source", "target", "job")),
}


@dataclass(frozen=True)
class Expiry:
    """The rows `t` of one table that expire by `condition`.

    If `needs` is given, the condition also refers to a row `s` of that frame. `leaves` are rows of the table
    expired_ranges, which are appended first: they tell afterwards what has expired.
    """

    table: str
    condition: str
    needs: DataFrame | None = None
    leaves: DataFrame | None = None

    def count(self, ledger: Ledger) -> int:
        """Counts the rows that would expire."""
        if self.needs is None:
            return ledger.read(self.table).alias("t").filter(self.condition).count()
        statement = f"SELECT count(*) AS rows FROM {ledger.table(self.table)} t JOIN {{s}} s ON {self.condition}"
        return int(ledger.spark.sql(statement, s=self.needs).collect()[0]["rows"])

    def apply(self, ledger: Ledger) -> int:
        """Deletes the expired rows; returns their number."""
        if self.leaves is not None:
            ledger.append_frame("expired_ranges", self.leaves)
        if self.needs is None:
            (row,) = ledger.change(self.table, f"DELETE FROM {ledger.table(self.table)} t WHERE {self.condition}")
        else:
            statement = (
                f"MERGE INTO {ledger.table(self.table)} t USING {{s}} s ON {self.condition} WHEN MATCHED THEN DELETE"
            )
            (row,) = ledger.change(self.table, statement, s=self.needs)
        return int(row["num_affected_rows"])


def of_map(ledger: Ledger, before: datetime, log_starts: Iterable[LogStart]) -> list[Expiry]:
    """Selects the expired rows of gaps and offset_syncs, for partitions whose log start on the source is known.

    Args:
        ledger: the ledger.
        before: rows committed at this time or later stay.
        log_starts: the log start offsets of source partitions.
    """
    starts = list(log_starts)
    if not starts:
        return []
    limits = _limits(
        ledger, before, ledger.spark.createDataFrame(starts, LOG_STARTS)
    ).localCheckpoint()  # computed once: a merge reads it twice, and both tables use it
    same = " AND ".join(f"t.{column} = s.{column}" for column in PARTITION)
    is_old = f"t.committed_at < {_time(before)}"  # a log that begins anew meanwhile has the same offsets
    return [
        Expiry("offset_syncs", f"{same} AND t.upstream_end <= s.expires AND {is_old}", limits, _leaves(ledger, limits)),
        Expiry(
            "gaps", f"{same} AND t.to_offset <= s.expires AND t.kind NOT IN ({literals(RESETS)}) AND {is_old}", limits
        ),
    ]


def of_checkpoints(ledger: Ledger, before: datetime) -> Expiry:
    """Selects the expired rows of checkpoints.

    Of a group that was deleted before that time, no position was valid then: the row of its deletion stays.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns = ("source", "target", "group_id", "topic", "partition")
    rows = ledger.read("checkpoints")
    is_old = rows.created_at < F.expr(_time(before))
    is_end = rows.topic.isNull() & (rows.status == Status.DELETED)
    of_group = Window.partitionBy("source", "target", "group_id")
    needs = (
        rows.groupBy(*columns)
        .agg(
            F.max(F.when(is_old, rows.created_at)).alias("then"),
            F.max(F.when(rows.sync.isin(*SETTLED), rows.created_at)).alias("settled"),
            F.max(F.when(is_old & is_end, rows.created_at)).alias("end"),
        )
        .withColumn("ended", F.max("end").over(of_group))
        .drop("end")
    )
    same = " AND ".join(f"t.{column} <=> s.{column}" for column in columns)
    is_expired = "t.created_at < s.then AND NOT t.created_at <=> s.settled"
    is_of_ended = "t.topic IS NOT NULL AND t.created_at <= s.ended"
    return Expiry(
        "checkpoints", f"{same} AND ({is_expired} OR coalesce({is_of_ended}, false))", needs.localCheckpoint()
    )


def of_counts(ledger: Ledger, before: datetime) -> Expiry:
    """Selects the expired counts: of hours that ended before a time, and were counted last before it.

    The last counting of a topic stays: the next one goes on from it. So do all other rows of its hours: source and
    target may have been counted at different times, and one without the other would be a surplus.
    """
    from pyspark.sql import functions as F

    topic = ("source", "target", "topic")
    rows = ledger.read("counts")
    newest = rows.groupBy(*topic).agg(F.max("counting").alias("newest"))
    hours = rows.groupBy(*topic, "window_start").agg(
        F.max("counting").alias("last"), F.max("counted_at").alias("last_at")
    )
    same = " AND ".join(f"t.{column} <=> s.{column}" for column in (*topic, "window_start"))
    old = f"t.counted_at < {_time(before)} AND coalesce(t.window_end, t.counted_at) < {_time(before)}"
    whole = f"(t.window_start IS NULL OR s.last < s.newest AND s.last_at < {_time(before)})"
    return Expiry(
        "counts",
        f"{same} AND {old} AND {whole} AND t.counting < s.newest",
        hours.join(newest, [*topic]).localCheckpoint(),
    )


def of_age(ledger: Ledger, table: str, before: datetime) -> Expiry:
    """Selects the rows of a table in `AGED` or `NEWEST` that are older than a time."""
    from pyspark.sql import functions as F

    if table in AGED:
        time, condition = AGED[table]
        return Expiry(table, f"{time} < {_time(before)} AND {condition}")
    time, columns = NEWEST[table]
    newest = ledger.read(table).groupBy(*columns).agg(F.max(time).alias("newest"))
    same = " AND ".join(f"t.{column} = s.{column}" for column in columns)
    return Expiry(table, f"{same} AND t.{time} < {_time(before)} AND t.{time} < s.newest", newest.localCheckpoint())


def of_verifications(ledger: Ledger, before: datetime) -> list[Expiry]:
    """Selects the expired verifications, each as a whole, and their findings.

    Of each partition, the last `full` or `incremental` one stays that passed, the last one that found nothing left to
    compare, and what has found a difference that stands. Other ranges that only the expired ones covered are unverified
    afterwards.
    """
    from pyspark.sql import functions as F

    rows = ledger.read("verifications")
    # Those with nothing left to compare stay apart from those that passed: they have ended differences.
    ended = F.col("status").isin("nothing_new", "not_comparable")
    of_map = F.col("mode").isin("full", "incremental") & (F.col("passed") | ended)
    one = F.struct("verification_id", "finished_at")
    is_of_all = F.col("topics").isNull() & ~F.coalesce("pinned", F.lit(False))  # as of `Ledger.verified_at`
    last = (
        rows.filter(of_map)
        .groupBy(*PARTITION, "target_topic", "target_partition", "passed", is_of_all.alias("is_of_all"))
        .agg(
            F.max_by(one, "finished_at").alias("newest"),
            F.max_by(one, F.struct("upstream_to", "finished_at")).alias("furthest"),
        )
    )
    passed = last.select(F.explode(F.array("newest", "furthest")).alias("one"))
    standing = (
        standing_differences(rows)
        .groupBy(*PARTITION, "upstream_from")  # a later one of these includes the earlier ones
        .agg(F.max_by("verification_id", "finished_at").alias("verification_id"))
    )
    kept = passed.select("one.verification_id").unionByName(standing.select("verification_id"))
    ids = (
        rows.groupBy("verification_id")
        .agg(F.max("finished_at").alias("finished_at"))
        .filter(f"finished_at < {_time(before)}")
        .join(kept, "verification_id", "left_anti")
        .localCheckpoint()
    )
    return [
        Expiry(name, "t.verification_id = s.verification_id", ids)
        for name in ("verification_findings", "verifications")
    ]


def _limits(ledger: Ledger, before: datetime, starts: DataFrame) -> DataFrame:
    """Computes `expires` of each partition: runs and gaps that end at or before it may expire.

    A run begins there or behind it, and no later than the limit. A group in a gap behind the expired part is therefore
    still behind a run. A folded row expires as a whole, so no row that holds goes across that offset (`_cuts`).
    """
    from pyspark.sql import functions as F

    rows, runs, groups = (
        ledger.read("offset_syncs"),
        views.read(ledger, "current_runs", folded=True),
        views.read(ledger, "current_position"),
    )
    wanted = (
        groups.filter(groups.status != Status.DELETED).groupBy(*PARTITION).agg(F.min("upstream_offset").alias("wanted"))
    )
    young = rows.groupBy(*PARTITION).agg(
        F.min(F.when(rows.committed_at >= F.expr(_time(before)), rows.upstream_start)).alias("young")
    )
    newest = rows.groupBy("source", "target", "sync_partition").agg(
        F.max(F.struct("sync_offset", "topic", "partition", "upstream_start")).alias("row")
    )
    bookmarks = (
        newest.select("source", "target", "row.topic", "row.partition", "row.upstream_start")
        .groupBy(*PARTITION)
        .agg(F.min("upstream_start").alias("bookmark"))
    )
    limits = starts
    for frame in (wanted, young, bookmarks):
        limits = limits.join(frame, [*PARTITION], "left")
    limits = limits.select(*PARTITION, F.least("log_start", "wanted", "young", "bookmark").alias("limit"))
    begins = (
        runs.join(limits, [*PARTITION])
        .filter("upstream_start <= limit")
        .groupBy(*PARTITION)
        .agg(F.max("upstream_start").alias("begin"), F.max_by("incarnation", "upstream_start").alias("incarnation"))
    )
    cuts = _cuts(ledger, begins).groupBy(*PARTITION).agg(F.max("start").alias("expires"))
    return begins.join(cuts, [*PARTITION]).select(*PARTITION, "expires", "incarnation")


def _cuts(ledger: Ledger, begins: DataFrame) -> DataFrame:
    """Returns the starts of rows at which all rows before them end, up to `begin` of each partition.

    The rows of one state may lie within each other: a folded row of gaps begins and ends anywhere in the runs, a loss
    has a row of its own, and a transform that sets partitions makes a row for each of them. If some of these rows
    expired without the others, the map would have a hole, which nothing explains.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def rows(name: str, start: str, end: str) -> DataFrame:
        same, incarnation = [*PARTITION, "incarnation", "start"], F.coalesce("incarnation", F.lit(0))
        holds = views.read(ledger, f"current_{name}", folded=True).withColumnRenamed(start, "start").select(*same)
        table = ledger.read(views.UNFOLDED[f"offset_sync_{name}"])  # where a reset has not made the ends smaller
        found = table.select(
            *PARTITION, incarnation.alias("incarnation"), F.col(start).alias("start"), F.col(end).alias("end")
        )
        before = found.join(begins.select(*PARTITION, "begin"), [*PARTITION]).filter("start <= begin")
        return before.join(holds, same, "left_semi").select(*PARTITION, "start", "end")

    found = rows("runs", "upstream_start", "upstream_end").unionByName(rows("gaps", "from_offset", "to_offset"))
    order = Window.partitionBy(*PARTITION).orderBy("start").rangeBetween(Window.unboundedPreceding, -1)
    return found.withColumn("reached", F.max("end").over(order)).filter("coalesce(reached <= start, true)")


def _leaves(ledger: Ledger, limits: DataFrame) -> DataFrame:
    """Returns the rows of expired_ranges for partitions of which something expires."""
    from pyspark.sql import functions as F

    current = (
        views.read(ledger, name, folded=True).select(*PARTITION, F.col(start).alias("start"), F.col(end).alias("end"))
        for name, start, end in (
            ("current_runs", "upstream_start", "upstream_end"),
            ("current_gaps", "from_offset", "to_offset"),
        )
    )
    rows = (
        next(current).unionByName(next(current)).join(limits, [*PARTITION]).filter("start < expires AND end <= expires")
    )
    rows = rows.select(*PARTITION, "expires", "incarnation").distinct()
    return rows.select(
        *PARTITION, "incarnation", F.col("expires").alias("to_offset"), F.current_timestamp().alias("expired_at")
    )


def _time(when: datetime) -> str:
    return f"TIMESTAMP '{when:%Y-%m-%d %H:%M:%S}'"
