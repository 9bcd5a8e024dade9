"""Response frames with fewer copies, for kafka-python's connections.

kafka-python receives a Fetch response 4 KiB at a time. It joins the pieces, cuts them, puts them into a frame, and
reads them out of it twice: six copies of each mirrored byte. Here the first bytes of a frame go from the socket into a
buffer that is reused. The bulk of a large frame goes directly into the frame, which is then read as a view.

This module is written against kafka-python 3.0.12. It extends that version's connections and parsers. TLS, SASL,
requests and responses remain kafka-python's.
"""

from __future__ import annotations

import ssl
import struct
from functools import partial
from typing import Any

import kafka
import kafka.errors
import numpy as np
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.parser import KafkaProtocol

from mirrorlake.errors import ConfigurationError

WRITTEN_FOR = "3.0.12"
RECEIVE_BYTES = 1 << 20
# A TLS record has at most 16 KiB. With more room than that, no bytes stay in the TLS layer, unseen by the selector.
LEAST_ROOM_BYTES = 32 << 10
LENGTH = struct.Struct(">i")
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


if kafka.__version__ != WRITTEN_FOR:
    raise ConfigurationError(
        f"kafka-python {kafka.__version__} is installed; mirrorlake completes private parts of version {WRITTEN_FOR}. "
        "Install the versions of requirements.txt"
    )


class Frame:
    """The bytes of one response. The socket fills them from the front; then the parser reads them from the front."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8).data  # unlike a bytearray, it isn't zeroed first
        self._at = 0

    @property
    def room(self) -> memoryview:
        """Returns the part that is not filled yet."""
        return self._bytes[self._at :]

    def fill(self, data: memoryview) -> int:
        """Copies as much of `data` as fits; returns the number of bytes copied."""
        count = min(len(data), len(self._bytes) - self._at)
        self._bytes[self._at : self._at + count] = data[:count]
        self._at += count
        return count

    @property
    def is_full(self) -> bool:
        """Returns True if all bytes are filled."""
        return self._at == len(self._bytes)

    def read(self, count: int | None = None) -> memoryview:
        """Returns the next `count` bytes (all remaining ones with None), or fewer at the end."""
        start, self._at = self._at, len(self._bytes) if count is None else min(self._at + count, len(self._bytes))
        return self._bytes[start : self._at]

    def seek(self, at: int) -> None:
        """Moves to a byte of the frame."""
        self._at = at

    def tell(self) -> int:
        """Returns the current byte of the frame."""
        return self._at


class Frames:
    """The splitter of a connection's bytes into responses, in front of the parser that knows the requests."""

    def __init__(self, parser: KafkaProtocol, limit_bytes: int) -> None:
        self._parser, self._limit_bytes = parser, limit_bytes
        self._length = b""
        self._frame: Frame | None = None

    def receive(self, data: memoryview) -> list[tuple[int, Any]]:
        """Takes received bytes; returns (correlation id, response) of each response that is complete.

        Raises:
            kafka.errors.InvalidReceiveError: a length is negative, or larger than allowed.
        """
        responses, at = [], 0
        while at < len(data) or (self._frame is not None and self._frame.is_full):
            if self._frame is None:
                missing = LENGTH.size - len(self._length)
                self._length += data[at : at + missing]
                at += min(missing, len(data) - at)
                if len(self._length) < LENGTH.size:
                    break
                self._frame = self._begin()
            at += self._frame.fill(data[at:])
            if self._frame.is_full:
                frame, self._frame = self._frame, None
                frame.seek(0)
                responses.append(self._parser._process_response(frame))
        return responses

    def receive_from(self, transport: Any, buffer: memoryview) -> tuple[memoryview, Exception | None]:
        """Receives the available bytes of a transport's socket; puts the bulk of a large frame directly into the frame.

        Returns:
            The bytes for `receive`, as a view of the buffer that is valid until the next call; and the
            socket's error, or None.
        """
        count = 0
        while len(buffer) - count >= LEAST_ROOM_BYTES:
            frame = None if count or self._frame is None or self._frame.is_full else self._frame
            try:
                received = transport._sock.recv_into(buffer[count:] if frame is None else frame.room)
            except WOULD_BLOCK:
                break
            except (OSError, AttributeError) as error:  # no socket: it was closed meanwhile
                return buffer[:count], kafka.errors.KafkaConnectionError(str(error))
            if not received:
                return buffer[:count], kafka.errors.KafkaConnectionError("socket disconnected")
            if frame is None:
                count += received
            else:
                frame.seek(frame.tell() + received)
        return buffer[:count], None

    def _begin(self) -> Frame:
        (size,) = LENGTH.unpack(self._length)
        self._length = b""
        if not 0 <= size <= self._limit_bytes:
            raise kafka.errors.InvalidReceiveError(f"Invalid frame length: {size}")
        return Frame(size)


class Manager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection manager; its connections receive through `Frames` once they are established."""

    @property
    def auth_failures(self) -> list[str]:
        """Returns the reasons with which brokers rejected a login."""
        return [str(found) for found in self._auth_failures.values()]

    async def _connect(self, node: Any, conn: Any, *args: Any, **options: Any) -> None:
        await super()._connect(node, conn, *args, **options)
        if conn.connected:  # no request is in flight yet, so no response can be half received
            frames = Frames(conn.parser, self.config["receive_message_max_bytes"])
            conn.transport._sock_recv = partial(
                frames.receive_from, conn.transport, memoryview(bytearray(RECEIVE_BYTES))
            )
            conn.parser.receive_bytes = frames.receive
            write = conn.transport.write
            conn.transport.write = lambda data: write(
                memoryview(data)
            )  # otherwise the bytes that TLS has not sent yet would be copied once for every 16 KiB
