"""The driver's part of a micro-batch: the flow that it copies by, and a commit of which parts fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config import reload
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.reload import LiveFlow
from mirrorlake.errors import TargetError
from mirrorlake.failpoint import never
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.micro_batch import MicroBatch
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.transaction import Outcome, Producer
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


def test_a_run_without_an_interval_follows_its_file_from_one_micro_batch_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in PROPERTIES.items()))
    monkeypatch.setattr(reload, "SETTLING_S", 0.0)
    job: Any = object.__new__(MirrorJob)
    job._live = LiveFlow(file, Flow.load(file, "a->b"))
    job._topology, job._keeper, job._lag_keeper = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
    job._has_work = lambda _: False
    with file.open("a") as properties:
        properties.write("mirrorlake.max.bytes.per.second = 100000\n")
    job._mirror(MirrorPlan(1, 1), None, 0, None)
    assert job.flow.max_bytes_per_s == 100_000
    assert job._topology.flow is job._keeper.flow is job._lag_keeper.flow is job.flow
