"""Administration of one cluster: its topics, their configuration and their ACLs.

This module sends requests and turns their errors into mirrorlake's. It makes no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)  # fmt: skip

from mirrorlake.config.connection import Connection
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError
from mirrorlake.protocol.acls import CLUSTER, TOPIC, Acl
from mirrorlake.protocol.clients.settings import librdkafka
from mirrorlake.protocol.requests.grouping import portions
from mirrorlake.protocol.topic_changes import Entry

REQUEST_TIMEOUT_S = 30
# By default, librdkafka keeps a connection for a minute on which an answer was lost; all later requests wait behind it.
SOCKET_TIMEOUT_MS = 15_000
LEAST_SOCKET_TIMEOUT_MS = 1_000  # that librdkafka takes for the setup of a connection
RECORDS_AT_ONCE = 5_000  # of metadata; a KRaft controller refuses a request with more than 10,000 (POLICY_VIOLATION)
ACLS_AT_ONCE = 500
DESCRIBED_AT_ONCE = 500  # topics, of about 5 KB each: one answer has to come within the socket timeout over a slow line

NEEDED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "TOPIC",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "CLUSTER",
}

CONNECTION_GONE = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})

ABOUT_A_TOPIC = frozenset({KafkaError.INVALID_PARTITIONS})  # another job has added partitions

# Transient errors: elections, lost connections.
PASSING = ABOUT_A_TOPIC | frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    }
)

Refusals = dict[str, MirrorlakeError]  # by topic: the error of the request about it


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; the replication factor -1 stands for the cluster's default."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """The admin client of one side of a flow.

    Args:
        connection: the connection to the cluster.
        side: `source` or `target`, which decides the class of errors.
        flow: the name of the flow, for messages.
        start_timeout_ms: the time for which a job repeats what fails while it starts. One request, whose answer may be
            lost, takes half of it at most.
    """

    def __init__(
        self, connection: Connection, side: str, flow: str, start_timeout_ms: int = 2 * SOCKET_TIMEOUT_MS
    ) -> None:
        self._connection = connection
        self._socket_timeout_ms = max(LEAST_SOCKET_TIMEOUT_MS, min(SOCKET_TIMEOUT_MS, start_timeout_ms // 2))
        self._client: AdminClient | None = None
        self._abandoned: AdminClient | None = None
        self._probe: tuple[AdminClient, Any] | None = None  # a client, and the future of a request that it has sent
        self._settings: Mapping[str, Any] = {}
        self._kind = SourceError if side == "source" else TargetError
        self._flow, self._cluster = flow, connection.alias

    @property
    def client(self) -> AdminClient:
        """Returns a client with the present values of references, so that a password can be rotated."""
        try:
            settings = self._current_settings()
        except ConfigurationError:  # a file that a password is read from may be missing for a moment
            if self._client is None:
                raise
            return self._client
        client = self._client
        if client is None or settings != self._settings:
            client = self._new_client(settings)
            self._client, self._settings = client, settings
        return client

    def _current_settings(self) -> dict[str, Any]:
        timeouts_ms = {
            "socket.timeout.ms": self._socket_timeout_ms,
            "socket.connection.setup.timeout.ms": self._socket_timeout_ms,
        }
        return librdkafka(self._connection, log_level=0, **timeouts_ms)

    def _new_client(self, settings: dict[str, Any]) -> AdminClient:
        try:
            return AdminClient(settings)
        except KafkaException as error:  # such as no OAuth token
            raise self._refused("logging in", "DESCRIBE", error) from None

    def partitions(self) -> dict[str, int]:
        """Returns the number of partitions of each topic."""
        try:
            metadata = self.client.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise self._refused("listing topics", "DESCRIBE", error) from None
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def configs(self, topics: Iterable[str], denied: set[str] | None = None) -> dict[str, dict[str, Entry]]:
        """Returns the configuration of topics; leaves out topics that are missing or that must not be described.

        Args:
            topics: the names of topics.
            denied: gets the topics on which the principal needs DESCRIBE_CONFIGS.
        """
        found: dict[str, dict[str, Entry]] = {}
        for topic, future in self._described(topics):
            try:
                found[topic] = {name: _entry(entry) for name, entry in future.result().items()}
            except KafkaException as error:
                if error.args[0].code() in PASSING:
                    raise self._refused(f"describing topic {topic}", "DESCRIBE_CONFIGS", error) from None
                if denied is not None and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    denied.add(topic)
        return found

    def _described(self, topics: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Asks for the configuration of topics, a portion at a time; yields their names with futures."""
        for some in portions(topics, lambda _: 1, at_most=DESCRIBED_AT_ONCE):
            resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in some]
            futures = self.client.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
            yield from ((resource.name, future) for resource, future in futures.items())

    def create(self, topics: Iterable[NewTopic]) -> Refusals:
        """Creates topics; leaves a topic that exists as it is."""

        def make(some: list[NewTopic]) -> Refusals:
            futures = self.client.create_topics(
                [
                    kafka_admin.NewTopic(new.name, new.partitions, new.replication_factor, config=dict(new.config))
                    for new in some
                ],
                request_timeout=REQUEST_TIMEOUT_S,
            )
            named = {topic: (f"creating topic {topic}", future) for topic, future in futures.items()}
            return self._wait(named, "CREATE", unless=KafkaError.TOPIC_ALREADY_EXISTS)

        some = portions(topics, lambda new: 1 + new.partitions + len(new.config), RECORDS_AT_ONCE)
        return _until_away(some, make, lambda new: new.name)

    def answers(self, topic: str) -> bool:
        """Returns whether the controller answers, without waiting for it.

        The first call sends a request that changes nothing: it only checks whether a topic could be created. Calls
        return False until it is answered, and the one after an error that may pass sends another request. Each has a
        connection of its own, as a request that gets no answer costs those beside it theirs.

        Args:
            topic: a topic that exists, so that a broker that does not know such checks would create none.
        """
        probe = self._probe
        if probe is None:
            try:
                client = self._new_client(self._current_settings())
            except MirrorlakeError:  # a file or a login is missing; requests that are waited for say so
                return False
            asked = [kafka_admin.NewTopic(topic, 1, 1)]
            futures = client.create_topics(asked, validate_only=True, request_timeout=REQUEST_TIMEOUT_S)
            self._probe = probe = client, futures[topic]
        _, future = probe
        if not future.done():
            return False
        self._probe, error = None, future.exception()
        return not (isinstance(error, KafkaException) and error.args[0].code() in PASSING)

    def grow(self, topics: Mapping[str, int]) -> Refusals:
        """Adds partitions to topics, up to the given number of partitions."""

        def make(some: list[tuple[str, int]]) -> Refusals:
            futures = self.client.create_partitions(
                [NewPartitions(topic, partitions) for topic, partitions in some], request_timeout=REQUEST_TIMEOUT_S
            )
            named = {topic: (f"adding partitions to topic {topic}", future) for topic, future in futures.items()}
            return self._wait(named, "ALTER")

        return _until_away(portions(topics.items(), itemgetter(1), RECORDS_AT_ONCE), make, itemgetter(0))

    def alter_configs(self, values: Mapping[str, Mapping[str, str | None]]) -> Refusals:
        """Sets properties of topics, or resets those whose value is None; leaves all others as they are."""

        def make(some: list[tuple[str, Mapping[str, str | None]]]) -> Refusals:
            futures = self.client.incremental_alter_configs(
                [
                    ConfigResource(
                        ConfigResource.Type.TOPIC,
                        topic,
                        incremental_configs=[_alteration(*item) for item in config.items()],
                    )
                    for topic, config in some
                ],
                request_timeout=REQUEST_TIMEOUT_S,
            )
            named = {
                resource.name: (f"setting {', '.join(values[resource.name])} of topic {resource.name}", future)
                for resource, future in futures.items()
            }
            return self._wait(named, "ALTER_CONFIGS")

        return _until_away(portions(values.items(), lambda one: len(one[1]), RECORDS_AT_ONCE), make, itemgetter(0))

    def acls(self, resource: str = TOPIC) -> list[Acl] | None:
        """Returns the ACL bindings on topics, or on resources of all kinds (ANY).

        None if the cluster has no authorizer or denies this request.
        """
        everything = AclBindingFilter(
            ResourceType[resource],
            None,  # type: ignore[arg-type]  # None matches any value, but the types are those of a binding
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        try:
            found = self.client.describe_acls(everything, request_timeout=REQUEST_TIMEOUT_S).result()
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.SECURITY_DISABLED, *NEEDED):
                return None
            raise self._refused("listing ACLs", "DESCRIBE", error) from None
        if not found and not self._may_list_acls():
            return None
        return [
            Acl(
                name=acl.name,
                pattern=acl.resource_pattern_type.name,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation.name,
                permission=acl.permission_type.name,
                resource=CLUSTER if acl.restype is ResourceType.BROKER else acl.restype.name,
            )
            for acl in found
        ]

    def may_change_acls(self) -> bool:
        """Asks whether the principal may create and delete ACLs."""
        try:
            return AclOperation.ALTER in self._operations()
        except KafkaException as error:
            raise self._refused("asking what this principal may do", "DESCRIBE", error) from None

    def _may_list_acls(self) -> bool:
        """Asks whether the principal may list ACLs: librdkafka (2.16.1) returns none where the broker denies it, and
        nobody would have access any more."""
        try:
            return AclOperation.DESCRIBE in self._operations()
        except KafkaException:
            return False

    def _operations(self) -> Iterable[AclOperation]:
        """Returns what the principal may do on the cluster; nothing where it may not even know that."""
        cluster = self.client.describe_cluster(include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S)
        return cluster.result().authorized_operations or ()

    def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, MirrorlakeError]:
        """Creates ACL bindings; returns the errors of those that were refused."""
        return self._change_acls("giving", acls, AclBinding, self.client.create_acls)

    def delete_acls(self, acls: Iterable[Acl]) -> dict[Acl, MirrorlakeError]:
        """Deletes ACL bindings; returns the errors of those that were refused."""
        return self._change_acls("deleting ACL", acls, AclBindingFilter, self.client.delete_acls)

    def _change_acls(
        self, what: str, acls: Iterable[Acl], kind: Callable[..., Any], change: Callable[..., dict[Any, Any]]
    ) -> dict[Acl, MirrorlakeError]:
        """Changes ACL bindings, many with one request."""

        def make(some: list[Acl]) -> dict[Acl, MirrorlakeError]:
            made = {acl: kind(*_binding(acl)) for acl in some}
            futures = change(list(made.values()), request_timeout=REQUEST_TIMEOUT_S)
            refused = self._wait(
                {str(acl): (f"{what} {acl}", futures[binding]) for acl, binding in made.items()}, "ALTER"
            )
            return {acl: refused[str(acl)] for acl in some if str(acl) in refused}

        return _until_away(portions(dict.fromkeys(acls), lambda _: 1, ACLS_AT_ONCE), make, lambda acl: acl)

    def _wait(self, futures: Mapping[str, tuple[str, Any]], operation: str, unless: int | None = None) -> Refusals:
        refusals: Refusals = {}
        for name, (what, future) in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != unless:
                    refusals[name] = self._refused(what, operation, error)
        return refusals

    def _refused(self, what: str, operation: str, error: KafkaException) -> MirrorlakeError:
        if error.args[0].code() in CONNECTION_GONE:
            # librdkafka may wait behind a connection that was cut, or on which an answer was lost. A new client begins
            # anew. The old one stays here until its other answers are due.
            self._abandoned, self._client = self._client, None
        return _refused(self._kind, f"flow {self._flow}: {what} on cluster {self._cluster}", operation, error)


