"""The connections of one process to the brokers of one cluster, over kafka-python's connection layer.

kafka-python's connection manager provides TLS, SASL, API versions and message schemas. A request timeout closes the
connection; the outcome of the requests in flight is unknown then.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import kafka.errors
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka.future import Future

from mirrorlake.config.connection import Connection
from mirrorlake.config.security.properties import OAUTHBEARER
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError
from mirrorlake.protocol.clients.settings import kafka_python, librdkafka
from mirrorlake.protocol.error_codes import UNAUTHORIZED
from mirrorlake.protocol.network.deferred_signals import deferred_signals
from mirrorlake.protocol.network.event_loop import EventLoop
from mirrorlake.protocol.network.frames import Lane, Manager
from mirrorlake.protocol.network.response_error import SilentBrokerError, WireError, may_pass
from mirrorlake.protocol.network.socket_options import socket_options

Result = TypeVar("Result")

IN_FLIGHT = 5  # requests in flight on one connection; a broker remembers as many batches of a producer
MOST_IN_FLIGHT = 64  # on one connection, for those who count bytes instead of requests
SECOND_OPINION_S = 3
LOOK_S = 1.0
FAR_S = 0.02  # a shorter round trip is no reason for several connections
ROUND_TRIP_OF_A_CONNECTION_S = 0.025
MOST_CONNECTIONS = 8
RECEIVE_LIMIT_BYTES = 512 << 20
# A request that is lost while a connection is established must not use up the whole deadline of the first contact.
FIRST_CONTACTS = 3
OUT_OF_TIME = "Timeout during ApiVersions check"  # kafka-python's words
SHORTEST_CONTACT_MS, LONGEST_CONTACT_MS = 2_000, 10_000


class NetworkClient:
    """Connections to brokers, and requests to them. Not thread-safe.

    Args:
        connection: the connection to the cluster.
        side: "source" or "target", which decides the class of errors.
        client_id: the client id of this process in the brokers' logs and quotas.
        connect_timeout_ms: the deadline of the first connection, with its repetitions.
        net: the event loop of another cluster, to share it; None for one of its own.

    Attributes:
        round_trip_s: the time of a small request and its response; infinity before the first one.
    """

    def __init__(
        self,
        connection: Connection,
        side: str,
        client_id: str,
        connect_timeout_ms: int = 30_000,
        net: EventLoop | None = None,
    ) -> None:
        self.connection = connection
        self.side = side
        self.round_trip_s = float("inf")
        self._known_security: dict[str, object] = {}
        self._connect_timeout_ms = connect_timeout_ms
        self._contact_ms = max(SHORTEST_CONTACT_MS, min(LONGEST_CONTACT_MS, connect_timeout_ms // FIRST_CONTACTS))
        servers = kafka_python(connection)["bootstrap_servers"]  # an error of the configuration leaves nothing open
        self.net = net or EventLoop()
        self.net.enter()
        try:
            self._manager = Manager(
                self.net,
                self._security,
                bootstrap_servers=servers,
                client_id=client_id,
                receive_message_max_bytes=RECEIVE_LIMIT_BYTES,
                socket_options=socket_options(),
                reconnect_backoff_max_ms=1_000,
                socket_connection_setup_timeout_ms=self._contact_ms,
                max_in_flight_requests_per_connection=MOST_IN_FLIGHT,
            )
        except BaseException:  # a file that a password is read from is being replaced, for example
            self.net.leave()
            raise

    def _bootstrap(self, *, again: bool) -> None:
        logger, causes = logging.getLogger("kafka"), _Causes()
        logger.addHandler(causes)
        try:
            self._manager.bootstrap(self._connect_timeout_ms)
        except WireError as error:
            rejected = self._manager.auth_failures or causes.certificates
            opinions = [] if rejected else self._second_opinion()
            cause = (rejected or [opinion.str() for opinion in opinions] or causes.reasons or [str(error)])[-1]
            raise self.error(
                f"cluster {self.connection.alias} ({', '.join(self.connection.bootstrap_servers)}, "
                f"{self.connection.security_protocol}) can't be reached "
                f"within {self._connect_timeout_ms} ms: {cause}. Check {self.connection.alias}.bootstrap.servers and "
                "its security properties",
                retriable=again and not rejected and all(map(_is_cut, opinions)),
            ) from None
        finally:
            logger.removeHandler(causes)

    async def bootstrap_again(self) -> None:
        """Asks those of bootstrap.servers for the brokers, as all that were known may have other addresses by now
        (KIP-899)."""
        with contextlib.suppress(WireError):  # the next request will report it
            await self._manager.bootstrap_async(SHORTEST_CONTACT_MS)

    def _security(self) -> dict[str, object]:
        """Returns the security settings, with the present values of references.

        A file that a password is read from may be missing for a moment. The last values remain in use then.
        """
        try:
            found = kafka_python(self.connection)
        except ConfigurationError:
            if not self._known_security:
                raise
            return self._known_security
        self._known_security = {name: value for name, value in found.items() if name != "bootstrap_servers"}
        return self._known_security

    def _second_opinion(self) -> list[KafkaError]:
        """Returns the errors that librdkafka finds when it connects.

        A broker that rejects a login closes the connection right after its response. kafka-python misses that response.
        """
        connection = self.connection
        if connection.security_protocol == "PLAINTEXT" or (
            connection.uses_sasl and connection.mechanism == OAUTHBEARER
        ):
            return []  # with tokens, the first opinion has the reason, and librdkafka would wait for a token for long
        found: list[KafkaError] = []
        client = AdminClient(librdkafka(self.connection, log_level=0), error_cb=found.append)
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=SECOND_OPINION_S)
        client.poll(0)
        return [error for error in found if any(word in error.str() for word in ("uthentication", "SSL", "ertificate"))]

    def close(self) -> None:
        """Closes all connections, and the event loop unless another cluster uses it. Nothing can be asked any more.

        A signal has to wait for that: nobody would close what an interrupt left open.
        """
        if self._manager.closed:
            return
        with deferred_signals(self.net.wakeup):
            try:
                self._manager.close()
            finally:
                self.net.leave()

    @property
    def version(self) -> str:
        """Returns the release of the brokers, as their API versions show it; later ones may look like it."""
        return ".".join(map(str, self._manager.broker_version or ()))

    def max_version(self, request: Any) -> int:
        """Returns the newest version of a request that both the brokers and kafka-python support."""
        versions = self._manager.broker_version_data
        return int(versions.api_version(request)) if versions else 0

    @property
    def is_far(self) -> bool:
        """Returns True if a round trip takes so long that several requests should be under way."""
        return FAR_S <= self.round_trip_s < float("inf")

    def connections(self, wanted: int = 0) -> int:
        """Returns the number of connections to use to one broker.

        A connection carries at most its window in a round trip. So the longer that takes, the more there are. There are
        no more than a broker has let this client open lately (`max.connections.per.ip`, the limit of a proxy).

        Args:
            wanted: the number that is set; 0 for one that suits the round trip.
        """
        if not wanted:
            wanted = math.ceil(self.round_trip_s / ROUND_TRIP_OF_A_CONNECTION_S) if self.is_far else 1
            wanted = min(MOST_CONNECTIONS, wanted)
        return min(wanted, self._manager.most_lanes())

    def share_refusals(self, refused: dict[Lane, float]) -> None:
        """Keeps in `refused` which connections brokers have refused, for the clients that follow this one."""
        self._manager.refused = refused

    @property
    def throttled_ms(self) -> float:
        """Returns the time for which the brokers have throttled this client."""
        return 1_000 * self._manager.throttled_s

    # -- requests and responses ----------------------------------------------------------------------

    def send(self, request: Any, node: int, lane: int = 0) -> Any:
        """Sends a request to one broker; returns the future of the response, failed if the request can't be sent.

        Args:
            request: the request.
            node: the node id of the broker.
            lane: the number of the connection. Requests of one lane arrive in order.
        """
        try:
            if node < 0:
                raise kafka.errors.LeaderNotAvailableError()
            return self._manager.send(request, node_id=_lane(node, lane))
        except WireError as error:
            return Future().failure(error)

    async def ask(self, request: Any, node: int) -> Any:
        """Sends a request to one broker, and returns the response; see `answer`. For requests that may be repeated."""
        return await self.answer(self.send(request, node), node)

    async def send_any(self, request: Any, timeout_ms: int | None = None) -> Any:
        """Sends a request to the least loaded broker, and returns the response; asks another one if it is silent.

        Only for requests that are safe to repeat.

        Args:
            request: the request.
            timeout_ms: the time after which a connection without an answer is closed; None for the usual one.
        """
        node = self._manager.least_loaded_node()
        if node is None:
            raise kafka.errors.NodeNotReadyError("no broker is reachable")
        while True:
            future = self._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
            try:
                return await self.answer(future, node)
            except SilentBrokerError:
                other = self._manager.least_loaded_node()
                if other in (None, node) or self.is_silent(other):
                    return await future
                node = other

    def is_silent(self, node: int, lane: int = 0) -> bool:
        """Returns True if a broker has not answered for some seconds, though it was asked."""
        return self._manager.is_silent(_lane(node, lane))

    def is_connecting(self, node: int) -> bool:
        """Returns True while the connection to a broker is being established."""
        return self._manager.is_connecting(node)

    async def answer(self, future: Any, node: int, lane: int = 0) -> Any:
        """Awaits the response of one broker.

        Raises:
            SilentBrokerError: the broker has sent nothing for some seconds. The request stays in flight.
        """
        while True:
            try:
                return await self._within(future, time.monotonic() + LOOK_S)
            except SilentBrokerError:
                if self.is_silent(node, lane):
                    raise

    async def first_of(self, futures: Iterable[Any]) -> None:
        """Waits until one of some responses has come, or failed, at most for LOOK_S."""
        waiting = Future()

        def settle(_: Any) -> None:
            if not waiting.is_done:
                waiting.success(None)

        for future in futures:
            future.add_both(settle)
        with contextlib.suppress(SilentBrokerError):
            await self._within(waiting, time.monotonic() + LOOK_S)

    async def together(self, *attempts: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Runs coroutine functions at the same time; returns their results.

        Raises:
            Exception: that of the first one that failed, in their order, after all have ended.
        """
        return await self.each(attempts, len(attempts))

    async def each(self, attempts: Iterable[Callable[[], Awaitable[Result]]], at_once: int) -> list[Result]:
        """Does the same as `together`, with at most `at_once` of them under way."""
        futures = deque[Any]()
        ended = []
        for attempt in attempts:
            if len(futures) >= at_once:
                ended.append(await _ended(futures.popleft()))
            futures.append(self.net.call_soon_with_future(attempt))
        ended += [await _ended(future) for future in futures]
        for future in ended:
            if future.exception is not None:
                raise future.exception
        return [future.value for future in ended]

    async def _within(self, future: Any, deadline: float) -> Any:
        """Awaits the response of a request, at most until `deadline` on the monotonic clock.

        Raises:
            SilentBrokerError: there is no response by then. The request stays in flight.
        """
        if deadline == float("inf"):
            return await future
        waiting = Future()

        def settle(outcome: Callable[[Any], Any], value: Any) -> None:
            if not waiting.is_done:
                outcome(value)

        timer = self.net.call_at(deadline, lambda: settle(waiting.failure, SilentBrokerError("no answer in time")))
        future.add_callback(lambda value: settle(waiting.success, value))
        future.add_errback(lambda error: settle(waiting.failure, error))
        try:
            return await waiting
        finally:
            self.net.cancel(timer)

    # -- errors ---------------------------------------------------------------------------------------

    def error(self, message: str, *, retriable: bool = False) -> MirrorlakeError:
        """Returns an error of this side's class."""
        return (SourceError if self.side == "source" else TargetError)(message, retriable=retriable)

    def explained(self, what: str, error: Exception, *, retriable: bool = False) -> MirrorlakeError:
        """Returns the error for an operator, with operation, cluster and cause, and with a permission to grant."""
        code = getattr(error, "code", 0)
        advice = (
            f". The principal of cluster {self.connection.alias} lacks a permission on this {UNAUTHORIZED[code]}; "
            "grant it and start again"
            if code in UNAUTHORIZED
            else ""
        )
        if isinstance(error, kafka.errors.SaslAuthenticationFailedError):
            advice = (
                f". Cluster {self.connection.alias} rejects the login. Give the principal its credentials again, or "
                f"correct {self.connection.alias}.sasl.jaas.config, and start again"
            )
        return self.error(
            f"cluster {self.connection.alias}: {what}: {error}{advice}",
            retriable=retriable or (may_pass(error) and not advice),
        )


