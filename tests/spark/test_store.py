"""The Delta tables: their columns, their rebuild from the topic's records, and no duplicate rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from chispa import assert_df_equality
from mirrorlake.errors import ConfigurationError, LedgerError
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import ADDED, VERSION, column_definitions
from mirrorlake.model.run import Run
from mirrorlake.model.slot import VERSION as STATE_VERSION
from mirrorlake.model.slot import SlotState
from mirrorlake.model.status import SETTLED, Status, SyncOutcome

from tests.log_lines import of_process

CONTRACT = {
    "offset_syncs": "source target topic partition target_topic target_partition upstream_start upstream_end "
    "downstream_start downstream_end records bytes first_timestamp "
    "last_timestamp digest transactional_id producer_id producer_epoch sync_partition sync_offset committed_at",
    "checkpoints": "source target group_id topic partition target_topic target_partition upstream_offset "
    "downstream_offset metadata source_lag status reason cycle_id created_at",
    "expectation_results": "suite subject expectation success observed unexpected evaluated_at cycle_id",
    "anomalies": "source target topic partition kind from_offset to_offset records detail action detected_at",
}
RECORDS = "value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"


@pytest.fixture(scope="module")
def ledger(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(spark, "spark_catalog", "ledger_test", str(tmp_path_factory.mktemp("ledger"))).ensure_tables()


def record(offset: int, *runs: Run, partition: int = 0) -> tuple[Any, ...]:
    state = SlotState("a", "b", "c", partition, 1, 3, "id", 2**40, 7, (), runs, 1)
    return bytearray(state.to_json()), partition, offset, datetime(2026, 11, 1, 12, 0, offset)


def run(upstream: int, **changes: Any) -> Run:
    values = {"records": 5, "bytes": 100, "first_timestamp": 1_000, "last_timestamp": 2_000, "digest": 0xAB, **changes}
    return Run("t", 0, "a.t", 0, upstream, upstream + 5, upstream + 1, upstream + 6, **values)


@pytest.mark.parametrize("table", CONTRACT)
def test_the_tables_have_the_agreed_columns_first(ledger: Ledger, table: str) -> None:
    wanted = CONTRACT[table].split()
    assert ledger.read(table).columns[: len(wanted)] == wanted


def test_words_of_enumerations_are_strings_in_the_table_and_come_back_as_they_were(ledger: Ledger) -> None:
    from pyspark.sql import functions as F

    row = Checkpoint(
        source="a",
        target="b",
        group_id="words",
        topic="t",
        partition=0,
        status=Status.BEFORE_MIRROR,
        cycle_id="1",
        created_at=datetime(2026, 11, 1),
        sync=SyncOutcome.IN_STEP,
    )
    ledger.append("checkpoints", [row, replace(row, status=Status.DELETED, sync=None)])
    stored = ledger.read("checkpoints").filter("group_id = 'words'")
    assert {found["status"] for found in stored.collect()} == {"before_mirror", "deleted"}
    assert {type(found["status"]) for found in stored.collect()} == {str}
    assert [Checkpoint.from_row(found) for found in stored.filter(stored.sync.isin(*SETTLED)).collect()] == [row]
    assert stored.filter(stored.status == F.lit(Status.DELETED)).count() == 1
    assert stored.filter(stored.status != Status.DELETED).count() == 1


def test_a_run_becomes_a_row_with_where_it_was_read(ledger: Ledger, spark: Any) -> None:
    ledger.merge_offset_syncs(spark.createDataFrame([record(4, run(10)), record(6)], RECORDS))
    (row,) = ledger.read("offset_syncs").filter("upstream_start = 10").collect()
    assert (row["downstream_start"], row["digest"], row["producer_id"], row["sync_offset"]) == (
        11,
        "000000ab",
        2**40,
        4,
    )
    assert row["committed_at"] == datetime(2026, 11, 1, 12, 0, 4)
    assert row["first_timestamp"].replace(tzinfo=UTC).timestamp() == 1


def test_inferred_runs_are_marked_and_have_no_digest(ledger: Ledger, spark: Any) -> None:
    state = SlotState("a", "b", "c", 0, 1, 3, "id", 1, 7, (), (run(700),), 1, inferred=True)
    ledger.merge_offset_syncs(
        spark.createDataFrame([(bytearray(state.to_json()), 0, 900, datetime(2026, 11, 1))], RECORDS)
    )
    rows = {
        row["upstream_start"]: row
        for row in ledger.read("offset_syncs").filter("upstream_start IN (10, 700)").collect()
    }
    assert (rows[700]["inferred"], rows[700]["digest"]) == (True, None)
    assert (rows[10]["inferred"], rows[10]["digest"]) == (False, "000000ab")


def test_tables_of_an_earlier_version_are_refused_until_they_are_upgraded_and_its_jobs_go_on_afterwards(
    spark: Any, tmp_path: Path
) -> None:
    older = Ledger(spark, "spark_catalog", "older", str(tmp_path))
    spark.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.older")
    later = {*ADDED[VERSION]["offset_syncs"]}
    columns = [column for column in column_definitions("offset_syncs") if column.split()[0] not in later]
    assert len(columns) == len(column_definitions("offset_syncs")) - len(later)
    spark.sql(
        f"CREATE TABLE {older.table('offset_syncs')} ({', '.join(columns)}) USING DELTA LOCATION "
        f"'{tmp_path / 'older/offset_syncs'}'"
    )
    with pytest.raises(LedgerError, match=rf"have version {VERSION - 1}, .* needs version {VERSION}.*upgrade = true"):
        older.ensure_tables()
    assert not later & {*older.read("offset_syncs").columns}
    older.ensure_tables(upgrade=True).merge_offset_syncs(spark.createDataFrame([record(1, run(10))], RECORDS))
    assert older.ensure_tables().read("offset_syncs").filter("NOT inferred").count() == 1

    spark.sql(f"ALTER TABLE {older.table('offset_syncs')} ADD COLUMNS (of_the_future STRING)")
    older.merge_offset_syncs(spark.createDataFrame([record(2, run(20))], RECORDS))
    assert older.read("offset_syncs").filter("of_the_future IS NULL").count() == 2


def test_a_record_of_a_later_format_is_refused_by_its_number_and_nothing_of_it_is_stored(
    ledger: Ledger, spark: Any
) -> None:
    value, *place = record(50, run(5_000))
    later = bytearray(json.dumps({**json.loads(value), "version": STATE_VERSION + 1}).encode())
    with pytest.raises(Exception, match=f"has format version {STATE_VERSION + 1}; .* Upgrade mirrorlake"):
        ledger.merge_offset_syncs(spark.createDataFrame([(later, *place), record(51, run(5_010))], RECORDS))
    assert ledger.read("offset_syncs").filter("upstream_start >= 5000 AND upstream_start < 5100").isEmpty()


@pytest.mark.parametrize("version", ADDED)
def test_every_column_that_a_version_has_added_is_nullable_and_at_the_end(version: int) -> None:
    for table, names in ADDED[version].items():
        columns = {column.split()[0]: column for column in column_definitions(table)}
        newer = sum(len(ADDED[later].get(table, ())) for later in ADDED if later > version)
        assert [*columns][len(columns) - newer - len(names) : len(columns) - newer] == [*names]
        assert not any("NOT NULL" in columns[name] for name in names)


def test_records_that_come_twice_change_nothing(ledger: Ledger, spark: Any) -> None:
    rows = [record(offset, run(1_000 + 10 * offset)) for offset in range(10, 20)]
    ledger.merge_offset_syncs(spark.createDataFrame(rows[:6], RECORDS))
    before = ledger.read("offset_syncs").filter("upstream_start >= 1100").localCheckpoint()
    ledger.merge_offset_syncs(spark.createDataFrame(rows[3:6], RECORDS))
    assert_df_equality(ledger.read("offset_syncs").filter("upstream_start >= 1100"), before, ignore_row_order=True)
    ledger.merge_offset_syncs(spark.createDataFrame(rows, RECORDS))
    assert ledger.read("offset_syncs").filter("upstream_start >= 1100").count() == 10


class MeetingLedger(Ledger):
    """A ledger that begins each commit at the same moment as another one."""

    meeting = Barrier(2)

    def _commit(self, name: str, write: Callable[[], Any]) -> Any:
        self.meeting.wait(60)
        return super()._commit(name, write)


def test_two_writers_at_once_without_a_lock_insert_each_run_once(ledger: Ledger, spark: Any) -> None:
    writers = [
        MeetingLedger(spark.newSession(), ledger.catalog, ledger.schema) for _ in range(2)
    ]  # no warehouse: no lock
    rounds = 0
    with ThreadPoolExecutor(2) as pool:
        while not any("ledger_conflict" in line for line in of_process()):
            assert rounds < 6, "no commit has come between the reading and the commit of another one"
            rows = [record(offset, run(10_000 + 10 * offset)) for offset in range(10 * rounds + 10)]

            def append(writer: Ledger, rows: list[Any] = rows) -> None:
                writer.merge_offset_syncs(writer.spark.createDataFrame(rows, RECORDS))

            list(pool.map(append, writers))
            stored = ledger.read("offset_syncs").filter("upstream_start >= 10000").collect()
            assert sorted(row["sync_offset"] for row in stored) == list(range(len(rows)))
            rounds += 1


def test_a_timestamp_no_calendar_has_does_not_stop_the_ledger(ledger: Ledger, spark: Any) -> None:
    ledger.merge_offset_syncs(
        spark.createDataFrame([record(30, run(5_000, first_timestamp=-1, last_timestamp=2**62))], RECORDS)
    )
    (row,) = ledger.read("offset_syncs").filter("upstream_start = 5000").collect()
    assert row["last_timestamp"] is None
    assert row["first_timestamp"] is not None


def test_a_new_session_finds_the_tables_as_they_are(ledger: Ledger, spark: Any) -> None:
    rows = ledger.read("offset_syncs").count()
    spark.sql(f"DROP TABLE {ledger.table('offset_syncs')}")
    assert ledger.ensure_tables().read("offset_syncs").count() == rows


def test_a_schema_that_the_session_knows_from_another_warehouse_is_refused(
    ledger: Ledger, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match="knows schema ledger_test from another warehouse"):
        Ledger(spark, ledger.catalog, ledger.schema, str(tmp_path)).ensure_tables()


@pytest.mark.parametrize("name", ["a-b", "x;y", "", "a b"])
def test_a_schema_that_is_no_name_is_refused(spark: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        Ledger(spark, "spark_catalog", name)


def test_a_warehouse_that_cannot_be_written_is_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="can't be written"):
        Ledger(spark, "spark_catalog", "nowhere", str(tmp_path / "file")).ensure_tables()
