"""A flow: everything one job needs to know about mirroring one cluster into another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirrorlake.config.connection import Connection
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties, Scope
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.config.replication_policy import DefaultReplicationPolicy, RenameReplicationPolicy, find_policy
from mirrorlake.config.start import Start
from mirrorlake.config.transform import Transform
from mirrorlake.errors import ConfigurationError

# Defaults of Kafka 4.3.0 (DefaultTopicFilter, DefaultConfigPropertyFilter, DefaultGroupFilter).
TOPICS_EXCLUDE = r"mm2.*\.internal, .*\.replica, __.*"
CONFIG_PROPERTIES_EXCLUDE = """follower.replication.throttled.replicas, leader.replication.throttled.replicas,
  message.timestamp.difference.max.ms,
    message.timestamp.type, unclean.leader.election.enable, min.insync.replicas, log.message.timestamp.before.max.ms,
      log.message.timestamp.after.max.ms"""
GROUPS_EXCLUDE = "console-consumer-.*, connect-.*, __.*"

CREATION = "target.topic.creation."
OFFSET_SYNCS_PREFIX, OFFSET_SYNCS_SUFFIX = "mirrorlake.offset-syncs.", ".internal"
TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_TOPIC_NAME = 249

# Why `Flow.scatters` leaves a group without a place.
SCATTERED = "the topic's transform decides about partitions, so no one position on the target stands for this one"

# Brokers refuse a longer transaction by default (transaction.max.timeout.ms).
LONGEST_TRANSACTION_MS = 900_000


@dataclass(frozen=True)
class MirrorMakerSettings:
    """What MirrorMaker 2 uses for the same flow: the group of its workers, the topic on the target with its source
    offsets, and how it reads."""

    group_id: str
    offsets_topic: str
    offsets_replication_factor: int
    isolation: str


@dataclass(frozen=True)
class Flow:
    """`source->target`, validated. Built by `Flow.load`; names and defaults are MirrorMaker 2's unless they start with
    mirrorlake.

    Attributes:
        slots: transactional ids that copy side by side; 0 is one for each task slot of the Spark cluster.
        batch_max_records, batch_max_transformed_records, batch_max_bytes, batch_max_ms: limits of one micro-batch; the
            records of the flow, and those of its topics that have a transform; the bytes and the copying time of each
            slot.
        transaction_timeout_ms: after this the target aborts a transaction whose driver is gone.
        retry_timeout_ms: for this long retriable failures are retried without progress before the job stops.
        topic_configs: which properties of topics are kept in step, `all` that the source has, or the `intersection`,
            those that the target knows too.
        topic_creation: properties that remote topics are created with, whatever the source has.
        topic_creation_partitions: the fewest partitions that they are created with.
        emit_heartbeats_back: whether the flow back would emit heartbeats, too, which is how the target's clients learn
            of this source.
        emit_offset_syncs_enabled, offset_syncs_location: whether MirrorMaker 2's offset syncs are written, and to which
            side.
        start: where partitions begin that were never mirrored.
        paused, topics_paused: what is not copied for now; positions stay.
        topics_shared: others write to the remote topics too, such as producers of the target or other flows.
        records: which records of a topic are mirrored, `all` or `local`, those that no flow has brought to the source.
        passes_over_losses: whether the flow goes on, and writes down what is lost, where records can't be had any more;
            else it stops.
        minds_provenance: whether a record must be asked where it came from, because names can't tell.
        transforms: what is done to the records of some topics; of those whose filter takes a topic, the first is for
            it.
        registries: the schema registries of source and target, where transforms translate ids.
        dead_letter_topic: the topic on the target for records that can't be transformed, where their transform says so.
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
    sync_group_offsets_interval_s: int
    slots: int
    batch_max_records: int
    batch_max_transformed_records: int
    batch_max_bytes: int
    batch_max_ms: int
    transaction_timeout_ms: int
    retry_timeout_ms: int
    connect_timeout_ms: int
    ledger_interval_s: int
    same_cluster_allowed: bool
    sync_topic_configs_enabled: bool
    sync_topic_configs_interval_s: int
    config_properties_excluded: NameFilter
    use_defaults_from: str
    topic_configs: str
    topic_creation: tuple[tuple[str, str], ...]
    topic_creation_partitions: int
    sync_topic_acls_enabled: bool
    sync_topic_acls_interval_s: int
    heartbeats_replication_enabled: bool
    emit_heartbeats_enabled: bool
    emit_heartbeats_back: bool
    emit_heartbeats_interval_s: int
    heartbeats_replication_factor: int
    emit_checkpoints_enabled: bool
    checkpoints_replication_factor: int
    emit_offset_syncs_enabled: bool
    offset_syncs_location: str
    mirrormaker: MirrorMakerSettings
    start: Start
    paused: bool
    topics_paused: NameFilter
    topics_shared: bool
    records: str
    minds_provenance: bool
    passes_over_losses: bool
    transforms: tuple[Transform, ...] = ()
    dead_letter_topic: str = ""
    registries: tuple[SchemaRegistry, SchemaRegistry] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def offset_syncs_topic(self) -> str:
        """The topic on the target that holds state and runs; one partition for each slot."""
        return offset_syncs_topic(self.source)

    def transactional_id(self, slot: int) -> str:
        return f"mirrorlake.{self.source}.{self.target}.slot-{slot}"

    def slots_on(self, cores: int) -> int:
        """How many slots copy side by side where Spark has that many cores."""
        return self.slots or max(1, cores)

    def mirrors_topic(self, topic: str) -> bool:
        """True if this source topic belongs to the flow."""
        is_heartbeats = self.heartbeats_replication_enabled and self.policy.is_heartbeats_topic(topic)
        return (
            (topic in self.topics or is_heartbeats)
            and not self.policy.is_internal_topic(topic)
            and not self.policy.is_cycle(topic, self.target)
        )

    def transform_of(self, topic: str) -> Transform | None:
        """What is done to the records of a source topic; None if they are mirrored as they are. Heartbeats are, as long
        as they are replicated by themselves."""
        if self.heartbeats_replication_enabled and self.policy.is_heartbeats_topic(topic):
            return None
        return next((transform for transform in self.transforms if topic in transform.topics), None)

    def scatters(self, topic: str) -> bool:
        """True where a transform decides about partitions, so that a group's position on one of them has no single
        counterpart."""
        transform = self.transform_of(topic)
        return transform is not None and bool(transform.partition)

    def is_paused(self, topic: str) -> bool:
        return self.paused or topic in self.topics_paused

    def remote_topics(self, topics: Iterable[str]) -> dict[str, str]:
        """The remote name of each source topic.

        Raises:
            ConfigurationError: a name that Kafka or mirrorlake has no place for, or one for two topics although they
                are not `topics_shared`.
        """
        remote: dict[str, str] = {}
        origin: dict[str, str] = {}
        for topic in sorted(topics):
            name = remote[topic] = self.policy.remote_topic(topic)
            if not _is_topic_name(name) or self.policy.is_internal_topic(name):
                raise ConfigurationError(
                    f"flow {self.name}: topic {topic} would be called '{name}' on cluster {self.target}, which is no "
                    "name for a topic (1 to 249 letters, digits, . _ -, "
                    "and not an internal one). Correct the replication policy, or take the topic out of the flow "
                    "(topics.exclude)"
                )
            if origin.setdefault(name, topic) != topic and not self.topics_shared:
                raise ConfigurationError(
                    f"flow {self.name}: topics {origin[name]} and {topic} would both be called {name} on cluster "
                    f"{self.target}. Correct the replication policy, "
                    "or set mirrorlake.topics.shared = true if they are meant to be merged"
                )
        return remote

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
                f"flow {scope.flow} is not enabled in {properties.path}: set {scope.flow}.enabled = true (enabled: "
                f"{', '.join(properties.flows) or 'none'})"
            )
        if not scope.flag("emit.checkpoints.enabled", default=True) and scope.flag(
            "sync.group.offsets.enabled", default=False
        ):
            raise ConfigurationError(
                f"flow {scope.flow}: sync.group.offsets.enabled is true but emit.checkpoints.enabled is false: offsets "
                "are synced from checkpoints"
            )
        batch_max_ms = scope.integer("mirrorlake.batch.max.ms", 5_000, 100, LONGEST_TRANSACTION_MS)
        transaction_timeout_ms = scope.integer(
            "mirrorlake.transaction.timeout.ms", 60_000, 1_000, LONGEST_TRANSACTION_MS
        )
        if transaction_timeout_ms < 2 * batch_max_ms:
            raise ConfigurationError(
                f"flow {scope.flow}: mirrorlake.transaction.timeout.ms is {transaction_timeout_ms}, which leaves too "
                "little for a batch of "
                f"mirrorlake.batch.max.ms={batch_max_ms} and its gate; allowed is at least twice as much"
            )
        records = scope.choice("mirrorlake.records", "all", ("all", "local"))
        ring = _ring(properties, scope)
        if ring and records != "local":
            raise ConfigurationError(
                f"flow {scope.flow}: the flows {' -> '.join(ring)} form a ring in which topics keep their names, so "
                "that records would go round for ever. Set "
                "mirrorlake.records = local for them (each flow then takes only what was first written on its source), "
                "or use DefaultReplicationPolicy"
            )
        back = properties.scope(f"{scope.target}->{scope.source}")
        policy, names_tell = _policy(scope), _names_tell(scope, back)
        same_cluster_allowed = scope.flag("mirrorlake.same.cluster.allowed", default=False)
        transforms = Transform.parse_all(scope)
        return cls(
            source=scope.source,
            target=scope.target,
            source_connection=properties.connection(scope.source),
            target_connection=properties.connection(scope.target),
            policy=policy,
            topics=NameFilter("topics", scope.names("topics", ".*"), scope.names("topics.exclude", TOPICS_EXCLUDE)),
            groups=NameFilter("groups", scope.names("groups", ".*"), scope.names("groups.exclude", GROUPS_EXCLUDE)),
            replication_factor=scope.integer(
                f"{CREATION}replication.factor",
                scope.integer("replication.factor", 2, 1, 32_767, also=-1),
                1,
                32_767,
                also=-1,
            ),
            offset_syncs_replication_factor=scope.integer(
                "offset-syncs.topic.replication.factor", 3, 1, 32_767, also=-1
            ),
            refresh_topics_interval_s=_refresh(scope, "topics"),
            refresh_groups_interval_s=_refresh(scope, "groups"),
            emit_checkpoints_interval_s=scope.integer("emit.checkpoints.interval.seconds", 5, 1),
            sync_group_offsets_enabled=scope.flag("sync.group.offsets.enabled", default=False),
            sync_group_offsets_interval_s=scope.integer("sync.group.offsets.interval.seconds", 0, 1, also=0),
            slots=scope.integer("mirrorlake.slots", 0, 0, 1_000),
            batch_max_records=scope.integer("mirrorlake.batch.max.records", 5_000_000, 1),
            batch_max_transformed_records=scope.integer("mirrorlake.batch.max.transformed.records", 200_000, 1),
            batch_max_bytes=scope.integer("mirrorlake.batch.max.bytes", 1 << 30, 1 << 10),
            batch_max_ms=batch_max_ms,
            transaction_timeout_ms=transaction_timeout_ms,
            retry_timeout_ms=scope.integer("mirrorlake.retry.timeout.ms", 300_000, 0),
            connect_timeout_ms=scope.integer("mirrorlake.connect.timeout.ms", 30_000, 100),
            ledger_interval_s=scope.integer("mirrorlake.ledger.interval.seconds", 30, 0),
            same_cluster_allowed=same_cluster_allowed,
            sync_topic_configs_enabled=scope.flag("sync.topic.configs.enabled", default=True),
            sync_topic_configs_interval_s=scope.integer("sync.topic.configs.interval.seconds", 600, 1),
            config_properties_excluded=NameFilter(
                "config.properties.exclude", scope.names("config.properties.exclude", CONFIG_PROPERTIES_EXCLUDE)
            ),
            use_defaults_from=scope.choice("use.defaults.from", "target", ("source", "target")),
            topic_configs=scope.choice("mirrorlake.topic.configs", "all", ("all", "intersection")),
            topic_creation=tuple(
                item
                for item in sorted(scope.below(CREATION).items())
                if item[0] not in ("replication.factor", "partitions")
            ),
            topic_creation_partitions=scope.integer(f"{CREATION}partitions", 1, 1),
            sync_topic_acls_enabled=scope.flag("sync.topic.acls.enabled", default=False),
            sync_topic_acls_interval_s=scope.integer("sync.topic.acls.interval.seconds", 600, 1),
            heartbeats_replication_enabled=scope.flag("heartbeats.replication.enabled", default=True),
            emit_heartbeats_enabled=scope.flag("emit.heartbeats.enabled", default=False),
            emit_heartbeats_back=back.flag("emit.heartbeats.enabled", default=False),
            emit_heartbeats_interval_s=scope.integer("emit.heartbeats.interval.seconds", 1, 1),
            heartbeats_replication_factor=scope.integer("heartbeats.topic.replication.factor", 3, 1, 32_767, also=-1),
            emit_checkpoints_enabled=scope.flag("emit.checkpoints.enabled", default=True),
            checkpoints_replication_factor=scope.integer("checkpoints.topic.replication.factor", 3, 1, 32_767, also=-1),
            emit_offset_syncs_enabled=scope.flag("emit.offset-syncs.enabled", default=False),
            offset_syncs_location=scope.choice("offset-syncs.topic.location", "source", ("source", "target")),
            mirrormaker=MirrorMakerSettings(
                scope.text("group.id", f"{scope.source}-mm2"),
                scope.text("offset.storage.topic", f"mm2-offsets.{scope.source}.internal"),
                scope.integer("offset.storage.replication.factor", -1, 1, 32_767, also=-1),
                _of_source_consumer(properties, scope, "isolation.level", "read_uncommitted"),
            ),
            start=Start.parse(
                scope.text("mirrorlake.start", _of_source_consumer(properties, scope, "auto.offset.reset", "earliest")),
                scope.text("mirrorlake.start.new", "earliest"),
                scope.below("mirrorlake.start.topic."),
            ),
            paused=scope.flag("mirrorlake.paused", default=False),
            topics_paused=NameFilter("mirrorlake.topics.paused", scope.names("mirrorlake.topics.paused", "")),
            topics_shared=scope.flag(
                "mirrorlake.topics.shared",
                default=back.flow in properties.flows
                and not (policy.puts_alias_in_front and _policy(back).puts_alias_in_front),
            ),
            records=records,
            passes_over_losses=scope.choice("mirrorlake.on.loss", "stop", ("stop", "continue")) == "continue",
            minds_provenance=not names_tell or same_cluster_allowed or records == "local",
            transforms=transforms,
            registries=_registries(properties, scope, transforms),
            dead_letter_topic=_dead_letter_topic(scope),
            warnings=(*properties.warnings(), *Transform.unused(scope)),
        )


