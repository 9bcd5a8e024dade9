"""The views and functions compared with plain models, and docs/sql.md compared with their real results."""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.errors import LedgerError
from mirrorlake.ledger import views
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.views import FUNCTIONS, VIEWS, Definition, ensure_views, read, use_views
from mirrorlake.local import sql
from mirrorlake.local.sql import statements
from mirrorlake.model.run import Run
from mirrorlake.model.run import translate as by_definition
from mirrorlake.translation.sql_join import MIRRORED, POSITIONS, Mirrored, translate

from tests.example_ledger import DAY, checkpoint, gap, run, verification
from tests.log_lines import logged
from tests.log_model import Log, store
from tests.spark.test_sql_join import RUNS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"```sql\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.fixture
def ledger(example: Ledger, spark: Any) -> Ledger:
    spark.sql("USE spark_catalog.example")  # Spark resolves a table function by its bare name only
    return example


def test_translate_says_for_every_offset_what_the_definition_says_and_the_status_of_the_checkpoint_job(
    ledger: Ledger, spark: Any
) -> None:
    dice = random.Random(7)
    logs = [Log.at_random(dice, "property", partition) for partition in range(6)]
    store(ledger, logs)
    plain = {
        log.partition: [
            Run("t", log.partition, "", 0, *(row[name] for name in RUN_OFFSETS), 0, 0, 0, 0, 0) for row in log.runs
        ]
        for log in logs
    }
    positions = [("g", "t", log.partition, offset, "") for log in logs for offset in range(log.upstream + 5)]
    asked = spark.createDataFrame(positions, POSITIONS)
    found = spark.sql(
        "SELECT p.partition, p.upstream_offset, t.* FROM {p} p, LATERAL translate('property', 'east', 't', "
        "p.partition, p.upstream_offset) t",
        p=asked,
    ).collect()
    assert {(row["partition"], row["upstream_offset"]): row["downstream_offset"] for row in found} == {
        (partition, offset): by_definition(plain[partition], offset) for _, _, partition, offset, _ in positions
    }
    mirrored = [
        Mirrored("t", log.partition, "west.t", 0, log.upstream, log.upstream, log.runs[-1]["downstream_end"])
        for log in logs
    ]
    runs = spark.createDataFrame(
        [
            ("t", run.partition, *(getattr(run, name) for name in RUN_OFFSETS))
            for runs in plain.values()
            for run in runs
        ],
        RUNS,
    )
    gaps = ledger.read("gaps").filter("source = 'property'")
    job = translate(asked, runs, gaps, spark.createDataFrame(mirrored, MIRRORED)).collect()
    assert {(row["partition"], row["upstream_offset"]): row["status"] for row in found} == {
        (row["partition"], row["upstream_offset"]): row["status"] for row in job
    }
    assert {row["status"] for row in found} == {"exact", "clamped", "before_mirror"}


RUN_OFFSETS = ("upstream_start", "upstream_end", "downstream_start", "downstream_end")


def test_after_resets_the_current_map_is_what_was_mirrored_last_and_everything_else_is_unmirrored(
    ledger: Ledger, spark: Any
) -> None:
    dice = random.Random(11)
    logs = [Log.at_random(dice, "resets", partition, resets=dice.randint(1, 4)) for partition in range(8)]
    store(ledger, logs)
    runs = spark.sql("SELECT * FROM current_runs WHERE source = 'resets'").collect()
    said: dict[int, dict[int, int]] = {log.partition: {} for log in logs}
    for row in runs:
        assert (
            row["records"]
            == row["upstream_end"] - row["upstream_start"]
            == row["downstream_end"] - row["downstream_start"]
            > 0
        )
        offsets = {row["upstream_start"] + at: row["downstream_start"] + at for at in range(row["records"])}
        assert not said[row["partition"]].keys() & offsets.keys()
        said[row["partition"]] |= offsets
    assert said == {log.partition: log.mapped for log in logs}
    rows = spark.sql("SELECT * FROM unmirrored WHERE source = 'resets'").collect()
    missing: dict[int, dict[int, str]] = {log.partition: {} for log in logs}
    for row in rows:
        assert row["cause"]
        if row["kind"] != "truncated":
            missing[row["partition"]] |= dict.fromkeys(range(row["from_offset"], row["to_offset"]), row["kind"])
    assert missing == {log.partition: log.missing for log in logs}
    at = ", ".join(f"({log.partition}, {log.upstream})" for log in logs)
    places = spark.sql(
        f"SELECT p.p, t.* FROM VALUES {at} p (p, o), LATERAL translate('resets', 'east', 't', p.p, p.o) t"
    ).collect()
    assert {row["p"]: (row["downstream_offset"], row["status"]) for row in places} == {
        log.partition: (log.downstream, "exact") for log in logs
    }, "behind all that is mirrored, also where the log that began last has no record yet"
    assert sum(row["kind"] == "truncated" and row["is_loss"] for row in rows) == sum(log.incarnation for log in logs)


