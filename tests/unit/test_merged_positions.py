"""The merged positions of a flow are those that all states give, whatever little was looked at."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from mirrorlake.model import merged_positions
from mirrorlake.model.merged_positions import MergedPositions
from mirrorlake.model.slot import Position, SlotState, assign, merge_positions
from mirrorlake.partition_key import PartitionKey

SLOTS = 4


@pytest.fixture
def merged_states(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the states that were merged, each time that all were."""
    found: list[int] = []

    def counted(states: Iterable[SlotState]) -> dict[PartitionKey, Position]:
        merged = [*states]
        found.append(len(merged))
        return merge_positions(merged)

    monkeypatch.setattr(merged_positions, "merge_positions", counted)
    return found


def position(number: int, upstream_next: int = 0) -> Position:
    return Position(f"t{number // 5}", number % 5, "id", f"a.t{number // 5}", number % 5, upstream_next, 0, -1)


def opened(generation: int, positions: Iterable[Position]) -> dict[int, SlotState]:
    known = assign({(one.topic, one.partition): one for one in positions}, SLOTS, keep=False)
    everything = tuple(known.values())
    return {slot: SlotState("a", "b", "c", slot, SLOTS, generation, "x", 1, 0, everything) for slot in range(SLOTS)}


def moved(state: SlotState, dice: random.Random, new: Iterable[Position] = ()) -> SlotState:
    """Returns the state behind a transaction that moves half of the slot's partitions, and begins others."""
    own = [
        replace(one, upstream_next=one.upstream_next + dice.randrange(1, 9)) if dice.random() < 0.5 else one
        for one in state.owned().values()
    ]
    return replace(state, positions=(*own, *(replace(one, slot=state.slot) for one in new)), producer_epoch=7)


def test_positions_are_those_of_all_states_and_states_that_go_on_are_not_merged_again(merged_states: list[int]) -> None:
    dice, merged = random.Random(19), MergedPositions()
    states, following = opened(1, map(position, range(40))), 40
    for generation in range(1, 5):
        for _ in range(30):
            assert merged.of(states) == merge_positions(states.values())
            slot = dice.randrange(SLOTS)
            new = [position(following + more) for more in range(dice.randrange(2))]
            following += len(new)
            states = {**states, slot: moved(states[slot], dice, new)}
        assert merged.of(states) == merge_positions(states.values())
        assert merged_states == [SLOTS] * generation, "once in each generation"
        states = opened(generation + 1, merged.of(states).values())
    merged.of(states)
    assert merged.of(dict(states)) is merged.of(states)
    assert len(merged_states) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda state: replace(state, positions=state.positions[1:]),
        lambda state: replace(state, positions=(replace(state.positions[0], upstream_next=1), *state.positions[1:])),
        lambda state: replace(state, positions=(replace(state.positions[0], slot=3), *state.positions[1:])),
        lambda state: replace(state, generation=2),
        lambda state: None,
    ],
    ids=["a_partition_less", "further_back", "of_another_slot", "of_another_generation", "gone"],
)
def test_a_state_that_does_not_follow_from_the_one_before_has_all_states_merged(
    change: object, merged_states: list[int]
) -> None:
    dice, merged = random.Random(1), MergedPositions()
    states = opened(1, (position(number, 5) for number in range(40)))
    for slot in range(SLOTS):  # none has a position of another slot any more
        states = {**states, slot: moved(states[slot], dice)}
    merged.of(states)
    now = change(states[1])  # type: ignore[operator]
    states = {slot: state for slot, state in {**states, 1: now}.items() if state is not None}
    assert merged.of(states) == merge_positions(states.values())
    assert merged_states == [SLOTS, len(states)]


def test_states_of_an_interrupted_start_are_merged_each_time(merged_states: list[int]) -> None:
    dice, merged = random.Random(2), MergedPositions()
    states = {**opened(1, map(position, range(20))), 2: opened(2, map(position, range(20)))[2]}
    for _ in range(3):
        states = {**states, 1: moved(states[1], dice)}
        assert merged.of(states) == merge_positions(states.values())
    assert merged_states == [SLOTS] * 3
