"""Records of batches that can't pass unopened: reads them from a batch, and packs the ones to keep into a new batch.

A record (magic 2) has length, attributes (one byte), timestamp delta, offset delta, key, value and headers. Numbers are
zigzag varints. Brokers require the offset deltas of a produced batch to count from 0 without a gap (`LogValidator`), so
`pack` writes them anew. The bytes behind the deltas stay as they are.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import lz4.frame
import zstandard
from crc32c import crc32c
from kafka.codec import snappy_decode, snappy_encode
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.util import decode_varint, encode_varint

from mirrorlake.protocol.record_batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE,
    Batch,
    read_log,
)

CODEC = 0x07
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def varint(value: int) -> bytes:
    """Encodes a number as a zigzag varint."""
    written = bytearray()
    encode_varint(value, written.append)
    return bytes(written)


SMALL = [varint(value) for value in range(1 << 14)]  # most lengths and deltas


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its offset, its timestamp in ms, and `rest`, the unchanged bytes from its key on."""

    offset: int
    timestamp: int
    rest: bytes


def read_records(batch: Batch) -> Iterator[Record]:
    """Yields the records of a batch of any format, in order.

    With LogAppendTime, records have the broker's timestamp, as consumers see it.

    Raises:
        ValueError: the batch can't be read although its CRC is correct. Codecs may raise other errors.
    """
    if batch.magic < 2:
        for old in LegacyRecordBatch(bytes(batch.raw), batch.magic):
            yield Record(old.offset, -1 if old.timestamp is None else old.timestamp, rest_of(old.key, old.value, ()))
        return
    payload = _decompressed(bytes(batch.raw[HEADER_BYTES:]), batch.attributes & CODEC) if batch.records else b""
    at, is_stamped = 0, batch.attributes & TIMESTAMP_TYPE
    for _ in range(batch.records):
        length, start = decode_varint(payload, at)
        timestamp_delta, after = decode_varint(payload, start + 1)
        offset_delta, after = decode_varint(payload, after)
        at = start + length
        if at > len(payload):
            raise ValueError(f"a record ends at byte {at} of {len(payload)}")
        yield Record(
            batch.base_offset + offset_delta,
            batch.max_timestamp if is_stamped else batch.base_timestamp + timestamp_delta,
            payload[after:at],
        )


def rest_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encodes key, value and headers as they are in a record."""
    parts = [_bytes(key), _bytes(value)]
    encoded = [(name.encode(), content) for name, content in headers]
    parts.append(varint(len(encoded)))
    for name, content in encoded:
        parts += (_bytes(name), _bytes(content))
    return b"".join(parts)


def pack(records: Sequence[Record], codec: int) -> Batch:
    """Packs records in the order of their offsets into one batch without holes, for `Batch.sealed`.

    `pieces` of the batch holds the offsets that the records had, if offsets were missing in between.
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
    payload = _compressed(b"".join(packed), codec)
    count = len(records)
    length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    raw = bytearray(
        HEADER.pack(first.offset, length, -1, 2, 0, codec, count - 1, first.timestamp, newest, -1, -1, -1, count)
        + payload
    )
    struct.pack_into(">I", raw, CRC_FROM - 4, crc32c(raw[CRC_FROM:]))
    batch = next(read_log(bytes(raw)))
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


def _decompressed(payload: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.decompress(payload)
    if codec == SNAPPY:
        return bytes(snappy_decode(payload))
    if codec == LZ4:
        return bytes(lz4.frame.decompress(payload))
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(payload), read_across_frames=True).readall()
    return payload


def _compressed(payload: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.compress(payload)
    if codec == SNAPPY:
        return bytes(snappy_encode(payload))
    if codec == LZ4:
        return bytes(lz4.frame.compress(payload, block_linked=False))  # brokers refuse blocks that depend on each other
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(payload)
    return payload
