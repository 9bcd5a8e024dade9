"""A flow: everything one job needs to know about mirroring one cluster into another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirrorlake.connection import Connection
from mirrorlake.errors import ConfigurationError
from mirrorlake.filter import NameFilter
from mirrorlake.policy import POLICIES, DefaultReplicationPolicy
from mirrorlake.properties import Properties, Scope

# Defaults of Kafka 4.3.0 (DefaultTopicFilter, DefaultGroupFilter).
TOPICS_EXCLUDE = r"mm2.*\.internal, .*\.replica, __.*"
GROUPS_EXCLUDE = "console-consumer-.*, connect-.*, __.*"

# Brokers refuse a longer transaction by default (transaction.max.timeout.ms).
LONGEST_TRANSACTION_MS = 900_000


@dataclass(frozen=True)
class Flow:
    """`source->target`, validated. Built by `Flow.load`; names and defaults are MirrorMaker 2's unless they start with mirrorlake.

    Attributes:
        slots: transactional ids that copy side by side; 0 is one for each task slot of the Spark cluster.
        batch_max_records, batch_max_bytes, batch_max_ms: limits of one micro-batch; the records of the flow, the bytes and the
            copying time of each slot.
        transaction_timeout_ms: after this the target aborts a transaction whose driver is gone.
        retry_timeout_ms: for this long retriable failures are retried without progress before the job stops.
    """

    source: str
    target: str
    source_connection: Connection
    target_connection: Connection
    policy: DefaultReplicationPolicy
    topics: NameFilter
    groups: NameFilter
    replication_factor: int
    offset_syncs_replication_factor: int
    refresh_topics_interval_s: int
    refresh_groups_interval_s: int
    emit_checkpoints_interval_s: int
    sync_group_offsets_enabled: bool
    slots: int
    batch_max_records: int
    batch_max_bytes: int
    batch_max_ms: int
    transaction_timeout_ms: int
    retry_timeout_ms: int
    connect_timeout_ms: int
    ledger_interval_s: int
    same_cluster_allowed: bool
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def offset_syncs_topic(self) -> str:
        """The topic on the target that holds state and runs; one partition for each slot."""
        return f"mirrorlake.offset-syncs.{self.source}.internal"

    def transactional_id(self, slot: int) -> str:
        return f"mirrorlake.{self.source}.{self.target}.slot-{slot}"

    def mirrors_topic(self, topic: str) -> bool:
        """True if this source topic belongs to the flow."""
        return topic in self.topics and not self.policy.is_internal_topic(topic) and not self.policy.is_cycle(topic, self.target)

    @classmethod
    def load(cls, config: str | Path, name: str) -> Flow:
        """The flow `name` of a property file.

        Raises:
            ConfigurationError: anything missing, malformed or contradictory; nothing has been created or contacted.
        """
        return cls.from_properties(Properties.load(config), name)

    @classmethod
    def from_properties(cls, properties: Properties, name: str) -> Flow:
        """See `load`."""
        scope = properties.scope(name)
        if not scope.flag("enabled", default=False):
            raise ConfigurationError(
                f"flow {scope.flow} is not enabled in {properties.path}: set {scope.flow}.enabled = true (enabled: {', '.join(properties.flows) or 'none'})"
            )
        if not scope.flag("emit.checkpoints.enabled", default=True) and scope.flag("sync.group.offsets.enabled", default=False):
            raise ConfigurationError(f"flow {scope.flow}: sync.group.offsets.enabled is true but emit.checkpoints.enabled is false: offsets are synced from checkpoints")
        batch_max_ms = scope.integer("mirrorlake.batch.max.ms", 5_000, 100, LONGEST_TRANSACTION_MS)
        transaction_timeout_ms = scope.integer("mirrorlake.transaction.timeout.ms", 60_000, 1_000, LONGEST_TRANSACTION_MS)
        if transaction_timeout_ms < 2 * batch_max_ms:
            raise ConfigurationError(
                f"flow {scope.flow}: mirrorlake.transaction.timeout.ms is {transaction_timeout_ms}, which leaves too little for a batch of "
                f"mirrorlake.batch.max.ms={batch_max_ms} and its gate; allowed is at least twice as much"
            )
        return cls(
            source=scope.source,
            target=scope.target,
            source_connection=properties.connection(scope.source),
            target_connection=properties.connection(scope.target),
            policy=_policy(scope),
            topics=NameFilter("topics", scope.names("topics", ".*"), scope.names("topics.exclude", TOPICS_EXCLUDE)),
            groups=NameFilter("groups", scope.names("groups", ".*"), scope.names("groups.exclude", GROUPS_EXCLUDE)),
            replication_factor=scope.integer("replication.factor", 2, 1, 32_767, also=-1),
            offset_syncs_replication_factor=scope.integer("offset-syncs.topic.replication.factor", 3, 1, 32_767, also=-1),
            refresh_topics_interval_s=_refresh(scope, "topics"),
            refresh_groups_interval_s=_refresh(scope, "groups"),
            emit_checkpoints_interval_s=scope.integer("emit.checkpoints.interval.seconds", 60, 1),
            sync_group_offsets_enabled=scope.flag("sync.group.offsets.enabled", default=False),
            slots=scope.integer("mirrorlake.slots", 0, 0, 1_000),
            batch_max_records=scope.integer("mirrorlake.batch.max.records", 5_000_000, 1),
            batch_max_bytes=scope.integer("mirrorlake.batch.max.bytes", 256 << 20, 1 << 10),
            batch_max_ms=batch_max_ms,
            transaction_timeout_ms=transaction_timeout_ms,
            retry_timeout_ms=scope.integer("mirrorlake.retry.timeout.ms", 300_000, 0),
            connect_timeout_ms=scope.integer("mirrorlake.connect.timeout.ms", 30_000, 100),
            ledger_interval_s=scope.integer("mirrorlake.ledger.interval.seconds", 10, 0),
            same_cluster_allowed=scope.flag("mirrorlake.same.cluster.allowed", default=False),
            warnings=properties.warnings(),
        )


def _policy(scope: Scope) -> DefaultReplicationPolicy:
    # MirrorMaker 2 files name the Java class; its simple name says which of ours is meant.
    wanted = scope.text("replication.policy.class", "DefaultReplicationPolicy")
    policy = POLICIES.get(wanted.rpartition(".")[2])
    if policy is None:
        raise ConfigurationError(f"flow {scope.flow}: property replication.policy.class is '{wanted}'; supported are {', '.join(POLICIES)}")
    separator = scope.text("replication.policy.separator", ".")
    if not separator or not set(separator) <= set("._-") | set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"):
        raise ConfigurationError(
            f"flow {scope.flow}: property replication.policy.separator is '{separator}'; allowed are characters that a topic name may have (letters, digits, . _ -)"
        )
    internal = separator if scope.flag("replication.policy.internal.topic.separator.enabled", default=True) else "."
    return policy(scope.source, separator, internal)


def _refresh(scope: Scope, what: str) -> int:
    """Seconds between two looks for new topics or groups; 0 for never again."""
    interval = scope.integer(f"refresh.{what}.interval.seconds", 600, 1)
    return interval if scope.flag(f"refresh.{what}.enabled", default=True) else 0
