"""The driver's part of a micro-batch: the flow that it copies by, and a commit of which parts fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrorlake.config import reload
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.reload import LiveFlow
from mirrorlake.errors import FencedError, GateError, MirrorlakeError, SourceError, TargetError
from mirrorlake.failpoint import never
from mirrorlake.jobs.mirror.engine import TaskAnswer
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.micro_batch import HELD_S, BatchOutcome, MicroBatch
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.model.copy_plan import Range
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.transaction import Outcome, Producer
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state import offset_syncs
from mirrorlake.state.slot_report import SlotReport

from tests.unit.test_throttle import PROPERTIES


def test_a_slot_whose_commit_is_unknown_hides_none_that_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, unreadable = TargetError("no coordinator", retriable=True), TargetError("no leader", retriable=True)
    dead = Outcome.DEAD
    outcomes: dict[int, Outcome | TargetError] = {0: Outcome.DECIDED, 1: silent, 2: dead, 3: dead, 4: dead}
    found: dict[int, bool | TargetError] = {2: True, 3: False, 4: unreadable}

    async def end_async(_: Cluster, producer: Producer, **__: Any) -> Outcome:
        outcome = outcomes[producer.producer_id]
        if isinstance(outcome, TargetError):
            raise outcome
        return outcome

    def find_state(*_: Any, slot: int, **__: Any) -> bool:
        answer = found[slot]
        if isinstance(answer, TargetError):
            raise answer
        return answer

    monkeypatch.setattr(transaction, "end_async", end_async)
    monkeypatch.setattr(offset_syncs, "find_state", find_state)
    flow = Flow.from_properties(Properties(PROPERTIES), "a->b")
    target = Cluster(Connection("b", (("bootstrap.servers", "localhost:1"),)), "target", "tests")
    reports = [SlotReport(slot, f"id-{slot}", slot, 0, is_open=True, stretches=[], warnings=[]) for slot in outcomes]
    gate: Any = None
    committed, failures = MicroBatch(flow, 1, target, gate, never)._commit(reports)
    target.close()
    assert [report.slot for report in committed] == [0, 2]
    assert failures[0] is silent
    assert "slot 3: the transaction was aborted" in failures[1].message
    assert failures[2] is unreadable
    assert all(failure.retriable for failure in failures)


TICK_S = 0.1  # a third of HELD_S


class Moments:
    """Stands in for copying tasks and clusters, and notes when each slot was copied, and committed or aborted.

    Args:
        answers: the second at which each answer comes, and the slot or its error.
        refused: slots of which the gate refuses a micro-batch.
    """

    def __init__(self, answers: list[tuple[float, int | MirrorlakeError]], refused: set[int]) -> None:
        self.answers, self.refused, self.now = answers, refused, 0.0
        self.copied: dict[int, float] = {}
        self.ended: dict[int, tuple[float, bool]] = {}

    def run(self, *_: Any) -> Iterator[TaskAnswer | None]:
        for number, (at, outcome) in enumerate(self.answers):
            while self.now < at:
                yield None
                self.now = min(at, round(self.now + TICK_S, 3))
            if isinstance(outcome, MirrorlakeError):
                yield TaskAnswer(number, outcome)
            else:
                self.copied[outcome] = self.now
                report = SlotReport(outcome, f"id-{outcome}", outcome, 0, is_open=True, stretches=[], warnings=[])
                yield TaskAnswer(outcome, report)

    def explained(self, _: Any, error: MirrorlakeError) -> MirrorlakeError:
        return error

    def pass_gate(self, reports: list[SlotReport], *_: Any) -> None:
        if self.refused & {report.slot for report in reports}:
            self.end_all(None, [report.producer for report in reports], commit=False)
            raise GateError("refused")

    def end_all(self, _: Any, producers: Iterable[Producer], *, commit: bool, **__: Any) -> list[Outcome]:
        ended = {producer.producer_id: (self.now, commit) for producer in producers}
        self.ended |= ended
        return [Outcome.DECIDED for _ in ended]

    def mirror(self, monkeypatch: pytest.MonkeyPatch) -> BatchOutcome:
        flow, any_one = Flow.from_properties(Properties(PROPERTIES), "a->b"), cast("Any", None)
        batch = MicroBatch(flow, 1, any_one, any_one, never, now=lambda: self.now)
        monkeypatch.setattr(batch, "_pass_gate", self.pass_gate)
        monkeypatch.setattr(batch, "_abort", lambda slots: self.ended.update(dict.fromkeys(slots, (self.now, False))))
        monkeypatch.setattr(transaction, "end_all", self.end_all)
        ranges = tuple(Range("t", slot, "", 20, slot, 0, 1) for slot in range(len(self.answers)))
        return batch.run(MirrorPlan(1, len(ranges), ranges=ranges), cast("Any", self), "1", Stopwatch(), any_one)


def test_no_transaction_waits_for_a_slow_slot_or_for_slots_that_have_no_core_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[tuple[float, int | MirrorlakeError]] = [(5.0 * (1 + slot // 2), slot) for slot in range(15)]
    moments = Moments([*answers, (90.0, 15)], set())
    outcome = moments.mirror(monkeypatch)
    assert sorted(report.slot for report in outcome.committed) == [*range(16)]
    assert not outcome.failures
    held = {slot: at - moments.copied[slot] for slot, (at, _) in moments.ended.items()}
    assert max(held.values()) <= HELD_S + TICK_S
    together = Moments([(0.25 * slot / 15, slot) for slot in range(16)], set())
    together.mirror(monkeypatch)
    assert {at for at, _ in together.ended.values()} == {0.25}, "one verdict and one round of requests for all"


@pytest.mark.parametrize("error", [SourceError("away", retriable=True), SourceError("lost"), FencedError("newer")])
@pytest.mark.parametrize("refused", [set(), {2}])
def test_what_was_committed_before_a_later_slot_failed_is_reported_and_the_rest_is_aborted(
    monkeypatch: pytest.MonkeyPatch, error: MirrorlakeError, refused: set[int]
) -> None:
    moments = Moments([(0.0, 0), (4.0, error), (4.0, 2), (9.0, 3)], refused)
    outcome = moments.mirror(monkeypatch)
    lives_on = error.retriable and not refused
    committed = {0, 2, 3} if lives_on else {0}
    assert {report.slot for report in outcome.committed} == committed
    assert {slot for slot, (_, commit) in moments.ended.items() if commit} == committed
    others = {0, 1, 2, 3} - committed - ({1} if isinstance(error, FencedError) or lives_on else set())
    assert {slot for slot, (_, commit) in moments.ended.items() if not commit} == others
    assert outcome.failures[0] is error if error.retriable else outcome.failures[-1].message
    first_alone = Moments([(0.0, error), (0.0, 1)], set())
    if not error.retriable:
        with pytest.raises(type(error)):
            first_alone.mirror(monkeypatch)


def test_a_micro_batch_of_which_the_gate_refuses_a_part_does_not_wait_for_the_slots_that_still_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = Moments([(0.0, 0), (1.0, SourceError("away", retriable=True)), (90.0, 2), (90.0, 3)], {0})
    with pytest.raises(GateError, match="refused"):
        moments.mirror(monkeypatch)
    assert moments.ended == dict.fromkeys(range(4), (HELD_S, False))
    later = Moments([(0.0, 0), (4.0, 1), (90.0, 2)], {1})
    outcome = later.mirror(monkeypatch)
    assert [report.slot for report in outcome.committed] == [0]
    assert [type(failure) for failure in outcome.failures] == [GateError]
    assert later.ended == {0: (HELD_S, True), 1: (4.0 + HELD_S, False), 2: (4.0 + HELD_S, False)}


def test_the_reason_of_the_gate_is_told_also_where_its_transactions_can_not_be_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TargetError("no coordinator", retriable=True)

    gate: Any = SimpleNamespace(evaluate=lambda *_: [].pop())
    any_one = cast("Any", None)
    batch = MicroBatch(Flow.from_properties(Properties(PROPERTIES), "a->b"), 1, any_one, gate, never)
    monkeypatch.setattr(batch, "_reject", fail)
    with pytest.raises(GateError, match="could not be evaluated"):
        batch._pass_gate([], "cycle", lambda _: None)


def test_a_run_without_an_interval_follows_its_file_from_one_micro_batch_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in PROPERTIES.items()))
    monkeypatch.setattr(reload, "SETTLING_S", 0.0)
    job: Any = object.__new__(MirrorJob)
    job._live = LiveFlow(file, Flow.load(file, "a->b"))
    job._topology, job._keeper, job._lag_keeper, job._progress = (SimpleNamespace(unfit={}) for _ in range(4))
    job._look_into = lambda _: None
    with file.open("a") as properties:
        properties.write("mirrorlake.max.bytes.per.second = 100000\n")
    job._mirror(MirrorPlan(1, 1), None, 0, None)
    assert job.flow.max_bytes_per_s == 100_000
    assert job._topology.flow is job._keeper.flow is job._lag_keeper.flow is job._progress.flow is job.flow
