"""The time of micro-batches in which a slow slot would hold up others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.planning.slow_slots import BESIDE_S, RECENT_S, SlowSlots
from mirrorlake.model.copy_plan import Range
from mirrorlake.state.slot_report import SlotReport

NO_LIMIT = float("inf")


def plan(*slots: int) -> MirrorPlan:
    return MirrorPlan(1, 8, ranges=tuple(Range("t", slot, "", 8, slot, 0, 1) for slot in slots))


def report(slot: int, move_s: float) -> SlotReport:
    stages_ms = {"begin": 5.0, "move": 1000 * move_s, "state": 5.0}
    return SlotReport(slot, f"id-{slot}", slot, 0, is_open=True, stretches=[], warnings=[], stages_ms=stages_ms)


def observed(*moves_s: float, seconds: float, now: Callable[[], float] = lambda: 0.0) -> SlowSlots:
    """Slots 0, 1 and so on have moved for so long."""
    slots = SlowSlots(now)
    slots.observe([report(slot, move_s) for slot, move_s in enumerate(moves_s)], seconds)
    return slots


@pytest.mark.parametrize(
    ("moves_s", "seconds", "planned", "longest_s"),
    [
        ((5.0, 0.1), 5.1, (0, 1), BESIDE_S),
        ((5.0, 0.1), 5.7, (0, 1), 3.5),  # a far cluster: what a micro-batch takes besides copying keeps its share
        ((5.0, 0.1), 5.1, (0,), BESIDE_S),  # slot 1 may have new records in the next moment
        ((5.0, 0.1), 5.1, (1,), NO_LIMIT),
        ((5.0,), 5.1, (0,), NO_LIMIT),
        ((5.0, 5.0), 5.1, (0, 1), NO_LIMIT),  # both have a backlog
        ((5.0, 5.0), 5.1, (0, 1, 2), BESIDE_S),  # and a third one has new records
        ((0.1, 0.1), 0.2, (0, 1), NO_LIMIT),
        ((), 30.0, (0, 1), NO_LIMIT),
    ],
)
def test_a_slow_slot_copies_for_a_shorter_time_beside_slots_that_need_less(
    moves_s: tuple[float, ...], seconds: float, planned: tuple[int, ...], longest_s: float
) -> None:
    shortened = observed(*moves_s, seconds=seconds).shortened(plan(*planned))
    assert shortened.longest_s == pytest.approx(longest_s)
    assert shortened.ranges == plan(*planned).ranges


def test_a_slot_is_slow_until_it_has_needed_less() -> None:
    slots = observed(5.0, 0.1, seconds=5.1)
    slots.observe([report(1, 0.1)], 0.2)  # it was not in this micro-batch, or has failed
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S
    slots.observe([report(0, BESIDE_S), report(1, 0.1)], 1.1)  # it has used all of the shorter time
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S
    slots.observe([report(0, 0.3), report(1, 0.1)], 0.4)
    assert slots.shortened(plan(0, 1)).longest_s == NO_LIMIT


def test_others_are_expected_for_a_while_after_their_last_records() -> None:
    now_s = 100.0
    slots = observed(5.0, 0.1, seconds=5.1, now=lambda: now_s)
    now_s += RECENT_S - 1
    assert slots.shortened(plan(0)).longest_s == BESIDE_S
    slots.observe([report(0, BESIDE_S)], 1.1)
    now_s += 1
    assert slots.shortened(plan(0)).longest_s == NO_LIMIT
    assert slots.shortened(plan(0, 1)).longest_s == BESIDE_S
