"""Merges the records of many small batches into a large one, as columns: thousands of records at once, without an
object for each.

The result is, byte for byte, what `read_records` and `pack` of `records.py` make of the same batches. Those two define
it, and tests compare them. Here numbers are columns of numpy, and the bytes of a record are copied once: room for the
new length and deltas is left in front of each record when they are joined, and is filled in afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat

import numpy as np
from kafka.record.util import decode_varint
from numpy.typing import NDArray

from mirrorlake.protocol.batches.codecs import CODEC, CorruptBatchError, decompressed_together
from mirrorlake.protocol.batches.record_batch import (
    HEADER_BYTES,
    MAGIC_AT,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    Batch,
    FetchedLog,
)
from mirrorlake.protocol.batches.records import SMALLEST_RECORD_BYTES, batch_of

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

HEADERS = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records", ">i4"),
    ]
)
MORE, LOW = 0x80, 0x7F  # of a byte of a varint: set if another one follows; its part of the number
FEW_RECORDS = 5  # in a batch: with more, one step for each of them costs more than one for each record
LONGEST_VARINT_BYTES = 10
FURTHEST_TIMESTAMP = 1 << 61  # so that no difference overflows
PADS = [bytes(size) for size in range(2 * LONGEST_VARINT_BYTES + 6)]


def headers(log: FetchedLog) -> NDArray[np.void] | None:
    """Returns the headers of a log's batches as columns (HEADERS); None if one is of an old format, or not whole."""
    data, starts = np.frombuffer(log.view, np.uint8), np.array(log.bounds[:-1])
    if log.whole < len(log) or not len(log) or (data[starts + MAGIC_AT] != 2).any():
        return None
    rows = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)[starts]
    found: NDArray[np.void] = rows.view(HEADERS)[:, 0]
    return found


def producer_ids(log: FetchedLog) -> set[int]:
    """Returns the producer ids of a log's transactional batches."""
    rows = headers(log)
    if rows is None:
        return {batch.producer_id for batch in log if batch.is_transactional}
    return set(np.unique(rows["producer_id"][(rows["attributes"] & TRANSACTIONAL) != 0]).tolist())


@dataclass(frozen=True)
class Joined:
    """The records of several batches, in order, as columns.

    Attributes:
        codec: the codec of the batches, or of those that are compressed.
        offsets: the offset of each record.
        timestamps: its timestamp in ms, as consumers see it.
    """

    codec: int
    offsets: Numbers
    timestamps: Numbers
    _payloads: list[bytes]  # of the batches, decompressed
    _data: bytes  # all of them
    _starts: Numbers  # of the records
    _rests: Numbers  # of what is behind the deltas
    _ends: Numbers

    @property
    def batches(self) -> int:
        """Returns the number of batches."""
        return len(self._payloads)

    def packed(self, limit_bytes: float) -> Iterator[Batch]:
        """Packs the records into batches of at most `limit_bytes`; a larger record is a batch of its own."""
        return self._packed(0, len(self.offsets), limit_bytes)

    def _packed(self, first: int, end: int, limit_bytes: float) -> Iterator[Batch]:
        batch = self._pack(slice(first, end))
        if len(batch.raw) <= limit_bytes or end - first == 1:
            yield batch
        else:
            middle = first + (end - first) // 2
            yield from self._packed(first, middle, limit_bytes)
            yield from self._packed(middle, end, limit_bytes)

    def _pack(self, some: slice) -> Batch:
        offsets, timestamps = self.offsets[some], self.timestamps[some]
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        firsts, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(offsets)])) - 1
        return batch_of(
            self._written(some),
            self.codec,
            timestamps=(int(timestamps[0]), int(timestamps.max())),
            pieces=[*zip(offsets[firsts].tolist(), (offsets[lasts] + 1).tolist(), strict=True)],
        )

    def _written(self, some: slice) -> bytearray:
        """Returns the records with new lengths and deltas."""
        starts, rests, ends = self._starts[some], self._rests[some], self._ends[some]
        timestamps = self.timestamps[some]
        numbers = np.arange(len(starts))
        deltas, deltas_used = _encoded(timestamps - timestamps[0])
        counts, counts_used = _encoded(numbers)
        lengths = 1 + deltas_used.sum(1) + counts_used.sum(1) + ends - rests
        sizes, sizes_used = _encoded(lengths)
        attributes = np.zeros((len(starts), 1), np.uint8)
        heads = np.hstack((sizes, attributes, deltas, counts))
        used = np.hstack((sizes_used, attributes == 0, deltas_used, counts_used))
        head_bytes = used.sum(1)
        growth = head_bytes - (rests - starts)
        parts = list[bytes]([b""]) * (2 * len(starts))
        parts[::2] = map(PADS.__getitem__, np.maximum(growth, 0).tolist())
        begins = starts - np.minimum(growth, 0)
        parts[1::2] = (
            self._payloads[some]
            if len(self._payloads) == len(self.offsets) and (growth >= 0).all()
            else map(self._data.__getitem__, map(slice, begins.tolist(), ends.tolist()))
        )
        written = bytearray().join(parts)
        before = np.cumsum(ends - rests) - (ends - rests)  # what is not a head, before each record
        np.frombuffer(written, np.uint8)[np.repeat(before, head_bytes) + np.arange(int(head_bytes.sum()))] = heads[used]
        return written


