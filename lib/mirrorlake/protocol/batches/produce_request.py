"""Produce requests that are sent from where their records are.

kafka-python encodes a request into a buffer and copies the result out of it: two copies of each mirrored byte. Here its
encoder makes the request without topics. The topics follow as pieces, of which records are views. The layout is that of
`ProduceRequest.json`, in the flexible versions (9 and up, which brokers have had since Kafka 2.8).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import Sealed

SIZE, INDEX = struct.Struct(">i"), struct.Struct(">i")
NO_TOPICS, NO_TAGS = b"\1\0", b"\0"  # an empty array, and no tagged fields behind it
COPIED_BYTES = 16 << 10  # to copy fewer costs less than a piece of its own

Piece = bytes | bytearray | memoryview


class ProduceInPieces:
    """A Produce request in place of kafka-python's.

    Args:
        request: kafka-python's request, of version 9 or later and without topics.
        batches: one batch for each partition.
    """

    def __init__(self, request: Any, batches: Mapping[PartitionKey, bytes | Sealed]) -> None:
        self._request, self._batches = request, batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def encode(self, *, header: bool, framed: bool) -> list[Piece]:
        """Returns the pieces of the request with its header and its size; see `frames.py`."""
        assert header
        assert framed
        without_topics = self._request.encode(header=True)
        assert without_topics.endswith(NO_TOPICS)
        pieces, small = list[Piece](), bytearray(SIZE.size) + without_topics[: -len(NO_TOPICS)]
        by_topic: dict[str, dict[int, bytes | Sealed]] = {}
        for (topic, index), batch in self._batches.items():
            by_topic.setdefault(topic, {})[index] = batch
        small += _unsigned(len(by_topic) + 1)
        for topic, of_topic in by_topic.items():
            name = topic.encode()
            small += _unsigned(len(name) + 1) + name + _unsigned(len(of_topic) + 1)
            for index, batch in of_topic.items():
                small += INDEX.pack(index) + _unsigned(len(batch) + 1)
                start, rest = (batch.header, batch.records) if isinstance(batch, Sealed) else (b"", memoryview(batch))
                small += start
                if len(rest) < COPIED_BYTES:
                    small += rest
                else:
                    pieces += (small, rest)
                    small = bytearray()
                small += NO_TAGS
            small += NO_TAGS
        pieces.append(small + NO_TAGS)
        first = pieces[0]
        SIZE.pack_into(first, 0, sum(map(len, pieces)) - SIZE.size)
        return pieces


def _unsigned(value: int) -> bytes:
    found: bytes = UnsignedVarInt32.encode(value)
    return found
