"""Topics on the target: created when they are missing, grown when the source's have grown, never shrunk or deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from mirrorlake.errors import MirrorlakeError, SourceError, TargetError
from mirrorlake.flow import Flow
from mirrorlake.offset_syncs import TOPIC_CONFIG

REQUEST_TIMEOUT_S = 30

# Without these a batch does not stay what it was: the broker would compress or stamp its records anew, or refuse old ones.
REMOTE_CONFIG = {
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}

NEEDED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "TOPIC",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "CLUSTER",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "GROUP",
}

# What goes away by itself: elections, coordinators that move or load, connections that are lost.
PASSING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._WAIT_COORD, KafkaError._RESOLVE,
    }
)  # fmt: skip


class RemoteTopics:
    """The topics of a flow on its target.

    Args:
        flow: whose topics.
        source, target: admin clients of both clusters.
        say: called with a line for every change.
    """

    def __init__(self, flow: Flow, source: AdminClient, target: AdminClient, say: Callable[[str], None]) -> None:
        self._flow, self._source, self._target, self._say = flow, source, target, say
        self._partitions: dict[str, int] = {}

    def ensure_offset_syncs(self, slots: int) -> int:
        """Creates the flow's offset-syncs topic, or adds partitions for more slots; returns how many partitions it has."""
        topic = self._flow.offset_syncs_topic
        self._list()
        have = self._partitions.get(topic, 0)
        if have == 0:
            self._create([NewTopic(topic, slots, self._flow.offset_syncs_replication_factor, config=TOPIC_CONFIG)])
        elif have < slots:
            self._grow([NewPartitions(topic, slots)])
        return max(have, slots)

    def ensure(self, topics: Mapping[str, int]) -> None:
        """Makes the remote topic of each source topic exist with at least as many partitions. Costs nothing once that is so.

        Raises:
            ConfigurationError: see `Flow.remote_topics`.
            TargetError: a topic can't be created or grown (naming the permission, if it is that), or can't take batches as they are.
        """
        wanted: dict[str, int] = {}
        origin: dict[str, str] = {}
        for topic, remote in self._flow.remote_topics(topics).items():
            wanted[remote] = max(wanted.get(remote, 0), topics[topic])  # the widest, where several are merged
            origin[remote] = topic
        if all(self._partitions.get(remote, 0) >= partitions for remote, partitions in wanted.items()):
            return
        self._list()
        self._require_usable([remote for remote in wanted if remote in self._partitions])
        missing = [remote for remote in wanted if remote not in self._partitions]
        if missing:
            sizes = self._message_sizes([origin[remote] for remote in missing])
            self._create(
                [NewTopic(remote, wanted[remote], self._flow.replication_factor, config={**REMOTE_CONFIG, **sizes.get(origin[remote], {})}) for remote in missing]
            )
        small = [NewPartitions(remote, partitions) for remote, partitions in wanted.items() if 0 < self._partitions.get(remote, 0) < partitions]
        if small:
            self._grow(small)

    def _list(self) -> None:
        try:
            metadata = self._target.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise refused(TargetError, f"flow {self._flow.name}: listing the topics of cluster {self._flow.target}", "DESCRIBE", error) from None
        self._partitions = {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def _create(self, topics: list[NewTopic]) -> None:
        for topic, future in self._target.create_topics(topics, request_timeout=REQUEST_TIMEOUT_S).items():
            new = next(candidate for candidate in topics if candidate.topic == topic)
            try:
                future.result()
                self._say(f"created topic {topic} with {new.num_partitions} partitions on cluster {self._flow.target}")
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise refused(TargetError, f"flow {self._flow.name}: creating topic {topic} on cluster {self._flow.target}", "CREATE", error) from None
            self._partitions[topic] = new.num_partitions

    def _grow(self, topics: list[NewPartitions]) -> None:
        for topic, future in self._target.create_partitions(topics, request_timeout=REQUEST_TIMEOUT_S).items():
            total = next(candidate.new_total_count for candidate in topics if candidate.topic == topic)
            try:
                future.result()
            except KafkaException as error:
                raise refused(TargetError, f"flow {self._flow.name}: adding partitions to topic {topic} on cluster {self._flow.target}", "ALTER", error) from None
            self._say(f"topic {topic} on cluster {self._flow.target} has {total} partitions now")
            self._partitions[topic] = total

    def _require_usable(self, remotes: list[str]) -> None:
        for remote, config in self._configs(self._target, remotes).items():
            if config.get("message.timestamp.type") == "LogAppendTime":
                raise TargetError(
                    f"flow {self._flow.name}: topic {remote} on cluster {self._flow.target} has message.timestamp.type=LogAppendTime, which would overwrite every "
                    "record's timestamp. Set it to CreateTime"
                )

    def _message_sizes(self, topics: list[str]) -> dict[str, dict[str, str]]:
        """max.message.bytes of source topics that set it themselves, so that what fitted there fits here."""
        return {
            topic: {"max.message.bytes": config["max.message.bytes"]} for topic, config in self._configs(self._source, topics).items() if "max.message.bytes" in config
        }

    @staticmethod
    def _configs(admin: AdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
        """The configuration of topics, without defaults; nothing for those this principal may not describe."""
        found: dict[str, dict[str, str]] = {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        for resource, future in (admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S) if resources else {}).items():
            try:
                found[resource.name] = {name: entry.value for name, entry in future.result().items() if not entry.is_default or name == "message.timestamp.type"}
            except KafkaException:
                continue
        return found


def refused(kind: type[SourceError] | type[TargetError], what: str, operation: str, error: KafkaException) -> MirrorlakeError:
    """An admin request's failure for people: what it was about, and which permission is missing if that is why."""
    cause: Any = error.args[0]
    if cause.code() in NEEDED:
        return kind(f"{what}: not authorised: the principal needs {operation} on this {NEEDED[cause.code()]}. Grant it and start again")
    if cause.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        return kind(f"{what}: {cause.str()}. Set replication.factor and offset-syncs.topic.replication.factor to what the cluster's brokers allow (-1: its default)")
    return kind(f"{what}: {cause.name()}{': ' + cause.str() if cause.str() else ''}", retriable=cause.code() in PASSING)