def is_away(error: MirrorlakeError) -> bool:
    """Returns True if a request has no answer, or one that has nothing to do with its topic."""
    return error.retriable and not error.lone


def _until_away(
    portions: Iterable[list[Any]],
    make: Callable[[list[Any]], dict[Any, MirrorlakeError]],
    key: Callable[[Any], Any],
) -> dict[Any, MirrorlakeError]:
    """Makes changes, a portion at a time; returns the errors of those that failed.

    Behind a portion without an answer, no more are sent: each would wait as long. They get its error.

    Args:
        portions: the changes.
        make: makes those of a portion, and returns errors by key.
        key: the key of a change.
    """
    refusals: dict[Any, MirrorlakeError] = {}
    away: MirrorlakeError | None = None
    for some in portions:
        refused = make(some) if away is None else {key(one): away for one in some}
        away = away or next(filter(is_away, refused.values()), None)
        refusals |= refused
    return refusals


def _entry(entry: ConfigEntry) -> Entry:
    source = ConfigSource(entry.source)
    return Entry(
        entry.value,
        own=source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
        default=source is ConfigSource.DEFAULT_CONFIG,
        static=source is ConfigSource.STATIC_BROKER_CONFIG,
        fixed=entry.is_read_only or entry.is_sensitive,
    )


