"""Reads and writes whole records: key, value and headers.

mirrorlake's own topics and the comparison of single records need them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafka.record import MemoryRecords

from mirrorlake.protocol.batches.codecs import ZSTD, compressed_well
from mirrorlake.protocol.batches.record_batch import Batch
from mirrorlake.protocol.batches.records import Record, pack, rest_of
from mirrorlake.protocol.transaction import Producer


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
        yield Message(
            offset=record.offset,
            timestamp=-1 if record.timestamp is None else record.timestamp,  # format v0 has none
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
        )


def encode_message(producer: Producer, base_sequence: int, timestamp: int, key: bytes, value: bytes) -> bytes:
    """Encodes one record as a zstd batch of a producer with an open transaction.

    Args:
        producer: the producer whose transaction the record belongs to.
        base_sequence: the sequence number of the record among the producer's records of the partition.
        timestamp: the timestamp of the record in ms.
        key: the key of the record.
        value: the value of the record.

    Returns:
        The batch, ready to be produced.
    """
    batch = pack([Record(0, timestamp, rest_of(key, value, ()))], ZSTD, compressed_well)
    return bytes(batch.sealed(producer.producer_id, producer.producer_epoch, base_sequence))
