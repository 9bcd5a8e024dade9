"""Codecs: what is compressed comes back, never more than allowed, and invalid bytes are told from a lack of memory."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
import zstandard
from mirrorlake.protocol.batches.codecs import (
    CODECS,
    SNAPPY,
    XERIAL,
    ZSTD,
    CorruptBatchError,
    OversizedBatchError,
    compressed,
    compressed_well,
    decompressed,
)

MIB = 1 << 20
COMPRESSING = {name: code for name, code in CODECS.items() if code}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_what_is_compressed_comes_back_up_to_the_limit(codec: int, size: int) -> None:
    payload = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    packed = compressed(payload, codec)
    assert decompressed(packed, codec, size) == payload
    if codec == ZSTD:
        assert decompressed(compressed_well(payload), codec, size) == payload
    if size:
        with pytest.raises(OversizedBatchError, match=f"more than {size - 1:,} bytes"):
            decompressed(packed, codec, size - 1)


@pytest.mark.parametrize("codec", COMPRESSING.values(), ids=COMPRESSING)
def test_a_small_batch_that_becomes_a_large_one_takes_no_more_memory_than_allowed(codec: int) -> None:
    packed = compressed(bytes(256 * MIB), codec)
    tracemalloc.start()
    try:
        with pytest.raises(OversizedBatchError):
            decompressed(packed, codec, 8 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSING.values(), ids=COMPRESSING)
def test_invalid_bytes_are_a_corrupt_batch(codec: int) -> None:
    dice = random.Random(codec)
    packed = compressed(dice.randbytes(5_000) + b"b" * 5_000, codec)
    corrupt = 0
    for _ in range(300):
        broken = bytearray(packed[: dice.randrange(len(packed))] if dice.random() < 0.5 else packed)
        if broken:
            broken[dice.randrange(min(len(broken), 60))] ^= 1 << dice.randrange(8)
        try:
            decompressed(bytes(broken), codec, MIB)
        except (CorruptBatchError, OversizedBatchError):
            corrupt += 1
    assert corrupt > 100


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"codec {codec} is unknown"):
        decompressed(b"x", codec, MIB)


@pytest.mark.parametrize("size", [-1, 0, 5, 1 << 30])
def test_a_snappy_block_of_an_impossible_size_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"a block of {size} bytes"):
        decompressed(XERIAL + bytes(8) + struct.pack(">i", size) + b"abc", SNAPPY, MIB)


def test_a_lack_of_memory_is_not_a_corrupt_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setitem(decompressed.__globals__["DECOMPRESS"], 1, starved)
    with pytest.raises(MemoryError):
        decompressed(b"x", 1, MIB)


def test_a_codec_that_finds_no_memory_is_not_a_corrupt_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_: object) -> bytes:
        raise zstandard.ZstdError("zstd decompressor error: Allocation error : not enough memory")

    monkeypatch.setitem(decompressed.__globals__["DECOMPRESS"], ZSTD, starved)
    with pytest.raises(MemoryError):
        decompressed(b"x", ZSTD, MIB)
