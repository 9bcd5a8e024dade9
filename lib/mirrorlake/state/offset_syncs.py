"""The offset-syncs topic of a flow, on the target: one partition for each slot, one record for each transaction.

A record has the key `slot-<n>` and the JSON of `SlotState` as its value, compressed with gzip. The topic keeps all
records (`cleanup.policy=delete`, no retention), so that the ledger can be rebuilt from it at any time. Only the flow's
own principal should have the right to write to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from mirrorlake.errors import TargetError
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol.batches.messages import encode_message, read_messages
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, read_log
from mirrorlake.protocol.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    Cluster,
    Fetched,
    ResponseError,
    WireError,
    by,
)
from mirrorlake.protocol.log_reader import FETCH_WAIT_MS, read_stretch
from mirrorlake.protocol.transaction import Producer

LARGEST_RECORD_BYTES = 64 << 20
STATE_AND_MARKER = 2
LOOK_BACK = 8  # a state, its marker, and a few transactions that were aborted
AT_FIRST, AT_FIRST_BYTES = 512, 4 << 20  # offsets of a slot that the first call reads, and the size of their states
AT_ONCE = 8  # slots whose states are read at the same time
AT_MOST = 4 * AT_FIRST  # offsets that a later call reads; for more, it is quicker to begin anew

TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(LARGEST_RECORD_BYTES),
    "unclean.leader.election.enable": "false",
}


def topic_config(replication_factor: int) -> dict[str, str]:
    """Returns the configuration of a new offset-syncs topic.

    A majority of its replicas must have a state before it is acknowledged, so that one lost disk loses no position.
    """
    if replication_factor < 1:  # the cluster's defaults for both
        return TOPIC_CONFIG
    in_sync = replication_factor // 2 + 1 if replication_factor > 2 else 1
    return {**TOPIC_CONFIG, "min.insync.replicas": str(in_sync)}


def encode(state: SlotState, base_sequence: int) -> bytes:
    """Encodes a state as a record batch of the slot's producer, in its open transaction."""
    producer = Producer(state.transactional_id, state.producer_id, state.producer_epoch)
    return encode_message(
        producer,
        base_sequence,
        timestamp=state.created_ms,
        key=f"slot-{state.slot}".encode(),
        value=state.to_json(),
        limit_bytes=LARGEST_RECORD_BYTES,
    )


def read_states(target: Cluster, topic: str, slots: Iterable[int], timeout_ms: int) -> dict[int, SlotState]:
    """Reads the last committed state of each slot; leaves out slots that have committed none."""
    return read_states_and_ends(target, topic, slots, timeout_ms)[0]


def read_states_and_ends(
    target: Cluster, topic: str, slots: Iterable[int], timeout_ms: int
) -> tuple[dict[int, SlotState], dict[int, int]]:
    """Reads the last committed state of each slot, and returns the last stable offset of each slot, too.

    The search goes back from the last stable offset, because markers and aborted transactions may follow the
    last committed record. Slots that have committed none are left out of the states.

    Args:
        target: the cluster that has the topic.
        topic: the offset-syncs topic.
        slots: the numbers of the slots.
        timeout_ms: the deadline of each request.
    """
    found: tuple[dict[int, SlotState], dict[int, int]] = target.net.run(
        lambda: states_and_ends(target, topic, slots, timeout_ms)
    )
    return found


async def states_and_ends(
    target: Cluster, topic: str, slots: Iterable[int], timeout_ms: int
) -> tuple[dict[int, SlotState], dict[int, int]]:
    """Does the same as `read_states_and_ends`, for use inside the event loop."""
    keys = sorted((topic, slot) for slot in slots)

    async def listed(at: int) -> dict[tuple[str, int], int]:
        return await target.retry("listing offsets", lambda: target.list_offsets(keys, at), timeout_ms)

    newest: dict[tuple[str, int], tuple[int, bytes | None]]
    first, stable, newest = await target.together(
        partial(listed, EARLIEST_TIMESTAMP), partial(listed, LATEST_TIMESTAMP), partial(_newest_values, target, keys)
    )

    async def last_of(key: tuple[str, int]) -> bytes | None:
        end, value = newest.get(key, (-1, None))
        if end == stable[key] and value is not None:
            return value
        _, found = await _last_values(target, key, first[key], stable[key], LOOK_BACK, timeout_ms)
        return found[-1] if found else None

    found = await target.each([partial(last_of, key) for key in keys], AT_ONCE)
    target.ends_seen.update(stable)
    states = {slot: SlotState.from_json(value) for (_, slot), value in zip(keys, found, strict=True) if value}
    return states, {slot: end for (_, slot), end in stable.items()}


