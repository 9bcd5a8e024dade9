"""A log that is read with small batches merged gives the records, gaps and position that it gives batch by batch."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c
from mirrorlake.config.flow import Flow
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.copy import source_reader
from mirrorlake.jobs.mirror.copy.fetcher import Fetcher
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.small_batches import SmallBatches
from mirrorlake.jobs.mirror.copy.source_reader import Intake
from mirrorlake.jobs.verification import run_digests
from mirrorlake.jobs.verification.run_digests import has_digest, merged_as
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.codecs import CODEC, LZ4, NONE, ZSTD
from mirrorlake.protocol.batches.damage import SIGHTINGS
from mirrorlake.protocol.batches.record_batch import (
    CONTROL,
    HEADER_BYTES,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    AbortedTransactions,
    Batch,
    FetchedLog,
)
from mirrorlake.protocol.batches.records import Record, read_records, rest_of
from mirrorlake.protocol.limits import Limits
from mirrorlake.state.provenance import Provenance

from tests.unit.test_merging import NOW, encoded, records_of

KEY: PartitionKey = ("t", 0)
ABORTING, LOOPING, OWN = 7, 8, 9  # producers
FIRST = 1_000


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Flow:
    config = Path(tmp_path_factory.mktemp("config")) / "mirrorlake.properties"
    config.write_text(
        "clusters = a, b\na.bootstrap.servers = localhost:1\nb.bootstrap.servers = localhost:2\n"
        "a->b.enabled = true\nmirrorlake.on.loss = continue\nmirrorlake.batch.max.decompressed.bytes = 1048576\n"
    )
    return Flow.load(config, "a->b")


class CompactedSource:
    """Answers that any topic is compacted, so that holes in it are no losses."""

    async def topic_config(self, topic: str, name: str) -> str:
        return "compact"


class Reader:
    """What one attempt makes of a log.

    Attributes:
        stretch: the stretch after the log was read.
        intake: its intake.
    """

    def __init__(self, flow: Flow, log: bytes, aborted: list[tuple[int, int]], **options: Any) -> None:
        limits = Limits(refused={(*KEY, 0, offset) for offset in options.get("refused", ())})
        if "limit" in options:
            limits.lower("remote", options["limit"])
        provenance = Provenance(flow, None) if options.get("loops") else None  # type: ignore[arg-type]
        if provenance:
            provenance._mirrored.add(LOOPING)
        start, end = options.get("start", FIRST), options.get("end", 1 << 62)
        self.stretch = Stretch(*KEY, "id", "remote", start, start, 0, end)
        source, stretches = CompactedSource(), {KEY: self.stretch}
        fetcher = Fetcher(flow, source, limits, stretches)  # type: ignore[arg-type]
        self.intake = Intake(flow, source, provenance, limits, stretches, fetcher)  # type: ignore[arg-type]
        stable_end = options.get("stable_end", -1)
        for number in range(options.get("fetches", 1)):
            fetched = FetchedLog(log, stable_end, options.get("leader_epoch", -1))
            if number:  # a broker answers from the position on
                log = options.get("then", log)
                whole = FetchedLog(log)
                passed = sum(len(batch.raw) for batch in whole if batch.end_offset <= self.stretch.upstream_next)
                fetched = FetchedLog(log[passed:], stable_end, options.get("leader_epoch", -1))
            reading = self.intake._read_log(self.stretch, fetched, AbortedTransactions(aborted))
            with pytest.raises(StopIteration):
                reading.send(None)  # it waits for nothing
        self.intake.pack(self.stretch)

    @property
    def records(self) -> list[tuple[int, int, bytes, int]]:
        """Returns offset, timestamp, contents and codec of each record that waits to be produced."""
        found = []
        for _, batch in self.stretch.waiting:
            assert batch.crc_is_right
            upstream = [offset for start, end in batch.ranges for offset in range(start, end)]
            records = list(read_records(batch))
            assert len(upstream) == len(records) == batch.records
            assert batch.max_timestamp == max(record.timestamp for record in records) or batch.passes_unopened
            found += [
                (offset, record.timestamp, record.rest, batch.attributes & CODEC)
                for offset, record in zip(upstream, records, strict=True)
            ]
        return found

    @property
    def accounted(self) -> tuple[Any, ...]:
        """Returns what must not depend on the way of the batches."""
        one = self.stretch
        return one.gaps, one.skipped, one.upstream_next, one.leader_epoch, one.epoch_from, self.intake.bytes


def marker(offset: int, producer: int, *, commits: bool, epoch: int = -1) -> bytes:
    key = struct.pack(">hh", 0, commits)
    record = Record(offset, NOW, rest_of(key, bytes(6), ()))
    return encoded([record], NONE, CONTROL | TRANSACTIONAL, id=producer, epoch=epoch)


class RandomLog:
    """A log with everything that may be between small batches, and its aborted transactions."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._parts, self._offset, self._epoch = dice, list[bytes](), FIRST, 3
        self.aborted: list[tuple[int, int]] = []
        for _ in range(dice.randint(3, 9)):
            kind = dice.choice(("plain",) * 5 + (OWN, ABORTING, LOOPING))
            self._small_ones(-1 if kind == "plain" else kind)
            self._something_else(dice.randrange(8))
        self.bytes, self.span = b"".join(self._parts), self._offset - FIRST

    def _small_ones(self, producer: int) -> None:
        dice, codec = self._dice, self._dice.choice((NONE, LZ4, LZ4, ZSTD))
        if producer == ABORTING:
            self.aborted.append((ABORTING, self._offset))
        for _ in range(dice.randint(1, 40)):
            self._add(dice.choice((1, 1, 1, 2, 15)), codec, TRANSACTIONAL if producer >= 0 else 0, id=producer)
            if dice.random() < 0.01:
                self._parts[-1] = self._parts[-1][:-1] + bytes([self._parts[-1][-1] ^ 1])
            if producer == OWN and dice.random() < 0.5:
                self._end(producer)
        if producer >= 0:
            self._end(producer)

    def _something_else(self, kind: int) -> None:
        match kind:
            case 0:
                self._offset += self._dice.randint(1, 4)
            case 1:
                self._epoch += 1
            case 2:
                self._add(3_000, LZ4)
            case 3:
                huge = Record(self._offset, NOW, rest_of(None, self._dice.randbytes(200_000), ()))
                self._parts.append(encoded([huge], LZ4, epoch=self._epoch))
                self._offset += 1
            case 4:
                self._add(3, NONE, TIMESTAMP_TYPE)
            case 5:
                self._add(3, NONE, last=5)
                self._offset += 3

    def _add(self, count: int, codec: int, attributes: int = 0, **changes: int) -> None:
        records = records_of(self._dice, self._offset, count, is_plain=True)
        self._parts.append(encoded(records, codec, attributes, epoch=self._epoch, **changes))
        self._offset += count

    def _end(self, producer: int) -> None:
        self._parts.append(marker(self._offset, producer, commits=producer != ABORTING, epoch=self._epoch))
        self._offset += 1


