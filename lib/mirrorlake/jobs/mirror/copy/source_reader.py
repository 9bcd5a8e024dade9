"""The reading half of a copying task: fetches the source's log and prepares batches for the target.

Each offset that is not copied becomes a gap with its cause. Most batches pass through unopened; the records of the
others are re-encoded. A loss stops the flow, or is recorded and skipped (`mirrorlake.on.loss`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from crc32c import crc32c

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.jobs.mirror.copy.fetcher import PARTITION_FETCH_BYTES, Fetcher, PendingFetch
from mirrorlake.jobs.mirror.copy.gap_recorder import GapRecorder, limit_bytes, place
from mirrorlake.jobs.mirror.copy.partition_copy import PACK_BYTES, Stretch
from mirrorlake.jobs.mirror.copy.small_batches import FEWEST, SmallBatches
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.codecs import CODEC, CorruptBatchError, OversizedBatchError
from mirrorlake.protocol.batches.damage import SIGHTINGS, damage_of, doubt_about
from mirrorlake.protocol.batches.merging import join, producer_ids
from mirrorlake.protocol.batches.record_batch import HEADER_BYTES, AbortedTransactions, Batch, FetchedLog
from mirrorlake.protocol.batches.records import Record, read_records
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ATTEMPT_OVER, ErrorCode
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.network.response_error import (
    ResponseError,
    SilentBrokerError,
    WireError,
    check,
    is_unauthorized,
)
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.refill import Refill
from mirrorlake.state.provenance import Provenance

FETCH_BACKOFF_S = 0.1
GAPS_AT_ONCE = 20_000  # per transaction: each gap starts a run, and the slot's state holds all of them


class Intake:
    """Reads the partitions of one attempt.

    Args:
        flow: flow to mirror, with its handling of losses.
        source: cluster to read.
        provenance: knows the flow that wrote each batch; None if that does not matter.
        limits: size limits of remote topics, as learned from refused batches.
        stretches: stretches by topic and partition; they receive the batches to produce.
        fetcher: asks for them.
    """

    def __init__(
        self,
        flow: Flow,
        source: Cluster,
        provenance: Provenance | None,
        limits: Limits,
        stretches: Mapping[PartitionKey, Stretch],
        fetcher: Fetcher,
    ) -> None:
        self.flow, self.source, self.provenance, self.limits = flow, source, provenance, limits
        self.problem: MirrorlakeError | None = None  # the last retriable error
        self.bytes, self.share = 0, 1.0
        self._stretches, self.fetcher = stretches, fetcher
        self.gaps = GapRecorder(flow, source, limits)
        self._damaged = limits.damaged

    @property
    def is_full(self) -> bool:
        """True if the transaction should hold no more, as far as those who read now may fill it (`share`)."""
        return self.bytes >= self.share * self.flow.batch_max_bytes or self._has_most_gaps

    @property
    def _has_most_gaps(self) -> bool:
        return self.gaps.count >= self.share * GAPS_AT_ONCE

    async def accept(self) -> None:
        """Waits for the first response, and processes those that have come; after a retriable error, metadata is
        refreshed.

        The response of a leader that is silent is left for `accept_late`. If many have come, some are left for the next
        call, so that they are not all held at once beside what is asked for next.
        """
        taken_bytes, some = 0, []
        for fetch in await self.fetcher.ready():
            if taken_bytes < self.flow.batch_memory_bytes // 4:
                taken_bytes += fetch.max_bytes
                some.append(fetch)
        await self._read_all(some, waits=False)

    async def accept_late(self, *, waits: bool) -> None:
        """Processes the responses of leaders that were silent: those that have come, or all of them.

        Args:
            waits: True to wait for the responses, at most until the requests time out.
        """
        await self._read_all([fetch for fetch in self.fetcher.late() if waits or fetch.response.is_done], waits=waits)

    async def _read_all(self, fetches: Iterable[PendingFetch], *, waits: bool) -> None:
        """Processes responses; after retriable errors, metadata is refreshed once for all of them."""
        problem: ResponseError | WireError | None = None
        for fetch in fetches:
            self.fetcher.take(fetch)
            try:
                if not (waits or fetch.response.is_done):
                    self.fetcher.postpone(fetch)
                    raise SilentBrokerError("no answer in time")
                await self._process(await fetch.response, fetch)
            except (ResponseError, WireError) as error:
                problem = problem or error
        if problem is not None:
            await self._refresh(problem)

    async def _process(self, response: Any, fetch: PendingFetch) -> None:
        """Reads the partitions of a response that are still where they were when it was asked for."""
        answers = self.fetcher.answers(fetch, response)
        if self.provenance:
            for fetched, log in answers:
                if not self.provenance.knows(producer_ids(log)):
                    await self.provenance.learn(_committed(log, fetched.aborted))
        problem: ResponseError | WireError | None = None
        waited = {key: len(self._stretches[key].waiting) for key in {(one.topic, one.partition) for one, _ in answers}}
        for fetched, log in answers:
            try:
                await self._read(fetched, log)
            except (ResponseError, WireError) as error:  # the other partitions of the response are read all the same
                problem = problem or error
                self.fetcher.note_error((fetched.topic, fetched.partition))
        self._let_go(waited, sum(len(log.view) for _, log in answers))
        if problem is not None:
            raise problem

    def _let_go(self, waited: Mapping[PartitionKey, int], fetched_bytes: int) -> None:
        """Lets a response go of which little is to be written.

        The batches that wait are views of it. While they wait for a slow target, they would keep many times the memory
        that they are counted for.

        Args:
            waited: number of batches that waited before the response was read, by partition.
            fetched_bytes: size of the response.
        """
        stretches = [(self._stretches[key], number) for key, number in waited.items()]
        if 2 * sum(stretch.waiting_bytes(number) for stretch, number in stretches) < fetched_bytes:
            for stretch, number in stretches:
                stretch.copy_waiting(number)

    async def _refresh(self, error: Exception) -> None:
        """Refreshes metadata after a retriable error, and keeps the error as `problem`.

        Raises:
            SourceError: the error is final, or a topic is not the one that was planned any more.
        """
        # A permission that is revoked during the copy holds only its topic: the next plan leaves it out.
        may_pass = is_unauthorized(error) or getattr(error, "code", 0) in ATTEMPT_OVER
        self.problem = self.source.explained(
            f"flow {self.flow.name}: reading {self._where()} (needs READ)", error, retriable=may_pass
        )
        if not self.problem.retriable:
            raise self.problem
        topics = sorted({stretch.topic for stretch in self._stretches.values()})
        await self.source.retry(
            self.problem.message,
            lambda: self.source.update_metadata(topics, even_denied=True),
            self.flow.connect_timeout_ms,
        )
        self.require_topics()  # a topic may have been deleted or created anew meanwhile
        await self.source.net.sleep(FETCH_BACKOFF_S)

    def require_topics(self) -> None:
        """Raises SourceError if a topic was deleted or created anew since it was planned."""
        for stretch in self._stretches.values():
            found = self.source.topics.get(stretch.topic)
            if found is None or found.topic_id != stretch.topic_id:
                what = "was deleted and created anew" if found else "was deleted"
                raise SourceError(
                    f"flow {self.flow.name}: topic {stretch.topic} on cluster {self.flow.source} {what} since it was "
                    "planned",
                    retriable=True,
                )

    # -- Fetch responses ----------------------------------------------------------------------------

    async def _read(self, fetched: Fetched, log: FetchedLog) -> None:
        stretch = self._stretches[fetched.topic, fetched.partition]
        if fetched.error_code or len(fetched.records):
            self.fetcher.have_turn(stretch.key)
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self.gaps.out_of_range(stretch)
            return
        check(fetched.error_code, f"{fetched.topic}-{fetched.partition}")
        if fetched.diverges_at is not None:
            await self.gaps.diverged(stretch, fetched)
            return
        before = stretch.upstream_next
        await self._read_log(stretch, log, AbortedTransactions(fetched.aborted))
        self.pack(stretch)
        self._require_progress(stretch, before, len(fetched.records))

    def _require_progress(self, stretch: Stretch, before: int, fetched_bytes: int) -> None:
        """Raises SourceError if nothing of an answer with bytes was read, and for no reason."""
        has_reason = self._has_most_gaps or self._damaged.get(stretch.key, (-1,))[0] == before
        if fetched_bytes and stretch.upstream_next == before and not has_reason:
            raise SourceError(
                f"{place(stretch, self.flow)}: cluster {self.flow.source} returned {fetched_bytes:,} bytes for offset "
                f"{before}, and none of them is a record at or after it",
                retriable=True,
            )

    async def _read_log(self, stretch: Stretch, log: FetchedLog, aborted: AbortedTransactions) -> None:
        """Takes the batches of a log, until the transaction should hold no more of the stretch."""
        left_out = aborted.producers | (self.provenance.mirrored if self.provenance else set())
        small, at = SmallBatches.of(log, self._merged_bytes(stretch), left_out), log.passed
        for number in range(at):
            aborted.drops(log[number])
        while at < len(log):
            merged = self._merge(stretch, small, at) if small and not self._is_full(stretch) else 0
            if not merged and not await self._read_batch(stretch, log, at, aborted):
                return
            at += merged or 1

    async def _read_batch(self, stretch: Stretch, log: FetchedLog, number: int, aborted: AbortedTransactions) -> bool:
        """Takes one batch of a log; returns False if the transaction should hold no more of the stretch."""
        if self._is_full(stretch):  # what follows is looked at later, also if it is damaged, or behind a hole
            return False
        batch, before = log[number], stretch.upstream_next
        if damage := damage_of(log, number, batch, before):
            if self._may_be_whole(stretch, batch, damage):
                return False  # the next Fetch asks for it once more
            following = log[number + 1] if number + 1 < len(log) else None
            self._corrupt(stretch, batch, following, damage)
            return stretch.upstream_next == before  # it may be the end of an aborted transaction: read on from there
        doubt = doubt_about(log, number, batch, before)
        if doubt and self._may_be_whole(stretch, batch, doubt, sightings=2):
            return False
        is_aborted = aborted.drops(batch)
        if batch.end_offset <= stretch.upstream_next:
            return True  # for a compacted log, a batch may end before the requested offset
        if batch.magic == 2:  # the first offset of an older batch is known only after opening it
            await self.gaps.pass_hole(stretch, batch.base_offset)
        is_full = self._is_full(stretch)
        if not is_full:
            await self._take(stretch, batch, is_aborted)
            self.bytes += len(batch.raw)
        if not is_full or stretch.upstream_next > before:  # behind a hole, in which the epoch before may have ended
            if log.is_ahead(batch):  # the leader would take it for that of a log that was truncated
                log.believed_epoch = batch.leader_epoch
            stretch.see_epoch(-1 if log.is_ahead(batch) else batch.leader_epoch, batch.base_offset)
        return not is_full

    def _is_full(self, stretch: Stretch) -> bool:
        """Returns True if the transaction should hold no more of a stretch."""
        return stretch.is_done or self._has_most_gaps

    def _merged_bytes(self, stretch: Stretch) -> int:
        """Returns the size up to which small batches are merged."""
        return int(max(1, min(PACK_BYTES, limit_bytes(self.limits, stretch))))

    def _merge(self, stretch: Stretch, small: SmallBatches, at: int) -> int:
        """Merges small batches from number `at` on; returns how many, 0 if the first one has to go another way."""
        most_bytes = self._merged_bytes(stretch)
        numbers = small.next_ones(at, stretch.upstream_next, stretch.planned_end, most_bytes)
        if len(numbers) < FEWEST or self._is_special(stretch, small, numbers):
            small.leave(range(at, max(at + 1, numbers.stop)))
            return 0
        try:
            joined = join(small.log, small.rows, numbers, self.flow.batch_max_decompressed_bytes, most_bytes)
        except (CorruptBatchError, OversizedBatchError):  # a loss has to name its offsets
            small.leave(numbers)
            return 0
        if joined.batches < FEWEST:  # they become large when they are opened, so that nothing would be gained
            small.leave(numbers)
            return 0
        numbers = numbers[: joined.batches]
        self.pack(stretch)
        stretch.take_merged(joined.packed(limit_bytes(self.limits, stretch)), small.end_offset(numbers[-1]))
        for epoch, offset in small.epochs(numbers):
            stretch.see_epoch(epoch, offset)
        self.bytes += small.bytes(numbers)
        return len(numbers)

    def _is_special(self, stretch: Stretch, small: SmallBatches, numbers: range) -> bool:
        """Returns True if single records of batches need attention: to be copied home, or refused by the target."""
        if stretch.target_topic in self.limits.keyed:
            return True
        start, end = small.first_offset(numbers[0]), small.end_offset(numbers[-1])
        return any(refill.key == stretch.key for refill in self.flow.refills) or any(
            (topic, partition, incarnation) == (*stretch.key, stretch.incarnation) and start <= offset < end
            for topic, partition, incarnation, offset in self.limits.refused
        )

    async def _take(self, stretch: Stretch, batch: Batch, is_aborted: bool) -> None:
        if not is_aborted and (refill := self._refill_within(stretch, batch)):
            self.gaps.skip(stretch, max(batch.base_offset, refill.from_offset), GapKind.MIRRORED)
            await self._open(stretch, batch, refill.to_offset)
            self.gaps.skip(stretch, batch.end_offset, GapKind.MIRRORED)
        elif (kind := self._nothing_to_copy(stretch, batch, is_aborted)) is not None:
            self.gaps.skip(stretch, batch.end_offset, kind)
        elif (
            batch.passes_unopened
            and batch.base_offset == stretch.upstream_next
            and len(batch.raw) <= limit_bytes(self.limits, stretch)
            and stretch.record_id(batch.base_offset) not in self.limits.refused
            and self._has_keys(stretch, batch)
        ):
            self.pack(stretch)
            stretch.take(batch)
        else:
            await self._open(stretch, batch)

    def _has_keys(self, stretch: Stretch, batch: Batch) -> bool:
        """Returns True unless the remote topic would refuse a record of the batch as it has no key."""
        if stretch.target_topic not in self.limits.keyed:
            return True
        with suppress(CorruptBatchError, OversizedBatchError):
            return all(one.has_key for one in read_records(batch, self.flow.batch_max_decompressed_bytes))
        return True

    def _may_be_whole(self, stretch: Stretch, batch: Batch, damage: str, sightings: int = SIGHTINGS) -> bool:
        """Returns True until the same damage has been fetched so many times.

        A line may have damaged the batch, and a part of it may be missing. A disk that has damaged it answers the same
        bytes again and again. Of a batch whose length is wrong, only the header is compared, as the bytes behind it may
        be any.
        """
        offset, found = stretch.upstream_next, crc32c(batch.raw if batch.is_whole else batch.raw[:HEADER_BYTES])
        before = self._damaged.get(stretch.key)
        seen = 1 + (before[2] if before and before[:2] == (offset, found) else 0)
        self._damaged[stretch.key] = offset, found, seen
        if seen >= sightings:
            return False
        self.problem = SourceError(
            f"{place(stretch, self.flow)}: the batch of offset {stretch.upstream_next} has arrived damaged from "
            f"cluster {self.flow.source} ({damage}); it is fetched again",
            retriable=True,
        )
        return True

    def _corrupt(self, stretch: Stretch, batch: Batch, following: Batch | None, damage: str) -> None:
        """Skips a corrupt batch if the flow continues after losses.

        The batch's header is unreliable. The skipped range therefore ends at the next batch, or at a plausible offset.
        A compressed batch of an old format has the offset of its last record: what is before that is no part of this.
        """
        most = following.base_offset if following else min(stretch.planned_end, batch.base_offset + len(batch.raw))
        is_plausible = stretch.upstream_next < batch.end_offset <= most
        if following and not (is_plausible and following.magic < 2):
            next_offset = following.base_offset
        else:
            next_offset = batch.end_offset if is_plausible else stretch.upstream_next + 1
        if next_offset > stretch.upstream_next:
            self.gaps.lose(
                stretch,
                GapKind.CORRUPT,
                next_offset,
                f"the batch is corrupt on cluster {self.flow.source} ({damage}). Check the cluster's disks",
            )
            stretch.see_epoch(-1, -1)  # the batch may be the first of a later one

    def _nothing_to_copy(self, stretch: Stretch, batch: Batch, is_aborted: bool) -> GapKind | None:
        """Returns the reason why a batch has no record to copy, as far as its header shows, or None."""
        if batch.is_control:
            return GapKind.MARKER
        if is_aborted:
            return GapKind.ABORTED
        if self.provenance and self.provenance.excludes(batch) and not self._is_refilled(stretch, batch):
            return GapKind.MIRRORED
        return None

    def _is_refilled(self, stretch: Stretch, batch: Batch) -> bool:
        """Returns True if a whole batch that another flow has brought is copied home."""
        return any(
            refill.key == stretch.key
            and refill.from_offset <= batch.base_offset
            and batch.end_offset <= refill.to_offset
            for refill in self.flow.refills
        )

    def _refill_within(self, stretch: Stretch, batch: Batch) -> Refill | None:
        """Returns the refill that begins or ends within a batch that another flow has brought, or None.

        Small batches are merged, so a lost end may begin anywhere in one.
        """
        if not self.flow.refills or batch.is_control or not self.provenance or not self.provenance.excludes(batch):
            return None
        for refill in self.flow.refills:
            is_touched = refill.from_offset < batch.end_offset and batch.base_offset < refill.to_offset
            if refill.key == stretch.key and is_touched and not self._is_refilled(stretch, batch):
                return refill
        return None

    async def _open(self, stretch: Stretch, batch: Batch, before: int | None = None) -> None:
        """Adds the records of a batch from the position on; those before an offset, if one is given."""
        end = batch.end_offset if before is None else min(before, batch.end_offset)
        try:
            records = [
                record
                for record in read_records(batch, self.flow.batch_max_decompressed_bytes)
                if stretch.upstream_next <= record.offset < end
            ]
        except OversizedBatchError as error:
            what = f"the batch can't be opened: {error}. Raise mirrorlake.batch.max.decompressed.bytes to copy it"
            self.gaps.lose(stretch, GapKind.TOO_LARGE, batch.end_offset, what)
            return
        except CorruptBatchError as error:
            what = f"the batch can't be read although its CRC is right: {error}"
            self.gaps.lose(stretch, GapKind.CORRUPT, batch.end_offset, what)
            return
        for record in records:
            if record.offset != stretch.upstream_next:
                await self.gaps.pass_hole(stretch, record.offset)
            if not record.has_key and stretch.target_topic in self.limits.keyed:
                await self.gaps.pass_keyless(stretch, record.offset)
            else:
                self.add(stretch, record, batch.attributes & CODEC, stretch.partition)
        await self.gaps.pass_hole(stretch, end)

    def add(self, stretch: Stretch, record: Record, codec: int, target_partition: int) -> None:
        """Adds a record to be packed into a batch.

        Args:
            stretch: stretch of the record's partition.
            record: the record.
            codec: compression codec of its new batch.
            target_partition: partition of the target.
        """
        if stretch.record_id(record.offset) in self.limits.refused:
            self.gaps.refuse(stretch, record)
            return
        self.gaps.count += self.flow.scatters(stretch.topic)  # in such topics, each record may start a run
        stretch.add(record, codec, target_partition, limit_bytes(self.limits, stretch))

    def pack(self, stretch: Stretch) -> None:
        """Packs the added records into batches."""
        stretch.pack(limit_bytes(self.limits, stretch))

    async def causes(self, stretch: Stretch, start: int, end: int) -> AsyncIterator[tuple[int, int, GapKind | None]]:
        """Reads the log at `[start, end)`, to explain offsets that Spark has not delivered.

        Yields (from, to, kind) in order and without holes; kind is None for records.

        Raises:
            ResponseError, WireError: as `read_stretch`.
        """
        at = start
        async for batch, is_aborted in read_stretch(
            self.source, stretch.key, start=start, end=end, max_bytes=PARTITION_FETCH_BYTES
        ):
            if self.provenance and not is_aborted:
                await self.provenance.learn([batch])
            kind = self._nothing_to_copy(stretch, batch, is_aborted)
            is_whole = kind is not None or batch.passes_unopened
            found = (
                [(batch.base_offset, batch.end_offset, kind)]
                if is_whole
                else [
                    (record.offset, record.offset + 1, None)
                    for record in read_records(batch, self.flow.batch_max_decompressed_bytes)
                ]
            )
            for first, last, cause in [*found, (batch.end_offset, batch.end_offset, None)]:
                if first > at:
                    yield at, first, GapKind.HOLE
                if last > at:
                    yield max(at, first), last, cause
                at = max(at, last)
        if at < end:  # the next batch begins behind the end
            yield at, end, GapKind.HOLE

    def _where(self) -> str:
        return where(self._stretches.values())


def where(stretches: Any) -> str:
    """Lists the first few partitions with their start offsets, for messages."""
    return ", ".join(
        f"{stretch.topic}-{stretch.partition} from offset {stretch.upstream_from}" for stretch in list(stretches)[:5]
    )


def _committed(log: FetchedLog, listed: Iterable[tuple[int, int]]) -> Iterator[Batch]:
    """Returns the healthy batches of a log, without those of aborted transactions."""
    aborted = AbortedTransactions(listed)
    return (batch for batch in log if batch.crc_is_right and not aborted.drops(batch))
