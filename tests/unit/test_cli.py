"""The command line: what it parses, prints and returns, without a cluster and without Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result
from mirrorlake.cli import exit_code, machine, options, output, running
from mirrorlake.cli.app import main
from mirrorlake.cli.commands import jobs
from mirrorlake.cli.exit_code import MEANINGS, ExitCode
from mirrorlake.cli.running import STOPPING, session, stopped_by_signals
from mirrorlake.errors import KINDS, FencedError, LedgerError
from mirrorlake.jobs.inspection import finding, overview
from mirrorlake.jobs.inspection.bounded import bounded
from mirrorlake.jobs.inspection.history import FlowHistory, histories
from mirrorlake.jobs.inspection.stored_lag import newest
from mirrorlake.ledger.local_tables import LocalTables
from mirrorlake.model.partition_lag import FlowLag, PartitionLag, PartitionState
from mirrorlake.model.slot import ClosedFor, Position

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/cli.md").read_text()
NOBODY = 65_534
WANTED = (
    "demo clusters mirror checkpoint topics verify promote failover failback status lag pause resume plan report sql "
    "doctor assess maintain"
)
TWO_FLOWS = """\
clusters = west, east
west.bootstrap.servers = 127.0.0.1:1
east.bootstrap.servers = 127.0.0.1:1
west->east.enabled = true
east->west.enabled = true
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "mm2.properties"
    path.write_text(TWO_FLOWS)
    return str(path)


def test_the_page_has_each_command_exit_code_check_and_condition() -> None:
    assert {*main.commands} == {*WANTED.split()}
    assert set(re.findall(r"^\| `([a-z]+)` \| [^|]+ \| (?:yes|no) \|$", PAGE, re.MULTILINE)) == {*main.commands}
    codes = [f"| {code.value} | `{code.name}` | {MEANINGS[code]} |" for code in ExitCode]
    checks = [f"| `{check.value}` | {finding.ABOUT[check]} |" for check in finding.Check]
    conditions = [f"| `{one.value}` | {overview.MEANINGS[one]} |" for one in overview.Condition]
    assert [row for row in codes + checks + conditions if row not in PAGE] == []
    for kind in (finding.DoctorFinding, overview.FlowOverview):
        assert [one.name for one in fields(kind) if f"`{one.name}`" not in PAGE] == []


def test_each_kind_of_error_has_an_exit_code_of_its_own() -> None:
    codes = {name: exit_code.of(kind("x")) for name, kind in KINDS.items()}
    assert len(set(codes.values())) == len(KINDS)
    assert exit_code.of(FencedError("x")) is ExitCode.FENCED
    assert exit_code.of(ValueError("x")) is ExitCode.DEFECT


