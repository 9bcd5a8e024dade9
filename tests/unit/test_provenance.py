"""The producers of flows to a cluster, from logs of states that are whole, cut off, or of another program."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.errors import SourceError
from mirrorlake.model.slot import SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.messages import encode_message
from mirrorlake.protocol.batches.record_batch import read_log
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.protocol.transaction import Producer
from mirrorlake.state import provenance
from mirrorlake.state.offset_syncs import encode
from mirrorlake.state.provenance import Provenance

FLOW: Any = SimpleNamespace(name="b->a", source="b", target="a", records="all", bringers=(), same_cluster_allowed=False)
FLOW.connect_timeout_ms = 1_000
TOPIC = "mirrorlake.offset-syncs.a.internal"


class Log:
    """A source cluster with one partition of states; the deleted ones are missing from its beginning, or in between."""

    def __init__(self, records: Mapping[int, bytes], first: int = 0) -> None:
        self.records, self.first = {at: one for at, one in records.items() if at >= first}, first
        self.end = max(records, default=first - 1) + 1

    async def update_metadata(self, names: list[str] | None) -> dict[str, Topic]:
        return {TOPIC: Topic(TOPIC, "id", {0: 1}, None, {0: 0})}

    async def list_offsets(self, keys: list[PartitionKey], at: int, isolation: int = 0) -> dict[PartitionKey, int]:
        return dict.fromkeys(keys, self.first if at == EARLIEST_TIMESTAMP else self.end)

    async def retry(self, what: str, attempt: Any, timeout_ms: int) -> Any:
        return await attempt()

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def fetch(self, node: int, offsets: Mapping[PartitionKey, int], **_: Any) -> int:
        (offset,) = offsets.values()
        assert offset >= self.first, "offset out of range"
        return offset

    def fetched(self, offset: int) -> Iterator[Fetched]:
        data = b"".join(struct.pack(">q", at) + one[8:] for at, one in sorted(self.records.items()) if at >= offset)
        yield Fetched(TOPIC, 0, 0, self.first, self.end, [], data)

    def error(self, message: str, **_: Any) -> SourceError:
        return SourceError(message)


def state(producer_id: int, **values: Any) -> bytes:
    return encode(SlotState("a", "b", "c", 0, 1, 1, "id", producer_id, 0, **values), 0)


def learnt(log: Log, producer_id: int = 999) -> Provenance:
    """Returns the provenance after a batch of a producer."""
    found = Provenance(FLOW, log)  # type: ignore[arg-type]
    (batch,) = read_log(state(producer_id))
    asyncio.run(found.learn([batch]))
    return found


# A snapshot with the producers before it, and the changes of a later producer.
CHANGES = {0: state(8, producer_ids=(1, 7))} | {
    2 * number: state(9, snapshot=0, number=number) for number in range(1, 30)
}


def test_producers_are_read_from_the_snapshot_that_the_last_changes_name() -> None:
    found = learnt(Log(CHANGES))
    assert {1, 7, 8, 9} <= found.mirrored
    assert 999 not in found.mirrored
    assert not learnt(Log({})).mirrored, "no job has written a state yet"
    assert {1, 7} <= learnt(Log({40: state(8, producer_ids=(1, 7))}, first=40)).mirrored, "a snapshot is enough"


def test_producers_of_one_transaction_each_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MOST_LOCAL", 10)
    found = learnt(Log(CHANGES))
    for producer_id in range(1_000, 1_100):
        (batch,) = read_log(state(producer_id))
        asyncio.run(found.learn([batch]))
        assert found.knows([producer_id])
        assert not found.excludes(batch)
    assert len(found._local) <= 10
    assert {1, 7, 8, 9} <= found.mirrored


@pytest.mark.parametrize(
    "log",
    [
        Log(CHANGES, first=10),
        Log({at: one for at, one in CHANGES.items() if at}),
        Log({}, first=60),
    ],
    ids=["cut off", "compacted", "emptied"],
)
def test_a_list_of_producers_that_was_deleted_lets_no_batch_pass_as_a_local_one(log: Log) -> None:
    with pytest.raises(SourceError, match=rf"{TOPIC}-0 on cluster b has no state any more that lists all producers"):
        learnt(log, producer_id=7)


def test_states_that_may_not_be_described_are_asked_for_by_name_and_let_no_record_pass_as_a_local_one() -> None:
    class Hidden(Log):
        async def update_metadata(self, names: list[str] | None) -> dict[str, Topic]:
            if names is not None and "mirrorlake.offset-syncs.c.internal" in names:
                raise ResponseError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, names[0])
            return {}  # as a broker does where all topics are asked for

    flow: Any = SimpleNamespace(**{**vars(FLOW), "records": "local", "bringers": ("a", "c")})
    (batch,) = read_log(state(999))
    with pytest.raises(ResponseError, match="offset-syncs"):
        asyncio.run(Provenance(flow, Hidden({})).learn([batch]))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"", b"hello", b"\xff", b"[]", b'"x"', b'{"version":4,"runs":{"rows":1}}'])
def test_a_record_of_another_program_is_named_by_its_place(value: bytes) -> None:
    damaged, stray = (
        encode_message(Producer("id", 9, 0), 0, timestamp=0, key=key, value=value) for key in (b"slot-0", b"")
    )
    with pytest.raises(SourceError, match=rf"{TOPIC}-0, offset 2, on cluster b: an offset-syncs record"):
        learnt(Log({0: state(8), 2: damaged}))
    assert learnt(Log({0: state(8), 2: stray}), producer_id=9).mirrored == {8}, "with another key, it is no state"
