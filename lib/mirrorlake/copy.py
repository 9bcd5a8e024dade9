"""The task that copies one slot: raw record batches from the source into an open transaction on the target.

Order, which is what makes it exact: InitProducerId (fences and aborts whatever was there) → read the slot's last committed state →
compare it with the plan → copy → write the new state into the same transaction → return, with the transaction still open. The
driver looks at the runs and ends it.

Assumptions: brokers keep what they acknowledge (acks=all); nobody else uses this transactional id or writes to this partition of the
offset-syncs topic. Not guaranteed: that the batch reaches the planned end; it stops early when its time or bytes are used up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from mirrorlake import errors, offset_syncs, transaction
from mirrorlake.batch import AbortedTransactions, Batch, next_sequence, read_log
from mirrorlake.errors import FencedError, MirrorlakeError, SourceError, TargetError
from mirrorlake.failpoint import Failpoint, never
from mirrorlake.flow import Flow
from mirrorlake.plan import Range
from mirrorlake.provenance import Provenance
from mirrorlake.records import dense_parts
from mirrorlake.run import Run
from mirrorlake.slot import Position, SlotState
from mirrorlake.wire import EARLIEST, IN_FLIGHT, Cluster, Fetched, Key, ResponseError, WireError, check, is_unauthorized

FETCH_BYTES = 16 << 20
PARTITION_FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 500
FETCH_BACKOFF_S = 0.1
PRODUCE_TIMEOUT_MS = 30_000
OFFSET_OUT_OF_RANGE = 1
PARTS_AT_ONCE = 5_000  # batches that were packed anew in one transaction: each costs a request, and holes cost a run


@dataclass
class Stretch:
    """What a task has done to one partition: the log from `upstream_from` to `upstream_next`, of which `skipped` offsets hold nothing
    to copy (`gaps` says where: [start, end) and why). The digests are those of all batches, as they were read and as they were answered
    for: the same one twice means the same batches in the same order."""

    topic: str
    partition: int
    topic_id: str
    target_topic: str
    upstream_from: int
    upstream_next: int
    downstream_from: int
    planned_end: int
    runs: list[Run] = field(default_factory=list)
    skipped: int = 0
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    digest_read: int = 0
    digest_written: int = 0
    waiting: deque[Batch] = field(default_factory=deque)

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def is_done(self) -> bool:
        return self.upstream_next >= self.planned_end

    def skip_to(self, end: int, reason: str) -> None:
        """Notes that the offsets up to `end` hold nothing to copy."""
        start = self.upstream_next
        if end <= start:
            return
        if self.gaps and self.gaps[-1][1:] == (start, reason):
            self.gaps[-1] = (self.gaps[-1][0], end, reason)
        else:
            self.gaps.append((start, end, reason))
        self.skipped += end - start
        self.upstream_next = end

    def take(self, batch: Batch) -> None:
        """Lets a batch wait to be produced; offsets before it are those that compaction has taken."""
        self.skip_to(batch.base_offset, "compacted")
        self.waiting.append(batch)
        self.digest_read = batch.extend_digest(self.digest_read)
        self.upstream_next = batch.end_offset

    def append(self, batch: Batch, base_offset: int) -> None:
        """Notes that the target has appended a batch at `base_offset`."""
        end = batch.base_offset + batch.records
        run = self.runs[-1] if self.runs else None
        if run is None or not run.is_continued_by(batch.base_offset, base_offset):
            run = Run(
                self.topic, self.partition, self.target_topic, self.partition, batch.base_offset, batch.base_offset, base_offset, base_offset,
                0, 0, batch.base_timestamp, batch.max_timestamp, 0,
            )  # fmt: skip
            self.runs.append(run)
        run.upstream_end, run.downstream_end = end, base_offset + batch.records
        run.records += batch.records
        run.bytes += len(batch.raw)
        run.first_timestamp = min(run.first_timestamp, batch.base_timestamp)
        run.last_timestamp = max(run.last_timestamp, batch.max_timestamp)
        run.digest = batch.extend_digest(run.digest)
        self.digest_written = batch.extend_digest(self.digest_written)


@dataclass(frozen=True)
class Report:
    """What a task returns about its slot. While `is_open`, the transaction waits for the driver's decision.

    `stretches` are the plain values of each Stretch, for the gate to look at.
    """

    slot: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_open: bool
    stretches: list[dict[str, Any]]

    @property
    def producer(self) -> transaction.Producer:
        return transaction.Producer(self.transactional_id, self.producer_id, self.producer_epoch)


class SlotCopy:
    """One attempt to copy one slot.

    Args:
        flow: what is mirrored, and the limits of a batch.
        source, target: clusters on one event loop.
        provenance: who wrote which batch of the source, where that matters.
        slot: which slot.
        slots, generation: of the plan.
        clock: seconds, monotonic.
        failpoint: called with the name of each step as it is reached; tests end the process there.
    """

    def __init__(
        self, flow: Flow, source: Cluster, target: Cluster, provenance: Provenance | None, slot: int, slots: int, generation: int,
        clock: Callable[[], float] = time.monotonic, failpoint: Failpoint = never,
    ) -> None:  # fmt: skip
        self.flow, self.source, self.target, self.provenance = flow, source, target, provenance
        self.slot, self.slots, self.generation = slot, slots, generation
        self._clock, self._failpoint = clock, failpoint
        self._producer: transaction.Producer | None = None
        self._stretches: dict[Key, Stretch] = {}
        self._sequences: dict[Key, int] = {}
        self._in_flight: dict[int, deque[tuple[Any, dict[Key, tuple[Stretch, Batch]]]]] = {}
        self._bytes = self._parts = 0
        self._added: set[Key] = set()
        self._problem: MirrorlakeError | None = None

    def run(self, ranges: Iterable[Range]) -> Report:
        """Copies the ranges and leaves the transaction open.

        Raises:
            SourceError: the log isn't what was expected, or can't be passed through; or the source can't be read.
            TargetError: the target can't be written, or its state is behind the plan.
            FencedError: a newer job has taken over the flow.
        """
        planned = list(ranges)
        producer = transaction.begin(self.target, self.flow.transactional_id(self.slot), self.flow.transaction_timeout_ms, PRODUCE_TIMEOUT_MS)
        self._producer = producer
        self._failpoint("task.initialised")
        state = self._compare(planned)
        self._failpoint("task.compared")
        if not self._stretches:
            return self._report(is_open=False)
        names = {stretch.topic for stretch in self._stretches.values()}
        self.source.refresh(names, self.flow.connect_timeout_ms)
        self.target.refresh({stretch.target_topic for stretch in self._stretches.values()} | {self.flow.offset_syncs_topic}, self.flow.connect_timeout_ms)
        self._require_topics()
        try:
            self.target.net.run(self._copy)
            self._failpoint("task.copied")
            if self._problem and all(stretch.upstream_next == stretch.upstream_from for stretch in self._stretches.values()):
                raise self._problem
            self._write_state(state)
        except ResponseError as error:
            if error.code in transaction.DEAD:
                raise self._ended_by_another(error) from None
            what = f"flow {self.flow.name}, slot {self.slot}: writing {self._where()} (needs WRITE)"
            raise self.target.explained(what, error, retriable=is_unauthorized(error)) from None
        except WireError as error:
            raise TargetError(f"flow {self.flow.name}, slot {self.slot}: the connection was lost while copying {self._where()}: {error}", retriable=True) from None
        self._failpoint("task.written")
        return self._report(is_open=True)

    # -- before the copy -----------------------------------------------------------------------------------------------------

    def _compare(self, planned: list[Range]) -> SlotState:
        """Holds the plan against the slot's own last committed state, and keeps what is still to be done."""
        topic = self.flow.offset_syncs_topic
        self.target.refresh([topic], self.flow.connect_timeout_ms)
        state = offset_syncs.read_states(self.target, topic, [self.slot], self.flow.connect_timeout_ms).get(self.slot)
        if state is None:
            raise TargetError(
                f"flow {self.flow.name}: {topic}-{self.slot} on cluster {self.flow.target} has no state, though the plan was made from one; "
                "was the topic deleted? Restore it, or delete it and the flow's remote topics together to start anew"
            )
        if state.generation > self.generation:
            raise fenced(self.flow, self.generation, state.generation)
        if state.generation < self.generation:
            raise TargetError(
                f"flow {self.flow.name}: {topic}-{self.slot} went back from generation {self.generation} to {state.generation}: the target has lost records"
            )
        owned = state.owned()
        for planned_range in planned:
            position = owned.get((planned_range.topic, planned_range.partition))
            start = planned_range.start if position is None else position.upstream_next
            if start < planned_range.start:
                raise TargetError(
                    f"flow {self.flow.name}, topic {planned_range.topic}, partition {planned_range.partition}: the committed position is {start}, behind the "
                    f"plan's start {planned_range.start}: cluster {self.flow.target} has lost records of {topic}. Restore them before mirroring goes on"
                )
            if start < planned_range.end or position is None:
                stretch = Stretch(
                    planned_range.topic, planned_range.partition, planned_range.topic_id, self.flow.policy.remote_topic(planned_range.topic),
                    start, start, position.downstream_next if position else 0, planned_range.end,
                )  # fmt: skip
                self._stretches[stretch.key] = stretch
        return state

    def _require_topics(self) -> None:
        for stretch in self._stretches.values():
            found = self.source.topics.get(stretch.topic)
            if found is None or found.topic_id != stretch.topic_id:
                raise SourceError(
                    f"flow {self.flow.name}: topic {stretch.topic} on cluster {self.flow.source} was deleted{' and created anew' if found else ''} since it was planned",
                    retriable=found is None,
                )
            if stretch.target_topic not in self.target.topics:
                raise TargetError(f"flow {self.flow.name}: topic {stretch.target_topic} does not exist on cluster {self.flow.target}", retriable=True)

    # -- the copy ------------------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        deadline = self._clock() + self.flow.batch_max_ms / 1000
        pending = self._fetch()
        while pending:
            for future in pending:
                await self._accept(future)
            more = self._bytes < self.flow.batch_max_bytes and self._parts < PARTS_AT_ONCE and self._clock() < deadline
            pending = self._fetch() if more else []
            await self._produce()
            self._failpoint("task.producing")
        await self._settle(0)

    def _fetch(self) -> list[Any]:
        """Asks every leader for what is still to be read; partitions without a leader are asked for once more next time."""
        wanted: dict[int, dict[Key, int]] = {}
        for stretch in self._stretches.values():
            if not stretch.is_done:
                wanted.setdefault(self.source.leader(*stretch.key), {})[stretch.key] = stretch.upstream_next
        return [self.source.fetch(node, offsets, FETCH_BYTES, PARTITION_FETCH_BYTES, FETCH_WAIT_MS) for node, offsets in wanted.items()]

    async def _accept(self, future: Any) -> None:
        """Takes what a Fetch has brought; errors that go away by themselves make the next one go to the leader of then."""
        try:
            answers = list(self.source.fetched(await future))
            if self.provenance:
                await self.provenance.learn(batch for answer in answers for batch in committed(answer))
            for fetched in answers:
                if fetched.error_code == OFFSET_OUT_OF_RANGE:
                    raise await self._lost(self._stretches[fetched.topic, fetched.partition])
                self._read(fetched)
        except (ResponseError, WireError) as error:
            # A permission that is lost on the way holds back its topic only: the next plan leaves it out.
            self._problem = self.source.explained(f"flow {self.flow.name}: reading {self._where()} (needs READ)", error, retriable=is_unauthorized(error))
            if not self._problem.retriable:
                raise self._problem from None
            topics = sorted({stretch.topic for stretch in self._stretches.values()})
            await self.source.retry(self._problem.message, lambda: self.source.update_metadata(topics), self.flow.connect_timeout_ms)
            self._require_topics()  # by now one may be gone, or another of the same name
            await self.source.net.sleep(FETCH_BACKOFF_S)

    def _read(self, fetched: Fetched) -> None:
        stretch = self._stretches[fetched.topic, fetched.partition]
        check(fetched.error_code, f"{fetched.topic}-{fetched.partition}")
        aborted = AbortedTransactions(fetched.aborted)
        for batch in read_log(fetched.records):
            is_aborted = aborted.drops(batch)
            if batch.magic == 2 and batch.end_offset <= stretch.upstream_next:
                continue  # compaction may answer with a batch that ends before the offset asked for
            self._require_format(stretch, batch)
            stretch.skip_to(batch.base_offset, "compacted")  # nothing else leaves holes between batches; the driver asks whether the topic is a compacted one
            if stretch.is_done:
                break
            self._require_crc(stretch, batch)
            if batch.is_control:
                stretch.skip_to(batch.end_offset, "marker")
            elif is_aborted:
                stretch.skip_to(batch.end_offset, "aborted")
            elif self.provenance and self.provenance.excludes(batch):
                stretch.skip_to(batch.end_offset, "mirrored")
            elif batch.base_offset == stretch.upstream_next and batch.why_not_unopened is None:
                stretch.take(batch)
            else:
                for part in dense_parts(batch, stretch.upstream_next):
                    if self._parts >= PARTS_AT_ONCE:
                        return  # the next transaction goes on here
                    stretch.take(part)
                    self._parts += 1
                stretch.skip_to(batch.end_offset, "compacted")
            self._bytes += len(batch.raw)

    async def _lost(self, stretch: Stretch) -> SourceError:
        """The error for a position that the log does not reach back to any more."""
        first = (await self.source.list_offsets([stretch.key], EARLIEST))[stretch.key]
        return SourceError(
            f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}: offset {stretch.upstream_next} is not in the log any more (it starts at {first}): "
            "retention, DeleteRecords or a truncation has overtaken the mirror. Nothing was skipped; decide what to do about the lost records before mirroring goes on",
            anomaly=self._anomaly("retention", stretch, stretch.upstream_next, first),
        )

    @staticmethod
    def _anomaly(kind: str, stretch: Stretch, from_offset: int, to_offset: int) -> dict[str, Any]:
        return {"kind": kind, "topic": stretch.topic, "partition": stretch.partition, "from_offset": from_offset, "to_offset": to_offset}

    def _require_format(self, stretch: Stretch, batch: Batch) -> None:
        if batch.magic != 2:
            raise SourceError(
                f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}, from offset {stretch.upstream_next} on: {batch.why_not_unopened}, which this version does "
                "not read. Take the topic out of the flow (topics.exclude) to mirror the others, or let the source's brokers rewrite it",
                anomaly=self._anomaly("unsupported", stretch, stretch.upstream_next, batch.base_offset + 1),
            )

    def _require_crc(self, stretch: Stretch, batch: Batch) -> None:
        # It is computed anew for the target: a corrupt batch that isn't caught here would look healthy there for ever.
        if not batch.crc_is_right:
            raise SourceError(
                f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}, offsets {batch.base_offset} to {batch.end_offset}: "
                f"the batch is corrupt on cluster {self.flow.source} (CRC). Check its disks; it is not mirrored",
                anomaly=self._anomaly("corrupt", stretch, batch.base_offset, batch.end_offset),
            )

    async def _produce(self) -> None:
        """Sends everything that waits, one batch of a partition at a time, in order."""
        assert self._producer is not None
        while True:
            by_node: dict[int, dict[Key, tuple[Stretch, Batch]]] = {}
            for stretch in self._stretches.values():
                key = (stretch.target_topic, stretch.partition)
                batches = by_node.setdefault(self.target.leader(*key), {}) if stretch.waiting else {}
                if stretch.waiting and key not in batches:  # another topic may be merged into the same partition
                    batches[key] = (stretch, stretch.waiting.popleft())
            if not by_node:
                return
            for node, batches in by_node.items():
                await self._settle(IN_FLIGHT - 1, node)
                await self._send(node, batches)

    async def _send(self, node: int, batches: dict[Key, tuple[Stretch, Batch]]) -> None:
        assert self._producer is not None
        sealed = {}
        for key, (_, batch) in batches.items():
            sequence = self._sequences.get(key, 0)
            sealed[key] = batch.sealed(self._producer.producer_id, self._producer.producer_epoch, sequence)
            self._sequences[key] = next_sequence(sequence, batch.records)
        await self._add_partitions(batches)
        future = self.target.produce(node, self._producer.transactional_id, sealed, PRODUCE_TIMEOUT_MS)
        self._in_flight.setdefault(node, deque()).append((future, batches))

    async def _add_partitions(self, keys: Iterable[Key]) -> None:
        assert self._producer is not None
        new = [key for key in keys if key not in self._added]
        if new and self.target.transaction_version < 2:
            await transaction.add_partitions(self.target, self._producer, new, self.flow.connect_timeout_ms)
        self._added.update(new)

    async def _settle(self, limit: int, node: int | None = None) -> None:
        """Waits until at most `limit` requests are unanswered (to one node, or to each)."""
        for queue in [self._in_flight[node]] if node in self._in_flight else list(self._in_flight.values()) if node is None else []:
            while len(queue) > limit:
                future, batches = queue.popleft()
                for key, base_offset in self.target.produced(await future):
                    stretch, batch = batches[key]
                    stretch.append(batch, base_offset)

    def _ended_by_another(self, error: ResponseError) -> MirrorlakeError:
        """The error for a transaction that somebody else has ended: a newer job, or the coordinator when its time was up."""
        require_newest(self.target, self.flow, self.slot, self.generation)
        return TargetError(f"flow {self.flow.name}, slot {self.slot}: the transaction was ended while {self._where()} was copied: {error}", retriable=True)

    # -- after the copy ------------------------------------------------------------------------------------------------------

    def _write_state(self, before: SlotState) -> None:
        """Writes the slot's new state into the open transaction, and waits until the target has it."""
        assert self._producer is not None
        positions = before.owned()
        for stretch in self._stretches.values():
            downstream_next = stretch.runs[-1].downstream_end if stretch.runs else stretch.downstream_from
            positions[stretch.key] = Position(
                stretch.topic, stretch.partition, stretch.topic_id, stretch.target_topic, stretch.partition, stretch.upstream_next, downstream_next, self.slot
            )
        state = SlotState(
            source=self.flow.source, target=self.flow.target, source_cluster_id=self.source.cluster_id, slot=self.slot, slots=self.slots, generation=self.generation,
            transactional_id=self._producer.transactional_id, producer_id=self._producer.producer_id, producer_epoch=self._producer.producer_epoch,
            positions=tuple(positions.values()), runs=tuple(run for stretch in self._stretches.values() for run in stretch.runs),
            producer_ids=before.all_producer_ids,
        )  # fmt: skip
        self.target.net.run(lambda: write_state(self.target, self.flow, self._producer, state))

    def _report(self, *, is_open: bool) -> Report:
        assert self._producer is not None
        stretches = []
        for stretch in self._stretches.values():
            value = {name: getattr(stretch, name) for name in Stretch.__dataclass_fields__ if name not in ("runs", "waiting")}
            stretches.append({**value, "runs": [asdict(run) for run in stretch.runs]})
        return Report(self.slot, self._producer.transactional_id, self._producer.producer_id, self._producer.producer_epoch, is_open, stretches)

    def _where(self) -> str:
        return ", ".join(f"{stretch.topic}-{stretch.partition} from offset {stretch.upstream_from}" for stretch in list(self._stretches.values())[:5])


