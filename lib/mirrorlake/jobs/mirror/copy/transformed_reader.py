"""The reading half of a copying task for topics with a transform.

The task receives the records that Spark has read and transformed, and accounts for the offsets between them. Spark's
Kafka source silently skips markers, aborted records and holes. For missing offsets, the task therefore reads the log
itself, batch by batch. A record that the log has and Spark did not deliver stops the flow.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.config.transform import DEAD_LETTER, KEY, Transform
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.copy.fetcher import FETCH_WAIT_MS
from mirrorlake.jobs.mirror.copy.gap_recorder import NO_LIMIT
from mirrorlake.jobs.mirror.copy.partition_copy import PACK_BYTES, Loose, Stretch
from mirrorlake.jobs.mirror.copy.refused_records import KnownLimits
from mirrorlake.jobs.mirror.copy.source_reader import Intake
from mirrorlake.model.anomaly import AnomalyKind, about
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.codecs import CODECS, CorruptBatchError, OversizedBatchError
from mirrorlake.protocol.batches.record_batch import Batch
from mirrorlake.protocol.batches.records import Record, pack_within, rest_of
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ATTEMPT_OVER, ErrorCode
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.network.response_error import ResponseError, WireError, check, is_unauthorized
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.transforms.evaluate import FAILED, FILTERED
from mirrorlake.transforms.record import TransformedRecord
from mirrorlake.transforms.schema_ids import SchemaIdError, SchemaIds

LOOKS_AT_ONCE = 32  # each is one small Fetch; the transaction is open meanwhile, and the line may be long
OLDEST_TIMESTAMP_MS = -1  # Kafka's value for no timestamp


@dataclass
class DeadLetters:
    """Records that could not be transformed, for the dead-letter topic; headers hold their origin and the reason."""

    target_topic: str
    waiting: deque[tuple[int, Batch]] = field(default_factory=deque)
    limit_bytes: float = NO_LIMIT
    loose: Loose = field(default_factory=lambda: Loose(CODECS["lz4"]))

    def add(self, flow: str, record: TransformedRecord, reason: str) -> None:
        why = {
            "flow": flow,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": reason,
        }
        headers = [*_headers(record), *((f"mirrorlake.{name}", str(value).encode()) for name, value in why.items())]
        self.loose.add(
            Record(
                len(self.loose.records),
                max(record.timestamp_ms or 0, OLDEST_TIMESTAMP_MS),
                rest_of(record.key, record.value, headers),
            )
        )
        if self.loose.bytes >= PACK_BYTES:
            self.pack()

    def pack(self) -> None:
        if self.loose.records:
            self.waiting += [
                (0, batch) for batch in pack_within(self.loose.records, self.loose.codec, self.limit_bytes)
            ]
            self.loose = Loose(self.loose.codec)

    def append(self, batch: Batch, target_partition: int, base_offset: int) -> None:
        pass  # no offset is translated to the dead-letter topic


class _TimeIsUpError(Exception):
    """Raised within an attempt whose time is used up."""


class TransformedIntake:
    """Processes the records that Spark has read of one slot's transformed partitions.

    Args:
        flow: flow with the transforms.
        source: cluster that Spark has read.
        intake: intake of the same attempt, which handles logs and losses.
        stretches: stretches of the partitions with a transform, by topic and partition, in the order of their records.
        target_partitions: number of partitions of each remote topic.
        epochs: leader epochs of the source at planning time, before Spark has read anything; -1 if unknown.
        known: the size limits of the remote topics.
        ids: translates schema ids, for transforms that need it.
        compacted: the remote topics that refuse records without a key.
        is_over: returns True once the time of the attempt is used up; schema registries may be slow, and what nobody
            mirrors may be much.
    """

    def __init__(
        self,
        flow: Flow,
        source: Cluster,
        intake: Intake,
        stretches: Mapping[PartitionKey, Stretch],
        target_partitions: Mapping[str, int],
        epochs: Mapping[PartitionKey, int],
        known: KnownLimits,
        ids: SchemaIds | None = None,
        compacted: Set[str] = frozenset(),
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.flow, self.source, self.dead_letters = (
            flow,
            source,
            DeadLetters(flow.dead_letter_topic, limit_bytes=intake.limits.bytes.get(flow.dead_letter_topic, NO_LIMIT)),
        )
        self._intake, self._stretches, self._target_partitions, self._epochs, self._ids = (
            intake,
            stretches,
            target_partitions,
            epochs,
            ids,
        )
        self._compacted, self._known = compacted, known
        self._open = dict.fromkeys(stretches)  # unfinished partitions, in the order of their records
        self._is_over = is_over
        self._causes: AsyncIterator[tuple[int, int, GapKind | None]] | None = None
        self._cause: tuple[int, int, GapKind | None] = (0, 0, None)

    async def begin(self) -> None:
        """Checks that each log is still the one that was read before.

        If it isn't, this transaction only records the reset.
        """
        stretches = list(self._stretches.values())
        looks = [partial(self._look, stretch, stretch.leader_epoch, FETCH_WAIT_MS) for stretch in stretches]
        for stretch, fetched in zip(stretches, await self.source.each(looks, LOOKS_AT_ONCE), strict=True):
            before = stretch.incarnation
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._intake.gaps.out_of_range(stretch)
            elif fetched.diverges_at is not None:
                await self._intake.gaps.diverged(stretch, fetched)
            else:
                self._check(stretch, fetched)
            # Spark has read the planned offsets; only for a topic that was created anew do they begin at the log's
            # start.
            if stretch.incarnation != before or any(reset.kind != GapKind.RECREATED for reset in stretch.resets):
                stretch.planned_end = stretch.upstream_next

    async def accept(self, records: Iterable[TransformedRecord]) -> bool:
        """Processes records in the order of partitions and offsets.

        Args:
            records: the records.

        Returns:
            False when the transaction should hold no more.
        """
        for record in records:
            key = (record.topic, record.partition)
            try:
                while key in self._open and next(iter(self._open)) != key:
                    await self._finish(next(iter(self._open)))
                stretch = self._stretches.get(key)
                if stretch is None or stretch.is_done or record.offset < stretch.upstream_next:
                    continue  # committed by an earlier attempt
                if await self._go_to(stretch, record.offset):
                    await self._take(stretch, record)
            except _TimeIsUpError:
                return False
            if self._intake.is_full or self._is_over():
                return False
        return True

    async def finish(self, *, everything: bool) -> None:
        """Ends the intake.

        With `everything`, all records were delivered, and the offsets after the last ones are accounted for too.
        """
        with contextlib.suppress(_TimeIsUpError):
            while everything and self._open:
                await self._finish(next(iter(self._open)))
        for stretch in self._stretches.values():
            self._intake.pack(stretch)
        ends = [partial(self._conclude, stretch) for stretch in self._stretches.values()]
        await self.source.each(ends, LOOKS_AT_ONCE)
        self.dead_letters.pack()

    # -- one record ---------------------------------------------------------------------------------

    async def _take(self, stretch: Stretch, record: TransformedRecord) -> None:
        transform = self.flow.transform_of(stretch.topic)
        assert transform is not None
        self._intake.bytes += len(record.key or b"") + len(record.value or b"")
        if record.outcome == FILTERED:
            self._intake.gaps.skip(stretch, record.offset + 1, GapKind.FILTERED)
            return
        lacks_key = record.key is None and stretch.target_topic in self._compacted
        if lacks_key and not transform.key and transform.on_error != DEAD_LETTER:
            await self._intake.gaps.pass_keyless(stretch, record.offset)  # no expression is to blame
            return
        reason = record.reason if record.outcome == FAILED else self._why_not(stretch, record)
        if reason is None and transform.translated_ids:
            record, reason = self._with_ids(stretch, record, transform)
        codec = CODECS[transform.compression_type]
        if reason is None:
            rest = rest_of(record.key, record.value, _headers(record))
            content = Record(record.offset, record.timestamp_ms or 0, rest)
            await self._known.note(stretch, content, codec)
            is_refused = stretch.record_id(record.offset) in self._intake.limits.refused
            if is_refused and transform.on_error == DEAD_LETTER:
                reason = (
                    f"the record is larger than topic {stretch.target_topic} allows (max.message.bytes), compressed as "
                    f"{transform.property_name('compression.type')} says"
                )
        if reason is None:
            self._intake.add(stretch, content, codec, record.target_partition or 0)
        elif transform.on_error == DEAD_LETTER:
            self.dead_letters.add(self.flow.name, record, reason)
            self._intake.gaps.skip(stretch, record.offset + 1, GapKind.DEAD_LETTER)
        else:
            raise SourceError(
                f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}, offset {record.offset}: "
                f"the record can't be transformed: {reason}. Correct the "
                f"expression, or set {transform.property_name('on.error')} = dead-letter",
                anomaly=about(AnomalyKind.TRANSFORM, stretch.key, record.offset, record.offset + 1, reason=reason),
            )

    def _with_ids(
        self, stretch: Stretch, record: TransformedRecord, transform: Transform
    ) -> tuple[TransformedRecord, str | None]:
        """Returns the record with the target's schema ids, or the reason why it can't have them."""
        assert self._ids is not None
        for side in transform.translated_ids:
            try:
                translated = self._ids.translated(getattr(record, side), f"{stretch.target_topic}-{side}")
                record = replace(record, key=translated) if side == KEY else replace(record, value=translated)
            except SchemaIdError as error:
                return record, f"{transform.property_name(f'{side}.schema.ids')}: {error}"
        return record, None

    def _why_not(self, stretch: Stretch, record: TransformedRecord) -> str | None:
        """Returns the reason why the target would refuse a record, without the values; or None."""
        partitions = self._target_partitions[stretch.target_topic]
        if record.key is None and stretch.target_topic in self._compacted:
            return f"the record has no key, and topic {stretch.target_topic} is compacted"
        if not 0 <= (record.target_partition or 0) < partitions:
            return (
                f"the expression gave a partition that does not exist: topic {stretch.target_topic} has {partitions} "
                "partitions"
            )
        if (record.timestamp_ms or 0) < OLDEST_TIMESTAMP_MS:
            return "the expression gave a timestamp that Kafka does not accept: before 1970"
        return None

    # -- offsets between records --------------------------------------------------------------------

    async def _go_to(self, stretch: Stretch, offset: int) -> bool:
        """Advances to the record at `offset`; returns false if it isn't to be mirrored, because a flow brought it."""
        await self._account(stretch, offset)
        found = await self._cause_at(stretch) if self.flow.minds_provenance else None
        if found is None or found[2] != GapKind.MIRRORED:
            return stretch.upstream_next == offset
        self._intake.gaps.skip(stretch, offset + 1, GapKind.MIRRORED)
        return False

    async def _account(self, stretch: Stretch, end: int) -> None:
        """Records the reason why there is no record up to `end`.

        Raises:
            _TimeIsUpError: that takes longer than the attempt may, for example behind a large aborted transaction. What
                was accounted for may be committed.
        """
        while stretch.upstream_next < end:
            if self._is_over() and not stretch.is_untouched:
                raise _TimeIsUpError
            found = await self._cause_at(stretch)
            if found is None:
                continue
            upto, kind = min(found[1], end), found[2]
            if kind is None:
                raise SourceError(
                    f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}: Spark's Kafka "
                    f"source has not delivered offset {stretch.upstream_next}, though "
                    f"cluster {self.flow.source} has a record there",
                    retriable=True,
                )
            if kind == GapKind.HOLE:
                await self._intake.gaps.pass_hole(stretch, upto)
            else:
                self._intake.gaps.skip(stretch, upto, kind)

    async def _cause_at(self, stretch: Stretch) -> tuple[int, int, GapKind | None] | None:
        """Returns the log's content at the stretch's next offset; None if the log now begins later and the stretch was
        advanced."""
        try:
            if self._causes is None:
                self._causes, self._cause = (
                    self._intake.causes(stretch, stretch.upstream_next, stretch.planned_end),
                    (0, 0, None),
                )
            while self._cause[1] <= stretch.upstream_next:
                self._cause = await anext(self._causes)
            return self._cause
        except (CorruptBatchError, OversizedBatchError) as error:
            raise SourceError(
                f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}, offset "
                f"{stretch.upstream_next}: the batch can't be read on cluster {self.flow.source}: {error}"
            ) from None
        except ResponseError as error:
            self._causes = None
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self.source.explained(
                    f"flow {self.flow.name}: reading topic {stretch.topic} (needs READ)", error
                ) from None
            await self._intake.gaps.out_of_range(stretch)
            return None

    async def _finish(self, key: PartitionKey) -> None:
        """Accounts for the offsets after the last record of a partition, up to the planned end."""
        stretch = self._stretches[key]
        await self._account(stretch, stretch.planned_end)
        self._open.pop(key)
        self._causes = None

    async def _look(self, stretch: Stretch, epoch: int, max_wait_ms: int) -> Fetched:
        """Asks for next to nothing at the stretch's next offset, to learn whether the log is that of an epoch."""
        try:
            response = await self.source.fetch(
                self.source.leader(*stretch.key),
                {stretch.key: stretch.upstream_next},
                max_bytes=1,
                partition_max_bytes=1,
                max_wait_ms=max_wait_ms,
                epochs={stretch.key: epoch},
            )
        except WireError as error:
            raise self.source.explained(f"flow {self.flow.name}: reading topic {stretch.topic}", error) from None
        (fetched,) = self.source.fetched(response)
        return fetched

    async def _conclude(self, stretch: Stretch) -> None:
        await self._see_epoch(stretch)
        await self._require_same_log(stretch)

    async def _see_epoch(self, stretch: Stretch) -> None:
        """Reads the leader epoch of the last record read, which Spark does not deliver.

        Where in the stretch it has begun is not known; it has not before it.
        """
        if stretch.is_untouched:
            return
        last, epoch = stretch.upstream_next - 1, -1
        with contextlib.suppress(ResponseError):  # without it, the next truncation is detected by the log's length only
            async for batch, _ in read_stretch(self.source, stretch.key, start=last, end=last + 1, max_bytes=1):
                epoch = batch.leader_epoch
        is_ahead = 0 <= self.source.leader_epoch(*stretch.key) < epoch  # as `FetchedLog.is_ahead`
        stretch.see_epoch(-1 if is_ahead else epoch, stretch.upstream_from)

    async def _require_same_log(self, stretch: Stretch) -> None:
        """Checks that the log is still the one that was planned; Spark's records don't show this.

        Raises:
            SourceError: the log was truncated since, or a new leader was elected without loss; the next plan tells
                which.
        """
        epoch = self._epochs.get(stretch.key, -1)
        if stretch.is_untouched or epoch < 0:
            return
        fetched = await self._look(stretch, epoch, max_wait_ms=0)
        if fetched.diverges_at is not None or fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise SourceError(
                f"flow {self.flow.name}, topic {stretch.topic}, partition {stretch.partition}: the log of cluster "
                f"{self.flow.source} has changed between offsets {stretch.upstream_from} and {stretch.upstream_next} "
                "while Spark read it; no record of this range was committed",
                retriable=True,
            )
        self._check(stretch, fetched)

    def _check(self, stretch: Stretch, fetched: Fetched) -> None:
        """Raises a SourceError for an error of a Fetch; what surrounds this would take it for one of the target."""
        try:
            check(fetched.error_code, f"{stretch.topic}-{stretch.partition}")
        except ResponseError as error:
            what = f"flow {self.flow.name}: reading topic {stretch.topic}, partition {stretch.partition} (needs READ)"
            may_pass = is_unauthorized(error) or error.code in ATTEMPT_OVER
            raise self.source.explained(what, error, retriable=may_pass) from None


def _headers(record: TransformedRecord) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in record.headers or ()]
