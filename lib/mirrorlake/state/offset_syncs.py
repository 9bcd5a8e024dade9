"""The offset-syncs topic of a flow, on the target: one partition for each slot, one record for each transaction.

A record has the key `slot-<n>` and the JSON of `SlotState` as its value, compressed with zstd. Most records have only
what has changed (`model/changes.py`). Functions of this module return whole states. The topic keeps all
records (`cleanup.policy=delete`, no retention), so that the ledger can be rebuilt from it at any time, and so that a
snapshot stays as long as the changes that name it. Only the flow's own principal should have the right to write to it.
A record of another program, which has another key, is passed over by all readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mirrorlake.errors import TargetError
from mirrorlake.model.changes import as_snapshot, whole
from mirrorlake.model.slot import TAKEN_OVER, SlotState, parsed
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.messages import Message, encode_message, read_messages
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, read_log
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.log_reader import FETCH_WAIT_MS, UNKNOWN_LOG, log_identity, read_stretch
from mirrorlake.protocol.network.response_error import ResponseError, WireError
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.protocol.transaction import Producer

LARGEST_RECORD_BYTES = 64 << 20
STATE_AND_MARKER = 2
LOOK_BACK = 8  # a state, its marker, and a few transactions that were aborted
AT_FIRST, AT_FIRST_BYTES = 512, 4 << 20  # offsets of a slot that the first call reads, and the size of their states
AT_ONCE = 8  # slots whose states are read at the same time
AT_MOST = 4 * AT_FIRST  # offsets that a later call reads; for more, it is quicker to begin anew
UNASKED_BYTES = 32 << 10  # of the last records; larger ones are not fetched before their slot is known to have news

StateRecord = tuple[int, bytes]  # the offset and the value of a committed record

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


@dataclass(frozen=True, slots=True)
class Seen:
    """The last state of a slot, as a process has read it.

    Attributes:
        end: the last stable offset up to which the slot's partition was read.
        log: the id of the topic and the leader epoch under which that offset was listed; an empty id if they have
            changed meanwhile. While both are the same, the log only grows.
        offset: the offset of the state's record; -1 if the slot has committed none.
        size: the bytes of the largest of the records near that end, decompressed.
        state: the whole state; None if the slot has committed none.
    """

    end: int
    log: tuple[str, int]
    offset: int
    size: int
    state: SlotState | None


def encode(state: SlotState, base_sequence: int) -> bytes:
    """Encodes a state as a record batch of the slot's producer, in its open transaction."""
    producer = Producer(state.transactional_id, state.producer_id, state.producer_epoch)
    return encode_message(
        producer,
        base_sequence,
        timestamp=state.created_ms,
        key=key_of(state.slot),
        value=state.to_json(),
    )


def key_of(slot: int) -> bytes:
    """Returns the key of the states of a slot."""
    return f"slot-{slot}".encode()


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

    logs = {key: log_identity(target, key) for key in keys}
    newest: dict[PartitionKey, tuple[int, Sequence[Batch]]]
    first, stable, newest = await target.together(
        partial(listed, EARLIEST_TIMESTAMP), partial(listed, LATEST_TIMESTAMP), partial(_newest_batches, target, keys)
    )
    logs = {key: _same(log, log_identity(target, key)) for key, log in logs.items()}

    async def seen_of(key: PartitionKey) -> Seen:
        seen = target.states_seen.get(key)
        if isinstance(seen, Seen) and seen.log == logs[key] != UNKNOWN_LOG and seen.end == stable[key]:
            return seen
        end, batches = newest.get(key, (-1, ()))
        records = _records(batches[-1:], key[1]) if end == stable[key] else []
        if records and parsed(records[0][1]).get("number"):  # changes, which others may precede
            records = _records(batches, key[1])
        elif not records:
            _, records = await _last_values(target, key, first[key], stable[key], LOOK_BACK, timeout_ms)
        return await _seen(target, key, logs[key], first[key], stable[key], records, timeout_ms)

    found = await target.each([partial(seen_of, key) for key in keys], AT_ONCE)
    target.states_seen.update(zip(keys, found, strict=True))
    states = {slot: seen.state for (_, slot), seen in zip(keys, found, strict=True) if seen.state is not None}
    return states, {slot: end for (_, slot), end in stable.items()}


