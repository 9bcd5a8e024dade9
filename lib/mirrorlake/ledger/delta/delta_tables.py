"""The Delta tables of one schema: creating them where they are missing, reading, appending."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote, urlparse

from mirrorlake.errors import ConfigurationError, LedgerError, root_cause
from mirrorlake.ledger.delta.commits import commit, locked
from mirrorlake.ledger.sql_text import identifier, literal
from mirrorlake.ledger.tables import KEPT_LOG, TABLES, VERSION, column_definitions, version_of
from mirrorlake.log import event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

log = logging.getLogger(__name__)

ENSURED: set[tuple[str, ...]] = set()  # ledgers on this machine whose tables are up to date, by application and place
SESSION_CATALOG = "spark_catalog"
# What Spark allows in its own catalog, and Unity Catalog in others.
PLAIN_NAME, CATALOG_NAME = re.compile(r"[A-Za-z0-9_]+"), re.compile(r"[^\x00-\x20./\x7f]{1,255}")


@dataclass(frozen=True)
class DeltaTables:
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
    _schemas: dict[str, StructType] = field(default_factory=dict, repr=False, compare=False)  # of tables appended to

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

    def names(self) -> set[str]:
        """Returns the names of the tables and views of the schema that this user may see; none if there is none."""
        try:
            return {row["tableName"] for row in self.spark.sql(f"SHOW TABLES IN {self.full_schema}").collect()}
        except Exception as error:
            log.debug(event("schema_not_listed", schema=f"{self.catalog}.{self.schema}", error=root_cause(error)))
            return set()

    def _has_schema(self) -> bool:
        """Returns True if this user sees the schema, also without a table in it."""
        try:
            self.spark.sql(f"DESCRIBE SCHEMA {self.full_schema}").collect()
        except Exception as error:
            log.debug(event("schema_not_seen", schema=f"{self.catalog}.{self.schema}", error=root_cause(error)))
            return False
        return True

    def ensure_tables(self, *, upgrade: bool = False) -> Self:
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
        return self._ensure(upgrade=upgrade)

    def _ensure(self, *, upgrade: bool = False, reads: bool = False) -> Self:
        """See `ensure_tables`; a reader finds all tables there, and takes no lock, which is a file."""
        if self.warehouse and self._is_ensured():
            return self
        try:
            # In Unity Catalog, CREATE needs a privilege even where there is nothing to create.
            there = set() if self.warehouse else self.names()
            if not there and (self.warehouse or not self._has_schema()):
                self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.full_schema}")
            with ThreadPoolExecutor(len(TABLES)) as pool:  # each waits for files most of the time
                made = pool.map(
                    lambda one: self._lacking(one) if one in there else self._ensure_table(one, reads), TABLES
                )
                lacking = dict(zip(TABLES, made, strict=True))
            if self.warehouse:
                self._require_here()
            self._settle({name: columns for name, columns in lacking.items() if columns}, upgrade=upgrade)
        except LedgerError:
            raise
        except Exception as error:
            raise LedgerError(
                f"the tables of {self.catalog}.{self.schema} can't be {'read' if reads else 'created'}"
                f"{f' in {self.warehouse}' if self.warehouse else ''}: {root_cause(error)}"
            ) from None
        if self.warehouse:
            ENSURED.add(self._identity)
        return self

    def open(self) -> Self:
        """Makes the tables readable, for readers, who need not be allowed to write.

        It creates nothing in a catalog that keeps them (Unity Catalog), nor in a local schema that has all of them.

        Raises:
            LedgerError: tables are missing, this user may not read them, or an earlier version has made them.
        """
        if self.warehouse:  # a session forgets its catalog
            return self._ensure(reads=True) if all(map(self._has_files, TABLES)) else self.ensure_tables()
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

    def within(self, session: SparkSession) -> Self:
        """Returns the same tables for another session.

        A micro-batch has a session of its own, and frames of two sessions can't be joined.
        """
        return replace(self, spark=session)

    def read(self, name: str) -> DataFrame:
        """Reads a table as a frame."""
        return self.spark.table(self.table(name))

    def append(self, name: str, rows: Iterable[Any]) -> None:
        """Appends dataclass instances or dictionaries to a table; missing columns are null.

        Raises:
            LedgerError: the table can't be written.
        """
        values = [row if isinstance(row, dict) else asdict(row) for row in rows]
        if not values:
            return
        try:
            if name not in self._schemas:  # columns that a later version adds meanwhile may be null
                self._schemas[name] = self.read(name).schema
        except Exception as error:
            raise self._unwritten(name, error) from None
        schema = self._schemas[name]
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
            self._commit(name, lambda: self._append(name, frame))
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

    # -- commits ------------------------------------------------------------------------------------

    def _append(self, name: str, frame: DataFrame) -> None:
        """Appends a frame; to a local table by its directory, as a look-up by name lists its log once more."""
        writer = frame.write.format("delta").mode("append")
        if not self.warehouse:
            writer.saveAsTable(self.table(name))
            return
        if not self._has_files(name):  # Delta would create a table of its own there
            raise FileNotFoundError(f"{self._directory(name)} is no Delta table any more")
        writer.save(self._directory(name))

    def _commit(self, name: str, write: Callable[[], T]) -> T:
        """Makes one commit to a table; see `commits.commit`."""

        def write_alone() -> T:
            with self._writing(name):
                return write()

        return commit(self.table(name), write_alone)

    def _writing(self, name: str) -> AbstractContextManager[None]:
        """Locks one local table against other processes."""
        if not self.warehouse:
            return nullcontext()
        return locked(Path(self.warehouse) / self.schema / f".{name}.lock")

    def _insert_missing(self, name: str, rows: DataFrame, bounds: str, keys: Sequence[str]) -> None:
        same = " AND ".join(f"t.{column} = s.{column}" for column in keys)
        # Columns by name: a later version may have added some to the table.
        columns, values = ", ".join(rows.columns), ", ".join(f"s.{column}" for column in rows.columns)
        statement = (
            f"MERGE INTO {self.table(name)} t USING {{rows}} s ON ({bounds}) AND {same} "
            f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
        )
        self._commit(name, lambda: rows.sparkSession.sql(statement, None, rows=rows).collect())

    def _unwritten(self, name: str, error: Exception) -> LedgerError:
        return LedgerError(
            f"table {self.table(name)} can't be written: {root_cause(error)}. Records that are committed on the target "
            "stay correct"
        )

    # -- creating and changing tables -----------------------------------------------------------------

    @property
    def _identity(self) -> tuple[str, ...]:
        application = self.spark.conf.get("spark.app.id", "") or ""
        return application, self.catalog, self.schema, self.warehouse

    def _is_ensured(self) -> bool:
        """Returns True if this process has ensured the tables before, and their directories still exist.

        A check of each table takes a second.
        """
        if self._identity not in ENSURED or not all(map(self._has_files, TABLES)):
            return False
        return self.names() >= set(TABLES)

    def _ensure_table(self, name: str, reads: bool) -> list[str]:
        """Creates a table if it is missing; returns the definitions of the columns that an existing one lacks."""
        columns, clustering = TABLES[name]
        definition = f"({columns}) USING DELTA CLUSTER BY ({clustering}) TBLPROPERTIES ({KEPT_LOG})"
        with nullcontext() if reads else self._writing(name):
            is_new = False
            if self.warehouse:
                # A session forgets its catalog. To register an existing table is ten times faster than to create it.
                is_new = not self._has_files(name)
                if (
                    is_new and not reads
                ):  # a process that died in between, or a full disk, has left a directory that Delta refuses
                    shutil.rmtree(self._log(name), ignore_errors=True)
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
        self._schemas.clear()
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

    def _directory(self, name: str) -> str:
        return str((Path(self.warehouse) / self.schema / name).resolve())

    def _has_files(self, name: str) -> bool:
        """Returns True if a local table is in its directory: a version of it, and not its log's directory alone."""
        try:
            with os.scandir(self._log(name)) as entries:
                return any(entry.name.endswith((".json", ".parquet")) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _log(self, name: str) -> Path:
        return Path(self._directory(name)) / "_delta_log"

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


def _plain(value: Any) -> Any:
    """Returns the string of an enumeration's member, because Spark can't unpickle the member itself."""
    return value.value if isinstance(value, StrEnum) else value


def _nullable(schema: Any) -> Any:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])
