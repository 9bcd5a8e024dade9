"""Raw requests to one cluster: routing to leaders and coordinators, retries and their deadlines.

Only requests that are safe to repeat are retried: reads, look-ups, InitProducerId and EndTxn. A Produce request is
never repeated. If it fails, the attempt and its transaction fail.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.produce_request import ProduceInPieces
from mirrorlake.protocol.batches.record_batch import Sealed
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.network.event_loop import EventLoop
from mirrorlake.protocol.network.network_client import NetworkClient, Result
from mirrorlake.protocol.network.response_error import (
    ResponseError,
    WireError,
    check,
    check_repeatable,
    is_unauthorized,
    may_pass,
)
from mirrorlake.protocol.requests.fetch import Fetched, fetch_request, fetched_partitions
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.protocol.requests.list_offsets import list_offsets_request, listed_offsets
from mirrorlake.protocol.requests.metadata import Topic, epoch_of, leader_of

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
TRANSACTION_COORDINATOR = 1
TOPIC_RESOURCE = 2
# A broker refuses to look up a name that is not valid; there is no such topic, either.
NO_SUCH_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC)
OLDEST_BROKER = (2, 8)
LISTING_S = 2.0
LONGER = 1.5
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 1.0


Listed = dict[PartitionKey, tuple[int, int]]  # an offset, and the leader epoch
Unlisted = dict[PartitionKey, Exception]


class Cluster(NetworkClient):
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
        self.topics: dict[str, Topic] = {}
        self.cluster_id = ""
        self.transaction_version = 0
        self.limits = Limits()
        self.states_seen: dict[PartitionKey, object] = {}
        self._names: dict[str, str] = {}
        self._coordinators: dict[str, int] = {}
        super().__init__(connection, side, client_id, connect_timeout_ms, net)

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

    # -- retries and routing ------------------------------------------------------------------------

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
                if not may_pass(error):
                    raise self.explained(what, error) from None
                if time.monotonic() + backoff > deadline:
                    raise self.explained(f"{what}, retried for {timeout_ms} ms", error, retriable=True) from None
                await self.net.sleep(backoff * random.uniform(0.8, 1.2))
                backoff = min(2 * backoff, LAST_BACKOFF_S)
                if not is_busy:
                    await self._refresh_brokers()

    def leader(self, topic: str, partition: int) -> int:
        """Returns the node id of a partition's leader, -1 if it is unknown."""
        return leader_of(self.topics, topic, partition)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Returns the leader epoch of a partition that goes with `leader`, -1 if it is unknown."""
        return epoch_of(self.topics, topic, partition)

    async def coordinator(self, transactional_id: str) -> int:
        """Returns the node id of a transaction coordinator."""
        if transactional_id not in self._coordinators:
            response = await self.send_any(
                FindCoordinatorRequest[3](key=transactional_id, key_type=TRANSACTION_COORDINATOR)
            )
            check_repeatable(response.error_code, response.error_message or "")
            self._coordinators[transactional_id] = response.node_id
        return self._coordinators[transactional_id]

    async def brokers(self) -> list[int]:
        """Returns the node ids of all brokers, from fresh metadata."""
        await self.update_metadata([])
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    async def _refresh_brokers(self) -> None:
        # With `operations`, a topic that may not be described any more is no error: it would hide the others' leaders.
        try:
            await self.update_metadata(list(self.topics), operations=True)
        except ResponseError:  # the next attempt will report it
            pass
        except WireError as error:
            if may_pass(error):  # a login that is rejected is not repeated
                await self.bootstrap_again()

    # -- metadata and offsets -----------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None, timeout_ms: int, *, operations: bool = False) -> dict[str, Topic]:
        """Reads the metadata of topics (of all with None); leaves out topics that don't exist. Never creates a topic.

        With `operations`, the metadata include the operations that this principal may perform. A topic that the
        principal must not even describe then allows no operation.
        """
        wanted = None if topics is None else list(topics)
        return self.call("reading metadata", lambda: self.update_metadata(wanted, operations=operations), timeout_ms)

    async def ask_every_broker(
        self, topics: list[str], *, operations: bool = False
    ) -> tuple[dict[str, Topic], dict[str, str]]:
        """Reads the metadata of topics from each broker, as one that led a partition before may not know its successor.

        Returns:
            The topics, with the newest leader that any broker knows of each partition. And those of which a broker may
            know better, with the reason: it does not answer, or knows another topic of this name, or none.
        """
        found = await self.update_metadata(topics, operations=operations, even_denied=True)
        brokers = [broker.node_id for broker in self._manager.cluster.brokers()]
        told: dict[int, dict[str, Topic]] = {}

        async def ask(node: int) -> None:
            with contextlib.suppress(ResponseError, WireError):
                told[node] = await self.update_metadata(topics, operations=operations, even_denied=True, node=node)

        await self.each([partial(ask, node) for node in brokers], len(brokers))
        silent, doubts = sorted(set(brokers) - told.keys()), dict[str, str]()
        for name in topics:
            answers = sorted(
                (answer[name] for answer in told.values() if name in answer), key=lambda topic: -topic.partitions
            )
            if silent:
                doubts[name] = f"broker {silent[0]} of cluster {self.connection.alias} does not say who leads it"
            elif len(answers) < len(told) or len({topic.topic_id for topic in answers}) > 1:
                doubts[name] = f"the brokers of cluster {self.connection.alias} know different topics of this name"
            if answers:
                found[name] = reduce(Topic.with_newer, answers)
                if found[name].leaders:
                    self.topics[name] = found[name]
        return found, doubts

    async def update_metadata(
        self,
        topics: list[str] | None,
        *,
        operations: bool = False,
        even_denied: bool = False,
        request_timeout_ms: int | None = None,
        node: int | None = None,
    ) -> dict[str, Topic]:
        """Does the same as `refresh`, for use inside the event loop, without retries.

        With `even_denied`, a topic that the principal must not describe is no error, as with `operations`, which a
        broker has to find out. With `node`, this broker is asked; once connected, it has LISTING_S for its answer.
        """
        version = min(12, self.max_version(MetadataRequest))
        asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        began, throttled_ms = time.monotonic(), self.throttled_ms
        request = MetadataRequest[version](
            topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=operations
        )
        if node is None:
            response = await self.send_any(request, request_timeout_ms)
        else:
            asked = self.send(request, node)
            while self.is_connecting(node) and not asked.is_done:
                await self.first_of([asked])
            response = await self._within(asked, time.monotonic() + LISTING_S)
        if not response.brokers:  # it starts, and would say of every topic that it does not exist
            raise ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, "a broker that starts knows no broker yet")
        if node is None and self.throttled_ms == throttled_ms:  # otherwise it has waited for that, or for a connection
            # One that is slow by accident shows little; a line that has become longer is believed after a few.
            self.round_trip_s = min(time.monotonic() - began, LONGER * self.round_trip_s)
        self._manager.cluster.update_metadata(response)  # the manager keeps its own list of brokers
        self.cluster_id = response.cluster_id or ""
        found: dict[str, Topic] = {}
        for topic in response.topics:
            if topic.error_code in NO_SUCH_TOPIC:
                self.topics.pop(topic.name, None)
                continue
            if (operations or even_denied) and topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
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
        self, partitions: Iterable[PartitionKey], timeout_ms: int, *, requires_some: bool = True
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, str]]:
        """Lists the last stable offset and the leader epoch of each partition, and the reasons of those that have none.

        A partition without a leader, or with one that does not answer within LISTING_S, or that the principal may not
        see any more, holds up no other. A topic that was deleted is left out of `topics` then. The epoch is -1 if the
        broker does not return one.

        Raises:
            SourceError, TargetError: no partition can be listed within `timeout_ms`, and `requires_some` is true.
        """
        wanted = list(partitions)
        found, failed = self._listed(lambda: self._each_listed(wanted, LATEST_TIMESTAMP), even_denied=True)
        if failed and not found and requires_some:
            return self.call(
                "listing offsets", lambda: self._list_offsets(wanted, LATEST_TIMESTAMP, READ_COMMITTED), timeout_ms
            ), {}
        return found, {key: str(error) for key, error in failed.items()}

    def log_bounds(
        self, partitions: Iterable[PartitionKey]
    ) -> tuple[dict[PartitionKey, tuple[int, int, int]], dict[PartitionKey, str]]:
        """Lists the log start offset, the last stable offset and the high watermark of each partition, and the reasons
        of those that have none now; see `stable_ends`.

        Raises:
            SourceError, TargetError: the principal may not see a partition.
        """
        found: dict[PartitionKey, tuple[int, ...]] = dict.fromkeys(partitions, ())
        failed: dict[PartitionKey, Exception] = {}
        listings = (
            (EARLIEST_TIMESTAMP, READ_COMMITTED),
            (LATEST_TIMESTAMP, READ_COMMITTED),
            (LATEST_TIMESTAMP, READ_UNCOMMITTED),
        )
        for at, isolation in listings:
            listed, errors = self._listed(partial(self._each_listed, [*found], at, isolation, connects=True))
            found = {key: (*found[key], offset) for key, (offset, _) in listed.items()}
            failed |= errors
        bounds = {key: (start, end, high) for key, (start, end, high) in found.items()}
        return bounds, {key: str(error) for key, error in failed.items()}

    def log_starts(self, partitions: Iterable[PartitionKey]) -> tuple[dict[PartitionKey, int], set[PartitionKey]]:
        """Lists the log start offset of each partition, and returns the partitions that can't be listed now. Those that
        can't be listed by this principal are in neither."""
        wanted = list(partitions)
        found, failed = self._listed(lambda: self._each_listed(wanted, EARLIEST_TIMESTAMP), even_denied=True)
        unread = {key for key, error in failed.items() if not is_unauthorized(error)}
        return {key: offset for key, (offset, _) in found.items()}, unread

    def high_watermarks(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Lists the high watermark of each partition; leaves out those whose leader does not answer in time.

        Raises:
            SourceError, TargetError: the principal may not see a partition.
        """
        wanted = list(partitions)
        found, _ = self._listed(lambda: self._list_each(wanted, LATEST_TIMESTAMP, READ_UNCOMMITTED, LISTING_S))
        return {key: offset for key, (offset, _) in found.items()}

    def _listed(
        self, attempt: Callable[[], Awaitable[tuple[Listed, Unlisted]]], *, even_denied: bool = False
    ) -> tuple[Listed, Unlisted]:
        try:
            found, failed = self.net.run(attempt)
            for error in failed.values():
                if is_unauthorized(error) and not even_denied:
                    raise error
        except (ResponseError, WireError) as error:  # none that may pass: a right or a login that was revoked
            raise self.explained("listing offsets (needs DESCRIBE)", error) from None
        return found, failed

    async def _each_listed(
        self, partitions: list[PartitionKey], at: int, isolation: int = READ_COMMITTED, *, connects: bool = False
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, Exception]]:
        """Lists what can be listed; asks once more for the rest, with fresh metadata."""
        found, failed = await self._list_each(partitions, at, isolation, LISTING_S, connects=connects)
        if failed:
            with contextlib.suppress(ResponseError, WireError):
                await self.update_metadata(sorted({topic for topic, _ in failed}), operations=True)
            again, failed = await self._list_each(list(failed), at, isolation, LISTING_S, connects=connects)
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
        self,
        partitions: list[PartitionKey],
        at: int,
        isolation: int,
        within_s: float = float("inf"),
        *,
        connects: bool = False,
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, Exception]]:
        """Lists an offset and the leader epoch of each partition, and the retriable errors of those that have none.

        With `connects`, the time begins for each broker once the connection to it is established, or has failed.
        """
        asked = []
        for node, keys in by(lambda key: self.leader(*key), partitions).items():
            request = list_offsets_request(self.topics, keys, at, isolation)
            asked.append((keys, node, self.send(request, node)))
        found: dict[PartitionKey, tuple[int, int]] = {}
        failed: dict[PartitionKey, Exception] = {}
        deadline = time.monotonic() + within_s
        for keys, node, future in asked:
            try:
                while connects and self.is_connecting(node) and not future.is_done:
                    await self.first_of([future])
                    deadline = time.monotonic() + within_s
                response = await self._within(future, deadline)
            except WireError as error:
                if not may_pass(error):
                    raise
                failed.update(dict.fromkeys(keys, error))
                continue
            listed, retriable = listed_offsets(response)
            found.update(listed)
            failed.update(retriable)
        return found, failed

    async def topic_config(self, topic: str, name: str) -> str | None:
        """Returns one property of a topic, None if this principal lacks DESCRIBE_CONFIGS."""
        return (await self.topic_configs(topic, name)).get(name)

    async def topic_configs(self, topic: str, *names: str) -> dict[str, str | None]:
        """Returns properties of a topic, none if this principal lacks DESCRIBE_CONFIGS."""
        return (await self.each_topic_configs([topic], *names))[topic]

    async def each_topic_configs(self, topics: Iterable[str], *names: str) -> dict[str, dict[str, str | None]]:
        """Does the same for several topics in one request."""
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[*names]
            )
            for topic in topics
        ]
        response = await self.send_any(DescribeConfigsRequest[1](resources=resources, include_synonyms=False))
        found: dict[str, dict[str, str | None]] = {}
        for result in response.results:
            found[result.resource_name] = {config.name: config.value for config in result.configs}
            if result.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                check(result.error_code, f"{result.resource_name} (needs DESCRIBE_CONFIGS)")
        return found

    # -- data ---------------------------------------------------------------------------------------

    def fetch(
        self,
        node: int,
        offsets: Mapping[PartitionKey, int],
        max_bytes: int,
        partition_max_bytes: int | Mapping[PartitionKey, int],
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
            partition_max_bytes: the size limit of each partition, or of all of them.
            max_wait_ms: the longest time that the broker waits for records.
            isolation: READ_COMMITTED or READ_UNCOMMITTED.
            epochs: the leader epoch of the batch read last, by partition. The broker uses it to detect a
                diverged log (KIP-595).
            lane: the number of the connection.
        """
        if isinstance(partition_max_bytes, int):
            partition_max_bytes = dict.fromkeys(offsets, partition_max_bytes)
        request = fetch_request(
            self.topics,
            offsets,
            self.max_version(FetchRequest),
            max_bytes,
            partition_max_bytes,
            max_wait_ms,
            isolation,
            epochs or {},
        )
        return self.send(request, node, lane)

    def fetched(self, response: Any) -> Iterator[Fetched]:
        """Yields the partitions of a Fetch response."""
        return fetched_partitions(response, self._names)

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
    def stamped(response: Any) -> PartitionKey | None:
        """Returns a partition whose topic has given records the broker's time in place of their own; else None."""
        return next(
            (
                (topic.name, partition.index)
                for topic in response.responses
                for partition in topic.partition_responses
                if not partition.error_code and partition.log_append_time_ms >= 0
            ),
            None,
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
    try:
        target = Cluster(flow.target_connection, "target", client_id, timeout_ms, source.net)
        return source, target.connect(again=again)
    except BaseException:
        source.close()
        raise