async def _newest_values(
    target: Cluster, keys: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, bytes | None]]:
    """Reads what follows the ends that were seen before, while the ends of now are listed.

    A leader that was just elected may answer a Fetch with an end that is too low (KIP-207), but not a ListOffsets.
    So these values count only where both name the same end.

    Returns:
        The last stable offset and the value of the last committed record before it, by partition, of those that were
        read up to there. Partitions whose leader returns an error are left out.
    """
    starts = {
        key: max(0, target.ends_seen[key] - LOOK_BACK)
        for key in keys
        if key in target.ends_seen and target.leader(*key) >= 0
    }
    asked = [
        target.fetch(
            node, {key: starts[key] for key in of_node}, LARGEST_RECORD_BYTES, LARGEST_RECORD_BYTES, FETCH_WAIT_MS
        )
        for node, of_node in by(lambda key: target.leader(*key), starts).items()
    ]
    found: dict[tuple[str, int], tuple[int, bytes | None]] = {}
    for future in asked:
        try:
            for fetched in target.fetched(await future):
                if not fetched.error_code:
                    found[fetched.topic, fetched.partition] = _last_of(fetched)
        except (ResponseError, WireError):
            continue  # the other way reports it, if it lasts
    return found


def _last_of(fetched: Fetched) -> tuple[int, bytes | None]:
    """Returns the end of what a response holds, -1 if a part of it is damaged, and the last committed value."""
    aborted, end = AbortedTransactions(fetched.aborted), -1
    last: Batch | None = None
    for batch in read_log(fetched.records):
        if not batch.crc_is_right:
            return -1, None
        is_aborted, end = aborted.drops(batch), batch.end_offset
        if not (is_aborted or batch.is_control):
            last = batch
    values: list[bytes | None] = [message.value for message in read_messages(last)] if last else []
    return end, values[-1] if values else None


def read_all_states(target: Cluster, topic: str, timeout_ms: int) -> dict[int, SlotState]:
    """Reads the last committed state of every slot; returns none if the topic does not exist."""
    found = target.refresh([topic], timeout_ms)
    return read_states(target, topic, range(found[topic].partitions), timeout_ms) if topic in found else {}


def is_settled(target: Cluster, topic: str, stable: Mapping[int, int], timeout_ms: int) -> bool:
    """Returns True if no slot has a transaction behind the last stable offsets up to which its states were read.

    A commit may be decided before its markers are in the logs. The states that can be read then lack its positions.

    Args:
        target: the cluster that has the topic.
        topic: the offset-syncs topic.
        stable: the last stable offset of each slot, as it was when the states were read.
        timeout_ms: the deadline of the request and its retries.
    """
    keys = [(topic, slot) for slot in stable]
    ends = target.call(
        f"listing the ends of {topic}",
        lambda: target.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED),
        timeout_ms,
    )
    return all(ends[topic, slot] == offset for slot, offset in stable.items())


def find_state(target: Cluster, topic: str, slot: int, producer: Producer, timeout_ms: int) -> bool:
    """Returns True if the last committed transaction of a slot is that of this producer.

    Args:
        target: the cluster that has the topic.
        topic: the offset-syncs topic.
        slot: the number of the slot.
        producer: the producer of the transaction.
        timeout_ms: the deadline of each request.
    """
    state = read_states(target, topic, [slot], timeout_ms).get(slot)
    return state is not None and (state.producer_id, state.producer_epoch) == (
        producer.producer_id,
        producer.producer_epoch,
    )


