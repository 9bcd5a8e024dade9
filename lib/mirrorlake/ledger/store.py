"""The ledger: the Delta tables. They hold the history and decide nothing.

Authoritative is only the data that the target cluster has committed. `offset_syncs` is a copy of the offset-syncs
topic in columns. If it is dropped, it is rebuilt, row for row. The table is its own bookmark: a stream into it
starts after the last record that it holds, whatever happened to Spark's checkpoint directory. A record that arrives
twice changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import random
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from mirrorlake.errors import ConfigurationError, LedgerError, condition, root_cause
from mirrorlake.ledger import anomaly
from mirrorlake.ledger.checkpoint_row import Checkpoint, last_checkpoints
from mirrorlake.ledger.folding import fold_gaps, fold_runs, folded, has_several
from mirrorlake.ledger.offset_sync_rows import EARLIEST, gap_rows, offset_sync_records, offset_sync_states, run_rows
from mirrorlake.ledger.sql_text import identifier, literal
from mirrorlake.ledger.tables import TABLES, VERSION, column_definitions, version_of
from mirrorlake.log import event
from mirrorlake.model.anomaly import AnomalyAction
from mirrorlake.model.gap import LOSS
from mirrorlake.protocol.topic_changes import ChangeKind, ChangeOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from mirrorlake.config.flow import Flow

T = TypeVar("T")

log = logging.getLogger(__name__)

CHECKED_EVERY_S = 5  # seconds between two questions whether an operator has emptied the table
COMMIT_ATTEMPTS = 12  # of one commit, if other writers come before it each time; a minute at most
LONGEST_CONFLICT_S = 8.0  # between two of them
CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")  # conditions of Delta's errors
KEPT_FOR_S = 3600  # seconds for which maintenance certainly keeps the rows of an append
ENSURED: set[tuple[str, ...]] = set()  # ledgers on this machine whose tables are up to date, by application and place
SYNC_KEYS = ("source", "target", "sync_partition", "sync_offset", "topic", "partition")
SESSION_CATALOG = "spark_catalog"
# What Spark allows in its own catalog, and Unity Catalog in others.
PLAIN_NAME, CATALOG_NAME = re.compile(r"[A-Za-z0-9_]+"), re.compile(r"[^\x00-\x20./\x7f]{1,255}")


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


@dataclass(frozen=True)
class Ledger:
    """The tables of one schema.

    Args:
        spark: a session with Delta.
        catalog: the catalog of the tables.
        schema: the schema of the tables.
        warehouse: a local directory, or empty if the catalog decides (Unity Catalog).
        checkpoints: the directory for the progress of Spark's queries. If empty, it is below the warehouse, or
            in the schema's volume.
    """

    spark: SparkSession
    catalog: str
    schema: str
    warehouse: str = ""
    checkpoints: str = ""

    def __post_init__(self) -> None:
        is_plain = self.catalog == SESSION_CATALOG or bool(self.warehouse)
        rule, allowed = (
            (PLAIN_NAME, "letters, digits and underscores")
            if is_plain
            else (CATALOG_NAME, "up to 255 characters other than spaces, dots, slashes and control characters")
        )
        for what, name in (("catalog", self.catalog), ("schema", self.schema)):
            if not rule.fullmatch(name):
                raise ConfigurationError(f"{what} {name!r} is not a name: allowed are {allowed}")

    def table(self, name: str) -> str:
        """Returns the full name of a table, for SQL."""
        return identifier(self.catalog, self.schema, name)

    @property
    def full_schema(self) -> str:
        """Returns the name of the schema with its catalog, for SQL."""
        return identifier(self.catalog, self.schema)

    def ensure_tables(self, *, upgrade: bool = False) -> Ledger:
        """Creates schema and tables where they are missing.

        Args:
            upgrade: adds the columns that tables of an earlier version lack. Otherwise these are an error: a change of
                a table makes the commits fail that others are about to make, so one operator makes it, at one time.

        Raises:
            LedgerError: they can't be created or written, or an earlier version has made them; nothing else has been
                changed.
        """
        if self.warehouse:
            self._require_writable(Path(self.warehouse))
            if self._is_ensured():
                return self
        try:
            # In Unity Catalog, CREATE needs a privilege even where there is nothing to create.
            there = set() if self.warehouse else self.names()
            if not there:
                self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.full_schema}")
            with ThreadPoolExecutor(len(TABLES)) as pool:  # each waits for files most of the time
                made = pool.map(lambda name: self._lacking(name) if name in there else self._ensure_table(name), TABLES)
                lacking = dict(zip(TABLES, made, strict=True))
            if self.warehouse:
                self._require_here()
            self._settle({name: columns for name, columns in lacking.items() if columns}, upgrade=upgrade)
        except LedgerError:
            raise
        except Exception as error:
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} can't be "
                f"created{f' in {self.warehouse}' if self.warehouse else ''}: {root_cause(error)}"
            ) from None
        if self.warehouse:
            ENSURED.add(self._identity)
        return self

    def open(self) -> Ledger:
        """Makes the tables readable, for readers: in a catalog that keeps them (Unity Catalog), it creates nothing.

        Raises:
            LedgerError: tables are missing, this user may not read them, or an earlier version has made them.
        """
        if self.warehouse:  # a session forgets its catalog
            return self.ensure_tables()
        there = self.names()
        if missing := [name for name in TABLES if name not in there]:
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} can't be read: {', '.join(missing)}. Jobs create them in "
                "their first run; this user needs USE CATALOG, USE SCHEMA and SELECT"
            )
        with ThreadPoolExecutor(len(TABLES)) as pool:
            lacking = dict(zip(TABLES, pool.map(self._lacking, TABLES), strict=True))
        self._settle({name: columns for name, columns in lacking.items() if columns}, upgrade=False)
        return self

    def names(self) -> set[str]:
        """Returns the names of the tables and views of the schema that this user may see; none if there is none."""
        try:
            return {row["tableName"] for row in self.spark.sql(f"SHOW TABLES IN {self.full_schema}").collect()}
        except Exception as error:
            log.debug(event("schema_not_listed", schema=f"{self.catalog}.{self.schema}", error=root_cause(error)))
            return set()

    @property
    def _identity(self) -> tuple[str, ...]:
        application = self.spark.conf.get("spark.app.id", "") or ""
        return application, self.catalog, self.schema, self.warehouse

    def _is_ensured(self) -> bool:
        """Returns True if this process has ensured the tables before, and their directories still exist.

        A check of each table takes a second.
        """
        if self._identity not in ENSURED or not all(
            (Path(self._directory(name)) / "_delta_log").is_dir() for name in TABLES
        ):
            return False
        return self.names() >= set(TABLES)

    def _ensure_table(self, name: str) -> list[str]:
        """Creates a table if it is missing; returns the definitions of the columns that an existing one lacks."""
        columns, clustering = TABLES[name]
        definition = f"({columns}) USING DELTA CLUSTER BY ({clustering})"
        with self._writing(name):
            is_new = False
            if self.warehouse:
                # A session forgets its catalog. To register an existing table is ten times faster than to create it.
                is_new = not (Path(self._directory(name)) / "_delta_log").is_dir()
                definition = f"{definition if is_new else 'USING DELTA'} LOCATION {literal(self._directory(name))}"
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table(name)} {definition}")
        return [] if is_new else self._lacking(name)

    def _lacking(self, name: str) -> list[str]:
        """Returns the definitions of the columns that a table lacks."""
        known = {*self.read(name).columns}
        return [column for column in column_definitions(name) if column.split()[0] not in known]

    def _settle(self, lacking: Mapping[str, list[str]], *, upgrade: bool) -> None:
        """Adds the columns that tables of an earlier version lack, or refuses the tables."""
        if not lacking:
            return
        names = {table: [column.split()[0] for column in columns] for table, columns in lacking.items()}
        version = version_of(names)
        if not upgrade:
            table, columns = next(iter(names.items()))
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} have version {version}, and this version of mirrorlake "
                f"needs version {VERSION}: table {table} lacks {', '.join(columns)}. Run notebooks/maintain.ipynb once "
                "with upgrade = true, then start this job again"
            )
        for table, columns in lacking.items():
            self.change(table, f"ALTER TABLE {self.table(table)} ADD COLUMNS ({', '.join(columns)})")
        log.info(
            event("ledger_upgraded", schema=f"{self.catalog}.{self.schema}", before=version, after=VERSION, added=names)
        )

    def _require_here(self) -> None:
        """Raises LedgerError if the session knows a table of this name in another warehouse.

        A session resolves tables by name, so rows would go to the other warehouse.
        """
        # One query of the session's catalog for all tables: other queries open each table, which takes a second.
        for row in self.spark.sql(f"SHOW TABLE EXTENDED IN {self.full_schema} LIKE '*'").collect():
            location = next(
                (
                    line.removeprefix("Location: ")
                    for line in row["information"].splitlines()
                    if line.startswith("Location: ")
                ),
                "",
            )
            if (
                row["tableName"] in TABLES
                and not row["isTemporary"]
                and unquote(urlparse(location).path).rstrip("/") != self._directory(row["tableName"])
            ):
                raise LedgerError(
                    f"this Spark session knows schema {self.schema} from another warehouse ({location}), not "
                    f"{self._directory(row['tableName'])}. "
                    "Use another schema, or a new session"
                )

    def within(self, session: SparkSession) -> Ledger:
        """Returns the same tables for another session.

        A micro-batch has a session of its own, and frames of two sessions can't be joined.
        """
        return replace(self, spark=session)

    def read(self, name: str) -> DataFrame:
        """Reads a table as a frame."""
        return self.spark.table(self.table(name))

    def of_flow(self, name: str, flow: Flow) -> DataFrame:
        """Reads a flow's rows of a table."""
        return self.of_pair(name, flow.source, flow.target)

    def of_pair(self, name: str, source: str, target: str) -> DataFrame:
        """Reads the rows of the flow from one cluster to another, by their aliases; none if there was no such flow."""
        return rows_of_pair(self.read(name), source, target)

    def last_checkpoints(self, flow: Flow) -> list[dict[str, Checkpoint]]:
        """Reads the last row of every group and partition of a flow (`known`), and the last one with a settled outcome
        (`settled`, SETTLED), which may be missing."""
        return last_checkpoints(self.of_flow("checkpoints", flow))

    def verified_at(self, flow: Flow) -> datetime | None:
        """Returns the beginning, in UTC, of the newest verification of the whole map without a difference; None if
        there is none."""
        from pyspark.sql import functions as F

        rows = self.of_flow("verifications", flow).filter(F.col("mode").isin("full", "incremental"))
        fine = F.col("status").isin("equal", "not_comparable", "nothing_new")
        whole = rows.groupBy("verification_id").agg(
            F.every(fine).alias("fine"), F.min(F.unix_timestamp("started_at")).alias("at")
        )
        (row,) = whole.filter("fine").agg(F.max("at").alias("at")).collect()
        return None if row["at"] is None else datetime.fromtimestamp(row["at"], UTC)

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text; only these are ever deleted.

        Raises:
            LedgerError: the table can't be read.
        """
        from pyspark.sql import functions as F

        try:
            table = self.of_flow("topology_changes", flow)
            mine = table.filter((table.outcome == ChangeOutcome.APPLIED) & table.kind.endswith("_acl"))
            last = mine.groupBy(F.coalesce("after", "before").alias("acl")).agg(
                F.max_by("kind", "changed_at").alias("kind")
            )
            return [row["acl"] for row in last.filter(F.col("kind") == ChangeKind.CREATE_ACL).collect()]
        except Exception as error:
            raise LedgerError(
                f"flow {flow.name}: table {self.table('topology_changes')} can't be read: {root_cause(error)}. Which "
                "access rights mirrorlake has granted is unknown without it, so none are changed"
            ) from None

    def append(self, name: str, rows: Iterable[Any]) -> None:
        """Appends dataclass instances or dictionaries to a table; missing columns are null.

        Raises:
            LedgerError: the table can't be written.
        """
        values = [row if isinstance(row, dict) else asdict(row) for row in rows]
        if not values:
            return
        try:
            schema = self.read(name).schema
        except Exception as error:
            raise self._unwritten(name, error) from None
        frame = self.spark.createDataFrame(
            [tuple(_plain(value.get(column)) for column in schema.names) for value in values], _nullable(schema)
        )
        self.append_frame(name, frame.coalesce(1))  # one file, however many cores there are

    def append_frame(self, name: str, frame: DataFrame) -> None:
        """Appends a frame that has the columns of the table.

        Raises:
            LedgerError: the table can't be written.
        """
        try:
            self._commit(name, lambda: frame.write.format("delta").mode("append").saveAsTable(self.table(name)))
        except Exception as error:
            raise self._unwritten(name, error) from None

    def insert_missing(self, name: str, rows: DataFrame, keys: Sequence[str]) -> None:
        """Appends the rows of a frame whose keys the table does not have, in one commit.

        Of two writers of the same keys, the later one appends nothing.

        Raises:
            LedgerError: the table can't be written.
        """
        try:
            self._insert_missing(name, rows, "true", keys)
        except Exception as error:
            raise self._unwritten(name, error) from None

    def _unwritten(self, name: str, error: Exception) -> LedgerError:
        return LedgerError(
            f"table {self.table(name)} can't be written: {root_cause(error)}. Records that are committed on the target "
            "stay correct"
        )

    def change(self, name: str, statement: str, **frames: DataFrame) -> list[Row]:
        """Runs a statement that changes or rewrites a table; returns its result.

        No other process on this machine writes the table at the same time.

        Raises:
            LedgerError: the statement failed, for example because of another writer; the table is unchanged.
        """
        try:
            return self._commit(name, lambda: self.spark.sql(statement, None, **frames).collect())
        except Exception as error:
            raise LedgerError(
                f"table {self.table(name)} can't be changed: {root_cause(error)}. The table is unchanged. Run the "
                "notebook again"
            ) from None

    # -- offset_syncs -------------------------------------------------------------------------------

    def stream_offset_syncs(
        self,
        flow: Flow,
        partitions: int,
        interval_s: int,
        checkpoint: str,
        appended: Callable[[int, float], None] = lambda _runs, _seconds: None,
    ) -> StreamingQuery:
        """Starts the stream that appends the offset-syncs topic to the table of the same name.

        If an operator empties the table meanwhile, the next append fills it from the beginning.

        Args:
            flow: the flow of the topic.
            partitions: the number of partitions of the topic.
            interval_s: the seconds between two appends.
            checkpoint: the directory of this run of the query (see `checkpoint`).
            appended: called after each append, with the number of runs and the seconds it took.

        Raises:
            LedgerError: the table has more partitions than the topic, so they don't belong together.
        """
        last, checked_at = self._last_whole(flow), time.monotonic()
        appended_gaps: dict[int, int] = {}
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
            began = time.monotonic()
            if began > checked_at + CHECKED_EVERY_S:
                # Rows of the check before, too: those appended since may stand behind a hole.
                if began > checked_at + KEPT_FOR_S:
                    checked, checked_gaps = {}, {}
                    appended_gaps.clear()
                if not (
                    self._holds("offset_syncs", flow, {*checked.items(), *last.items()})
                    and self._holds("gaps", flow, {*checked_gaps.items(), *appended_gaps.items()})
                ):
                    self.merge_offset_syncs(
                        offset_sync_records(self.spark, flow, dict.fromkeys(range(partitions), EARLIEST))
                    )
                checked, checked_gaps, checked_at = dict(last), dict(appended_gaps), began
            merged = self.merge_offset_syncs(frame)
            last.update(merged.last)
            appended_gaps.update(merged.last_gaps)
            checked, checked_gaps = merged.last | checked, merged.last_gaps | checked_gaps  # a partition's first rows
            appended(merged.runs, time.monotonic() - began)

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

    def _insert_missing(self, name: str, rows: DataFrame, bounds: str, keys: Sequence[str]) -> None:
        same = " AND ".join(f"t.{column} = s.{column}" for column in keys)
        # Columns by name: a later version may have added some to the table.
        columns, values = ", ".join(rows.columns), ", ".join(f"s.{column}" for column in rows.columns)
        statement = (
            f"MERGE INTO {self.table(name)} t USING {{rows}} s ON ({bounds}) AND {same} "
            f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
        )
        self._commit(name, lambda: rows.sparkSession.sql(statement, None, rows=rows).collect())

    def _commit(self, name: str, write: Callable[[], T]) -> T:
        """Makes one commit to a table; again if another writer has come before with something that the commit concerns.

        A merge reads what it concerns in the snapshot that it commits to. Two merges of one key therefore conflict, and
        the later one finds the key when it is done again.
        """
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                with self._writing(name):
                    return write()
            except Exception as error:
                if not is_conflict(error):
                    raise
                conflict = error
                log.info(event("ledger_conflict", table=self.table(name), attempt=attempt + 1, error=root_cause(error)))
                time.sleep(random.uniform(0, min(2.0**attempt / 4, LONGEST_CONFLICT_S)))
        raise conflict

    def last_syncs(self, flow: Flow, at_least: int = 0) -> dict[int, int]:
        """Returns the last offset of each partition of the topic in the table offset_syncs, from `at_least` on."""
        from pyspark.sql import functions as F

        rows = self.of_flow("offset_syncs", flow).filter(F.col("sync_offset") >= at_least)
        last = rows.groupBy("sync_partition").agg(F.max("sync_offset").alias("last")).collect()
        return {row["sync_partition"]: row["last"] for row in last}

    def _last_whole(self, flow: Flow) -> dict[int, int]:
        """Returns the last offset of each partition of the topic in the table offset_syncs; none if the table gaps was
        emptied apart, so that both are filled anew.

        A flow may have no gaps. The runs of each log of a partition then follow each other, and no log was replaced.
        """
        from pyspark.sql import functions as F

        last = self.last_syncs(flow)
        if not last or not self.of_flow("gaps", flow).isEmpty():
            return last
        logs = (
            self.of_flow("offset_syncs", flow)
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

    # -- files --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def checkpoint(self, name: str) -> Iterator[str]:
        """Provides a new checkpoint directory for one run of a query, and deletes it afterwards.

        No later run depends on it.
        """
        beside_tables = (
            f"{self.warehouse}/{self.schema}/_checkpoints"
            if self.warehouse
            else f"/Volumes/{self.catalog}/{self.schema}/checkpoints"
        )
        place = f"{self.checkpoints or beside_tables}/{name}/{uuid.uuid4().hex}"
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _directory(self, name: str) -> str:
        return str((Path(self.warehouse) / self.schema / name).resolve())

    def _require_writable(self, warehouse: Path) -> None:
        probe = warehouse / self.schema / f".probe-{uuid.uuid4().hex}"
        try:
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise LedgerError(
                f"warehouse {warehouse} can't be written: {error.strerror}. Choose another directory or change its "
                "permissions"
            ) from None

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Locks one local table against other processes; Delta can't commit safely on a plain file system."""
        if not self.warehouse:
            yield
            return
        with (Path(self.warehouse) / self.schema / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def rows_of_pair(rows: DataFrame, source: str, target: str) -> DataFrame:
    """Filters the rows of one flow from a frame with the columns source and target."""
    return rows.filter((rows.source == source) & (rows.target == target))


def is_conflict(error: Exception) -> bool:
    """Returns True if a commit failed because another writer came before it, and can be made again.

    An error of Spark Connect tells its condition, one of a classic session that of its cause in the JVM.
    """
    name = getattr(error, "getCondition", lambda: None)() or condition(error)[0]
    return str(name).startswith(CONFLICTS)


def _plain(value: Any) -> Any:
    """Returns the string of an enumeration's member, because Spark can't unpickle the member itself."""
    return value.value if isinstance(value, StrEnum) else value


def _nullable(schema: Any) -> Any:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])
