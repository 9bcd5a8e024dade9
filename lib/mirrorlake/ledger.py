"""The ledger: the Delta tables, which hold the history of everything and decide nothing.

What is true is what the target cluster has committed. `offset_syncs` is a copy of the offset-syncs topic in columns: drop it, and it is
rebuilt, row for row. It is also its own bookmark: a stream into it starts behind the last record it holds, whatever has become of
Spark's checkpoint directory, and a record that comes twice changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from mirrorlake.errors import ConfigurationError, LedgerError, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from mirrorlake.flow import Flow

YEAR_1_MS, YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999
IDENTIFIER = re.compile(r"[A-Za-z0-9_]+")

OFFSET_SYNCS = """
  source STRING NOT NULL COMMENT 'alias of the cluster that was read',
  target STRING NOT NULL COMMENT 'alias of the cluster that was written',
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target',
  target_partition INT NOT NULL COMMENT 'partition on the target',
  upstream_start BIGINT NOT NULL COMMENT 'first source offset of the run',
  upstream_end BIGINT NOT NULL COMMENT 'source offset after its last one',
  downstream_start BIGINT NOT NULL COMMENT 'target offset of the first record',
  downstream_end BIGINT NOT NULL COMMENT 'target offset after the last one',
  records BIGINT NOT NULL,
  bytes BIGINT NOT NULL COMMENT 'of the record batches, compressed as they are',
  first_timestamp TIMESTAMP COMMENT 'smallest base timestamp of a batch',
  last_timestamp TIMESTAMP COMMENT 'largest timestamp of a batch',
  digest STRING COMMENT 'CRC-32C over record counts, timestamps and records of the batches, the same on both sides; null where inferred',
  transactional_id STRING NOT NULL,
  producer_id BIGINT NOT NULL,
  producer_epoch INT NOT NULL,
  sync_partition INT NOT NULL COMMENT 'partition of the offset-syncs topic that this row was read from',
  sync_offset BIGINT NOT NULL COMMENT 'offset there',
  committed_at TIMESTAMP NOT NULL COMMENT 'timestamp of that record, written just before the commit',
  inferred BOOLEAN COMMENT 'true: rebuilt from the contents of both logs, when taking over from another mirror; bytes are those of keys and values then'
"""

CHECKPOINTS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  group_id STRING NOT NULL,
  topic STRING COMMENT 'topic on the source; null in a row about the whole group',
  partition INT,
  target_topic STRING,
  target_partition INT,
  upstream_offset BIGINT COMMENT 'what the group has committed on the source: the next record it wants',
  downstream_offset BIGINT COMMENT 'the first mirrored record at or after it',
  metadata STRING COMMENT 'what the group committed along with its offset',
  source_lag BIGINT COMMENT 'records the group has still to read on the source',
  status STRING NOT NULL COMMENT 'exact, clamped, before_mirror, not_mirrored, not_covered or deleted',
  reason STRING COMMENT 'why, in words',
  cycle_id STRING NOT NULL,
  created_at TIMESTAMP NOT NULL,
  target_offset BIGINT COMMENT 'what the group had on the target before this cycle',
  sync STRING COMMENT 'what was done on the target: committed, in_step, held, waiting, refused, or off'
"""

EXPECTATION_RESULTS = """
  suite STRING NOT NULL,
  subject STRING NOT NULL COMMENT 'what was looked at',
  expectation STRING NOT NULL,
  success BOOLEAN NOT NULL,
  observed STRING COMMENT 'JSON',
  unexpected STRING COMMENT 'JSON: the first values that were not expected',
  evaluated_at TIMESTAMP NOT NULL,
  cycle_id STRING NOT NULL
"""

ANOMALIES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING,
  partition INT,
  kind STRING NOT NULL,
  from_offset BIGINT COMMENT 'first source offset concerned',
  to_offset BIGINT COMMENT 'source offset after the last one concerned',
  records BIGINT,
  detail STRING,
  action STRING COMMENT 'what mirrorlake did',
  detected_at TIMESTAMP NOT NULL