def committed(fetched: Fetched) -> Iterator[Batch]:
    """The batches of an answer, without those of aborted transactions."""
    aborted = AbortedTransactions(fetched.aborted)
    return (batch for batch in read_log(fetched.records) if not aborted.drops(batch))


async def write_state(target: Cluster, flow: Flow, producer: transaction.Producer, state: SlotState, sequence: int = 0) -> int:
    """Produces a slot's state into its open transaction, as the record of that sequence number; returns the offset it got."""
    key = (flow.offset_syncs_topic, state.slot)
    if target.transaction_version < 2:
        await transaction.add_partitions(target, producer, [key], flow.connect_timeout_ms)
    response = await target.produce(target.leader(*key), producer.transactional_id, {key: offset_syncs.encode(state, sequence)}, PRODUCE_TIMEOUT_MS)
    ((_, offset),) = target.produced(response)
    return offset


def fenced(flow: Flow, generation: int, newer: int) -> FencedError:
    """What the older of two jobs says when it stops."""
    return FencedError(
        f"flow {flow.name}: a newer mirror job (generation {newer}) has taken over from this one (generation {generation}), which stops here. "
        "Everything committed so far is intact and nothing is duplicated; let only one job run for a flow"
    )


def require_newest(target: Cluster, flow: Flow, slot: int, generation: int) -> None:
    """Raises FencedError if the slot belongs to a newer job than that of this generation."""
    state = offset_syncs.read_states(target, flow.offset_syncs_topic, [slot], flow.connect_timeout_ms).get(slot)
    if state is not None and state.generation > generation:
        raise fenced(flow, generation, state.generation)


def copy_slot(
    flow: Flow, connections: Callable[[], tuple[Cluster, Cluster, Provenance | None]], slot: int, slots: int, generation: int, ranges: Iterable[Range], **options: Any
) -> Report | MirrorlakeError:
    """Copies one slot; the error is returned, not raised, so that one slot's trouble does not hide what the others have done."""
    try:
        return SlotCopy(flow, *connections(), slot, slots, generation, **options).run(ranges)
    except MirrorlakeError as error:
        return error
    except Exception as error:
        return errors.unexpected(f"flow {flow.name}, slot {slot}: copying", error)