def _registries(
    properties: Properties, scope: Scope, transforms: tuple[Transform, ...]
) -> tuple[SchemaRegistry, SchemaRegistry] | None:
    """Both, or none where no transform needs them."""
    names = [
        transform.property_name(f"{side}.schema.ids") for transform in transforms for side in transform.translated_ids
    ]
    source, target = (
        SchemaRegistry.of(properties, scope.source, "source"),
        SchemaRegistry.of(properties, scope.target, "target"),
    )
    if not names:
        return None
    if source is None or target is None:
        missing = scope.source if source is None else scope.target
        raise ConfigurationError(
            f"flow {scope.flow}: property {names[0]} is translate, but {missing}.schema.registry.url is missing"
        )
    return source, target


def offset_syncs_topic(alias: str) -> str:
    """Where a flow from the cluster of that alias keeps state and runs, on its target."""
    return f"{OFFSET_SYNCS_PREFIX}{alias}{OFFSET_SYNCS_SUFFIX}"


def is_offset_syncs_topic(name: str) -> bool:
    return name.startswith(OFFSET_SYNCS_PREFIX) and name.endswith(OFFSET_SYNCS_SUFFIX)


def _dead_letter_topic(scope: Scope) -> str:
    name = scope.text("mirrorlake.dead.letter.topic", f"mirrorlake.dead-letters.{scope.source}")
    if not _is_topic_name(name):
        raise ConfigurationError(
            f"flow {scope.flow}: property mirrorlake.dead.letter.topic is '{name}', which is no name for a topic (1 to "
            "249 letters, digits, . _ -)"
        )
    return name


