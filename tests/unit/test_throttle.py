"""The rates that an operator allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.copy.throttle import LEAST_BYTES, Throttle
from mirrorlake.protocol.cluster import Limits

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


def test_topics_that_give_way_have_a_rate_of_their_own(flow: Flow) -> None:
    throttle = Throttle(replace(flow, max_bytes_per_s=1_000, backfill_max_bytes_per_s=100), Limits(), lambda: 0.0)
    throttle.spend("old", 200)
    assert (throttle.wait_s("new"), throttle.wait_s("old")) == (pytest.approx(0.2), pytest.approx(2.0))
    throttle.spend("new", 300)
    assert (throttle.wait_s("new"), throttle.wait_s("old")) == (pytest.approx(0.5), pytest.approx(2.0))


def test_one_answer_holds_a_part_of_a_second(flow: Flow) -> None:
    def most(rate: int) -> int:
        return Throttle(replace(flow, max_bytes_per_s=rate), Limits(), lambda: 0.0).most_bytes(16 << 20)

    assert (most(0), most(8 << 20), most(1_000)) == (16 << 20, 2 << 20, LEAST_BYTES)


def test_slots_share_a_rate_and_keep_their_connections_while_it_changes(flow: Flow) -> None:
    limited = replace(flow, max_bytes_per_s=1_000, backfill_max_bytes_per_s=3)
    shared = limited.shared_by(4)
    assert (shared.max_bytes_per_s, shared.backfill_max_bytes_per_s) == (250, 1)
    assert shared == limited == flow
    assert hash(shared) == hash(flow)
    assert flow.shared_by(4) is flow
