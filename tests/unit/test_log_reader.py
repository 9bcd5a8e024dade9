"""The first batches of many partitions, of leaders that answer only when somebody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.log_reader import EACH_PARTITIONS, NothingThereError, read_each
from mirrorlake.protocol.requests.fetch import Fetched

from tests.unit.test_record_batch import RECORDS, encode

LEADERS, PARTITIONS, ROOM = 3, 10_000, 700  # a response has room for that many partitions
BATCH = bytes(encode(RECORDS))


class Leaders:
    """Leaders of partitions that each have one batch, from offset 0 on; `gone` have an error, `silent` nothing."""

    def __init__(self, gone: int = -1, silent: int = -1) -> None:
        self.gone, self.silent = gone, silent
        self.asked: list[list[int]] = []  # how many partitions, by round
        self._is_waited_for = True

    def leader(self, topic: str, partition: int) -> int:
        return partition % LEADERS

    def fetch(self, node: int, offsets: Mapping[PartitionKey, int], *_: Any, **__: Any) -> Any:
        assert {partition % LEADERS for _, partition in offsets} == {node}
        if self._is_waited_for:
            self.asked.append([])
        self._is_waited_for = False
        self.asked[-1].append(len(offsets))
        return self._answer([*offsets])

    async def _answer(self, keys: list[PartitionKey]) -> list[PartitionKey]:
        self._is_waited_for = True
        return keys

    def fetched(self, keys: list[PartitionKey]) -> Iterator[Fetched]:
        for number, (topic, partition) in enumerate(keys):
            error = ErrorCode.OFFSET_OUT_OF_RANGE if partition == self.gone else 0
            has_batch = number < ROOM and not error and partition != self.silent
            yield Fetched(topic, partition, error, 0, len(RECORDS), [], BATCH if has_batch else b"")


def read(leaders: Leaders) -> list[tuple[int, int]]:
    async def found() -> list[tuple[int, int]]:
        offsets = {("t", partition): 0 for partition in range(PARTITIONS)}
        return [(first.key[1], first.error_code) async for first in read_each(leaders, offsets)]  # type: ignore[arg-type]

    return asyncio.run(found())


def test_all_leaders_are_asked_at_once_for_a_bounded_number_of_partitions() -> None:
    leaders = Leaders(gone=7)
    found = read(leaders)
    assert sorted(found) == [(at, ErrorCode.OFFSET_OUT_OF_RANGE if at == 7 else 0) for at in range(PARTITIONS)]
    assert max(map(max, leaders.asked)) == EACH_PARTITIONS
    assert [len(asked) for asked in leaders.asked] == [LEADERS] * len(leaders.asked)
    assert len(leaders.asked) == -(-PARTITIONS // LEADERS // ROOM)
    with pytest.raises(NothingThereError, match="leader of t-8 returns no batch at offset 0"):
        read(Leaders(silent=8))
