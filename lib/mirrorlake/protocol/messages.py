"""Reads and writes whole records: key, value and headers, for topics of mirrorlake's own and for comparing single
records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from mirrorlake.protocol.record_batch import Batch
from mirrorlake.protocol.transaction import Producer

GZIP = 1


class Message(NamedTuple):
    """One record as a consumer sees it; `timestamp` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_messages(batch: Batch) -> Iterator[Message]:
    """Decodes the records of one batch, in order."""
    for record in MemoryRecords(bytes(batch.raw)).next_batch():
        yield Message(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def encode_message(
    producer: Producer, base_sequence: int, timestamp: int, key: bytes, value: bytes, limit_bytes: int
) -> bytes:
    """Encodes one record as a gzip batch of a producer with an open transaction.

    Args:
        producer: whose transaction it belongs to.
        base_sequence: its number among the producer's records of the partition.
        timestamp: in ms.
        key: of the record.
        value: of the record.
        limit_bytes: the most that the batch may have.

    Returns:
        The batch, ready to be produced.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=GZIP,
        is_transactional=True,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=base_sequence,
        batch_size=limit_bytes,
    )
    builder.append(0, timestamp, key, value, [])
    return bytes(builder.build())
