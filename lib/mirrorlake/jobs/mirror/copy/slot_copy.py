"""The task that copies one slot: raw record batches from the source into an open transaction on the target.

The order of steps makes the copy exact:

1. InitProducerId, which fences and aborts earlier transactions;
2. read the slot's last committed state, and compare it with the plan;
3. copy;
4. write the new state into the same transaction;
5. return with the transaction open.

The driver then evaluates the gate and ends the transaction.

Assumptions: brokers keep what they acknowledge (acks=all). No other program uses this transactional id or writes to
this partition of the offset-syncs topic.

Not guaranteed: that the task reaches the planned end. It stops early when its time or bytes are used up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError
from mirrorlake.failpoint import Failpoint, never
from mirrorlake.jobs.mirror.copy.continuation import committed_state, require_remote_topics, stretches_left
from mirrorlake.jobs.mirror.copy.fetcher import Fetcher
from mirrorlake.jobs.mirror.copy.pace import Pace
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.refused_records import KnownLimits, end_behind_refused, out_of_step
from mirrorlake.jobs.mirror.copy.source_reader import Intake, where
from mirrorlake.jobs.mirror.copy.target_ends import require_ends
from mirrorlake.jobs.mirror.copy.target_writer import BatchRefusedError, Outlet
from mirrorlake.jobs.mirror.copy.throttle import BACKFILL_S, Throttle
from mirrorlake.jobs.mirror.copy.transformed_reader import TransformedIntake
from mirrorlake.model.changes import as_written
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import TAKEN_OVER, Position, SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ATTEMPT_OVER, TRANSACTION_OVER, ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, WireError, is_unauthorized
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.protocol.topic_changes import LARGEST_MESSAGE
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS
from mirrorlake.state.fencing import require_newest, write_state
from mirrorlake.state.provenance import Provenance
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.record import TransformedRecord
from mirrorlake.transforms.schema_ids import SchemaIds

LEAST_S = 0.5  # in which a slot copies after it has waited for its rate


class SlotCopy:
    """One attempt to copy one slot.

    Args:
        flow: flow to mirror, with the limits of a batch.
        source: source cluster.
        target: target cluster, on the same event loop.
        provenance: knows the flow that wrote each batch of the source; None if that does not matter.
        slot: number of the slot.
        slots: number of slots in the plan.
        generation: generation of the plan.
        longest_s: the time for which the slot is copied at most, if that is less than `mirrorlake.batch.max.ms`.
        clock: monotonic clock, in seconds.
        failpoint: called with the name of each step as it is reached; tests end the process there.
    """

    def __init__(
        self,
        flow: Flow,
        source: Cluster,
        target: Cluster,
        provenance: Provenance | None,
        slot: int,
        slots: int,
        generation: int,
        longest_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        failpoint: Failpoint = never,
    ) -> None:
        self.flow, self.source, self.target, self.provenance = flow, source, target, provenance
        self.slot, self.slots, self.generation = slot, slots, generation
        self._most_s, self._clock, self._failpoint = longest_s, clock, failpoint
        self._stretches: dict[PartitionKey, Stretch] = {}
        self._throttle = Throttle(flow, target.limits, clock)
        self._transformed: dict[PartitionKey, Stretch] = {}
        self._waits_for_rate = False  # with something that was not read, or transformed records that were not taken
        self._warnings: list[str] = []
        self._state_end = -1  # of the slot's states, as they were read

    def run(self, ranges: Iterable[Range], records: Iterable[Sequence[TransformedRecord]] = ()) -> SlotReport:
        """Copies the ranges and leaves the transaction open.

        Args:
            ranges: the planned ranges of this slot.
            records: transformed records of the ranges whose topics have a transform, by topic, partition and offset.

        Raises:
            SourceError: the log differs from the plan, or the source can't be read.
            TargetError: the target can't be written, or its state is behind the plan.
            FencedError: a newer job has taken over the flow.
            BatchRefusedError: the target refuses a batch; the next attempt makes batches that fit.
        """
        began, throttled, planned = self._clock(), self._throttled_ms(), list(ranges)
        producer = self._begin(planned)
        self._failpoint("task.initialised")
        state, self._state_end = committed_state(self.flow, self.target, self.slot, self.generation)
        self._stretches = stretches_left(self.flow, state, planned)
        end_behind_refused(self.flow, self.target.limits, self._stretches)
        self._failpoint("task.compared")
        if not self._stretches:
            return self._report(producer, is_open=False)
        self._transformed = {
            key: stretch for key, stretch in self._stretches.items() if self.flow.transform_of(stretch.topic)
        }
        intake, outlet = self._both_ends(producer)
        self._require_topics(intake)
        ready = self._clock()
        with self._explaining_failures():
            self._move(intake, outlet, planned, records, deadline=ready + self._longest_s())
            moved = self._clock()
            self._failpoint("task.copied")
            if (intake.fetcher.throttled_s or self._waits_for_rate) and self._is_untouched:  # all the time
                return self._report(producer, is_open=False)
            self._require_result(intake, outlet, state)
            self._write_state(state, producer)
        self._failpoint("task.written")
        return self._report(
            producer,
            is_open=True,
            stages_ms={
                "begin": 1000 * (ready - began),
                "move": 1000 * (moved - ready),
                "state": 1000 * (self._clock() - moved),
            },
            throttled_ms={side: ms - throttled[side] for side, ms in self._throttled_ms().items()},
        )

    # -- before the copy ----------------------------------------------------------------------------

    def _begin(self, planned: Sequence[Range]) -> transaction.Producer:
        """Begins the slot's transaction, and looks at the topics on both sides meanwhile."""
        flow, read = self.flow, sorted({one.topic for one in planned})
        written = {flow.offset_syncs_topic, *map(flow.policy.remote_topic, read)}
        if any(flow.transform_of(topic) for topic in read):
            written.add(flow.dead_letter_topic)

        async def begun() -> transaction.Producer:
            return await transaction.begin_async(
                self.target, flow.transactional_id(self.slot), flow.transaction_timeout_ms, PRODUCE_TIMEOUT_MS
            )

        async def described(cluster: Cluster, topics: Iterable[str]) -> dict[str, Topic]:
            # One that may not be described any more must not hold up the others.
            return await cluster.retry(
                "reading metadata",
                lambda: cluster.update_metadata(list(topics), even_denied=True),
                flow.connect_timeout_ms,
            )

        async def read_from_newest() -> None:
            await described(self.source, read)
            await self._require_leaders(planned)

        producer: transaction.Producer = self.target.net.run(
            lambda: self.target.together(begun, read_from_newest, lambda: described(self.target, written))
        )[0]
        return producer

    async def _require_leaders(self, planned: Sequence[Range]) -> None:
        """Raises SourceError, retriable, if this process knows only leaders that are older than those of the plan.

        Such a broker does not know its successor. Its log would look like one that was truncated.
        """

        def older() -> list[Range]:
            return [
                one for one in planned if 0 <= self.source.leader_epoch(one.topic, one.partition) < one.leader_epoch
            ]

        if former := older():
            topics = sorted({one.topic for one in former})
            await self.source.retry(
                "reading metadata", lambda: self.source.ask_every_broker(topics), self.flow.connect_timeout_ms
            )
            if former := older():
                first = former[0]
                raise SourceError(
                    f"flow {self.flow.name}, topic {first.topic}, partition {first.partition}: the leader that cluster "
                    f"{self.flow.source} names is older than the one that the plan was made with (epoch "
                    f"{self.source.leader_epoch(first.topic, first.partition)} instead of {first.leader_epoch})",
                    retriable=True,
                )

    def out_of_step(self) -> TargetError | None:
        """Returns an error if a record was refused whose remote topic has to follow the source first."""
        return out_of_step(self.flow, self.source, self.target, self._stretches, self._clock())

    def _both_ends(self, producer: transaction.Producer) -> tuple[Intake, Outlet]:
        """Returns what reads the stretches, and what writes them."""
        limits = self.target.limits
        fetcher = Fetcher(
            self.flow,
            self.source,
            limits,
            self._stretches,
            connections=self.source.connections(self.flow.fetch_connections),
            throttle=self._throttle,
        )
        outlet = Outlet(
            self.flow,
            self.target,
            producer,
            connections=self.target.connections(self.flow.produce_connections),
            is_far=self.target.is_far,
            throttle=self._throttle,
            most_bytes=lambda: self.flow.batch_memory_bytes - fetcher.asked_bytes,
        )
        return Intake(self.flow, self.source, self.provenance, limits, self._stretches, fetcher), outlet

    def _require_topics(self, intake: Intake) -> None:
        """Raises an error if the topics on one of both sides are not those that were planned."""
        stretches = self._stretches.values()
        intake.require_topics()
        require_remote_topics(self.flow, self.source, self.target, stretches)
        require_ends(self.flow, self.target, stretches, self.generation)

    # -- the copy -----------------------------------------------------------------------------------

    def _move(
        self,
        intake: Intake,
        outlet: Outlet,
        planned: Iterable[Range],
        records: Iterable[Sequence[TransformedRecord]],
        *,
        deadline: float,
    ) -> None:
        """Copies all stretches, first those without a transform, which leave the others half of the transaction."""
        intake.share = 0.5 if self._transformed else 1.0
        left_s = deadline - self._clock()
        self.target.net.run(lambda: self._copy(intake, outlet, deadline - (1 - intake.share) * left_s))
        intake.share = 1.0
        if self._transformed:
            epochs = {(one.topic, one.partition): one.leader_epoch for one in planned}
            self.target.net.run(
                lambda: self._copy_transformed(intake, outlet, records=iter(records), epochs=epochs, deadline=deadline)
            )
        for stretch in self._stretches.values():
            stretch.finish()

    @contextlib.contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        """Says what was being written when a request of the transaction fails."""
        try:
            yield
        except ResponseError as error:
            if error.code in TRANSACTION_OVER:
                raise self._ended_by_another(error) from None
            what = f"flow {self.flow.name}, slot {self.slot}: writing {self._where()} (needs WRITE)"
            may_pass = is_unauthorized(error) or error.code in (*ATTEMPT_OVER, ErrorCode.INVALID_RECORD)
            raise self.target.explained(what, error, retriable=may_pass) from None
        except WireError as error:
            raise TargetError(
                f"flow {self.flow.name}, slot {self.slot}: the connection was lost while copying {self._where()}: "
                f"{error}",
                retriable=True,
            ) from None

    async def _copy(self, intake: Intake, outlet: Outlet, deadline: float) -> None:
        """Copies partitions without a transform."""
        fetcher = intake.fetcher
        pace = Pace(
            self.target.limits,
            lambda: self.source.throttled_ms,
            self._clock,
            deadline=deadline,
            latest=deadline + self.flow.transaction_timeout_ms / 2000,
        )

        taken_bytes = 0  # of what was read: passed over, or sent

        def done_bytes() -> int:
            return max(outlet.bytes, taken_bytes - outlet.bytes_in_flight)

        def ask() -> None:
            pace.grow(fetcher.fetch(lambda responses: pace.next_bytes(done_bytes(), responses)))

        try:
            ask()
            while fetcher.is_under_way or await self._waited_for_rate(intake, deadline):
                if fetcher.is_under_way:
                    await intake.accept()
                    await intake.accept_late(waits=False)
                if not (intake.is_full or pace.is_over(intake.bytes)):
                    ask()
                await self._write(intake, outlet)
                taken_bytes = intake.bytes
                self._failpoint("task.producing")
            if not intake.bytes:  # a slow leader is waited for where that costs the others nothing
                await intake.accept_late(waits=True)
                await self._write(intake, outlet)
            await outlet.settle()
        finally:
            pace.keep(done_bytes())

    def _longest_s(self) -> float:
        """Returns the time for which the slot is copied."""
        topics = {stretch.topic for stretch in self._stretches.values()}
        if any(map(self.flow.is_backfill, topics)):
            return min(self.flow.batch_max_ms / 1000, self._most_s, BACKFILL_S)
        # What it owes by its rate, it waits for. An attempt that copies nothing would look like one that fails.
        owed_s = min(map(self._throttle.wait_s, topics), default=0.0)
        return min(self.flow.batch_max_ms / 1000, max(self._most_s, owed_s + LEAST_S))

    async def _waited_for_rate(self, intake: Intake, deadline: float) -> bool:
        """Waits until the allowed rate lets more be read; returns False if nothing is left, or the time is over."""
        fetcher = intake.fetcher
        wait_s = fetcher.throttled_s  # 0 by now, where the wait has ended since the last requests
        if intake.is_full or not (wait_s or fetcher.was_throttled):
            return False
        fetcher.was_throttled = False
        await self.source.net.sleep(max(0.0, min(wait_s, deadline - self._clock())))
        self._waits_for_rate = self._clock() >= deadline
        return not self._waits_for_rate

    async def _write(self, intake: Intake, outlet: Outlet) -> None:
        for stretch in self._stretches.values():
            if stretch.loose:
                intake.pack(stretch)
        await outlet.produce(self._stretches.values())

    async def _copy_transformed(
        self,
        intake: Intake,
        outlet: Outlet,
        records: Iterator[Sequence[TransformedRecord]],
        epochs: Mapping[PartitionKey, int],
        deadline: float,
    ) -> None:
        partitions = {
            stretch.target_topic: self.target.topics[stretch.target_topic].partitions
            for stretch in self._transformed.values()
        }
        compacted, allowed_bytes = self.target.limits.keyed & partitions.keys(), dict[str, int]()
        letters = {self.flow.dead_letter_topic} & self.target.topics.keys()
        # The records arrive only once, so the limits must be known before.
        wanted = sorted(partitions.keys() | letters)
        configs = await self.target.each_topic_configs(wanted, LARGEST_MESSAGE, "cleanup.policy")
        for topic, config in configs.items():
            if "compact" in (config.get("cleanup.policy") or ""):
                compacted.add(topic)
            if allowed := config.get(LARGEST_MESSAGE):
                allowed_bytes[topic] = int(allowed)
                self.target.limits.lower(topic, int(allowed))
        latest = deadline
        transformed = TransformedIntake(
            flow=self.flow,
            source=self.source,
            intake=intake,
            stretches=self._transformed,
            target_partitions=partitions,
            epochs=epochs,
            ids=schema_ids(self.flow.registries),
            compacted=compacted,
            known=KnownLimits(self.source, self.target.limits, allowed_bytes, self._clock()),
            is_over=lambda: self._clock() >= latest,
        )
        await transformed.begin()
        latest = max(deadline, self._clock() + LEAST_S)  # topics without a transform may have used up the time
        is_everything, topics = True, {stretch.topic for stretch in self._transformed.values()}
        has_turn = intake.bytes > 0  # after others that have waited until the deadline, perhaps
        for some in records:
            self._waits_for_rate = not (
                has_turn or await self._throttle.allows(topics, self.source.net.sleep, deadline)
            )
            has_turn = False
            is_enough = self._waits_for_rate or not await transformed.accept(some)
            if is_enough or self._clock() >= latest:
                is_everything = False
                break
            await outlet.produce([*self._transformed.values(), transformed.dead_letters])
            self._failpoint("task.producing")
        await transformed.finish(everything=is_everything)
        await outlet.produce([*self._transformed.values(), transformed.dead_letters])
        await outlet.settle()

    def _ended_by_another(self, error: ResponseError) -> MirrorlakeError:
        """Returns the error for a transaction that a newer job ended, or the coordinator after its timeout."""
        require_newest(self.target, self.flow, self.slot, self.generation)
        return TargetError(
            f"flow {self.flow.name}, slot {self.slot}: the transaction was ended while {self._where()} was copied: "
            f"{error}",
            retriable=True,
            contested=True,
        )

    # -- after the copy -----------------------------------------------------------------------------

    @property
    def _is_untouched(self) -> bool:
        return all(stretch.is_untouched and not stretch.resets for stretch in self._stretches.values())

    def _require_result(self, intake: Intake, outlet: Outlet, before: SlotState) -> None:
        """Checks that something was copied, and what the remote topics have behind the positions.

        Raises:
            MirrorlakeError: the problem that kept every stretch from being copied.
            TargetError: another program has written to a remote topic, or this flow has and the state does not say so.
        """
        stretches = self._stretches.values()
        if intake.problem and self._is_untouched:
            raise intake.problem
        if all(stretch.is_untouched and not stretch.resets and not stretch.is_done for stretch in stretches):
            raise SourceError(
                f"flow {self.flow.name}, slot {self.slot}: cluster {self.flow.source} returned nothing for "
                f"{self._where()} in the time of a micro-batch (mirrorlake.batch.max.ms = {self.flow.batch_max_ms} at "
                "most), though the logs go on",
                retriable=True,
            )
        if self.flow.topics_shared and not self.flow.policy.keeps_topics_apart:
            return
        # If a transform chooses partitions, records of several slots alternate in a partition.
        alone = [stretch for stretch in stretches if not self.flow.scatters(stretch.topic)]
        taken_over = {key for key, one in before.owned().items() if one.epoch_from == TAKEN_OVER}
        self._warnings += self.target.net.run(
            lambda: outlet.require_sole_writer(alone, before.all_producer_ids, taken_over)
        )

    def _write_state(self, before: SlotState, producer: transaction.Producer) -> None:
        """Writes the slot's new state into the open transaction, and waits until the target has appended it."""
        positions = before.owned()
        untouched = {  # by this flow: nothing was copied behind what a take-over has found
            key
            for key, stretch in self._stretches.items()
            if key in positions and positions[key].epoch_from == TAKEN_OVER and not (stretch.runs or stretch.resets)
        }
        for stretch in self._stretches.values():
            positions[stretch.key] = Position(
                topic=stretch.topic,
                partition=stretch.partition,
                topic_id=stretch.topic_id,
                target_topic=stretch.target_topic,
                target_partition=stretch.partition,
                upstream_next=stretch.upstream_next,
                downstream_next=stretch.downstream_next,
                slot=self.slot,
                incarnation=stretch.incarnation,
                leader_epoch=stretch.leader_epoch,
                target_topic_id=stretch.target_topic_id,
                epoch_from=TAKEN_OVER if stretch.key in untouched else max(stretch.epoch_from, -1),
            )
        state = SlotState(
            source=self.flow.source,
            target=self.flow.target,
            source_cluster_id=self.source.cluster_id,
            slot=self.slot,
            slots=self.slots,
            generation=self.generation,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            positions=tuple(positions.values()),
            runs=tuple(run for stretch in self._stretches.values() for run in stretch.runs),
            gaps=tuple(gap for stretch in self._stretches.values() for gap in stretch.explained()),
            producer_ids=before.all_producer_ids,
            closed=before.closed,
            closed_for=before.closed_for,
            promoted_topics=before.promoted_topics,
            topics_shared=self.flow.topics_shared,
        )
        record = as_written(before, state) if self.flow.writes_changes else state
        self.target.net.run(lambda: write_state(self.target, self.flow, producer, record, after=self._state_end))

    def _throttled_ms(self) -> dict[str, float]:
        return {cluster.side: cluster.throttled_ms for cluster in (self.source, self.target)}

    def _report(
        self,
        producer: transaction.Producer,
        *,
        is_open: bool,
        stages_ms: dict[str, float] | None = None,
        throttled_ms: dict[str, float] | None = None,
    ) -> SlotReport:
        stretches = [stretch.to_json() for stretch in self._stretches.values()]
        return SlotReport(
            slot=self.slot,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_open=is_open,
            stretches=stretches,
            warnings=self._warnings,
            stages_ms=stages_ms or {},
            throttled_ms=throttled_ms or {},
        )

    def _where(self) -> str:
        return where(self._stretches.values())