class _Causes(logging.Handler):
    """Collects the errors that kafka-python logs while it connects; its exception reports only a timeout.

    Those of other threads are about other clusters.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        message = record.getMessage().splitlines()[0]
        if not message.startswith("Bootstrap"):
            self.messages.append(message.rpartition("Connection lost: ")[2])

    @property
    def reasons(self) -> list[str]:
        """Returns the messages. What an attempt at the end of the deadline had no time for hides none before it."""
        return [message for message in self.messages if not message.endswith(OUT_OF_TIME)] or self.messages

    @property
    def certificates(self) -> list[str]:
        """Returns the reasons for which a broker's certificate was refused. librdkafka does not name them all."""
        return [message for message in self.messages if "CERTIFICATE_VERIFY_FAILED" in message]


def _is_cut(error: KafkaError) -> bool:
    """Returns True if a handshake has only ended with its connection, as it does while a broker or a proxy restarts."""
    return error.code() not in (KafkaError._AUTHENTICATION, KafkaError._SSL) or any(
        word in error.str() for word in ("Disconnected", "onnection reset")
    )


def _lane(node: int, number: int) -> int | Lane:
    return Lane(node, number) if number else node


async def _ended(future: Any) -> Any:
    """Waits until a future is done, whether it has failed or not; returns it."""
    with contextlib.suppress(Exception):
        await future
    return future
