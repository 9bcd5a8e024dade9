"""The records inside a batch, for the few batches that can't be passed on as they are: taken apart, some left out, the others packed again.

A record (magic 2): length, attributes (one byte), timestamp delta, offset delta, then key, value and headers; numbers are zigzag varints. Brokers want the offset
deltas of a produced batch to count from 0 without a gap (`LogValidator`), so they are written anew; everything behind them stays as it is.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.frame
import zstandard
from crc32c import crc32c
from kafka.codec import snappy_decode, snappy_encode
from kafka.record.util import decode_varint, encode_varint

from mirrorlake.batch import CRC_FROM, HEADER, HEADER_BYTES, OVERHEAD_BYTES, Batch, read_log

CODEC = 0x07
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its offset and timestamp, and `rest`, the bytes from its key on, as they are."""

    offset: int
    timestamp: int
    attributes: int
    rest: bytes


def read_records(batch: Batch) -> Iterator[Record]:
    """The records of a batch, in order."""
    payload = _decompressed(bytes(batch.raw[HEADER_BYTES:]), batch.attributes & CODEC)
    at = 0
    for _ in range(batch.records):
        length, start = decode_varint(payload, at)
        timestamp_delta, after = decode_varint(payload, start + 1)
        offset_delta, after = decode_varint(payload, after)
        at = start + length
        yield Record(batch.base_offset + offset_delta, batch.base_timestamp + timestamp_delta, payload[start], payload[after:at])


def from_offset(batch: Batch, offset: int) -> Batch:
    """A batch without the records before `offset`, of which at least one other must be left, in the codec it had.

    Its records keep offset, timestamp, key, value and headers; there must be no gaps between them.
    """
    kept = [record for record in read_records(batch) if record.offset >= offset]
    first, newest = kept[0], max(record.timestamp for record in kept)
    packed = bytearray()
    for number, record in enumerate(kept):
        body = bytearray([record.attributes])
        encode_varint(record.timestamp - first.timestamp, body.append)
        encode_varint(number, body.append)
        body += record.rest
        encode_varint(len(body), packed.append)
        packed += body
    payload = _compressed(bytes(packed), batch.attributes & CODEC)
    _, _, epoch, magic, _, attributes, _, _, _, producer_id, producer_epoch, sequence, _ = HEADER.unpack_from(batch.raw)
    length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    header = HEADER.pack(first.offset, length, epoch, magic, 0, attributes, len(kept) - 1, first.timestamp, newest, producer_id, producer_epoch, sequence, len(kept))
    raw = bytearray(header + payload)
    struct.pack_into(">I", raw, CRC_FROM - 4, crc32c(bytes(raw[CRC_FROM:])))
    return next(read_log(bytes(raw)))


def _decompressed(payload: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.decompress(payload)
    if codec == SNAPPY:
        return snappy_decode(payload)
    if codec == LZ4:
        return lz4.frame.decompress(payload)
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(payload), read_across_frames=True).readall()
    return payload


def _compressed(payload: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.compress(payload)
    if codec == SNAPPY:
        return snappy_encode(payload)
    if codec == LZ4:
        return lz4.frame.compress(payload, block_linked=False)  # brokers refuse blocks that depend on each other
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(payload)
    return payload
