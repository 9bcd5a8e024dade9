"""Maintenance of the ledger: deletes expired rows, compacts small files, deletes unused files.

`ledger/expiry.py` selects the rows, OPTIMIZE compacts files, and VACUUM deletes unused ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.ledger import expiry
from mirrorlake.ledger.expiry import AGED, NEWEST, Expiry, LogStart
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import KEPT_LOG, LOG_RETENTION, TABLES
from mirrorlake.log import ending, event
from mirrorlake.parameters import resolve
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

MOST = 100_000  # days or hours; an empty value has no limit
NAMED = 5  # partitions, in a note
LEAST_VACUUM_HOURS = 168  # Delta's own limit: readers and streams may lag that much
PARAMETERS = {
    "offset_syncs_days": "90",
    "checkpoints_days": "365",
    "expectation_results_days": "90",
    "cycles_days": "90",
    "counts_days": "90",
    "lag_samples_days": "7",
    "anomalies_days": "",
    "topology_changes_days": "",
    "verifications_days": "",
    "vacuum_hours": str(LEAST_VACUUM_HOURS),
}


@dataclass(frozen=True)
class Retention:
    """The retention of rows, in days by table, and of unused files, in hours.

    A table that is not named keeps its rows for ever. gaps follow offset_syncs, and findings follow verifications. None
    hours keep unused files for ever.
    """

    days: Mapping[str, int]
    vacuum_hours: int | None = LEAST_VACUUM_HOURS

    @classmethod
    def resolve(cls, namespace: Mapping[str, Any]) -> Retention:
        """Reads the retention from the globals of the notebook.

        Raises:
            ConfigurationError: a value is no number, or too small.
        """
        return cls.parse(resolve(namespace, PARAMETERS))

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Retention:
        """Parses the values of `PARAMETERS`; an empty one keeps rows, or files, for ever.

        Raises:
            ConfigurationError: a value is no number, or too small.
        """
        numbers = {
            name: _number(name, value, LEAST_VACUUM_HOURS if name == "vacuum_hours" else 1)
            for name, value in given.items()
            if value
        }
        hours = numbers.pop("vacuum_hours", None)
        return cls({name.removesuffix("_days"): days for name, days in numbers.items()}, hours)


@dataclass(frozen=True, slots=True)
class TableReport:
    """The changes of one table, or those that a dry run would make.

    It has the rows before, the expired rows, and files and bytes before and after. `files_deleted` is None if VACUUM
    did not run or did not report them.
    """

    table: str
    rows: int
    expired: int
    files: int
    bytes: int
    files_after: int
    bytes_after: int
    files_deleted: int | None
    seconds: float


@dataclass(frozen=True)
class MaintenanceResult:
    """The result of a run. `notes` name the flows whose maps were kept, with the reasons."""

    dry_run: bool
    tables: tuple[TableReport, ...]
    notes: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """Returns one row for each table."""
        import pandas as pd

        return pd.DataFrame([asdict(report) for report in self.tables])

    def to_json(self) -> dict[str, Any]:
        """Returns the result as plain values."""
        expired = {report.table: report.expired for report in self.tables if report.expired}
        return {
            "dry_run": self.dry_run,
            "expired": expired,
            **{name: sum(getattr(report, name) for report in self.tables) for name in ("files", "files_after")},
            "notes": [*self.notes],
        }


@dataclass
class Maintenance:
    """One run over all tables of a ledger.

    Args:
        ledger: the ledger.
        retention: the retention of rows and files.
        now: the time in UTC.
        config: the property file, for the log start offsets on the sources; needed if offset_syncs has a retention.
    """

    ledger: Ledger
    retention: Retention
    now: datetime
    config: str = ""
    _notes: list[str] = field(default_factory=list)

    @ending(log, "maintenance")
    def run(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Maintains all tables; with `dry_run`, counts the rows that would expire, and changes nothing.

        Raises:
            ConfigurationError: the property file is missing or malformed; nothing was changed.
            LedgerError: a table can't be changed; the tables before it are done.
        """
        expiries = {expires.table: expires for expires in self._expiries()}
        reports = []
        order = [*expiries, *TABLES]  # findings before the verifications that tell their age
        for name in sorted(TABLES, key=order.index):
            report = self._maintain(name, expiries.get(name), dry_run)
            reports.append(report)
            log.info(event("table_maintained", dry_run=dry_run, **asdict(report)))
        return MaintenanceResult(dry_run, tuple(reports), tuple(self._notes))

    def _expiries(self) -> Iterable[Expiry]:
        days = self.retention.days
        if "offset_syncs" in days:
            yield from expiry.of_map(self.ledger, self._before("offset_syncs"), self._log_starts())
        if "checkpoints" in days:
            yield expiry.of_checkpoints(self.ledger, self._before("checkpoints"))
        if "verifications" in days:
            yield from expiry.of_verifications(self.ledger, self._before("verifications"))
        if "counts" in days:
            yield expiry.of_counts(self.ledger, self._before("counts"))
        for name in (*AGED, *NEWEST):
            if name in days:
                yield expiry.of_age(self.ledger, name, self._before(name))

    def _before(self, name: str) -> datetime:
        return self.now - timedelta(days=self.retention.days[name])

    def _maintain(self, name: str, expires: Expiry | None, dry_run: bool) -> TableReport:
        began, table = time.monotonic(), self.ledger.table(name)
        rows, (files, size, properties) = self.ledger.read(name).count(), self._extent(name)
        if dry_run:
            return TableReport(
                table=name,
                rows=rows,
                expired=expires.count(self.ledger) if expires else 0,
                files=files,
                bytes=size,
                files_after=files,
                bytes_after=size,
                files_deleted=None,
                seconds=_since(began),
            )
        if LOG_RETENTION not in properties:  # a table of an earlier version
            self.ledger.change(name, f"ALTER TABLE {table} SET TBLPROPERTIES ({KEPT_LOG})")
        expired = expires.apply(self.ledger) if expires else 0
        if files > 1:
            self.ledger.change(name, f"OPTIMIZE {table}")
        deleted = None
        if self.retention.vacuum_hours is not None:
            self.ledger.change(name, f"VACUUM {table} RETAIN {self.retention.vacuum_hours} HOURS")
            deleted = self._deleted(name)
        files_after, bytes_after, _ = self._extent(name)
        return TableReport(
            table=name,
            rows=rows,
            expired=expired,
            files=files,
            bytes=size,
            files_after=files_after,
            bytes_after=bytes_after,
            files_deleted=deleted,
            seconds=_since(began),
        )

    def _extent(self, name: str) -> tuple[int, int, Mapping[str, str]]:
        """Returns the number of a table's files, their bytes, and the table's properties."""
        (detail,) = self.ledger.spark.sql(f"DESCRIBE DETAIL {self.ledger.table(name)}").collect()
        return detail["numFiles"], detail["sizeInBytes"], detail["properties"]

    def _deleted(self, name: str) -> int | None:
        """Returns the number of files that VACUUM deleted, None if the table's history doesn't have it."""
        history = self.ledger.spark.sql(f"DESCRIBE HISTORY {self.ledger.table(name)} LIMIT 1").collect()
        found = (
            (history[0]["operationMetrics"] or {}).get("numDeletedFiles")
            if history and history[0]["operation"] == "VACUUM END"
            else None
        )
        return None if found is None else int(found)

    # -- the sources --------------------------------------------------------------------------------

    def _log_starts(self) -> list[LogStart]:
        """Reads the log start offsets of all flows of the ledger from their sources, as far as these respond.

        A partition without a leader, or with a silent one, keeps its own map only.
        """
        runs = self.ledger.read("offset_syncs")
        found: list[LogStart] = []
        flows = sorted((row["source"], row["target"]) for row in runs.select("source", "target").distinct().collect())
        properties = Properties.load(self.config) if flows else None
        for source, target in flows:
            name = f"{source}->{target}"
            if properties is None or name not in properties.flows:
                self._note(f"flow {name} is not in {self.config}: its map is kept")
                continue
            try:
                starts, unread = _log_starts(Flow.from_properties(properties, name))
            except MirrorlakeError as error:
                self._note(
                    f"flow {name}: its map is kept, as the log start offsets of the source are not known: {error}"
                )
                continue
            found += [(source, target, *key, start) for key, start in starts.items()]
            if unread:
                first = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unread)[:NAMED])
                more = f" and {len(unread) - NAMED:,} more" if len(unread) > NAMED else ""
                self._note(
                    f"flow {name}: the map of {first}{more} is kept, as cluster {source} does not tell now where these "
                    "logs begin; run the maintenance again once their leaders answer"
                )
        return found

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log.info(event("map_kept", reason=text))


def _log_starts(flow: Flow) -> tuple[dict[PartitionKey, int], set[PartitionKey]]:
    """Returns the log start offset of each partition of a flow, and the partitions of which it can't be listed now."""
    source = Cluster(flow.source_connection, "source", f"{flow.name}|maintain", flow.connect_timeout_ms).connect()
    try:
        topics = {
            name: topic
            for name, topic in source.refresh(None, flow.connect_timeout_ms).items()
            if flow.mirrors_topic(name)
        }
        keys = [(name, partition) for name, topic in topics.items() for partition in range(topic.partitions)]
        return source.log_starts(keys)
    finally:
        source.close()


def _number(name: str, value: str, least: int) -> int:
    if not value.isdecimal() or not least <= int(value) <= MOST:
        raise ConfigurationError(
            f"parameter {name} is '{value}'; allowed is a whole number from {least} to {MOST}, or empty"
        )
    return int(value)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
