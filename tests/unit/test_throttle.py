"""The rates that an operator allows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrorlake.config.flow import Flow, require_rates
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.mirror.copy import slot_copy
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.slot_copy import SlotCopy
from mirrorlake.jobs.mirror.copy.throttle import LEAST_BYTES, Throttle
from mirrorlake.protocol.limits import Limits

PROPERTIES = {"clusters": "a, b", "a.bootstrap.servers": "h:1", "b.bootstrap.servers": "h:2", "a->b.enabled": "true"}


@pytest.fixture
def flow() -> Flow:
    made: Any = Flow.from_properties(Properties(PROPERTIES), "a->b")
    return replace(made, backfill_topics=NameFilter("mirrorlake.backfill.topics", ("old",)))


def test_what_is_written_is_paid_for_by_waiting_also_by_the_next_attempt(flow: Flow) -> None:
    now, limits = [100.0], Limits()
    throttle = Throttle(replace(flow, max_bytes_per_s=1_000), limits, lambda: now[0])
    assert throttle.wait_s("new") <= 0
    throttle.spend("new", 500)
    throttle.spend("old", 1_500)
    assert throttle.wait_s("new") == pytest.approx(2.0)
    now[0] += 1.5
    later = Throttle(replace(flow, max_bytes_per_s=1_000), limits, lambda: now[0])
    assert later.wait_s("new") == pytest.approx(0.5)
    now[0] += 100  # a time in which nothing was written saves nothing up
    later.spend("new", 1_000)
    assert later.wait_s("new") == pytest.approx(1.0)


def test_what_is_owed_is_bytes_so_that_a_rate_that_is_raised_helps_at_once(flow: Flow) -> None:
    now, limits = [100.0], Limits()

    def wait_s(rate: int) -> float:
        return Throttle(replace(flow, max_bytes_per_s=rate), limits, lambda: now[0]).wait_s("new")

    Throttle(replace(flow, max_bytes_per_s=1), limits, lambda: now[0]).spend("new", 64 << 10)
    assert wait_s(1) == pytest.approx(64 << 10)
    assert wait_s(1 << 10) == pytest.approx(64)
    now[0] += 32
    assert wait_s(4 << 10) == pytest.approx(8)
    assert wait_s(512) == pytest.approx(64), "as when more slots share it"
    assert wait_s(0) == 0
    now[0] += 100
    assert wait_s(64) <= 0


def test_topics_that_give_way_have_a_rate_of_their_own(flow: Flow) -> None:
    throttle = Throttle(replace(flow, max_bytes_per_s=1_000, backfill_max_bytes_per_s=100), Limits(), lambda: 0.0)
    throttle.spend("old", 200)
    assert (throttle.wait_s("new"), throttle.wait_s("old")) == (pytest.approx(0.2), pytest.approx(2.0))
    throttle.spend("new", 300)
    assert (throttle.wait_s("new"), throttle.wait_s("old")) == (pytest.approx(0.5), pytest.approx(2.0))


def test_one_answer_holds_a_part_of_a_second(flow: Flow) -> None:
    def most(rate: int, *topics: str) -> int:
        limited = replace(flow, max_bytes_per_s=rate, backfill_max_bytes_per_s=1 << 20)
        return Throttle(limited, Limits(), lambda: 0.0).most_bytes(16 << 20, topics)

    assert (most(0, "new"), most(8 << 20, "new"), most(1_000, "new")) == (16 << 20, 2 << 20, LEAST_BYTES)
    assert (most(0, "old"), most(8 << 20, "new", "old")) == (256 << 10, 256 << 10), "the rate of topics that give way"


def test_slots_share_a_rate_and_keep_their_connections_while_it_changes(flow: Flow) -> None:
    limited = replace(flow, max_bytes_per_s=1_000, backfill_max_bytes_per_s=3)
    shared = limited.shared_by(4, 2)
    assert (shared.max_bytes_per_s, shared.backfill_max_bytes_per_s) == (250, 1)
    assert limited.shared_by(4, 1).backfill_max_bytes_per_s == 3, "slots without such topics leave it to the others"
    assert shared == limited == flow
    assert hash(shared) == hash(flow)
    assert flow.shared_by(4, 1) is flow


def test_a_wait_for_the_rate_ends_at_the_deadline(flow: Flow) -> None:
    now, limits, slept = [100.0], Limits(), list[float]()
    throttle = Throttle(replace(flow, max_bytes_per_s=1_000, backfill_max_bytes_per_s=100), limits, lambda: now[0])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def allows(*topics: str, deadline: float) -> bool:
        return asyncio.run(throttle.allows(topics, sleep, deadline))

    assert allows("new", deadline=99.0), "nothing is owed, so the deadline does not matter"
    throttle.spend("new", 3_000)
    assert not allows("new", deadline=102.0)
    assert allows("new", deadline=104.0)
    throttle.spend("old", 100)
    assert allows("new", "old", deadline=110.0)
    throttle.spend("old", 100)
    assert not allows("old", deadline=90.0)
    assert slept == [pytest.approx(2.0), pytest.approx(1.0), pytest.approx(1.0), 0.0]


@pytest.mark.parametrize(
    ("owed", "read_before", "taken"),
    [(0, 0, 5), (3_000, 0, 2), (20_000, 0, 0), (20_000, 1, 1)],
    ids=["nothing_owed", "some_owed", "more_than_there_is_time_for", "after_topics_without_a_transform"],
)
def test_transformed_records_are_paid_for_too(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, owed: int, read_before: int, taken: int
) -> None:
    now, limits, accepted = [0.0], Limits(), list[int]()

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    class Transformed:
        dead_letters, everything = None, False

        def __init__(self, **_: object) -> None: ...

        async def begin(self) -> None: ...

        async def accept(self, records: int) -> bool:
            accepted.append(records)
            return True

        async def finish(self, *, everything: bool) -> None:
            Transformed.everything = everything

    class Target:
        def __init__(self) -> None:
            self.limits, self.topics = limits, {"a.t": SimpleNamespace(partitions=1)}
            self.net = SimpleNamespace(sleep=sleep)

        async def each_topic_configs(self, *_: object) -> dict[str, dict[str, str | None]]:
            return {}

    class Outlet:
        async def produce(self, _: object) -> None:
            copy._throttle.spend("t", 1_000)

        async def settle(self) -> None: ...

    monkeypatch.setattr(slot_copy, "TransformedIntake", Transformed)
    target: Any = Target()
    limited = replace(flow, max_bytes_per_s=1_000)
    copy = SlotCopy(limited, target, target, None, slot=0, slots=1, generation=1, clock=lambda: now[0])
    copy._transformed = {("t", 0): Stretch("t", 0, "", "a.t", 0, 0, 0, 5)}
    copy._throttle.spend("t", owed)
    intake, outlet = cast(Any, SimpleNamespace(bytes=read_before)), cast(Any, Outlet())
    records: Any = iter(range(5))
    asyncio.run(copy._copy_transformed(intake, outlet, records=records, epochs={}, deadline=4.5))
    assert (len(accepted), Transformed.everything) == (taken, taken == 5)
    assert copy._waits_for_rate == (taken < 5)


@pytest.mark.parametrize("name", ["mirrorlake.max.bytes.per.second", "mirrorlake.backfill.max.bytes.per.second"])
def test_a_rate_at_which_slots_would_count_as_failing_is_refused_with_the_lowest_one(name: str) -> None:
    """A slot that has written 1 MiB waits for 300 s at 3,496 bytes per second."""

    def refusal(rate: int, slots: int = 1, **others: str) -> str:
        values = {**PROPERTIES, name: str(rate), "mirrorlake.slots": "64", **others}
        try:
            require_rates(Flow.from_properties(Properties(values), "a->b"), slots)
        except ConfigurationError as error:
            return str(error)
        return ""

    assert f"flow a->b: {name} is 3495 bytes, too little for 1 slot: " in refusal(3_495)
    assert "at least 3496, or to 0" in refusal(3_495)
    assert "too little for 4 slots" in (said := refusal(10_000, 4))
    assert "wait for more than 300 s" in said
    assert "at least 13982" in said
    assert [refusal(rate, slots) for rate, slots in ((0, 4), (3_496, 1), (13_982, 4))] == [""] * 3
    assert refusal(3_495, **{"mirrorlake.retry.timeout.ms": "600000"}) == ""
