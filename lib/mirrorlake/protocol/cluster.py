"""Raw requests to one cluster, over kafka-python's connection layer.

kafka-python's connection manager provides TLS, SASL, API versions and message schemas. This module adds routing to
leaders and coordinators, retries and their deadlines. A request timeout closes the connection; the outcome of the
requests in flight is unknown then.

Only requests that are safe to repeat are retried: reads, look-ups, InitProducerId and EndTxn. A Produce request is
never repeated. If it fails, the attempt and its transaction fail.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import socket
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import kafka.errors
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.future import Future
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.security.properties import OAUTHBEARER
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.produce_request import ProduceInPieces
from mirrorlake.protocol.batches.record_batch import Sealed
from mirrorlake.protocol.clients.settings import kafka_python, librdkafka
from mirrorlake.protocol.error_codes import RETRIABLE, UNAUTHORIZED, ErrorCode
from mirrorlake.protocol.event_loop import EventLoop
from mirrorlake.protocol.frames import Lane, Manager

WireError = (
    kafka.errors.KafkaError
)  # lost connections, timeouts and the like, in contrast to a response with an error code

Result = TypeVar("Result")

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
READ, WRITE, DESCRIBE = 3, 4, 8  # AclOperation
TRANSACTION_COORDINATOR = 1
TOPIC_RESOURCE = 2
IN_FLIGHT = 5  # requests in flight on one connection; a broker remembers as many batches of a producer
SECOND_OPINION_S = 3
OLDEST_BROKER = (2, 8)
LISTING_S = 2.0
LOOK_S = 1.0
FAR_S = 0.02  # a shorter round trip is no reason for several connections
ROUND_TRIP_OF_A_CONNECTION_S = 0.025
MOST_CONNECTIONS = 8
LONGER = 1.5
MOST_IN_FLIGHT = 64  # on one connection, for those who count bytes instead of requests
RECEIVE_LIMIT_BYTES = 512 << 20
# A host that is gone while a request waits for its answer is noticed after 5 + 4 * 2 s without a sign of its kernel. A
# slow broker's kernel answers. No TCP_USER_TIMEOUT: it would also end connections to a broker that is still busy with
# the request before, and does not read on meanwhile.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in KEEPALIVE.items() if hasattr(socket, name)),
)
RECEIVE_BUFFER_BYTES = 4 << 20
LARGEST_RECEIVE_BUFFER = Path("/proc/sys/net/core/rmem_max")
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 1.0
# A request that is lost while a connection is established must not use up the whole deadline of the first contact.
FIRST_CONTACTS = 3
SHORTEST_CONTACT_MS, LONGEST_CONTACT_MS = 2_000, 10_000

# UnknownBrokerIdError: the metadata name a leader that is no longer a broker. It has just died or been replaced.
PASSING = (
    kafka.errors.RetriableError,
    kafka.errors.KafkaConnectionError,
    kafka.errors.KafkaTimeoutError,
    kafka.errors.UnknownBrokerIdError,
)


def socket_options() -> tuple[tuple[int, int, int], ...]:
    """Returns the options of connections: a large receive buffer, where the system allows one.

    Elsewhere, the system would give a small one, and no longer let it grow with the length of the line.
    """
    try:
        most = int(LARGEST_RECEIVE_BUFFER.read_text())
    except (OSError, ValueError):
        most = 0
    large = (socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return (*SOCKET_OPTIONS, large) if most >= RECEIVE_BUFFER_BYTES else SOCKET_OPTIONS


class SilentBrokerError(kafka.errors.KafkaTimeoutError):  # type: ignore[misc]  # kafka-python has no types
    """Raised when a broker does not answer in time. The request may still be answered."""


class ResponseError(Exception):
    """Raised inside this package when a response carries an error code.

    `code` is Kafka's error code and `name` its name. `key` is the partition, if the error is about one.
    """

    def __init__(self, code: int, detail: str = "", key: PartitionKey | None = None) -> None:
        self.code = code
        self.key = key
        self.name = kafka.errors.for_code(code).__name__
        self.retriable = code in RETRIABLE
        super().__init__(f"{self.name} ({code})" + (f": {detail}" if detail else ""))


def check(code: int, detail: str = "", key: PartitionKey | None = None) -> None:
    """Raises ResponseError for every error code except 0."""
    if code:
        raise ResponseError(code, detail, key)


def is_unauthorized(error: Exception) -> bool:
    """Returns True if the error is a missing permission on a topic."""
    return getattr(error, "code", 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Topic:
    """The metadata of a topic: its id, and the leader of each partition.

    `operations` holds the operations that this principal may perform (KIP-430), None if they were not requested.
    `epochs` holds the leader epoch of each partition.
    """

    name: str
    topic_id: str
    leaders: Mapping[int, int]
    operations: frozenset[int] | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)

    def not_older_than(self, known: Topic) -> Topic:
        """Returns this topic, with the leaders of `known` where those have a newer epoch.

        A broker that is behind must not take back what another one has said (KAFKA-9212).
        """
        if not self.topic_id or self.topic_id != known.topic_id:
            return self
        newer = {index for index, epoch in known.epochs.items() if epoch > self.epochs.get(index, epoch)}
        if not newer:
            return self
        return replace(
            self,
            leaders={index: (known if index in newer else self).leaders[index] for index in self.leaders},
            epochs={index: (known if index in newer else self).epochs[index] for index in self.epochs},
        )

    def allows(self, operation: int) -> bool:
        """Returns False if the principal is known to lack this permission."""
        return self.operations is None or operation in self.operations

    @property
    def partitions(self) -> int:
        return len(self.leaders)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition of a Fetch response. Many records are a view of the whole response.

    If the log differs from the one that was read before (KIP-595), `diverges_at` is the end of the newest leader epoch
    that it has up to the one asked for, and `diverging_epoch` is that epoch; else None and -1.
    """

    topic: str
    partition: int
    error_code: int
    log_start_offset: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    records: bytes | memoryview
    diverges_at: int | None = None
    diverging_epoch: int = -1

    def differs_from(self, leader_epoch: int, epoch_from: int) -> int | None:
        """Returns the offset from which the log differs from the one that was read before, None if it does not.

        Args:
            leader_epoch: the epoch of the batch read last.
            epoch_from: the offset at which that epoch began; -1 if it is unknown.
        """
        if self.diverges_at is None or self.diverging_epoch >= leader_epoch or epoch_from < 0:
            return self.diverges_at
        return min(self.diverges_at, epoch_from)  # the log never had that epoch, nor anything that was read with it


