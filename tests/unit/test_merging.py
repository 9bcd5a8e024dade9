"""Small batches that are merged as columns become what `read_records` and `pack` make of them, byte for byte."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from mirrorlake.jobs.mirror.copy import small_batches
from mirrorlake.jobs.mirror.copy.small_batches import SmallBatches
from mirrorlake.protocol.batches.codecs import LZ4, NONE, ZSTD, CorruptBatchError, OversizedBatchError
from mirrorlake.protocol.batches.merging import Joined, headers, join, producer_ids
from mirrorlake.protocol.batches.record_batch import (
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    FetchedLog,
)
from mirrorlake.protocol.batches.records import MOST_BYTES, Record, pack, pack_within, read_records, rest_of, varint

NOW = 1_790_000_000_000
# Around the widths of varints, of lengths and deltas.
SIZES = (0, 1, *range(40, 64), 500, 500, 8_170, 8_185, 8_192)
STEPS = (0, 0, 0, 1, 63, 64, -64, -65, 8_191, 8_192, 1 << 20, -(1 << 27), 1 << 33, 1 << 40)
SOME = (None, b"", b"k", b"key" * 30)


def records_of(dice: random.Random, offset: int, count: int, *, is_plain: bool) -> list[Record]:
    """Makes records from `offset` on: what most producers send, or widths of all kinds."""
    stamp = NOW
    found = []
    for number in range(count):
        stamp += dice.choice((0, 1)) if is_plain else dice.choice(STEPS)
        value = (
            None
            if dice.random() < 0.1
            else dice.randbytes(50 if is_plain else dice.choice(SIZES) // 4) * (2 if is_plain else 4)
        )
        names = [(f"h{number}", dice.choice(SOME)) for _ in range(0 if is_plain else dice.randrange(3))]
        found.append(Record(offset + number, stamp, rest_of(dice.choice(SOME), value, names)))
    return found


def encoded(records: Sequence[Record], codec: int, attributes: int = 0, **changes: int) -> bytes:
    """Encodes records as a producer's batch with its own base timestamp, and a right CRC."""
    batch = pack(records, codec)
    fields = dict(
        zip(
            (
                "base",
                "length",
                "epoch",
                "magic",
                "crc",
                "attributes",
                "last",
                "first",
                "most",
                "id",
                "era",
                "at",
                "count",
            ),
            HEADER.unpack_from(batch.raw),
            strict=True,
        )
    )
    fields |= {"attributes": codec | attributes, **changes}
    raw = bytearray(HEADER.pack(*fields.values()) + batch.raw[HEADER_BYTES:])
    struct.pack_into(">I", raw, CRC_FROM - 4, crc32c(raw[CRC_FROM:]))
    return bytes(raw)


def random_log(dice: random.Random, codec: int, batches: int, *, is_plain: bool) -> FetchedLog:
    """Makes a log in which some offsets are missing between the batches."""
    raw, offset, most = b"", dice.choice((0, 77, (1 << 31) - 5, 1 << 60)), dice.choice((1, 1, 3, 25))
    for _ in range(batches):
        offset += 0 if is_plain else dice.choice((0, 0, 0, 1, 5))
        count = dice.randint(1, most)
        attributes = 0 if is_plain else dice.choice((0, TRANSACTIONAL, TIMESTAMP_TYPE))
        raw += encoded(records_of(dice, offset, count, is_plain=is_plain), codec, attributes)
        offset += count
    return FetchedLog(raw)


def joined(log: FetchedLog, enough_bytes: int = MOST_BYTES, limit_bytes: int = MOST_BYTES) -> Joined:
    rows = headers(log)
    assert rows is not None
    return join(log, rows, range(len(log)), limit_bytes, enough_bytes)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("seed", range(8))
