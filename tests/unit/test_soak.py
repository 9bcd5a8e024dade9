"""The verdicts of the soak: what is flat passes, what grows does not, and what nobody can tell is said so."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from bench import vitals
from bench.judge import Judgement, Verdict, by_window, floor, growth, judge
from bench.soak import verdict
from tests.world import eventually

HOUR_S, WARM_UP_S, EVERY_S = 3600, 600, 10


def series(value: Callable[[float], float], seconds: int = HOUR_S, noise: float = 0.0) -> list[tuple[float, float]]:
    dice = random.Random(1)
    return [(at, value(at) + dice.uniform(-noise, noise)) for at in range(0, seconds, EVERY_S)]


def test_a_series_that_is_level_or_falls_is_flat_whatever_happens_in_the_warm_up() -> None:
    assert judge(series(lambda at: 300), 1, WARM_UP_S).verdict is Verdict.FLAT
    assert judge(series(lambda at: 300, noise=1.0), 1, WARM_UP_S).verdict is Verdict.FLAT
    assert judge(series(lambda at: 400 - at / 100), 1, WARM_UP_S).verdict is Verdict.FLAT
    assert judge(series(lambda at: min(at, WARM_UP_S)), 1, WARM_UP_S).verdict is Verdict.FLAT


def test_a_series_that_grows_by_more_than_the_limit_is_named_with_its_slope() -> None:
    found = judge(series(lambda at: 300 + 5 * at / HOUR_S, noise=0.3), 1, WARM_UP_S)
    assert found.verdict is Verdict.GROWS
    assert found.low < 5 < found.high
    assert found.slope == pytest.approx(5, abs=0.5)
    assert judge(series(lambda at: 300 + 0.5 * at / HOUR_S), 1, WARM_UP_S).verdict is Verdict.FLAT


def test_outliers_move_nothing() -> None:
    assert judge(series(lambda at: 300 + 500 * (at % 600 == 0)), 1, WARM_UP_S).verdict is Verdict.FLAT


def test_one_step_is_no_leak_and_several_are() -> None:
    once = judge(series(lambda at: 300 + 10 * (at >= 2000)), 1, WARM_UP_S)
    assert (once.verdict, once.step) == (Verdict.STEP, 10)
    assert judge(series(lambda at: 300 + 10 * (at // 600)), 1, WARM_UP_S).verdict is Verdict.GROWS
    both = judge(series(lambda at: 300 + 10 * (at >= 2000) + 5 * at / HOUR_S), 1, WARM_UP_S)
    assert both.verdict is Verdict.GROWS, "a step does not hide a leak"


def test_a_peak_and_a_dip_are_no_steps_and_hide_none() -> None:
    def peak(at: float) -> float:
        return 2 * (1_200 <= at < 1_260)

    found = judge(series(lambda at: 588 + (at >= 2_000) + peak(at)), 0.5, WARM_UP_S)
    assert (found.verdict, found.step) == (Verdict.STEP, 1)
    dip = judge(series(lambda at: 300 + 5 * at / HOUR_S - 50 * (2_000 <= at < 2_200)), 1, WARM_UP_S)
    assert dip.verdict is Verdict.GROWS, "its end is the largest rise, and the leak goes on"


def test_a_run_that_is_too_short_or_too_noisy_is_undecided() -> None:
    assert judge(series(lambda at: 300 + at, seconds=WARM_UP_S + 400), 1, WARM_UP_S).verdict is Verdict.UNDECIDED
    assert judge([], 1, WARM_UP_S).verdict is Verdict.UNDECIDED
    assert judge(series(lambda at: 300, seconds=WARM_UP_S + 900, noise=50), 1, WARM_UP_S).verdict is Verdict.UNDECIDED


def test_the_floor_of_what_comes_and_goes_decides() -> None:
    """Garbage, bursts and connections that are made anew stand on a floor; a leak raises it."""
    burst_s = 120

    def sawtooth(at: float) -> float:
        return 40 * (at % 97) / 97 + 25 * (at % burst_s < 30)

    assert judge(series(sawtooth), 1, WARM_UP_S).verdict is Verdict.UNDECIDED
    assert judge(series(sawtooth, noise=0.5), 1, WARM_UP_S, burst_s, floor).verdict is not Verdict.GROWS
    found = judge(series(lambda at: sawtooth(at) + 20 * at / HOUR_S, noise=0.5), 1, WARM_UP_S, burst_s, floor)
    assert found.verdict is Verdict.GROWS
    assert found.low < 20 < found.high


def test_the_part_of_a_window_at_the_end_has_no_floor_and_is_left_out() -> None:
    """A broker that is restarted in the last minute is no growth."""
    level, window_s = series(lambda at: 300 + 50 * (at % 300 < 100), HOUR_S + 60), 240.0
    judged = judge(level, 1, WARM_UP_S, window_s, floor, end_s=HOUR_S + 50)
    assert (judged.verdict, judged.points) == (Verdict.FLAT, 12)
    assert {value for _, value in judged.judged} == {300}
    assert judge(level[:-6], 1, WARM_UP_S, 250, floor, end_s=HOUR_S - 10).points == 12, "10 s less are a whole window"
    holed = [sample for sample in level if not 1_320 <= sample[0] < 1_560]
    assert judge(holed, 1, WARM_UP_S, window_s, floor, end_s=HOUR_S + 50).points == 11, "also if one is empty"


def test_a_series_that_ends_before_the_run_is_undecided() -> None:
    flat = series(lambda at: 300)
    assert judge(flat, 1, WARM_UP_S, end_s=HOUR_S).verdict is Verdict.FLAT
    assert judge(flat[:-60], 1, WARM_UP_S, end_s=HOUR_S).verdict is Verdict.UNDECIDED


def test_the_whole_is_flat_only_if_each_series_is(capsys: pytest.CaptureFixture[str]) -> None:
    of = {kind: Judgement(kind) for kind in Verdict}
    flat, step, grows, undecided = (of[kind] for kind in (Verdict.FLAT, Verdict.STEP, Verdict.GROWS, Verdict.UNDECIDED))
    assert verdict({"a": flat, "b": step}) == 0
    assert verdict({"a": flat, "b": undecided}) == 3
    assert verdict({"a": undecided, "b": grows}) == 1
    assert capsys.readouterr().out.splitlines() == [
        "verdict: nothing grows; one step each: b",
        "verdict: nothing is seen to grow, but nobody can tell of b",
        "verdict: these grow: b",
    ]


def test_the_slope_and_its_interval_are_those_of_theil_and_sen() -> None:
    stats = pytest.importorskip("scipy.stats")
    points = by_window(series(lambda at: 300 + at / 1000, noise=2.0))
    slope, _, low, high = stats.theilslopes([value for _, value in points], [time / HOUR_S for time, _ in points], 0.95)
    assert growth(points) == pytest.approx((slope, low, high), rel=0.02)


def test_the_least_memory_between_two_looks_is_what_a_process_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "LOWEST_S", 0.01)
    code = "import sys; kept = bytearray(b'1' * (64 << 20)); sys.stdin.readline(); del kept; sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        lowest, other = vitals.Lowest(), psutil.Process(process.pid)
        eventually(lambda: lowest.take([other]) > 64 << 20)
        process.stdin.write("\n")
        process.stdin.flush()
        eventually(lambda: lowest.take([other]) < 32 << 20)
        process.communicate("\n")
    assert lowest.take([]) == 0


def test_only_connections_that_end_at_a_worker_are_left_out_of_the_files_of_a_jvm() -> None:
    code = "import socket, sys; found = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as own:
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", code, port], stdin=subprocess.PIPE) as worker:
            kept = [listener.accept()[0], listener.accept()[0]]
            me, other = psutil.Process(), psutil.Process(worker.pid)
            assert vitals._links([me], [other]) == 1
            assert vitals._links([me], []) == 0
            worker.communicate()
        assert vitals._links([me], [other]) == 0, "it has ended: what the JVM keeps of it counts"
        for one in (own, *kept):
            one.close()