"""

TOPOLOGY_CHANGES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  kind STRING NOT NULL COMMENT 'create_topic, add_partitions, set_config, reset_config, create_acl or delete_acl',
  topic STRING COMMENT 'topic on the source that it was for',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target, or the name an access right is for',
  name STRING COMMENT 'the property',
  before STRING,
  after STRING,
  note STRING COMMENT 'why it differs from the source',
  outcome STRING NOT NULL COMMENT 'applied, or why it was refused',
  changed_at TIMESTAMP NOT NULL
"""

TABLES: Mapping[str, tuple[str, str]] = {
    "offset_syncs": (OFFSET_SYNCS, "topic, partition, upstream_start"),
    "checkpoints": (CHECKPOINTS, "group_id, topic, created_at"),
    "expectation_results": (EXPECTATION_RESULTS, "evaluated_at"),
    "anomalies": (ANOMALIES, "detected_at"),
    "topology_changes": (TOPOLOGY_CHANGES, "changed_at"),
}

# What an offset-syncs record holds of a run, for from_json; the rest of the row is the record's own.
RECORD = """
  source STRING, target STRING, transactional_id STRING, producer_id BIGINT, producer_epoch INT, inferred BOOLEAN,
  runs ARRAY<STRUCT<topic: STRING, partition: INT, target_topic: STRING, target_partition: INT, upstream_start: BIGINT, upstream_end: BIGINT,
    downstream_start: BIGINT, downstream_end: BIGINT, records: BIGINT, bytes: BIGINT, first_timestamp: BIGINT, last_timestamp: BIGINT, digest: BIGINT>>
"""


