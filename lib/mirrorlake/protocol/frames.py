"""Frames from a socket with fewer copies: kafka-python's connections, but for the way of the bytes that come in.

As they are there, bytes of a Fetch are received 4 KiB at a time, joined, cut, put into a frame, and read out of it
twice: six copies of everything that is mirrored. Here a frame's first bytes go from the socket into a buffer that is
used again and again, the bulk of a large one right into its place, and it is read as a view. Written against
kafka-python 3.0.12, whose connections and parsers are completed here and not replaced: TLS, SASL, requests and
responses stay theirs.
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
# A TLS record has 16 KiB at most: with more room than that nothing of it stays behind in the TLS layer, where no
# selector would see it.
LEAST_ROOM_BYTES = 32 << 10
LENGTH = struct.Struct(">i")
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


if kafka.__version__ != WRITTEN_FOR:
    raise ConfigurationError(
        f"kafka-python {kafka.__version__} is installed; mirrorlake completes private parts of version {WRITTEN_FOR}. "
        "Install the versions of requirements.txt"
    )


class Frame:
    """The bytes of one response, filled from the front, then read from the front."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8).data  # unlike a bytearray, it isn't zeroed first
        self._at = 0

    @property
    def room(self) -> memoryview:
        """What is still to be filled."""
        return self._bytes[self._at :]

    def fill(self, data: memoryview) -> int:
        """Takes as much of `data` as it lacks; returns how much that was."""
        count = min(len(data), len(self._bytes) - self._at)
        self._bytes[self._at : self._at + count] = data[:count]
        self._at += count
        return count

    @property
    def is_full(self) -> bool:
        return self._at == len(self._bytes)

    def read(self, count: int | None = None) -> memoryview:
        """The next `count` bytes (all that are left with None), or fewer at the end."""
        start, self._at = self._at, len(self._bytes) if count is None else min(self._at + count, len(self._bytes))
        return self._bytes[start : self._at]

    def seek(self, at: int) -> None:
        self._at = at

    def tell(self) -> int:
        return self._at


class Frames:
    """Cuts what a connection receives into responses, for the parser that knows what was asked."""

    def __init__(self, parser: KafkaProtocol, limit_bytes: int) -> None:
        self._parser, self._limit_bytes = parser, limit_bytes
        self._length = b""
        self._frame: Frame | None = None

    def receive(self, data: memoryview) -> list[tuple[int, Any]]:
        """Takes what has come; returns (correlation id, response) of each response that is whole now.

        Raises:
            kafka.errors.InvalidReceiveError: a length is none, or larger than allowed.
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
        """Receives what the socket of a transport has for us, the bulk of a large frame right into its place.

        Returns:
            What is to be given to `receive`, as a view of the buffer that is good until the next call; and what is
            wrong with the socket, if anything is.
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
    """kafka-python's connection manager, whose connections receive that way once they are made."""

    @property
    def auth_failures(self) -> list[str]:
        """The reasons that brokers gave for refusing a login."""
        return [str(found) for found in self._auth_failures.values()]

    async def _connect(self, node: Any, conn: Any, *args: Any, **options: Any) -> None:
        await super()._connect(node, conn, *args, **options)
        if conn.connected:  # nothing is under way yet, so no response can be half received
            frames = Frames(conn.parser, self.config["receive_message_max_bytes"])
            conn.transport._sock_recv = partial(
                frames.receive_from, conn.transport, memoryview(bytearray(RECEIVE_BYTES))
            )
            conn.parser.receive_bytes = frames.receive
            write = conn.transport.write
            conn.transport.write = lambda data: write(
                memoryview(data)
            )  # what TLS could not send yet would be copied once for every 16 KiB
