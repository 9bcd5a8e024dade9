"""Requests and answers as Kafka frames them: a length, a header, and a body that only `answers.py` opens."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl  # noqa: F401 (each registers its responses)
from kafka.protocol.api_header import ResponseClassRegistry

LENGTH = struct.Struct(">i")
HEADER = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
API_VERSIONS = 18
PLACEHOLDER_VERSION = 0


@dataclass(frozen=True)
class Request:
    """A request of a client.

    Attributes:
        key: Kafka's number of the kind of request.
        version: the version of the request and of its answer.
        correlation_id: the number that its answer has, too.
        client_id: the client's name.
        frame: all bytes, with the length in front.
    """

    key: int
    version: int
    correlation_id: int
    client_id: str
    frame: bytes

    @staticmethod
    def of(frame: bytes) -> Request:
        """Reads the header of a request."""
        key, version, correlation_id, length = HEADER.unpack_from(frame, LENGTH.size)
        start = LENGTH.size + HEADER.size
        return Request(key, version, correlation_id, frame[start : start + max(length, 0)].decode(), frame)

    @property
    def response_class(self) -> Any:
        """Returns kafka-python's class of the answers, None if it has none."""
        known = ResponseClassRegistry._response_class_registry.get(self.key)
        return None if known is None else known[None]  # without the version that was used last

    @property
    def api(self) -> str:
        """Returns the name of the kind of request, such as `EndTxn`."""
        known = self.response_class
        return f"Api{self.key}" if known is None else str(known.name).removesuffix("Response")

    @property
    def placeholder(self) -> bytes:
        """Returns a harmless request with the same correlation id.

        Its answer takes the place of this one's answer, so that the order of the connection stays.
        """
        body = HEADER.pack(API_VERSIONS, PLACEHOLDER_VERSION, self.correlation_id, -1)
        return LENGTH.pack(len(body)) + body


def correlation_id(answer: bytes) -> int:
    """Returns the correlation id of a framed answer."""
    return int(LENGTH.unpack_from(answer, LENGTH.size)[0])


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Reads one frame with its length; returns nothing at the end of the stream."""
    try:
        head = await reader.readexactly(LENGTH.size)
        return head + await reader.readexactly(LENGTH.unpack(head)[0])
    except asyncio.IncompleteReadError:
        return b""