@lru_cache(maxsize=1)
def schema_ids(registries: tuple[SchemaRegistry, SchemaRegistry] | None) -> SchemaIds | None:
    """Returns the schema ids that this worker process knows, kept between micro-batches."""
    return None if registries is None else SchemaIds(*registries)


@dataclass
class _Delivered:
    """The transformed records of a slot, which Spark delivers once.

    Attributes:
        is_begun: True once an attempt has taken some of them, so that no other can follow in this task.
    """

    records: Iterable[Sequence[TransformedRecord]]
    is_begun: bool = False

    def __iter__(self) -> Iterator[Sequence[TransformedRecord]]:
        for some in self.records:
            self.is_begun = True
            yield some


def copy_slot(
    flow: Flow,
    connections: Callable[[], tuple[Cluster, Cluster, Provenance | None]],
    slot: int,
    slots: int,
    generation: int,
    ranges: Iterable[Range],
    records: Iterable[Sequence[TransformedRecord]] = (),
    **options: Any,
) -> SlotReport | MirrorlakeError:
    """Copies one slot; returns an error instead of raising it, so that the reports of other slots are kept.

    Args:
        flow: flow to mirror.
        connections: returns source, target and provenance.
        slot: number of the slot.
        slots: number of slots in the plan.
        generation: generation of the plan.
        ranges: the planned ranges of this slot.
        records: transformed records of these ranges; see `SlotCopy.run`.
        **options: further arguments of `SlotCopy`.
    """
    planned, delivered = list(ranges), _Delivered(records)
    try:
        while True:
            source, target, provenance = connections()
            target.limits.begin(generation)
            known = target.limits.known
            try:
                copy = SlotCopy(
                    flow=flow,
                    source=source,
                    target=target,
                    provenance=provenance,
                    slot=slot,
                    slots=slots,
                    generation=generation,
                    **options,
                )
                return copy.run(planned, delivered)
            except BatchRefusedError:  # the next attempt makes batches that fit
                if (error := copy.out_of_step()) is not None:
                    return error
                if delivered.is_begun:
                    return TargetError(
                        f"flow {flow.name}, slot {slot}: a topic refuses a batch, for its size or for records without "
                        "a key; the next attempt makes batches that fit",
                        retriable=True,
                    )
                if target.limits.known == known:
                    return TargetError(
                        f"flow {flow.name}, slot {slot}: cluster {flow.target} rejects a batch for its size, and "
                        "smaller ones were tried. Check max.message.bytes of the remote topics",
                        retriable=True,
                    )
    except MirrorlakeError as error:
        return error
    except MemoryError:
        return SourceError(f"flow {flow.name}, slot {slot}: there is too little memory to open a batch", retriable=True)
    except Exception as error:
        return errors.unexpected(f"flow {flow.name}, slot {slot}: copying", error)
