"""A flow: the configuration of the jobs that mirror one cluster into another."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from mirrorlake.config.connection import Connection
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import ARROW, Properties, Scope
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.config.replication_policy import (
    DefaultReplicationPolicy,
    find_ring,
    is_topic_name,
    names_tell_origin,
    policy_warnings,
    read_policy,
)
from mirrorlake.config.secret_reference import REFERENCE
from mirrorlake.config.security import client_roles
from mirrorlake.config.security.login import LOOPBACK
from mirrorlake.config.start import Start
from mirrorlake.config.transform import Transform
from mirrorlake.errors import ConfigurationError
from mirrorlake.reasons import TopicHeld
from mirrorlake.refill import Refill

CREATION = "target.topic.creation."
CANARY_PREFIX = "mirrorlake.canary."
STATE_CHANGES = "mirrorlake.state.changes.enabled"
DEAD_LETTER_TOPIC = "mirrorlake.dead.letter.topic"
LARGE_BATCH_BYTES = 1 << 20  # about max.message.bytes, by default
OFFSET_SYNCS_PREFIX, OFFSET_SYNCS_SUFFIX = "mirrorlake.offset-syncs.", ".internal"

# The reason to record for a group's position in a topic that `Flow.scatters`.


@dataclass(frozen=True)
class MirrorMakerSettings:
    """The settings of MirrorMaker 2 for the same flow.

    Attributes:
        group_id: the group of its workers.
        offsets_topic: the topic on the target with its source offsets.
        offsets_replication_factor: the replication factor with which that topic is created.
        isolation: the isolation level with which it reads the source.
    """

    group_id: str
    offsets_topic: str
    offsets_replication_factor: int
    isolation: str

    @classmethod
    def parse(cls, scope: Scope) -> MirrorMakerSettings:
        """Reads the settings from the properties of a flow."""
        return cls(
            scope.read("group.id"),
            scope.of_worker("offset.storage.topic"),
            scope.of_worker("offset.storage.replication.factor"),
            scope.source_consumer("isolation.level"),
        )


@dataclass(frozen=True)
class Flow:
    """The flow `source->target`, validated. `Flow.load` builds it. Most fields are the values of properties; the table
    of options (`config.options`) has their defaults, bounds and meaning.

    Attributes:
        source: the alias of the cluster that is read.
        target: the alias of the cluster that is written.
        policy_back: the policy of the flow back, if there is one whose names tell where topics came from.
        batch_max_records: the offsets of one micro-batch of the whole flow.
        batch_max_transformed_records: of these, the offsets in topics with a transform.
        batch_max_bytes: the bytes of one micro-batch of each slot.
        batch_max_ms: the time of one micro-batch of each slot.
        batch_memory_bytes: the limit of what one slot holds at a time.
        fetch_connections: the connections of a slot to one broker of the source; 0 to suit the round trip.
        produce_connections: the same for the target.
        max_bytes_per_s: the rate of the whole flow; 0 for no limit.
        backfill_max_bytes_per_s: the rate of its `backfill_topics`; 0 for no limit.
        linger_ms: the time for which partitions with few new records wait for each other; 0 for none.
        batch_max_decompressed_bytes: the limit of one record batch that must be opened.
        refresh_topics_interval_s: the time between two looks for new topics; 0 if there is one look only.
        refresh_groups_interval_s: the same for groups.
        topic_creation: the properties that remote topics are created with, whatever the source has.
        emit_heartbeats_back: whether the flow back would emit heartbeats. The target's clients learn of this source by
            them.
        state_changes_required: whether the property file itself asks for states that are changes.
        start: where partitions begin that were never mirrored.
        shares_by_default: whether `topics_shared` follows from two flows that keep names alone, and not from the file.
        minds_provenance: whether a task must look where records came from, because names do not tell.
        other_prefixes: how remote topics of the file's further clusters begin.
        bringers: the clusters whose flows bring records to the source, by the property file, if only records that
            were first written there are mirrored (`records` is local).
        passes_over_losses: whether the flow goes on where records are lost, and writes the loss down; else it stops.
        transforms: a topic takes the first transform whose filter takes it.
        dead_letters_on_source: the dead-letter topics of flows whose target is this source; they are never mirrored.
        registries: the schema registries of source and target; None if no transform translates ids.
        warnings: lines for the operator about properties without effect.
        refills: records that are copied although another flow has brought them; never from properties.
        ignores_pause: whether a job goes on although an operator has paused the flow, as a failover does; never from
            properties.
        loses_states: whether the offset-syncs topic may lose records, so that every state has to be a snapshot; never
            from properties.
    """

    source: str
    target: str
    source_connection: Connection
    target_connection: Connection
    policy: DefaultReplicationPolicy
    policy_back: DefaultReplicationPolicy | None
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
    batch_memory_bytes: int
    batch_max_decompressed_bytes: int
    fetch_connections: int
    produce_connections: int
    # Tasks keep their connections while a rate or the time to wait changes.
    max_bytes_per_s: int = field(compare=False)
    backfill_max_bytes_per_s: int = field(compare=False)
    linger_ms: int = field(compare=False)
    backfill_topics: NameFilter
    transaction_timeout_ms: int
    retry_timeout_ms: int
    connect_timeout_ms: int
    ledger_interval_s: int
    state_changes_enabled: bool
    state_changes_required: bool
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
    bringers: tuple[str, ...]
    passes_over_losses: bool
    lag_interval_s: int
    metrics_port: int
    metrics_host: str
    metrics_health_s: int
    metrics_detailed: bool
    metrics_otlp_endpoint: str = field(repr=False)  # it may hold a password
    metrics_otlp_headers: str = field(repr=False)  # it may hold a token
    metrics_otlp_interval_s: int
    canary_enabled: bool
    canary_interval_s: int
    canary_record_sla_ms: int
    canary_group_sla_ms: int
    canary_objective_percent: int
    shares_by_default: bool = False
    other_prefixes: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()
    dead_letter_topic: str = ""
    dead_letters_on_source: frozenset[str] = frozenset()
    remote_topics_writer: str = ""
    registries: tuple[SchemaRegistry, SchemaRegistry] | None = None
    warnings: tuple[str, ...] = ()
    refills: tuple[Refill, ...] = ()
    ignores_pause: bool = False
    loses_states: bool = False

    @property
    def name(self) -> str:
        """The flow as `source->target`."""
        return f"{self.source}->{self.target}"

    @property
    def offset_syncs_topic(self) -> str:
        """The topic on the target that holds state and runs, with one partition for each slot."""
        return offset_syncs_topic(self.source)

    @property
    def writes_changes(self) -> bool:
        """Whether a transaction writes its slot's state as changes."""
        return self.state_changes_enabled and not self.loses_states

    def transactional_id(self, slot: int) -> str:
        """Names the transactional id of a slot."""
        return f"mirrorlake.{self.source}.{self.target}.slot-{slot}"

    def slots_on(self, cores: int) -> int:
        """Counts the slots that copy side by side where Spark has that many cores."""
        return self.slots or max(1, cores)

    @property
    def keeps_acls(self) -> bool:
        """Whether the mirror job keeps ACLs of remote topics."""
        return self.sync_topic_acls_enabled or bool(self.remote_topics_writer)

    @property
    def name_back(self) -> str:
        """The name of the flow in the other direction, whether there is one or not."""
        return f"{self.target}{ARROW}{self.source}"

    def load_back(self, config: str) -> Flow | None:
        """Reads the flow in the other direction, if the property file enables it.

        Raises:
            ConfigurationError: it is not valid.
        """
        return Flow.load(config, self.name_back) if self.name_back in Properties.load(config).flows else None

    def mirrors_topic(self, topic: str) -> bool:
        """Tells whether a topic of the source belongs to the flow."""
        is_heartbeats = self.heartbeats_replication_enabled and self.policy.is_heartbeats_topic(topic)
        return (
            (topic in self.topics or is_heartbeats)
            and not self.policy.is_internal_topic(topic)
            and topic not in self.dead_letters_on_source
            and not self.has_come_through_target(topic)
        )

    def has_come_through_target(self, topic: str) -> bool:
        """Tells from a topic's name whether it has come through the target; the flow back may have another policy."""
        if self.policy.is_cycle(topic, self.target):
            return True
        if self.policy_back is None or not self.policy_back.is_cycle(topic, self.target):
            return False
        # A rule of names may take home what the flow back has brought.
        return self.policy.puts_alias_in_front or self.policy.remote_topic(topic) == topic

    @property
    def canary_group(self) -> str:
        """The group whose offset the mirror job sends on its way, if canaries are on."""
        return f"{CANARY_PREFIX}{self.source}.{self.target}"

    def checkpoints_group(self, group: str) -> bool:
        """Tells whether the checkpoint job translates and syncs a group of the source."""
        return self.moves_group(group) or (self.canary_enabled and group == self.canary_group)

    def moves_group(self, group: str) -> bool:
        """Tells whether a failover moves a group of the source. Canaries of this and of other flows stay."""
        return group in self.groups and not group.startswith(CANARY_PREFIX)

    def transform_of(self, topic: str) -> Transform | None:
        """Finds the transform for the records of a source topic; None if they are mirrored as they are. Heartbeats are
        mirrored as they are, unless `topics` alone decides about their topics."""
        if self.heartbeats_replication_enabled and self.policy.is_heartbeats_topic(topic):
            return None
        return next((transform for transform in self.transforms if topic in transform.topics), None)

    def scatters(self, topic: str) -> bool:
        """Tells whether a transform decides about a topic's partitions, so that a group's position on one of them has
        no single counterpart."""
        transform = self.transform_of(topic)
        return transform is not None and bool(transform.partition)

    def is_paused(self, topic: str) -> bool:
        """Tells whether a topic is not copied for now. Its positions stay."""
        return self.paused or topic in self.topics_paused

    def is_backfill(self, topic: str) -> bool:
        """Tells whether a topic gives way to others."""
        return topic in self.backfill_topics

    def has_rate(self, topic: str) -> bool:
        """Tells whether an operator has limited how fast a topic is copied."""
        return bool(self.max_bytes_per_s or (self.backfill_max_bytes_per_s and self.is_backfill(topic)))

    def shared_by(self, slots: int, backfilling: int) -> Flow:
        """Returns the flow with the share of its rates that each slot has.

        Args:
            slots: number of slots with work.
            backfilling: number of those with topics that give way to others.
        """
        if not (self.max_bytes_per_s or self.backfill_max_bytes_per_s):
            return self
        return replace(
            self,
            max_bytes_per_s=_share(self.max_bytes_per_s, slots),
            backfill_max_bytes_per_s=_share(self.backfill_max_bytes_per_s, backfilling),
        )

    def remote_topics(self, topics: Iterable[str]) -> dict[str, str]:
        """Finds the remote name of each source topic.

        Raises:
            ConfigurationError: a topic can't have a remote name; see `unnamed`.
        """
        remote = {topic: self.policy.remote_topic(topic) for topic in sorted(topics)}
        if reasons := self.unnamed(remote):
            raise ConfigurationError(next(iter(reasons.values())))
        return remote

    def unnamed(self, topics: Iterable[str], mirrored: Collection[str] = ()) -> dict[str, str]:
        """Finds the topics that can't have a remote name, with the reasons.

        A remote name may not be valid, or be internal. Two topics may have the same one although the flow is not
        `topics_shared`. A topic that is mirrored already keeps its name then.

        Args:
            topics: source topics.
            mirrored: those of which the flow has positions.
        """
        reasons: dict[str, str] = {}
        same: dict[str, list[str]] = {}
        for topic in sorted(topics):
            name = self.policy.remote_topic(topic)
            same.setdefault(name, []).append(topic)
            if not is_topic_name(name) or self.policy.is_internal_topic(name) or name == self.dead_letter_topic:
                reasons[topic] = TopicHeld.NAME_NOT_VALID.about(
                    flow=self.name, topic=topic, remote=name, target=self.target
                )
        for name, several in same.items():
            if len(several) > 1 and not self.topics_shared:
                first, second = several[:2]
                why = TopicHeld.NAME_TAKEN.about(
                    flow=self.name, topic=first, other=second, remote=name, target=self.target
                )
                reasons.update({topic: why for topic in several if topic not in mirrored})
        return reasons

    @classmethod
    def load(cls, config: str | Path, name: str) -> Flow:
        """Reads the flow `name` of a property file. Nothing is created or contacted.

        Raises:
            ConfigurationError: a property is missing, malformed or contradictory.
        """
        return cls.from_properties(Properties.load(config), name)

    @classmethod
    def from_properties(cls, properties: Properties, name: str) -> Flow:
        """Builds the flow `name` from properties; see `load`."""
        scope = properties.scope(name)
        _require_enabled(scope)
        _require_no_ring(scope)
        back = properties.scope(f"{scope.target}{ARROW}{scope.source}")
        transforms = Transform.parse_all(scope)
        connections = {alias: properties.connection(alias) for alias in (scope.source, scope.target)}
        clusters = {alias: dict(found.properties) for alias, found in connections.items()}
        client_roles.check_flow(scope.source, scope.target, properties.values, clusters)
        registries = SchemaRegistry.pair(scope, transforms)
        flow = cls(
            **scope.plain_fields(),
            source=scope.source,
            target=scope.target,
            source_connection=connections[scope.source],
            target_connection=connections[scope.target],
            policy=read_policy(scope),
            policy_back=_policy_back(back),
            replication_factor=_replication_factor(scope),
            refresh_topics_interval_s=_refresh_interval_s(scope, "topics"),
            refresh_groups_interval_s=_refresh_interval_s(scope, "groups"),
            topic_creation=_topic_creation(scope),
            state_changes_required=bool(scope.text(STATE_CHANGES, "")) and scope.read(STATE_CHANGES),
            emit_heartbeats_back=back.read("emit.heartbeats.enabled"),
            mirrormaker=MirrorMakerSettings.parse(scope),
            start=Start.parse(scope),
            topics_shared=scope.read("mirrorlake.topics.shared", str(_keep_names_both_ways(scope, back))),
            shares_by_default=not scope.text("mirrorlake.topics.shared", "") and _keep_names_both_ways(scope, back),
            minds_provenance=_minds_provenance(scope, back),
            bringers=_bringers(scope),
            passes_over_losses=scope.read("mirrorlake.on.loss") == "continue",
            other_prefixes=_other_prefixes(scope),
            transforms=transforms,
            registries=registries,
            remote_topics_writer=_remote_topics_writer(scope),
            dead_letter_topic=_dead_letter_topic(scope),
            dead_letters_on_source=_dead_letters_on(properties, scope.source),
            warnings=(
                *properties.warnings(),
                *scope.consumer_warnings(),
                *scope.target_warnings(),
                *policy_warnings(scope),
                *Transform.unused(scope),
                *(one.warning for one in registries or () if one.warning),
                *(warning for one in connections.values() for warning in one.warnings),
            ),
        )
        _require_no_contradiction(flow)
        return replace(flow, warnings=(*flow.warnings, *_otlp_warnings(flow)))


