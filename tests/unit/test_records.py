"""A batch that can't be passed on as it is becomes others that can: records keep their offsets, timestamps and codec."""

from __future__ import annotations

import struct

import pytest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.batch import Batch, read_log
from mirrorlake.records import CODEC, dense_parts, read_records

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


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("left_out", range(4))
def test_what_is_left_of_a_batch_is_as_it_was(codec: int, left_out: int) -> None:
    (batch,) = dense_parts(made(codec), 77 + left_out)
    assert (batch.base_offset, batch.end_offset, batch.records) == (77 + left_out, 81, 4 - left_out)
    assert batch.attributes & CODEC == codec
    assert batch.crc_is_right
    assert batch.why_not_unopened is None
    assert batch.max_timestamp == 9_000 if left_out < 3 else 6_000
    read = [(record.key, record.value, record.headers, record.timestamp) for record in MemoryRecords(bytes(batch.raw)).next_batch()]
    assert read == CONTENTS[left_out:]
    assert [record.offset for record in MemoryRecords(bytes(batch.raw)).next_batch()] == list(range(77 + left_out, 81))


@pytest.mark.parametrize("codec", range(5))
def test_records_are_read_with_their_offsets_and_timestamps(codec: int) -> None:
    assert [(record.offset, record.timestamp) for record in read_records(made(codec))] == [(77 + at, content[3]) for at, content in enumerate(CONTENTS)]


def changed(batch: Batch, at: int, form: str, value: int) -> Batch:
    raw = bytearray(batch.raw)
    struct.pack_into(form, raw, at, value)
    return next(read_log(bytes(raw)))


def holed(codec: int) -> Batch:
    """What compaction leaves of a batch of eight: its second, third, sixth and eighth record, and the offsets it stood for."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset, (key, value, headers, timestamp) in zip((1, 2, 5, 7), CONTENTS, strict=True):
        builder.append(offset, timestamp, key, value, headers)
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, 100)
    return changed(next(read_log(bytes(raw))), 23, ">i", 9)  # the last two are gone as well


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_with_holes_becomes_batches_without(codec: int) -> None:
    parts = dense_parts(holed(codec), 100)
    assert [(part.base_offset, part.end_offset) for part in parts] == [(101, 103), (105, 106), (107, 108)]
    assert all(part.crc_is_right and part.why_not_unopened is None for part in parts)
    read = [(record.key, record.value, record.headers, record.timestamp) for part in parts for record in MemoryRecords(bytes(part.raw)).next_batch()]
    assert read == CONTENTS
    assert [part.base_offset for part in dense_parts(holed(codec), 102)] == [102, 105, 107]
    assert dense_parts(holed(codec), 108) == []


def test_records_that_the_broker_has_stamped_get_its_time() -> None:
    stamped = changed(made(0), 21, ">h", 0x08)
    assert stamped.why_not_unopened is not None
    (batch,) = dense_parts(stamped, 77)
    assert batch.why_not_unopened is None
    assert {record.timestamp for record in MemoryRecords(bytes(batch.raw)).next_batch()} == {9_000}


def test_a_delete_horizon_is_not_passed_on() -> None:
    (batch,) = dense_parts(changed(made(0), 21, ">h", 0x40), 77)
    assert batch.why_not_unopened is None
    assert [record.timestamp for record in MemoryRecords(bytes(batch.raw)).next_batch()] == [content[3] for content in CONTENTS]