class NewStates:
    """The states of all slots of a flow, read as they are committed.

    Args:
        target: the cluster that has the topic.
        topic: the flow's offset-syncs topic.
        timeout_ms: the deadline of each request.
    """

    def __init__(self, target: Cluster, topic: str, timeout_ms: int) -> None:
        self._target, self._topic, self._timeout_ms = target, topic, timeout_ms
        self._topic_id = ""
        self._next: dict[tuple[str, int], int] = {}

    def read(self) -> tuple[list[SlotState], bool]:
        """Reads the states committed since the last successful call, slot by slot.

        Only the last state of a slot has its positions; the others are read for their runs and gaps.

        Returns:
            The states, and True if they continue those of the last call. They don't continue them at the first call,
            for a recreated topic, and after too many new records. The states then are the last ones that exist, at
            least one of each slot that has any.

        Raises:
            TargetError: the topic can't be read, or this version can't decode a record. The next call starts at the
                same offsets as this one.
        """
        topic = self._target.refresh([self._topic], self._timeout_ms).get(self._topic)
        keys = [(self._topic, slot) for slot in range(topic.partitions)] if topic else []
        stable = self._target.offsets(keys, LATEST_TIMESTAMP, self._timeout_ms) if keys else {}
        topic_id = topic.topic_id if topic else ""
        is_continued = (
            bool(self._next)
            and topic_id == self._topic_id
            and all(0 <= stable.get(key, -1) - end <= AT_MOST for key, end in self._next.items())
        )
        first = (
            self._target.offsets(
                [key for key in keys if not is_continued or key not in self._next], EARLIEST_TIMESTAMP, self._timeout_ms
            )
            if keys
            else {}
        )
        states: list[SlotState] = []
        for key, end in sorted(stable.items()):
            values = (
                self._newest(key, first[key], end)
                if key in first
                else _values(self._target, key, start=self._next[key], end=end, timeout_ms=self._timeout_ms)
            )
            states += [SlotState.from_json(value, with_positions=value is values[-1]) for value in values]
        self._topic_id, self._next = topic_id, stable  # only now: an error must not lose states
        return states, is_continued

    def _newest(self, key: tuple[str, int], first: int, end: int) -> list[bytes]:
        """Reads the last record of a slot, wherever it is, and earlier ones as far as they are quick to read."""
        start: int
        found: list[bytes]
        start, found = self._target.net.run(
            lambda: _last_values(self._target, key, first, end, STATE_AND_MARKER, self._timeout_ms)
        )
        if not found:
            return []
        earlier = max(first, start - min(AT_FIRST, AT_FIRST_BYTES // max(map(len, found))))
        return _values(self._target, key, start=earlier, end=start, timeout_ms=self._timeout_ms) + found


async def _last_values(
    target: Cluster, key: tuple[str, int], first: int, end: int, look_back: int, timeout_ms: int
) -> tuple[int, list[bytes]]:
    """Reads the values of the last committed records, at least one if there is any.

    It goes back from `end`, further each time. It also returns the offset from which on these are
    all committed records.
    """
    start, found = end, list[bytes]()
    while not found and start > first:
        start = max(first, end - look_back)
        found = [value for _, value in await committed_values_async(target, key, start, end, timeout_ms)]
        look_back *= 8
    return start, found


def _values(target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int) -> list[bytes]:
    """Reads the values of the committed records of `[start, end)`, in order."""
    return [value for _, value in committed_values(target, key, start=start, end=end, timeout_ms=timeout_ms)]


def committed_values(
    target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int
) -> list[tuple[int, bytes]]:
    """Reads the committed records of `[start, end)` in order: their offsets and values.

    Raises:
        TargetError: the log can't be read, or a record is corrupt.
    """
    found: list[tuple[int, bytes]] = target.net.run(lambda: committed_values_async(target, key, start, end, timeout_ms))
    return found


async def committed_values_async(
    target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int
) -> list[tuple[int, bytes]]:
    """Does the same as `committed_values`, for use inside the event loop."""

    async def values() -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        async for batch, is_aborted in read_stretch(target, key, start=start, end=end, max_bytes=LARGEST_RECORD_BYTES):
            if is_aborted or batch.is_control:
                continue
            if not batch.crc_is_right:
                raise TargetError(
                    f"{key[0]}-{key[1]}, offset {batch.base_offset}: the record is corrupt (CRC). Check the target's "
                    "disks"
                )
            found += [(message.offset, message.value or b"") for message in read_messages(batch)]
        return found

    if start >= end:
        return []
    return await target.retry(f"reading {key[0]}-{key[1]} from offset {start} (needs READ)", values, timeout_ms)