def offset_syncs_topic(alias: str) -> str:
    """Names the topic on the target in which a flow from the cluster of that alias keeps state and runs."""
    return f"{OFFSET_SYNCS_PREFIX}{alias}{OFFSET_SYNCS_SUFFIX}"


def is_offset_syncs_topic(name: str) -> bool:
    """Tells whether a topic holds state and runs of a flow."""
    return name.startswith(OFFSET_SYNCS_PREFIX) and name.endswith(OFFSET_SYNCS_SUFFIX)


def _require_enabled(scope: Scope) -> None:
    if not scope.read("enabled"):
        properties = scope.properties
        raise ConfigurationError(
            f"flow {scope.flow} is not enabled in {properties.path}: set {scope.flow}.enabled = true (enabled: "
            f"{', '.join(properties.flows) or 'none'})"
        )


def _require_no_ring(scope: Scope) -> None:
    ring = find_ring(scope)
    if ring and scope.read("mirrorlake.records") != "local":
        raise ConfigurationError(
            f"flow {scope.flow}: the flows {' -> '.join(ring)} form a ring and keep the names of topics, or have "
            "several separators, so records would be mirrored in circles. Set mirrorlake.records = local for all of "
            "them, or use DefaultReplicationPolicy with one separator. With local, each flow mirrors only records that "
            "were first written on its source"
        )


