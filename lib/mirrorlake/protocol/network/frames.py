"""Connections of kafka-python that copy no records in this process's memory, and requests that wait while they must.

kafka-python receives a Fetch response 4 KiB at a time. It joins the pieces, cuts them, puts them into a frame, and
reads them out of it twice: six copies of each mirrored byte. Here the first bytes of a frame go from the socket into a
buffer that is reused. The bulk of a large frame goes directly into the frame. Records are views of it, and it lives as
long as they do. They are sent from there, too: a request may consist of pieces (`batches/produce_request.py`).

After a response with `throttle_time_ms`, or with five requests in flight, kafka-python pauses a connection and refuses
further requests. Here they wait, in order, until the connection goes on. A connection ends its waiting requests with
an error when it is closed.

This module is written against kafka-python 3.0.12. It extends that version's connections and parsers. TLS, SASL,
requests and responses remain kafka-python's.
"""

from __future__ import annotations

import copy
import ssl
import struct
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import kafka
import kafka.errors
import numpy as np
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.parser import KafkaProtocol

from mirrorlake.errors import ConfigurationError

WRITTEN_FOR = "3.0.12"
RECEIVE_BYTES = 1 << 20
# A TLS record has at most 16 KiB. With more room than that, no bytes stay in the TLS layer, unseen by the selector.
LEAST_ROOM_BYTES = 32 << 10
LENGTH = struct.Struct(">i")
REJECTED = (kafka.errors.SaslAuthenticationFailedError, kafka.errors.AuthorizationError)
THROTTLED = "throttle"  # kafka-python's name of the reason
REFUSED_S = 300.0  # until a connection that a broker has refused besides others is tried again
SILENT_S = 5.0  # a broker answers in less, and bytes of a large response arrive more often
VIEWED_BYTES = 64 << 10  # fewer are copied, so that they don't keep a large frame
FETCH_VERSIONS = (12, 13)  # of `Cluster.fetch`, by name and by id
PIECES_AT_ONCE = 512  # that the system takes in one call; Linux allows 1,024
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


if kafka.__version__ != WRITTEN_FOR:
    raise ConfigurationError(
        f"kafka-python {kafka.__version__} is installed, but mirrorlake extends private parts of version "
        f"{WRITTEN_FOR}: pip install kafka-python=={WRITTEN_FOR}"
    )


class Kept(np.ndarray[Any, Any]):
    """The memory of a frame; see `_records`."""


def _records(data: memoryview) -> bytes | memoryview:
    """Returns bytes of a response: those of many records in a frame as they are, others as a copy."""
    return data if len(data) >= VIEWED_BYTES and isinstance(data.obj, Kept) else bytes(data)


def _keep_records_in_frames() -> None:
    """Lets kafka-python's decoders of Fetch responses call `_records` where they call `bytes`."""
    for version in FETCH_VERSIONS:
        flexible = FetchResponse.flexible_version_q(version)
        decode = FetchResponse._struct.compiled_decode_from(
            version, compact=flexible, tagged=flexible, data_class=FetchResponse[None]
        )
        decode.__globals__["bytes"] = _records  # a namespace of its own


_keep_records_in_frames()