@dataclass(frozen=True)
class Ledger:
    """The tables of one schema.

    Args:
        spark: a session with Delta.
        catalog, schema: where the tables are.
        warehouse: a local directory, or empty where the catalog decides (Unity Catalog).
        checkpoints: where Spark keeps the progress of its queries; empty for a place below the warehouse, or the schema's volume.
    """

    spark: SparkSession
    catalog: str
    schema: str
    warehouse: str = ""
    checkpoints: str = ""

    def __post_init__(self) -> None:
        for what, name in (("catalog", self.catalog), ("schema", self.schema)):
            if not IDENTIFIER.fullmatch(name):
                raise ConfigurationError(f"{what} '{name}' is not a name: allowed are letters, digits and underscores")

    def table(self, name: str) -> str:
        """The full name of a table, for SQL."""
        return f"`{self.catalog}`.`{self.schema}`.`{name}`"

    def ensure_tables(self) -> Ledger:
        """Creates schema and tables where they are missing.

        Raises:
            LedgerError: they can't be created or written there; nothing else has been touched.
        """
        if self.warehouse:
            self._require_writable(Path(self.warehouse))
        try:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{self.catalog}`.`{self.schema}`")
            with ThreadPoolExecutor(len(TABLES)) as pool:  # each waits for files most of the time
                list(pool.map(self._ensure_table, TABLES))
        except LedgerError:
            raise
        except Exception as error:
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} can't be created{f' in {self.warehouse}' if self.warehouse else ''}: {first_line(error)}"
            ) from None
        return self

    def _ensure_table(self, name: str) -> None:
        columns, clustering = TABLES[name]
        definition = f"({columns}) USING DELTA CLUSTER BY ({clustering})"
        with self._writing(name):
            if self.warehouse:
                # A session forgets its catalog; a table that is there is only made known again, which is ten times faster.
                exists = (Path(self._directory(name)) / "_delta_log").is_dir()
                definition = f"{'USING DELTA' if exists else definition} LOCATION '{self._directory(name)}'"
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table(name)} {definition}")
            described = {row["col_name"]: row["data_type"] for row in self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.table(name)}").collect()}
            missing = [line.rstrip(",") for line in columns.strip().splitlines() if line.split()[0] not in described]
            if missing:  # the table was made by an earlier version
                self.spark.sql(f"ALTER TABLE {self.table(name)} ADD COLUMNS ({', '.join(missing)})")
        if self.warehouse:
            self._require_here(name, described.get("Location", ""))

    def _require_here(self, name: str, location: str) -> None:
        """A session knows a table by its name only: one that it was shown elsewhere would be written there."""
        if unquote(urlparse(location).path).rstrip("/") != self._directory(name):
            raise LedgerError(
                f"this Spark session knows schema {self.schema} from another warehouse ({location}), not {self._directory(name)}. Use another schema, or a new session"
            )

    def within(self, session: SparkSession) -> Ledger:
        """The same tables for another session: a micro-batch has one of its own, and frames of two sessions don't join."""
        return replace(self, spark=session)

    def read(self, name: str) -> DataFrame:
        """A table as a frame."""
        return self.spark.table(self.table(name))

    def append(self, name: str, rows: Iterable[Any]) -> None:
        """Appends dataclass instances or dictionaries to a table; missing columns are null.

        Raises:
            LedgerError: the table can't be written.
        """
        values = [row if isinstance(row, dict) else asdict(row) for row in rows]
        if values:
            schema = self.read(name).schema
            frame = self.spark.createDataFrame([tuple(value.get(column) for column in schema.names) for value in values], _nullable(schema))
            self.append_frame(name, frame)

    def append_frame(self, name: str, frame: DataFrame) -> None:
        """Appends a frame whose columns are the table's."""
        try:
            with self._writing(name):
                frame.write.format("delta").mode("append").saveAsTable(self.table(name))
        except Exception as error:
            raise LedgerError(f"table {self.table(name)} can't be written: {first_line(error)}. What is committed on the target stays correct") from None

    # -- offset_syncs --------------------------------------------------------------------------------------------------------

    def stream_offset_syncs(self, flow: Flow, partitions: int, interval_s: int | None, checkpoint: str) -> StreamingQuery:
        """Starts the stream that appends the offset-syncs topic to the table of the same name.

        Args:
            flow: whose topic.
            partitions: how many the topic has.
            interval_s: seconds between two appends, or None to append what there is and end.
            checkpoint: of this run of the query (see `checkpoint`).

        Raises:
            LedgerError: the table holds more than the topic, so one of them isn't the other's.
        """
        source = (
            self.spark.readStream.format("kafka")
            .options(**flow.target_connection.spark())
            .option("subscribe", flow.offset_syncs_topic)
            .option("kafka.isolation.level", "read_committed")
            .option("startingOffsets", json.dumps({flow.offset_syncs_topic: self._bookmark(flow, partitions)}))
            .option("failOnDataLoss", "true")
            .load()
        )
        writer = source.writeStream.foreachBatch(lambda frame, _: self.merge_offset_syncs(frame)).option("checkpointLocation", checkpoint)
        writer = writer.queryName(f"ledger {flow.name} {uuid.uuid4().hex[:8]}")  # a session takes a name once only
        return (writer.trigger(availableNow=True) if interval_s is None else writer.trigger(processingTime=f"{interval_s} seconds")).start()

    def merge_offset_syncs(self, records: DataFrame) -> None:
        """Adds the runs of offset-syncs records (as Spark's Kafka source has them); those already there stay as they are.

        A merge and not an append: it is what makes a second writer, or a stream that starts again too early, harmless.
        """
        from delta.tables import DeltaTable

        rows = offset_sync_rows(records).localCheckpoint()  # once: a merge reads its source twice
        if rows.isEmpty():
            return
        first = rows.groupBy("source", "target", "sync_partition").min("sync_offset").collect()
        # Only files that may hold these records are looked at: the condition on sync_offset lets Delta skip the others.
        bounds = " OR ".join(
            f"(t.source = '{source}' AND t.target = '{target}' AND t.sync_partition = {partition} AND t.sync_offset >= {offset})"
            for source, target, partition, offset in first
        )
        same = " AND ".join(f"t.{column} = s.{column}" for column in ("source", "target", "sync_partition", "sync_offset", "topic", "partition", "upstream_start"))
        with self._writing("offset_syncs"):
            table = DeltaTable.forName(records.sparkSession, self.table("offset_syncs"))
            table.alias("t").merge(rows.alias("s"), f"({bounds}) AND {same}").whenNotMatchedInsertAll().execute()

    def _bookmark(self, flow: Flow, partitions: int) -> dict[str, int]:
        table = self.read("offset_syncs")
        mine = table.filter((table.source == flow.source) & (table.target == flow.target))
        rows = mine.groupBy("sync_partition").agg({"sync_offset": "max"}).withColumnRenamed("max(sync_offset)", "last").collect()
        last = {row["sync_partition"]: row["last"] for row in rows}
        beyond = sorted(set(last) - set(range(partitions)))
        if beyond:
            raise LedgerError(
                f"flow {flow.name}: table {self.table('offset_syncs')} has rows of partition {beyond[0]} of {flow.offset_syncs_topic}, which has only "
                f"{partitions} partitions: the topic was created anew, or the table belongs to other clusters. Use another schema, or delete the flow's rows"
            )
        return {str(partition): last.get(partition, -3) + 1 for partition in range(partitions)}  # -2: from the beginning

    # -- files ---------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def checkpoint(self, name: str) -> Iterator[str]:
        """A fresh place for the progress of one run of a query, gone again behind it. Nothing ever depends on an old one."""
        beside_tables = f"{self.warehouse}/{self.schema}/_checkpoints" if self.warehouse else f"/Volumes/{self.catalog}/{self.schema}/checkpoints"
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
            raise LedgerError(f"warehouse {warehouse} can't be written: {error.strerror}. Choose another directory or change its permissions") from None

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Keeps two processes from committing to one local table at the same time, which Delta can't do on a plain file system."""
        if not self.warehouse:
            yield
            return
        with (Path(self.warehouse) / self.schema / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def offset_sync_rows(records: DataFrame) -> DataFrame:
    """The rows of the table for records of the offset-syncs topic (columns value, partition, offset, timestamp)."""
    from pyspark.sql import functions as F

    parsed = records.select(F.from_json(F.col("value").cast("string"), RECORD).alias("state"), "partition", "offset", "timestamp")
    parsed = parsed.withColumn("state", F.col("state").withField("inferred", F.coalesce("state.inferred", F.lit(False))))
    runs = parsed.select("state.*", F.col("partition").alias("sync_partition"), F.col("offset").alias("sync_offset"), F.col("timestamp").alias("committed_at"))
    rows = runs.select("*", F.explode("runs").alias("run"))
    return rows.select(
        "source", "target", "run.topic", "run.partition", "run.target_topic", "run.target_partition", "run.upstream_start", "run.upstream_end",
        "run.downstream_start", "run.downstream_end", "run.records", "run.bytes",
        _timestamp("run.first_timestamp").alias("first_timestamp"), _timestamp("run.last_timestamp").alias("last_timestamp"),
        F.when(~F.col("inferred"), F.lower(F.lpad(F.hex("run.digest"), 8, "0"))).alias("digest"),
        "transactional_id", "producer_id", "producer_epoch", "sync_partition", "sync_offset", "committed_at", "inferred",
    )  # fmt: skip


def _timestamp(column: str) -> Any:
    """Milliseconds as a timestamp; null for what no calendar has, which producers may write all the same."""
    from pyspark.sql import functions as F

    return F.when(F.col(column).between(YEAR_1_MS, YEAR_9999_MS), F.timestamp_millis(column))


def _nullable(schema: Any) -> Any:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])
