"""The evaluation of benchmarks: windows, medians, ratios, limits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench import arrivals
from bench.arrivals import Arrivals, StalledError
from bench.cases import MAIN, find
from bench.check import LIMITS, Limit
from bench.clusters import ROOT
from bench.contestants import CEILING, MIRRORLAKE, MM2_TUNED
from bench.machine import describe
from bench.processes import ProcessTree
from bench.report import measured
from bench.side_by_side import resumed
from bench.summary import medians, ratios, stages
from bench.tables import lines, sizing


class Clock:
    """A time that passes while somebody sleeps, so that the load of a machine is none of what is measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Log:
    """A remote topic of one partition that grows on a schedule: (seconds from now, end offset)."""

    def __init__(self, *schedule: tuple[float, int]) -> None:
        self._schedule = schedule
        self._began = arrivals.time.monotonic()
        self.net = SimpleNamespace(run=lambda _: (9, 10))  # one offset in ten is a marker

    def refresh(self, topics: list[str], _timeout_ms: int) -> dict[str, Any]:
        return {topics[0]: SimpleNamespace(partitions=1, leaders={0: 1})}

    def offsets(self, keys: list[tuple[str, int]], _at: int, _timeout_ms: int) -> dict[tuple[str, int], int]:
        passed = arrivals.time.monotonic() - self._began
        return {keys[0]: max([0, *(offset for at, offset in self._schedule if at <= passed)])}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "time", Clock())
    for name, value in {
        "LOOK_S": 0.02,
        "PAUSE_S": 0.12,
        "BURST_S": 0.3,
        "QUIET_S": 0.2,
        "STALL_S": 0.5,
        "WARM_S": 5.0,
        "WINDOW_S": 5.0,
    }.items():
        monkeypatch.setattr(arrivals, name, value)


def watch(log: Log, records: int) -> arrivals.Window:
    return Arrivals(log, "topic", 1, lambda: (0.0,), lambda: True).window(records)  # type: ignore[arg-type]


def test_a_window_begins_and_ends_with_whole_bursts() -> None:
    window = watch(Log((0.1, 200), (0.5, 400), (0.53, 500), (0.9, 800), (0.93, 1000)), 1000)
    assert (window.first.offsets, window.begin.offsets, window.end.offsets) == (200, 500, 1000)
    assert window.records == 450  # markers are none
    assert window.seconds == pytest.approx(0.42, abs=0.03)


def test_a_window_ends_after_some_time_where_the_records_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "WINDOW_S", 0.4)
    window = watch(Log(*((0.1 * number, 10 * number) for number in range(1, 40))), 300)
    assert window.begin.offsets >= 150
    assert window.end.offsets < 300


def test_what_stalls_is_said() -> None:
    with pytest.raises(StalledError, match="behind 500 offsets"):
        watch(Log((0.1, 500)), 1000)


def test_processes_that_have_ended_count() -> None:
    burn = "import time\nwhile time.process_time() < 1.5: pass"
    words = [
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('ended', flush=True); "
        "sys.stdin.read()",
    ]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent,
        ProcessTree(parent.pid) as tree,
    ):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ended\n"
        assert tree.cpu_s() > 0.5
        parent.communicate()


def backlog(speed: float, cpu: float) -> dict[str, Any]:
    return {"records_per_s": speed, "cpu_s_per_million": cpu, "job": {}}


@pytest.fixture
def results() -> dict[str, Any]:
    job = {
        "history": [
            {"stages_ms": {"copy": 3000, "copy.move": 2500, "gate": 1000}, "seconds": 4.0, "finished_at": at}
            for at in (100.0, 105.0, 110.0)
        ]
    }
    rounds = {
        MM2_TUNED: [backlog(100_000, 12), backlog(120_000, 10), backlog(110_000, 11)],
        MIRRORLAKE: [backlog(300_000, 2), {"error": "it was away"}, {**backlog(360_000, 4), "job": job}],
        CEILING: [backlog(495_000, 1)],
    }
    case: dict[str, Any] = {
        "kind": "backlog",
        "settings": {"records": 10},
        "rounds": rounds,
        "medians": medians(rounds),
    }
    return {"cases": {MAIN: {**case, "ratios": ratios(case)}}}


def test_ratios_are_of_medians_of_what_came_to_an_end(results: dict[str, Any]) -> None:
    assert results["cases"][MAIN]["ratios"] == {
        "speed_over_mm2-tuned": 3.0,
        "cpu_of_mm2-tuned": pytest.approx(3 / 11),
        "time_of_ceiling": 1.5,
        "cpu_of_ceiling": 3.0,
    }


