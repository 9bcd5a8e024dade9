"""Records of batches that can't pass unopened: reads them from a batch, and packs the ones to keep into a new batch.

A record (magic 2) has length, attributes (one byte), timestamp delta, offset delta, key, value and headers. Numbers are
zigzag varints. Brokers require the offset deltas of a produced batch to count from 0 without a gap (`LogValidator`), so
`pack` writes them anew. The bytes behind the deltas stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c
from kafka.record.util import decode_varint, encode_varint

from mirrorlake.protocol.batches.codecs import (
    CODEC,
    LZ4,
    CorruptBatchError,
    OversizedBatchError,
    compressed,
    decompressed,
    with_right_checksum,
)
from mirrorlake.protocol.batches.record_batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    OLD_HEADER,
    OVERHEAD_BYTES,
    PREFIX,
    TIMESTAMP_TYPE,
    Batch,
    read_log,
)

SMALLEST_RECORD_BYTES = 7  # length, attributes, two deltas, no key, no value, no headers
OLD_HEADER_BYTES = {0: OLD_HEADER.size - 8, 1: OLD_HEADER.size}  # v0 has no timestamp
MOST_BYTES = 256 << 20


def varint(value: int) -> bytes:
    """Encodes a number as a zigzag varint."""
    written = bytearray()
    encode_varint(value, written.append)
    return bytes(written)


NO_KEY = varint(-1)  # the length of a key that is null
SMALL = [varint(value) for value in range(1 << 14)]  # most lengths and deltas


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its offset, its timestamp in ms, and `rest`, the unchanged bytes from its key on."""

    offset: int
    timestamp: int
    rest: bytes

    @property
    def has_key(self) -> bool:
        """True if the record has a key, which may be empty."""
        return self.rest[:1] != NO_KEY


def read_records(batch: Batch, limit_bytes: int = MOST_BYTES) -> Iterator[Record]:
    """Yields the records of a batch of any format, in order.

    With LogAppendTime, records have the broker's timestamp, as consumers see it.

    Args:
        batch: a batch whose CRC is right.
        limit_bytes: the most bytes that the records may have once they are decompressed.

    Raises:
        CorruptBatchError: the batch can't be read.
        OversizedBatchError: it has more than `limit_bytes`.
    """
    try:
        yield from _old_records(batch, limit_bytes) if batch.magic < 2 else _records(batch, limit_bytes)
    except (CorruptBatchError, OversizedBatchError):
        raise
    except (IndexError, ValueError, struct.error) as error:  # a number that goes on behind the end, or too long
        raise CorruptBatchError(f"{type(error).__name__}: {error}") from None


def _records(batch: Batch, limit_bytes: int) -> Iterator[Record]:
    if batch.magic != 2:
        raise CorruptBatchError(f"message format {batch.magic} is unknown")
    payload = (
        decompressed(bytes(batch.raw[HEADER_BYTES:]), batch.attributes & CODEC, limit_bytes) if batch.records else b""
    )
    if not 0 <= batch.records * SMALLEST_RECORD_BYTES <= len(payload):
        raise CorruptBatchError(f"{batch.records} records can't be in {len(payload)} bytes")
    at, last, is_stamped = 0, -1, batch.attributes & TIMESTAMP_TYPE
    for _ in range(batch.records):
        length, start = decode_varint(payload, at)
        timestamp_delta, after = decode_varint(payload, start + 1)
        offset_delta, after = decode_varint(payload, after)
        at = start + length
        if not after <= at <= len(payload):
            raise CorruptBatchError(f"a record ends at byte {at} of {len(payload)}")
        if not last < offset_delta <= batch.last_offset_delta:
            raise CorruptBatchError(f"offset delta {offset_delta} follows {last}, up to {batch.last_offset_delta}")
        last = offset_delta
        yield Record(
            batch.base_offset + offset_delta,
            batch.max_timestamp if is_stamped else batch.base_timestamp + timestamp_delta,
            payload[after:at],
        )
    if at != len(payload):
        raise CorruptBatchError(f"{len(payload) - at} bytes follow the last record")


def _old_records(entry: Batch, limit_bytes: int) -> Iterator[Record]:
    """Yields the records of a log entry of message format v0 or v1 (`AbstractLegacyRecordBatch.java`).

    In a compressed set of v1, offsets are relative, and the entry has the offset of the last record.
    """
    key, value = _old_contents(entry.raw, entry.magic)
    codec = entry.attributes & CODEC
    if not codec:
        yield Record(entry.base_offset, entry.base_timestamp, rest_of(key, value, ()))
        return
    if value is None:
        raise CorruptBatchError("a compressed set has no value")
    if codec == LZ4 and not entry.magic:
        value = with_right_checksum(value)
    found = list(_old_entries(decompressed(value, codec, limit_bytes)))
    if not found:
        raise CorruptBatchError("a compressed set is empty")
    first = entry.base_offset - found[-1][0] if entry.magic else 0
    last = first + found[0][0] - 1
    for offset, raw in found:
        _, _, _, magic, attributes, timestamp = OLD_HEADER.unpack_from(raw) if entry.magic else _v0_header(raw)
        if magic != entry.magic or attributes & CODEC or first + offset <= last:
            raise CorruptBatchError(f"offset {first + offset} in a compressed set follows {last}, of format {magic}")
        last = first + offset
        is_stamped = entry.magic and entry.attributes & TIMESTAMP_TYPE
        yield Record(last, entry.base_timestamp if is_stamped else timestamp, rest_of(*_old_contents(raw, magic), ()))


