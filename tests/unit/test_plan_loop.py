"""The pace of the loop that plans, and its thread on Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import accumulate, repeat
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from mirrorlake.errors import LedgerError, MirrorlakeError, SourceError, TargetError
from mirrorlake.failpoint import never
from mirrorlake.jobs.mirror import plan_loop, spark_engine
from mirrorlake.jobs.mirror.copy.task import chosen, packed
from mirrorlake.jobs.mirror.engine import TaskAnswer
from mirrorlake.jobs.mirror.in_process import InProcessTasks
from mirrorlake.jobs.mirror.plan_loop import IDLE_S, PlanLoop, longer
from mirrorlake.jobs.mirror.planning.plan import HandledPlan, MirrorPlan
from mirrorlake.jobs.mirror.spark_engine import Running, SparkEngine
from mirrorlake.metrics import Metrics
from mirrorlake.model.copy_plan import Range


@pytest.mark.parametrize("interval_s", [0.0, 0.3, 0.9, 5.0])
def test_an_idle_source_is_asked_less_often_but_each_second_and_never_more_often_than_the_interval(
    interval_s: float,
) -> None:
    pauses = list(accumulate(repeat(0, 20), lambda pause_s, _: longer(interval_s, pause_s), initial=interval_s))
    assert pauses == sorted(pauses)
    assert pauses[-1] == max(IDLE_S, interval_s)
    assert len([pause_s for pause_s in pauses if pause_s < IDLE_S]) < 10


class Loop(PlanLoop):
    """A loop without clusters."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def run(self, *_: object) -> None:
        self._work()


def running(loop: PlanLoop) -> Running:
    return Running(loop, SimpleNamespace(flow=SimpleNamespace(name="a->b")), SimpleNamespace())  # type: ignore[arg-type]


class Jvm:
    """A session whose JVM is there until it is killed."""

    is_killed = is_stopped = False
    is_guarded = True

    @property
    def sparkContext(self) -> Any:  # noqa: N802 (Spark's name)
        return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=self._answer)))

    def _answer(self) -> bool:
        if self.is_killed:
            raise ConnectionRefusedError("Connection refused")
        if self.is_guarded and not self.is_stopped:
            raise RuntimeError("Method public boolean isStopped() is not allowed")
        return self.is_stopped


@pytest.mark.parametrize("interval_s", [None, 0.1])
@pytest.mark.parametrize(("how", "why"), [("is_killed", "Connection refused"), ("is_stopped", "it was stopped")])
def test_a_run_ends_with_its_session_though_this_process_could_copy_on(
    interval_s: float | None, how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "SESSION_LOOK_S", 0.01)
    jvm, watched = Jvm(), 0

    def watch() -> None:
        nonlocal watched
        watched += 1
        setattr(jvm, how, True)

    session: Any = jvm
    engine = SparkEngine(session)
    engine._loop = loop = Loop(lambda: loop._stopping.wait(10))
    if interval_s is None:
        setattr(jvm, how, True)
    flow: Any = SimpleNamespace(name="a->b")
    run: Any = SimpleNamespace(flow=flow, interval_s=interval_s, watch=watch)
    with pytest.raises(LedgerError, match=rf"flow a->b: the Spark session has ended \(.*{why}\).*start the job again"):
        engine.run(run)
    assert watched == (interval_s is not None)


@pytest.mark.parametrize(
    ("error", "message"),
    [(SourceError("the broker is away"), "the broker is away"), (KeyError("x"), "handling a micro-batch.*KeyError")],
)
def test_an_error_of_the_loop_ends_the_run(error: Exception, message: str) -> None:
    def fail() -> None:
        raise error

    run = running(Loop(fail))
    run.watched(lambda: None)
    with pytest.raises(MirrorlakeError, match=message):
        raise run.error or AssertionError


def test_an_error_between_micro_batches_or_an_interrupt_waits_for_the_micro_batch_under_way() -> None:
    for error in (SourceError("no permission"), KeyboardInterrupt()):
        goes_on, done = threading.Event(), threading.Event()

        def work(goes_on: threading.Event = goes_on, done: threading.Event = done) -> None:
            assert goes_on.wait(30)
            done.set()

        def watch(error: BaseException = error, goes_on: threading.Event = goes_on) -> None:
            threading.Timer(0.1, goes_on.set).start()
            raise error

        run = running(Loop(work))
        try:
            run.watched(watch)
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
        run.join()
        assert done.is_set()
        assert run.error is (error if isinstance(error, SourceError) else None)


