"""A backfill and other topics in one plan, where some of them have a transform."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.planning.turns import BACKFILL_TRANSFORMED, Turns
from mirrorlake.model.copy_plan import Range

PROPERTIES = {
    "clusters": "a, b",
    "a.bootstrap.servers": "h:1",
    "b.bootstrap.servers": "h:2",
    "a->b.enabled": "true",
    "mirrorlake.transforms": "t",
    "mirrorlake.transform.t.topics": "changed.*",
    "mirrorlake.transform.t.where": "true",
}
MANY = 1_000_000


def flow(backfill: str) -> Flow:
    made = Flow.from_properties(Properties(PROPERTIES), "a->b")
    return replace(made, backfill_topics=NameFilter("mirrorlake.backfill.topics", (backfill,)))


def ranges(*topics: str) -> list[Range]:
    return [Range(topic, 0, "id", 1, 0, 0, MANY) for topic in topics]


def turn(turns: Turns, of: Flow, planned: list[Range]) -> dict[str, int]:
    return {one.topic: one.end for one in turns.taken(of, planned)}


@pytest.mark.parametrize(
    ("backfill", "other", "shortened"),
    [("changed-old", "new", BACKFILL_TRANSFORMED), ("old", "changed", MANY), ("changed-old", "changed", 20_000)],
)
def test_a_backfill_waits_for_its_turn_and_other_topics_never_wait_for_more_than_a_second_of_it(
    backfill: str, other: str, shortened: int
) -> None:
    turns, of, planned = Turns(), flow(backfill), ranges(backfill, other)
    found: list[Any] = [turn(turns, of, planned) for _ in range(4)]
    assert found == [{other: MANY}, {backfill: shortened}] * 2
    assert turn(turns, of, ranges(backfill)) == {backfill: MANY}, "nothing else waits"
    assert turn(turns, of, planned) == {other: MANY}, "which comes first then"


def test_without_a_transform_a_slot_sees_to_the_order_by_itself() -> None:
    turns, planned = Turns(), ranges("old", "new")
    assert [turn(turns, flow("old"), planned) for _ in range(2)] == [{"old": MANY, "new": MANY}] * 2


def test_a_slot_that_rests_has_no_turn_while_others_have_something_to_copy() -> None:
    turns, of = Turns(), flow("old")
    old, changed = replace(ranges("old")[0], slot=1), ranges("changed")[0]
    assert [turns.taken(of, [old, changed], {1}) for _ in range(3)] == [[changed]] * 3
    assert turns.taken(of, [old], {1}) == [old]
