"""Which rows of the ledger nobody needs any more.

Runs and gaps go from the beginning of a partition only, up to one offset, so that the map has no holes and what is
asked about the part that is gone is answered `before_mirror`. That is no further than the smallest of: what any live
group still wants (a group is live until its newest checkpoint says deleted), the start of the source's log, the first
run that is younger than asked for, and the run that is the bookmark of the ledger's stream (the newest row of each
partition of the offset-syncs topic). Where the start of the log isn't known, nothing goes, and the last run of a
partition never does. Resets stay for ever: they say what the rows before them mean.

Of checkpoints stays what held at the beginning of the time that is kept, and what came after; and of each position the
last row that left the target where the job had put it, by which the job recognises a rewind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.ledger import views
from mirrorlake.ledger.sql_text import literals
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.gap import RESETS
from mirrorlake.model.status import SETTLED, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION = ("source", "target", "topic", "partition")
LOG_STARTS = "source STRING, target STRING, topic STRING, partition INT, log_start BIGINT"
LogStart = tuple[str, str, str, int, int]  # source, target, topic, partition, first offset of the source's log

# Tables whose rows simply get old, by their time.
AGED = {
    "expectation_results": "evaluated_at",
    "anomalies": "detected_at",
    "topology_changes": "changed_at",
    "cycles": "finished_at",
}


@dataclass(frozen=True)
class Expiry:
    """What goes from one table: rows `t` for which `condition` holds, with a row `s` of `needs` where there is one."""

    table: str
    condition: str
    needs: DataFrame | None = None

    def count(self, ledger: Ledger) -> int:
        """How many rows would go."""
        if self.needs is None:
            return ledger.read(self.table).alias("t").filter(self.condition).count()
        statement = f"SELECT count(*) AS rows FROM {ledger.table(self.table)} t JOIN {{s}} s ON {self.condition}"
        return int(ledger.spark.sql(statement, s=self.needs).collect()[0]["rows"])

    def apply(self, ledger: Ledger) -> int:
        """Removes them; returns how many there were."""
        if self.needs is None:
            (row,) = ledger.change(self.table, f"DELETE FROM {ledger.table(self.table)} t WHERE {self.condition}")
        else:
            statement = (
                f"MERGE INTO {ledger.table(self.table)} t USING {{s}} s ON {self.condition} WHEN MATCHED THEN DELETE"
            )
            (row,) = ledger.change(self.table, statement, s=self.needs)
        return int(row["num_affected_rows"])


def of_map(ledger: Ledger, before: datetime, log_starts: Iterable[LogStart]) -> list[Expiry]:
    """What goes from gaps and offset_syncs, as far as the start of the source's log is known.

    Args:
        before: rows committed since then stay.
    """
    starts = list(log_starts)
    if not starts:
        return []
    limits = _limits(
        ledger, before, ledger.spark.createDataFrame(starts, LOG_STARTS)
    ).localCheckpoint()  # once: a merge reads it twice, and both tables go by it
    same = " AND ".join(f"t.{column} = s.{column}" for column in PARTITION)
    return [
        Expiry("gaps", f"{same} AND t.to_offset <= s.expires AND t.kind NOT IN ({literals(RESETS)})", limits),
        Expiry("offset_syncs", f"{same} AND t.upstream_end <= s.expires", limits),
    ]


def of_checkpoints(ledger: Ledger, before: datetime) -> Expiry:
    """What goes from checkpoints."""
    from pyspark.sql import functions as F

    columns = ("source", "target", "group_id", "topic", "partition")
    rows = ledger.read("checkpoints")
    needs = rows.groupBy(*columns).agg(
        F.max(F.when(rows.created_at < F.expr(_time(before)), rows.created_at)).alias("then"),
        F.max(F.when(rows.sync.isin(*SETTLED), rows.created_at)).alias("settled"),
    )
    same = " AND ".join(f"t.{column} <=> s.{column}" for column in columns)
    return Expiry(
        "checkpoints", f"{same} AND t.created_at < s.then AND NOT t.created_at <=> s.settled", needs.localCheckpoint()
    )


def of_age(table: str, before: datetime) -> Expiry:
    """What goes from a table whose rows simply get old."""
    return Expiry(table, f"{AGED[table]} < {_time(before)}")


def of_verifications(ledger: Ledger, before: datetime) -> list[Expiry]:
    """What goes from verifications, as a whole, and their findings. What only they had covered is unverified then."""
    from pyspark.sql import functions as F

    ids = (
        ledger.read("verifications")
        .groupBy("verification_id")
        .agg(F.max("finished_at").alias("finished_at"))
        .filter(f"finished_at < {_time(before)}")
        .localCheckpoint()
    )
    return [
        Expiry(name, "t.verification_id = s.verification_id", ids)
        for name in ("verification_findings", "verifications")
    ]


def _limits(ledger: Ledger, before: datetime, starts: DataFrame) -> DataFrame:
    """`expires` of each partition: what ends there or before may go. A run begins there, so that who stands in a gap
    behind what is gone still stands behind a run."""
    from pyspark.sql import functions as F

    rows, runs, groups = (
        ledger.read("offset_syncs"),
        views.read(ledger, "current_runs"),
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
    return (
        runs.join(limits, [*PARTITION])
        .filter("upstream_start <= limit")
        .groupBy(*PARTITION)
        .agg(F.max("upstream_start").alias("expires"))
    )


def _time(when: datetime) -> str:
    return f"TIMESTAMP '{when:%Y-%m-%d %H:%M:%S}'"