def _is_address(endpoint: str) -> bool:
    """Returns True if a URL has a host, and no port that is none."""
    try:
        place = urlsplit(endpoint)
        return bool(place.hostname) and place.port != 0
    except ValueError:
        return False


def require_otlp_address(flow: str, endpoint: str) -> None:
    """Raises ConfigurationError for an endpoint of OTLP that can't be one; an empty one is none."""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"flow {flow}: property mirrorlake.metrics.otlp.endpoint does not begin with http:// or https://. "
            "OTLP over gRPC is not supported"
        )
    if endpoint and not _is_address(endpoint):
        raise ConfigurationError(
            f"flow {flow}: property mirrorlake.metrics.otlp.endpoint is no address. Write it like "
            "http://collector:4318/v1/metrics"
        )


def _otlp_warnings(flow: Flow) -> Iterator[str]:
    """Yields a warning if the collector's credentials cross the network unencrypted."""
    try:
        url = urlsplit(flow.metrics_otlp_endpoint)
    except ValueError:  # an address of IPv6 that is a reference, which is checked where it is resolved
        return
    if url.scheme == "http" and url.hostname not in LOOPBACK and (url.username or flow.metrics_otlp_headers):
        yield (
            "property mirrorlake.metrics.otlp.endpoint begins with http: its user or headers cross the network "
            "unencrypted. Use an https address"
        )