def test_time_between_micro_batches_is_time_too(results: dict[str, Any]) -> None:
    assert stages(results["cases"][MAIN]["rounds"][MIRRORLAKE]) == {"copy": 6000, "gate": 2000, "between": 2000}


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (Limit(MAIN, "speed_over_mm2-tuned", at_least=3.0), None),
        (Limit(MAIN, "speed_over_mm2-tuned", at_least=3.1, aim=4), "3, wanted at least 3.1"),
        (Limit(MAIN, "time_of_ceiling", at_most=1.5), None),
        (Limit(MAIN, "records_per_s", at_least=330_000), None),
        (Limit(MAIN, "records_per_s", at_least=340_000), "3.3e+05, wanted at least 340000"),
        (Limit(MAIN, "time_of_ceiling", at_most=1.4), "1.5, wanted at most 1.4"),
        (Limit(MAIN, "speed_over_mm2-tuned-eos", at_least=1), "no figure"),
        (Limit("trickle", "latency_p50_s", at_most=1), "no figure"),
    ],
)
def test_limits(results: dict[str, Any], limit: Limit, says: str | None) -> None:
    missed = limit.missed(results)
    assert missed is None if says is None else says in (missed or "")


def test_every_limit_is_about_a_case_of_the_default_run() -> None:
    cases = {case.name for case in find("default", 1)}
    assert {Limit(**values).case for values in json.loads(LIMITS.read_text())} <= cases


def test_cases_are_found_by_name_and_set() -> None:
    assert [case.name for case in find("trickle, 512-zstd-200, trickle", 1)] == ["trickle", "512-zstd-200"]
    assert (
        {case.name for case in find("default", 1)}
        < {case.name for case in find("axes", 1)}
        < {case.name for case in find("all", 1)}
    )
    with pytest.raises(ValueError, match="no case 512-gzip-8"):
        find("512-gzip-8", 1)


NOW = {"code": "abc", "processor": "x"}


def test_a_run_that_is_resumed_keeps_the_rounds_of_its_own_code_and_other_cases(results: dict[str, Any]) -> None:
    (case,) = find(MAIN, 1)
    found = results["cases"][MAIN] | {"measured": NOW | {"revision": "r1"}, "settings": case.settings}
    cases = {"trickle": {"rounds": {}}, MAIN: found}
    kept = resumed(cases, [case], NOW | {"revision": "r2"})
    assert {name: len(rounds) for name, rounds in kept[MAIN]["rounds"].items()} == {
        MM2_TUNED: 3,
        MIRRORLAKE: 2,  # the one that failed is measured again
        CEILING: 1,
    }
    assert kept["trickle"] == cases["trickle"]
    smaller = found | {"settings": {**case.settings, "records": 5}}
    dirty = NOW | {"code": "abc-dirty"}
    for others, now in (
        (found, NOW | {"code": "def"}),
        (found, NOW | {"processor": "y"}),
        (found, NOW | {"java": "z"}),
        ({name: value for name, value in found.items() if name != "measured"}, NOW),
        (found, {}),
        (found | {"measured": dirty}, dirty),
        (smaller, NOW),
    ):
        assert MAIN not in resumed({MAIN: others}, [case], now)


def test_the_code_of_this_checkout_has_a_name_and_a_page_names_the_run_of_each_case() -> None:
    run = describe() | {"began": "2026-11-27T10:00:00+00:00"}
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", run["code"]) or not (ROOT / ".git").exists()
    (line,) = measured({"a": {"measured": run}, "b": {"measured": run}})
    assert line.startswith(f"Measured 2026-11-27, revision {run['revision']}: {run['processor']}, ")
    several = measured({"a": {"measured": run}, "b": {"measured": run | {"revision": "other"}}})
    assert [line.partition(" Cases: ")[2] for line in several] == ["a.", "b."]


def test_a_table_has_a_row_for_everyone(results: dict[str, Any]) -> None:
    text = "\n".join(lines(results))
    assert "| MirrorMaker 2, tuned, at-least-once | 110,000 | 11.00 |" in text
    assert "| mirrorlake, exactly-once | 330,000 | 3.00 |" in text
    assert "3.00 times the records/s of MirrorMaker 2, tuned, at-least-once" in text
    assert "copy 60 %, gate 20 %, between 20 %" in text


def test_a_size_is_that_of_a_backlog_between_near_clusters(results: dict[str, Any]) -> None:
    found = results["cases"][MAIN] | {"settings": {"bytes": 512, "codec": "lz4", "batch_records": 500, "partitions": 8}}
    far = found | {"settings": found["settings"] | {"round_trip_ms": 100}}
    _, _, row = sizing({"cases": {MAIN: found, "wan-source": far}})
    assert row == "| 512 B, lz4, batches of 500, 8 partitions | 512-lz4-8 | 3.00 | 0.300 cores | 171 |"
