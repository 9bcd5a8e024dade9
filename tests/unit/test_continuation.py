"""Where a slot continues, if what it is told does not fit what it has committed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy.continuation import require_remote_topics, stretches_left
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.protocol.requests.metadata import Topic

FLOW: Any = SimpleNamespace(
    name="a->b",
    source="a",
    target="b",
    offset_syncs_topic="syncs",
    passes_over_losses=True,
    connect_timeout_ms=1_000,
    policy=SimpleNamespace(remote_topic=lambda name: f"a.{name}"),
)
PLANNED = Range("t", 0, "id", 1, slot=0, start=100, end=300, leader_epoch=5)
POSITION = Position("t", 0, "id", "a.t", 0, 100, 100, 0, leader_epoch=7, target_topic_id="there", epoch_from=50)


def state(position: Position) -> SlotState:
    return SlotState("a", "b", "c", 0, 1, 1, "x", 1, 0, (position,))


def test_a_plan_that_is_older_than_the_state_and_of_an_older_leader_is_left_to_the_next_one() -> None:
    """The leader may be one that does not know its successor: its log would look like one that was truncated."""
    later = replace(POSITION, upstream_next=200)
    assert stretches_left(FLOW, state(later), [PLANNED]) == {}
    assert len(stretches_left(FLOW, state(later), [replace(PLANNED, leader_epoch=7)])) == 1
    assert len(stretches_left(FLOW, state(POSITION), [PLANNED])) == 1, (
        "the planner has seen both, and asked every broker"
    )


def test_a_plan_that_begins_behind_the_state_is_that_of_a_new_partition_whose_log_has_lost_its_beginning() -> None:
    """The commit of its first records could not be read yet; the start of its log has moved on since."""
    before = replace(POSITION, upstream_next=40)
    (stretch,) = stretches_left(FLOW, state(before), [replace(PLANNED, is_new=True)]).values()
    assert (stretch.upstream_next, stretch.planned_end) == (40, 300)
    with pytest.raises(TargetError, match="or a broker that is not the leader any more has answered") as caught:
        stretches_left(FLOW, state(before), [PLANNED])
    assert caught.value.retriable


@pytest.mark.parametrize(
    ("answers", "doubts", "is_reset"),
    [("there", {}, False), ("other", {}, True), ("other", {"a.t": "broker 3 does not answer"}, None)],
    ids=["was behind", "created anew", "in doubt"],
)
def test_a_remote_topic_counts_as_created_anew_once_every_broker_says_so(
    answers: str, doubts: dict[str, str], is_reset: bool | None
) -> None:
    def topic(topic_id: str) -> Topic:
        return Topic("a.t", topic_id, {0: 1})

    target: Any = SimpleNamespace(
        topics={"a.t": topic("other")},
        call=lambda _, attempt, __: attempt(),
        ask_every_broker=lambda _: ({"a.t": topic(answers)}, doubts),
    )
    source: Any = SimpleNamespace(offsets=lambda keys, *_: dict.fromkeys(keys, 3))
    (stretch,) = stretches_left(FLOW, state(POSITION), [PLANNED]).values()
    if is_reset is None:
        with pytest.raises(TargetError, match="may have been created anew: broker 3 does not answer") as caught:
            require_remote_topics(FLOW, source, target, [stretch])
        assert caught.value.retriable
    else:
        require_remote_topics(FLOW, source, target, [stretch])
        assert [reset.kind for reset in stretch.resets] == (["target_recreated"] if is_reset else [])
        assert stretch.target_topic_id == answers
