"""The offset-syncs topic of a flow, on the target: one partition for each slot, one record for each transaction of the slot.

Record: key `slot-<n>`, value the JSON of `SlotState`, gzip. Kept for ever (`cleanup.policy=delete`, no retention), so that the ledger can be
rebuilt from it at any time. Only the flow's own principal should be allowed to write here.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from mirrorlake.errors import TargetError
from mirrorlake.log import read_stretch
from mirrorlake.slot import SlotState
from mirrorlake.transaction import Producer
from mirrorlake.wire import EARLIEST, LATEST, Cluster

GZIP = 1
LARGEST_RECORD_BYTES = 64 << 20
LOOK_BACK = 8  # a state, its marker, and a few transactions that were aborted

TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(LARGEST_RECORD_BYTES),
    "unclean.leader.election.enable": "false",
}


def encode(state: SlotState, base_sequence: int) -> bytes:
    """The state as a record batch of the slot's producer, in its open transaction."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=GZIP, is_transactional=True, producer_id=state.producer_id, producer_epoch=state.producer_epoch,
        base_sequence=base_sequence, batch_size=LARGEST_RECORD_BYTES,
    )  # fmt: skip
    builder.append(0, state.created_ms, f"slot-{state.slot}".encode(), state.to_json(), [])
    return bytes(builder.build())


def read_states(target: Cluster, topic: str, slots: Iterable[int], timeout_ms: int) -> dict[int, SlotState]:
    """The last committed state of each slot; a slot that has never committed one is left out.

    Steps back from the last stable offset: markers and aborted transactions may follow the record that counts.
    """
    keys = [(topic, slot) for slot in slots]
    first, stable = target.offsets(keys, EARLIEST, timeout_ms), target.offsets(keys, LATEST, timeout_ms)
    states: dict[int, SlotState] = {}
    look_back, wanted = LOOK_BACK, {key for key in keys if stable[key] > first[key]}
    while wanted:
        start = {key: max(first[key], stable[key] - look_back) for key in wanted}
        for key in sorted(wanted):
            found = _last_state(target, key, start[key], stable[key], timeout_ms)
            if found is not None:
                states[key[1]] = found
        wanted = {key for key in wanted if key[1] not in states and start[key] > first[key]}
        look_back *= 8
    return states


def read_all_states(target: Cluster, topic: str, timeout_ms: int) -> dict[int, SlotState]:
    """The last committed state of every slot there is; none where the topic does not exist."""
    found = target.refresh([topic], timeout_ms)
    return read_states(target, topic, range(found[topic].partitions), timeout_ms) if topic in found else {}


def find_state(target: Cluster, topic: str, slot: int, producer: Producer, timeout_ms: int) -> bool:
    """True if the transaction of this producer is the last one of the slot that was committed."""
    state = read_states(target, topic, [slot], timeout_ms).get(slot)
    return state is not None and (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.producer_epoch)


def _last_state(target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int) -> SlotState | None:
    async def last() -> bytes | None:
        found: bytes | None = None
        async for batch, is_aborted in read_stretch(target, key, start, end, LARGEST_RECORD_BYTES):
            if is_aborted or batch.is_control:
                continue
            if not batch.crc_is_right:
                raise TargetError(f"{key[0]}-{key[1]}, offset {batch.base_offset}: the record is corrupt (CRC). Check the target's disks")
            for record in MemoryRecords(bytes(batch.raw)).next_batch():
                found = record.value
        return found

    found = target.call(f"reading {key[0]}-{key[1]} from offset {start} (needs READ)", last, timeout_ms)
    return None if found is None else SlotState.from_json(found)