def _old_entries(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yields offset and bytes of the entries of a decompressed set."""
    at, view = 0, memoryview(data)
    while at < len(data):
        offset, length, magic = PREFIX.unpack_from(data, at)
        stop = at + OVERHEAD_BYTES + length
        if length < OLD_HEADER_BYTES.get(magic, 0) - OVERHEAD_BYTES or stop > len(data):
            raise CorruptBatchError(f"an entry of {length} bytes begins at byte {at} of {len(data)}")
        yield offset, view[at:stop]
        at = stop


def _v0_header(raw: memoryview) -> tuple[int, int, int, int, int, int]:
    offset, length, crc, magic, attributes = struct.unpack_from(">qiIbb", raw)
    return offset, length, crc, magic, attributes, -1


def _old_contents(raw: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    """Returns key and value of an entry."""
    at, found = OLD_HEADER_BYTES[magic], list[bytes | None]()
    for _ in range(2):
        (size,) = struct.unpack_from(">i", raw, at)
        at += 4
        if size < -1 or at + max(size, 0) > len(raw):
            raise CorruptBatchError(f"a key or value of {size} bytes begins at byte {at} of {len(raw)}")
        found.append(None if size < 0 else bytes(raw[at : at + size]))
        at += max(size, 0)
    return found[0], found[1]


def rest_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encodes key, value and headers as they are in a record."""
    parts = [_bytes(key), _bytes(value)]
    encoded = [(name.encode(), content) for name, content in headers]
    parts.append(varint(len(encoded)))
    for name, content in encoded:
        parts += (_bytes(name), _bytes(content))
    return b"".join(parts)


def pack(records: Sequence[Record], codec: int, compress: Callable[[bytes], bytes] | None = None) -> Batch:
    """Packs records in the order of their offsets into one batch without holes, for `Batch.sealed`.

    `pieces` of the batch holds the offsets that the records had, if offsets were missing in between. `compress`
    compresses for the codec, in the place of its usual settings.
    """
    first = records[0]
    packed: list[bytes] = []
    pieces: list[tuple[int, int]] = []
    start, follows = first.offset, first.offset
    newest, size = first.timestamp, len(SMALL)
    for number, record in enumerate(records):
        if record.offset != follows:
            pieces.append((start, follows))
            start = record.offset
        follows = record.offset + 1
        newest = max(newest, record.timestamp)
        delta = record.timestamp - first.timestamp
        head = (
            b"\0"
            + (SMALL[delta] if 0 <= delta < size else varint(delta))
            + (SMALL[number] if number < size else varint(number))
        )
        length = len(head) + len(record.rest)
        packed += (SMALL[length] if length < size else varint(length), head, record.rest)
    pieces.append((start, follows))
    return batch_of(b"".join(packed), codec, (first.timestamp, newest), pieces, compress)


def batch_of(
    records: bytes | bytearray,
    codec: int,
    timestamps: tuple[int, int],
    pieces: Sequence[tuple[int, int]],
    compress: Callable[[bytes], bytes] | None = None,
) -> Batch:
    """Returns the batch of encoded records, for `Batch.sealed`.

    Args:
        records: the records, not compressed.
        codec: the codec of the batch.
        timestamps: the timestamp of the first record, and the largest one.
        pieces: the offsets that the records had, as `[start, end)`.
        compress: compresses for the codec, in the place of its usual settings.
    """
    payload = compress(bytes(records)) if compress else compressed(records, codec)
    count = sum(end - start for start, end in pieces)
    raw = bytearray(HEADER_BYTES + len(payload))
    length, delta = len(raw) - OVERHEAD_BYTES, count - 1
    HEADER.pack_into(raw, 0, pieces[0][0], length, -1, 2, 0, codec, delta, *timestamps, -1, -1, -1, count)
    raw[HEADER_BYTES:] = payload
    struct.pack_into(">I", raw, CRC_FROM - 4, crc32c(memoryview(raw)[CRC_FROM:]))
    batch = next(read_log(raw))
    return batch if len(pieces) == 1 else replace(batch, pieces=tuple(pieces))


def pack_within(records: Sequence[Record], codec: int, limit_bytes: float) -> Iterator[Batch]:
    """Packs records into batches of at most `limit_bytes`; a single record above the limit is a batch of its own."""
    batch = pack(records, codec)
    if len(batch.raw) <= limit_bytes or len(records) == 1:
        yield batch
    else:
        middle = len(records) // 2
        yield from pack_within(records[:middle], codec, limit_bytes)
        yield from pack_within(records[middle:], codec, limit_bytes)


def _bytes(content: bytes | None) -> bytes:
    return b"\1" if content is None else varint(len(content)) + content  # 1 is -1 in zigzag
