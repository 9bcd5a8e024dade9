"""The writing half of a copying task, on a target that answers no request before somebody waits for the answer."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from mirrorlake.jobs.mirror.copy import target_writer
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.target_writer import Outlet
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import read_log
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.network.network_client import IN_FLIGHT
from mirrorlake.protocol.transaction import Producer

from tests.unit.test_record_batch import RECORDS, encode

Appended = list[tuple[PartitionKey, int]]


class Answer:
    """The future of an answer, which is there as soon as somebody waits for it."""

    is_done = False

    def __init__(self, target: SlowTarget, node: int, appended: Appended) -> None:
        self._target, self._node, self._appended = target, node, appended

    def __await__(self) -> Iterator[Any]:
        self._target.in_flight[self._node] -= 1
        return self._appended
        yield  # this is a generator


class SlowTarget:
    """Two nodes, which lead the even and the odd partitions, or more."""

    transaction_version = 2

    def __init__(self, nodes: int = 2) -> None:
        self.nodes = nodes
        self.in_flight, self.most = Counter[int](), Counter[int]()
        self._ends = Counter[PartitionKey]()
        self.most_at_once = 0
        self.sizes: list[int] = []
        self.lanes: dict[PartitionKey, list[int]] = {}
        self.limits = Limits()
        self.moved: dict[int, int] = {}
        self.begun_beside_others = 0
        self._is_beginning = False

    def leader(self, topic: str, partition: int) -> int:
        return self.moved.get(partition, partition % self.nodes)

    def produce(self, node: int, _: str, sealed: Mapping[PartitionKey, bytes], timeout_ms: int, lane: int) -> Any:
        self.in_flight[node] += 1
        self.most[node] = max(self.most[node], self.in_flight[node])
        self.most_at_once = max(self.most_at_once, self.in_flight.total())
        self.sizes.append(sum(map(len, sealed.values())))
        self.begun_beside_others += self._is_beginning and self.in_flight[node] > 1
        self._is_beginning = not self.lanes.keys() >= sealed.keys()
        for key in sealed:
            self.lanes.setdefault(key, []).append(lane)
        appended = [(key, self._ends[key]) for key in sealed]
        for key, raw in sealed.items():
            (batch,) = read_log(bytes(raw))
            self._ends[key] += batch.records
        return Answer(self, node, appended)

    def stamped(self, _: Appended) -> None:
        """Every topic keeps the timestamps of records."""

    def produced(self, appended: Appended) -> Iterator[tuple[PartitionKey, int]]:
        return iter(appended)


def write(
    target: Any, stretches: list[Stretch], connections: int = 1, *, is_far: bool = False, most_bytes: float = math.inf
) -> None:
    """Produces what waits in the stretches, until all of it is acknowledged."""
    producer, flow = Producer("id", 1, 0), cast("Any", None)
    outlet = Outlet(flow, target, producer, connections, is_far=is_far, most_bytes=lambda: most_bytes)

    async def produced() -> None:
        await outlet.produce(stretches)
        await outlet.settle()

    asyncio.run(produced())


def test_a_node_has_as_many_requests_at_once_as_a_broker_remembers_batches_and_all_are_answered_in_the_end() -> None:
    target: Any = SlowTarget()
    stretches = [Stretch("t", partition, "", "a.t", 0, 0, 0, 60) for partition in range(3)]
    for stretch in stretches:
        for start in range(0, 60, len(RECORDS)):
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
    write(target, stretches)
    assert target.most == dict.fromkeys((0, 1), IN_FLIGHT)
    assert target.in_flight == dict.fromkeys((0, 1), 0)
    for stretch in stretches:
        assert [(run.upstream_start, run.upstream_end, run.downstream_start) for run in stretch.runs] == [(0, 60, 0)]
        assert stretch.digests_written == stretch.digests_read


@pytest.mark.parametrize(("batches", "at_once"), [(7.5, 7), (0.5, 1)])
def test_what_is_in_flight_is_bounded_however_many_nodes_and_connections_there_are(
    batches: float, at_once: int
) -> None:
    target: Any = SlowTarget(nodes=30)
    stretches = [Stretch("t", partition, "", "a.t", 0, 0, 0, 60) for partition in range(60)]
    for stretch in stretches:
        for start in range(0, 60, len(RECORDS)):
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
    write(target, stretches, connections=2, is_far=True, most_bytes=batches * len(encode(RECORDS)))
    assert target.most_at_once in range(1, at_once + 1)
    assert target.in_flight.total() == 0
    for stretch in stretches:
        assert [(run.upstream_start, run.upstream_end, run.downstream_start) for run in stretch.runs] == [(0, 60, 0)]


def test_a_request_is_bounded_and_each_partition_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode(RECORDS))
    monkeypatch.setattr(target_writer, "REQUEST_BYTES", 3 * size)
    target: Any = SlowTarget()
    stretches = [Stretch("t", partition, "", "a.t", 0, 0, 0, 60) for partition in range(0, 40, 2)]
    for stretch in stretches:
        for start in range(0, 3 * (1 + stretch.partition // 2), len(RECORDS)):
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
    write(target, stretches)
    assert max(target.sizes) == 3 * size
    assert sum(target.sizes) == size * sum(range(1, 21))
    for stretch in stretches:
        assert stretch.digests_written == stretch.digests_read
        assert len(stretch.runs) == 1


def test_what_the_leader_before_has_appended_is_noted_before_what_its_successor_appends() -> None:
    target: Any = SlowTarget()
    outlet = Outlet(None, target, Producer("id", 1, 0))  # type: ignore[arg-type]
    first, other = (Stretch("t", partition, "", "a.t", 0, 0, 0, 60) for partition in (0, 1))

    async def produced() -> None:
        for stretch, start in ((other, 0), (first, 0), (first, len(RECORDS))):
            if start:  # metadata were refreshed for another reason, while the old leader had answered already
                target.moved[0] = 1
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
            await outlet.produce([first, other])
        await outlet.settle()

    asyncio.run(produced())
    assert first.digests_written == first.digests_read
    assert len(first.runs) == 1


def test_over_a_long_line_bytes_bound_what_is_in_flight_and_a_partition_stays_on_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = len(encode(RECORDS))
    monkeypatch.setattr(target_writer, "FAR_BYTES", 2 * 12 * size)
    target: Any = SlowTarget()
    target.limits.window_bytes = 12 * size
    stretches = [Stretch("t", partition, "", "a.t", 0, 0, 0, 300) for partition in (0, 2, 4)]
    for start in range(0, 300, len(RECORDS)):
        for stretch in stretches:  # as they arrive, side by side
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
    write(target, stretches, connections=2, is_far=True)
    assert {lanes[0] for lanes in target.lanes.values()} == {0}
    assert not target.begun_beside_others
    assert sorted(sorted({*lanes[1:]}) for lanes in target.lanes.values()) == [[0], [0], [1]]
    # 12 batches and the one that goes beyond; two partitions share a connection, and so a request.
    assert target.most[0] == 13 + 7
    for stretch in stretches:
        assert [(run.upstream_start, run.upstream_end, run.downstream_start) for run in stretch.runs] == [(0, 300, 0)]
        assert stretch.digests_written == stretch.digests_read


def test_over_a_long_line_more_is_in_flight_while_answers_come_soon_and_less_while_they_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target: Any = SlowTarget()

    def window(late_s: float, batches: int) -> int:
        monkeypatch.setattr(target_writer, "LATE_S", late_s)
        stretch = Stretch("t", 0, "", "a.t", 0, 0, 0, batches * len(RECORDS))
        for start in range(0, batches * len(RECORDS), len(RECORDS)):
            stretch.take(*read_log(bytes(encode(RECORDS, start))))
        write(target, [stretch], is_far=True)
        return int(target.limits.window_bytes)

    first = target.limits.window_bytes
    grown = window(late_s=60, batches=1_000)
    assert grown == first + 1_000 * len(encode(RECORDS))
    assert window(late_s=0, batches=60) == grown // 2, "once for all that were in flight"
    assert window(late_s=0, batches=300) == target_writer.LEAST_WINDOW_BYTES
