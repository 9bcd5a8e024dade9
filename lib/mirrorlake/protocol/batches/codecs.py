"""Compression codecs of record batches. What is decompressed has a limit, because a batch of 10 kB may become a GB.

Sources: `CompressionType.java`; for snappy, the framing of xerial's `SnappyOutputStream`; for lz4 in message format v0,
the wrong header checksum of KAFKA-3160.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable

import lz4.frame
import snappy
import xxhash
import zstandard
from kafka.codec import snappy_encode

CODEC = 0x07
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

XERIAL = b"\x82SNAPPY\0"
XERIAL_HEADER_BYTES = 16
GZIP_LEVEL = 6  # Kafka's own; 9 takes three times the CPU for a hundredth of the bytes
GZIP_FORMAT = 31  # for zlib: a gzip header, and the largest window
LZ4_CONTENT_SIZE = 0x08
ZSTD_STEP_BYTES = 256  # one byte may become 64 KiB
ZSTD_GUESS = 16  # the ratio up to which a batch is decompressed in one go
ZSTD_BEST, ZSTD_BEST_BYTES, ZSTD_GOOD = 19, 16 << 10, 9  # levels, and the bytes up to which the first one is quick
STARVED = ("Allocation error", "ERROR_allocation_failed", "Error -4 ")  # of zstd, lz4 and zlib
LZ4_MOST = 255  # one byte becomes no more than that
LZ4_SMALL_BYTES = 64 << 10  # a frame for more has larger blocks, which compress faster and better


class CorruptBatchError(ValueError):
    """Raised when the contents of a batch can't be read although its CRC is right."""


