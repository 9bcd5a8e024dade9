"""A batch that can't pass unopened is re-encoded; records keep their offsets, timestamps and codec."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from mirrorlake.protocol.batches.codecs import CODEC, CorruptBatchError, OversizedBatchError, compressed
from mirrorlake.protocol.batches.record_batch import HEADER, HEADER_BYTES, Batch, read_log
from mirrorlake.protocol.batches.records import Record, pack, pack_within, read_records, rest_of

CONTENTS = [
    (b"k", b"v" * 200, [("h", b"x"), ("h", None)], 5_000),
    (None, b"", [], 4_000),
    (b"", None, [("é", b"\x00")], 9_000),
    (b"last", b"w" * 70_000, [], 6_000),
]


def made(codec: int, base_offset: int = 77) -> Batch:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for index, (key, value, headers, timestamp) in enumerate(CONTENTS):
        builder.append(index, timestamp, key, value, headers)
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, base_offset)
    return next(read_log(bytes(raw)))


def contents(batch: Batch) -> list[tuple[object, ...]]:
    """Decodes a batch with another decoder."""
    return [
        (record.key, record.value, record.headers, record.timestamp)
        for record in MemoryRecords(bytes(batch.raw)).next_batch()
    ]


def changed(batch: Batch, at: int, form: str, value: int) -> Batch:
    raw = bytearray(batch.raw)
    struct.pack_into(form, raw, at, value)
    return next(read_log(bytes(raw)))


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("left_out", range(4))
def test_what_is_left_of_a_batch_is_as_it_was(codec: int, left_out: int) -> None:
    batch = pack(list(read_records(made(codec)))[left_out:], codec)
    assert (batch.base_offset, batch.end_offset, batch.records, batch.ranges) == (
        77 + left_out,
        81,
        4 - left_out,
        ((77 + left_out, 81),),
    )
    assert batch.attributes & CODEC == codec
    assert batch.crc_is_right
    assert batch.passes_unopened
    assert batch.max_timestamp == 9_000 if left_out < 3 else 6_000
    assert contents(batch) == CONTENTS[left_out:]
    assert [record.offset for record in MemoryRecords(bytes(batch.raw)).next_batch()] == list(range(77 + left_out, 81))


@pytest.mark.parametrize("codec", range(5))
def test_records_are_read_with_their_offsets_and_timestamps(codec: int) -> None:
    assert [(record.offset, record.timestamp) for record in read_records(made(codec))] == [
        (77 + at, content[3]) for at, content in enumerate(CONTENTS)
    ]


def holed(codec: int) -> Batch:
    """Makes a batch of ten as compaction leaves it.

    It has the second, third, sixth and eighth record, and the offsets that the batch stood for.
    """
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset, (key, value, headers, timestamp) in zip((1, 2, 5, 7), CONTENTS, strict=True):
        builder.append(offset, timestamp, key, value, headers)
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, 100)
    return changed(next(read_log(bytes(raw))), 23, ">i", 9)  # the last two are gone as well


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_with_holes_becomes_one_without_that_knows_which_offsets_it_had(codec: int) -> None:
    assert not holed(codec).passes_unopened
    batch = pack(list(read_records(holed(codec))), codec)
    assert (batch.base_offset, batch.end_offset, batch.records) == (101, 108, 4)
    assert batch.ranges == ((101, 103), (105, 106), (107, 108))
    assert batch.crc_is_right
    assert batch.passes_unopened
    assert contents(batch) == CONTENTS


def test_records_that_the_broker_has_stamped_get_its_time() -> None:
    stamped = changed(made(0), 21, ">h", 0x08)
    assert not stamped.passes_unopened
    batch = pack(list(read_records(stamped)), 0)
    assert batch.passes_unopened
    assert {record.timestamp for record in MemoryRecords(bytes(batch.raw)).next_batch()} == {9_000}


def test_a_delete_horizon_is_not_passed_on() -> None:
    marked = changed(made(0), 21, ">h", 0x40)
    assert not marked.passes_unopened
    assert pack(list(read_records(marked)), 0).passes_unopened


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_entries_of_old_message_formats_are_read(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    old = [(b"k", b"v" * 300, 5_000), (None, b"", 6_000), (b"", None, 7_000)]
    for offset, (key, value, timestamp) in enumerate(old):
        builder.append(offset, timestamp if magic else None, key, value)
    entries = list(read_log(bytes(builder.build())))
    assert len(entries) == (1 if codec else 3)
    assert all(
        entry.crc_is_right and entry.magic == magic and not entry.passes_unopened and not entry.is_control
        for entry in entries
    )
    assert entries[-1].end_offset == 3 if not codec else True
    records = [record for entry in entries for record in read_records(entry)]
    assert [record.timestamp for record in records] == ([5_000, 6_000, 7_000] if magic else [-1, -1, -1])
    assert [(key, value, headers) for key, value, headers, _ in contents(pack(records, codec))] == [
        (key, value, []) for key, value, _ in old
    ]
    broken = bytearray(entries[0].raw)
    broken[-1] ^= 1
    assert not next(read_log(bytes(broken))).crc_is_right


def test_what_is_too_large_is_split_and_a_record_that_is_too_large_alone_stays_alone() -> None:
    dice = random.Random(1)
    records = [
        Record(offset, 1_000 + offset, rest_of(None, dice.randbytes(5_000 if offset == 13 else 300), []))
        for offset in range(40)
    ]
    batches = list(pack_within(records, 0, 2_000))
    assert [batch.ranges for batch in batches if len(batch.raw) > 2_000] == [((13, 14),)]
    assert all(batch.crc_is_right and batch.passes_unopened for batch in batches)
    assert [offset for batch in batches for start, end in batch.ranges for offset in range(start, end)] == list(
        range(40)
    )
    assert len(list(pack_within(records, 0, float("inf")))) == 1


def test_large_lengths_deltas_and_negative_timestamps_are_packed_right() -> None:
    values = [(0, b"a"), (-1, b"b" * 20_000), (1 << 45, None), (5, b"c")]
    batch = pack(
        [Record(at, timestamp, rest_of(b"", value, [("h", b"")])) for at, (timestamp, value) in enumerate(values)], 0
    )
    assert contents(batch) == [(b"", value, [("h", b"")], timestamp) for timestamp, value in values]


def of_payload(payload: bytes, records: int, codec: int = 0, magic: int = 2) -> Batch:
    """Returns a batch with the given bytes as its records."""
    packed = compressed(payload, codec) if codec < 5 else payload
    length = HEADER_BYTES - 12 + len(packed)
    header = HEADER.pack(0, length, -1, magic, 0, codec, records - 1, 0, 0, -1, -1, -1, records)
    return next(read_log(header + packed))


ONE = b"\x0c\0\0\0\1\1\0"  # length 6, attributes, deltas 0 and 0, no key, no value, no headers
SECOND = b"\x0c\0\0\2\1\1\0"  # the same with offset delta 1


def test_the_smallest_records_are_read() -> None:
    assert [record.offset for record in read_records(of_payload(ONE + SECOND, 2))] == [0, 1]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (of_payload(ONE, -1), "-1 records can't be in"),
        (of_payload(ONE, 2), "2 records can't be in 7 bytes"),
        (of_payload(ONE, 1 << 30), "1073741824 records can't be in 7 bytes"),
        (of_payload(ONE + SECOND, 1), "7 bytes follow the last record"),
        (of_payload(ONE + ONE, 2), "offset delta 0 follows 0"),
        (of_payload(SECOND, 1), "offset delta 1 follows -1, up to 0"),
        (of_payload(b"\1" + ONE[1:], 1), "a record ends at byte"),  # length -1
        (of_payload(b"\x0e" + ONE[1:], 1), "a record ends at byte 8 of 7"),
        (of_payload(b"\x02" + ONE[1:], 1), "a record ends at byte 2 of 7"),
        (of_payload(b"\xff" * 7, 1), "IndexError|a record ends"),
        (of_payload(b"\xff" * 40, 1), "Out of int64 range"),
        (of_payload(b"", 1), "1 records can't be in 0 bytes"),
        (of_payload(ONE, 1, codec=6), "codec 6 is unknown"),
        (of_payload(ONE, 1, magic=3), "message format 3 is unknown"),
    ],
)
def test_a_batch_that_cannot_be_right_is_corrupt_and_does_not_pass_unopened_unless_its_header_is_right(
    batch: Batch, why: str
) -> None:
    with pytest.raises(CorruptBatchError, match=why):
        list(read_records(batch))
    if batch.attributes & CODEC > 4 or batch.magic > 2:
        assert not batch.passes_unopened


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_is_opened_only_up_to_the_limit(codec: int) -> None:
    batch = made(codec)
    size = len(made(0).raw) - HEADER_BYTES
    assert len(list(read_records(batch, size))) == 4
    with pytest.raises(OversizedBatchError):
        list(read_records(batch, size - 1))


@pytest.mark.parametrize("at", range(26, 60))
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_to_an_entry_of_an_old_format_is_an_error_or_harmless_and_never_endless(magic: int, at: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, 1, 1 << 20)
    for offset in range(3):
        builder.append(offset, 5_000 if magic else None, b"k", b"v" * 30)
    inner = bytearray(builder.build())
    inner[min(at, len(inner) - 1)] ^= 0xFF
    entry = next(read_log(bytes(inner)))
    with contextlib.suppress(CorruptBatchError):
        assert len(list(read_records(entry))) <= 3