def test_before_all_that_a_flow_has_passed_without_a_record_is_before_the_mirror(ledger: Ledger, spark: Any) -> None:
    ledger.append("gaps", [gap(1, "t", 0, (10, 12), "aborted", 0, "10:00:00", source="late")])
    found = spark.sql(
        "SELECT p.o, t.* FROM VALUES (0), (9), (10), (12), (13) p (o), LATERAL translate('late', 'east', 't', 0, p.o) t"
    ).collect()
    assert {row["o"]: (row["downstream_offset"], row["status"]) for row in found} == {
        0: (0, "before_mirror"),
        9: (0, "before_mirror"),
        10: (0, "exact"),
        12: (0, "exact"),
        13: (0, "clamped"),
    }


def test_a_view_can_be_read_without_being_there(ledger: Ledger, spark: Any) -> None:
    for name in ("current_runs", "current_position"):
        found, said = read(ledger, name).collect(), spark.table(ledger.table(name)).collect()
        assert len(found) > 0
        assert set(found) == set(said)


def test_a_partition_that_a_transform_has_spread_has_no_place_of_its_own(ledger: Ledger, spark: Any) -> None:
    pieces = [((0, 5), 0, 0), ((5, 7), 0, 1), ((7, 9), 5, 0)]
    ledger.append(
        "offset_syncs",
        [
            run(1, "t", 0, upstream, start, "12:00:00", target_partition=partition, source="spread")
            for upstream, start, partition in pieces
        ],
    )
    found = spark.sql(
        "SELECT p.o, t.* FROM VALUES (1), (6), (8), (99) p (o), LATERAL translate('spread', 'east', 't', 0, p.o) t "
        "ORDER BY p.o"
    ).collect()
    assert [(row["target_partition"], row["downstream_offset"]) for row in found] == [(0, 1), (1, 1), (0, 6), (0, 7)]
    assert {row["status"] for row in found} == {"not_covered"}
    at_a_time = "SELECT * FROM translate_time('spread', 'east', 't', 0, TIMESTAMP '2026-11-20 11:59:00')"
    (place,) = spark.sql(at_a_time).collect()
    assert (place["upstream_offset"], place["target_partition"], place["downstream_offset"]) == (0, None, None)


def test_a_time_at_or_before_the_first_run_has_no_offset_once_the_map_before_it_has_expired(
    ledger: Ledger, spark: Any
) -> None:
    for source in ("aged", "young", "rebuilt"):
        runs = [((100, 200), 100, "12:00:00"), ((200, 300), 200, "12:10:00")]
        rows = [run(1, "t", 0, upstream, start, at, source=source) for upstream, start, at in runs]
        ledger.append("offset_syncs", rows)
    expired = {"target": "east", "topic": "t", "partition": 0, "incarnation": 0, "expired_at": DAY}
    ledger.append("expired_ranges", [{**expired, "source": "aged", "to_offset": 100}])
    # The map was read anew from the offset-syncs topic, so that the rows are there again.
    ledger.append("expired_ranges", [{**expired, "source": "rebuilt", "to_offset": 200}])
    times = ", ".join(f"(TIMESTAMP '2026-11-20 {time}:00')" for time in ("11:30", "12:05", "13:00"))
    found = spark.sql(
        "SELECT s, hour(at) * 60 + minute(at) AS minute, t.* FROM VALUES ('aged'), ('young'), ('rebuilt') x (s) "
        f"CROSS JOIN VALUES {times} y (at), LATERAL translate_time(s, 'east', 't', 0, at) t"
    ).collect()
    assert {(row["s"], row["minute"]): (row["upstream_offset"], row["downstream_offset"]) for row in found} == {
        ("aged", 690): (None, None),
        **{(source, 690): (100, 100) for source in ("young", "rebuilt")},
        **{(source, 725): (200, 200) for source in ("aged", "young", "rebuilt")},
        **{(source, 780): (300, 300) for source in ("aged", "young", "rebuilt")},
    }
    assert {row["target_topic"] for row in found} == {"west.t"}


def test_an_offset_of_a_topic_to_which_others_write_too_is_exact_only_if_they_do_no_longer(
    ledger: Ledger, spark: Any
) -> None:
    ledger.append(
        "offset_syncs",
        [
            run(1, "t", 0, (0, 10), 0, "12:00:00", source="shared", shared=False),
            run(2, "t", 0, (10, 20), 15, "12:00:10", source="shared", shared=True),
            run(1, "u", 0, (0, 10), 0, "12:00:00", source="shared", shared=True),
            run(2, "u", 0, (10, 20), 15, "12:00:10", source="shared", shared=False),
        ],
    )
    found = spark.sql(
        "SELECT q.topic, t.downstream_offset, t.status FROM VALUES ('t'), ('u') q (topic), LATERAL translate('shared', "
        "'east', q.topic, 0, 12) t ORDER BY q.topic"
    ).collect()
    assert [tuple(row) for row in found] == [("t", 17, "not_covered"), ("u", 17, "exact")]