def _is_topic_name(name: str) -> bool:
    return 0 < len(name) <= LONGEST_TOPIC_NAME and name not in (".", "..") and set(name) <= TOPIC_CHARACTERS


def _policy(scope: Scope) -> DefaultReplicationPolicy:
    separator = scope.text("replication.policy.separator", ".")
    if not separator or not set(separator) <= TOPIC_CHARACTERS:
        raise ConfigurationError(
            f"flow {scope.flow}: property replication.policy.separator is '{separator}'; allowed are characters that a "
            "topic name may have (letters, digits, . _ -)"
        )
    internal = separator if scope.flag("replication.policy.internal.topic.separator.enabled", default=True) else "."
    regex, replacement = (scope.text(f"topics.rename.{part}", "") for part in ("regex", "replacement"))
    name = scope.text("replication.policy.class", "RenameReplicationPolicy" if regex else "DefaultReplicationPolicy")
    policy = find_policy(name)
    if policy is not RenameReplicationPolicy:
        if regex or replacement:
            raise ConfigurationError(
                f"flow {scope.flow}: topics.rename.regex and .replacement contradict replication.policy.class = "
                f"{name}: leave the class out, or set RenameReplicationPolicy"
            )
        return policy(scope.source, separator, internal)
    if not (regex and replacement):
        raise ConfigurationError(
            f"flow {scope.flow}: RenameReplicationPolicy needs both topics.rename.regex and topics.rename.replacement"
        )
    return policy(scope.source, separator, internal, regex, replacement)


