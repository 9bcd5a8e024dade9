"""Which Fetch requests the reading half of a copying task has under way, on a source that answers none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kafka.future import Future
from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.source_reader import FETCH_BYTES, LEAST_FETCH_BYTES, PARTITION_FETCH_BYTES, Intake
from mirrorlake.jobs.mirror.copy.throttle import Throttle
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.limits import Limits

from tests.unit.test_throttle import PROPERTIES

Asked = tuple[int, int, frozenset[int], int]  # node, lane, partitions, size limit


class SilentSource:
    """A source with a leader for each residue of the partitions' numbers."""

    def __init__(self, leaders: int, *, is_far: bool = False) -> None:
        self.leaders, self.is_far, self.moved = leaders, is_far, 0
        self.asked: list[Asked] = []
        self.partition_bytes: set[int] = set()

    def leader(self, _: str, partition: int) -> int:
        return partition % self.leaders + self.moved

    def fetch(self, node: int, offsets: Mapping[PartitionKey, int], max_bytes: int, lane: int, **given: Any) -> Any:
        self.asked.append((node, lane, frozenset(partition for _, partition in offsets), max_bytes))
        self.partition_bytes.add(given["partition_max_bytes"])
        return Future()


@pytest.fixture
def flow() -> Flow:
    return Flow.from_properties(Properties(PROPERTIES), "a->b")


def intake(flow: Flow, source: Any, partitions: int, connections: int = 1, **given: Any) -> Intake:
    stretches = {
        ("t", partition): Stretch("t", partition, "", "a.t", 0, 0, 0, 1_000) for partition in range(partitions)
    }
    return Intake(flow, source, None, Limits(), given.pop("stretches", stretches), connections, **given)


def test_each_connection_has_one_request_under_way_with_partitions_of_its_own(flow: Flow) -> None:
    source = SilentSource(2, is_far=True)
    reading = intake(flow, source, partitions=7, connections=2)
    for source.moved in (0, 0, 10):  # other leaders in the end
        reading.fetch(lambda _: FETCH_BYTES)
    assert len({(node, lane) for node, lane, *_ in source.asked}) == len(source.asked)
    assert sorted(partition for *_, partitions, _ in source.asked for partition in partitions) == [*range(7)]
    assert all(partition % 2 == node for node, _, partitions, _ in source.asked for partition in partitions)
    shares = sorted((node, lane, len(partitions)) for node, lane, partitions, _ in source.asked)
    assert shares == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 1)]
    assert source.partition_bytes == {flow.batch_memory_bytes // 8}, "one partition may have a whole response"


@pytest.mark.parametrize("leaders", [1, 4, 30])
def test_what_is_held_is_bounded_however_many_leaders_there_are(flow: Flow, leaders: int) -> None:
    source = SilentSource(leaders)
    intake(flow, source, partitions=60).fetch(lambda _: FETCH_BYTES)
    assert len(source.asked) == leaders
    # One response of each connection is written while the next one arrives.
    assert 2 * sum(size for *_, size in source.asked) <= flow.batch_memory_bytes
    assert max(source.partition_bytes) <= PARTITION_FETCH_BYTES


def test_what_is_held_is_bounded_though_leaders_are_asked_one_after_the_other(flow: Flow) -> None:
    source = SilentSource(30)
    reading = intake(flow, source, partitions=0, stretches={})
    for partition in range(30):  # as they are found, for example
        stretch = Stretch("t", partition, "", "a.t", 0, 0, 0, 1_000)
        reading._stretches |= {stretch.key: stretch}  # type: ignore[operator]
        reading._order[stretch.key] = None
        reading.fetch(lambda _: FETCH_BYTES)
    assert len(source.asked) == 30
    least = 28 * LEAST_FETCH_BYTES  # the first two have all but this
    assert reading.asked_bytes == sum(size for *_, size in source.asked) <= flow.batch_memory_bytes // 2 + least


def test_topics_that_give_way_are_read_last_and_nothing_is_while_the_rate_is_used_up(flow: Flow) -> None:
    flow = replace(flow, backfill_topics=NameFilter("mirrorlake.backfill.topics", ("old",)), max_bytes_per_s=1_000)
    source, now = SilentSource(1), [0.0]
    stretches = {(topic, 0): Stretch(topic, 0, "", f"a.{topic}", 0, 0, 0, 10) for topic in ("old", "new")}
    throttle = Throttle(flow, Limits(), lambda: now[0])
    reading = intake(flow, source, 0, stretches=stretches, throttle=throttle)
    throttle.spend("new", 500)
    reading.fetch(lambda _: FETCH_BYTES)
    assert (source.asked, reading.throttled_s) == ([], pytest.approx(0.5))
    now[0] = 1.0
    reading.fetch(lambda _: FETCH_BYTES)
    assert {*reading._under_way[0, 0].offsets} == {("new", 0)}
    stretches["new", 0].upstream_next = 10
    reading._under_way.clear()
    reading.fetch(lambda _: FETCH_BYTES)
    assert {*reading._under_way[0, 0].offsets} == {("old", 0)}