def _require_no_contradiction(flow: Flow) -> None:
    if flow.sync_group_offsets_enabled and not flow.emit_checkpoints_enabled:
        raise ConfigurationError(
            f"flow {flow.name}: sync.group.offsets.enabled is true, but emit.checkpoints.enabled is false. Group "
            "offsets are synced from checkpoints. Set both to true, or set sync.group.offsets.enabled = false"
        )
    if flow.remote_topics_writer and flow.topics_shared:
        raise ConfigurationError(
            f"flow {flow.name}: mirrorlake.remote.topics.writer is set, so that nobody else writes to the remote "
            "topics, but others do (mirrorlake.topics.shared). Remove one of the two"
        )
    if not REFERENCE.search(flow.metrics_otlp_endpoint):
        require_otlp_address(flow.name, flow.metrics_otlp_endpoint)
    if flow.canary_enabled and not flow.heartbeats_replication_enabled:
        raise ConfigurationError(
            f"flow {flow.name}: mirrorlake.canary.enabled is true, but heartbeats.replication.enabled is false. "
            "Canaries are records of the heartbeats topic. Set both to true, or mirrorlake.canary.enabled = false"
        )
    sla_ms = min(flow.canary_record_sla_ms, flow.canary_group_sla_ms)
    if flow.canary_enabled and flow.linger_ms >= sla_ms:
        raise ConfigurationError(
            f"flow {flow.name}: mirrorlake.linger.ms is {flow.linger_ms}, and a canary waits as any record, but must "
            f"arrive within {sla_ms} ms (mirrorlake.canary.record.sla.ms, mirrorlake.canary.group.sla.ms). Set the "
            "time to wait lower, or these higher"
        )
    require_rates(flow, 1)  # a start knows how many slots can have work
    if flow.transaction_timeout_ms < 2 * flow.batch_max_ms:
        raise ConfigurationError(
            f"flow {flow.name}: mirrorlake.transaction.timeout.ms is {flow.transaction_timeout_ms}, too short for a "
            f"micro-batch of mirrorlake.batch.max.ms = {flow.batch_max_ms} and its gate. Set it to at least twice "
            "mirrorlake.batch.max.ms"
        )


