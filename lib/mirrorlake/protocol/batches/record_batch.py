"""Record batches (message format v2) as bytes: reads a fetched log, verifies a batch, and seals it for our producer.

Only the header changes. Keys, values, headers, timestamps, order and compression are in the bytes from 61 on, which
stay unopened. The layout is that of `DefaultRecordBatch.java` (KIP-98). `ProduceRequest.validateRecords` and
`LogValidator` define the batches that a broker rejects.

======  ======================  ==================================================
offset  field                   in pass-through
======  ======================  ==================================================
0       base offset, int64      0; the target assigns it
8       batch length, int32     kept
12      leader epoch, int32     -1; not covered by the CRC
16      magic, int8             must be 2
17      CRC-32C, uint32         verified; that of the changed header and the same rest
21      attributes, int16       transactional bit set, everything else kept
23      last offset delta       kept; must be record count - 1
27, 35  base, max timestamp     kept
43      producer id, epoch      ours
53      base sequence           ours
57      record count            kept
61      records                 kept
======  ======================  ==================================================

"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from crc32c import crc32c

from mirrorlake.protocol.batches.codecs import CODEC, CODECS
from mirrorlake.protocol.batches.crc import behind

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
PREFIX = struct.Struct(">qi4xb")  # base offset, length, magic: the same in every format
LENGTH, MAGIC_AT = struct.Struct(">8xi"), 16  # the same two of them
OLD_HEADER = struct.Struct(
    ">qiIbbq"
)  # message formats v0 and v1: offset, length, CRC, magic, attributes; then v1 has a timestamp
OVERHEAD_BYTES = 12  # base offset and length, which are not part of the length
BEFORE_CRC, CRC, ATTRIBUTES, PRODUCER, IDENTITY = (
    struct.Struct(fields) for fields in (">qiib", ">I", ">h", ">qhi", ">iIi")
)
CRC_AT, CRC_FROM, PRODUCER_FROM = 17, 21, 43
STAMPS = slice(23, 43)  # last offset delta, base and max timestamp: the same on both sides, like the records
CONTENT_FROM = 57  # record count and records
OLD_CRC_FROM = 16
LARGE_BYTES = 64 << 10  # to read fewer bytes twice takes less time than `behind`
LEAST_BYTES = {0: OLD_HEADER.size, 1: OLD_HEADER.size + 8, 2: HEADER_BYTES}  # v0 has no timestamp; both have two sizes

TIMESTAMP_TYPE = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
SEQUENCES = 1 << 31

ABORT_MARKER = 0


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch for the target: a header of its own, and the records where the source's response has them."""

    header: bytearray
    records: memoryview

    def __len__(self) -> int:
        return len(self.header) + len(self.records)

    def __bytes__(self) -> bytes:
        return bytes(self.header) + self.records


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a fetched log. `raw` holds its bytes as the source sent them, as a view of the response.

    For the message formats v0 and v1, an instance stands for one log entry. Such an entry is one record, or a
    compressed set with the offset of its last record. The number of its records and the first offset are known
    only after it is opened.

    `is_whole` is False if the length of the batch can't be right; it is not covered by the CRC. `raw` then has all that
    follows in the response.

    `pieces` is set if the batch was re-encoded from records with missing offsets in between. It holds the upstream
    offsets of the records, as `[start, end)`.
    """

    raw: memoryview
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    records: int
    pieces: tuple[tuple[int, int], ...] = ()
    is_whole: bool = True

    @property
    def end_offset(self) -> int:
        """Returns the offset after the last one of this batch, even if compaction has removed that record."""
        return self.pieces[-1][1] if self.pieces else self.base_offset + self.last_offset_delta + 1

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Returns the upstream offsets of the records, for a batch that was re-encoded or that passes unopened."""
        return self.pieces or ((self.base_offset, self.base_offset + self.records),)

    @property
    def first_timestamp(self) -> int:
        """Returns the timestamp of the first record as consumers see it: the broker's own, if it has stamped them."""
        return self.max_timestamp if self.attributes & TIMESTAMP_TYPE else self.base_timestamp

    @property
    def is_control(self) -> bool:
        """Returns True for a control batch."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Returns True for a batch of a transactional producer."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_abort_marker(self) -> bool:
        """Returns True for the control batch that ends an aborted transaction (its key is version, type).

        Compaction may have removed the control record; the result is False then.
        """
        if self.magic != 2 or not self.is_control or not self.records or not self.is_whole:
            return False
        # A control record: length, attributes, timestamp delta, offset delta, key length (one byte each), then the key.
        _, kind = struct.unpack_from(">hh", self.raw, HEADER_BYTES + _varint_bytes(self.raw, HEADER_BYTES, 5, skip=1))
        return bool(kind == ABORT_MARKER)

    @property
    def crc_is_right(self) -> bool:
        """Returns True if the batch is whole and its CRC is correct."""
        return self.is_whole and self.crc == (
            crc32c(self.raw[CRC_FROM:]) if self.magic == 2 else zlib.crc32(self.raw[OLD_CRC_FROM:])
        )

    @property
    def passes_unopened(self) -> bool:
        """Returns False if the records must be re-encoded.

        The reasons are old message formats, LogAppendTime, a delete horizon, and holes that compaction has left.
        """
        return (
            self.magic == 2
            and not self.attributes & (TIMESTAMP_TYPE | DELETE_HORIZON)
            and self.last_offset_delta + 1 == self.records
            and self.attributes & CODEC in CODECS.values()
        )

    def sealed(self, producer_id: int, producer_epoch: int, base_sequence: int) -> Sealed:
        """Returns the batch for the target, in an open transaction of the given producer; the records are not copied.

        The CRC must have been verified. Of a large batch, the new one is made from it, so what changes the records in
        memory meanwhile is noticed by the target.
        """
        header = bytearray(self.raw[:HEADER_BYTES])
        BEFORE_CRC.pack_into(header, 0, 0, len(self.raw) - OVERHEAD_BYTES, -1, 2)
        ATTRIBUTES.pack_into(header, CRC_FROM, self.attributes | TRANSACTIONAL)
        PRODUCER.pack_into(header, PRODUCER_FROM, producer_id, producer_epoch, base_sequence)
        CRC.pack_into(header, CRC_AT, self._crc_with(memoryview(header)))
        return Sealed(header, self.raw[HEADER_BYTES:])

    def _crc_with(self, header: memoryview) -> int:
        """Returns the CRC of the same records behind another header."""
        if len(self.raw) < LARGE_BYTES:
            return crc32c(self.raw[HEADER_BYTES:], crc32c(header[CRC_FROM:]))
        change = crc32c(self.raw[CRC_FROM:CONTENT_FROM]) ^ crc32c(header[CRC_FROM:CONTENT_FROM])
        return self.crc ^ behind(change, len(self.raw) - CONTENT_FROM)

    def extend_digest(self, digest: int) -> int:
        """Extends a CRC-32C over the content of batches by this batch; 0 stands for no earlier batch.

        It covers record count, timestamps and records. The batch on the target therefore has the same digest.
        """
        return crc32c(self.raw[CONTENT_FROM:], crc32c(self.raw[STAMPS], digest))

    def extend_digest_by_crc(self, digest: int) -> int:
        """Extends a digest like `extend_digest`, for a batch whose CRC was verified.

        A large batch is not read once more. A verification must not use it: it compares bytes, not what a header says
        of them.
        """
        if len(self.raw) < LARGE_BYTES:
            return self.extend_digest(digest)
        change = crc32c(self.raw[CRC_FROM:CONTENT_FROM]) ^ crc32c(self.raw[STAMPS], digest)
        return self.crc ^ behind(change, len(self.raw) - CONTENT_FROM)

    def count_into(self, tally: int) -> int:
        """Extends a CRC-32C over the sequence of batches by this batch; 0 stands for no earlier batch.

        It covers sizes, record counts and the batches' own CRCs, which were verified.
        """
        return crc32c(IDENTITY.pack(len(self.raw), self.crc, self.records), tally)


class FetchedLog:
    """The batches of a fetched log, without a last one that the fetch size has cut off.

    After a batch whose length is wrong (`Batch.is_whole`), nothing more can be read. The first batch is never cut off
    (KIP-74), so its length is wrong if it ends behind the response.

    Attributes:
        view: the bytes of the log.
        bounds: where the batches begin, and where the last one ends. A batch whose length is wrong ends with the log.
        whole: the number of batches before the one whose length is wrong.
        stable_end: the last stable offset, before which all of the log lies; -1 if it is unknown.
        leader_epoch: the epoch of the leader, which no batch is behind; -1 if it is unknown.
        believed_epoch: an epoch behind that one, which a batch has though it came a second time; -1 for none.
        passed: the number of batches at its beginning that another response had.
    """

    def __init__(self, data: bytes | bytearray | memoryview, stable_end: int = -1, leader_epoch: int = -1) -> None:
        self.view, self.stable_end, self.leader_epoch = memoryview(data), stable_end, leader_epoch
        self.believed_epoch, self.passed = -1, 0
        bounds, at, end, is_broken = [0], 0, len(data), False
        last, length_at = end - PREFIX.size, LENGTH.unpack_from
        while at <= last and not is_broken:
            stop = at + OVERHEAD_BYTES + length_at(data, at)[0]
            if stop > end or stop < at + HEADER_BYTES:  # cut off, wrong, or of an old format
                least_bytes = LEAST_BYTES.get(data[at + MAGIC_AT], HEADER_BYTES)
                is_broken = stop < at + least_bytes or (stop > end and not at)
                if stop > end and not is_broken:
                    break
            at = end if is_broken else stop
            bounds.append(at)
        self.bounds, self.whole = bounds, len(bounds) - 1 - is_broken

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Batch:
        raw = self.view[self.bounds[number] : self.bounds[number + 1]]
        offset, _, magic = PREFIX.unpack_from(raw)
        if number >= self.whole:
            return _broken(raw, offset)
        return _old_entry(raw, offset) if magic < 2 else _batch(raw)

    def fits(self, batch: Batch, number: int, offset: int) -> bool:
        """Returns False if a batch can't have its offsets, of which the CRC does not cover the first one.

        Offsets grow from batch to batch, up to the last stable offset. That one may have been read just before the log,
        so a batch that does not fit may do so when it is fetched again.

        Args:
            batch: the batch.
            number: its number.
            offset: the offset that is to be read next: that of the Fetch request, or the end of the batch before.
        """
        start, end = batch.base_offset, batch.end_offset
        if 0 <= self.stable_end < end:
            return False
        if start == offset:
            return True
        if offset < end and start < offset:  # only the batch that has the offset of the request may begin before it
            return not number or self[number - 1].end_offset < offset
        following = self[number + 1] if number + 1 < len(self) else None
        if following is None:
            return True
        if end <= offset:
            return following.magic < 2 or following.base_offset <= offset
        return not offset <= following.base_offset < end

    def is_ahead(self, batch: Batch) -> bool:
        """Returns True if the leader can't have given a batch its leader epoch, which the CRC does not cover."""
        return 0 <= self.leader_epoch < batch.leader_epoch

    def __iter__(self) -> Iterator[Batch]:
        return (self[number] for number in range(len(self)))