class OversizedBatchError(ValueError):
    """Raised when a batch has more bytes than allowed once it is decompressed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"it has more than {limit_bytes:,} bytes once it is decompressed")


def decompressed(payload: bytes, codec: int, limit_bytes: int) -> bytes:
    """Decompresses the records of a batch.

    Raises:
        CorruptBatchError: the codec is unknown, or the bytes are invalid.
        OversizedBatchError: there are more than `limit_bytes`.
    """
    decompress = DECOMPRESS.get(codec)
    if decompress is None:
        raise CorruptBatchError(f"compression codec {codec} is unknown")
    try:
        found = decompress(payload, limit_bytes)
    except FAILURES as error:
        raise _failure(error) from None
    if len(found) > limit_bytes:
        raise OversizedBatchError(limit_bytes)
    return found


def decompressed_together(
    payloads: Iterable[tuple[int, memoryview]], limit_bytes: int, enough_bytes: int
) -> list[bytes]:
    """Decompresses the records of many small batches, with contexts that are kept; ends early at `enough_bytes`.

    Of a zstd payload that consists of several frames, which producers don't make, only the first one may be returned.

    Args:
        payloads: codec and records of each batch.
        limit_bytes: the most bytes that one of them may become.
        enough_bytes: the bytes after which no further one is decompressed.

    Raises:
        CorruptBatchError: the bytes of a batch are invalid.
        OversizedBatchError: a batch has more than `limit_bytes`.
    """
    openers = dict[int, Callable[[memoryview], bytes]]()
    found, size = list[bytes](), 0
    try:
        for codec, payload in payloads:
            if codec == NONE:
                one = bytes(payload)
            else:
                if codec not in openers:
                    openers[codec] = _opener(codec, limit_bytes)
                one = openers[codec](payload)
            if len(one) > limit_bytes:
                raise OversizedBatchError(limit_bytes)
            found.append(one)
            size += len(one)
            if size >= enough_bytes:
                break
    except FAILURES as error:
        raise _failure(error) from None
    return found


def _failure(error: Exception) -> CorruptBatchError | MemoryError:
    """Returns what has failed: codecs raise the same kind of error for a lack of memory as for invalid bytes."""
    if any(words in str(error) for words in STARVED):
        return MemoryError(str(error))
    return CorruptBatchError(f"{type(error).__name__}: {error}")


def _opener(codec: int, limit_bytes: int) -> Callable[[memoryview], bytes]:
    """Returns a function that decompresses one small payload after the other, with its context kept."""
    if codec == LZ4:
        return _lz4_opener(limit_bytes)
    if codec == ZSTD:
        return _zstd_opener(limit_bytes)
    return lambda payload: DECOMPRESS[codec](bytes(payload), limit_bytes)


def compressed(payload: bytes | bytearray, codec: int) -> bytes | bytearray:
    """Compresses the records of a batch."""
    match codec:
        case 0:
            return payload
        case 1:
            return gzip.compress(payload, GZIP_LEVEL, mtime=0)
        case 2:
            return bytes(snappy_encode(payload))
        case 3:  # brokers refuse blocks that depend on each other
            is_small = len(payload) <= LZ4_SMALL_BYTES
            block_size = lz4.frame.BLOCKSIZE_MAX64KB if is_small else lz4.frame.BLOCKSIZE_MAX256KB
            return bytes(lz4.frame.compress(payload, block_size=block_size, block_linked=False))
        case 4:
            return zstandard.ZstdCompressor().compress(payload)
    raise CorruptBatchError(f"compression codec {codec} is unknown")


def compressed_well(payload: bytes | bytearray) -> bytes:
    """Compresses by zstd what is written once and kept for ever: a little better, for a little more CPU."""
    level = ZSTD_BEST if len(payload) <= ZSTD_BEST_BYTES else ZSTD_GOOD
    return zstandard.ZstdCompressor(level=level).compress(payload)


def with_right_checksum(payload: bytes) -> bytes:
    """Returns an lz4 frame of message format v0 with the header checksum that the specification asks for."""
    if len(payload) <= 7:
        raise CorruptBatchError("an lz4 frame ends in its header")
    header_bytes = 15 if payload[4] & LZ4_CONTENT_SIZE else 7
    checksum = xxhash.xxh32(payload[4 : header_bytes - 1]).digest()[-2:-1]
    return payload[: header_bytes - 1] + checksum + payload[header_bytes:]


def _same(payload: bytes, _: int) -> bytes:
    return payload


def _lz4_opener(limit_bytes: int) -> Callable[[memoryview], bytes]:
    context, chunk = lz4.frame.create_decompression_context(), lz4.frame.decompress_chunk
    most_bytes = limit_bytes // LZ4_MOST  # which never become more than the limit

    def opened(payload: memoryview) -> bytes:
        if len(payload) > most_bytes:
            return _unlz4(payload, limit_bytes)
        found, _, is_whole = chunk(context, payload)
        if not is_whole:
            raise EOFError("the frame ends early")
        return found  # type: ignore[no-any-return]  # lz4 has no types

    return opened


def _zstd_opener(limit_bytes: int) -> Callable[[memoryview], bytes]:
    decompressor = zstandard.ZstdDecompressor()

    def opened(payload: memoryview) -> bytes:
        guess = min(limit_bytes, ZSTD_GUESS * len(payload))
        try:
            if zstandard.frame_content_size(payload) <= guess:
                return decompressor.decompress(payload, guess)
        except zstandard.ZstdError:
            pass  # a higher ratio
        return _unzstd(payload, limit_bytes)

    return opened


def _gunzip(payload: bytes, limit_bytes: int) -> bytes:
    found = bytearray()
    while payload and len(found) <= limit_bytes:
        member = zlib.decompressobj(GZIP_FORMAT)
        found += member.decompress(payload, limit_bytes + 1 - len(found))
        if not member.eof and len(found) <= limit_bytes:
            raise EOFError("the stream ends early")
        payload = member.unused_data.lstrip(b"\0")
    return bytes(found)


def _unsnap(payload: bytes, limit_bytes: int) -> bytes:
    if not payload.startswith(XERIAL):
        return _unsnap_block(payload, limit_bytes, limit_bytes)
    found, at = bytearray(), XERIAL_HEADER_BYTES
    while at < len(payload):
        (size,) = struct.unpack_from(">i", payload, at)
        at += 4
        if not 0 < size <= len(payload) - at:
            raise CorruptBatchError(f"a block of {size} bytes begins at byte {at} of {len(payload)}")
        found += _unsnap_block(payload[at : at + size], limit_bytes - len(found), limit_bytes)
        at += size
    return bytes(found)


def _unsnap_block(block: bytes, room_bytes: int, limit_bytes: int) -> bytes:
    """Decompresses a block, which begins with its decompressed size as a varint, if there is room for it."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > room_bytes:
        raise OversizedBatchError(limit_bytes)
    return bytes(snappy.uncompress(block))


def _unlz4(payload: bytes | memoryview, limit_bytes: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    found = bytes(frame.decompress(payload, max_length=limit_bytes + 1))
    if not frame.eof and len(found) <= limit_bytes:
        raise EOFError("the frame ends early")
    return found


def _unzstd(payload: bytes | memoryview, limit_bytes: int) -> bytes:
    payload, found = bytes(payload), bytearray()
    while payload and len(found) <= limit_bytes:
        frame, at = zstandard.ZstdDecompressor().decompressobj(), 0
        while not frame.eof and at < len(payload) and len(found) <= limit_bytes:
            found += frame.decompress(payload[at : at + ZSTD_STEP_BYTES])
            at += ZSTD_STEP_BYTES
        if not frame.eof and len(found) <= limit_bytes:
            raise EOFError("the frame ends early")
        payload = frame.unused_data + payload[at:]
    return bytes(found)


FAILURES = (zlib.error, RuntimeError, zstandard.ZstdError, snappy.UncompressError, struct.error, EOFError)
DECOMPRESS = {NONE: _same, GZIP: _gunzip, SNAPPY: _unsnap, LZ4: _unlz4, ZSTD: _unzstd}