def test_options_are_the_parameters_of_the_notebooks() -> None:
    """Each parameter of a notebook is an option of its command, with the same default."""
    for name in ("mirror", "checkpoint", "topics", "verify", "failback", "report", "assess", "maintain"):
        cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())["cells"]
        given = next("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", []))
        wanted = dict(re.findall(r'^(\w+) = "(.*)"$', given, re.MULTILINE))
        found = {one.name: one for one in main.commands[name].params if isinstance(one, click.Option)}
        assert wanted.keys() <= found.keys(), name
        for parameter, default in wanted.items():
            option = found[parameter]
            assert f"--{parameter.replace('_', '-')}" in option.opts
            assert option.envvar == f"MIRRORLAKE_{parameter.upper()}"
            assert option.is_flag or parameter == "flow" or option.default == default, (name, parameter)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    """Help, completion, and the modules of commands without Spark do not import it, nor pandas."""
    program = """if True:
        import sys
        from mirrorlake.cli.app import main
        try:
            main(["--help"], prog_name="mirrorlake")
        except SystemExit:
            pass
        import mirrorlake.jobs.inspection.doctor, mirrorlake.jobs.inspection.overview
        import mirrorlake.jobs.inspection.assessment.assess, mirrorlake.jobs.inspection.live_lag
        import mirrorlake.state.pause, mirrorlake.cli.machine
        print(sorted({"pyspark", "pandas", "great_expectations", "matplotlib"} & {*sys.modules}), file=sys.stderr)
    """
    environment = {"PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.strip() == "[]"
    assert "doctor" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mirror", "--config", "nowhere.properties"], 2, "configuration file nowhere.properties can't be read"),
        (["mirror", "--config", "{config}"], 2, "enables 2 flows: west->east, east->west. Name one of them"),
        (["pause", "--config", "{config}", "--flow", "west-", "--reason", "x"], 2, "Quote the flow: --flow 'west->ta"),
        (["status", "--config", "{config}", "--flow", "west->south"], 2, "has no cluster 'south'"),
        (["lag", "--config", "{config}", "--flow", "west"], 2, "is not of the form source->target"),
        (["mirror", "--config", "{config}", "--flow", "west->east", "--trigger", "x"], 2, "parameter trigger is 'x'"),
        (["promote", "--config", "{config}", "--flow", "west->east"], 2, "parameter signed_by is empty"),
        (["verify", "--config", "{config}", "--flow", "west->east", "--mode", "x"], 2, "parameter mode is 'x'"),
        (["assess", "--config", "{config}", "--flow", "west->east", "--mb-per-s", "0"], 2, "a number above 0"),
        (["report", "--warehouse", "nowhere"], 2, "there is no schema mirrorlake in warehouse nowhere"),
        (["maintain", "--warehouse", "nowhere"], 2, "there is no schema mirrorlake in warehouse nowhere"),
        (["maintain", "--dry-run", "--upgrade"], 2, "--dry-run changes no table, so it excludes --upgrade"),
        (["maintain", "--cycles-days", "0"], 2, "parameter cycles_days is '0'; allowed is a whole number from 1 to"),
        (["maintain", "--cycles-days", "99999999"], 2, "cycles_days is '99999999'; allowed is a whole number"),
        (["pause", "--config", "{config}"], 2, "Missing option '--reason'"),
        (["pause", "--config", "{config}", "--flow", "west->east", "--reason", "x" * 501], 2, "1 to 500 characters"),
        (["nothing"], 2, "No such command 'nothing'"),
        (["lag", "--config", "{config}", "--top", "-5"], 2, "-5 is not in the range x>=1"),
        (["status", "--config", "{config}", "--deadline", "nan"], 2, "'nan' is not a number"),
        (["status", "--config", "{config}", "--hours", "-1"], 2, "-1.0 is not in the range 0<x<=87600"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_message_and_no_trace(config: str, words: list[str], code: int, said: str) -> None:
    done = run(*(word.format(config=config) for word in words))
    assert done.exit_code == code
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output
    assert not done.stdout


def test_an_error_is_one_object_too_and_shows_its_trace_when_asked(config: str) -> None:
    done = run("mirror", "--config", config, "--output", "json", "--debug")
    found = json.loads(done.stdout)
    assert (found["command"], found["exit_code"], found["error"]["kind"]) == ("mirror", 2, "ConfigurationError")
    assert "Traceback" in done.stderr


def test_a_defect_is_told_from_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message may hold anything, so only the place is said."""

    def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(options, "choose", fail)
    done = run("status")
    assert done.exit_code == ExitCode.DEFECT
    assert "unexpected KeyError" in done.stderr
    assert "secret" not in done.output


def test_flows_are_completed_from_the_property_file(config: str) -> None:
    for line, wanted in (
        (f"mirrorlake mirror --config {config} --flow w", ["west->east"]),
        ("mirrorlake pa", ["pause"]),
    ):
        words = line.split()
        environment = {"_MIRRORLAKE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = CliRunner().invoke(main, [], prog_name="mirrorlake", env=environment)
        assert [one.partition(",")[2] for one in done.stdout.split()] == wanted


def test_a_table_shows_text_of_others_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "lag"), [("[red]x\x1b[2J", 1234567), (None, "")])
    shown = capsys.readouterr().out
    assert "[red]x\\x1b[2J" in shown
    assert "1,234,567" in shown
    assert "\x1b" not in shown
    assert [output.ago(seconds) for seconds in (59, 121, 7_200, 200_000)] == ["59 s", "2 min", "2 h", "2 d"]


def test_a_look_that_does_not_end_holds_up_no_other() -> None:
    import threading

    never, began = threading.Event(), datetime.now(UTC)

    def fail() -> int:
        raise ValueError("contents")

    answers = bounded({"slow": never.wait, "fails": fail, **{n: lambda n=n: n + 1 for n in range(40)}}, 0.3, at_once=3)
    assert answers["slow"].is_late
    assert "unexpected ValueError" in str(answers["fails"].error)
    assert "contents" not in str(answers["fails"].error)
    assert [answers[n].value for n in range(40)] == [n + 1 for n in range(40)]
    assert list(answers)[:2] == ["slow", "fails"]
    assert (datetime.now(UTC) - began).total_seconds() < 5
    never.set()


def test_the_tables_tell_of_gates_verifications_and_anomalies(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    assert histories(LocalTables(tmp_path, "mirrorlake")) == {}
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def put(table: str, *rows: dict[str, object]) -> None:
        stamped = [{"source": "a", "target": "b", **row} for row in rows]
        write_deltalake(str(tmp_path / "mirrorlake" / table), pa.Table.from_pylist(stamped))

    def ago(minutes: float) -> datetime:
        return now - timedelta(minutes=minutes)

    put(
        "cycles",
        {"job": "checkpoint", "finished_at": ago(30), "unfinished": 3},
        {"job": "checkpoint", "finished_at": ago(10), "unfinished": 1},
        {"job": "mirror", "finished_at": ago(9), "unfinished": None},
        {"job": "mirror", "finished_at": ago(60 * 30), "unfinished": None},
        {"source": "c", "job": "checkpoint", "finished_at": ago(60 * 30), "unfinished": 3},
        {"source": "c", "job": "mirror", "finished_at": ago(1), "unfinished": None},
        {"source": "d", "job": "mirror", "finished_at": ago(1), "unfinished": None},
    )
    gate = {"subject": "a->b", "suite": "offset_syncs", "evaluated_at": ago(12)}
    put("expectation_results", {**gate, "success": False, "cycle_id": "1"}, {**gate, "success": True, "cycle_id": "2"})
    odd = {"topic": "t", "partition": 1, "detail": "gone"}
    put("anomalies", {"kind": "held", "detected_at": ago(5), **odd}, {"kind": "held", "detected_at": ago(3000), **odd})
    found = histories(LocalTables(tmp_path, "mirrorlake"), now=now)["a->b"]
    assert (found.checkpointed_s, found.mirrored_s, found.unfinished) == (600, 540, 1)
    assert (found.gates_failed, found.anomalies, found.newest_anomaly) == (1, {"held": 1}, "held of t-1: gone")
    assert found.problem.startswith("1 gates failed (offset_syncs)")
    verdict = {"topic": "t", "partition": 0, "mode": "full", "status": "different", "passed": False}
    equal = {**verdict, "status": "equal", "passed": True}
    sample = {**equal, "mode": "sample", "finished_at": ago(1)}  # says nothing of the difference
    old = {**verdict, "source": "c", "finished_at": ago(60 * 50)}
    put("verifications", {**equal, "finished_at": ago(4)}, {**verdict, "finished_at": ago(2)}, sample, old)
    flows = histories(LocalTables(tmp_path, "mirrorlake"), now=now)
    quiet = flows["c->b"]
    assert (quiet.checkpointed_s, quiet.not_equal) == (108_000, 1), "neither is forgotten after a day"
    assert flows["d->b"].checkpointed_s is None, "it never had a checkpoint job"
    found = flows["a->b"]
    assert (found.not_equal, found.problem) == (1, "the last verification found differences in 1 partitions")
    assert FlowHistory().problem == ""


@pytest.mark.parametrize(
    ("mirrored_s", "checkpointed_s", "condition"),
    [
        (10.0, 1_000.0, overview.Condition.PROBLEM),
        (10.0, 800.0, overview.Condition.OK),
        (1_000.0, 2_000.0, overview.Condition.OK),  # both on a schedule, or nothing to do
        (10.0, None, overview.Condition.OK),  # a flow without a checkpoint job
    ],
)
def test_a_checkpoint_job_that_has_ended_makes_a_flow_a_problem_that_mirrors(
    mirrored_s: float, checkpointed_s: float | None, condition: overview.Condition
) -> None:
    history = FlowHistory(mirrored_s=mirrored_s, checkpointed_s=checkpointed_s)
    found = overview._with_history(overview.FlowOverview("a->b", overview.Condition.OK, "", ""), history)
    assert found.condition is condition
    assert ("mirrorlake checkpoint --flow 'a->b'" in found.next) == (condition is overview.Condition.PROBLEM)
    closed = overview.FlowOverview("a->b", overview.Condition.CLOSED, "failed over", "")
    assert overview._with_history(closed, history).condition is overview.Condition.CLOSED


@pytest.mark.parametrize(("passed_ago_min", "is_failing"), [(61, True), (59, False)])
def test_a_gate_counts_as_failed_until_its_own_suite_has_passed(
    tmp_path: Path, passed_ago_min: int, is_failing: bool
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def gate(suite: str, minutes: int, *, success: bool) -> dict[str, object]:
        at = now - timedelta(minutes=minutes)
        return {"subject": "a->b", "suite": suite, "evaluated_at": at, "success": success, "cycle_id": f"{minutes}"}

    rows = [gate("checkpoints", 60, success=False), gate("checkpoints", passed_ago_min, success=True)]
    later = rows[0]["evaluated_at"] + timedelta(microseconds=40)  # type: ignore[operator]
    rows.append({**rows[0], "success": True, "evaluated_at": later})  # another expectation of the same evaluation
    rows.append(gate("failover", 50, success=False))
    rows.append(gate("offset_syncs", 1, success=True))
    write_deltalake(str(tmp_path / "mirrorlake/expectation_results"), pa.Table.from_pylist(rows))
    cycle = {"source": "a", "target": "b", "job": "mirror", "finished_at": now, "unfinished": 0}
    write_deltalake(str(tmp_path / "mirrorlake/cycles"), pa.Table.from_pylist([cycle]))
    found = histories(LocalTables(tmp_path, "mirrorlake"), now=now)["a->b"]
    assert (found.gates_failed, bool(found.problem)) == (2, is_failing)


def test_however_many_rows_the_tables_have_the_newest_are_seen(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    now, count = datetime(2026, 11, 20, 12, tzinfo=UTC), 150_000
    flows = pa.table({"source": ["a"] * count, "target": ["b"] * count})

    def put(table: str, time: str, newest: dict[str, Any], **columns: list[Any]) -> None:
        """Writes a file whose rows are some hours old, and then one with a new row of this flow."""
        times = pa.array(
            [now - timedelta(hours=3, milliseconds=10 * at) for at in range(count)], pa.timestamp("us", "UTC")
        )
        rows = flows.append_column(time, times)
        for name, values in columns.items():
            rows = rows.append_column(name, [values])
        last = pa.Table.from_pylist([{"source": "a", "target": "b", time: now, **newest}], rows.schema)
        for file in (last, rows):
            write_deltalake(str(tmp_path / "s" / table), file, mode="append")

    put("cycles", "finished_at", {"job": "checkpoint"}, job=["checkpoint"] * count, unfinished=[7] * count)
    put("anomalies", "detected_at", {"kind": "held", "detail": "new"}, kind=["stopped"] * count,
        topic=["t"] * count, partition=[0] * count, detail=["old"] * count)  # fmt: skip
    verdict = {"topic": "t", "partition": 0, "mode": "full", "status": "different", "passed": False}
    put("verifications", "finished_at", verdict, mode=["full"] * count,
        topic=["t"] * count, partition=[0] * count, status=["equal"] * count, passed=[True] * count)  # fmt: skip
    put("expectation_results", "evaluated_at", {"subject": "a->b", "suite": "s", "cycle_id": "1", "success": False},
        subject=["a->b"] * count, suite=["s"] * count, cycle_id=["0"] * count, success=[True] * count)  # fmt: skip
    found = histories(LocalTables(tmp_path, "s"), now=now)["a->b"]
    assert (found.checkpointed_s, found.unfinished) == (0, None)
    assert (found.anomalies, found.newest_anomaly) == ({"stopped": count, "held": 1}, "held: new")
    assert (found.not_equal, found.gates_failed) == (1, 1)


def test_the_first_signal_stops_a_job_and_the_second_interrupts_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Job:
        stops = 0

        def stop(self) -> None:
            self.stops += 1

    job, before = Job(), signal.getsignal(signal.SIGINT)
    with stopped_by_signals(job):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert job.stops == 1
    assert capsys.readouterr().err == f"{STOPPING}\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_lag_does_not_say_that_nothing_waits_where_nothing_was_measured(config: str, tmp_path: Path) -> None:
    done = run("lag", "--config", config, "--warehouse", str(tmp_path), "--deadline", "0.5")
    assert done.exit_code == ExitCode.FINDINGS
    assert "nothing is waiting" not in done.stdout
    assert done.stdout.count("not measured: ") == 2


def test_whole_numbers_of_a_frame_are_whole_in_an_object_also_where_a_row_has_none() -> None:
    import pandas as pd

    lines = pd.DataFrame({"offset": [1, None], "seconds": [0.5, None], "go": [True, False], "blocks": ["", "lag: 7"]})
    (one, other) = json.loads(json.dumps(output._of_json(output.rows(lines))))
    assert repr(one) == "{'offset': 1, 'seconds': 0.5, 'go': True, 'blocks': ''}"
    assert other == {"offset": None, "seconds": None, "go": False, "blocks": "lag: 7"}


@pytest.mark.parametrize(("variable", "expected"), [(None, "90"), ("", ""), ("7", "7")])
def test_an_empty_variable_is_a_value_as_it_is_for_notebooks(variable: str | None, expected: str) -> None:
    @click.command()
    @options.parameter("offset_syncs_days", "90", "days; empty: never")
    @options.parameter("number", "1", "a number", type=int)
    def show(offset_syncs_days: str, number: int) -> None:
        click.echo(f"<{offset_syncs_days}> {number}")

    environment = {"MIRRORLAKE_OFFSET_SYNCS_DAYS": variable, "MIRRORLAKE_NUMBER": ""}
    assert CliRunner().invoke(show, [], env=environment).stdout == f"<{expected}> 1\n"
    assert CliRunner().invoke(show, ["--offset-syncs-days", "3"], env=environment).stdout == "<3> 1\n"


def test_the_name_of_a_flow_may_have_spaces_around_its_arrow(tmp_path: Path) -> None:
    (tmp_path / "f.properties").write_text(
        "clusters = a, b\na->b.enabled = true\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\n"
    )
    assert options.choose(str(tmp_path / "f.properties"), " a -> b ").names == ("a->b",)


def test_an_object_is_json_whatever_a_frame_has_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    lines = pd.DataFrame({"offset": [1, None], "at": [pd.Timestamp("2026-11-01"), None], "count": [1, 2]})
    output.emit("plan", {"lines": lines.to_dict("records"), "ratio": float("inf")})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    nothing = {"offset": None, "at": None, "count": 2}
    assert found == {
        "command": "plan", "lines": [{"offset": 1.0, "at": "2026-11-01 00:00:00", "count": 1}, nothing], "ratio": None
    }  # fmt: skip


def test_keys_and_bytes_of_a_result_are_text_in_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("sql", {"rows": [{"m": {date(2026, 11, 1): 1, (1, 2): b"\xff"}, "b": bytearray(b"\x00")}]})
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"m": {"2026-11-01": 1, "(1, 2)": "ff"}, "b": "00"}]


def test_the_newest_measurement_is_read_without_the_partitions_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    for source, minutes in (("a", 3), ("a", 1), ("c", 60 * 24 * 9), ("c", 60 * 24 * 10)):
        at = now - timedelta(minutes=minutes)
        partitions = [{"topic": "t", "partition": 0, "lag": minutes}]
        row = {"source": source, "target": "b", "measured_at": at, "due_at": at, "partitions": partitions}
        write_deltalake(str(tmp_path / "s" / "lag_samples"), pa.Table.from_pylist([row]), mode="append")
    read = list[int]()
    rows = LocalTables.rows

    def counted(self: LocalTables, table: str, columns: tuple[str, ...], *rest: Any) -> list[dict[str, Any]]:
        found = rows(self, table, columns, *rest)
        read.extend([len(found)] if "partitions" in columns else [])
        return found

    monkeypatch.setattr(LocalTables, "rows", counted)
    found = newest(LocalTables(tmp_path, "s"), ["a->b", "c->b", "x->b"], now)
    assert {row["flow"]: row["lag"] for row in found} == {"a->b": 1, "c->b": 60 * 24 * 9}
    assert read == [1, 1]


def _state(slot: int, age_s: float, commits: bool = True) -> Any:
    """Returns the last state of a slot that owns one partition: that of a commit, or of a start."""
    position = Position("t", slot, "", "a.t", slot, 0, 0, slot)
    runs = ("a run",) if commits else ()
    created_ms = 1_000 * (time.time() - age_s)
    return SimpleNamespace(
        slot=slot, created_ms=created_ms, generation=1, closed=False, positions=(position,), runs=runs, gaps=()
    )


def _judge(states: list[Any], *partitions: PartitionLag) -> overview.FlowOverview:
    flow = cast("Any", SimpleNamespace(name="a->b", source="a", paused=False))
    return overview._judged(flow, states, None, FlowLag("a", "b", datetime(2026, 11, 20), partitions))


@pytest.mark.parametrize(
    ("states", "partition", "condition"),
    [
        ([(0, 9_000, True)], PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0), "stalled"),
        ([(0, 9_000, True)], PartitionLag("t", 0, PartitionState.PAUSED, lag=5, lag_seconds=9_000.0), "behind"),
        ([(0, 1, True)], PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0), "behind"),
        # Started again and again, it commits nothing.
        (
            [(0, 30, False)],
            PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0),
            "stalled",
        ),
        (
            [(0, 2, False)],
            PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0),
            "behind",
        ),
        # The commits of another slot say nothing of this one.
        (
            [(0, 1, True), (1, 9_000, True)],
            PartitionLag("t", 1, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0),
            "stalled",
        ),
        (
            [(0, 1, True), (1, 9_000, False)],
            PartitionLag("t", 1, PartitionState.MIRRORING, lag=5, lag_seconds=9_000.0),
            "stalled",
        ),
        # A timestamp that can't be right says nothing of the age.
        ([(0, 9_000, True)], PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=None), "stalled"),
        ([(0, 9_000, True)], PartitionLag("t", 0, PartitionState.MIRRORING, lag=5, lag_seconds=20.0), "behind"),
        ([(0, 9_000, True)], PartitionLag("t", 0, PartitionState.MIRRORING, lag=0), "ok"),
    ],
)
def test_a_flow_stalls_if_a_record_is_old_and_its_own_slot_commits_nothing(
    states: list[tuple[int, float, bool]], partition: PartitionLag, condition: str
) -> None:
    idle = PartitionLag("u", 0, PartitionState.MIRRORING, lag=0)
    assert _judge([_state(*one) for one in states], partition, idle).condition == condition


def test_a_flow_that_was_failed_over_stands_by_while_the_one_the_other_way_mirrors() -> None:
    closing = _state(0, 60, commits=False)  # it has neither runs nor gaps
    closing.closed, closing.closed_for = True, ClosedFor.FAILOVER
    closed, home = _judge([closing]), replace(_judge([_state(0, 20, commits=False)]), flow="b->a")
    assert [one.condition for one in overview._paired([closed, home])] == ["standby", "ok"]


def test_what_waits_for_an_open_transaction_is_said() -> None:
    hanging = PartitionLag("t", 0, PartitionState.MIRRORING, lag=0, uncommitted=30)
    found = _judge([_state(0, 60)], hanging)
    assert (found.condition, found.detail) == ("ok", "30 offsets wait for open transactions on a")


def test_no_second_signal_leaves_the_jvm_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = list[bool]()

    class Spark:
        def stop(self) -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            stopped.append(True)

    monkeypatch.setattr("mirrorlake.local.session.local_session", lambda *_: Spark())
    with pytest.raises(running.Terminated), running.terminated_by_sigterm(), session("test"):
        signal.raise_signal(signal.SIGTERM)
    assert stopped == [True]


@pytest.mark.parametrize(
    "words",
    [("pause",), ("pause", "--reason", ""), ("lag", "--top", "x"), ("sql",), ("lag", "--nothing"), ("lag", "x")],
)
@pytest.mark.parametrize("asked", [("--output", "json"), ("--output=json",), ()])
def test_a_wrong_option_is_an_object_too(
    words: tuple[str, ...], asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:
        monkeypatch.setenv("MIRRORLAKE_OUTPUT", "json")
    done = run(*words, *asked)
    found = json.loads(done.stdout)
    assert done.exit_code == found["exit_code"] == ExitCode.CONFIGURATION
    assert (found["command"], found["error"]["kind"]) == (words[0], "ConfigurationError")


@pytest.mark.parametrize(("there", "shown", "is_cut"), [(3, 3, False), (4, 3, True)])
def test_a_result_of_sql_that_is_cut_says_so(
    there: int, shown: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unittest.mock import MagicMock

    from mirrorlake.local import sql as prompt

    spark = MagicMock()
    frame = spark.sql.return_value
    frame.columns = ["n"]
    rows = [MagicMock(asDict=lambda *, recursive, n=n: {"n": n}) for n in range(there)]
    frame.limit.side_effect = lambda most: MagicMock(collect=lambda: rows[:most])
    monkeypatch.setattr(prompt, "ROWS", 3)
    monkeypatch.setattr(prompt, "open_warehouse", lambda *_: spark)
    found = json.loads(run("sql", "SELECT 1", "--output", "json").stdout)
    assert (len(found["rows"]), found["truncated"]) == (shown, is_cut)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (lambda: signal.raise_signal(signal.SIGTERM), ExitCode.TERMINATED),
        (lambda: signal.raise_signal(signal.SIGINT), ExitCode.INTERRUPTED),
        (lambda: output.console().on_broken_pipe(), ExitCode.CUT_OFF),
    ],
)
def test_a_command_that_is_cut_short_has_a_code_and_prints_nothing(
    ending: Any, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    monkeypatch.setattr(output, "discard", lambda: None)
    monkeypatch.setattr(options, "choose", lambda *_: ending())
    try:
        done = run("status", "--output", "json")
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert (done.exit_code, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_has_gone_costs_no_word(tmp_path: Path, config: str) -> None:
    words = f"{sys.executable} -m mirrorlake.cli status --config '{config}' --deadline 0.2 --warehouse '{tmp_path}'"
    script = f"({words}; echo $? >'{tmp_path}/code') | :"
    environment = {"PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert (done.stderr, (tmp_path / "code").read_text()) == ("", f"{ExitCode.CUT_OFF}\n")


def test_standard_output_that_is_closed_or_full_is_no_defect(tmp_path: Path, config: str) -> None:
    words = f"{sys.executable} -m mirrorlake.cli status --config '{config}' --deadline 0.2 --warehouse '{tmp_path}'"
    environment = {"PYTHONPATH": str(ROOT / "lib")}

    def ends(*more: str) -> tuple[int, str]:
        done = subprocess.run(["bash", "-c", " ".join((words, *more))], capture_output=True, text=True, env=environment)
        return done.returncode, done.stderr

    full = "error: Standard output, or a file, can't be written: there is no space left. Free some\n"
    assert ends(">&-") == (ExitCode.FINDINGS, "")
    assert ends("--output json", ">/dev/full") == (ExitCode.LEDGER, full)


def test_the_doctor_looks_at_the_java_that_spark_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (one,) = (one for one in machine.examine(str(tmp_path)) if one.check is finding.Check.JAVA)
    assert (one.level, one.detail) == (finding.Level.PROBLEM, f"{tmp_path}/bin/java does not run: FileNotFoundError")
    monkeypatch.delenv("JAVA_HOME")
    (one,) = (one for one in machine.examine(str(tmp_path)) if one.check is finding.Check.JAVA)
    assert one.level is finding.Level.OK


def level_and_text(warehouse: Path) -> tuple[finding.Level, str]:
    """Returns the doctor's finding about the place of a warehouse."""
    (one,) = (one for one in machine.examine(str(warehouse)) if one.check is finding.Check.SPACE)
    return one.level, one.detail


def become_somebody_else() -> None:
    if os.geteuid() == 0:  # who may write anywhere
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def test_a_warehouse_that_cannot_be_written_or_entered_is_named_by_doctor_and_status(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert level_and_text(tmp_path / "new/warehouse")[0] is finding.Level.OK
    for there in (tmp_path / "file", tmp_path / "file/warehouse"):
        assert level_and_text(there) == (
            finding.Level.PROBLEM, f"warehouse {there} can't be made: {tmp_path}/file is a file"
        )  # fmt: skip
    with (
        ProcessPoolExecutor(1, get_context("fork"), become_somebody_else) as somebody_else,
        TemporaryDirectory() as there,
    ):
        for mode in (0o555, 0):  # it may not be written, and not even be entered
            Path(there).chmod(mode)
            assert somebody_else.submit(level_and_text, Path(there) / "new/warehouse").result() == (
                finding.Level.PROBLEM, f"warehouse {there}/new/warehouse can't be written: {there} is not writable"
            )  # fmt: skip
        assert somebody_else.submit(problem_with, Path(there)).result().startswith(f"warehouse {there} can't be read")
        Path(there).chmod(0o700)


def problem_with(warehouse: Path) -> str:
    """Returns why the tables of a warehouse can't be read, as `status` tells it."""
    try:
        return str(histories(LocalTables(warehouse, "mirrorlake")))
    except LedgerError as error:
        return error.message


@pytest.mark.parametrize(("ends_by_itself", "code"), [(True, ExitCode.PAUSED), (False, ExitCode.OK)])
def test_a_long_job_that_is_stopped_in_a_pause_has_done_what_it_was_told(ends_by_itself: bool, code: ExitCode) -> None:
    result = {"flow": "a->b", "records": 0, "paused": {"by": "ana", "reason": "disks"}}
    assert jobs._told("mirror", result, ends_by_itself=ends_by_itself) is code


def test_each_statement_that_fails_ends_sql_with_the_code_of_a_wrong_parameter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unittest.mock import MagicMock

    from mirrorlake.local import sql as prompt

    spark = MagicMock()
    spark.sql.return_value.columns = []
    monkeypatch.setattr(prompt, "open_warehouse", lambda *_: spark)
    assert run("sql", "SELECT 1").exit_code == ExitCode.OK
    spark.sql.side_effect = ValueError("[PARSE_SYNTAX_ERROR]")
    for words in (("sql", "SELEC"), ("sql", "SELEC", "--output", "json")):
        done = run(*words)
        assert (done.exit_code, "PARSE_SYNTAX_ERROR" in done.stderr) == (ExitCode.CONFIGURATION, True)
    spark.sql.side_effect = BrokenPipeError(32, "Broken pipe")
    assert run("sql", "SELECT 1").exit_code == ExitCode.CUT_OFF
    monkeypatch.setattr(prompt, "open_warehouse", MagicMock(side_effect=LedgerError("the tables are of version 1")))
    assert run("sql", "SELECT 1").exit_code == ExitCode.LEDGER


def test_what_a_command_tells_on_its_way_is_not_in_the_way_of_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorlake.demo import story
    from mirrorlake.local import __main__ as local

    def start(_: Path) -> dict[str, str]:
        print("cluster a runs")
        return {"a": "127.0.0.1:1"}

    def tell() -> list[str]:
        print("1.0 s")
        return ["a group has read twice"]

    monkeypatch.setattr(local, "start", start)
    monkeypatch.setattr(story, "tell", tell)
    done = run("clusters", "start", "--output", "json")
    assert json.loads(done.stdout) == {"command": "clusters", "action": "start", "clusters": {"a": "127.0.0.1:1"}}
    assert "cluster a runs" in done.stderr
    done = run("demo", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout)["healthy"]) == (ExitCode.FINDINGS, False)
    assert run("clusters", "start").stdout == "cluster a runs\n"


def test_an_advice_can_be_typed_as_it_stands() -> None:
    said = "If it stays down: mirrorlake plan --flow 'a->b' --source dead"
    assert options.typed(said, options.CONFIG).endswith("mirrorlake plan --flow 'a->b' --source dead")
    named = options.typed(said, "my file")
    assert named.startswith("If it stays down: ")
    assert named.endswith("mirrorlake plan --config 'my file' --flow 'a->b' --source dead")
    assert options.typed("Set mirrorlake.paused = false", "x") == "Set mirrorlake.paused = false"


@pytest.mark.parametrize(("width", "lines"), [(160, 3), (40, 7)])
def test_columns_that_do_not_fit_beside_each_other_become_lines(
    width: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    monkeypatch.setattr(output, "console", lambda: Console(width=width, force_terminal=True, color_system=None))
    flows = [("west->east", "stalled", 1_234_567, "start-the-job-again"), ("east->west", "ok", None, None)]
    output.table(("flow", "", "lag", "next"), flows)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == lines
    assert all(len(line) <= width for line in shown.splitlines())
    assert "start-the-job-again" in shown
    monkeypatch.undo()
    output.table([f"column-{number}" for number in range(30)], [[1] * 30])
    assert len(capsys.readouterr().out.splitlines()) == 2, "a pipe has no width"


def test_a_verification_without_a_difference_has_no_column_of_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    found = pd.DataFrame({"topic": ["t", "u"], "missing": [0, 0], "partition": [0, 0], "different": [0, 2]})
    found["verified_to"] = pd.Timestamp("2026-11-01 08:00:00.123456")
    output.frame(found, "", unless_zero=jobs.COUNTED)
    shown = capsys.readouterr().out
    assert shown.split("\n")[0].split() == ["topic", "partition", "different", "verified_to"]
    assert "." not in shown, "times are those of people"


def test_a_folder_that_cannot_be_written_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorlake.local import __main__ as local

    (tmp_path / "file").touch()
    monkeypatch.setattr(local, "start", lambda _: (tmp_path / "file/.local").mkdir())
    done = run("clusters", "start")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert f"{tmp_path}/file/.local can't be used: Not a directory" in done.stderr


@pytest.mark.parametrize("command", ["demo", "report"])
def test_an_extra_that_is_missing_is_named_before_anything_starts(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None if name in ("papermill", "pyspark") else object())
    done = run(command)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "needs pyspark and papermill: pip install 'mirrorlake[spark,notebooks]'" in done.stderr


def test_the_list_of_commands_says_of_each_in_a_whole_sentence_what_it_does() -> None:
    done = CliRunner().invoke(main, ["--help"], terminal_width=80)
    assert done.exit_code == ExitCode.OK
    assert [line for line in done.stdout.splitlines()[1:] if line.endswith("...")] == []


def test_of_two_ways_the_one_that_was_failed_over_is_at_rest_while_the_other_one_mirrors() -> None:
    kind, back = overview.FlowOverview, "mirrorlake failback --flow 'a->b' --mode plan"
    left = kind("a->b", overview.Condition.CLOSED, overview.FAILED_OVER, back, generation=3, state_s=60)
    for condition, state_s, wanted in (
        (overview.Condition.OK, 1, overview.Condition.STANDBY),
        (overview.Condition.BEHIND, 1, overview.Condition.STANDBY),
        (overview.Condition.OK, 61, overview.Condition.CLOSED),  # both ways mirrored, and nobody has looked since
        (overview.Condition.PAUSED, 1, overview.Condition.CLOSED),
        (overview.Condition.STALLED, 1, overview.Condition.CLOSED),
        (overview.Condition.NEW, None, overview.Condition.CLOSED),
        (overview.Condition.DOWN, 1, overview.Condition.CLOSED),
        (overview.Condition.CLOSED, 1, overview.Condition.CLOSED),
    ):
        other = kind("b->a", condition, state_s=state_s)
        assert overview._paired([left, other])[0].condition is wanted, (condition, state_s)
    assert overview._paired([left])[0] is left
    handed_back = kind("a->b", overview.Condition.CLOSED, "handed back", "", state_s=60)
    assert overview._paired([handed_back, kind("b->a", overview.Condition.OK, state_s=1)])[0] is handed_back
    unused = kind("a->b", overview.Condition.NEW, "never run", "mirrorlake mirror --flow 'a->b'")
    told = overview._paired([unused, kind("b->a", overview.Condition.OK, state_s=1)])[0]
    assert told.next == "mirrorlake mirror --flow 'a->b', unless it is for a failback only"
    assert overview.Condition.STANDBY not in overview.ATTENTION