def join(
    log: FetchedLog, rows: NDArray[np.void], numbers: Sequence[int], limit_bytes: int, enough_bytes: int
) -> Joined:
    """Opens batches without holes, in order, until there are `enough_bytes` of records.

    Args:
        log: the log of the batches. Their CRCs must be right.
        rows: the headers of the whole log.
        numbers: the numbers of the batches in the log. Those that are compressed have one codec.
        limit_bytes: the most bytes that the records of one batch may have.
        enough_bytes: the bytes after which no further batch is opened.

    Raises:
        CorruptBatchError: a batch can't be read, or only one by one.
        OversizedBatchError: a batch has more than `limit_bytes`.
    """
    view, bounds, numbers = log.view, log.bounds, list(numbers)
    codecs = rows["attributes"][numbers] & CODEC
    payloads = decompressed_together(
        zip(
            codecs.tolist(),
            (view[bounds[number] + HEADER_BYTES : bounds[number + 1]] for number in numbers),
            strict=True,
        ),
        limit_bytes,
        enough_bytes,
    )
    rows = rows[numbers[: len(payloads)]]
    data = b"".join((*payloads, bytes(LONGEST_VARINT_BYTES)))  # no number goes on behind the end
    array = np.frombuffer(data, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    counts = rows["records"].astype(np.int64)
    starts, bodies, stops = _walked(data, ends, counts)
    time_deltas, at = _decoded(array, bodies + 1)
    offset_deltas, rests = _decoded(array, at)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    _require((rests <= stops).all() and (offset_deltas == within).all())
    is_stamped = (rows["attributes"] & TIMESTAMP_TYPE) != 0
    base = np.where(is_stamped, rows["max_timestamp"], rows["base_timestamp"]).astype(np.int64)
    time_deltas[np.repeat(is_stamped, counts)] = 0
    _require(max(abs(base).max(), abs(time_deltas).max()) < FURTHEST_TIMESTAMP)
    return Joined(
        codec=int(codecs[: len(payloads)].max()),
        offsets=np.repeat(rows["base_offset"].astype(np.int64), counts) + within,
        timestamps=np.repeat(base, counts) + time_deltas,
        _payloads=payloads,
        _data=data,
        _starts=starts,
        _rests=rests,
        _ends=stops,
    )


def _walked(data: bytes, ends: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Finds the records.

    Args:
        data: the records of all batches.
        ends: the end of each batch.
        counts: the number of its records.

    Returns:
        Of each record, where its length begins, where the length ends, and where the record ends.
    """
    at = np.concatenate(([0], ends[:-1]))
    _require((counts > 0).all() and (counts * SMALLEST_RECORD_BYTES <= ends - at).all())
    if int(counts.sum()) > FEW_RECORDS * len(counts):
        return _walked_one_by_one(data, at, ends, counts)
    return _walked_together(np.frombuffer(data, np.uint8), at, ends, counts)


def _walked_together(data: Bytes, at: Numbers, ends: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Finds the first record of each batch, then the second one of each, and so on."""
    firsts, total = np.cumsum(counts) - counts, int(counts.sum())
    starts, bodies, stops = (np.empty(total, np.int64) for _ in range(3))
    numbers = np.arange(len(counts))
    for number in range(int(counts.max())):
        numbers = numbers[counts[numbers] > number]
        here = at[numbers]
        lengths, body = _decoded(data, here)
        stop = body + lengths
        _require((lengths > 0).all() and (stop <= ends[numbers]).all())
        place = firsts[numbers] + number
        starts[place], bodies[place], stops[place] = here, body, stop
        at[numbers] = stop
    _require((at == ends).all())
    return starts, bodies, stops


def _walked_one_by_one(data: bytes, at: Numbers, ends: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Finds one record after the other."""
    starts = list[int]()
    steps, begin = _steps(), starts.append
    try:
        for start, end, count in zip(at.tolist(), ends.tolist(), counts.tolist(), strict=True):
            here = start
            for _ in repeat(None, count):
                begin(here)
                here += steps[data[here] | data[here + 1] << 8] or _long_step(data, here)
            _require(here == end)
    except IndexError:
        raise CorruptBatchError("a record ends behind the last one") from None
    begins = np.array(starts)
    _, bodies = _decoded(np.frombuffer(data, np.uint8), begins)
    return begins, bodies, np.append(begins[1:], ends[-1])


@cache
def _steps() -> list[int]:
    """Returns the size of a record with its length in front, by the first two bytes; 0 if they don't tell it."""
    pairs = np.arange(1 << 16)
    first, second = pairs & 0xFF, pairs >> 8
    is_short = first < MORE
    lengths = np.where(is_short, first >> 1, second << 6 | (first & LOW) >> 1)
    is_known = (is_short | (second < MORE)) & (first & 1 == 0) & (lengths > 0)
    shared = [*range(int(lengths.max()) + 3)]  # each number is one object
    return [*map(shared.__getitem__, np.where(is_known, lengths + 2 - is_short, 0).tolist())]


def _long_step(data: bytes, at: int) -> int:
    length, body = _decoded_one(data, at)
    _require(length > 0)
    return body + length - at


def _decoded(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Decodes a zigzag varint at each of these places; returns the numbers, and where they end."""
    byte = data[at]
    value, after = (byte & LOW).astype(np.uint64), at + 1
    more, shift = np.flatnonzero(byte >= MORE), 7
    while len(more):
        _require(shift < 64)
        byte = data[after[more]]
        value[more] |= (byte & LOW).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more, shift = more[byte >= MORE], shift + 7
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), after


def _decoded_one(data: bytes, at: int) -> tuple[int, int]:
    try:
        found: tuple[int, int] = decode_varint(data, at)
    except ValueError as error:  # too long
        raise CorruptBatchError(str(error)) from None
    return found


def _encoded(numbers: Numbers) -> tuple[Bytes, Booleans]:
    """Encodes numbers as zigzag varints, one in a row; returns the bytes, and which of them are used."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    width = max(1, -(-int(zigzag.max()).bit_length() // 7))
    rest = zigzag[:, None] >> np.arange(0, 7 * width, 7).astype(np.uint64)
    used = rest > 0
    used[:, 0] = True
    found = (rest & np.uint64(LOW)).astype(np.uint8)
    found[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    return found, used


def _require(is_right: object) -> None:
    if not is_right:
        raise CorruptBatchError("the records of small batches are not as their headers say")
