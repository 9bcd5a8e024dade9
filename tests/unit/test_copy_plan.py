from __future__ import annotations

import random
from dataclasses import replace

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.model.copy_plan import Partition, fair_share, make_plan, total_lag
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run, translate
from mirrorlake.model.slot import ClosedFor, Position, SlotState, assign, merge_positions


def position(topic: str, partition: int, upstream_next: int, slot: int = 0) -> Position:
    return Position(topic, partition, "id", f"a.{topic}", partition, upstream_next, upstream_next, slot)


def state(generation: int, slot: int, *positions: Position, slots: int = 2) -> SlotState:
    return SlotState("a", "b", "cluster", slot, slots, generation, f"id-{slot}", 1, 1, positions, (), 123)


def offers(**stable: int) -> list[Partition]:
    return [Partition(topic, 0, "id", 1, 0, end) for topic, end in stable.items()]


def test_a_plan_goes_on_where_the_positions_are_and_ends_at_the_stable_offset() -> None:
    plan = make_plan(
        offers(t=10, u=5, v=7), {("t", 0): position("t", 0, 4, slot=1), ("u", 0): position("u", 0, 5)}, 2, 1_000
    )
    assert [(planned.topic, planned.slot, planned.start, planned.end) for planned in plan] == [
        ("t", 1, 4, 10),
        ("v", 0, 0, 7),
    ]


def test_new_partitions_go_to_the_slot_that_owns_the_fewest() -> None:
    known = {("x", number): position("x", number, 0, slot=0) for number in range(3)}
    plan = make_plan(offers(a=1, b=1, c=1, d=1), known, 2, 100)
    assert [planned.slot for planned in plan] == [1, 1, 1, 0]


def test_a_new_partition_keeps_its_slot_though_what_that_has_committed_is_not_visible_yet() -> None:
    first = make_plan(offers(b=1, c=1), {}, 2, 100)
    slot_of = {(planned.topic, planned.partition): planned.slot for planned in first}
    seen = {("b", 0): position("b", 0, 1, slot=slot_of["b", 0])}  # the marker of c's transaction is late
    again = make_plan(offers(a=1, b=2, c=2), seen, 2, 100, planned_before=slot_of)
    assert {planned.topic: planned.slot for planned in again if planned.topic != "a"} == {
        "b": slot_of["b", 0],
        "c": slot_of["c", 0],
    }
    assert {planned.topic for planned in again if planned.is_new} == {"a", "c"}


def test_a_drain_stops_where_the_source_was_when_it_began() -> None:
    plan = make_plan(offers(t=10, late=3), {}, 1, 100, until={("t", 0): 8})
    assert [(planned.topic, planned.end) for planned in plan] == [("t", 8)]


def test_the_limit_is_shared_evenly_and_what_small_partitions_leave_goes_to_large_ones() -> None:
    plan = make_plan(offers(big=1_000, small=10, middle=200), {}, 1, 300)
    assert {planned.topic: planned.end - planned.start for planned in plan} == {"big": 145, "small": 10, "middle": 145}
    assert fair_share([5, 5], 100) == 5
    assert fair_share([5, 5, 5], 2) == 1


def test_lag_counts_what_is_stable_and_not_mirrored() -> None:
    assert total_lag(offers(t=10, u=5), {("t", 0): position("t", 0, 4)}) == 11


def test_a_state_survives_its_journey() -> None:
    run = Run("t", 0, "a.t", 0, 1, 3, 5, 7, 2, 100, 10, 20, 2**32 - 1)
    written = SlotState("a", "b", "c", 1, 2, 7, "id", 2**40, 12, (position("t", 0, 3),), (run,), 5)
    assert SlotState.from_json(written.to_json()) == written


def test_words_in_a_state_are_plain_text_and_come_back_as_they_were() -> None:
    gap = Gap("t", 0, 5, 6, GapKind.DEAD_LETTER, 0, 7)
    written = replace(state(1, 0), gaps=(gap,), closed=True, closed_for=ClosedFor.FAILOVER)
    text = written.to_json()
    assert b'"kind":[["dead_letter"],0]' in text
    assert b'"closed_for":"failover"' in text
    assert b"closed_for" not in state(1, 0).to_json()
    read = SlotState.from_json(text)
    assert read == written
    assert read.gaps[0].kind is GapKind.DEAD_LETTER
    assert read.closed_for is ClosedFor.FAILOVER
    assert SlotState.from_json(text.replace(b',"closed_for":"failover"', b"")).closed_for is ClosedFor.NOTHING


@pytest.mark.parametrize(
    ("word", "message"), [(b"dead_letter", "has a gap of kind 'lost'"), (b"failover", "has closed_for 'lost'")]
)
def test_a_state_with_a_word_of_a_later_version_is_refused(word: bytes, message: str) -> None:
    gap = Gap("t", 0, 5, 6, GapKind.DEAD_LETTER, 0, 7)
    written = replace(state(1, 0), gaps=(gap,), closed=True, closed_for=ClosedFor.FAILOVER)
    with pytest.raises(
        TargetError, match=f"{message}, which this version of mirrorlake does not know. Upgrade mirrorlake"
    ):
        SlotState.from_json(written.to_json().replace(word, b"lost"))


def test_a_state_of_a_newer_format_is_refused() -> None:
    with pytest.raises(TargetError, match=r"format version 5; this version of mirrorlake reads 1 to 4\. Upgrade"):
        SlotState.from_json(state(1, 0).to_json().replace(b'"version":4', b'"version":5'))


def test_merged_positions_are_the_furthest_and_owned_as_the_newest_generation_says() -> None:
    """A start of generation 2 was interrupted: slot 1 has its record, slot 0 continued in generation 1."""
    opening = [position("p", 0, 100, slot=1), position("q", 0, 50, slot=0)]
    merged = merge_positions(
        [state(2, 1, *opening), state(1, 0, position("p", 0, 180, slot=0), position("q", 0, 50, slot=0))]
    )
    assert (merged["p", 0].upstream_next, merged["p", 0].slot) == (180, 1)
    assert (merged["q", 0].upstream_next, merged["q", 0].slot) == (50, 0)


def test_partitions_keep_their_slot_unless_the_number_of_slots_changes() -> None:
    positions = {("t", number): position("t", number, 0, slot=number % 2) for number in range(6)}
    assert assign(positions, 2, keep=True) == positions
    spread = assign(positions, 3, keep=False)
    assert sorted(found.slot for found in spread.values()) == [0, 0, 1, 1, 2, 2]
    assert {key: found.upstream_next for key, found in spread.items()} == dict.fromkeys(positions, 0)


def test_the_plain_definition_of_translation_reads_the_first_record_at_or_after() -> None:
    dice = random.Random(1)
    runs, pairs, upstream, downstream = [], [], 5, 0
    for _ in range(30):
        upstream, downstream, length = (
            upstream + dice.randint(0, 4),
            downstream + dice.randint(0, 3),
            dice.randint(1, 6),
        )
        runs.append(
            Run("t", 0, "a.t", 0, upstream, upstream + length, downstream, downstream + length, length, 0, 0, 0, 0)
        )
        pairs += [(upstream + at, downstream + at) for at in range(length)]
        upstream, downstream = upstream + length, downstream + length
    for offset in range(upstream + 5):
        expected = next((target for source, target in pairs if source >= offset), runs[-1].downstream_end)
        assert translate(runs, offset) == expected
    assert translate([], 3) is None
