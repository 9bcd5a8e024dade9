"""The audit of traces: a trace as jobs write it passes, and each invariant fails on a trace that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mirrorlake.local.audit_trace import lines
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.model.trace import TraceAudit

Trace = dict[int, list[tuple[int, SlotState]]]


def position(partition: int, upstream: int, downstream: int, slot: int, incarnation: int = 0) -> Position:
    return Position("t", partition, "id", "s.t", partition, upstream, downstream, slot, incarnation)


def run(partition: int, upstream: tuple[int, int], downstream: int, incarnation: int = 0) -> Run:
    count = upstream[1] - upstream[0]
    numbers = (*upstream, downstream, downstream + count, count, 100, 0, 0, 0, incarnation)
    return Run("t", partition, "s.t", partition, *numbers)


def gap(partition: int, upstream: tuple[int, int], kind: GapKind, incarnation: int = 0) -> Gap:
    return Gap("t", partition, *upstream, kind, incarnation, 0)


def state(slot: int, generation: int, epoch: int, *positions: Position, slots: int = 2, **given: object) -> SlotState:
    return SlotState(
        "s",
        "t",
        "cluster",
        slot,
        slots,
        generation,
        f"id-{slot}",
        100 + slot,
        epoch,
        positions,
        **given,  # type: ignore[arg-type]
    )


def honest() -> Trace:
    """Returns the trace of two jobs, the second with one slot; a marker, an aborted attempt, and a reset."""
    return {
        0: [
            (0, state(0, 1, 0)),
            (2, state(0, 1, 1, position(0, 10, 10, 0), runs=(run(0, (0, 10), 0),))),
            (
                6,
                state(
                    0,
                    1,
                    3,
                    position(0, 21, 23, 0),
                    runs=(run(0, (10, 15), 13), run(0, (16, 21), 18)),
                    gaps=(gap(0, (15, 16), GapKind.MARKER),),
                ),
            ),
            (8, state(0, 2, 4, position(0, 21, 23, 0), position(1, 5, 5, 0), slots=1)),
            (
                10,
                state(
                    0,
                    2,
                    5,
                    position(0, 21, 23, 0),
                    position(1, 3, 9, 0, incarnation=1),
                    slots=1,
                    runs=(run(1, (0, 3), 6, incarnation=1),),
                    gaps=(gap(1, (0, 5), GapKind.RECREATED),),
                ),
            ),
        ],
        1: [
            (0, state(1, 1, 0)),
            (2, state(1, 1, 1, position(1, 5, 5, 1), runs=(run(1, (0, 5), 0),))),
            (4, state(1, 2, 2, position(0, 21, 23, 0), position(1, 5, 5, 0), slots=1)),
        ],
    }


def with_state(number: int, index: int, /, **changes: object) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        offset, before = trace[number][index]
        trace[number][index] = offset, replace(before, **changes)  # type: ignore[arg-type]

    return change


def without_state(slot: int, index: int) -> Callable[[Trace], None]:
    return lambda trace: trace[slot].__delitem__(index)


def copied_in_the_other_slot(trace: Trace) -> None:
    trace[1].insert(2, (3, state(1, 1, 2, position(0, 25, 30, 1), runs=(run(0, (21, 25), 26),))))


DOCTORED = {
    "each epoch has one transaction, and epochs only grow": with_state(0, 2, producer_epoch=1),
    "generations only grow": with_state(0, 2, generation=0),
    "a generation copies once it is open in every slot": without_state(1, 0),
    "an opening state has all positions": with_state(1, 2, positions=(position(0, 21, 23, 0),)),
    "an opening state has the furthest positions": with_state(
        0, 3, positions=(position(0, 10, 10, 0), position(1, 5, 5, 0))
    ),
    "positions never go back, except by a reset": with_state(
        0, 2, positions=(position(0, 9, 10, 0),), runs=(), gaps=()
    ),
    "each reset begins one incarnation": with_state(0, 4, gaps=()),
    "runs and gaps continue where the position stood": with_state(0, 2, gaps=()),
    "the position is the end of the runs and gaps": with_state(0, 2, positions=(position(0, 22, 23, 0),)),
    "a partition has one slot in a generation": copied_in_the_other_slot,
    "a state has every partition of its slot": with_state(0, 4, positions=(position(1, 3, 9, 0, 1),)),
    "downstream offsets only grow": with_state(0, 2, runs=(run(0, (10, 15), 18), run(0, (16, 21), 13))),
    "downstream offsets are given once": with_state(0, 2, runs=(run(0, (10, 15), 9), run(0, (16, 21), 18))),
    "the position has the end of the last run": with_state(0, 2, positions=(position(0, 21, 24, 0),)),
    "a run has as many offsets on both sides as records": with_state(
        0, 2, runs=(replace(run(0, (10, 15), 13), records=4), run(0, (16, 21), 18))
    ),
    "a slot has one partition of the topic": with_state(1, 1, slot=0),
}


def test_the_trace_of_two_jobs_keeps_every_invariant() -> None:
    audit = TraceAudit(honest()).run()
    assert audit.violations == []
    assert audit.counts == {
        "generations": 2,
        "slots": 2,
        "transactions": 8,
        "opening states": 4,
        "producers": 2,
        "partitions": 2,
        "runs": 5,
        "gaps": 2,
    }
    assert set(audit.checked) == set(DOCTORED)
    assert all(audit.checked.values())


@pytest.mark.parametrize("check", DOCTORED)
def test_a_trace_that_breaks_an_invariant_is_named_with_its_place(check: str) -> None:
    trace = honest()
    DOCTORED[check](trace)
    audit = TraceAudit(trace).run()
    assert check in {violation.check for violation in audit.violations}, audit.violations
    report = "\n".join(lines("s->t", "doctored", audit.counts, audit.checked, audit.violations))
    assert f"FAILS  {check}" in report
    assert "flow s->t, slot " in report


def test_a_map_from_a_take_over_is_one_transaction_of_several_states() -> None:
    first = state(0, 1, 0, inferred=True, runs=(run(0, (0, 4), 0),), slots=1)
    last = state(0, 1, 0, position(0, 9, 9, 0), runs=(run(0, (4, 9), 4),), slots=1)
    assert TraceAudit({0: [(0, first), (1, last)]}).run().counts["transactions"] == 1
    assert TraceAudit({0: [(0, first), (2, last)]}).run().violations, "there is an offset between them"


def test_a_start_that_was_interrupted_leaves_the_older_generation_its_positions() -> None:
    """Slot 0 is opened by a job that dies then; the older job goes on in slot 1, and a third job opens all slots."""
    trace = {
        0: [(0, state(0, 1, 0)), (2, state(0, 2, 1)), (4, state(0, 3, 2, position(1, 8, 8, 1)))],
        1: [
            (0, state(1, 1, 0)),
            (2, state(1, 1, 1, position(1, 8, 8, 1), runs=(run(1, (0, 8), 0),))),
            (4, state(1, 3, 2, position(1, 8, 8, 1))),
        ],
    }
    assert TraceAudit(trace).run().violations == []
