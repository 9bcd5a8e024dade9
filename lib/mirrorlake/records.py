"""The records inside a batch, for the few batches that can't be passed on as they are: taken apart, some left out, the others packed again.

A record (magic 2): length, attributes (one byte), timestamp delta, offset delta, then key, value and headers; numbers are zigzag varints. Brokers want the offset
deltas of a produced batch to count from 0 without a gap (`LogValidator`), so they are written anew; everything behind them stays as it is.
"""

from __future__ import annotations

import gzip
import io
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.frame
import zstandard
from crc32c import crc32c
from kafka.codec import snappy_decode, snappy_encode
from kafka.record.util import decode_varint, encode_varint

from mirrorlake.batch import CRC_FROM, DELETE_HORIZON, HEADER, HEADER_BYTES, OVERHEAD_BYTES, TIMESTAMP_TYPE, Batch, read_log

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
    payload = _decompressed(bytes(batch.raw[HEADER_BYTES:]), batch.attributes & CODEC) if batch.records else b""
    at = 0
    for _ in range(batch.records):
        length, start = decode_varint(payload, at)
        timestamp_delta, after = decode_varint(payload, start + 1)
        offset_delta, after = decode_varint(payload, after)
        at = start + length
        timestamp = batch.max_timestamp if batch.attributes & TIMESTAMP_TYPE else batch.base_timestamp + timestamp_delta
        yield Record(batch.base_offset + offset_delta, timestamp, payload[start], payload[after:at])


def dense_parts(batch: Batch, offset: int) -> list[Batch]:
    """The records of a batch from `offset` on, as batches without gaps between offsets, in the codec it had; none if nothing is left.

    Records keep offset, timestamp, key, value and headers. Where the broker has stamped them (LogAppendTime), the timestamp is the one that consumers see: the batch's.
    """
    kept = [record for record in read_records(batch) if record.offset >= offset]
    starts = [at for at, record in enumerate(kept) if at == 0 or record.offset != kept[at - 1].offset + 1]
    return [_packed(batch, kept[start:end]) for start, end in itertools.pairwise([*starts, len(kept)])]


def _packed(batch: Batch, records: list[Record]) -> Batch:
    """Records with consecutive offsets as one batch, otherwise like the one they are from."""
    first, newest = records[0], max(record.timestamp for record in records)
    packed = bytearray()
    for number, record in enumerate(records):
        body = bytearray([record.attributes])
        encode_varint(record.timestamp - first.timestamp, body.append)
        encode_varint(number, body.append)
        body += record.rest
        encode_varint(len(body), packed.append)
        packed += body
    payload = _compressed(bytes(packed), batch.attributes & CODEC)
    _, _, epoch, magic, _, attributes, _, _, _, producer_id, producer_epoch, sequence, _ = HEADER.unpack_from(batch.raw)
    attributes &= ~(TIMESTAMP_TYPE | DELETE_HORIZON)
    length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    header = HEADER.pack(
        first.offset, length, epoch, magic, 0, attributes, len(records) - 1, first.timestamp, newest, producer_id, producer_epoch, sequence, len(records)
    )
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
