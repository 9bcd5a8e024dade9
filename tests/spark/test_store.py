"""The Delta tables: their columns, their rebuild from the topic's records, and no duplicate rows."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from chispa import assert_df_equality
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, LedgerError
from mirrorlake.gate import Gate
from mirrorlake.jobs.verification.result import PartitionVerification, gate_frame
from mirrorlake.ledger import folding, views
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.ledger.journal import Cycle, CycleJob
from mirrorlake.ledger.offset_sync_rows import gap_rows, offset_sync_states, run_rows
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import ADDED, VERSION, column_definitions
from mirrorlake.ledger.views import Definition
from mirrorlake.model import slot
from mirrorlake.model.gap import EXPLAINED, Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import VERSION as STATE_VERSION
from mirrorlake.model.slot import SlotState
from mirrorlake.model.status import SETTLED, Status, SyncOutcome
from mirrorlake.reasons import NotCompared
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests import example_ledger
from tests.empty_ledger import put_tables
from tests.example_ledger import DAY
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


def of_topic(spark: SparkSession, rows: list[Any]) -> DataFrame:
    """Returns records of an offset-syncs topic, and one that another program has written behind each of them."""
    states = spark.createDataFrame(rows, RECORDS).withColumn(
        "key", F.expr("cast(concat('slot-', partition) AS BINARY)")
    )
    strays = states.withColumns(
        {"offset": F.col("offset") + 1, "key": F.lit(None).cast("binary"), "value": F.lit(b"{}")}
    )
    return states.unionByName(strays)


@pytest.fixture(scope="module")
def ledger(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(spark, "spark_catalog", "ledger_test", str(tmp_path_factory.mktemp("ledger"))).ensure_tables()


def test_a_taken_over_flow_with_a_hole_is_read_on_from_its_last_row(ledger: Ledger) -> None:
    """Of what another program has mirrored, nobody knows why records are missing: there are no gaps."""
    flow = Flow.from_properties(
        Properties(
            {"clusters": "x, y", "x.bootstrap.servers": "x:1", "y.bootstrap.servers": "y:1", "x->y.enabled": "true"}
        ),
        "x->y",
    )
    rows = [
        example_ledger.run(
            sync, "t", 0, (start, start + 10), sync * 10, "10:00:00", source="x", target="y", inferred=True
        )
        for sync, start in ((1, 0), (2, 30))
    ]
    ledger.append("offset_syncs", rows)
    assert ledger._last_whole(flow) == {0: 2}
    ledger.append("offset_syncs", [example_ledger.run(4, "t", 0, (50, 60), 30, "10:00:00", source="x", target="y")])
    ledger.append("offset_syncs", [example_ledger.run(6, "t", 0, (80, 90), 40, "10:00:00", source="x", target="y")])
    assert ledger._last_whole(flow) == {}, "the gaps of its own runs are gone"


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
    ledger.merge_offset_syncs(of_topic(spark, [record(4, run(10)), record(6)]))
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
    ledger.merge_offset_syncs(of_topic(spark, [(bytearray(state.to_json()), 0, 900, datetime(2026, 11, 1))]))
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
    put_tables(str(tmp_path), "older")
    shutil.rmtree(tmp_path / "older/offset_syncs")
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
    older.ensure_tables(upgrade=True).merge_offset_syncs(of_topic(spark, [record(1, run(10))]))
    assert older.ensure_tables().read("offset_syncs").filter("NOT inferred").count() == 1

    cycle = Cycle("a", "b", CycleJob.CHECKPOINT, "0", duration_ms=1.0, stages_ms={})
    older.append("cycles", [cycle])
    for table in ("offset_syncs", "cycles"):
        spark.sql(f"ALTER TABLE {older.table(table)} ADD COLUMNS (of_the_future STRING)")
    older.merge_offset_syncs(of_topic(spark, [record(2, run(20))]))
    older.append("cycles", [cycle])
    for table in ("offset_syncs", "cycles"):
        assert older.read(table).filter("of_the_future IS NULL").count() == 2


def test_a_record_of_a_later_format_is_refused_by_its_number_and_nothing_of_it_is_stored(
    ledger: Ledger, spark: Any
) -> None:
    value, *place = record(50, run(5_000))
    later = bytearray(json.dumps({**json.loads(value), "version": STATE_VERSION + 1}).encode())
    with pytest.raises(Exception, match=f"has format version {STATE_VERSION + 1}; .* Upgrade mirrorlake"):
        ledger.merge_offset_syncs(of_topic(spark, [(later, *place), record(51, run(5_010))]))
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
    ledger.merge_offset_syncs(of_topic(spark, rows[:6]))
    before = ledger.read("offset_syncs").filter("upstream_start >= 1100").localCheckpoint()
    ledger.merge_offset_syncs(of_topic(spark, rows[3:6]))
    assert_df_equality(ledger.read("offset_syncs").filter("upstream_start >= 1100"), before, ignore_row_order=True)
    ledger.merge_offset_syncs(of_topic(spark, rows))
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
                writer.merge_offset_syncs(of_topic(writer.spark, rows))

            list(pool.map(append, writers))
            stored = ledger.read("offset_syncs").filter("upstream_start >= 10000").collect()
            assert sorted(row["sync_offset"] for row in stored) == list(range(len(rows)))
            rounds += 1


def test_a_flow_counts_as_verified_by_verifications_that_have_passed_and_by_no_others(ledger: Ledger) -> None:
    gate = Gate(Path(__file__).resolve().parents[2] / "expectations/verification.json")
    uncovered = PartitionVerification("changed", 0, is_covered=False)
    unread = NotCompared.UNREAD.about(cluster="w", topic="changed", partition=0, error="no leader")
    equal = PartitionVerification("t", 0, records=10, mapped=10, accounted=10)
    gone = PartitionVerification("t", 1, mapped=10, accounted=10, not_comparable=10)
    cases = [
        [equal],
        [equal, gone],
        [equal, uncovered],
        [gone],
        [uncovered],
        [replace(equal, unmirrored=3), gone],
        [equal, PartitionVerification("late", 0, is_covered=False, unmirrored=3)],
        [equal, replace(gone, accounted=9)],
        [replace(equal, missing=1)],
        [equal, replace(uncovered, is_unread=True, notes=[unread])],
    ]
    flows, rows, verdicts = list[Flow](), list[dict[str, Any]](), list[bool]()
    for number, partitions in enumerate(cases):
        alias = f"v{number}"
        properties = {f"{name}.bootstrap.servers": f"{name}:1" for name in (alias, "w")}
        properties |= {"clusters": f"{alias}, w", f"{alias}->w.enabled": "true"}
        flows.append(Flow.from_properties(Properties(properties), f"{alias}->w"))
        common = {"verification_id": alias, "source": alias, "target": "w", "mode": "full", "started_at": DAY}
        common |= {"finished_at": DAY, "offset_syncs_version": 1, "gaps_version": 1}
        rows += [{**one.row(), **common} for one in partitions]
        rows += [{**equal.row(), **common, "verification_id": f"some-{alias}", "topics": "t"}]  # nothing of the others
        rows += [
            {**equal.row(), **common, "verification_id": f"old-{alias}", "pinned": True}
        ]  # nothing of later records
        results = gate.evaluate(gate_frame(partitions), flows[-1].name, alias)
        verdicts.append(all(result.success for result in results))
    ledger.append("verifications", rows)
    assert verdicts == [True] * 3 + [False] * 6 + [True]
    assert [ledger.verified_at(flow) is not None for flow in flows] == [*verdicts[:-1], False]  # not the whole flow


def test_a_timestamp_no_calendar_has_does_not_stop_the_ledger(ledger: Ledger, spark: Any) -> None:
    ledger.merge_offset_syncs(of_topic(spark, [record(30, run(5_000, first_timestamp=-1, last_timestamp=2**62))]))
    (row,) = ledger.read("offset_syncs").filter("upstream_start = 5000").collect()
    assert row["last_timestamp"] is None
    assert row["first_timestamp"] is not None


def test_a_new_session_finds_the_tables_as_they_are(ledger: Ledger, spark: Any) -> None:
    rows = ledger.read("offset_syncs").count()
    spark.sql(f"DROP TABLE {ledger.table('offset_syncs')}")
    assert ledger.ensure_tables().read("offset_syncs").count() == rows


def test_a_reader_makes_nothing_in_a_warehouse_that_has_all_tables(ledger: Ledger, spark: Any, tmp_path: Path) -> None:
    shutil.copytree(
        Path(ledger.warehouse) / ledger.schema, tmp_path / "copied", ignore=shutil.ignore_patterns(".*.lock")
    )

    def files() -> dict[Path, float]:
        return {file: file.stat().st_mtime for file in tmp_path.rglob("*")}

    before = files()
    opened = Ledger(spark, ledger.catalog, "copied", str(tmp_path)).open()
    assert opened.read("offset_syncs").count() == ledger.read("offset_syncs").count()
    assert files() == before


def test_a_schema_that_the_session_knows_from_another_warehouse_is_refused(
    ledger: Ledger, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match="knows schema ledger_test from another warehouse"):
        Ledger(spark, ledger.catalog, ledger.schema, str(tmp_path)).ensure_tables()


def test_an_append_to_a_table_whose_files_are_gone_is_an_error_and_makes_no_table(
    ledger: Ledger, spark: Any, tmp_path: Path
) -> None:
    place = Path(ledger.warehouse) / ledger.schema / "lag_samples"
    rows = spark.createDataFrame([], ledger.read("lag_samples").schema)
    ledger.append_frame("lag_samples", rows)
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match=r"lag_samples` can't be written: .*lag_samples is no Delta table any more"):
        ledger.append_frame("lag_samples", rows)
    assert not place.exists()
    (tmp_path / "elsewhere").rename(place)


def test_a_table_whose_creation_was_cut_short_is_created_by_the_next_start(spark: Any, tmp_path: Path) -> None:
    halfway = Ledger(spark, "spark_catalog", "halfway", str(tmp_path))
    log = tmp_path / "halfway" / "lag_samples" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.tmp").touch()
    spark.sql("CREATE SCHEMA halfway")
    assert halfway._ensure_table("lag_samples", reads=False) == []
    assert halfway.read("lag_samples").count() == 0
    assert halfway._ensure_table("lag_samples", reads=False) == [], "the one that is there stays"
    spark.sql("DROP SCHEMA halfway CASCADE")


@pytest.mark.parametrize("name", ["a-b", "x;y", "", "a b"])
def test_a_schema_that_is_no_name_is_refused(spark: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        Ledger(spark, "spark_catalog", name)


def test_a_warehouse_that_cannot_be_written_is_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="can't be written"):
        Ledger(spark, "spark_catalog", "nowhere", str(tmp_path / "file")).ensure_tables()


def transactions(dice: random.Random, state: int, partition: int) -> tuple[list[Run], list[Gap]]:
    """Returns what a state has of a partition whose source has many small transactions, each with its marker."""
    runs, gaps, upstream, downstream = [], [], 1_000 * state, 900 * state
    for _ in range(dice.choice([1, 2, 40])):
        length, there = dice.randint(1, 9), partition + (partition == 2 and dice.randint(0, 1))  # a transform's choice
        times = [dice.choice([1_700_000_000_123 + dice.randint(-9, 9), -5, 1 << 60]) for _ in range(2)]
        digest = dice.choice([None, 0, 1, 0xFFFFFFFF, dice.getrandbits(32)])
        ends = upstream + length, downstream, downstream + length
        runs.append(
            Run("s", partition, "a.s", there, upstream, *ends, length, dice.randint(61, 999), *times, digest, state % 2)
        )
        upstream, downstream = upstream + length + 2, downstream + length + dice.choice([0, 0, 3])
        kind = dice.choice([*EXPLAINED, GapKind.MARKER, GapKind.HOLE])
        gaps.append(Gap("s", partition, upstream - 2, upstream, kind, state % 2, downstream))
    return runs, gaps


def test_what_a_state_has_of_a_partition_is_one_row_and_unfolds_to_a_row_for_each_run_and_gap(
    ledger: Ledger, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "FOLDED_FROM", slot.VERSION)
    dice, records = random.Random(5), []
    for number in range(6):
        parts = [transactions(dice, number, partition) for partition in range(1 + number % 3)]
        runs, gaps = (tuple(one for of in parts for one in of[which]) for which in (0, 1))
        if number == 4:
            runs[0].records += 1  # an error, which must stay visible
        state = SlotState("a", "b", "c", 0, 1, 3, "id", 1, number, (), runs, 1, inferred=number == 5, gaps=gaps)
        records.append((bytearray(state.to_json()), 0, 50_000 + number, datetime(2026, 11, 1, 12, 0, number)))
    frame = of_topic(spark, records)
    merged = ledger.merge_offset_syncs(frame)
    assert ledger.merge_offset_syncs(frame) == merged, "again, which adds nothing"

    states = offset_sync_states(frame)
    for view, rows in (("offset_sync_runs", run_rows(states)), ("offset_sync_gaps", gap_rows(states))):
        table, were, unfolded = views.UNFOLDED[view], rows.collect(), views.read(ledger, view)
        names = unfolded.columns
        expected = Counter(tuple(row[name] for name in names) for row in were)
        assert Counter(map(tuple, unfolded.filter("topic = 's'").collect())) == expected
        stored = ledger.read(table).filter("topic = 's'").collect()
        alone = (
            [row for row in stored if row["kind"] == "hole"]
            if view.endswith("gaps")
            else [
                row
                for row in stored
                if row["runs"] is None and row["records"] != row["upstream_end"] - row["upstream_start"]
            ]
        )
        keys = Counter(
            (row["sync_offset"], row["partition"], None if view.endswith("gaps") else row["target_partition"])
            for row in stored
            if row not in alone
        )
        assert {*keys.values()} == {1}
        assert len(alone) == (sum(row["kind"] == "hole" for row in were) if view.endswith("gaps") else 1) > 0
        assert len(stored) - len(alone) < len(were) / 5
        if view == "offset_sync_runs":  # a view of a view has each run, too
            current = views.read(ledger, "current_runs").filter("topic = 's'").collect()
            assert Counter((row["partition"], row["upstream_start"]) for row in current) == Counter(
                (row["partition"], row["upstream_start"]) for row in were
            )

        query = Definition.load(view).filled(ledger.table)
        ledger.spark.sql(f"INSERT OVERWRITE {ledger.table(table)} SELECT *, NULL FROM ({query})")  # operations.md
        rewritten = ledger.read(table).filter("topic = 's'").collect()
        assert Counter(tuple(row[name] for name in names) for row in rewritten) == expected
        assert {row[len(names)] for row in rewritten} == {None}