def unmerged(flow: Flow, log: bytes, aborted: list[tuple[int, int]], **options: Any) -> Reader:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SmallBatches, "of", lambda *_: None)
        return Reader(flow, log, aborted, **options)


@pytest.mark.parametrize("seed", range(40))
def test_any_log_is_read_as_it_is_batch_by_batch(flow: Flow, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    made = RandomLog(dice)
    log, aborted, span = made.bytes, made.aborted, made.span
    options: dict[str, Any] = {
        "loops": dice.random() < 0.5,
        **dice.choice(({}, {"start": FIRST + dice.randrange(span)})),
        **dice.choice(({}, {"end": FIRST + dice.randrange(1, span)})),
        **dice.choice(({}, {"limit": dice.choice((100, 3_000))})),
        **dice.choice(({}, {"refused": [FIRST + dice.randrange(span) for _ in range(3)]})),
    }
    monkeypatch.setattr(source_reader, "PACK_BYTES", dice.choice((2_000, 512 << 10)))
    monkeypatch.setattr(source_reader, "GAPS_AT_ONCE", dice.choice((7, 20_000)))
    merged, plain = Reader(flow, log, aborted, **options), unmerged(flow, log, aborted, **options)
    assert [record[:3] for record in merged.records] == [record[:3] for record in plain.records]
    codecs = {(new, old) for (*_, new), (*_, old) in zip(merged.records, plain.records, strict=True)}
    assert codecs <= {(codec, old) for codec in (NONE, LZ4, ZSTD) for old in (codec, NONE)}
    assert merged.accounted == plain.accounted
    assert len(merged.stretch.waiting) <= len(plain.stretch.waiting) + 2


def test_small_batches_of_one_stretch_become_one(flow: Flow) -> None:
    dice = random.Random(1)
    log = b"".join(encoded(records_of(dice, FIRST + at, 1, is_plain=True), LZ4) for at in range(500))
    ((_, batch),) = Reader(flow, log, []).stretch.waiting
    assert (batch.ranges, batch.records, batch.attributes) == (((FIRST, FIRST + 500),), 500, LZ4)


def test_batches_that_were_not_compressed_are_merged_with_those_that_were(flow: Flow) -> None:
    """librdkafka compresses a batch only if it becomes smaller."""
    dice = random.Random(1)
    codecs = [dice.choice((NONE, NONE, LZ4)) for _ in range(100)] + [NONE] * 100 + [ZSTD] * 100
    log = b"".join(encoded(records_of(dice, FIRST + at, 1, is_plain=True), codec) for at, codec in enumerate(codecs))
    read = Reader(flow, log, [])
    assert [(batch.records, batch.attributes) for _, batch in read.stretch.waiting] == [(200, LZ4), (100, ZSTD)]
    assert [record[:3] for record in read.records] == [record[:3] for record in unmerged(flow, log, []).records]


def test_a_merged_batch_is_of_one_run_whose_digest_the_target_has(flow: Flow) -> None:
    dice, parts, at = random.Random(1), list[bytes](), FIRST
    for _ in range(3):
        parts += [encoded(records_of(dice, at + one, 1, is_plain=True), LZ4, TRANSACTIONAL, id=OWN) for one in range(9)]
        parts.append(marker(at + 9, OWN, commits=True))
        at += 10
    read, downstream = Reader(flow, b"".join(parts), []), 5_000
    assert [batch.ranges for _, batch in read.stretch.waiting] == [
        ((at, at + 9),) for at in range(FIRST, FIRST + 30, 10)
    ]
    for _, batch in read.stretch.waiting:
        read.stretch.append(batch, 0, downstream)
        downstream += batch.records
    assert [(run.upstream_start, run.downstream_start, run.records, run.digest) for run in read.stretch.runs] == [
        (FIRST + 10 * number, 5_000 + 9 * number, 9, batch.extend_digest(0))
        for number, (_, batch) in enumerate(read.stretch.waiting)
    ]
    assert read.stretch.gaps == [(at + 9, at + 10, GapKind.MARKER) for at in range(FIRST, FIRST + 30, 10)]


def test_a_run_of_merged_batches_is_recognised_on_both_sides(flow: Flow) -> None:
    dice, parts, at = random.Random(1), list[bytes](), FIRST
    for count in (*[1] * 40, 3_000, *[2] * 30, 5, 2_000):
        parts.append(encoded(records_of(dice, at, count, is_plain=True), dice.choice((LZ4, NONE))))
        at += count
    read = Reader(flow, b"".join(parts), [])
    waiting = [batch for _, batch in read.stretch.waiting]
    assert len(waiting) < 10
    downstream = 5_000
    for batch in waiting:
        read.stretch.append(batch, 0, downstream)
        downstream += batch.records
    (run,) = read.stretch.runs
    target = SimpleNamespace(batches=lambda *_: iter(_moved(waiting, 5_000)))
    shape = has_digest(target, 5_000, 5_000, downstream, run.digest)
    assert shape == [batch.records for batch in waiting]

    def is_recognised(log: list[bytes], shape: list[int]) -> bool:
        source = SimpleNamespace(batches=lambda *_: iter(FetchedLog(b"".join(log))))
        return has_digest(source, FIRST, FIRST, at, run.digest, shape) is not None

    assert is_recognised(parts, shape)
    for changed in (0, 20, 40, 60, len(parts) - 1):
        other = bytearray(parts[changed])
        other[-3] ^= 1  # the CRC in the header stays as it was
        assert not is_recognised([*parts[:changed], bytes(other), *parts[changed + 1 :]], shape)
        assert not is_recognised([*parts[:changed], *parts[changed + 1 :]], shape)
    assert not is_recognised(parts[:-1], shape)
    assert not is_recognised(parts, [shape[0] - 1, *shape[1:]])
    assert not is_recognised(parts, shape[:-1])


def _moved(batches: list[Batch], offset: int) -> Iterator[Batch]:
    for batch in batches:
        yield replace(batch, base_offset=offset)
        offset += batch.records


def test_a_corrupt_batch_among_small_ones_stops_the_flow_with_its_offsets(flow: Flow) -> None:
    dice, parts = random.Random(1), list[bytes]()
    for at in range(60):
        parts.append(encoded(records_of(dice, FIRST + 2 * at, 2, is_plain=True), NONE))
    parts[33] = parts[33][:-3] + bytes([parts[33][-3] ^ 1]) + parts[33][-2:]  # of a value
    read = Reader(flow, b"".join(parts), [])
    assert (read.stretch.gaps, read.stretch.upstream_next) == ([], FIRST + 66), "it is fetched again"
    read = Reader(flow, b"".join(parts), [], fetches=SIGHTINGS + 1)
    assert read.stretch.gaps == [(FIRST + 66, FIRST + 68, GapKind.CORRUPT)]
    assert [offset for offset, *_ in read.records] == [*range(FIRST, FIRST + 66), *range(FIRST + 68, FIRST + 120)]
    with pytest.raises(SourceError, match=f"offsets {FIRST + 66} to {FIRST + 68}: the batch is corrupt"):
        Reader(replace(flow, passes_over_losses=False), b"".join(parts), [], fetches=SIGHTINGS)


@pytest.mark.parametrize("merges", [True, False])
def test_a_first_offset_with_a_wrong_bit_is_no_hole_and_the_batch_is_fetched_again(flow: Flow, *, merges: bool) -> None:
    """The CRC does not cover the first offset, and in a compacted log any hole is possible."""
    dice, parts, at, spans = random.Random(1), list[bytes](), FIRST, list[tuple[int, int]]()
    for count, hole in ((9, 0), (1, 0), (2, 4), (5, 0), (1, 1), *[(1, 0)] * (8 if merges else 0), (4, 3), (2, 70)):
        at += hole
        parts.append(encoded(records_of(dice, at, count, is_plain=True), LZ4))
        spans.append((at, at + count))
        at += count
    end = at

    def may_be_right(number: int, start: int) -> bool:
        """Tells whether a batch would have room between its neighbours at an offset."""
        before, behind = [(FIRST, FIRST), *spans][number][1], [*spans, (end, end)][number + 1][0]
        return before <= start <= behind - (spans[number][1] - spans[number][0])

    for stable_end in (end, end + 700):  # the response has all of the log, or not
        whole = Reader(flow, b"".join(parts), [], fetches=3, stable_end=stable_end)
        assert (len(whole.stretch.gaps), whole.stretch.upstream_next) == (4, end)
        for number, part in enumerate(parts):
            for bit in (*range(12), 31, 62, 63):
                start = struct.unpack_from(">Q", part)[0] ^ 1 << bit
                if may_be_right(number, start):
                    continue
                other = struct.pack(">Q", start) + part[8:]
                log = b"".join([*parts[:number], other, *parts[number + 1 :]])
                read = Reader(flow, log, [], fetches=3, stable_end=stable_end, then=b"".join(parts))
                found = [gap for gap in read.stretch.gaps if gap not in whole.stretch.gaps]
                assert not found, f"bit {bit} of batch {number}"
                assert read.records == whole.records, f"bit {bit} of batch {number}"
    again = b"".join([parts[0], struct.pack(">Q", FIRST + 20) + parts[1][8:], *parts[2:]])
    with pytest.raises(SourceError, match=rf"offsets {FIRST + 9} to .*corrupt .*its offsets do not fit into the log"):
        Reader(replace(flow, passes_over_losses=False), again, [], fetches=SIGHTINGS, stable_end=end)


@pytest.mark.parametrize("count", [3, 12])
def test_a_batch_with_an_epoch_behind_that_of_the_leader_is_fetched_again(flow: Flow, count: int) -> None:
    """Else the source would seem truncated at the next start: its leader has no such epoch."""
    dice = random.Random(5)
    parts = [encoded(records_of(dice, FIRST + at, 1, is_plain=True), LZ4, epoch=3) for at in range(count)]
    log = b"".join([*parts[:-1], parts[-1][:12] + struct.pack(">i", 3 ^ 1 << dice.randrange(2, 31)) + parts[-1][16:]])
    read = Reader(flow, log, [], fetches=2, then=b"".join(parts), stable_end=FIRST + count, leader_epoch=3)
    assert (read.stretch.leader_epoch, read.stretch.upstream_next) == (3, FIRST + count)


@pytest.mark.parametrize("count", [3, 12])
def test_records_whose_epoch_is_wrong_on_the_disk_are_no_loss(flow: Flow, count: int) -> None:
    """Their CRC is right, and every consumer reads them: as after a cluster was restored from the disks of another."""
    dice = random.Random(5)
    epochs = [3, *[7] * (count - 1)]
    log = b"".join(
        encoded(records_of(dice, FIRST + at, 1, is_plain=True), LZ4, epoch=epoch) for at, epoch in enumerate(epochs)
    )
    read = Reader(flow, log, [], fetches=2, stable_end=FIRST + count, leader_epoch=3)
    assert (read.records, read.stretch.gaps) == (Reader(flow, log, []).records, [])
    assert read.stretch.leader_epoch == -1, "the next start asks for no epoch that the leader does not know"


@pytest.mark.parametrize("count", [1, 6])
def test_nothing_behind_the_end_of_a_plan_is_taken_passed_or_lost_whatever_it_looks_like(
    flow: Flow, count: int
) -> None:
    """A batch that a line has damaged there is no hole, in a compacted log or not."""
    dice = random.Random(5)
    parts = [encoded(records_of(dice, FIRST + at, 1, is_plain=True), LZ4, epoch=3) for at in range(2 * count + 1)]
    before = sum(map(len, parts[:count]))
    options = {"end": FIRST + count, "stable_end": FIRST + len(parts)}
    whole = Reader(flow, b"".join(parts), [], **options)
    assert whole.stretch.upstream_next == FIRST + count
    for at in range(before, before + len(parts[count])):
        log = bytearray(b"".join(parts))
        log[at] ^= 1 << dice.randrange(8)
        read = Reader(flow, bytes(log), [], **options)
        assert (read.accounted, read.records) == (whole.accounted, whole.records), at - before
        assert read.intake.problem is None, "it is looked at"


def test_each_small_batch_of_a_run_is_counted_once() -> None:
    """Else the time grows with the square of their number."""
    looks = list[int]()

    class Counted:
        @property
        def records(self) -> int:
            looks.append(1)
            return 1

    batches: Any = iter([Counted() for _ in range(200)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_digests, "_merged", lambda some, records: (len(some), records))
        assert [*merged_as(batches, [150, 50])] == [(150, 150), (50, 50)]
    assert len(looks) == 200


def test_a_batch_that_cannot_be_opened_passes_and_its_neighbours_too(flow: Flow) -> None:
    """The target decides about it, as about any batch that passes unopened."""
    dice = random.Random(1)
    parts = [encoded(records_of(dice, FIRST + at, 1, is_plain=True), LZ4) for at in range(60)]
    broken = FetchedLog(parts[33])[0]
    parts[33] = _with_payload(parts[33], bytes(broken.raw[HEADER_BYTES:])[:-8])
    read = Reader(flow, b"".join(parts), [])
    assert [batch.base_offset for _, batch in read.stretch.waiting] == list(range(FIRST, FIRST + 60))
    assert not read.stretch.gaps


def _with_payload(raw: bytes, payload: bytes) -> bytes:
    changed = bytearray(raw[:HEADER_BYTES] + payload)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)