def _same(before: tuple[str, int], after: tuple[str, int]) -> tuple[str, int]:
    return after if before == after else UNKNOWN_LOG


async def _seen(
    target: Cluster,
    key: PartitionKey,
    log: tuple[str, int],
    first: int,
    end: int,
    records: Sequence[StateRecord],
    timeout_ms: int,
) -> Seen:
    """Returns the last state of a slot, whole.

    Args:
        target: the cluster that has the topic.
        key: the topic and the slot.
        log: what identifies the log.
        first: the first offset that the log still has, as far as it is known.
        end: the last stable offset of the slot.
        records: the last committed records before it, in order, without a hole; none if the slot has none.
        timeout_ms: the deadline of each request.

    Raises:
        TargetError: the state can't be read, or one that it needs is missing.
    """
    if not records:
        return Seen(end, log, -1, 0, None)
    decoded: dict[int, SlotState] = {}

    def state_at(offset: int, value: bytes) -> SlotState:
        if offset not in decoded:
            decoded[offset] = SlotState.from_json(value)
        return decoded[offset]

    offset, size = records[-1][0], max(len(value) for _, value in records[-LOOK_BACK:])
    last = state_at(*records[-1])
    if not last.number:
        return Seen(end, log, offset, size, as_snapshot(offset, last))
    before = _followed_by(target.states_seen.get(key), log, offset, last)
    if before is not None:
        base, known = before.state, before.offset
    else:
        base, known = None, last.snapshot - 1
    changes = [(at, value) for at, value in records if at > known]
    number = state_at(*changes[0]).number if changes else last.number
    if number != (base.number + 1 if base else 0):  # some are before `records`
        changes = await committed_values_async(target, key, max(known + 1, first), offset + 1, timeout_ms)
    following = [(at, state_at(at, value)) for at, value in changes]
    if base is None:
        (at, snapshot), *following = following or [(-1, last)]
        if snapshot.number or at != last.snapshot:
            raise TargetError(
                f"{key[0]}-{key[1]}: the state at offset {offset} has changes since the snapshot at offset "
                f"{last.snapshot}, which is missing. Records of the topic were deleted, or the cluster has lost them. "
                "Restore the topic, then start the job again"
            )
        base = as_snapshot(at, snapshot)
    return Seen(end, log, offset, size, whole(key[0], base, following))


def _followed_by(seen: object, log: tuple[str, int], offset: int, last: SlotState) -> Seen | None:
    """Returns a state that was seen, if the changes of `last` continue it; the log must have only grown since then."""
    if not isinstance(seen, Seen) or seen.state is None or seen.log != log or log == UNKNOWN_LOG:
        return None
    is_before = seen.offset < offset and seen.state.number < last.number
    return seen if is_before and seen.state.snapshot == last.snapshot else None


async def _newest_batches(
    target: Cluster, keys: Iterable[PartitionKey]
) -> dict[PartitionKey, tuple[int, Sequence[Batch]]]:
    """Reads what follows the ends that were seen before, while the ends of now are listed.

    A leader that was just elected may answer a Fetch with an end that is too low (KIP-207), but not a ListOffsets.
    So these records count only where both name the same end.

    Returns:
        The last stable offset and the batches of the last committed records before it, by partition, of those that
        were read up to there. Partitions whose leader returns an error are left out.
    """
    starts = {
        key: max(0, seen.end - LOOK_BACK)
        for key in keys
        if isinstance(seen := target.states_seen.get(key), Seen)
        and seen.size <= UNASKED_BYTES
        and target.leader(*key) >= 0
    }
    asked = [
        target.fetch(
            node, {key: starts[key] for key in of_node}, LARGEST_RECORD_BYTES, LARGEST_RECORD_BYTES, FETCH_WAIT_MS
        )
        for node, of_node in by(lambda key: target.leader(*key), starts).items()
    ]
    found: dict[PartitionKey, tuple[int, Sequence[Batch]]] = {}
    for future in asked:
        try:
            for fetched in target.fetched(await future):
                if not fetched.error_code:
                    found[fetched.topic, fetched.partition] = _committed_batches(fetched)
        except (ResponseError, WireError):
            continue  # the other way reports it, if it lasts
    return found


