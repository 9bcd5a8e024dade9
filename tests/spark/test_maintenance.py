"""Maintenance of the ledger: expired rows, and above all the rows that must stay."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mirrorlake.cli import running
from mirrorlake.cli.app import main
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.mirror.observation.lag_keeper import LagKeeper, LagSample
from mirrorlake.ledger import expiry, maintenance, views
from mirrorlake.ledger.checkpoint_row import last_checkpoints
from mirrorlake.ledger.expiry import Expiry
from mirrorlake.ledger.folding import fold_gaps, fold_runs
from mirrorlake.ledger.maintenance import Maintenance, Retention
from mirrorlake.ledger.store import Ledger, standing_differences
from mirrorlake.ledger.tables import LOG_RETENTION, TABLES
from mirrorlake.ledger.trace import audit_tables
from mirrorlake.metrics import Metrics
from mirrorlake.model.gap import RESETS
from mirrorlake.model.partition_lag import FlowLag, PartitionLag, PartitionState

from tests.empty_ledger import ledger_in
from tests.example_ledger import DAY, at, checkpoint, counted, fill, gap, run, verification, write_flow
from tests.log_lines import logged
from tests.log_model import Log, store, write

OF_MAPS = "offset_syncs", "gaps", "expired_ranges", "checkpoints"
FLOW = Flow.from_properties(
    Properties(
        {"clusters": "x, y", "x.bootstrap.servers": "x:1", "y.bootstrap.servers": "y:1", "x->y.enabled": "true"}
    ),
    "x->y",
)


@pytest.fixture(scope="module")
def ledger(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return fill(ledger_in(spark, "maintenance_test", tmp_path_factory.mktemp("maintenance")))


def answers(ledger: Ledger, source: str, logs: list[Log]) -> dict[int, dict[int, tuple[int, str]]]:
    """Returns the translation of every offset of every log, by partition."""
    ends = {log.partition: log.upstream + 5 for log in logs}
    found: dict[int, dict[int, tuple[int, str]]] = {log.partition: {} for log in logs}
    for row in views.read(ledger, "offset_map").filter(f"source = '{source}'").collect():
        end = ends[row["partition"]]
        for offset in range(row["from_offset"], min(row["to_offset"] or end, end)):
            ahead = 0 if row["upstream_start"] is None else max(0, offset - row["upstream_start"])
            found[row["partition"]][offset] = row["downstream_start"] + ahead, row["status"]
    return found


def log_retention(ledger: Ledger, table: str) -> str | None:
    (detail,) = ledger.spark.sql(f"DESCRIBE DETAIL {ledger.table(table)}").collect()
    found: str | None = detail["properties"].get(LOG_RETENTION)
    return found


def test_nothing_goes_that_a_live_group_a_reader_of_the_source_or_the_ledger_itself_still_needs(ledger: Ledger) -> None:
    dice = random.Random(17)
    logs = [Log.at_random(dice, "live", partition, resets=dice.randint(0, 2)) for partition in range(8)]
    store(ledger, logs)
    wanted, starts = {}, {}
    rows = []
    for log in logs:
        starts[log.partition] = dice.randint(0, log.upstream)
        wanted[log.partition] = dice.randint(0, log.upstream)
        rows += [
            checkpoint("live", "t", log.partition, (offset, 0), time)
            for offset, time in ((0, "01:00:00"), (wanted[log.partition], "02:00:00"))
        ]
        rows += [checkpoint("gone", "t", log.partition, (0, 0), "01:00:00")]
    rows.append(checkpoint("gone", None, None, (None, None), "03:00:00", status="deleted"))
    ledger.append("checkpoints", [{**row, "source": "live"} for row in rows])
    cutoff = DAY + timedelta(hours=15)
    before = answers(ledger, "live", logs)
    tables = {name: ledger.read(name).filter("source = 'live'").collect() for name in ("offset_syncs", "gaps")}

    expiries = expiry.of_map(
        ledger, cutoff, [("live", "east", "t", log.partition, starts[log.partition]) for log in logs]
    )
    counted = {expires.table: expires.count(ledger) for expires in expiries}
    assert {expires.table: expires.apply(ledger) for expires in expiries} == counted
    kept = {name: ledger.read(name).filter("source = 'live'").collect() for name in ("offset_syncs", "gaps")}
    assert {name: len(tables[name]) - len(kept[name]) for name in kept} == counted
    assert all(counted.values())
    for partition, after in answers(ledger, "live", logs).items():
        first = min((offset for offset, (_, status) in after.items() if status != "before_mirror"), default=0)
        needed = min(wanted[partition], starts[partition])
        assert {offset: after[offset] for offset in after if offset >= needed} == {
            offset: before[partition][offset] for offset in after if offset >= needed
        }
        assert all(after[offset] == before[partition][offset] for offset in after if offset >= first), (
            "no answer but before_mirror differs from what it was"
        )
    newest = {
        row["sync_partition"]: max(
            other["sync_offset"] for other in tables["offset_syncs"] if other["sync_partition"] == row["sync_partition"]
        )
        for row in tables["offset_syncs"]
    }
    assert {
        row["sync_partition"]: newest[row["sync_partition"]]
        for row in kept["offset_syncs"]
        if row["sync_offset"] == newest[row["sync_partition"]]
    } == newest
    young = {(row["partition"], row["sync_offset"]) for row in tables["offset_syncs"] if row["committed_at"] >= cutoff}
    assert young <= {(row["partition"], row["sync_offset"]) for row in kept["offset_syncs"]}
    resets = {
        name: {row for row in rows["gaps"] if row["kind"] in RESETS}
        for name, rows in (("before", tables), ("kept", kept))
    }
    assert resets["before"] == resets["kept"] != set()
    assert views.read(ledger, "unmirrored").filter("source = 'live' AND kind = 'unknown'").isEmpty(), "a hole"


def test_of_what_one_state_has_of_a_partition_either_all_goes_or_nothing(ledger: Ledger) -> None:
    of_flow: dict[str, Any] = {"source": "whole"}

    def mirrored(state: int, partition: int, upstream: tuple[int, int], target_partition: int) -> dict[str, Any]:
        changes = {**of_flow, "target_partition": target_partition}
        return run(state, "t", partition, upstream, upstream[0], f"0{state}:00:00", **changes)

    def skipped(state: int, partition: int, upstream: tuple[int, int], kind: str) -> dict[str, Any]:
        return gap(state, "t", partition, upstream, kind, upstream[0], f"0{state}:00:00", **of_flow)

    alone = {12: 2, 14: 3}  # a transform has spread the records: these are alone in their partitions
    spread = [mirrored(1 + at // 10, 0, (at, at + 1), alone.get(at, at % 2)) for at in range(25)]
    lossy = [(1, (0, 10)), (2, (15, 20)), (2, (21, 30)), (3, (30, 35))]
    write(ledger, "offset_syncs", fold_runs, spread + [mirrored(state, 1, runs, 9) for state, runs in lossy])
    gaps = [((10, 11), "marker"), ((11, 15), "retention"), ((20, 21), "marker")]
    write(ledger, "gaps", fold_gaps, [skipped(2, 1, *one) for one in gaps])
    assert ledger.read("offset_syncs").filter("source = 'whole'").count() == 2 + 4 + 2 + 3

    starts = [("whole", "east", "t", 0, 16), ("whole", "east", "t", 1, 18)]  # within what state 2 has
    for expires in expiry.of_map(ledger, DAY + timedelta(days=1), starts):
        assert expires.apply(ledger) == (3 if expires.table == "offset_syncs" else 0)
    found = views.read(ledger, "unmirrored").filter("source = 'whole'").select("partition", "from_offset", "kind")
    assert {tuple(row) for row in found.collect()} == {
        (0, 0, "expired"),
        (1, 0, "expired"),
        *((1, start, kind) for (start, _), kind in gaps),
    }
    assert audit_tables(ledger, "whole", "east").violations == []
    for expires in expiry.of_map(ledger, DAY + timedelta(days=1), [("whole", "east", "t", 1, 30)]):
        assert expires.apply(ledger) == (1 if expires.table == "offset_syncs" else 2)


def test_without_the_start_of_the_sources_log_nothing_of_the_map_goes(ledger: Ledger) -> None:
    assert expiry.of_map(ledger, DAY + timedelta(days=1_000), []) == []
    others = expiry.of_map(ledger, DAY + timedelta(days=1_000), [("west", "east", "elsewhere", 0, 10**9)])
    assert [expires.count(ledger) for expires in others] == [0, 0]


def test_of_checkpoints_stays_what_held_then_and_the_last_row_that_left_the_target_in_step(ledger: Ledger) -> None:
    rows = [
        checkpoint("g", "t", 0, (1, 1), "01:00:00"),
        checkpoint("g", "t", 0, (2, 2), "02:00:00"),  # the last that was settled
        checkpoint("g", "t", 0, (3, 3), "03:00:00", sync="held"),
        checkpoint("g", "t", 0, (4, 4), "04:00:00", sync="held"),  # held at the beginning of what is kept
        checkpoint("g", "t", 0, (5, 5), "06:00:00", sync="held"),
        checkpoint("h", "t", 0, (1, 1), "01:00:00"),
        checkpoint("old", "t", 0, (1, 1), "00:30:00"),
        checkpoint("old", "t", 1, (1, 1), "00:40:00", sync="held"),
        checkpoint("old", None, None, (None, None), "01:00:00", status="deleted"),
        checkpoint("old", None, None, (None, None), "02:00:00", status="deleted"),
        checkpoint("again", "t", 0, (1, 1), "01:00:00"),
        checkpoint("again", None, None, (None, None), "02:00:00", status="deleted"),
        checkpoint("again", "t", 0, (2, 2), "03:00:00"),
    ]
    ledger.append("checkpoints", [{**row, "source": "expiry"} for row in rows])
    mine = ledger.read("checkpoints").filter("source = 'expiry'")
    assert {
        (row["known"].group_id, row["known"].upstream_offset, row["settled"].upstream_offset)
        for row in last_checkpoints(mine)
    } == {("g", 5, 2), ("h", 1, 1), ("again", 2, 2)}, "there may be millions of deleted groups"
    ended = last_checkpoints(mine.filter("group_id = 'old'"))
    assert [row["known"].created_at.hour for row in ended] == [2], "the newest row of all, by which clocks go on"
    expires = expiry.of_checkpoints(ledger, at("05:00:00"))
    count = expires.count(ledger)
    assert expires.apply(ledger) == count >= 3
    kept = ledger.read("checkpoints").filter("source = 'expiry'").collect()
    assert {(row["group_id"], row["upstream_offset"], row["created_at"].hour) for row in kept} == {
        ("g", 2, 2),
        ("g", 4, 4),
        ("g", 5, 6),
        ("h", 1, 1),
        ("old", None, 2),
        ("again", None, 2),
        ("again", 2, 3),
    }


def test_the_newest_measurement_of_lag_stays_and_tells_that_none_follows(ledger: Ledger) -> None:
    rows = list[LagSample]()
    for minutes, is_last in ((0, False), (1, False), (2, True)):
        measured_at = datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=minutes - 3)
        one = PartitionLag("t", 0, PartitionState.HELD, "no READ", 5, 9, 9, 4, 0, None, 1.5)
        meter = type("Meter", (), {"measure": lambda self, now=measured_at, one=one: FlowLag("x", "y", now, (one,))})()
        LagKeeper(FLOW, Metrics(), rows.append, meter=meter).measure(is_last=is_last)

    def now() -> list[Any]:
        return views.read(ledger, "lag_now").filter("source = 'x'").collect()

    ledger.append("lag_samples", rows[:2])
    (row,) = now()
    assert (row["state"], row["reason"], row["lag"], row["lag_seconds"]) == ("held", "no READ", 4, 1.5)
    assert (row["measured_at"], row["is_stale"]) == (rows[1].measured_at, False)
    ledger.append("lag_samples", rows[2:])
    assert [row["is_stale"] for row in now()] == [True]
    in_days = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=9)
    assert expiry.of_age(ledger, "lag_samples", in_days).apply(ledger) > 1
    assert [row["measured_at"] for row in now()] == [rows[2].measured_at]


def test_a_dry_run_counts_what_then_goes_and_the_tables_are_compacted(ledger: Ledger, tmp_path: Path) -> None:
    rows = [
        {"source": "west", "target": "east", "kind": "held", "detected_at": DAY + timedelta(days=day)}
        for day in range(6)
    ]
    for row in rows:
        ledger.append("anomalies", [row])  # a file each
    ledger.append(
        "verifications",
        [
            verification(9, *of, (0, 700), f"{24 * 32 + of[1]}:00:00")
            for of in (("t", 0), ("t", 30), ("orders", 0), ("orders", 1), ("payments", 0))  # it has verified all anew
        ],
    )
    for number in (1, 9):
        finding = {
            name: value
            for name, value in verification(number, "t", 0, (0, 1), "12:00:00").items()
            if name in ledger.read("verification_findings").columns
        }
        ledger.append("verification_findings", [{**finding, "kind": "missing"}])
    logs_kept = {
        "gaps": "UNSET TBLPROPERTIES ('{name}')",
        "counts": "SET TBLPROPERTIES ('{name}' = 'interval 90 days')",
    }
    for table, change in logs_kept.items():  # as an earlier version has made it, and as an operator wants it
        ledger.change(table, f"ALTER TABLE {ledger.table(table)} {change.format(name=LOG_RETENTION)}")
    now = DAY + timedelta(days=33)
    job = Maintenance(ledger, Retention({"anomalies": 30, "verifications": 1}, vacuum_hours=None), now)
    with logged() as said:
        dry = job.run(dry_run=True)
    assert log_retention(ledger, "gaps") is None
    planned = {report.table: report.expired for report in dry.tables}
    assert (planned["anomalies"], planned["offset_syncs"]) == (3, 0)
    assert (planned["verifications"], planned["verification_findings"]) == (5, 1)
    assert ledger.read("anomalies").count() == 6
    done = job.run()
    assert {report.table: report.expired for report in done.tables} == planned
    assert done.to_json()["expired"] == {name: count for name, count in planned.items() if count}
    assert {report.table for report in done.tables} == set(TABLES)
    assert sorted(row["detected_at"] for row in ledger.read("anomalies").collect()) == [
        DAY + timedelta(days=day) for day in (3, 4, 5)
    ]
    assert {
        row["verification_id"]
        for name in ("verifications", "verification_findings")
        for row in ledger.read(name).collect()
    } == {"v9"}
    (anomalies,) = [report for report in done.tables if report.table == "anomalies"]
    assert (anomalies.rows, anomalies.files, anomalies.files_after, anomalies.files_deleted) == (6, 6, 1, None)
    kept = {name: log_retention(ledger, name) for name in TABLES}
    assert kept == {**dict.fromkeys(TABLES, "interval 7 days"), "counts": "interval 90 days"}
    assert any("table_maintained dry_run=true table=anomalies rows=6 expired=3 " in line for line in said)


def test_the_command_counts_what_would_expire_and_names_the_flows_whose_maps_stay(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(_: str) -> Iterator[Any]:
        yield ledger.spark

    monkeypatch.setattr(running, "session", shared)
    monkeypatch.setattr(maintenance, "TABLES", {name: TABLES[name] for name in OF_MAPS})
    config = write_flow(tmp_path)
    words = ["maintain", "--config", str(config), "--warehouse", ledger.warehouse, "--schema", ledger.schema]
    before = ledger.read("checkpoints").count()
    done = CliRunner().invoke(main, [*words, "--checkpoints-days", "1", "--dry-run", "--output", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["command"], found["dry_run"]) == ("maintain", True)
    assert found["expired"]["checkpoints"] > 0
    assert ledger.read("checkpoints").count() == before
    assert any(note.startswith("flow west->east: its map is kept") for note in found["notes"])


def test_what_later_jobs_read_never_expires_by_age(ledger: Ledger) -> None:
    flow = {"source": "x", "target": "y"}
    binding, unanswered = "ALLOW READ on TOPIC x.t", "ALLOW READ on TOPIC x.u"
    change: dict[str, Any] = {**flow, "target_topic": "x.t", "outcome": "applied", "changed_at": DAY}
    ledger.append(
        "topology_changes",
        [
            {**change, "kind": "create_acl", "after": binding},
            {**change, "kind": "create_acl", "after": unanswered, "outcome": "no answer: timed out"},
            {**change, "kind": "add_partitions", "before": "1", "after": "2"},
            {**change, "kind": "create_topic", "after": "1", "note": "replication factor 1; retention.ms=5"},
            {**change, "kind": "set_config", "name": "retention.ms", "before": "5", "after": "7"},
        ],
    )
    note: dict[str, Any] = {**flow, "kind": "diverged", "detected_at": DAY}
    ledger.append("anomalies", [{**note, "action": "reapply, signed by ann"}, {**note, "action": "stop"}])
    cycle: dict[str, Any] = {**flow, "cycle_id": "c", "duration_ms": 1.0, "stages_ms": {}}
    jobs = ("mirror", "mirror", "open", "close", "checkpoint")
    ledger.append(
        "cycles",
        [{**cycle, "job": job, "finished_at": DAY + timedelta(hours=at)} for at, job in enumerate(jobs)],
    )
    later = DAY + timedelta(days=400)
    for table in ("topology_changes", "anomalies", "cycles"):
        expires = expiry.of_age(ledger, table, later)
        mine = ledger.read(table).filter("source = 'x'")
        before, others = mine.count(), ledger.read(table).count() - mine.count()
        assert expires.count(ledger) - 1 in range(others + 1)
        expires.apply(ledger)
        assert mine.count() == before - 1, table
    assert sorted(ledger.granted_acls(FLOW)) == [binding, unanswered], "one that may be there is taken back as well"
    assert ledger.set_configs(FLOW) == {("x.t", "retention.ms"): "7"}, "what was set is reset, however late"
    rows = ledger.read("anomalies").filter("source = 'x'").collect()
    assert [row["action"] for row in rows] == ["reapply, signed by ann"]
    kept = {(row["job"], row["finished_at"].hour) for row in ledger.read("cycles").filter("source = 'x'").collect()}
    assert kept == {("mirror", 1), ("open", 2), ("close", 3), ("checkpoint", 4)}


def test_of_verifications_stays_what_the_next_one_goes_on_from_and_what_nothing_has_refuted(ledger: Ledger) -> None:
    def row(number: int, partition: int, upstream: tuple[int, int], day: int, **changes: Any) -> dict[str, Any]:
        values = {"source": "x", "verification_id": f"x{number}", **changes}
        return verification(0, "t", partition, upstream, f"{24 * day}:00:00", **values)

    wrong: dict[str, Any] = {"passed": False, "status": "different"}
    ledger.append(
        "verifications",
        [
            row(1, 0, (0, 10), 1),
            row(2, 0, (10, 20), 2),  # the next one goes on from here
            row(3, 1, (0, 10), 3, **wrong),  # refuted by 4
            row(4, 1, (0, 15), 4),
            row(5, 1, (15, 20), 5, mode="time", **wrong),  # again in 6
            row(6, 1, (15, 25), 6, **wrong),
            row(7, 1, (25, 30), 7, mode="sample"),
            row(6, 2, (0, 10), 6, **wrong),  # ended by 8
            row(8, 2, (0, 10), 8, passed=False, status="not_comparable"),
        ],
    )
    later = DAY + timedelta(days=400)
    expiries = expiry.of_verifications(ledger, later)
    assert [expires.table for expires in expiries] == ["verification_findings", "verifications"]
    for expires in expiries:
        Expiry(expires.table, f"{expires.condition} AND t.source = 'x'", expires.needs).apply(ledger)
    kept = {row["verification_id"] for row in ledger.read("verifications").filter("source = 'x'").collect()}
    assert kept == {"x2", "x4", "x6", "x8"}
    assert [
        row["partition"] for row in standing_differences(ledger.of_pair("verifications", "x", "east")).collect()
    ] == [1]


def test_of_an_hour_that_was_counted_several_times_all_counts_stay_or_none(ledger: Ledger) -> None:
    def row(counting: int, hour: int | None, records: tuple[int, int], day: int) -> dict[str, Any]:
        counted_at = DAY + timedelta(days=day)
        found = {**counted("t", counting, hour or 0, records, "01:00:00"), "source": "x", "counted_at": counted_at}
        return found if hour is not None else {**found, "window_start": None, "window_end": None}

    ledger.append(
        "counts",
        [
            row(1, 0, (5, 5), 1),
            row(1, 1, (7, 0), 1),  # these arrive late
            row(2, None, (0, 0), 2),
            row(3, 1, (0, 7), 9),
            row(3, 2, (3, 3), 9),
            row(4, None, (0, 0), 10),
        ],
    )
    expires = expiry.of_counts(ledger, DAY + timedelta(days=8))
    Expiry("counts", f"{expires.condition} AND t.source = 'x'", expires.needs).apply(ledger)
    kept = ledger.read("counts").filter("source = 'x'").collect()
    assert sorted((row["counting"], row["source_records"], row["target_records"]) for row in kept) == [
        (1, 7, 0),
        (3, 0, 7),
        (3, 3, 3),
        (4, 0, 0),
    ]
    compared = views.read(ledger, "completeness").filter("source = 'x'").collect()
    assert {row["status"] for row in compared} == {"equal"}


def test_the_map_of_a_flow_whose_source_cannot_be_asked_is_kept_and_that_is_said(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TABLES", {name: TABLES[name] for name in OF_MAPS})
    config = write_flow(tmp_path)
    runs = ledger.read("offset_syncs").count()
    result = Maintenance(ledger, Retention({"offset_syncs": 1}, None), datetime(2030, 1, 1), str(config)).run(
        dry_run=True
    )
    assert sum(report.expired for report in result.tables) == 0
    assert any(
        note.startswith("flow west->east: its map is kept, as the log start offsets of the source are not known")
        for note in result.notes
    )
    assert any(note == f"flow live->east is not in {config}: its map is kept" for note in result.notes)
    assert ledger.read("offset_syncs").count() == runs


def test_without_a_property_file_nothing_is_touched_where_runs_have_an_age(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError):
        Maintenance(
            ledger,
            Retention({"offset_syncs": 1, "checkpoints": 1}),
            datetime(2030, 1, 1),
            "/nowhere",
        ).run()
    assert ledger.read("checkpoints").filter("source = 'west'").count() == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset_syncs_days", "0"), ("anomalies_days", "-1"), ("checkpoints_days", "soon"), ("vacuum_hours", "24")],
)
def test_an_age_that_is_no_number_or_too_small_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter {name} is '{value}'"):
        Retention.resolve({name: value})


def test_ages_have_defaults_and_empty_means_for_ever() -> None:
    assert Retention.resolve({}) == Retention(
        {
            "offset_syncs": 90,
            "checkpoints": 365,
            "expectation_results": 90,
            "cycles": 90,
            "counts": 90,
            "lag_samples": 7,
        },
        168,
    )
    assert Retention.resolve({"offset_syncs_days": "", "anomalies_days": "7", "vacuum_hours": ""}) == Retention(
        {
            "checkpoints": 365,
            "expectation_results": 90,
            "cycles": 90,
            "counts": 90,
            "lag_samples": 7,
            "anomalies": 7,
        },
        None,
    )