def test_tasks_that_are_ended_before_begin_with_no_more_slots() -> None:
    tasks, copied = InProcessTasks(never, lanes=2), list[int]()
    may_end = threading.Event()

    class Copier:
        def copy(self, _flow: object, _plan: object, slot: int, *_: object) -> TaskAnswer:
            copied.append(slot)
            assert slot == 0 or may_end.wait(30)
            return TaskAnswer(slot, SourceError("none"))

    copiers: Any = [Copier() for _ in range(2)]
    tasks._copiers = copiers
    ranges = tuple(Range("t", slot, "", 20, slot, 0, 1) for slot in range(6))
    answers = tasks.run(SimpleNamespace(), MirrorPlan(1, 6, ranges=ranges))  # type: ignore[arg-type]
    assert next(answer.slot for answer in answers if answer is not None) == 0
    threading.Timer(0.1, may_end.set).start()
    answers.close()
    assert not {3, 4, 5} & {*copied}, "behind those under way"


@pytest.mark.parametrize(
    ("slots", "lanes"),
    [((0, 1, 2, 3), [[0], [1], [2], [3]]), ((5,), [[], [5], [], []]), ((0, 4, 8, 12, 16), [[0, 16], [4], [8], [12]])],
)
def test_slots_are_shared_out_evenly_over_the_lanes(slots: tuple[int, ...], lanes: list[list[int]]) -> None:
    tasks, copied = InProcessTasks(never, lanes=4), list[list[int]]()

    class Copier:
        def __init__(self) -> None:
            self.slots: list[int] = []
            copied.append(self.slots)

        def copy(self, _flow: object, _plan: object, slot: int, *_: object) -> TaskAnswer:
            self.slots.append(slot)
            return TaskAnswer(slot, SourceError("none"))

    copiers: Any = [Copier() for _ in range(4)]
    tasks._copiers = copiers
    ranges = tuple(Range("t", slot, "", 20, slot, 0, 1) for slot in slots)
    answers = tasks.run(SimpleNamespace(), MirrorPlan(1, 20, ranges=ranges))  # type: ignore[arg-type]
    assert sorted(answer.slot for answer in answers if answer is not None) == [*slots]
    assert copied == lanes


def test_a_task_of_spark_decodes_only_its_own_part_of_a_plan() -> None:
    own = [Range("t", partition, "", 20, 1, 0, 1) for partition in range(3)]
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64())})
    assert chosen([rows], [b"the ranges of another slot", packed(own)]) == own


def test_a_drain_ends_with_the_error_of_a_plan_that_nothing_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that all topics are held: without the error, nothing that was copied would look like all."""
    plan, held = MirrorPlan(1, 1, number=1), TargetError("all topics are held", retriable=True)
    planner = SimpleNamespace(latest=lambda: plan, handled=lambda _: None, close=lambda: None)
    monkeypatch.setattr(plan_loop, "Planner", lambda *_, **__: planner)
    monkeypatch.setattr(plan_loop, "LiveFlow", lambda *_: None)
    monkeypatch.setattr(plan_loop, "Retries", lambda *_: SimpleNamespace(may_go_on=lambda _: True))

    def handle(*_: object) -> HandledPlan:
        raise held

    flow = SimpleNamespace(name="a->b", retry_timeout_ms=1)
    run: Any = SimpleNamespace(
        config="", flow=flow, slots=1, interval_s=None, run_for_s=None, metrics=None, handle=handle, seen=None
    )
    with pytest.raises(TargetError, match="all topics are held"):
        PlanLoop().run(run, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("run_for_s", [1.0, 0.1], ids=["in its time", "behind its time"])
def test_a_job_that_runs_handles_a_plan_again_that_has_failed_though_it_has_no_news(
    run_for_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would idle without a word, and its next failure, hours later, would be one without a success since
    then: the last one that it survives. A run whose time is up meanwhile would end well, and have done nothing."""
    plan, away = MirrorPlan(1, 1, number=1), TargetError("the controller is away", retriable=True)
    planner = SimpleNamespace(latest=lambda: plan, handled=lambda _: None, close=lambda: None)
    monkeypatch.setattr(plan_loop, "Planner", lambda *_, **__: planner)
    monkeypatch.setattr(plan_loop, "LiveFlow", lambda *_: None)
    loop, failures, handled = PlanLoop(), [away, away], 0

    def handle(*_: object) -> HandledPlan:
        nonlocal handled
        handled += 1
        if failures:
            raise failures.pop()
        return HandledPlan()

    flow, metrics = SimpleNamespace(name="a->b", retry_timeout_ms=60_000), Metrics()
    run: Any = SimpleNamespace(
        config="", flow=flow, slots=1, interval_s=0.01, run_for_s=run_for_s, metrics=metrics, handle=handle, seen=None
    )
    loop.run(run, SimpleNamespace())  # type: ignore[arg-type]
    assert handled == 3, "until it succeeds, and not again"