@dataclass
class Limits:
    """What attempts have learnt of a cluster, for later ones: limits of batches, its rate, ends of logs.

    Attributes:
        bytes: the largest size of a batch of several records, by topic.
        refused: single records that the cluster rejected, as (source topic, partition, offset).
        bytes_per_s: the rate of the last attempt that lasted for a while.
        round_bytes: what one round of an attempt may read while no rate is known; it doubles with each round.
        window_bytes: what may be in flight on one connection over a long line; it grows while responses come soon.
        ends_checked: the generation in which the end of a remote partition was found to be there.
        free_at: the time on the monotonic clock until which a rate is used up, by its name.
        rates: the rate in bytes per second for which that time holds, by its name.
        damaged: the last batch of a partition that arrived damaged: the position, the CRC of its bytes, and how often
            they were fetched.
    """

    bytes_per_s: float = float("inf")
    round_bytes: int = 1 << 20
    window_bytes: int = 256 << 10
    bytes: dict[str, int] = field(default_factory=dict)
    refused: set[tuple[str, int, int]] = field(default_factory=set)
    ends_checked: dict[PartitionKey, int] = field(default_factory=dict)
    free_at: dict[str, float] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    damaged: dict[PartitionKey, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def known(self) -> tuple[frozenset[tuple[str, int]], int]:
        """Returns what has been learnt, for comparison; it changes with each batch that is rejected."""
        return frozenset(self.bytes.items()), len(self.refused)

    def lower(self, topic: str, limit_bytes: int) -> None:
        """Lowers the limit of a topic to `limit_bytes`, unless it is lower already."""
        self.bytes[topic] = min(limit_bytes, self.bytes.get(topic, limit_bytes))


class Cluster:
    """One cluster, as one process sees it. Not thread-safe.

    Args:
        connection: the connection to the cluster.
        side: "source" or "target", which decides the class of errors.
        client_id: the client id of this process in the brokers' logs and quotas.
        connect_timeout_ms: the deadline of the first connection, with its repetitions.
        net: the event loop of another cluster, to share it; None for one of its own.

    Attributes:
        topics: the metadata that is known, by topic.
        limits: the size limits of topics, as far as the cluster has rejected records.
        round_trip_s: the time of a small request and its response; infinity before the first one.
        states_seen: the last states of slots, kept by `state/offset_syncs.py`.
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
        self.topics: dict[str, Topic] = {}
        self.cluster_id = ""
        self.transaction_version = 0
        self.limits = Limits()
        self.round_trip_s = float("inf")
        self.states_seen: dict[PartitionKey, object] = {}
        self._names: dict[str, str] = {}
        self._known_security: dict[str, object] = {}
        self._coordinators: dict[str, int] = {}
        self._connect_timeout_ms = connect_timeout_ms
        self._contact_ms = max(SHORTEST_CONTACT_MS, min(LONGEST_CONTACT_MS, connect_timeout_ms // FIRST_CONTACTS))
        servers = kafka_python(connection)["bootstrap_servers"]  # an error of the configuration leaves nothing open
        self.net = net or EventLoop()
        self.net.enter()
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

    # -- connecting ---------------------------------------------------------------------------------

    def connect(self, *, again: bool = False) -> Cluster:
        """Connects to the cluster and reads cluster id, brokers and features. If that fails, no connection stays open.

        Requests that get no answer are repeated over new connections within the deadline.

        Args:
            again: True if the cluster has answered this job before. That no broker answers may pass then. A rejected
                login never does, because accounts are locked after repeated ones.

        Raises:
            SourceError, TargetError: no broker answers in time, or authentication fails; the message has the cause.
        """
        try:
            self._bootstrap(again=again)
            self.call("first contact", self._learn, self._connect_timeout_ms)
        except BaseException:
            self.close()
            raise
        return self

    def _bootstrap(self, *, again: bool) -> None:
        logger, causes = logging.getLogger("kafka"), _Causes()
        logger.addHandler(causes)
        try:
            self._manager.bootstrap(self._connect_timeout_ms)
        except WireError as error:
            rejected = self._manager.auth_failures or causes.certificates or self._second_opinion()
            cause = (rejected or causes.messages or [str(error)])[-1]
            raise self.error(
                f"cluster {self.connection.alias} ({', '.join(self.connection.bootstrap_servers)}, "
                f"{self.connection.security_protocol}) can't be reached "
                f"within {self._connect_timeout_ms} ms: {cause}. Check {self.connection.alias}.bootstrap.servers and "
                "its security properties",
                retriable=again and not rejected,
            ) from None
        finally:
            logger.removeHandler(causes)

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

    def _second_opinion(self) -> list[str]:
        """Returns the errors that librdkafka finds when it connects.

        A broker that rejects a login closes the connection right after its response. kafka-python misses that response.
        """
        connection = self.connection
        if connection.security_protocol == "PLAINTEXT" or (
            connection.uses_sasl and connection.mechanism == OAUTHBEARER
        ):
            return []  # with tokens, the first opinion has the reason, and librdkafka would wait for a token for long
        found: list[str] = []
        client = AdminClient(librdkafka(self.connection, log_level=0), error_cb=lambda error: found.append(error.str()))
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=SECOND_OPINION_S)
        client.poll(0)
        return [text for text in found if "uthentication" in text or "SSL" in text or "ertificate" in text]

    def close(self) -> None:
        """Closes all connections, and the event loop unless another cluster uses it. Nothing can be asked any more."""
        if not self._manager.closed:
            self._manager.close()
            self.net.leave()

    async def _learn(self) -> None:
        version = self._manager.broker_version
        if version is not None and version < OLDEST_BROKER:
            known, oldest = (".".join(map(str, one)) for one in (version, OLDEST_BROKER))
            raise self.error(
                f"cluster {self.connection.alias} runs Kafka {known}, as its API versions show. mirrorlake needs "
                f"brokers of {oldest} or later"
            )
        features = await self.send_any(
            ApiVersionsRequest(client_software_name="mirrorlake", client_software_version="1"), self._contact_ms
        )
        check(features.error_code)
        levels = {feature.name: feature.max_version_level for feature in features.finalized_features or ()}
        self.transaction_version = levels.get("transaction.version", 0)
        await self.update_metadata([], request_timeout_ms=self._contact_ms)

    @property
    def is_far(self) -> bool:
        """Returns True if a round trip takes so long that several requests should be under way."""
        return FAR_S <= self.round_trip_s < float("inf")

    def connections(self, wanted: int = 0) -> int:
        """Returns the number of connections to use to one broker.

        A connection carries at most its window in a round trip. So the longer that takes, the more there are.

        Args:
            wanted: the number that is set; 0 for one that suits the round trip.
        """
        if wanted or not self.is_far:
            return wanted or 1
        return min(MOST_CONNECTIONS, math.ceil(self.round_trip_s / ROUND_TRIP_OF_A_CONNECTION_S))

    @property
    def throttled_ms(self) -> float:
        """Returns the time for which the brokers have throttled this client."""
        return 1_000 * self._manager.throttled_s

    # -- errors, retries, routing -------------------------------------------------------------------

    def error(self, message: str, *, retriable: bool = False) -> MirrorlakeError:
        """Returns an error of this side's class."""
        return (SourceError if self.side == "source" else TargetError)(message, retriable=retriable)

    def call(self, what: str, attempt: Callable[[], Awaitable[Result]], timeout_ms: int) -> Result:
        """Runs `attempt` on the event loop, and repeats it while it fails with a retriable error.

        Args:
            what: the operation, for the error message.
            attempt: the coroutine function to run.
            timeout_ms: the deadline of all attempts together.

        Raises:
            SourceError, TargetError: the last attempt failed. The error has `what`, the last cause
                and the flag `retriable`.
        """
        result: Result = self.net.run(lambda: self.retry(what, attempt, timeout_ms))
        return result

    async def retry(self, what: str, attempt: Callable[[], Awaitable[Result]], timeout_ms: int) -> Result:
        """Does the same as `call`, for use inside the event loop."""
        deadline = time.monotonic() + timeout_ms / 1000
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                return await attempt()
            except (ResponseError, WireError) as error:
                # A coordinator that is busy with the transaction before is the right one.
                is_busy = isinstance(error, ResponseError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS
                if not is_busy:
                    self._coordinators.clear()
                if not _may_pass(error):
                    raise self.explained(what, error) from None
                if time.monotonic() + backoff > deadline:
                    raise self.explained(f"{what}, retried for {timeout_ms} ms", error, retriable=True) from None
                await self.net.sleep(backoff * random.uniform(0.8, 1.2))
                backoff = min(2 * backoff, LAST_BACKOFF_S)
                if not is_busy:
                    await self._refresh_brokers()

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
            retriable=retriable or (_may_pass(error) and not advice),
        )

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

    def leader(self, topic: str, partition: int) -> int:
        """Returns the node id of a partition's leader, -1 if it is unknown."""
        known = self.topics.get(topic)
        return known.leaders.get(partition, -1) if known else -1

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Returns the leader epoch of a partition that goes with `leader`, -1 if it is unknown.

        With it, a broker that was the leader before, and does not know it yet, refuses a request (KIP-320).
        """
        known = self.topics.get(topic)
        return known.epochs.get(partition, -1) if known else -1

    async def coordinator(self, transactional_id: str) -> int:
        """Returns the node id of a transaction coordinator."""
        if transactional_id not in self._coordinators:
            response = await self.send_any(
                FindCoordinatorRequest[3](key=transactional_id, key_type=TRANSACTION_COORDINATOR)
            )
            check(response.error_code, response.error_message or "")
            self._coordinators[transactional_id] = response.node_id
        return self._coordinators[transactional_id]

    async def brokers(self) -> list[int]:
        """Returns the node ids of all brokers, from fresh metadata."""
        await self.update_metadata([])
        return [broker.node_id for broker in self._manager.cluster.brokers()]

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

    async def _refresh_brokers(self) -> None:
        # With `operations`, a topic that may not be described any more is no error: it would hide the others' leaders.
        with contextlib.suppress(ResponseError, WireError):  # the next attempt will report it
            await self.update_metadata(list(self.topics), operations=True)

    # -- metadata and offsets -----------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None, timeout_ms: int, *, operations: bool = False) -> dict[str, Topic]:
        """Reads the metadata of topics (of all with None); leaves out topics that don't exist. Never creates a topic.

        With `operations`, the metadata include the operations that this principal may perform. A topic that the
        principal must not even describe then allows no operation.
        """
        wanted = None if topics is None else list(topics)
        return self.call("reading metadata", lambda: self.update_metadata(wanted, operations=operations), timeout_ms)

    async def update_metadata(
        self, topics: list[str] | None, *, operations: bool = False, request_timeout_ms: int | None = None
    ) -> dict[str, Topic]:
        """Does the same as `refresh`, for use inside the event loop, without retries."""
        version = min(12, self.max_version(MetadataRequest))
        asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        began, throttled_ms = time.monotonic(), self.throttled_ms
        response = await self.send_any(
            MetadataRequest[version](
                topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=operations
            ),
            request_timeout_ms,
        )
        if self.throttled_ms == throttled_ms:  # otherwise it has waited for that
            # One that is slow by accident shows little; a line that has become longer is believed after a few.
            self.round_trip_s = min(time.monotonic() - began, LONGER * self.round_trip_s)
        self._manager.cluster.update_metadata(response)  # the manager keeps its own list of brokers
        self.cluster_id = response.cluster_id or ""
        found: dict[str, Topic] = {}
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.topics.pop(topic.name, None)
                continue
            if operations and topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                found[topic.name] = Topic(topic.name, "", {}, frozenset())
                continue
            if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                check(topic.error_code, f"{topic.name} (needs DESCRIBE)")
            now = Topic(
                topic.name,
                str(topic.topic_id or ""),
                {partition.partition_index: partition.leader_id for partition in topic.partitions},
                frozenset(topic.authorized_operations) if operations else None,
                {partition.partition_index: partition.leader_epoch for partition in topic.partitions},
            )
            found[topic.name] = now.not_older_than(self.topics.get(topic.name, now))
        self.topics.update({name: topic for name, topic in found.items() if topic.leaders})
        self._names.update({topic.topic_id: topic.name for topic in found.values()})
        return found

    def existing(
        self, partitions: Iterable[PartitionKey], timeout_ms: int, *, operations: bool = False
    ) -> list[PartitionKey]:
        """Returns those of the partitions that exist, in their order, by fresh metadata.

        With `operations`, a topic that the principal must not even describe counts as missing; otherwise it is an
        error.
        """
        keys = list(partitions)
        there = self.refresh({topic for topic, _ in keys}, timeout_ms, operations=operations) if keys else {}
        return [key for key in keys if key[0] in there and key[1] in there[key[0]].leaders]

    def offsets(self, partitions: Iterable[PartitionKey], at: int, timeout_ms: int) -> dict[PartitionKey, int]:
        """Lists one offset of each partition, with one request for each leader.

        Partitions of topics that no longer exist are left out.

        Args:
            partitions: topics and partitions.
            at: EARLIEST_TIMESTAMP for the log start offset; LATEST_TIMESTAMP for the last stable offset,
                where a read_committed consumer stops; or a timestamp in ms for the first record that is not
                older, -1 if there is none.
            timeout_ms: the deadline of the request and its retries.
        """
        wanted = list(partitions)
        return self.call("listing offsets", lambda: self.list_offsets(wanted, at), timeout_ms)

    def stable_ends(
        self, partitions: Iterable[PartitionKey], timeout_ms: int
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, str]]:
        """Lists the last stable offset and the leader epoch of each partition, and the reasons of those that have none.

        A partition without a leader, or with one that does not answer within LISTING_S, holds up no other. A topic that
        was deleted is left out of `topics` then. The epoch is -1 if the broker does not return one.

        Raises:
            SourceError, TargetError: no partition can be listed within `timeout_ms`, or the principal may not see one.
        """
        wanted = list(partitions)
        found, failed = self._listed(lambda: self._each_stable_end(wanted))
        if failed and not found:
            return self.call(
                "listing offsets", lambda: self._list_offsets(wanted, LATEST_TIMESTAMP, READ_COMMITTED), timeout_ms
            ), {}
        return found, {key: str(error) for key, error in failed.items()}

    def high_watermarks(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Lists the high watermark of each partition; leaves out those whose leader does not answer in time.

        Raises:
            SourceError, TargetError: the principal may not see a partition.
        """
        wanted = list(partitions)
        found, _ = self._listed(lambda: self._list_each(wanted, LATEST_TIMESTAMP, READ_UNCOMMITTED, LISTING_S))
        return {key: offset for key, (offset, _) in found.items()}

    def _listed(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        try:
            result: Result = self.net.run(attempt)
        except ResponseError as error:  # none that may pass: a right that was revoked
            raise self.explained("listing offsets (needs DESCRIBE)", error) from None
        return result

    async def _each_stable_end(
        self, partitions: list[PartitionKey]
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, Exception]]:
        """Lists what can be listed; asks once more for the rest, with fresh metadata."""
        found, failed = await self._list_each(partitions, LATEST_TIMESTAMP, READ_COMMITTED, LISTING_S)
        if failed:
            with contextlib.suppress(ResponseError, WireError):
                await self.update_metadata(sorted({topic for topic, _ in failed}))
            again, failed = await self._list_each(list(failed), LATEST_TIMESTAMP, READ_COMMITTED, LISTING_S)
            found.update(again)
        return found, failed

    async def list_offsets(
        self, partitions: list[PartitionKey], at: int, isolation: int = READ_COMMITTED
    ) -> dict[PartitionKey, int]:
        """Does the same as `offsets`, for use inside the event loop, without retries.

        With READ_UNCOMMITTED, LATEST_TIMESTAMP stands for the high watermark.
        """
        return {key: offset for key, (offset, _) in (await self._list_offsets(partitions, at, isolation)).items()}

    async def _list_offsets(
        self, partitions: list[PartitionKey], at: int, isolation: int
    ) -> dict[PartitionKey, tuple[int, int]]:
        """Lists an offset and the leader epoch of each partition; one that fails is an error."""
        found, failed = await self._list_each(partitions, at, isolation)
        if failed:
            raise next(iter(failed.values()))
        return found

    async def _list_each(
        self, partitions: list[PartitionKey], at: int, isolation: int, within_s: float = float("inf")
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, Exception]]:
        """Lists an offset and the leader epoch of each partition, and the retriable errors of those that have none."""
        asked = []
        for node, keys in by(lambda key: self.leader(*key), partitions).items():
            topics = [
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=self.leader_epoch(topic, index), timestamp=at
                        )
                        for _, index in group
                    ],
                )
                for topic, group in by(lambda key: key[0], keys).items()
            ]
            request = ListOffsetsRequest[5](replica_id=-1, isolation_level=isolation, topics=topics)
            asked.append((keys, self.send(request, node)))
        found: dict[PartitionKey, tuple[int, int]] = {}
        failed: dict[PartitionKey, Exception] = {}
        deadline = time.monotonic() + within_s
        for keys, future in asked:
            try:
                response = await self._within(future, deadline)
            except WireError as error:
                if not _may_pass(error):
                    raise
                failed.update(dict.fromkeys(keys, error))
                continue
            for topic in response.topics:
                for partition in topic.partitions:
                    key = topic.name, partition.partition_index
                    try:
                        check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                        found[key] = partition.offset, partition.leader_epoch
                    except ResponseError as error:
                        if not error.retriable:
                            raise
                        failed[key] = error
        return found, failed

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

    async def topic_config(self, topic: str, name: str) -> str | None:
        """Returns one property of a topic, None if this principal lacks DESCRIBE_CONFIGS."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name]
        )
        response = await self.send_any(DescribeConfigsRequest[1](resources=[resource], include_synonyms=False))
        (result,) = response.results
        if result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None
        check(result.error_code, f"{topic} (needs DESCRIBE_CONFIGS)")
        return next((config.value for config in result.configs if config.name == name), None)

    # -- data ---------------------------------------------------------------------------------------

    def fetch(
        self,
        node: int,
        offsets: Mapping[PartitionKey, int],
        max_bytes: int,
        partition_max_bytes: int,
        max_wait_ms: int,
        isolation: int = READ_COMMITTED,
        epochs: Mapping[PartitionKey, int] | None = None,
        lane: int = 0,
    ) -> Any:
        """Sends a Fetch request without a session; returns the future of the response, for `fetched`.

        The request names topics by id if broker and metadata have ids (KIP-516). A recreated topic of the same name is
        therefore never read by accident.

        Args:
            node: the node id of the leader.
            offsets: the first offset to read, by partition.
            max_bytes: the size limit of the response.
            partition_max_bytes: the size limit of each partition.
            max_wait_ms: the longest time that the broker waits for records.
            isolation: READ_COMMITTED or READ_UNCOMMITTED.
            epochs: the leader epoch of the batch read last, by partition. The broker uses it to detect a
                diverged log (KIP-595).
            lane: the number of the connection.
        """
        newest = self.max_version(FetchRequest)
        by_id = newest >= 13 and all(self.topics[topic].topic_id for topic, _ in offsets)
        topics = [
            FetchRequest.FetchTopic(
                **({"topic_id": uuid.UUID(self.topics[topic].topic_id)} if by_id else {"topic": topic}),
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=index,
                        current_leader_epoch=self.leader_epoch(topic, index),
                        fetch_offset=offsets[topic, index],
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                        last_fetched_epoch=(epochs or {}).get((topic, index), -1) if newest >= 12 else -1,
                    )
                    for _, index in group
                ],
            )
            for topic, group in by(lambda key: key[0], offsets).items()
        ]
        request = FetchRequest[13 if by_id else min(newest, 12)](
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
        )
        return self.send(request, node, lane)

    def fetched(self, response: Any) -> Iterator[Fetched]:
        """Yields the partitions of a Fetch response."""
        check(response.error_code)
        for topic in response.responses:
            name = topic.topic or self._names[str(topic.topic_id)]
            for partition in topic.partitions:
                yield Fetched(
                    topic=name,
                    partition=partition.partition_index,
                    error_code=partition.error_code,
                    log_start_offset=partition.log_start_offset,
                    last_stable_offset=partition.last_stable_offset,
                    aborted=[
                        (aborted.producer_id, aborted.first_offset) for aborted in partition.aborted_transactions or ()
                    ],
                    records=partition.records or b"",
                    diverges_at=None
                    if partition.diverging_epoch is None or partition.diverging_epoch.end_offset < 0
                    else partition.diverging_epoch.end_offset,
                    diverging_epoch=-1 if partition.diverging_epoch is None else partition.diverging_epoch.epoch,
                )

    def produce(
        self,
        node: int,
        transactional_id: str,
        batches: Mapping[PartitionKey, bytes | Sealed],
        timeout_ms: int,
        lane: int = 0,
    ) -> Any:
        """Sends one batch to each partition; returns the future of the response, for `produced`.

        Args:
            node: the node id of the leader.
            transactional_id: the transactional id of the producer.
            batches: one batch for each partition.
            timeout_ms: the time that the broker may take to replicate the batches.
            lane: the number of the connection, the same for all batches of a partition in a transaction.
        """
        # With transaction.version=2, a Produce of version 12 and up adds its partitions to the transaction (KIP-890).
        version = 12 if self.transaction_version >= 2 else min(11, self.max_version(ProduceRequest))
        return self.send(
            ProduceInPieces(
                ProduceRequest[version](
                    transactional_id=transactional_id, acks=-1, timeout_ms=timeout_ms, topic_data=[]
                ),
                batches,
            ),
            node,
            lane,
        )

    @staticmethod
    def produced(response: Any) -> Iterator[tuple[PartitionKey, int]]:
        """Yields partition and base offset of each appended batch; raises ResponseError for a rejected one."""
        for topic in response.responses:
            for partition in topic.partition_responses:
                key = (topic.name, partition.index)
                check(
                    partition.error_code,
                    f"{topic.name}-{partition.index}"
                    + (f": {partition.error_message}" if partition.error_message else ""),
                    key,
                )
                yield key, partition.base_offset

    @property
    def version(self) -> str:
        """Returns the release of the brokers, as their API versions show it; later ones may look like it."""
        return ".".join(map(str, self._manager.broker_version or ()))

    def max_version(self, request: Any) -> int:
        """Returns the newest version of a request that both the brokers and kafka-python support."""
        versions = self._manager.broker_version_data
        return int(versions.api_version(request)) if versions else 0


def connect_both(flow: Flow, role: str, *, again: bool = False) -> tuple[Cluster, Cluster]:
    """Connects to source and target of a flow, on one event loop.

    Args:
        flow: the flow.
        role: the part of the client id behind the flow's name.
        again: see `Cluster.connect`.

    Raises:
        SourceError, TargetError: see `Cluster.connect`; no connection stays open.
    """
    client_id, timeout_ms = f"{flow.name}|{role}", flow.connect_timeout_ms
    source = Cluster(flow.source_connection, "source", client_id, timeout_ms)
    source.connect(again=again)
    target = Cluster(flow.target_connection, "target", client_id, timeout_ms, source.net)
    try:
        return source, target.connect(again=again)
    except BaseException:
        source.close()
        raise


class _Causes(logging.Handler):
    """Collects the errors that kafka-python logs while it connects; its exception reports only a timeout."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().splitlines()[0]
        if not message.startswith("Bootstrap"):
            self.messages.append(message.rpartition("Connection lost: ")[2])

    @property
    def certificates(self) -> list[str]:
        """Returns the reasons for which a broker's certificate was refused. librdkafka does not name them all."""
        return [message for message in self.messages if "CERTIFICATE_VERIFY_FAILED" in message]


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ResponseError):
        return error.retriable
    if isinstance(
        error,
        kafka.errors.SaslAuthenticationFailedError
        | kafka.errors.AuthorizationError
        | kafka.errors.UnsupportedVersionError,
    ):
        return False
    return isinstance(error, PASSING)


def _lane(node: int, number: int) -> int | Lane:
    return Lane(node, number) if number else node


async def _ended(future: Any) -> Any:
    """Waits until a future is done, whether it has failed or not; returns it."""
    with contextlib.suppress(Exception):
        await future
    return future


def by(key: Callable[[Any], Any], items: Iterable[Any]) -> dict[Any, list[Any]]:
    """Groups items by equal keys."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