def test_merged_batches_are_what_opening_and_packing_them_one_by_one_makes(codec: int, seed: int) -> None:
    dice = random.Random(100 * codec + seed)
    log = random_log(dice, codec, dice.choice((2, 40)), is_plain=seed % 2 == 0)
    records = [record for batch in log for record in read_records(batch)]
    found, limit = joined(log), dice.choice((float("inf"), 3_000, 70))
    assert found.batches == len(log)
    assert found.offsets.tolist() == [record.offset for record in records]
    assert found.timestamps.tolist() == [record.timestamp for record in records]
    made, wanted = list(found.packed(limit)), list(pack_within(records, codec, limit))
    assert [(bytes(batch.raw), batch.pieces) for batch in made] == [
        (bytes(batch.raw), batch.pieces) for batch in wanted
    ]
    assert all(batch.crc_is_right and batch.passes_unopened for batch in made)


def test_records_with_longer_heads_than_needed_are_shortened() -> None:
    """A record at the end of a batch, or long after the first one, has larger deltas than it needs in front."""
    first = [*records_of(random.Random(1), 0, 99, is_plain=True), Record(99, NOW + (1 << 40), rest_of(b"", b"", ()))]
    second = [Record(100, NOW + (1 << 40), rest_of(None, None, ()))]
    log = FetchedLog(encoded(second, LZ4, base=0) + encoded(first, LZ4, base=1))
    records = [record for batch in log for record in read_records(batch)]
    (made,) = joined(log).packed(float("inf"))
    assert bytes(made.raw) == bytes(pack(records, LZ4).raw)


def test_no_more_batches_are_opened_than_are_enough() -> None:
    log = random_log(random.Random(1), LZ4, 60, is_plain=True)
    size = sum(len(next(iter(read_records(batch))).rest) for batch in list(log)[:10])
    assert 8 <= joined(log, enough_bytes=size).batches <= 10 or len(joined(log, enough_bytes=size).offsets) > 60


@pytest.mark.parametrize("frames", [1, 2])
def test_zstd_frames_that_do_not_name_their_size_are_opened(frames: int) -> None:
    plain = encoded(records_of(random.Random(1), 0, 30, is_plain=True), NONE)
    payload, half = plain[HEADER_BYTES:], len(plain) // 2
    parts = [payload] if frames == 1 else [payload[:half], payload[half:]]
    packed = b"".join(zstandard.ZstdCompressor(write_content_size=False).compress(part) for part in parts)
    raw = bytearray(plain[:HEADER_BYTES] + packed)
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    struct.pack_into(">h", raw, 21, ZSTD)
    log = FetchedLog(bytes(raw))
    if frames == 1:
        assert len(joined(log).offsets) == 30
    else:  # they are left to the way of single batches
        with pytest.raises(CorruptBatchError):
            joined(log)


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_is_merged_only_up_to_the_limit(codec: int) -> None:
    records = records_of(random.Random(1), 0, 10, is_plain=True)
    log = FetchedLog(encoded(records[:1], codec) + encoded(records[1:], codec, base=1))
    size = len(pack(records[1:], NONE).raw) - HEADER_BYTES
    assert joined(log, limit_bytes=size).batches == 2
    with pytest.raises(OversizedBatchError):
        joined(log, limit_bytes=size - 1)


def test_a_bomb_is_not_opened_beyond_the_limit() -> None:
    record = Record(0, NOW, rest_of(None, bytes(8 << 20), ()))
    for codec in range(1, 5):
        with pytest.raises(OversizedBatchError):
            joined(FetchedLog(encoded([record], codec)), limit_bytes=1 << 20)


def damaged(payload: bytes, count: int, **changes: int) -> FetchedLog:
    """Returns a log of two batches of which the second one has these bytes as its records."""
    good = encoded([Record(0, NOW, rest_of(None, b"v", ()))], NONE)
    fields = {"first": 0, "last": count - 1, **changes}
    header = HEADER.pack(
        1, HEADER_BYTES - 12 + len(payload), -1, 2, 0, 0, fields["last"], fields["first"], 0, -1, -1, -1, count
    )
    return FetchedLog(good + header + payload)


ONE = b"\x0c\0\0\0\1\1\0"  # length 6, attributes, deltas 0 and 0, no key, no value, no headers
SECOND = b"\x0c\0\0\2\1\1\0"