def _alteration(name: str, value: str | None) -> ConfigEntry:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    return ConfigEntry(name, value or "", incremental_operation=operation)


def _binding(acl: Acl) -> tuple[Any, ...]:
    return (
        ResourceType.BROKER if acl.resource == CLUSTER else ResourceType[acl.resource],
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )


def _refused(
    kind: type[SourceError] | type[TargetError], what: str, operation: str, error: KafkaException
) -> MirrorlakeError:
    """Makes the error of an admin request that failed.

    Args:
        kind: the class of the error.
        what: the request and its object, for the message.
        operation: the ACL operation that the request needs.
        error: the failure.

    Returns:
        The error. If a permission is missing, its message names that permission.
    """
    cause: Any = error.args[0]
    if cause.code() in NEEDED:
        return kind(
            f"{what}: not authorised: the principal needs {operation} on this {NEEDED[cause.code()]}. Grant it and "
            "start again"
        )
    if cause.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        return kind(  # which passes if a broker is being restarted
            f"{what}: {cause.str()}. Set replication.factor and offset-syncs.topic.replication.factor to what the "
            "cluster's brokers allow (-1: its default)",
            retriable=True,
            lone=True,
        )
    return kind(
        f"{what}: {cause.name()}{': ' + cause.str() if cause.str() else ''}",
        retriable=cause.code() in PASSING,
        lone=cause.code() in ABOUT_A_TOPIC,
    )
