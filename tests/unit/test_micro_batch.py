"""The commit of a micro-batch whose transactions end differently."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import TargetError
from mirrorlake.failpoint import never
from mirrorlake.jobs.mirror.micro_batch import MicroBatch
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