def read_log(data: bytes | bytearray | memoryview) -> Iterator[Batch]:
    """Yields the batches of a fetched log; see `FetchedLog`."""
    return iter(FetchedLog(data))


def _broken(raw: memoryview, offset: int) -> Batch:
    """Returns a batch of which only the first offset is known, and the last one if the rest of the header is there."""
    found = (
        _batch(raw) if len(raw) >= HEADER_BYTES else _old_entry(memoryview(bytes(raw).ljust(OLD_HEADER.size)), offset)
    )
    return replace(found, is_whole=False)


def _batch(raw: memoryview) -> Batch:
    base, _, epoch, magic, crc, attributes, delta, first, last, producer, _, _, records = HEADER.unpack_from(raw)
    return Batch(
        raw=raw,
        base_offset=base,
        leader_epoch=epoch,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=delta,
        base_timestamp=first,
        max_timestamp=last,
        producer_id=producer,
        records=records,
    )


def _old_entry(raw: memoryview, offset: int) -> Batch:
    _, _, crc, magic, attributes, timestamp = OLD_HEADER.unpack_from(raw)
    timestamp = timestamp if magic else -1
    return Batch(
        raw=raw,
        base_offset=offset,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        records=1,
    )


class AbortedTransactions:
    """The data of aborted transactions within one Fetch response, recognised in log order.

    The rule is that of the Java consumer (`CompletedFetch`). It drops every transactional batch of a listed producer,
    from its first offset to its abort marker.
    """

    def __init__(self, listed: Iterable[tuple[int, int]]) -> None:
        """Takes `listed`: (producer id, first offset) as in the Fetch response."""
        listed = list(listed)
        self.producers = {producer_id for producer_id, _ in listed}
        self._waiting = sorted(listed, key=lambda entry: -entry[1])
        self._aborting: set[int] = set()

    def drops(self, batch: Batch) -> bool:
        """Returns True if `batch`, the next one of the log, holds data of an aborted transaction.

        Data of other than the listed `producers` may be left out.
        """
        while self._waiting and self._waiting[-1][1] < batch.end_offset:
            self._aborting.add(self._waiting.pop()[0])
        if batch.is_abort_marker:
            self._aborting.discard(batch.producer_id)
        return batch.is_transactional and not batch.is_control and batch.producer_id in self._aborting


def next_sequence(sequence: int, records: int) -> int:
    """Returns the base sequence after `records` more records; sequences wrap after 2^31 - 1."""
    return (sequence + records) % SEQUENCES


def _varint_bytes(data: memoryview, start: int, count: int, skip: int) -> int:
    """Returns the size in bytes of `count` fields from `start` on.

    All fields are varints, except the one at index `skip`, which is a plain byte.
    """
    at = start
    for index in range(count):
        if index != skip:
            while data[at] & 0x80:
                at += 1
        at += 1
    return at - start