@pytest.mark.parametrize(
    "log",
    [
        damaged(ONE, -1),
        damaged(ONE, 0),
        damaged(ONE, 2),
        damaged(ONE, 1 << 30),
        damaged(ONE + SECOND, 1),
        damaged(ONE + ONE, 2),
        damaged(SECOND, 1),
        damaged(b"\1" + ONE[1:], 1),
        damaged(b"\x0e" + ONE[1:], 1),
        damaged(b"\x02" + ONE[1:], 1),
        damaged(b"\xff" * 30, 1),
        damaged(b"", 1),
        damaged(b"".join(b"\x0c\0\0" + varint(at) + b"\1\1\0" for at in range(39)) + ONE, 40),
        damaged(b"".join(b"\x0c\0\0" + varint(at) + b"\1\1\0" for at in range(39)) + b"\x0d" + ONE[1:], 40),
        damaged(b"".join(b"\x0c\0\0" + varint(at) + b"\1\1\0" for at in range(39)) + b"\xff" * 40, 40),
        damaged(ONE, 1, first=1 << 62),
    ],
)
def test_what_cannot_be_merged_is_refused(log: FetchedLog) -> None:
    with pytest.raises(CorruptBatchError):
        joined(log)


@pytest.mark.parametrize("codec", range(1, 5))
def test_bytes_that_cannot_be_decompressed_are_refused(codec: int) -> None:
    good = encoded(records_of(random.Random(1), 0, 3, is_plain=True), codec)
    for payload in (b"", b"\xff" * 40, good[HEADER_BYTES:-12]):
        raw = bytearray(good[:HEADER_BYTES] + payload)
        struct.pack_into(">i", raw, 8, len(raw) - 12)
        with pytest.raises((CorruptBatchError, OversizedBatchError)):
            joined(FetchedLog(bytes(raw)))


# -- the decision -----------------------------------------------------------------------------------


def groups(*batches: bytes) -> list[range]:
    """Returns the groups of a log as they are merged, each up to the first wrong CRC."""
    log = FetchedLog(b"".join(batches))
    small = SmallBatches.of(log, 512 << 10, ())
    found, at = [], 0
    while at < len(log):
        numbers = small.next_ones(at, small.first_offset(at), 1 << 62, 1 << 30) if small else range(at, at)
        found += [numbers] if numbers else []
        at = max(at + 1, numbers.stop)
    return found


def small(offset: int, codec: int = LZ4, attributes: int = 0, count: int = 1, **changes: int) -> bytes:
    return encoded(records_of(random.Random(offset), offset, count, is_plain=True), codec, attributes, **changes)


def marker(offset: int) -> bytes:
    return encoded([Record(offset, NOW, b"\x08\0\0\0\1\x0c\0\0\0\0\0\0\0")], NONE, CONTROL | TRANSACTIONAL)


def test_many_small_batches_are_a_group_and_few_or_large_ones_pass() -> None:
    assert groups(*(small(offset) for offset in range(40))) == [range(40)]
    assert groups(*(small(offset) for offset in range(4))) == []
    assert groups(*(small(500 * number, count=500) for number in range(8))) == []


def test_a_group_ends_at_large_batches_holes_and_other_codecs() -> None:
    ones = [small(offset) for offset in range(20)]
    assert groups(*ones, small(20, count=2_000), *(small(offset) for offset in range(2_020, 2_040))) == [
        range(20),
        range(21, 41),
    ]
    assert groups(*ones, *(small(offset) for offset in range(21, 41))) == [range(20), range(20, 40)]
    assert groups(*ones, *(small(offset, ZSTD) for offset in range(20, 40))) == [range(20), range(20, 40)]
    assert groups(*ones, *(small(offset, NONE) for offset in range(20, 40))) == [range(40)]
    holed = small(20, count=3, last=9)
    assert groups(*ones, holed, *(small(offset) for offset in range(30, 50))) == [range(20), range(21, 41)]
    horizon = small(20, attributes=0x40)
    assert groups(*ones, horizon, *(small(offset) for offset in range(21, 41))) == [range(20), range(21, 41)]