def require_rates(flow: Flow, slots: int) -> None:
    """Checks that the flow's rates let each slot write a large batch before it counts as failing.

    Args:
        flow: flow with rates.
        slots: number of slots that share them, if all of these have work.

    Raises:
        ConfigurationError: a rate is lower; the message has the lowest one.
    """
    longest_ms = max(flow.retry_timeout_ms, flow.transaction_timeout_ms)
    least = math.ceil(slots * LARGE_BATCH_BYTES * 1000 / longest_ms)
    for name, rate in (
        ("mirrorlake.max.bytes.per.second", flow.max_bytes_per_s),
        ("mirrorlake.backfill.max.bytes.per.second", flow.backfill_max_bytes_per_s),
    ):
        if 0 < rate < least:
            raise ConfigurationError(
                f"flow {flow.name}: {name} is {rate} bytes, too little for {slots} slot{'s' * (slots > 1)}: one that "
                f"has written a batch of 1 MiB would wait for more than {longest_ms // 1000} s, and count as failing. "
                f"Set it to at least {least}, or to 0 for no limit. To stop topics for a while, name them in "
                "mirrorlake.topics.paused"
            )


def _share(rate: int, count: int) -> int:
    return max(1, rate // max(1, count)) if rate else 0  # which is no limit


def _replication_factor(scope: Scope) -> int:
    of_all = scope.read("replication.factor")
    return int(scope.read(f"{CREATION}replication.factor", str(of_all)))


def _refresh_interval_s(scope: Scope, what: str) -> int:
    """Reads the time between two looks for new topics or groups; 0 if there is one look only."""
    interval_s = int(scope.read(f"refresh.{what}.interval.seconds"))
    return interval_s if scope.read(f"refresh.{what}.enabled") else 0


def _topic_creation(scope: Scope) -> tuple[tuple[str, str], ...]:
    given = scope.resolved_below(CREATION)
    # Connect's own properties of a cluster with the alias target begin so, too.
    of_connect = {"enable", "groups", *(name for name in given if name.startswith("default."))}
    return tuple(
        (name, given[name]) for name in sorted(given.keys() - {"replication.factor", "partitions"} - of_connect)
    )


def _policy_back(back: Scope) -> DefaultReplicationPolicy | None:
    if back.flow not in back.properties.flows:
        return None
    policy = read_policy(back)
    return policy if policy.puts_alias_in_front else None


def _keep_names_both_ways(scope: Scope, back: Scope) -> bool:
    if back.flow not in scope.properties.flows:
        return False
    return not (read_policy(scope).puts_alias_in_front and read_policy(back).puts_alias_in_front)


def _minds_provenance(scope: Scope, back: Scope) -> bool:
    if not names_tell_origin(scope, back):
        return True
    return bool(scope.read("mirrorlake.same.cluster.allowed")) or scope.read("mirrorlake.records") == "local"


def _other_prefixes(scope: Scope) -> tuple[str, ...]:
    separator = read_policy(scope).separator
    others = (alias for alias in scope.properties.clusters if alias not in (scope.source, scope.target))
    return tuple(f"{alias}{separator}" for alias in others)


def _bringers(scope: Scope) -> tuple[str, ...]:
    if scope.read("mirrorlake.records") != "local":
        return ()
    flows = (flow.split(ARROW) for flow in scope.properties.flows)
    return tuple(source for source, target in flows if target == scope.source)


def _remote_topics_writer(scope: Scope) -> str:
    principal = str(scope.read("mirrorlake.remote.topics.writer"))
    if principal and (":" not in principal or any(character.isspace() for character in principal.split(":")[0])):
        raise ConfigurationError(
            f"flow {scope.flow}: property mirrorlake.remote.topics.writer is '{principal}'; allowed is a principal in "
            "Kafka's form, such as User:mirrorlake"
        )
    return principal


def _dead_letter_topic(scope: Scope) -> str:
    name = str(scope.read(DEAD_LETTER_TOPIC))
    if not is_topic_name(name):
        raise ConfigurationError(
            f"flow {scope.flow}: property {DEAD_LETTER_TOPIC} is '{name}', which is not a valid topic name (1 "
            "to 249 letters, digits, . _ -)"
        )
    return name


def _dead_letters_on(properties: Properties, alias: str) -> frozenset[str]:
    """Returns the dead-letter topics of the file's flows to a cluster."""
    found = set()
    for flow in map(properties.scope, properties.flows):
        with suppress(ConfigurationError):  # it is that flow's error
            found |= {str(flow.read(DEAD_LETTER_TOPIC))} if flow.target == alias else set()
    return frozenset(found)
