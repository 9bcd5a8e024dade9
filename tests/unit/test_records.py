"""A batch is cut where a flow begins: what is left keeps its records, offsets, timestamps and codec."""

from __future__ import annotations

import struct

import pytest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.batch import Batch, read_log
from mirrorlake.records import CODEC, from_offset, read_records

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
    batch = from_offset(made(codec), 77 + left_out)
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