def _names_tell(scope: Scope, back: Scope) -> bool:
    """True if the names of topics say where records came from: both directions put the alias in front, in one and the
    same way."""
    one, other = _policy(scope), _policy(back)
    is_plain = not any(policy.separator in alias for policy in (one, other) for alias in (scope.source, scope.target))
    return one.puts_alias_in_front and other.puts_alias_in_front and is_plain and one.separator == other.separator


def _ring(properties: Properties, scope: Scope) -> tuple[str, ...]:
    """The aliases of a ring of three or more clusters through this flow in which records would go round; empty if there
    is none.

    Names stop a record where two flows in a row put their alias in front: the second one sees its own target's.
    """
    after: dict[str, list[str]] = {}
    keeps: dict[tuple[str, str], bool] = {}
    for flow in properties.flows:
        other = properties.scope(flow)
        after.setdefault(other.source, []).append(other.target)
        keeps[other.source, other.target] = not _policy(other).puts_alias_in_front
    paths: list[tuple[str, ...]] = [(scope.source, scope.target)]
    while paths:
        path = paths.pop(0)
        for target in after.get(path[-1], ()):
            if target == scope.source and len(path) > 2:
                legs = [keeps[leg] for leg in zip(path, (*path[1:], target), strict=True)]
                if all(leg or legs[at - 1] for at, leg in enumerate(legs)):
                    return (*path, target)
            if target not in path:
                paths.append((*path, target))
    return ()


def _of_source_consumer(properties: Properties, scope: Scope, name: str, default: str) -> str:
    """A property of the consumer that MirrorMaker 2 reads the source with, from any of the places where it may
    stand."""
    of_cluster = properties.values.get(f"{scope.source}.consumer.{name}", scope.text(f"consumer.{name}", default))
    return scope.text(f"source.consumer.{name}", of_cluster).strip()


def _refresh(scope: Scope, what: str) -> int:
    """Seconds between two looks for new topics or groups; 0 for never again."""
    interval = scope.integer(f"refresh.{what}.interval.seconds", 600, 1)
    return interval if scope.flag(f"refresh.{what}.enabled", default=True) else 0