class Frame:
    """The bytes of one response. The socket fills them from the front; then the parser reads them from the front."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8).view(Kept).data  # unlike a bytearray, it isn't zeroed first
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
            kafka.errors.KafkaProtocolError: a response can't be decoded. The connection is of no use any more.
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
                try:
                    responses.append(self._parser._process_response(frame))
                except kafka.errors.KafkaError:
                    raise
                except Exception as error:  # kafka-python would go on without reading, until the request times out
                    raise kafka.errors.KafkaProtocolError(f"undecodable response: {type(error).__name__}") from None
        return responses

    def receive_from(self, transport: Any, buffer: memoryview) -> tuple[memoryview, Exception | None]:
        """Receives the available bytes of a transport's socket; puts the bulk of a large frame directly into the frame.

        Returns:
            The bytes for `receive`, as a view of the buffer that is valid until the next call for any connection that
            has this buffer; and the socket's error, or None. What came before an error is returned first, and the error
            by the next call.
        """
        count, is_anything = 0, False
        while len(buffer) - count >= LEAST_ROOM_BYTES:
            frame = None if count or self._frame is None or self._frame.is_full else self._frame
            try:
                received = transport._sock.recv_into(buffer[count:] if frame is None else frame.room)
            except WOULD_BLOCK:
                break
            except (OSError, AttributeError) as error:  # no socket: it was closed meanwhile
                return buffer[:count], None if is_anything else kafka.errors.KafkaConnectionError(str(error))
            if not received:
                closed = kafka.errors.KafkaConnectionError("socket disconnected")
                return buffer[:count], None if is_anything else closed
            is_anything = True
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


def _pieces(request: Any) -> list[memoryview]:
    """Returns an encoded request as pieces: `ProduceInPieces` has several.

    They are views: TLS would otherwise copy what it has not sent yet once for every 16 KiB.
    """
    return [memoryview(piece) for piece in (request if isinstance(request, list) else [request])]


def pieces_to_send(parser: KafkaProtocol) -> list[memoryview]:
    """Takes the encoded requests of a connection that were not sent yet, as pieces."""
    requests, parser.bytes_to_send = parser.bytes_to_send, []
    return [piece for request in requests for piece in _pieces(request)]


def write_pieces(transport: Any, data: Any) -> None:
    """Lets a transport send an encoded request, which may consist of pieces; in place of `write`."""
    transport.writelines(_pieces(data))


def send_pieces(transport: Any) -> tuple[int, Exception | None]:
    """Sends as many of a transport's waiting pieces as its socket takes, many in one call; in place of `_sock_send`.

    Returns:
        The number of bytes that were sent; and the socket's error, or None.
    """
    waiting, count = transport._write_buffer, 0
    while waiting:
        try:
            sent = transport._sock.sendmsg(islice(waiting, PIECES_AT_ONCE))
        except WOULD_BLOCK:
            break
        except (OSError, AttributeError) as error:  # no socket: it was closed meanwhile
            return count, kafka.errors.KafkaConnectionError(str(error))
        count += sent
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.popleft())
        if sent:
            waiting[0] = waiting[0][sent:]
    return count, None


class WaitingRequests:
    """The requests of a paused connection, in place of its methods `send_request`, `pause` and `unpause`.

    They wait in kafka-python's own buffer for the requests of connections that are being established. A request's
    timeout begins when it is sent.

    Args:
        connection: a connection that is established.
        throttled: called with the seconds of each time in which the broker has throttled this client.
    """

    def __init__(self, connection: Any, throttled: Callable[[float], None]) -> None:
        self._connection, self._throttled = connection, throttled
        self._send, self._pause, self._unpause = connection.send_request, connection.pause, connection.unpause
        self._throttled_since = time.monotonic()  # the answer with the broker's versions may have throttled it already
        connection.send_request, connection.pause, connection.unpause = self.send_request, self.pause, self.unpause

    def send_request(self, request: Any, request_timeout_ms: int | None = None) -> Any:
        """Sends a request, or lets it wait behind those that wait already; returns the future of its response."""
        connection = self._connection
        if not connection.connected or not (connection.paused or connection._request_buffer):
            return self._send(request, request_timeout_ms=request_timeout_ms)
        future = Future()
        connection._request_buffer.append((request, future, None))
        return future

    def pause(self, reason: str) -> None:
        """Pauses the connection."""
        if reason == THROTTLED and reason not in self._connection.paused:
            self._throttled_since = time.monotonic()
        self._pause(reason)

    def unpause(self, reason: str) -> None:
        """Lets the connection go on, and sends as many of the waiting requests as it takes."""
        connection = self._connection
        if reason == THROTTLED and reason in connection.paused:
            self._throttled(time.monotonic() - self._throttled_since)
        self._unpause(reason)
        while connection._request_buffer and not (connection.paused or connection._reauth.is_reauthenticating):
            request, future, timeout_at = connection._request_buffer.popleft()
            connection._send_request(request, future=future, timeout_at=timeout_at)


class TlsTransport(KafkaSSLTransport):  # type: ignore[misc]
    """kafka-python's TLS transport, with a handshake that ends."""

    async def handshake_until(self, timeout_at: float | None) -> None:
        """Does the TLS handshake.

        Raises:
            kafka.errors.KafkaTimeoutError: the other side has not answered by `timeout_at`, on the monotonic clock.
        """
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at=timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at=timeout_at)