def _committed_batches(fetched: Fetched) -> tuple[int, Sequence[Batch]]:
    """Returns the end of what a response holds, -1 if a part of it is damaged, and the batches that were committed."""
    aborted, end = AbortedTransactions(fetched.aborted), -1
    found: list[Batch] = []
    for batch in read_log(fetched.records):
        if not batch.crc_is_right:
            return -1, ()
        is_aborted, end = aborted.drops(batch), batch.end_offset
        if not (is_aborted or batch.is_control):
            found.append(batch)
    return end, found


def _records(batches: Iterable[Batch], slot: int) -> list[StateRecord]:
    """Reads the states of batches; a state has a batch of its own."""
    last = [[*read_messages(batch)][-1] for batch in batches]
    return [(one.offset, one.value or b"") for one in last if is_state(one, slot)]


def is_state(message: Message, slot: int) -> bool:
    """Returns False for a record that another program has written: a slot's states have its name as their key."""
    return message.key == key_of(slot)


def foreign_records(target: Cluster, topic: str, slots: Iterable[int], timeout_ms: int) -> dict[int, int]:
    """Finds records near the ends of slots that are no states, which all readers pass over.

    Args:
        target: the cluster that has the topic.
        topic: the offset-syncs topic.
        slots: the numbers of the slots.
        timeout_ms: the deadline of each request.

    Returns:
        The last such offset of each slot that has one.
    """
    keys = [(topic, slot) for slot in slots]
    first, ends = (target.offsets(keys, at, timeout_ms) for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    found = dict[int, int]()
    for key in keys:
        start = max(first[key], ends[key] - LOOK_BACK)
        read: list[Message] = target.net.run(partial(committed_messages, target, key, start, ends[key], timeout_ms))
        for one in read:
            if not is_state(one, key[1]):
                found[key[1]] = one.offset
    return found


def read_all_states(target: Cluster, topic: str, timeout_ms: int) -> dict[int, SlotState]:
    """Reads the last committed state of every slot; returns none if the topic does not exist."""
    found = target.refresh([topic], timeout_ms)
    return read_states(target, topic, range(found[topic].partitions), timeout_ms) if topic in found else {}


def was_taken_over(target: Cluster, topic: str, states: Mapping[int, SlotState], timeout_ms: int) -> bool:
    """Returns True if a flow goes on where MirrorMaker 2 has stopped, as far as its first and its last states say.

    Args:
        target: the cluster that has the topic.
        topic: the flow's offset-syncs topic.
        states: its last states.
        timeout_ms: the deadline of each request.
    """
    keys = [(topic, slot) for slot in states]
    first, end = (target.offsets(keys, at, timeout_ms) for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    looks = [partial(_first_state, target, key, first[key], end[key], timeout_ms) for key in keys]
    begun: list[SlotState] = target.net.run(lambda: target.each(looks, AT_ONCE))
    return any(
        state.inferred or any(one.epoch_from == TAKEN_OVER for one in state.positions)
        for state in (*begun, *states.values())
    )


async def _first_state(target: Cluster, key: PartitionKey, first: int, end: int, timeout_ms: int) -> SlotState:
    """Reads the first committed state of a slot that has one, as its record has it."""
    ahead, found = STATE_AND_MARKER, list[StateRecord]()
    while not found and first < end:
        found = await committed_values_async(target, key, first, min(first + ahead, end), timeout_ms)
        first, ahead = first + ahead, 8 * ahead
    return SlotState.from_json(found[0][1])


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
        logs = {key: log_identity(self._target, key) for key in keys}
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
        read: list[list[SlotState]] = self._target.net.run(
            lambda: self._target.each(
                [partial(self._states, key, logs[key], first.get(key), end) for key, end in sorted(stable.items())],
                AT_ONCE,
            )
        )
        self._topic_id, self._next = topic_id, stable  # only now: an error must not lose states
        return [state for of_slot in read for state in of_slot], is_continued

    async def _states(self, key: PartitionKey, log: tuple[str, int], first: int | None, end: int) -> list[SlotState]:
        """Reads the new states of a slot, or the newest ones if `first` is given; the last one whole."""
        target, timeout_ms = self._target, self._timeout_ms
        if first is None:
            records = await committed_values_async(target, key, self._next[key], end, timeout_ms)
        else:
            records = await self._newest(key, first, end)
        if not records:
            return []
        earlier = [SlotState.from_json(value, with_positions=False) for _, value in records[:-1]]
        seen = await _seen(target, key, _same(log, log_identity(target, key)), first or 0, end, records, timeout_ms)
        target.states_seen[key] = seen
        assert seen.state is not None
        return [*earlier, seen.state]

    async def _newest(self, key: PartitionKey, first: int, end: int) -> list[StateRecord]:
        """Reads the last record of a slot, wherever it is, and earlier ones as far as they are quick to read."""
        start, found = await _last_values(self._target, key, first, end, STATE_AND_MARKER, self._timeout_ms)
        if not found:
            return []
        earlier = max(first, start - min(AT_FIRST, AT_FIRST_BYTES // max(len(value) for _, value in found)))
        return await committed_values_async(self._target, key, earlier, start, self._timeout_ms) + found


async def _last_values(
    target: Cluster, key: PartitionKey, first: int, end: int, look_back: int, timeout_ms: int
) -> tuple[int, list[StateRecord]]:
    """Reads the last committed records, at least one if there is any.

    It goes back from `end`, further each time. It also returns the offset from which on these are
    all committed records.
    """
    start, found = end, list[StateRecord]()
    while not found and start > first:
        start = max(first, end - look_back)
        found = await committed_values_async(target, key, start, end, timeout_ms)
        look_back *= 8
    return start, found


def committed_values(
    target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int
) -> list[tuple[int, bytes]]:
    """Reads the committed states of `[start, end)` in order: their offsets and values.

    Raises:
        TargetError: the log can't be read, or a record is corrupt.
    """
    found: list[tuple[int, bytes]] = target.net.run(lambda: committed_values_async(target, key, start, end, timeout_ms))
    return found


async def committed_values_async(
    target: Cluster, key: tuple[str, int], start: int, end: int, timeout_ms: int
) -> list[tuple[int, bytes]]:
    """Does the same as `committed_values`, for use inside the event loop."""
    found = await committed_messages(target, key, start, end, timeout_ms)
    return [(one.offset, one.value or b"") for one in found if is_state(one, key[1])]


async def committed_messages(
    target: Cluster, key: PartitionKey, start: int, end: int, timeout_ms: int
) -> list[Message]:
    """Reads the committed records of `[start, end)` of any topic in order; for use inside the event loop."""

    async def messages() -> list[Message]:
        found = list[Message]()
        async for batch, is_aborted in read_stretch(target, key, start=start, end=end, max_bytes=LARGEST_RECORD_BYTES):
            if is_aborted or batch.is_control:
                continue
            if not batch.crc_is_right:
                raise TargetError(
                    f"{key[0]}-{key[1]}, offset {batch.base_offset}: the record is corrupt (CRC). Check the target's "
                    "disks"
                )
            found += read_messages(batch)
        return found

    if start >= end:
        return []
    return await target.retry(f"reading {key[0]}-{key[1]} from offset {start} (needs READ)", messages, timeout_ms)
