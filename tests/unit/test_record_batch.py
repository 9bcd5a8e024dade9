"""Record batches as bytes, compared with batches of another encoder."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import pytest
from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.jobs.verification.run_digests import has_digest
from mirrorlake.protocol.batches.crc import behind
from mirrorlake.protocol.batches.record_batch import (
    LARGE_BYTES,
    SEQUENCES,
    AbortedTransactions,
    Batch,
    next_sequence,
    read_log,
)

RECORDS = [(b"k", b"v", [("h", b"x"), ("h", None)]), (None, b"", []), (b"", None, [("é", b"\x00")])]


def encode(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    base_offset: int = 0,
    codec: int = 0,
    producer_id: int = -1,
) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        2, codec, producer_id >= 0, producer_id, 0 if producer_id >= 0 else -1, 0 if producer_id >= 0 else -1, 1 << 20
    )
    for index, (key, value, headers) in enumerate(records):
        builder.append(index, 1_000 + index, key, value, headers)
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, base_offset)
    return raw


def control(base_offset: int, producer_id: int, kind: int) -> bytes:
    raw = encode([(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [])], base_offset, producer_id=producer_id)
    attributes = struct.unpack_from(">h", raw, 21)[0] | 0x20
    struct.pack_into(">h", raw, 21, attributes)
    return bytes(raw)


def decode(raw: bytes) -> list[tuple[object, ...]]:
    return [(record.timestamp, record.key, record.value, record.headers) for record in MemoryRecords(raw).next_batch()]


@pytest.mark.parametrize("codec", [0, 1])
def test_a_sealed_batch_has_our_producer_a_right_crc_and_the_same_records(codec: int) -> None:
    original = bytes(encode(RECORDS, 77, codec))
    (batch,) = read_log(original)
    sealed = bytes(batch.sealed(producer_id=9, producer_epoch=3, base_sequence=40))
    (read,) = read_log(sealed)
    header = MemoryRecords(sealed).next_batch()
    assert header.validate_crc()
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (
        9,
        3,
        40,
        True,
    )
    assert (read.base_offset, read.leader_epoch, read.records) == (0, -1, 3)
    assert decode(sealed) == decode(original)
    assert sealed[57:] == original[57:]
    assert read.extend_digest(0) == batch.extend_digest(0)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 255, 256, 4_095, 70_000, 1 << 20])
def test_the_crc_of_two_pieces_is_made_from_theirs(size: int) -> None:
    dice = random.Random(size)
    first, second = dice.randbytes(36), dice.randbytes(size)
    assert behind(crc32c(first), size) ^ crc32c(second) == crc32c(first + second)
    assert behind(0xFFFFFFFF, size) ^ crc32c(second) == crc32c(second, 0xFFFFFFFF)


@pytest.mark.parametrize("size", [LARGE_BYTES - 200, LARGE_BYTES, 3 * LARGE_BYTES])
def test_the_crc_and_the_digest_of_a_large_batch_are_made_from_its_own_crc(size: int) -> None:
    (batch,) = read_log(bytes(encode([(b"k", random.Random(size).randbytes(size), [])])))
    sealed = bytes(batch.sealed(producer_id=9, producer_epoch=3, base_sequence=40))
    assert MemoryRecords(sealed).next_batch().validate_crc()
    for digest in (0, 1, 0xDEADBEEF):
        assert batch.extend_digest_by_crc(digest) == batch.extend_digest(digest)


def test_what_changes_the_records_of_a_large_batch_in_memory_is_noticed_by_the_target() -> None:
    raw = encode([(None, random.Random(1).randbytes(LARGE_BYTES), [])])
    (batch,) = read_log(raw)
    assert batch.crc_is_right
    raw[-9] ^= 1
    assert not MemoryRecords(bytes(batch.sealed(9, 3, 40))).next_batch().validate_crc()


def test_a_verification_compares_the_bytes_and_not_the_crc_that_a_header_says() -> None:
    raw = encode([(None, random.Random(1).randbytes(LARGE_BYTES), [])])
    (batch,) = read_log(raw)
    log, digest = SimpleNamespace(batches=lambda *_: iter([batch])), batch.extend_digest(0)
    assert has_digest(log, begin=0, start=0, end=1, digest=digest)
    raw[-9] ^= 1
    assert not has_digest(log, begin=0, start=0, end=1, digest=digest)


def test_a_flipped_byte_is_noticed_anywhere_behind_the_crc() -> None:
    original = encode(RECORDS)
    assert next(read_log(bytes(original))).crc_is_right
    for at in range(21, len(original)):
        damaged = bytearray(original)
        damaged[at] ^= 0x40
        assert not next(read_log(bytes(damaged))).crc_is_right, at


def test_the_digest_changes_with_every_byte_that_both_sides_have_in_common() -> None:
    original = encode(RECORDS)
    digest = next(read_log(bytes(original))).extend_digest(0)
    for at in [*range(23, 43), *range(57, len(original))]:
        damaged = bytearray(original)
        damaged[at] ^= 0x40
        assert next(read_log(bytes(damaged))).extend_digest(0) != digest, at


def test_a_batch_that_was_cut_off_is_left_out() -> None:
    first, second = bytes(encode(RECORDS, 0)), bytes(encode(RECORDS, 3))
    log = first + second
    for end in range(len(first), len(log)):
        assert [batch.base_offset for batch in read_log(log[:end])] == [0]
    assert [batch.base_offset for batch in read_log(log)] == [0, 3]


@pytest.mark.parametrize(
    ("length", "at"),
    [(-1, 0), (0, 0), (48, 0), (1 << 30, 0), (-1, 1), (0, 1), (48, 1)],
)
def test_a_length_that_cannot_be_right_is_a_batch_that_is_not_whole_and_the_last_one(length: int, at: int) -> None:
    log = bytearray()
    for number in range(3):
        log += encode(RECORDS, 3 * number)
    size = len(log) // 3
    struct.pack_into(">i", log, at * size + 8, length)
    *healthy, broken = read_log(bytes(log))
    assert [batch.base_offset for batch in healthy] == [3 * number for number in range(at)]
    assert all(batch.crc_is_right for batch in healthy)
    assert (broken.base_offset, broken.end_offset, broken.is_whole, broken.crc_is_right) == (
        3 * at,
        3 * at + 3,
        False,
        False,
    )


def test_a_response_that_ends_within_its_first_header_has_a_batch_that_is_not_whole() -> None:
    (broken,) = read_log(bytes(encode(RECORDS, 7)[:40]))
    assert (broken.base_offset, broken.is_whole) == (7, False)
    assert not list(read_log(b"abc"))


def changed(at: int, form: str, value: int) -> Batch:
    raw = encode(RECORDS)
    struct.pack_into(form, raw, at, value)
    return next(read_log(bytes(raw)))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(changed(16, ">b", 1), id="message format v1"),
        pytest.param(changed(21, ">h", 0x08), id="LogAppendTime"),
        pytest.param(changed(21, ">h", 0x40), id="delete horizon"),
        pytest.param(changed(23, ">i", 9), id="three of ten records"),
    ],
)
def test_what_cannot_pass_unopened_is_known(batch: Batch) -> None:
    assert not batch.passes_unopened


def test_an_ordinary_batch_can_pass() -> None:
    assert next(read_log(bytes(encode(RECORDS)))).passes_unopened


def test_data_of_aborted_transactions_is_dropped_up_to_the_abort_marker_and_no_further() -> None:
    def data(offset: int, producer: int) -> bytes:
        return bytes(encode([(None, b"x", [])], offset, producer_id=producer))

    log = b"".join(
        [
            data(0, 1),
            data(1, 2),
            data(2, 1),
            control(3, 1, 0),
            data(4, 1),
            control(5, 2, 1),
            data(6, 3),
            control(7, 1, 1),
            control(8, 3, 0),
            bytes(encode(RECORDS, 9)),
        ]
    )
    aborted = AbortedTransactions([(3, 6), (1, 0)])
    dropped = [batch.base_offset for batch in read_log(log) if aborted.drops(batch)]
    assert dropped == [0, 2, 6]


def test_markers_are_told_apart() -> None:
    abort, commit = (next(read_log(control(0, 1, kind))) for kind in (0, 1))
    assert (abort.is_control, abort.is_abort_marker, commit.is_control, commit.is_abort_marker) == (
        True,
        True,
        True,
        False,
    )


def test_sequences_wrap() -> None:
    assert next_sequence(SEQUENCES - 2, 5) == 3


def test_a_marker_that_compaction_has_emptied_is_no_marker() -> None:
    raw = bytearray(control(5, 9, 0)[:61])
    struct.pack_into(">i", raw, 8, 61 - 12)
    struct.pack_into(">i", raw, 57, 0)
    (batch,) = read_log(bytes(raw))
    assert batch.is_control
    assert not batch.is_abort_marker
    assert not AbortedTransactions([(9, 0)]).drops(batch)