def test_what_no_passed_verification_covers_is_unverified(ledger: Ledger, spark: Any) -> None:
    dice = random.Random(13)
    logs = [Log.at_random(dice, "verify", partition) for partition in range(6)]
    store(ledger, logs)
    modes = ("incremental", "full", "time", "sample")
    checks = [
        verification(
            number,
            "t",
            log.partition,
            (start := dice.randint(0, log.upstream), start + dice.randint(1, 20)),
            "12:30:00",
            passed=dice.random() < 0.7,
            mode=dice.choice(modes),
            source="verify",
        )
        for log in logs
        for number in range(dice.randint(0, 6))
    ]
    ledger.append("verifications", checks)
    covered = {
        (check["partition"], offset)
        for check in checks
        if check["passed"] and check["mode"] != "sample"
        for offset in range(check["upstream_from"], check["upstream_to"])
    }
    expected = {(log.partition, offset) for log in logs for offset in log.mapped} - covered
    rows = spark.sql("SELECT * FROM unverified WHERE source = 'verify'").collect()
    mapped = {log.partition: log.mapped for log in logs}
    found = [
        (row["partition"], offset)
        for row in rows
        for offset in range(row["from_offset"], row["to_offset"])
        if offset in mapped[row["partition"]]
    ]
    assert len(found) == len(set(found)) == sum(row["records"] for row in rows)
    assert set(found) == expected
    assert 0 < len(expected) < sum(map(len, mapped.values()))


def test_a_group_is_where_it_was_at_any_time_and_a_deleted_one_is_nowhere(ledger: Ledger, spark: Any) -> None:
    rows = [
        checkpoint("g", "t", 0, (5, 5), "10:00:00"),
        checkpoint("g", "t", 1, (1, 1), "10:00:00"),
        checkpoint("g", "t", 0, (9, 9), "10:05:00"),
        checkpoint("g", None, None, (None, None), "10:10:00", status="deleted"),
        checkpoint("g", "t", 0, (2, 2), "10:20:00"),
    ]
    ledger.append("checkpoints", [{**row, "source": "history"} for row in rows])

    def where(time: str) -> set[tuple[Any, ...]]:
        found = spark.sql(
            f"SELECT * FROM group_history WHERE source = 'history' AND TIMESTAMP '2026-11-20 {time}' >= valid_from AND "
            f"(valid_to IS NULL OR TIMESTAMP '2026-11-20 {time}' < valid_to)"
        )
        return {(row["topic"], row["partition"], row["downstream_offset"]) for row in found.collect()}

    assert where("09:59:59") == set()
    assert where("10:00:00") == {("t", 0, 5), ("t", 1, 1)}
    assert where("10:07:00") == {("t", 0, 9), ("t", 1, 1)}
    assert where("10:15:00") == {(None, None, None)}
    now = spark.sql("SELECT * FROM current_position WHERE source = 'history'").collect()
    assert {(row["topic"], row["partition"], row["downstream_offset"], row["status"]) for row in now} == {
        ("t", 0, 2, "exact"),
    }, "a group that is back is not deleted"


def test_ends_that_were_seen_before_a_reset_are_of_another_log(ledger: Ledger, spark: Any) -> None:
    ledger.append("offset_syncs", [run(1, "t", 0, (0, 500), 0, "10:00:00", source="ends")])
    ledger.append("gaps", [gap(2, "t", 0, (0, 500), "recreated", 500, "11:00:00", source="ends")])
    ledger.append("offset_syncs", [run(3, "t", 0, (0, 30), 500, "11:00:00", 1, source="ends")])
    rows = [{**checkpoint("g", "t", 0, (9, 9), "10:30:00", source_lag=600), "source": "ends"}]
    ledger.append("checkpoints", rows)

    def seen() -> set[tuple[Any, ...]]:
        found = spark.sql("SELECT * FROM lag WHERE source = 'ends' AND group_id IS NULL").collect()
        return {(row["log_end"], row["source_lag"]) for row in found}

    assert seen() == {(None, 0)}
    ledger.append("checkpoints", [{**row, "created_at": row["created_at"] + timedelta(hours=1)} for row in rows])
    assert seen() == {(609, 579)}


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_multiplies_rows_with_rows(ledger: Ledger, spark: Any, name: str) -> None:
    plan = spark.sql(f"EXPLAIN SELECT * FROM {name}").first()[0]
    assert "Scan" in plan
    assert not re.search("NestedLoop|Cartesian", plan)


