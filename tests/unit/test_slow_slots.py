"""The time of micro-batches in which a slow slot would hold up others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.jobs.mirror.copy.slot_copy import LEAST_S, SlotCopy
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.planning.slow_slots import BESIDE_S, RECENT_S, SlowSlots
from mirrorlake.model.copy_plan import Range
from mirrorlake.state.slot_report import SlotReport

NO_LIMIT = float("inf")
NEAR = {"plan": 10.0, "copy": 5_000.0, "copy.begin": 10.0, "copy.state": 10.0, "gate": 20.0, "commit": 10.0}
FAR = {"plan": 200.0, "copy": 5_600.0, "copy.begin": 300.0, "copy.state": 100.0, "gate": 0.0, "commit": 100.0}


def plan(*slots: int, topic: str = "t") -> MirrorPlan:
    return MirrorPlan(1, 8, ranges=tuple(Range(topic, slot, "", 8, slot, 0, 1) for slot in slots))


def report(slot: int, move_s: float) -> SlotReport:
    stages_ms = {"begin": 5.0, "move": 1000 * move_s, "state": 5.0}
    return SlotReport(slot, f"id-{slot}", slot, 0, is_open=True, stretches=[], warnings=[], stages_ms=stages_ms)


def observed(
    *moves_s: float, stages_ms: Mapping[str, float] = NEAR, now: Callable[[], float] = lambda: 0.0, topic: str = "t"
) -> SlowSlots:
    """Slots 0, 1 and so on have moved for so long."""
    slots = SlowSlots(lambda topic: topic != "heartbeats", now)
    slots.shortened(plan(*range(len(moves_s)), topic=topic))
    slots.observe([report(slot, move_s) for slot, move_s in enumerate(moves_s)], stages_ms)
    return slots


@pytest.mark.parametrize(
    ("moves_s", "stages_ms", "planned", "longest_s"),
    [
        ((5.0, 0.1), NEAR, (0, 1), BESIDE_S),
        ((5.0, 0.1), FAR, (0, 1), 3.5),
        ((5.0, 0.1), NEAR, (0,), BESIDE_S),  # slot 1 may have new records in the next moment
        ((5.0, 0.1), NEAR, (1,), NO_LIMIT),
        ((5.0,), NEAR, (0,), NO_LIMIT),
        ((5.0, 5.0), NEAR, (0, 1), NO_LIMIT),  # both have a backlog
        ((5.0, 5.0), NEAR, (0, 1, 2), BESIDE_S),  # and a third one has new records
        ((5.0, 5.0, 0.1), {**NEAR, "copy": 10_100.0}, (0, 1, 2), BESIDE_S),  # one after the other
        ((0.1, 0.1), NEAR, (0, 1), NO_LIMIT),
        ((), NEAR, (0, 1), NO_LIMIT),
    ],
)
def test_a_slow_slot_copies_for_a_shorter_time_beside_slots_that_need_less(
    moves_s: tuple[float, ...], stages_ms: Mapping[str, float], planned: tuple[int, ...], longest_s: float
) -> None:
    shortened = observed(*moves_s, stages_ms=stages_ms).shortened(plan(*planned))
    assert shortened.longest_s == pytest.approx(longest_s)
    assert shortened.ranges == plan(*planned).ranges


def test_a_slow_slot_has_all_of_its_time_beside_records_that_nobody_waits_for() -> None:
    slots = observed(5.0, 0.1, topic="heartbeats")
    beside = replace(plan(0), ranges=(*plan(0).ranges, *plan(1, topic="heartbeats").ranges))
    assert slots.shortened(beside).longest_s == NO_LIMIT
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S


def test_a_slot_is_slow_until_it_has_needed_less() -> None:
    slots = observed(5.0, 0.1)
    slots.observe([report(1, 0.1)], NEAR)  # slot 0 was not in this micro-batch, or has failed
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S
    slots.observe([report(0, BESIDE_S), report(1, 0.1)], NEAR)  # it has used all of the shorter time
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S
    slots.observe([report(0, 0.3), report(1, 0.1)], NEAR)
    assert slots.shortened(plan(0, 1)).longest_s == NO_LIMIT


def test_others_are_expected_for_a_while_after_their_last_records() -> None:
    now_s = 100.0
    slots = observed(5.0, 0.1, now=lambda: now_s)
    now_s += RECENT_S - 1
    assert slots.shortened(plan(0)).longest_s == BESIDE_S
    slots.observe([report(0, BESIDE_S)], NEAR)
    now_s += 1
    assert slots.shortened(plan(0)).longest_s == NO_LIMIT
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S


@pytest.mark.parametrize(("owed_s", "longest_s"), [(0.0, 1.0), (0.4, 1.0), (3.0, 3.0 + LEAST_S), (60.0, 5.0)])
def test_a_slot_that_owes_its_rate_has_the_time_to_pay_and_to_copy(owed_s: float, longest_s: float) -> None:
    copy: Any = object.__new__(SlotCopy)
    copy.flow = SimpleNamespace(batch_max_ms=5_000, is_backfill=lambda _: False)
    copy._stretches = {("t", 0): SimpleNamespace(topic="t")}
    copy._throttle = SimpleNamespace(wait_s=lambda _: owed_s)
    copy._most_s = 1.0
    assert copy._longest_s() == longest_s
