"""The writing half of a copying task, on a target that answers no request before somebody waits for the answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from mirrorlake.jobs.mirror.copy import target_writer
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.target_writer import Outlet
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import read_log
from mirrorlake.protocol.cluster import IN_FLIGHT
from mirrorlake.protocol.transaction import Producer

from tests.unit.test_record_batch import RECORDS, encode

Appended = list[tuple[PartitionKey, int]]


class SlowTarget:
    """Two nodes, which lead the even and the odd partitions."""

    transaction_version = 2

    def __init__(self) -> None:
        self.in_flight, self.most = Counter[int](), Counter[int]()
        self._ends = Counter[PartitionKey]()
        self.sizes: list[int] = []

    def leader(self, topic: str, partition: int) -> int:
        return partition % 2

    def produce(self, node: int, _: str, sealed: Mapping[PartitionKey, bytes], timeout_ms: int) -> Any:
        self.in_flight[node] += 1
        self.most[node] = max(self.most[node], self.in_flight[node])
        self.sizes.append(sum(map(len, sealed.values())))
        appended = [(key, self._ends[key]) for key in sealed]
        for key, raw in sealed.items():
            (batch,) = read_log(bytes(raw))
            self._ends[key] += batch.records
        return self._answer(node, appended)

    async def _answer(self, node: int, appended: Appended) -> Appended:
        self.in_flight[node] -= 1
        return appended

    def produced(self, appended: Appended) -> Iterator[tuple[PartitionKey, int]]:
        return iter(appended)


def write(target: Any, stretches: list[Stretch]) -> None:
    """Produces what waits in the stretches, until all of it is acknowledged."""
    outlet = Outlet(None, target, Producer("id", 1, 0))  # type: ignore[arg-type]

    async def produced() -> None:
        await outlet.produce(stretches)
        await outlet.settle(0)

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
