"""The writing half of a copying task: produces waiting batches into the open transaction, in order, with a few requests
in flight."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Set
from functools import partial
from typing import Any, Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.throttle import Throttle
from mirrorlake.model.anomaly import AnomalyKind, about
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.batches.codecs import CorruptBatchError, OversizedBatchError
from mirrorlake.protocol.batches.record_batch import Batch, next_sequence
from mirrorlake.protocol.batches.records import read_records
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.error_codes import TOO_LARGE, ErrorCode
from mirrorlake.protocol.log_reader import UNKNOWN_LOG, NothingThereError, log_identity, read_stretch
from mirrorlake.protocol.network.network_client import IN_FLIGHT, MOST_IN_FLIGHT
from mirrorlake.protocol.network.response_error import ResponseError, is_unauthorized
from mirrorlake.protocol.topic_changes import LARGEST_MESSAGE
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS

FETCH_BYTES = 1 << 20
LOOKS_AT_ONCE = 8  # of partitions; a transaction waits for them, and a far target takes a round trip for each fetch
CHECKED_BYTES, CHECKED_S = 256 << 20, 5.0  # of what others have written: of each partition, and of all together
FAR_BYTES = 24 << 20  # in flight over a long line, on all connections to a broker
LEAST_WINDOW_BYTES, LATE_S = 128 << 10, 3.0
REQUEST_BYTES = 16 << 20  # brokers refuse requests above socket.request.max.bytes, 100 MiB by default


class BatchRefusedError(Exception):
    """Raised when the target refuses a batch for its size, or for records without a key.

    The cluster's `limits` have been updated, so that another attempt makes batches that fit.
    """


class Writing(Protocol):
    """A source of batches to produce: a stretch, or dead letters."""

    target_topic: str
    waiting: deque[tuple[int, Batch]]  # target partition, batch

    def append(self, batch: Batch, target_partition: int, base_offset: int) -> None:
        """Called when the target has appended a batch."""


Requested = dict[PartitionKey, tuple[Writing, Batch]]  # what one request has for each partition
Where = tuple[int, int]  # a node and the number of a connection to it


class InFlight:
    """The requests in flight on one connection, and their bytes."""

    def __init__(self) -> None:
        self.requests: deque[tuple[Any, Requested, float]] = deque()
        self.bytes = 0

    def put(self, future: Any, batches: Requested) -> None:
        """Adds a request."""
        self.requests.append((future, batches, time.monotonic()))
        self.bytes += _size(batches)

    @property
    def oldest_at(self) -> float:
        """Returns the time at which the oldest request was sent."""
        return self.requests[0][2]

    def take(self) -> tuple[Any, Requested, float]:
        """Removes the oldest request, to await its response; with the time at which it was sent."""
        future, batches, sent_at = self.requests.popleft()
        self.bytes -= _size(batches)
        return future, batches, sent_at


def _size(batches: Requested) -> int:
    return sum(len(batch.raw) for _, batch in batches.values())


class Outlet:
    """Writes the batches of one attempt.

    Args:
        flow: flow to mirror.
        target: cluster to write.
        producer: producer of the open transaction.
        connections: number of connections to each broker.
        is_far: True if the line to the target is long.
        throttle: counts what is written; None if there is no limit.
        most_bytes: returns the bytes that may be in flight; one request may be in any case.

    Attributes:
        bytes: the size of the batches that the target has appended.
    """

    def __init__(
        self,
        flow: Flow,
        target: Cluster,
        producer: transaction.Producer,
        connections: int = 1,
        *,
        is_far: bool = False,
        throttle: Throttle | None = None,
        most_bytes: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._throttle, self._most_bytes = throttle, most_bytes
        self.flow, self.target, self.producer = flow, target, producer
        self.bytes = 0
        self._sequences: dict[PartitionKey, int] = {}
        self._in_flight: dict[Where, InFlight] = {}
        self._connections = connections
        self._lanes: dict[PartitionKey, int] = {}
        self._used: Counter[int] = Counter()  # partitions that have a connection, by node
        self._is_far = is_far
        self._narrowed_at = 0.0
        self._added: set[PartitionKey] = set()
        self._begun: set[PartitionKey] = set()
        self._nodes: dict[PartitionKey, int] = {}  # that have got the last batch of each partition

    async def produce(self, stretches: Iterable[Writing]) -> None:
        """Sends all waiting batches in order, at most one batch of a partition in each request."""
        stretches = list(stretches)
        while found := self._next_batches(stretch for stretch in stretches if stretch.waiting):
            for where, batches in found.items():
                await self._make_room(where, _size(batches))
                await self._send(where, batches)

    def _next_batches(self, stretches: Iterable[Writing]) -> dict[Where, Requested]:
        """Takes the next batch of each partition out of what waits, by the connection that the partition is on.

        A request has at most REQUEST_BYTES, or one batch; the next request begins with the partitions that were left
        out, as they still have what the others have sent.
        """
        found: dict[Where, Requested] = {}
        sizes: dict[Where, int] = {}
        for stretch in sorted(stretches, key=lambda stretch: -len(stretch.waiting)):
            key, size = (stretch.target_topic, stretch.waiting[0][0]), len(stretch.waiting[0][1].raw)
            where = self._where(key)
            batches = found.setdefault(where, {})
            has_room = not batches or sizes.get(where, 0) + size <= REQUEST_BYTES
            if has_room and key not in batches:  # another stretch may write to the same partition
                batches[key] = (stretch, stretch.waiting.popleft()[1])
                sizes[where] = sizes.get(where, 0) + size
        return found

    def _where(self, key: PartitionKey) -> Where:
        """Returns the connection of a partition, which it keeps: batches must not overtake each other.

        The first batch of a partition goes over the first connection, and is waited for (`_send`).
        """
        node = self.target.leader(*key)
        if key not in self._begun:
            return node, 0
        if key not in self._lanes:
            self._lanes[key] = self._used[node] % self._connections
            self._used[node] += 1
        return node, self._lanes[key]

    async def settle(self) -> None:
        """Waits until no request is in flight.

        Raises:
            BatchRefusedError: a batch is larger than its topic allows, or lacks keys that it needs.
            ResponseError, WireError: any other error; the transaction can't be committed.
        """
        for in_flight in self._in_flight.values():
            while in_flight.requests:
                await self._accept(*in_flight.take())

    async def _make_room(self, where: Where, size: int) -> None:
        """Waits until another request, of so many bytes, may be sent on a connection."""
        in_flight = self._in_flight.setdefault(where, InFlight())
        while self._is_full(in_flight):
            await self._accept(*in_flight.take())
        while self.bytes_in_flight and self.bytes_in_flight + size > self._most_bytes():
            oldest = min((one for one in self._in_flight.values() if one.requests), key=lambda one: one.oldest_at)
            await self._accept(*oldest.take())

    @property
    def bytes_in_flight(self) -> int:
        """Returns the size of the batches that were sent and are not answered."""
        return sum(one.bytes for one in self._in_flight.values())

    def _is_full(self, in_flight: InFlight) -> bool:
        """Returns True if a connection has as many requests in flight as the line to the target needs.

        A broker remembers five batches of a producer, to recognise a repeated one. No request is repeated here, so
        more may be in flight, in order.
        """
        if not self._is_far:
            return len(in_flight.requests) >= IN_FLIGHT
        return len(in_flight.requests) >= MOST_IN_FLIGHT or in_flight.bytes > self.target.limits.window_bytes

    def _adapt_window(self, sent_at: float, size: int, *, was_there: bool) -> None:
        """Lets more be in flight over a long line while responses come soon, and half as much where they don't.

        A slow line, or a target below its quota, would otherwise hold more than it takes before requests time out. A
        response that was there before somebody waited for it came soon enough.
        """
        limits, now = self.target.limits, time.monotonic()
        if was_there or now < sent_at + LATE_S:
            limits.window_bytes = min(FAR_BYTES // self._connections, limits.window_bytes + size // self._connections)
        elif sent_at >= self._narrowed_at:  # once for all that were in flight
            limits.window_bytes, self._narrowed_at = max(LEAST_WINDOW_BYTES, limits.window_bytes // 2), now

    async def _accept(self, future: Any, batches: Requested, sent_at: float) -> None:
        """Takes the answer to one request."""
        was_there = future.is_done
        try:
            response = await future
            stamped = self.target.stamped(response)
            if stamped is not None and stamped[0] != self.flow.dead_letter_topic:
                raise TargetError(
                    f"flow {self.flow.name}: topic {stamped[0]} on cluster {self.flow.target} replaces the timestamps "
                    "of records. Nothing was committed. Set its message.timestamp.type to CreateTime, or grant the "
                    "mirror job DESCRIBE_CONFIGS and ALTER_CONFIGS on it",
                    retriable=True,
                    out_of_step=True,
                )
            for key, base_offset in self.target.produced(response):
                stretch, batch = batches[key]
                stretch.append(batch, key[1], base_offset)
                self.bytes += len(batch.raw)
            if self._is_far:
                self._adapt_window(sent_at, _size(batches), was_there=was_there)
        except ResponseError as error:
            if error.key is None:
                raise
            topic, (writing, batch) = error.key[0], batches[error.key]
            if error.code == ErrorCode.INVALID_TIMESTAMP:
                raise TargetError(
                    f"flow {self.flow.name}: topic {topic} on cluster {self.flow.target} refuses records for their "
                    "timestamps. Nothing was committed. Set its message.timestamp.before.max.ms and "
                    "message.timestamp.after.max.ms to 9223372036854775807, or grant the mirror job DESCRIBE_CONFIGS "
                    "and ALTER_CONFIGS on it",
                    retriable=True,
                    out_of_step=True,
                ) from None
            if error.code in TOO_LARGE:
                await self._learn_limit(topic, writing, batch)
            elif error.code != ErrorCode.INVALID_RECORD or not await self._learn_keys(topic, writing, batch):
                raise
            raise BatchRefusedError from error

    async def _send(self, where: Where, batches: Requested) -> None:
        if any(self._nodes.get(key, where[0]) != where[0] for key in batches):
            await self.settle()  # a leader has moved: what the one before has appended is noted first
        self._nodes.update(dict.fromkeys(batches, where[0]))
        sealed = {}
        for key, (writing, batch) in batches.items():
            if self._throttle is not None and isinstance(writing, Stretch):
                self._throttle.spend(writing.topic, len(batch.raw))
            sequence = self._sequences.get(key, 0)
            sealed[key] = batch.sealed(self.producer.producer_id, self.producer.producer_epoch, sequence)
            self._sequences[key] = next_sequence(sequence, batch.records)
        await self._add_partitions(batches)
        node, lane = where
        future = self.target.produce(node, self.producer.transactional_id, sealed, PRODUCE_TIMEOUT_MS, lane)
        self._in_flight[where].put(future, batches)
        if self._connections > 1 and not self._begun.issuperset(batches):
            # A broker asks the coordinator about the first batch of each partition. Asked about the same transaction
            # over another connection meanwhile, it refuses the batches of the first question
            # (AddPartitionsToTxnManager).
            while self._in_flight[where].requests:
                await self._accept(*self._in_flight[where].take())
        self._begun.update(batches)

    async def _add_partitions(self, keys: Iterable[PartitionKey]) -> None:
        new = [key for key in keys if key not in self._added]
        if new and self.target.transaction_version < 2:
            await transaction.add_partitions(self.target, self.producer, new, self.flow.connect_timeout_ms)
        self._added.update(new)

    async def _learn_limit(self, topic: str, writing: Writing, batch: Batch) -> None:
        """Updates the size limit of a topic after it refused a batch.

        The limit is the topic's configuration. If that can't be read or is not smaller than the refused batch (for
        example, because the broker recompresses), the limit is half of the batch's size.
        """
        refused_bytes = len(batch.raw)
        if batch.records == 1:
            if not isinstance(writing, Stretch):
                raise TargetError(
                    f"flow {self.flow.name}: topic {topic} on cluster {self.flow.target} refuses a record of "
                    f"{refused_bytes:,} bytes. Raise the topic's max.message.bytes"
                )
            self.target.limits.refused.add(writing.record_id(batch.base_offset))
            return
        try:
            configured = int(await self.target.topic_config(topic, LARGEST_MESSAGE) or refused_bytes)
        except ResponseError:
            configured = refused_bytes
        self.target.limits.lower(topic, configured if configured < refused_bytes else refused_bytes // 2)

    async def _learn_keys(self, topic: str, writing: Writing, batch: Batch) -> bool:
        """Notes that a topic refuses records without a key; returns False if that is no reason to refuse this batch.

        A batch that can't be read is opened by the next attempt, which handles that as a loss.
        """
        limits = self.target.limits
        if not isinstance(writing, Stretch):
            return False
        policy = await self.target.topic_config(topic, "cleanup.policy")
        if policy is not None and "compact" not in policy:
            return False
        try:
            records = read_records(batch, self.flow.batch_max_decompressed_bytes)
            is_news = topic not in limits.keyed and not all(record.has_key for record in records)
            limits.keyed |= {topic} if is_news else set()
        except (CorruptBatchError, OversizedBatchError):
            record = writing.record_id(batch.base_offset)
            is_news = record not in limits.refused
            limits.refused.add(record)
        return is_news

    # -- other writers ------------------------------------------------------------------------------

    async def require_sole_writer(
        self,
        stretches: Iterable[Stretch],
        known_producers: Collection[int],
        taken_over: Set[PartitionKey] = frozenset(),
    ) -> list[str]:
        """Checks the target's offsets between this flow's records, for foreign records and for its own.

        On shared topics foreign records are no error. At most CHECKED_BYTES are read there of each partition, and after
        CHECKED_S no more than a response, as the transaction is open meanwhile. Records of this flow would come soon
        after the position. Behind a map that was taken over, and of which nothing was copied since, they are no error
        either: the mirror before has left them, and the take-over has recorded them.

        Returns:
            Descriptions of foreign records, if the flow continues after losses.

        Raises:
            TargetError: another program has written to the partition; or this flow has, and its state is older.
        """
        found, looked = [], list(stretches)
        until = time.monotonic() + CHECKED_S
        looks = [
            partial(self._foreign, one, known_producers, is_taken_over=one.key in taken_over, until=until)
            for one in looked
        ]
        for stretch, foreign in zip(looked, await self.target.each(looks, LOOKS_AT_ONCE), strict=True):
            if foreign is None:
                continue
            detail = (
                f"flow {self.flow.name}: another program has written to topic {stretch.target_topic}, partition "
                f"{stretch.partition} on cluster {self.flow.target}, at offset {foreign}, after the records mirrored "
                f"up to upstream offset {stretch.upstream_from}"
            )
            if not self.flow.passes_over_losses:
                raise TargetError(
                    f"{detail}. Nothing was copied. Revoke that program's WRITE permission. Its record stays: to "
                    "mirror on behind it, set mirrorlake.on.loss = continue until the flow has copied records of this "
                    "partition. If such writes are intended, set mirrorlake.topics.shared = true",
                    anomaly=about(AnomalyKind.FOREIGN, stretch.key, stretch.upstream_from, stretch.upstream_from),
                )
            found.append(detail)
        return found

    async def _foreign(
        self, stretch: Stretch, known_producers: Collection[int], *, is_taken_over: bool, until: float
    ) -> int | None:
        """Returns the first offset of a foreign committed record between this flow's records, or None."""
        key, end = (stretch.target_topic, stretch.partition), stretch.downstream_from
        for run in stretch.runs:
            if end == stretch.downstream_from:
                # Before this transaction there may be markers, and records of aborted attempts.
                if run.downstream_start > end + 1:
                    foreign = await self._foreign_before(
                        stretch,
                        key,
                        run.downstream_start,
                        known_producers,
                        are_expected=is_taken_over or self.flow.topics_shared,
                        until=until,
                    )
                    if foreign is not None:
                        return foreign
            elif run.downstream_start > end and not self.flow.topics_shared:
                return end  # foreign records within this transaction
            end = run.downstream_end
        return None

    async def _foreign_before(
        self,
        stretch: Stretch,
        key: PartitionKey,
        end: int,
        known_producers: Collection[int],
        *,
        are_expected: bool,
        until: float,
    ) -> int | None:
        """Reads the target from the position on; raises TargetError for committed records of this flow.

        It reads on where the last attempt has stopped. Failed attempts may have left more than one can read before the
        transaction times out.
        """
        first = (await self.target.list_offsets([key], EARLIEST_TIMESTAMP))[key]
        at, read_bytes = max(self._looked_to(stretch, key), first), 0
        try:
            async for batch, is_aborted in read_stretch(self.target, key, start=at, end=end, max_bytes=FETCH_BYTES):
                if not (is_aborted or batch.is_control):
                    if batch.producer_id in known_producers:
                        raise self._state_is_older(stretch, batch.base_offset)
                    if not are_expected:
                        return batch.base_offset
                at, read_bytes = batch.end_offset, read_bytes + len(batch.raw)
                self.target.limits.looked[key] = stretch.downstream_from, log_identity(self.target, key), at
                is_late = read_bytes >= FETCH_BYTES and time.monotonic() >= until
                if are_expected and (is_late or read_bytes > CHECKED_BYTES):
                    return None
        except NothingThereError:  # an open transaction, of another producer or of an earlier attempt
            return None if self.flow.topics_shared else await self._open_before(stretch, key, at, end, known_producers)
        except ResponseError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                where = f"{key[0]}-{key[1]} on cluster {self.flow.target}"
                what = "retention has deleted records that were being looked at"
                raise TargetError(f"flow {self.flow.name}: {where}: {what}", retriable=True) from None
            if not is_unauthorized(error):
                raise
        return None  # without the right to read, foreign records are not noticed

    def _looked_to(self, stretch: Stretch, key: PartitionKey) -> int:
        """Returns the offset up to which earlier attempts have found nothing behind the position."""
        position, log, to = self.target.limits.looked.get(key, (-1, UNKNOWN_LOG, 0))
        is_same = position == stretch.downstream_from and log == log_identity(self.target, key) != UNKNOWN_LOG
        return max(stretch.downstream_from, to) if is_same else stretch.downstream_from

    async def _open_before(
        self, stretch: Stretch, key: PartitionKey, at: int, end: int, known_producers: Collection[int]
    ) -> int:
        """Returns the first offset of an open transaction of another producer.

        Raises:
            TargetError: there is none but this flow's own. A broker that has just started writes the markers of earlier
                attempts late, or does not answer up to the end of its log yet.
        """
        batches = read_stretch(self.target, key, start=at, end=end, max_bytes=FETCH_BYTES, isolation=READ_UNCOMMITTED)
        with contextlib.suppress(NothingThereError):
            async for batch, _ in batches:
                if not batch.is_control and batch.producer_id not in {*known_producers, self.producer.producer_id}:
                    return batch.base_offset
        raise TargetError(
            f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}: cluster {self.flow.target} "
            f"has not ended an earlier attempt's transaction yet, at offset {at} of {stretch.target_topic}",
            retriable=True,
        )

    def _state_is_older(self, stretch: Stretch, offset: int) -> TargetError:
        flow, syncs = self.flow, self.flow.offset_syncs_topic
        return TargetError(
            f"flow {flow.name}, topic {stretch.topic}, partition {stretch.partition}: cluster {flow.target} has "
            f"committed records of this flow at offset {offset} of {stretch.target_topic}, but {syncs} ends at offset "
            f"{stretch.downstream_from} (upstream offset {stretch.upstream_from}). The topic {syncs} has lost its "
            "newest records, or a broker answers that has lost them. Nothing was committed. Restore the topic, or take "
            "the flow over again",
            anomaly=about(AnomalyKind.STOPPED, stretch.key, stretch.upstream_from, stretch.upstream_from),
        )
