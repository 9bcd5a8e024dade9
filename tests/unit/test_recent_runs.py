"""What is held in memory of a map answers as the whole map does, or not at all."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from mirrorlake.gap import MARKER, RECREATED, TRUNCATED, Gap
from mirrorlake.recent_runs import RecentRuns
from mirrorlake.run import Run, translate
from mirrorlake.slot import SlotState

KEY = ("t", 0)


def run(start: int, end: int, downstream: int, incarnation: int = 0) -> Run:
    return Run("t", 0, "a.t", 0, start, end, downstream, downstream + end - start, end - start, 0, 0, 0, 0, incarnation)


def gap(start: int, end: int, kind: str = MARKER, incarnation: int = 0) -> Gap:
    return Gap("t", 0, start, end, kind, incarnation, 0)


def state(runs: tuple[Run, ...] = (), gaps: tuple[Gap, ...] = (), slot: int = 0, generation: int = 1, *, inferred: bool = False) -> SlotState:
    return SlotState("a", "b", "id", slot, 2, generation, f"x-{slot}", 1, 0, (), runs, 0, (), inferred, False, gaps)


def random_states(dice: random.Random, states: int) -> list[SlotState]:
    found, upstream, downstream = [], dice.randint(0, 9), dice.randint(0, 9)
    for _ in range(states):
        runs, gaps = [], []
        for _ in range(dice.randint(0, 3)):
            length = dice.randint(1, 5)
            if dice.random() < 0.4:
                gaps.append(gap(upstream, upstream + length))
            else:
                runs.append(run(upstream, upstream + length, downstream))
                downstream += length + dice.randint(0, 2)
            upstream += length
        found.append(state(tuple(runs), tuple(gaps)))
    return found


@pytest.mark.parametrize("kept_runs", [4, 1_000])
def test_every_offset_that_is_answered_has_the_place_that_the_whole_map_gives_it(kept_runs: int) -> None:
    answered = 0
    for seed in range(60):
        dice = random.Random(seed)
        states, recent = random_states(dice, 20), RecentRuns(kept_runs)
        skipped = dice.randint(0, 5)
        whole: list[Run] = []
        for number, one in enumerate(states):
            whole += one.runs
            if number >= skipped:  # the beginning of the map was never read
                recent.add([one])
            for offset in range(whole[-1].upstream_end + 3 if whole else 3):
                near = recent.near(KEY, offset)
                if near is not None:
                    answered += 1
                    place = near.last.downstream_end if near.run is None else near.run.downstream_start + max(0, offset - near.run.upstream_start)
                    assert place == translate(whole, offset)
                    assert near.last == whole[-1]
    assert answered > 1_000


def test_the_newest_runs_are_kept_and_older_ones_are_not_answered_about() -> None:
    recent = RecentRuns(kept_runs=10)
    for start in range(0, 1_000, 10):
        recent.add([state((run(start, start + 10, start),))])
    assert recent.near(KEY, 995).run == run(990, 1_000, 990)
    assert recent.near(KEY, 500) is None
    assert recent.near(("t", 1), 5) is None


def test_behind_a_hole_nothing_older_is_answered_about() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 10, 0),)), state((run(15, 20, 10),))])
    assert recent.near(KEY, 5) is None
    assert recent.near(KEY, 12) is None, "what is between them may be in a run that was not seen"
    assert recent.near(KEY, 15).run == run(15, 20, 10)


def test_states_of_two_slots_in_the_wrong_order_lead_to_no_answer_or_the_right_one() -> None:
    recent = RecentRuns()
    recent.add([state((run(10, 20, 10),), slot=0, generation=2), state((run(0, 10, 0),), slot=1)])
    assert recent.near(KEY, 5) is None
    assert recent.near(KEY, 12).run == run(10, 20, 10)


def test_two_accounts_of_one_offset_are_both_disbelieved() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 10, 0),)), state((run(5, 15, 20),))])
    assert recent.near(KEY, 7) is None
    recent.add([state((run(15, 20, 30),))])
    assert recent.near(KEY, 7) is None
    assert recent.near(KEY, 16).run == run(15, 20, 30)


@pytest.mark.parametrize("kind", [TRUNCATED, RECREATED])
def test_a_reset_voids_what_was_mapped_before(kind: str) -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 50, 0),))])
    before = recent.version
    recent.add([state((), (gap(30, 50, kind),))])
    assert recent.near(KEY, 40) is None
    assert recent.version != before
    recent.add([state((run(30, 60, 80, incarnation=1),)), state((run(50, 55, 50),), slot=1)])
    assert recent.near(KEY, 40).run == run(30, 60, 80, incarnation=1), "a state of the log that was replaced came late, and says nothing any more"


def test_a_rebuilt_map_and_a_new_generation_are_news() -> None:
    recent = RecentRuns()
    versions = [recent.version]
    for one in (state(), state(), state(inferred=True), replace(state(), generation=2)):
        recent.add([one])
        versions.append(recent.version)
    assert [after != before for before, after in pairwise(versions)] == [True, False, True, True]


def test_what_was_forgotten_is_not_answered_about() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 50, 0),))])
    recent.clear()
    assert recent.near(KEY, 10) is None