def test_a_group_ends_at_a_marker() -> None:
    """So each merged batch is of one run, whose digest is known."""
    ones = [small(offset) for offset in range(20)]
    assert groups(*ones, marker(20), *(small(offset) for offset in range(21, 41))) == [range(20), range(21, 41)]
    assert groups(*(one(offset) for offset in range(0, 60, 2) for one in (small, lambda at: marker(at + 1)))) == []


def test_transactions_of_producers_that_are_looked_at_one_by_one_are_in_no_group() -> None:
    log = FetchedLog(b"".join(small(offset, attributes=TRANSACTIONAL, id=offset // 20) for offset in range(60)))
    found = SmallBatches.of(log, 512 << 10, {1, 7})
    assert found is not None
    assert [found.next_ones(at, at, 1_000, 1 << 30) for at in (0, 20, 40)] == [range(20), range(20, 20), range(40, 60)]
    plain = FetchedLog(b"".join(small(offset, id=1) for offset in range(20)))
    assert SmallBatches.of(plain, 512 << 10, {1}), "without a transaction nothing is aborted"


def test_a_group_ends_before_a_batch_with_a_wrong_crc() -> None:
    log = [bytearray(small(offset)) for offset in range(40)]
    log[17][-1] ^= 1
    assert groups(*map(bytes, log)) == [range(17), range(18, 40)]


def test_a_group_ends_at_the_planned_end_and_at_the_size() -> None:
    log = FetchedLog(b"".join(small(offset, count=3) for offset in range(0, 120, 3)))
    found = SmallBatches.of(log, 512 << 10, ())
    assert found is not None
    assert found.next_ones(0, 0, 30, 1 << 30) == range(10)
    assert found.next_ones(0, 0, 31, 1 << 30) == range(11)
    assert found.next_ones(0, 0, 1_000, log.bounds[7]) == range(7)
    assert found.next_ones(0, 0, 1_000, 1) == range(1)
    assert found.next_ones(4, 12, 1_000, 1 << 30) == range(4, 40)
    assert not found.next_ones(4, 13, 1_000, 1 << 30)  # within the batch
    found.leave(range(4, 6))
    assert not found.next_ones(4, 12, 1_000, 1 << 30)
    assert found.next_ones(6, 18, 1_000, 1 << 30) == range(6, 40)


def test_leader_epochs_are_told_with_their_first_offsets() -> None:
    log = FetchedLog(b"".join(small(offset, epoch=3 + offset // 15) for offset in range(40)))
    found = SmallBatches.of(log, 512 << 10, ())
    assert found is not None
    assert found.epochs(range(40)) == [(3, 0), (4, 15), (5, 30)]
    assert found.epochs(range(16, 20)) == [(4, 16)]


def test_batches_that_must_be_opened_are_worth_merging_if_they_are_larger() -> None:
    count = int(small_batches.PASSED_US / small_batches.RECORD_US) + 50
    assert groups(*(small(offset, count=count) for offset in range(0, 8 * count, count))) == []
    stamped = [small(offset, attributes=TIMESTAMP_TYPE, count=count) for offset in range(0, 8 * count, count)]
    assert groups(*stamped) == [range(8)]


def test_old_formats_and_broken_lengths_are_left_alone() -> None:
    log = [small(offset) for offset in range(40)]
    old = bytearray(log[3])
    old[16] = 1
    assert groups(*log[:3], bytes(old), *log[4:]) == []
    broken = bytearray(log[39])
    struct.pack_into(">i", broken, 8, 5)
    assert groups(*log[:39], bytes(broken)) == []
    assert groups() == []


def test_producers_of_transactions_are_found_in_the_headers() -> None:
    log = FetchedLog(
        small(0, attributes=TRANSACTIONAL, id=7) + small(1, id=8) + small(2, attributes=TRANSACTIONAL, id=9)
    )
    assert producer_ids(log) == {7, 9}
    assert np.issubdtype(headers(log)["producer_id"].dtype, np.integer)
