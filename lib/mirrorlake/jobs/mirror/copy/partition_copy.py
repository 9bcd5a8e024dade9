"""The state of one partition during a copying attempt, from its position on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from crc32c import crc32c

from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import Batch
from mirrorlake.protocol.batches.records import Record, pack_within
from mirrorlake.protocol.limits import RecordId

# `dataclasses.asdict` copies every value, which takes 12 times as long.
RUN, GAP = (tuple(field.name for field in fields(kind)) for kind in (Run, Gap))
values_of_run, values_of_gap = attrgetter(*RUN), attrgetter(*GAP)

PACK_BYTES = 512 << 10  # approximate size of a re-encoded batch: keys, values and headers


@dataclass
class Loose:
    """Records that wait to be packed into one batch."""

    codec: int
    records: list[Record] = field(default_factory=list)
    bytes: int = 0

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.bytes += len(record.rest)

    def takes(self, codec: int) -> bool:
        """Returns true if a record with this codec may be added."""
        return codec == self.codec and self.bytes < PACK_BYTES


@dataclass
class Stretch:
    """The log of a partition from `upstream_from` to `upstream_next`, as one attempt processes it.

    `skipped` counts the offsets without anything to copy; `gaps` lists them as (start, end, kind), with end exclusive.
    Records are kept in `loose` until they are packed into a batch. Batches are kept in `waiting` until they are
    produced. Both name the target partition, which only a transform changes.

    The digests of each target partition (`Batch.count_into`) cover all batches: `digests_read` as they were prepared,
    `digests_written` as they were acknowledged. Equal digests mean the same batches in the same order.

    `resets` are gaps after which the numbering of the log begins anew, at `upstream_from`.
    """

    topic: str
    partition: int
    topic_id: str
    target_topic: str
    upstream_from: int
    upstream_next: int
    downstream_from: int
    planned_end: int
    incarnation: int = 0
    leader_epoch: int = -1
    target_topic_id: str = ""
    epoch_from: int = -1
    runs: list[Run] = field(default_factory=list)
    skipped: int = 0
    gaps: list[tuple[int, int, GapKind]] = field(default_factory=list)
    resets: list[Gap] = field(default_factory=list)
    digests_read: dict[int, int] = field(default_factory=dict)
    digests_written: dict[int, int] = field(default_factory=dict)
    waiting: deque[tuple[int, Batch]] = field(default_factory=deque)
    loose: dict[int, Loose] = field(default_factory=dict)
    _last_runs: dict[int, Run] = field(default_factory=dict)

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    def record_id(self, offset: int) -> RecordId:
        """Returns what names a record also after its topic was created anew."""
        return self.topic, self.partition, self.incarnation, offset

    @property
    def is_done(self) -> bool:
        return self.upstream_next >= self.planned_end

    @property
    def is_untouched(self) -> bool:
        return self.upstream_next == self.upstream_from

    # -- reading ------------------------------------------------------------------------------------

    def skip_to(self, end: int, kind: GapKind) -> None:
        """Records that the offsets up to `end` hold nothing to copy."""
        start = self.upstream_next
        if end <= start:
            return
        if self.gaps and self.gaps[-1][1:] == (start, kind):
            self.gaps[-1] = (self.gaps[-1][0], end, kind)
        else:
            self.gaps.append((start, end, kind))
        self.skipped += end - start
        self.upstream_next = end

    def take(self, batch: Batch) -> None:
        """Queues a batch that starts at `upstream_next`, to be produced unopened; loose records must have been packed
        before."""
        self._let_wait(self.partition, batch)
        self.upstream_next = batch.end_offset

    def take_merged(self, batches: Iterable[Batch], end: int) -> None:
        """Queues batches that were merged from those from `upstream_next` up to `end`; see `take`."""
        for batch in batches:
            self._let_wait(self.partition, batch)
        self.upstream_next = end

    def add(self, record: Record, codec: int, target_partition: int, limit_bytes: float) -> None:
        """Adds the record at `upstream_next` to the loose records.

        Args:
            record: the record.
            codec: compression codec of its new batch.
            target_partition: partition of the target.
            limit_bytes: maximum size of a batch.
        """
        loose = self.loose.get(target_partition)
        if loose is not None and not loose.takes(codec):
            self.pack(limit_bytes, target_partition)
            loose = None
        if loose is None:
            loose = self.loose[target_partition] = Loose(codec)
        loose.add(record)
        self.upstream_next = record.offset + 1

    def pack(self, limit_bytes: float, target_partition: int | None = None) -> None:
        """Packs loose records into batches and queues them, for one target partition or for all."""
        numbers = list(self.loose) if target_partition is None else [target_partition]
        for number in numbers:
            loose = self.loose.pop(number)
            for batch in pack_within(loose.records, loose.codec, limit_bytes):
                self._let_wait(number, batch)

    def see_epoch(self, leader_epoch: int, offset: int) -> None:
        """Records the leader epoch of the last batch read, which is at `offset`; -1 if it is unknown."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch, self.epoch_from = leader_epoch, offset

    def reset(self, start: int, kind: GapKind, void_from: int) -> None:
        """Restarts the stretch at `start`, and voids what was mapped from `void_from` on.

        Must be called before anything was read.
        """
        self.resets.append(
            Gap(
                topic=self.topic,
                partition=self.partition,
                from_offset=void_from,
                to_offset=max(void_from, self.upstream_next),
                kind=kind,
                incarnation=self.incarnation,
                downstream_offset=self.downstream_from,
            )
        )
        self.upstream_from = self.upstream_next = start
        self.incarnation += 1
        self.leader_epoch = self.epoch_from = -1

    def waiting_bytes(self, number: int) -> int:
        """Returns the size of the batches that wait, from a number on."""
        return sum(len(batch.raw) for _, batch in itertools.islice(self.waiting, number, None))

    def copy_waiting(self, number: int) -> None:
        """Copies the batches that wait, from a number on, so that they need the response no more that they are in."""
        copied = [
            (partition, replace(batch, raw=memoryview(bytes(batch.raw))))
            for partition, batch in itertools.islice(self.waiting, number, None)
        ]
        for _ in copied:
            self.waiting.pop()
        self.waiting.extend(copied)

    def _let_wait(self, target_partition: int, batch: Batch) -> None:
        self.waiting.append((target_partition, batch))
        self.digests_read[target_partition] = batch.count_into(self.digests_read.get(target_partition, 0))

    # -- writing ------------------------------------------------------------------------------------

    def append(self, batch: Batch, target_partition: int, base_offset: int) -> None:
        """Records that the target has appended a batch at `base_offset`."""
        ranges, downstream = batch.ranges, base_offset
        for start, end in ranges:
            run = self._last_runs.get(target_partition)
            if run is None or not run.is_continued_by(start, downstream):
                run = Run(
                    topic=self.topic,
                    partition=self.partition,
                    target_topic=self.target_topic,
                    target_partition=target_partition,
                    upstream_start=start,
                    upstream_end=start,
                    downstream_start=downstream,
                    downstream_end=downstream,
                    records=0,
                    bytes=0,
                    first_timestamp=batch.base_timestamp,
                    last_timestamp=batch.max_timestamp,
                    digest=0,
                    incarnation=self.incarnation,
                )
                self.runs.append(run)
                self._last_runs[target_partition] = run
            run.upstream_end = end
            downstream += end - start
            run.downstream_end = downstream
            run.records += end - start
            run.bytes += len(batch.raw) * (end - start) // batch.records
            run.first_timestamp = min(run.first_timestamp, batch.base_timestamp)
            run.last_timestamp = max(run.last_timestamp, batch.max_timestamp)
            run.digest = None if run.digest is None or len(ranges) > 1 else batch.extend_digest_by_crc(run.digest)
        self.digests_written[target_partition] = batch.count_into(self.digests_written.get(target_partition, 0))

    def finish(self) -> None:
        """Sorts the runs by upstream offset; target partitions acknowledge in any order."""
        self.runs.sort(key=lambda run: run.upstream_start)

    @property
    def downstream_next(self) -> int:
        """Next offset of the target partition with the same number, as far as this flow has written it."""
        last = self._last_runs.get(self.partition)
        return self.downstream_from if last is None else last.downstream_end

    def explained(self) -> list[Gap]:
        """Returns all gaps, resets first, each with its downstream offset."""
        found, runs, downstream = list(self.resets), deque(self.runs), self.downstream_from
        for start, end, kind in self.gaps:
            while runs and runs[0].upstream_end <= start:
                downstream = runs.popleft().downstream_end
            found.append(
                Gap(
                    topic=self.topic,
                    partition=self.partition,
                    from_offset=start,
                    to_offset=end,
                    kind=kind,
                    incarnation=self.incarnation,
                    downstream_offset=downstream,
                )
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the stretch as plain values for the driver's report."""
        names = ("topic", "partition", "target_topic", "upstream_from", "upstream_next", "downstream_from", "skipped")
        digests = {"digest_read": _one(self.digests_read), "digest_written": _one(self.digests_written)}
        return {
            **{name: getattr(self, name) for name in names},
            **digests,
            "runs": [dict(zip(RUN, values_of_run(run), strict=True)) for run in self.runs],
            "gaps": [dict(zip(GAP, values_of_gap(gap), strict=True)) for gap in self.explained()],
        }


def _one(digests: dict[int, int]) -> int:
    """Combines the digests of all target partitions into one number."""
    return crc32c(repr(sorted(digests.items())).encode())