def test_a_translation_reads_one_partition_only(ledger: Ledger, spark: Any) -> None:
    plan = spark.sql("EXPLAIN SELECT * FROM translate('a', 'b', 't', 3, 77)").first()[0]
    filters = [line for line in plan.splitlines() if "FileScan" in line and "offset_syncs" in line]
    assert filters
    assert all("EqualTo(topic,t)" in line and "EqualTo(partition,3)" in line for line in filters)


@pytest.mark.parametrize("name", VIEWS)
def test_the_columns_of_a_view_are_called_what_its_query_calls_them(ledger: Ledger, spark: Any, name: str) -> None:
    definition = Definition.load(name)
    query = definition.statement(ledger).partition(" AS ")[2]
    names = [column for column, _, _ in definition.columns]
    assert spark.sql(query).columns == names == spark.table(ledger.table(name)).columns
    described = {row["col_name"]: row["comment"] for row in spark.sql(f"DESCRIBE TABLE {ledger.table(name)}").collect()}
    assert described == {column: says for column, _, says in definition.columns}


def test_the_page_shows_what_is_answered(ledger: Ledger, spark: Any) -> None:
    examples = EXAMPLE.findall((ROOT / "docs/sql.md").read_text())
    assert [_shown(spark.sql(query)) for query, _ in examples] == [text.strip() for _, text in examples]
    asked = " ".join(query for query, _ in examples)
    assert {name for name in (*VIEWS, *FUNCTIONS) if not re.search(rf"(FROM|JOIN|LATERAL) {name}\b", asked)} == {
        "resets",
        "expired",
        "current_gaps",
    }


def _shown(frame: Any) -> str:
    return frame._jdf.showString(100, 0, False).strip()


def test_a_view_of_somebody_else_stays_as_it_is_and_one_that_is_missing_is_named(
    ledger: Ledger, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.bare")
    bare = Ledger(spark, "spark_catalog", "bare")
    with pytest.raises(LedgerError, match=r"bare lacks the views resets, .* Run notebooks/maintain.ipynb once"):
        use_views(bare)
    with pytest.raises(LedgerError, match=r"bare can't be read: offset_syncs, gaps, .* needs USE CATALOG"):
        bare.open()
    with pytest.raises(LedgerError, match=r"view `spark_catalog`\.`bare`\.`resets` can't be created"):
        ensure_views(bare)  # without the tables, creating them fails
    monkeypatch.setattr(views, "VIEWS", ("lag",))
    monkeypatch.setattr(views, "FUNCTIONS", ("translate",))
    monkeypatch.setattr(Definition, "statement", lambda *_: "SELECT not_allowed()")
    with logged() as said:
        ensure_views(ledger)
    assert [line.partition(" error=")[0] for line in said] == [
        "WARNING view_not_updated view=`spark_catalog`.`example`.`lag`",
        "WARNING view_not_updated view=`spark_catalog`.`example`.`translate`",
    ]


def test_sql_answers_a_statement_and_says_what_is_wrong_with_another(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "SELECT group_id, '\x1b[31m' FROM current_position\nWHERE group_id = 'billing';\nSELECT nothing FROM lag;\n"
    session = ledger.spark.newSession()
    monkeypatch.setattr(sql, "local_session", lambda *_: session)  # one of its own takes ten seconds to start
    monkeypatch.setattr(type(session), "stop", lambda _: None)
    monkeypatch.setattr(sql, "configure", lambda **_: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    capsys.readouterr()
    assert sql.main({"WAREHOUSE": ledger.warehouse, "SCHEMA": "example"}) == 1
    said = capsys.readouterr()
    assert said.out.count("billing") == 2
    assert "\\x1b[31m" in said.out
    assert "\x1b" not in said.out
    assert "cannot be resolved" in said.err
    assert "Traceback" not in said.err


def test_sql_on_a_warehouse_that_is_not_there_says_so_and_makes_none(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "WAREHOUSE": str(tmp_path / "none"),
        "QUERY": "SELECT 1",
        "PYTHONPATH": str(ROOT / "lib"),
    }
    asked = subprocess.run(
        [sys.executable, "-m", "mirrorlake.local.sql"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "there is no schema mirrorlake in warehouse" in asked.stderr
    assert not (tmp_path / "none").exists()


def test_statements_end_with_a_semicolon_at_the_end_of_a_line() -> None:
    assert [*statements(["SELECT ';'", "  ;", "", "SHOW TABLES; ", "SELECT 2"])] == [
        "SELECT ';'",
        "SHOW TABLES",
        "SELECT 2",
    ]
