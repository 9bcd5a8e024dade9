"""The ledger: the Delta tables. They hold the history and decide nothing.

Authoritative is only the data that the target cluster has committed. `offset_syncs` is a copy of the offset-syncs
topic in columns. If it is dropped, it is rebuilt, row for row. The table is its own bookmark: a stream into it
starts after the last record that it holds, whatever happened to Spark's checkpoint directory. A record that arrives
twice changes nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from mirrorlake.errors import LedgerError, root_cause
from mirrorlake.ledger import anomaly
from mirrorlake.ledger.checkpoint_row import Checkpoint, last_checkpoints
from mirrorlake.ledger.delta.delta_tables import DeltaTables
from mirrorlake.ledger.folding import fold_gaps, fold_runs, folded, has_several
from mirrorlake.ledger.offset_sync_rows import EARLIEST, gap_rows, offset_sync_records, offset_sync_states, run_rows
from mirrorlake.ledger.sql_text import literal
from mirrorlake.model.anomaly import AnomalyAction
from mirrorlake.model.gap import LOSS
from mirrorlake.protocol.topic_changes import OF_CONFIGS, UNANSWERED, ChangeKind, ChangeOutcome, configs_set
from mirrorlake.reasons import NOT_LOOKED_AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from mirrorlake.config.flow import Flow

CHECKED_EVERY_S = 5  # seconds between two questions whether an operator has emptied the table
KEPT_FOR_S = 3600  # seconds for which maintenance certainly keeps the rows of an append
SYNC_KEYS = ("source", "target", "sync_partition", "sync_offset", "topic", "partition")
STANDING = """
SELECT f.source, f.target, f.topic, f.partition, f.upstream_from, f.verification_id, f.finished_at FROM {rows} f
WHERE NOT f.passed AND f.topic IS NOT NULL AND f.status NOT IN ('not_covered', 'not_comparable', 'not_mirrored')
AND NOT EXISTS (
  SELECT 1 FROM {rows} p
  WHERE p.source = f.source AND p.target = f.target AND p.topic = f.topic AND p.partition = f.partition
    AND p.started_at >= f.finished_at AND (
      p.passed AND p.mode <> 'sample' AND p.upstream_from <= f.upstream_from AND p.upstream_to >= f.upstream_to
      OR (p.passed OR p.status = 'not_comparable') AND p.mode IN ('full', 'incremental')
        AND (p.offset_syncs_version >= f.offset_syncs_version OR p.upstream_to >= f.upstream_to)
    )
)
"""


@dataclass(frozen=True)
class Merged:
    """What records of the offset-syncs topic have held.

    Attributes:
        runs: the number of their runs.
        last: the last offset with runs of each partition of the topic.
        last_gaps: the last offset with gaps of each partition of the topic.
    """

    runs: int
    last: dict[int, int]
    last_gaps: dict[int, int]


class Ledger(DeltaTables):
    """The tables of one schema, and what the flows' rows in them say."""

    def of_flow(self, name: str, flow: Flow) -> DataFrame:
        """Reads a flow's rows of a table."""
        return self.of_pair(name, flow.source, flow.target)

    def of_pair(self, name: str, source: str, target: str) -> DataFrame:
        """Reads the rows of the flow from one cluster to another, by their aliases; none if there was no such flow."""
        return rows_of_pair(self.read(name), source, target)

    def flows(self, *tables: str) -> list[str]:
        """Lists the flows of which these tables have rows."""
        pairs = [self.read(table).select("source", "target").distinct() for table in tables]
        rows = reduce(lambda one, other: one.unionByName(other), pairs).distinct().collect()
        return sorted(f"{row['source']}->{row['target']}" for row in rows)

    def require_flow(self, name: str, known: Sequence[str]) -> None:
        """Raises LedgerError if a flow is not among those of which there are rows."""
        if name not in known:
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} have no rows of flow {name}; they have rows of "
                f"{', '.join(known) or 'no flow'}"
            )

    def last_checkpoints(self, flow: Flow) -> list[dict[str, Checkpoint]]:
        """Reads the last row of every group and partition of a flow (`known`), and the last one with a settled outcome
        (`settled`, SETTLED), which may be missing."""
        return last_checkpoints(self.of_flow("checkpoints", flow))

    def verified_at(self, flow: Flow) -> datetime | None:
        """Returns the beginning, in UTC, of the newest verification of the whole map that passed, or had nothing new to
        compare; None if there is none.

        It passed (expectations/verification.json) if it has compared records, and none of its partitions is different
        or late, or could not be looked at. Others that are not covered, or can't be compared any more, decide nothing.
        One of some topics says nothing of the others, and one of an older version of the map says nothing of what came
        later.
        """
        from pyspark.sql import functions as F

        rows = self.of_flow("verifications", flow).filter(
            F.col("mode").isin("full", "incremental") & F.col("topics").isNull() & ~F.coalesce("pinned", F.lit(False))
        )
        is_wrong = (
            F.col("status").isin("different", "not_mirrored")
            | (F.coalesce("unmirrored", F.lit(0)) > 0)
            | F.coalesce(F.col("detail").startswith(NOT_LOOKED_AT), F.lit(False))
        )
        whole = rows.groupBy("verification_id").agg(
            ((F.sum("records") > 0) | F.bool_or(F.col("status") == "nothing_new")).alias("has_looked"),
            F.bool_or(is_wrong).alias("is_wrong"),
            F.min(F.unix_timestamp("started_at")).alias("at"),
        )
        (row,) = whole.filter("has_looked AND NOT is_wrong").agg(F.max("at").alias("at")).collect()
        return None if row["at"] is None else datetime.fromtimestamp(row["at"], UTC)

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text; only these are ever deleted.

        One is among them whose creation got no answer: to delete what is not there does no harm.

        Raises:
            LedgerError: the table can't be read.
        """
        from pyspark.sql import functions as F

        try:
            table = self.of_flow("topology_changes", flow)
            may_be_there = table.outcome.startswith(UNANSWERED)
            mine = table.filter(((table.outcome == ChangeOutcome.APPLIED) | may_be_there) & table.kind.endswith("_acl"))
            last = mine.groupBy(F.coalesce("after", "before").alias("acl")).agg(
                F.max_by("kind", "changed_at").alias("kind")
            )
            return [row["acl"] for row in last.filter(F.col("kind") == ChangeKind.CREATE_ACL).collect()]
        except Exception as error:
            raise LedgerError(
                f"flow {flow.name}: table {self.table('topology_changes')} can't be read: {root_cause(error)}. Which "
                "access rights mirrorlake has granted is unknown without it, so none are changed"
            ) from None

    def set_configs(self, flow: Flow) -> dict[tuple[str, str], str]:
        """Returns the value of each property of a remote topic that mirrorlake has set, and not reset.

        Raises:
            LedgerError: the table can't be read.
        """
        try:
            table = self.of_flow("topology_changes", flow)
            mine = table.filter((table.outcome == ChangeOutcome.APPLIED) & table.kind.isin(*OF_CONFIGS))
            rows = mine.select("kind", "target_topic", "name", "after", "note", "changed_at").collect()
        except Exception as error:
            raise LedgerError(
                f"flow {flow.name}: table {self.table('topology_changes')} can't be read: {root_cause(error)}. Which "
                "properties mirrorlake has set is unknown without it, so none are reset"
            ) from None
        # What a new topic lacks of its configuration is set in the same moment.
        rows.sort(key=lambda row: (row["changed_at"], row["kind"] != ChangeKind.CREATE_TOPIC))
        return configs_set(row.asDict() for row in rows)

    # -- offset_syncs -------------------------------------------------------------------------------

    def stream_offset_syncs(
        self,
        flow: Flow,
        partitions: int,
        interval_s: int,
        checkpoint: str,
        appended: Callable[[int, float], None] = lambda _runs, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> StreamingQuery:
        """Starts the stream that appends the offset-syncs topic to the table of the same name.

        If an operator empties the table meanwhile, the next append fills it from the beginning.

        Args:
            flow: the flow of the topic.
            partitions: the number of partitions of the topic.
            interval_s: the seconds between two appends.
            checkpoint: the directory of this run of the query (see `checkpoint`).
            appended: called after each append, with the number of runs and the seconds it took.
            clock: a monotonic clock, in seconds.

        Raises:
            LedgerError: the table has more partitions than the topic, so they don't belong together.
        """
        last, checked_at = self._last_whole(flow), clock()
        # The newest runs stay, but gaps expire, also those of a flow without any new ones: each with its time.
        appended_gaps: dict[int, tuple[int, float]] = {}
        checked, checked_gaps = dict(last), dict(appended_gaps)
        source = (
            self.spark.readStream.format("kafka")
            .options(**flow.target_connection.spark())
            .option("subscribe", flow.offset_syncs_topic)
            .option("kafka.isolation.level", "read_committed")
            .option("startingOffsets", json.dumps({flow.offset_syncs_topic: self._bookmark(flow, partitions, last)}))
            .option("failOnDataLoss", "true")
            .load()
        )

        def append(frame: DataFrame, _: int) -> None:
            nonlocal checked, checked_gaps, checked_at
            began = clock()
            if began > checked_at + CHECKED_EVERY_S:
                # Rows of the check before, too: those appended since may stand behind a hole.
                if began > checked_at + KEPT_FOR_S:
                    checked = {}
                gaps = {
                    (partition, offset)
                    for partition, (offset, at) in (*checked_gaps.items(), *appended_gaps.items())
                    if began <= at + KEPT_FOR_S
                }
                if not (
                    self._holds("offset_syncs", flow, {*checked.items(), *last.items()})
                    and self._holds("gaps", flow, gaps)
                ):
                    self.merge_offset_syncs(
                        offset_sync_records(self.spark, flow, dict.fromkeys(range(partitions), EARLIEST))
                    )
                checked, checked_gaps, checked_at = dict(last), dict(appended_gaps), began
            merged = self.merge_offset_syncs(frame)
            last.update(merged.last)
            new_gaps = {partition: (offset, began) for partition, offset in merged.last_gaps.items()}
            appended_gaps.update(new_gaps)
            checked, checked_gaps = merged.last | checked, new_gaps | checked_gaps  # a partition's first rows
            appended(merged.runs, clock() - began)

        writer = source.writeStream.foreachBatch(append).option("checkpointLocation", checkpoint)
        writer = writer.queryName(f"ledger {flow.name} {uuid.uuid4().hex[:8]}")  # names must be unique in a session
        return writer.trigger(processingTime=f"{interval_s} seconds").start()

    def catch_up(
        self, flow: Flow, partitions: int, appended: Callable[[int, float], None] = lambda _runs, _seconds: None
    ) -> None:
        """Appends the records of a flow's offset-syncs topic that the table lacks, in one batch; needs the target only.

        Args:
            flow: the flow of the topic.
            partitions: the number of partitions of the topic.
            appended: called after the append, with the number of runs and the seconds it took.

        Raises:
            LedgerError: the topic can't be read, or the tables can't be written.
        """
        began = time.monotonic()
        try:
            start = self._bookmark(flow, partitions, self._last_whole(flow))
            first = {int(partition): offset for partition, offset in start.items()}
            runs = self.merge_offset_syncs(offset_sync_records(self.spark, flow, first, is_whole=True)).runs
        except LedgerError:
            raise
        except Exception as error:
            raise LedgerError(
                f"flow {flow.name}: the ledger can't be brought up to date: {root_cause(error)}. Records that are "
                "committed on the target stay correct"
            ) from None
        appended(runs, time.monotonic() - began)

    def merge_offset_syncs(self, records: DataFrame) -> Merged:
        """Merges the runs and gaps of offset-syncs records into the tables, and an anomaly for each loss.

        The records are rows of Spark's Kafka source. Existing rows stay as they are. A merge, unlike an append, makes a
        second writer harmless, and a stream that starts too early. Runs are merged last, because they are the bookmark.
        """
        from pyspark.sql import functions as F

        states = offset_sync_states(records).localCheckpoint()  # once: a merge reads its source twice
        lost = F.filter("gaps", lambda gap: gap["kind"].isin(*LOSS))
        held = states.groupBy("source", "target", "sync_partition").agg(
            F.min("sync_offset").alias("first"),
            F.max(F.when(F.size("runs") > 0, F.col("sync_offset"))).alias("last"),
            F.max(F.when(F.size("gaps") > 0, F.col("sync_offset"))).alias("last_gap"),
            *(
                F.sum(F.greatest(F.size(found), F.lit(0))).alias(name)
                for name, found in (("runs", "runs"), ("gaps", "gaps"), ("lost", lost))
            ),
            F.max(has_several("runs")).alias("several_runs"),
            F.max(has_several("gaps")).alias("several_gaps"),
        )
        found = held.collect()
        # The condition on sync_offset lets Delta skip files that can't hold these records.
        bounds = " OR ".join(
            f"(t.source = {literal(row['source'])} AND t.target = {literal(row['target'])} AND t.sync_partition = "
            f"{row['sync_partition']} AND t.sync_offset >= {row['first']})"
            for row in found
        )
        if any(row["gaps"] for row in found):
            gaps = gap_rows(states)
            rows = folded(states, gap_rows, fold_gaps) if any(row["several_gaps"] for row in found) else gaps
            self._insert_missing("gaps", rows, bounds, (*SYNC_KEYS, "from_offset", "kind"))
            if any(row["lost"] for row in found):
                self._insert_missing(
                    "anomalies", anomaly.of_losses(gaps), f"t.action = {literal(AnomalyAction.CONTINUE)}", anomaly.KEYS
                )
        runs = sum(row["runs"] for row in found)
        if runs:
            is_folded = any(row["several_runs"] for row in found)
            rows = folded(states, run_rows, fold_runs) if is_folded else run_rows(states)
            self._insert_missing("offset_syncs", rows, bounds, (*SYNC_KEYS, "upstream_start"))
        last, last_gaps = (
            {row["sync_partition"]: row[name] for row in found if row[name] is not None}
            for name in ("last", "last_gap")
        )
        return Merged(runs, last, last_gaps)

    def has_map(self, flow: Flow) -> bool:
        """Tells whether the tables have runs or gaps of a flow.

        Raises:
            LedgerError: a table can't be read.
        """
        try:
            return not all(self.of_flow(name, flow).isEmpty() for name in ("offset_syncs", "gaps"))
        except Exception as error:
            raise LedgerError(f"flow {flow.name}: the ledger can't be read: {root_cause(error)}") from None

    def last_syncs(self, flow: Flow, at_least: int = 0) -> dict[int, int]:
        """Returns the last offset of each partition of the topic in the table offset_syncs, from `at_least` on."""
        from pyspark.sql import functions as F

        rows = self.of_flow("offset_syncs", flow).filter(F.col("sync_offset") >= at_least)
        last = rows.groupBy("sync_partition").agg(F.max("sync_offset").alias("last")).collect()
        return {row["sync_partition"]: row["last"] for row in last}

    def _last_whole(self, flow: Flow) -> dict[int, int]:
        """Returns the last offset of each partition of the topic in the table offset_syncs; none if the table gaps was
        emptied apart, so that both are filled anew.

        A flow may have no gaps. The runs of each log of a partition then follow each other, and no log was replaced. A
        take-over writes runs with holes, and no gaps.
        """
        from pyspark.sql import functions as F

        last = self.last_syncs(flow)
        if not last or not self.of_flow("gaps", flow).isEmpty():
            return last
        logs = (
            self.of_flow("offset_syncs", flow)
            .filter("NOT coalesce(inferred, false)")
            .groupBy("topic", "partition", F.coalesce("incarnation", F.lit(0)).alias("incarnation"))
            .agg(
                (F.max("upstream_end") - F.min("upstream_start")).alias("span"),
                F.sum("records").alias("held"),
            )
        )
        return last if logs.filter("span > held OR incarnation > 0").isEmpty() else {}

    def _holds(self, name: str, flow: Flow, syncs: Set[tuple[int, int]]) -> bool:
        """Returns True if the table still has rows of these states; only an operator can have deleted them.

        Args:
            name: the table, offset_syncs or gaps.
            flow: the flow of the topic.
            syncs: partitions and offsets of the topic.
        """
        if not syncs:
            return True
        rows = self.of_flow(name, flow).select("sync_partition", "sync_offset")
        found = rows.filter(rows.sync_offset.isin(*{offset for _, offset in syncs})).distinct().collect()
        return syncs <= {(row["sync_partition"], row["sync_offset"]) for row in found}

    def _bookmark(self, flow: Flow, partitions: int, last: Mapping[int, int]) -> dict[str, int]:
        beyond = sorted(set(last) - set(range(partitions)))
        if beyond:
            raise LedgerError(
                f"flow {flow.name}: table {self.table('offset_syncs')} has rows of partition {beyond[0]} of "
                f"{flow.offset_syncs_topic}, which has only "
                f"{partitions} partitions: the topic was created anew, or the table belongs to other clusters. Use "
                "another schema, or delete the flow's rows"
            )
        return {
            str(partition): last[partition] + 1 if partition in last else EARLIEST for partition in range(partitions)
        }


def rows_of_pair(rows: DataFrame, source: str, target: str) -> DataFrame:
    """Filters the rows of one flow from a frame with the columns source and target."""
    return rows.filter((rows.source == source) & (rows.target == target))


def standing_differences(verifications: DataFrame) -> DataFrame:
    """Selects the differences that no later verification has refuted: source, target, topic, partition, upstream_from,
    verification_id and finished_at of the verification that found them.

    A later one refutes a difference if it passed over the same offsets. So has any `full` or `incremental` one that
    knows the map as far: `full` compares all that is left of both logs, and `incremental` begins at or before each
    difference that stands. One of these that has found no record left to compare over all of the offsets ends the
    difference, too: nobody could refute it any more. Others that could compare nothing refute nothing, and are no
    failure.

    Args:
        verifications: rows of the table verifications.
    """
    return verifications.sparkSession.sql(STANDING, rows=verifications)
