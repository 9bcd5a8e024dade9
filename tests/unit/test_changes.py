"""States that are written as changes come back whole, and a missing one is noticed."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.model import changes
from mirrorlake.model.changes import LONGEST_MS, as_snapshot, as_written, whole_states
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import NO_STATE, Position, SlotState

from chaos.states import runs_and_gaps

RESETS = (GapKind.RECREATED, GapKind.TRUNCATED)


def moves(dice: random.Random, position: Position, first_ms: int) -> tuple[Position, list[Run], list[Gap]]:
    """Moves a position by random runs and gaps, with all that a transaction may change beside offsets."""
    runs, gaps = list[Run](), list[Gap]()
    if dice.random() < 0.05:
        kind = dice.choice(RESETS)
        gaps.append(Gap(position.topic, position.partition, 0, position.upstream_next, kind, position.incarnation, 0))
        position = replace(
            position, upstream_next=dice.choice([0, position.upstream_next]), incarnation=position.incarnation + 1
        )
    if dice.random() < 0.1:
        position = replace(position, leader_epoch=position.leader_epoch + 1, epoch_from=position.upstream_next)
    remote = dice.choice([position.partition] * 20 + [7])  # a transform may choose the partition
    for _ in range(dice.randrange(1, 4)):
        start, records = position.upstream_next, dice.choice([1, 200, 2**33])
        at = position.downstream_next + dice.randrange(3)
        if dice.random() < 0.7:
            run = Run(
                position.topic,
                position.partition,
                position.target_topic,
                remote,
                *(start, start + records, at, at + records, records, dice.randrange(2**40), first_ms, first_ms + 9),
                digest=dice.choice([None, dice.getrandbits(32)]),
                incarnation=position.incarnation,
            )
            runs.append(run)
            position = replace(position, upstream_next=start + records, downstream_next=at + records)
        else:
            key, end = (position.topic, position.partition), start + dice.randrange(1, 9)
            gaps.append(Gap(*key, start, end, GapKind.MARKER, position.incarnation, position.downstream_next))
            position = replace(position, upstream_next=end)
    return position, runs, gaps


def history(seed: int, transactions: int) -> tuple[list[bytes], list[SlotState]]:
    """Returns the records of a slot, as its jobs write them, and the states that they meant."""
    dice, epoch = random.Random(seed), 0
    topics = ("orders", "x.y", "a")
    known = {
        (topic, number): Position(topic, number, f"{topic}-id", f"west.{topic}", number, 10**6, 10**5, number % 2)
        for topic in topics
        for number in range(4)
    }
    records, meant, before = list[bytes](), list[SlotState](), None
    for number in range(transactions):
        producer_id, epoch = 4711 + number // 9, epoch + 1
        common = {
            "source_cluster_id": "c",
            "slots": 2,
            "generation": 1 + number // 40,
            "transactional_id": "id",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "created_ms": 10**12,
            "promoted_topics": ("promoted",),
            "producer_ids": before.all_producer_ids if before else (1, 2),
        }
        if number % 40 == 0:
            state = SlotState("west", "east", slot=1, **common, positions=tuple(known.values()))
            written = state
        else:
            assert before is not None
            own, runs, gaps = before.owned(), list[Run](), list[Gap]()
            for key in dice.sample(sorted(own), dice.randrange(1, len(own))):
                own[key], its_runs, its_gaps = moves(dice, own[key], dice.choice([0, -5, 10**12, 2**62]))
                runs, gaps = runs + its_runs, gaps + its_gaps
            if dice.random() < 0.1:
                new = Position("new", number, "", "elsewhere", number, 0, 0, 1)
                own["new", number] = known["new", number] = new
            state = SlotState(
                "west", "east", slot=1, **common, positions=tuple(own.values()), runs=tuple(runs), gaps=tuple(gaps)
            )
            known |= own
            written = as_written(before, state)
        records.append(written.to_json())
        meant.append(state)
        before = (
            as_snapshot(2 * number, state)
            if not written.number
            else replace(
                state, snapshot=written.snapshot, number=written.number, moves=before.moves + changes._moves(written)
            )
        )
    return records, meant


@pytest.mark.parametrize("seed", range(3))
def test_every_state_comes_back_as_it_was_meant(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOVES_PER_POSITION", 4)
    records, meant = history(seed, 120)
    found = [state for _, state in whole_states("t", ((2 * at, record) for at, record in enumerate(records)))]
    assert [replace(state, snapshot=-1, number=0, moves=0, snapshot_ms=-1) for state in found] == meant
    numbers = [state.number for state in found]
    assert 8 < numbers.count(0) < 60, "snapshots are needed within a generation, too, and changes between them"
    for record, state in zip(records, meant, strict=True):
        runs, gaps = runs_and_gaps(record)
        names = ("topic", "partition", "upstream_start", "upstream_end", "downstream_start", "downstream_end")
        assert [tuple(run[name] for name in names) for run in runs] == [
            tuple(getattr(run, name) for name in names) for run in state.runs
        ], "the judge of chaos reads what was written"
        assert [(gap["from_offset"], gap["to_offset"], gap["incarnation"]) for gap in gaps] == [
            (gap.from_offset, gap.to_offset, gap.incarnation) for gap in state.gaps
        ]


def test_changes_have_no_position_that_follows_from_their_runs_and_a_snapshot_comes_before_there_is_much_to_read() -> (
    None
):
    position = Position("t", 0, "id", "west.t", 0, 0, 0, 0)
    before = as_snapshot(0, SlotState("west", "east", "c", 0, 1, 1, "id", 1, 1, (position,)))
    numbers = []
    for number in range(60):
        position = replace(position, upstream_next=number + 1, downstream_next=2 * number + 1)
        run = Run("t", 0, "west.t", 0, number, number + 1, 2 * number, 2 * number + 1, 1, 10, 0, 0, 1)
        state = replace(before, positions=(position,), runs=(run,), producer_epoch=number + 2, number=0, snapshot=-1)
        written = as_written(before, state)
        numbers.append(written.number)
        assert bool(written.positions) == (written.number == 0)
        offset = 2 * number + 2
        ((_, before),) = (
            [*whole_states("t", [(offset, written.to_json())])]
            if not written.number
            else [(offset, changes.whole("t", before, [(offset, SlotState.from_json(written.to_json()))]))]
        )
        assert before.positions == (position,)
    most = 16 * (20 + 2) // (20 + 1)  # for what a state takes, its position and its producer id: 16 times as much
    assert numbers == [(number + 1) % (most + 1) for number in range(60)]


@pytest.mark.parametrize(
    ("changed", "is_snapshot"),
    [
        ({}, False),
        ({"created_ms": 10**12 + LONGEST_MS}, False),
        ({"created_ms": 10**12 + LONGEST_MS + 1}, True),
        ({"created_ms": 0}, False),
        ({"source_cluster_id": "another"}, True),
        ({"promoted_topics": ("promoted",)}, True),
        ({"generation": 2}, True),
        ({"positions": ()}, True),
        ({"closed": True}, False),
        ({"topics_shared": True}, False),
        ({"producer_id": 2}, False),
    ],
)
def test_changes_have_all_that_is_new_and_what_they_cant_have_makes_a_snapshot(
    changed: dict[str, Any], is_snapshot: bool
) -> None:
    position = Position("t", 0, "id", "west.t", 0, 0, 0, 0)
    first = SlotState("west", "east", "c", 0, 1, 1, "id", 1, 1, (position,), created_ms=10**12)
    second = replace(first, producer_epoch=2)
    before = changes.whole("t", as_snapshot(0, first), [(2, as_written(as_snapshot(0, first), second))])
    state = replace(second, producer_epoch=3, producer_ids=before.all_producer_ids, **changed)
    written = as_written(before, state)
    assert (written.number == 0) == is_snapshot
    again = SlotState.from_json(written.to_json())
    found = again if is_snapshot else changes.whole("t", before, [(4, again)])
    assert replace(found, snapshot=-1, number=0, moves=0, snapshot_ms=-1) == state


@pytest.mark.parametrize(
    ("topics", "written"),
    [
        (["a"], [["a"], 0]),
        (["a", "a"], [["a"], 0]),
        (["b", "b", "a"], {"values": ["b", "b", "a"]}),
        (["a", "b", "a"], [["a", "b"], 0, "AAEA"]),
        (["a" * 20_000, "b" * 20_000], [["a" * 20_000, "b" * 20_000], 0, "AAE"]),
    ],
)
def test_texts_are_written_as_they_are_where_equal_ones_follow_each_other(topics: list[str], written: object) -> None:
    positions = tuple(Position(topic, number, "", topic, number, 0, 0, 0) for number, topic in enumerate(topics))
    state = SlotState("west", "east", "c", 0, 1, 1, "id", 1, 1, positions)
    assert json.loads(state.to_json())["positions"]["topic"] == written
    assert SlotState.from_json(state.to_json()) == state


@pytest.mark.parametrize("damage", ["one is missing", "the snapshot is missing", "of another slot", "of another time"])
def test_a_state_that_does_not_follow_is_refused(damage: str) -> None:
    records, _ = history(0, 6)
    states = [(2 * number, record) for number, record in enumerate(records)]

    def changed(number: int, **values: Any) -> None:
        states[number] = states[number][0], replace(SlotState.from_json(states[number][1]), **values).to_json()

    message = "Records of the topic are missing, or another program has written to it"
    if damage == "one is missing":
        del states[2]
    elif damage == "the snapshot is missing":
        del states[0]
        message = "which is missing"
    elif damage == "of another slot":
        changed(3, slot=0)
    else:
        changed(3, generation=2)
    with pytest.raises(TargetError, match=message):
        list(whole_states("t", states))


def test_a_state_that_another_program_has_repeated_changes_nothing() -> None:
    records, meant = history(1, 8)
    repeated = [*records[:5], records[4], *records[5:]]
    found = [state for _, state in whole_states("t", [(at and 2 * at, one) for at, one in enumerate(repeated)])]
    assert (found[-1].positions, found[-1].all_producer_ids) == (meant[-1].positions, meant[-1].all_producer_ids)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        b"",
        b"\xff\xfe",
        b"null",
        b"[4]",
        b"{}",
        b'{"version":4}',
        b'{"version":3,"positions":5,"runs":[1]}',
        b'{"version":4,"runs":[]}',
        b'{"version":3,"runs":[]}',
        b'{"version":4,"runs":[{"topic":"t"}]}',
        b'{"version":4,"runs":{"rows":1,"topic":[]}}',
        b'{"version":4,"runs":{"rows":1,"topic":[["t"],7]}}',
        b'{"version":4,"gaps":{"rows":1,"topic":{"nulls":[3],"numbers":[1]}}}',
        b'{"version":4,"positions":"x"}',
    ],
)
def test_a_record_of_another_program_is_an_error_that_says_so(garbage: bytes | None) -> None:
    with pytest.raises(TargetError, match=f"an offset-syncs record .*: {NO_STATE}"):
        SlotState.from_json(garbage)  # type: ignore[arg-type]


def test_a_slot_that_is_written_meanwhile_in_another_thread_changes_no_positions() -> None:
    mine, others = ((Position(topic, 0, "", f"west.{topic}", 0, 10**6, 10**5, 0),) for topic in ("orders", "payments"))
    state, other = (SlotState("west", "east", "c", 0, 1, 1, "id", 1, 1, found) for found in (mine, others))

    def interrupted(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name != "_written_positions":
            return None
        sys.settrace(None)  # for what follows, not for this frame
        if event == "line":
            other.to_json()
        sys.settrace(interrupted)
        return interrupted

    before = sys.gettrace()
    sys.settrace(interrupted)
    try:
        written = [state.to_json() for _ in range(2)]
    finally:
        sys.settrace(before)
    assert [SlotState.from_json(one).positions for one in written] == [mine, mine]
