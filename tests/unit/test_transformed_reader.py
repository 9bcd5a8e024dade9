"""Offsets that Spark has not delivered, and leader epochs, of topics with a transform."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.jobs.mirror.copy import transformed_reader
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.transformed_reader import TransformedIntake, _TimeIsUpError
from mirrorlake.model.gap import GapKind


def stretch() -> Stretch:
    return Stretch(
        topic="t",
        partition=0,
        topic_id="id",
        target_topic="a.t",
        upstream_from=100,
        upstream_next=100,
        downstream_from=0,
        planned_end=1_000,
        leader_epoch=4,
        epoch_from=20,
    )


def intake_of(one: Stretch, leader_epoch: int = 5) -> Any:
    intake = object.__new__(TransformedIntake)
    intake.flow = SimpleNamespace(name="a->b")
    intake.source = SimpleNamespace(leader_epoch=lambda *_: leader_epoch)
    intake._is_over = lambda: False
    skip = SimpleNamespace(skip=lambda of, end, kind: of.skip_to(end, kind))
    intake._intake = SimpleNamespace(gaps=skip)
    intake._stretches = {one.key: one}
    return intake


async def aborted_at(of: Stretch) -> tuple[int, int, GapKind]:
    return of.upstream_next, of.upstream_next + 100, GapKind.ABORTED


def test_a_large_aborted_transaction_takes_no_attempt_longer_than_its_time() -> None:
    one = stretch()
    intake = intake_of(one)
    intake._cause_at = aborted_at
    intake._is_over = lambda: True
    with pytest.raises(_TimeIsUpError):
        asyncio.run(intake._account(one, 1_000))
    assert one.upstream_next == 200, "something is accounted for in each attempt, which can be committed"
    intake._is_over = lambda: False
    asyncio.run(intake._account(one, 1_000))
    assert one.upstream_next == 1_000


def test_a_log_of_which_spark_has_delivered_nothing_is_accounted_for_in_the_same_time() -> None:
    one = stretch()
    intake = intake_of(one)
    intake._cause_at = aborted_at
    intake._is_over = lambda: True
    intake._open, intake.dead_letters = {one.key: one}, SimpleNamespace(pack=lambda: None)
    intake._intake.pack = lambda _: None
    intake.source.each = ended
    asyncio.run(intake.finish(everything=True))
    assert one.upstream_next == 200


async def ended(*_: object) -> list[object]:
    return []


@pytest.mark.parametrize(("leader_epoch", "kept"), [(5, (5, 100)), (4, (-1, 100))], ids=["known", "ahead"])
def test_an_epoch_begins_no_later_than_the_stretch_and_one_that_the_leader_does_not_have_is_none(
    leader_epoch: int, kept: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def batches(*_: object, **__: object) -> AsyncIterator[tuple[Any, bool]]:
        yield SimpleNamespace(leader_epoch=5), False

    monkeypatch.setattr(transformed_reader, "read_stretch", batches)
    one = stretch()
    one.upstream_next = 700
    asyncio.run(intake_of(one, leader_epoch)._see_epoch(one))
    assert (one.leader_epoch, one.epoch_from) == kept
