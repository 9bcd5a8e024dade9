"""Records that a target has refused for their size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.refused_records import BEHIND_S, end_behind_refused
from mirrorlake.jobs.mirror.copy.slot_copy import SlotCopy
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.network.response_error import ResponseError

from tests.unit.test_throttle import PROPERTIES


class Side:
    """A cluster with one topic."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.limits, self.net = limit, Limits(), self

    async def topic_config(self, *_: str) -> str | None:
        if self.limit == -1:
            raise ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")
        return None if self.limit is None else str(self.limit)

    def run(self, asked: Any) -> Any:
        coroutine = asked()
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")


def copying(source: int | None, target: int | None, now: list[float], **properties: str) -> SlotCopy:
    flow = Flow.from_properties(Properties(PROPERTIES | properties), "a->b")
    here, there = Side(source), Side(target)
    made = SlotCopy(flow, here, there, None, 0, 1, 1, clock=lambda: now[0])  # type: ignore[arg-type]
    made._stretches = {("t", 0): Stretch("t", 0, "", "a.t", 0, 0, 0, 100)}
    return made


@pytest.mark.parametrize("is_synced", ["true", "false"])
def test_a_record_is_not_too_large_while_the_remote_topic_has_to_follow_the_source(is_synced: str) -> None:
    now = [5.0]
    copy = copying(3_000, 1_000, now, **{"sync.topic.configs.enabled": is_synced})  # the limit follows in any case
    for now[0] in (5.0, 6.0, 5.0 + BEHIND_S - 0.1):
        copy.target.limits.refused = {("t", 0, 0, 7)}
        error = copy.out_of_step()
        assert error
        assert (error.retriable, error.out_of_step) == (True, True)
        assert "t, partition 0, offset 7: topic a.t" in error.message
        assert "1000. It follows that of the source, 3000" in error.message
        assert not copy.target.limits.refused
    now[0] = 5.0 + BEHIND_S
    copy.target.limits.refused = {("t", 0, 0, 7)}
    assert copy.out_of_step() is None, "it can't follow"
    assert copy.target.limits.refused
    copy.source.limit = 4_000  # type: ignore[attr-defined]
    assert copy.out_of_step() is not None, "the limit of the source was raised once more"


@pytest.mark.parametrize(
    ("source", "target"),
    [(1_000, 1_000), (1_000, 3_000), (None, 1_000), (-1, 1_000)],
    ids=["same", "lower", "unknown", "error"],
)
def test_a_record_is_too_large_where_the_remote_topic_does_not_follow(source: int | None, target: int | None) -> None:
    copy = copying(source, target, [5.0])
    copy.target.limits.refused = {("t", 0, 0, 7)}
    assert copy.out_of_step() is None


def test_a_stretch_ends_behind_the_first_record_that_was_refused() -> None:
    copy = copying(1, 1, [0.0])
    stretch = copy._stretches["t", 0]
    copy.target.limits.refused = {("t", 0, 0, 70), ("t", 0, 0, 50), ("t", 0, 1, 20), ("u", 0, 0, 5)}
    end_behind_refused(copy.flow, copy.target.limits, copy._stretches)
    assert stretch.planned_end == 51
    stretch.upstream_next, stretch.planned_end = 51, 100
    end_behind_refused(copy.flow, copy.target.limits, copy._stretches)
    assert stretch.planned_end == 71
    assert copy.target.limits.refused == {("t", 0, 0, 70), ("t", 0, 1, 20), ("u", 0, 0, 5)}, "it was passed over"


def test_a_record_that_was_refused_is_tried_again_by_another_job_and_in_another_log() -> None:
    limits = Limits()
    limits.begin(3)
    stretch = Stretch("t", 0, "", "a.t", 0, 0, 0, 100)
    limits.refused.add(stretch.record_id(7))
    limits.begin(3)
    assert stretch.record_id(7) in limits.refused
    stretch.incarnation = 1
    assert stretch.record_id(7) not in limits.refused
    limits.begin(4)
    assert not limits.refused


@pytest.mark.parametrize("has_transform", [False, True])
def test_topics_without_a_transform_leave_the_others_half_of_a_transaction(
    has_transform: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copying(1, 1, [10.0])
    if has_transform:
        copy._transformed = copy._stretches
    seen: list[tuple[float, float]] = []
    intake = SimpleNamespace(share=1.0)

    async def note(*_: Any, deadline: float, **__: Any) -> None:
        seen.append((intake.share, deadline))

    async def note_plain(_: Any, __: Any, deadline: float) -> None:
        seen.append((intake.share, deadline))

    monkeypatch.setattr(copy, "_copy", note_plain)
    monkeypatch.setattr(copy, "_copy_transformed", note)
    copy._move(intake, None, [], [], deadline=14.0)  # type: ignore[arg-type]
    assert seen == ([(0.5, 12.0), (1.0, 14.0)] if has_transform else [(1.0, 14.0)])