class Lane(NamedTuple):
    """One of several connections to a broker, in place of the broker's node id. The first one has the plain id."""

    node_id: int
    number: int


class Manager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection manager, with connections as this module describes them.

    Args:
        net: the event loop.
        security: returns the security settings of the configuration. Each new connection has the present ones, so
            that a password can be rotated.
        configs: kafka-python's configuration.

    Attributes:
        throttled_s: the seconds for which a broker has throttled this client. Those of several connections at once
            count once.
        refused: the time on the monotonic clock when a broker that had a connection did not accept a further one.
    """

    throttled_s = 0.0
    _throttled_until = 0.0  # on the monotonic clock
    broker_version_data: Any  # what the brokers understand

    def __init__(self, net: Any, security: Callable[[], Mapping[str, object]] = dict, **configs: Any) -> None:
        super().__init__(net, **{**configs, **security()})
        self._security = security
        self.cluster.broker_metadata = partial(_broker_of, self.cluster.broker_metadata)
        self._bootstrap_servers = self.cluster.bootstrap_brokers
        self.cluster.bootstrap_brokers = self._untried
        self.refused: dict[Lane, float] = {}
        self._connecting_since: dict[Any, float] = {}  # until a connection is established
        self._received = memoryview(bytearray(RECEIVE_BYTES))  # of all connections: one at a time receives

    def is_silent(self, node_id: Any) -> bool:
        """Returns True if a broker has sent nothing for SILENT_S, though it was asked for something.

        Such a broker may be stopped, overloaded, or behind a line that is cut.
        """
        conn, now = self._conns.get(node_id), time.monotonic()
        if conn is None:
            return False
        if not conn.connected:
            return now > self._connecting_since.get(node_id, now) + SILENT_S
        if not conn.in_flight_requests:
            return False
        _, _, sent_at, *_ = conn.in_flight_requests[0]
        return bool(now > max(sent_at, conn.transport.last_read) + SILENT_S)

    def is_connecting(self, node_id: Any) -> bool:
        """Returns True while the connection to a broker is being established."""
        conn = self._conns.get(node_id)
        return conn is not None and not conn.connected and not conn.closed

    def bootstrap_async(self, timeout_ms: float | None = None, refresh: bool = True) -> Any:
        """Asks the bootstrap servers for the brokers; failures of earlier times do not count."""
        if self._bootstrap_future is None or (refresh and self._bootstrap_future.is_done):
            for server in self._bootstrap_servers():
                self._backoff.pop(server.node_id, None)
        return super().bootstrap_async(timeout_ms, refresh)

    def _untried(self) -> list[Any]:
        """Returns the bootstrap servers with the fewest failures, of which kafka-python draws one.

        It would draw from all, and one that says nothing could use up the deadline while others answer. One that has
        rejected the login ends the first contact: others would count a further attempt.
        """
        servers = list(self._bootstrap_servers())
        rejected = [server for server in servers if server.node_id in self._auth_failures]
        if rejected and not self.cluster.brokers():
            return rejected
        failures = [self._backoff.get(server.node_id, (0,))[0] for server in servers]
        return [server for server, count in zip(servers, failures, strict=True) if count == min(failures)]

    def most_lanes(self) -> int:
        """Returns the number of connections to each broker that were not refused lately."""
        recently = time.monotonic() - REFUSED_S
        return min((lane.number for lane, at in self.refused.items() if at > recently), default=sys.maxsize)

    @property
    def auth_failures(self) -> list[str]:
        """Returns the reasons with which brokers rejected a login."""
        return [str(found) for found in self._auth_failures.values()]

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> Any:
        """Returns the connection to a broker; makes one, with the present security settings, if there is none.

        kafka-python would give the first connection all of the time for it, so that nothing could be repeated.
        """
        is_first, setup_ms = self.cluster.is_bootstrap(node_id), self.config["socket_connection_setup_timeout_ms"]
        if node_id not in self._conns and not self.connection_delay(node_id):
            security = self._security()
            if any(self.config[name] != value for name, value in security.items()):
                self.config.update(security)
                self._auth_failures.clear()
        if is_first and timeout_ms is not None:
            timeout_ms = min(timeout_ms, setup_ms)
        conn = super().get_connection(node_id, timeout_ms, **options)
        if is_first:
            conn.config["request_timeout_ms"] = setup_ms
        return conn

    async def _build_transport(self, node: Any, timeout_at: float) -> Any:
        """Connects to a broker; the TLS handshake has the deadline of the connection, unlike kafka-python's.

        The last bytes before the end of a connection are received, too: a broker that rejects a login says so and
        closes the connection.

        Raises:
            kafka.errors.KafkaError: there is no connection, for whatever reason: no address, no free file, a reset.
        """
        try:
            sock = await self._socket(node, timeout_at)
            transport = (
                await self._tls(node, sock, timeout_at)
                if self.ssl_enabled
                else KafkaTCPTransport(self._net, sock, host=node.host)
            )
        except (OSError, UnicodeError) as error:  # kafka-python would hand these to all who wait for the connection
            raise kafka.errors.KafkaConnectionError(f"unable to connect: {error}") from None
        receive = transport._sock_recv

        def received() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error

        transport._sock_recv = received
        transport.write = partial(write_pieces, transport)  # before any request that waits for the connection
        if not self.ssl_enabled:
            transport._sock_send = partial(send_pieces, transport)
        return transport

    async def _socket(self, node: Any, timeout_at: float) -> Any:
        """Connects to one of a broker's addresses; each has a share of the time, and each attempt begins with another.

        kafka-python would give the first address all of the time, always. It may be one that leads nowhere.
        """
        name = KafkaNetSocket(self.config["proxy_url"])
        addresses = name.dns_lookup(node.host, node.port)
        cause: Exception = kafka.errors.KafkaConnectionError("DNS Resolution failure")
        first, *_ = self._backoff.get(node.node_id, (0,))
        for tried in range(len(addresses)):
            address, now = addresses[(first + tried) % len(addresses)], time.monotonic()
            share_at = now + (timeout_at - now) / (len(addresses) - tried)
            sock = name.socket(*address[:3])
            try:
                sock.setblocking(False)
                for option in self.config["socket_options"]:
                    sock.setsockopt(*option)
                return await name.sock_connect(self._net, sock, address[4], timeout_at=share_at)
            except (OSError, kafka.errors.KafkaError) as error:
                sock.close()
                cause = error
            except BaseException:  # the event loop is being closed
                sock.close()
                raise
        raise kafka.errors.KafkaConnectionError(f"unable to connect: {cause}")

    async def _tls(self, node: Any, sock: Any, timeout_at: float | None) -> TlsTransport:
        settings = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        try:
            transport = TlsTransport(self._net, sock, host=node.host, **settings)
        except BaseException:  # the peer has reset the connection, for example
            sock.close()
            raise
        try:
            await transport.handshake_until(timeout_at)
        except Exception as error:
            transport.close()
            raise kafka.errors.KafkaConnectionError(f"Handshake failed: {error}") from None
        except BaseException:  # the event loop is being closed
            transport.close()
            raise
        return transport

    def close(self, node_id: Any = None, timeout_ms: float | None = None) -> None:
        """Closes the connection to one broker, or all of them; bytes that the system does not take now are dropped."""
        if node_id is not None:
            super().close(node_id, timeout_ms)
            return
        transports = [conn.transport for conn in self._conns.values() if conn.transport is not None]
        super().close(timeout_ms=timeout_ms)
        self._net.poll(timeout_ms=0)  # tasks see that their connection is closed, and what was written is sent
        for transport in transports:
            transport._close()  # one with unsent bytes is still open

    def least_loaded_node(self) -> Any:
        """Returns the node id for a request that any broker can answer: a paused or silent one rather than none."""
        found = super().least_loaded_node()
        if found is None:
            return next((node_id for node_id, conn in self._conns.items() if conn.connected), None)
        if not self.is_silent(found):
            return found
        others = [broker.node_id for broker in self.cluster.brokers() if not self.connection_delay(broker.node_id)]
        return next((node_id for node_id in others if not self.is_silent(node_id)), found)

    async def _renew_session(self, conn: Any, authenticate: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Logs in again on a connection, with the present security settings.

        Raises:
            kafka.errors.KafkaConnectionError: the broker rejects the login. A new connection shows whether it does so
                still, as the password may be rotated at this moment.
        """
        conn.config.update(self._security())
        try:
            await authenticate(*args, **options)
        except kafka.errors.SaslAuthenticationFailedError as error:
            raise kafka.errors.KafkaConnectionError(f"the session was not renewed: {error}") from None

    def _back_off(self, node_id: Any, before: Any, error: Exception | None) -> None:
        """Counts a connection that was made and failed before its first request, as those that can't be made.

        kafka-python forgets the failures of a broker whose address takes connections: it would be tried again without a
        pause, and the broker's other addresses never. A login that was rejected is repeated with a new password only.
        """
        if self.closed or self.cluster.is_bootstrap(node_id) or isinstance(error, REJECTED):
            return
        if before is not None:
            self._backoff[node_id] = before
        self.update_backoff(node_id)
        failures, until, _ = self._backoff[node_id]
        self._backoff[node_id] = failures, until, self.config["socket_connection_setup_timeout_ms"]

    def _add_throttled(self, seconds: float) -> None:
        now = time.monotonic()
        self.throttled_s += min(seconds, now - self._throttled_until)
        self._throttled_until = now

    async def _connect(self, node: Any, conn: Any, *args: Any, **options: Any) -> None:
        self._connecting_since.setdefault(node.node_id, time.monotonic())
        before = self._backoff.get(node.node_id)
        await super()._connect(node, conn, *args, **options)
        self._connecting_since.pop(node.node_id, None)
        if conn.closed and conn.parser is not None and node.node_id not in self._backoff:
            self._back_off(node.node_id, before, conn.init_future.exception)
        if conn.connected:
            # While brokers are upgraded one by one, the oldest of them decides.
            if self.broker_version_data is not None and conn.broker_version_data < self.broker_version_data:
                self.broker_version_data = conn.broker_version_data
        elif isinstance(node.node_id, Lane) and not isinstance(conn.init_future.exception, REJECTED):
            first = self._conns.get(node.node_id.node_id)
            if first is not None and first.connected and not self.is_silent(node.node_id.node_id):
                self.refused[node.node_id] = time.monotonic()
        if isinstance(conn.init_future.exception, REJECTED):  # kafka-python would log in again and again
            self._auth_failures[node.node_id] = conn.init_future.exception
        if conn.connected:  # no request is in flight yet, so no response can be half received
            frames = Frames(conn.parser, self.config["receive_message_max_bytes"])
            conn.transport._sock_recv = partial(frames.receive_from, conn.transport, self._received)
            conn.parser.receive_bytes = frames.receive
            conn._sasl_authenticate = partial(self._renew_session, conn, conn._sasl_authenticate)
            WaitingRequests(conn, self._add_throttled)
            conn.parser.send_bytes = partial(pieces_to_send, conn.parser)


def _broker_of(broker_metadata: Callable[[Any], Any], node_id: Any) -> Any:
    """Returns the address of a broker, or of the broker of a lane; with the lane as its node id then."""
    if not isinstance(node_id, Lane):
        return broker_metadata(node_id)
    found = copy.copy(broker_metadata(node_id.node_id))
    if found is not None:
        found.node_id = node_id
    return found
