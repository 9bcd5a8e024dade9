"""The part of a map in memory answers as the whole map does, or not at all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from mirrorlake.model.gap import RESETS, Gap, GapKind
from mirrorlake.model.recent_runs import RecentRuns, RunOffsets
from mirrorlake.model.run import Run, translate
from mirrorlake.model.slot import Position, SlotState, merge_positions


def run(start: int, end: int, downstream: int, incarnation: int = 0, topic: str = "t") -> Run:
    return Run(
        topic,
        0,
        f"a.{topic}",
        0,
        start,
        end,
        downstream,
        downstream + end - start,
        end - start,
        0,
        0,
        0,
        0,
        incarnation,
    )


def gap(start: int, end: int, kind: str = GapKind.MARKER, incarnation: int = 0, topic: str = "t") -> Gap:
    return Gap(topic, 0, start, end, kind, incarnation, 0)


def at(upstream_next: int, downstream_next: int, incarnation: int = 0, topic: str = "t", slot: int = 0) -> Position:
    return Position(topic, 0, "", f"a.{topic}", 0, upstream_next, downstream_next, slot, incarnation)


def state(
    runs: tuple[Run, ...] = (),
    gaps: tuple[Gap, ...] = (),
    slot: int = 0,
    generation: int = 1,
    positions: tuple[Position, ...] = (),
    *,
    inferred: bool = False,
) -> SlotState:
    return SlotState(
        "a", "b", "id", slot, 2, generation, f"x-{slot}", 1, 0, positions, runs, 0, (), inferred, False, gaps
    )


@dataclass
class Log:
    """One partition, its history, and the part of it that is still valid."""

    topic: str
    slot: int
    upstream: int = 0
    downstream: int = 0
    incarnation: int = 0
    runs: list[Run] = field(default_factory=list)

    def go_on(self, dice: random.Random) -> tuple[list[Run], list[Gap]]:
        """Returns the runs and gaps of a transaction."""
        runs, gaps = [], []
        if dice.random() < 0.06:
            kind = dice.choice(sorted(RESETS))
            void_from = dice.randint(0, self.upstream) if kind == GapKind.TRUNCATED else 0
            start = max(void_from, dice.randint(0, max(0, self.upstream - 1)))
            gaps.append(gap(void_from, max(void_from, self.upstream), kind, self.incarnation, self.topic))
            self.runs = [
                Run(
                    **{
                        **{name: getattr(one, name) for name in one.__slots__},
                        "upstream_end": min(one.upstream_end, void_from),
                    }
                )
                for one in self.runs
                if one.upstream_start < void_from
            ]
            for one in self.runs:
                one.downstream_end = one.downstream_start + one.upstream_end - one.upstream_start
            self.upstream, self.incarnation = start, self.incarnation + 1
            self.downstream = 0 if kind == GapKind.TARGET_RECREATED else self.downstream
        for _ in range(dice.randint(0, 3)):
            length = dice.randint(1, 5)
            if dice.random() < 0.4:
                gaps.append(gap(self.upstream, self.upstream + length, GapKind.MARKER, self.incarnation, self.topic))
            else:
                self.downstream += dice.randint(0, 2)
                runs.append(run(self.upstream, self.upstream + length, self.downstream, self.incarnation, self.topic))
                self.downstream += length
            self.upstream += length
        self.runs += runs
        return runs, gaps

    @property
    def position(self) -> Position:
        return at(self.upstream, self.downstream, self.incarnation, self.topic, self.slot)


def history(dice: random.Random, slots: int = 3) -> tuple[list[list[SlotState]], list[dict[str, Log]]]:
    """Generates the states of each slot in order, and all logs of the flow after each step.

    Partitions change slots with each generation, and one of them is mostly idle.
    """
    logs = [Log("busy", 0), Log("idle", 0)]
    states: list[list[SlotState]] = [[] for _ in range(slots)]
    generation, steps = 0, []
    for step in range(80):
        if step == 0 or dice.random() < 0.06:
            generation += 1
            for log in logs:
                log.slot = dice.randrange(slots)
            for slot in range(slots):
                states[slot].append(state((), (), slot, generation, tuple(log.position for log in logs)))
        for log in logs:
            if log.topic == "busy" or dice.random() < 0.15:
                runs, gaps = log.go_on(dice)
                mine = tuple(one.position for one in logs if one.slot == log.slot)
                states[log.slot].append(state(tuple(runs), tuple(gaps), log.slot, generation, mine))
        ends = [len(found) for found in states]
        steps.append((ends, {log.topic: (log.position, list(log.runs)) for log in logs}))
    return states, steps


@pytest.mark.parametrize("kept_runs", [4, 1_000])
def test_whatever_was_read_and_in_whatever_order_an_answer_is_that_of_the_whole_map(kept_runs: int) -> None:
    answered = {"busy": 0, "idle": 0}
    for seed in range(150):
        dice = random.Random(seed)
        states, steps = history(dice)
        recent, newest = RecentRuns(kept_runs), {}
        read_to: list[int] | None = None
        for ends, logs in steps[dice.randint(0, 60) :: dice.randint(1, 9)]:
            starts = read_to or [
                max(0, end - dice.randint(1, 40)) for end in ends
            ]  # at first a tail of each slot, each with a different start
            new = [states[slot][start:end] for slot, (start, end) in enumerate(zip(starts, ends, strict=True))]
            recent.add(one for slot in new for one in slot)
            newest |= {slot: found[-1] for slot, found in enumerate(new) if found}
            read_to = ends
            positions = merge_positions(newest.values())
            for topic, (position, runs) in logs.items():
                mine = positions[topic, 0]
                assert (mine.upstream_next, mine.incarnation) == (position.upstream_next, position.incarnation)
                for offset in range(position.upstream_next + 3):
                    near = recent.near(mine, offset)
                    if near is not None:
                        answered[topic] += 1
                        place = (
                            near.last.downstream_end
                            if near.run is None
                            else near.run.downstream_start + max(0, offset - near.run.upstream_start)
                        )
                        assert place == translate(runs, offset), (seed, topic, offset)
                        assert near.last.upstream_start == runs[-1].upstream_start
    assert min(answered.values()) > 1_000, answered


def test_the_newest_runs_are_kept_and_older_ones_are_not_answered_about() -> None:
    recent = RecentRuns(kept_runs=10)
    for start in range(0, 1_000, 10):
        recent.add([state((run(start, start + 10, start),))])
    assert recent.near(at(1_000, 1_000), 995).run == RunOffsets(990, 1_000, 990, 1_000)
    assert recent.near(at(1_000, 1_000), 500) is None
    assert recent.near(at(1_000, 1_000, topic="other"), 5) is None
    assert recent.near(None, 5) is None


def test_behind_a_hole_nothing_older_is_answered_about() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 10, 0),)), state((run(15, 20, 10),))])
    assert recent.near(at(20, 15), 5) is None
    assert recent.near(at(20, 15), 12) is None, "what is between them may be in a run that was not seen"
    assert recent.near(at(20, 15), 15).run == RunOffsets(15, 20, 10, 15)


@pytest.mark.parametrize("position", [at(20, 10), at(10, 12), at(10, 10, incarnation=1), at(5, 5)])
def test_nothing_is_answered_that_does_not_reach_to_where_the_flow_is(position: Position) -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 10, 0),))])
    assert recent.near(at(10, 10), 3).run == RunOffsets(0, 10, 0, 10)
    assert recent.near(position, 3) is None


def test_a_former_owner_whose_states_reach_further_back_says_nothing_about_a_partition_that_is_elsewhere_now() -> None:
    recent = RecentRuns()
    recent.add([state((run(10, 20, 10),), slot=0, generation=2), state((run(0, 10, 0),), slot=1)])
    assert recent.near(at(20, 20), 5).run == RunOffsets(0, 10, 0, 10), (
        "the older generation first, whatever slot comes first"
    )
    late = RecentRuns()
    late.add([state((run(10, 20, 10),), slot=0, generation=2)])
    late.add([state((run(0, 10, 0),), slot=1)])
    assert late.near(at(20, 20), 5) is None
    assert late.near(at(20, 20), 12).run == RunOffsets(10, 20, 10, 20)


def test_two_accounts_of_one_offset_are_both_disbelieved() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 10, 0),)), state((run(5, 15, 20),))])
    assert recent.near(at(15, 30), 7) is None
    recent.add([state((run(15, 20, 30),))])
    assert recent.near(at(20, 35), 7) is None
    assert recent.near(at(20, 35), 16).run == RunOffsets(15, 20, 30, 35)


@pytest.mark.parametrize("kind", [GapKind.TRUNCATED, GapKind.RECREATED])
def test_a_reset_voids_what_was_mapped_before(kind: str) -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 50, 0),))])
    before = recent.version
    recent.add([state((), (gap(30, 50, kind),))])
    assert recent.near(at(30, 50, 1), 40) is None
    assert recent.version != before
    recent.add([state((run(30, 60, 80, incarnation=1),)), state((run(50, 55, 50),), slot=1)])
    assert recent.near(at(60, 110, 1), 40).run == RunOffsets(30, 60, 80, 110), (
        "a state of the log that was replaced came late, and says nothing any more"
    )


def test_a_rebuilt_map_and_a_new_generation_are_news() -> None:
    recent = RecentRuns()
    versions = [recent.version]
    for one in (state(), state(), state(inferred=True), state(generation=2)):
        recent.add([one])
        versions.append(recent.version)
    assert [after != before for before, after in pairwise(versions)] == [True, False, True, True]


def test_what_was_forgotten_is_not_answered_about() -> None:
    recent = RecentRuns()
    recent.add([state((run(0, 50, 0),))])
    recent.clear()
    assert recent.near(at(50, 50), 10) is None
