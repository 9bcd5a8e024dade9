"""The table of all properties that mirrorlake acts on, by the tables of docs/configuration.md.

Parsing (`Scope.read`), the report on a file (`known_properties`), reloading (`reload.LIVE`) and the documentation
(tools/option_tables.py) derive from it. The options of this module have the names and defaults of MirrorMaker 2 (Kafka
4.3.0: `MirrorSourceConfig`, `MirrorCheckpointConfig`, `DefaultTopicFilter` and others), unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType

from mirrorlake.config.mirrorlake_options import (
    BATCHES,
    CANARY,
    CONTENTS,
    MONITORING,
    RATES,
    REGISTRIES,
    START,
    TOPIC,
    TRANSFORMS,
)
from mirrorlake.config.option import Flag, Integer, Names, OneOf, Option, Patterns, Text
from mirrorlake.config.security.properties import SASL_MECHANISMS, SECURITY_PROTOCOLS, STORE_TYPES

# DefaultConfigPropertyFilter of Kafka 4.3.0.
CONFIG_PROPERTIES_EXCLUDE = """follower.replication.throttled.replicas, leader.replication.throttled.replicas,
  message.timestamp.difference.max.ms,
    message.timestamp.type, unclean.leader.election.enable, min.insync.replicas, log.message.timestamp.before.max.ms,
      log.message.timestamp.after.max.ms"""

REPLICATION_FACTOR = Integer(1, 32_767, also=-1)
STORE_TYPE = OneOf(STORE_TYPES)
ISOLATION = Text("read_uncommitted or read_committed")
SIDE = OneOf(("source", "target"))

CLUSTERS = (
    Option("clusters", Names(), "", "Aliases of the clusters. Required."),
    Option(
        "config.providers",
        Names(),
        "",
        "Further names of providers in references. Those of [secrets](#secrets) are always there.",
    ),
    Option(
        "config.providers.<provider>",
        Text(),
        "",
        "`class`: Kafka's EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider, with its package. "
        "`param.*` has no effect.",
    ),
)

CLIENTS = (
    Option(
        "<alias>.bootstrap.servers",
        Text("host:port, separated by commas"),
        "",
        "Addresses of the cluster's brokers. Required.",
    ),
    Option("<alias>.security.protocol", OneOf(SECURITY_PROTOCOLS), "PLAINTEXT", "Encryption and authentication."),
    Option("<alias>.sasl.mechanism", OneOf(SASL_MECHANISMS), "", "Authentication. Required with a SASL protocol."),
    Option(
        "<alias>.sasl.jaas.config",
        Text("a login module of Kafka, `required`, its options"),
        "",
        "Login: user name and password, or OAuth client id, secret and scope. Required with a SASL protocol.",
    ),
    Option(
        "<alias>.sasl.oauthbearer.token.endpoint.url",
        Text("an https address"),
        "",
        "Where OAUTHBEARER gets its tokens, for client credentials. On the loopback address, http is allowed.",
    ),
    Option(
        "<alias>.sasl.oauthbearer.client.credentials.client.id",
        Text(),
        "",
        "Client id, in the place of `clientId` of the JAAS line.",
    ),
    Option(
        "<alias>.sasl.oauthbearer.client.credentials.client.secret",
        Text(),
        "",
        "Client secret, in the place of `clientSecret` of the JAAS line.",
    ),
    Option("<alias>.sasl.oauthbearer.scope", Text(), "", "Scope, in the place of `scope` of the JAAS line."),
    Option(
        "<alias>.sasl.oauthbearer.header.urlencode",
        Flag(),
        "false",
        "Whether client id and secret are encoded as in a URL.",
    ),
    Option("<alias>.sasl.login.connect.timeout.ms", Integer(1), "10000", "Time to connect to the token endpoint."),
    Option("<alias>.sasl.login.read.timeout.ms", Integer(1), "10000", "Time in which the token endpoint must answer."),
    Option("<alias>.ssl.truststore.type", STORE_TYPE, "JKS", "Kind of the trust store."),
    Option(
        "<alias>.ssl.truststore.location",
        Text("a path"),
        "",
        "File with the certificates to trust, on the driver and on each worker.",
        default_description="the certificates that the machine trusts",
    ),
    Option("<alias>.ssl.truststore.password", Text(), "", "Password of that file. A PEM file has none."),
    Option(
        "<alias>.ssl.truststore.certificates",
        Text("PEM"),
        "",
        "The certificates themselves, in the place of a file, with type PEM.",
    ),
    Option("<alias>.ssl.keystore.type", STORE_TYPE, "JKS", "Kind of the key store."),
    Option(
        "<alias>.ssl.keystore.location",
        Text("a path"),
        "",
        "File with the client's certificate and key (PKCS #8 in a PEM file), on the driver and on each worker.",
    ),
    Option("<alias>.ssl.keystore.password", Text(), "", "Password of that file. A PEM file has none."),
    Option(
        "<alias>.ssl.keystore.certificate.chain",
        Text("PEM"),
        "",
        "The client's certificate itself, in the place of a file, with type PEM.",
    ),
    Option(
        "<alias>.ssl.keystore.key",
        Text("PEM (PKCS #8)"),
        "",
        "The client's key itself, in the place of a file, with type PEM.",
    ),
    Option(
        "<alias>.ssl.key.password",
        Text(),
        "",
        "Password of that key. Required if it is encrypted in PEM; in a JKS store, that of the store by default.",
    ),
    Option(
        "<alias>.ssl.endpoint.identification.algorithm",
        Text("https, or nothing for no check"),
        "https",
        "Check of the broker's host name against its certificate.",
    ),
)

COPYING = (
    Option("enabled", Flag(), "false", "Whether the flow exists."),
    Option(
        "topics",
        Patterns(),
        ".*",
        "Topics of the source that are mirrored. A name or regex must match the whole topic name.",
        field="topics",
        is_live=True,
    ),
    Option(
        "topics.exclude",
        Patterns(),
        r"mm2.*\.internal, .*\.replica, __.*",
        "Topics that are not mirrored, whatever `topics` says.",
        field="topics",
        is_live=True,
    ),
    Option(
        "refresh.topics.enabled",
        Flag(),
        "true",
        "Whether the mirror job looks for new topics and partitions.",
        field="refresh_topics_interval_s",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "refresh.topics.interval.seconds",
        Integer(1),
        "600",
        "Time between two looks for new topics and partitions.",
        field="refresh_topics_interval_s",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "consumer.auto.offset.reset",
        START,
        "earliest",
        "The same as `mirrorlake.start`, which wins. Also allowed as a property of the source's consumer.",
        field="start",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "source.consumer.auto.offset.reset",
        START,
        "",
        "The same. It wins over `consumer.auto.offset.reset`.",
        field="start",
        is_derived=True,
        is_live=True,
        default_description="that of `consumer.auto.offset.reset`",
    ),
)

NAMING = (
    Option(
        "replication.policy.class",
        Text("a class, see [below](#replication-policies)"),
        "DefaultReplicationPolicy",
        "Rule for the names of remote topics. The package of MirrorMaker 2's classes may be left out; one of another "
        "package is warned about.",
        field="policy",
        is_derived=True,
        default_description="`DefaultReplicationPolicy`; `RenameReplicationPolicy` with `topics.rename.regex`",
    ),
    Option(
        "replication.policy.separator",
        Text("letters, digits, . _ -"),
        ".",
        "Text between the alias and the topic.",
        field="policy",
        is_derived=True,
    ),
    Option(
        "replication.policy.internal.topic.separator.enabled",
        Flag(),
        "true",
        "Whether the names of MirrorMaker 2's internal topics have that separator, too, instead of a dot.",
        field="policy",
        is_derived=True,
    ),
    Option(
        "topics.rename.regex",
        Text("a Java regex"),
        "",
        "Topics that are renamed. The regex must match the whole name; other topics keep theirs.",
        field="policy",
        is_derived=True,
    ),
    Option(
        "topics.rename.replacement",
        Text("text with Java's `$1` and `${name}`"),
        "",
        "Names of the remote topics of renamed topics.",
        field="policy",
        is_derived=True,
    ),
)

REMOTE_TOPICS = (
    Option(
        "replication.factor",
        REPLICATION_FACTOR,
        "2",
        "Replication factor of remote topics that are created. -1 is the target's default.",
        field="replication_factor",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "target.topic.creation.replication.factor",
        REPLICATION_FACTOR,
        "",
        "The same. It wins over `replication.factor`.",
        field="replication_factor",
        is_derived=True,
        is_live=True,
        default_description="that of `replication.factor`",
    ),
    Option(
        "target.topic.creation.partitions",
        Integer(1),
        "1",
        "Fewest partitions of remote topics that are created. They have at least as many as their topic.",
        field="topic_creation_partitions",
        is_live=True,
    ),
    Option(
        "target.topic.creation.<property>",
        Text(),
        "",
        "Any other property of topics: remote topics are created with it, whatever the source has.",
        field="topic_creation",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "sync.topic.configs.enabled",
        Flag(),
        "true",
        "Whether remote topics are configured like the topics of the source. Where the flow back keeps names, too, and "
        "both are open and keep configurations, neither changes them.",
        field="sync_topic_configs_enabled",
        is_live=True,
    ),
    Option(
        "sync.topic.configs.interval.seconds",
        Integer(1),
        "600",
        "Time between two comparisons of the configurations.",
        field="sync_topic_configs_interval_s",
        is_live=True,
    ),
    Option(
        "config.properties.exclude",
        Patterns(),
        CONFIG_PROPERTIES_EXCLUDE,
        "Properties of topics that are left alone.",
        field="config_properties_excluded",
        is_live=True,
        default_description="as in Kafka 4.3.0",
    ),
    Option(
        "use.defaults.from",
        SIDE,
        "target",
        "With `source`, defaults of the source's brokers are copied as well.",
        field="use_defaults_from",
        is_live=True,
    ),
    Option(
        "sync.topic.acls.enabled",
        Flag(),
        "false",
        "Whether those who may read a topic may read its remote topic ([see below](#topics-kept-in-step)).",
        field="sync_topic_acls_enabled",
        is_live=True,
        mirrormaker_default="true",
    ),
    Option(
        "sync.topic.acls.interval.seconds",
        Integer(1),
        "600",
        "Time between two comparisons of the access rights.",
        field="sync_topic_acls_interval_s",
        is_live=True,
    ),
)

GROUPS = (
    Option(
        "groups",
        Patterns(),
        ".*",
        "Consumer groups of the source whose offsets are translated. A name or regex must match the whole group id.",
        field="groups",
    ),
    Option(
        "groups.exclude",
        Patterns(),
        "console-consumer-.*, connect-.*, __.*",
        "Groups that are left out, whatever `groups` says.",
        field="groups",
    ),
    Option(
        "refresh.groups.enabled",
        Flag(),
        "true",
        "Whether the checkpoint job looks for new groups.",
        field="refresh_groups_interval_s",
        is_derived=True,
    ),
    Option(
        "refresh.groups.interval.seconds",
        Integer(1),
        "600",
        "Time between two looks for new groups.",
        field="refresh_groups_interval_s",
        is_derived=True,
    ),
    Option(
        "emit.checkpoints.enabled",
        Flag(),
        "true",
        "Whether MirrorMaker 2's checkpoints topic is written. Required by `sync.group.offsets.enabled`.",
        field="emit_checkpoints_enabled",
    ),
    Option(
        "emit.checkpoints.interval.seconds",
        Integer(1),
        "5",
        "Interval of the checkpoint job, where its `trigger` is empty.",
        field="emit_checkpoints_interval_s",
        mirrormaker_default="60",
    ),
    Option(
        "sync.group.offsets.enabled",
        Flag(),
        "false",
        "Whether groups are moved on the target. Otherwise their offsets are only recorded.",
        field="sync_group_offsets_enabled",
    ),
    Option(
        "sync.group.offsets.interval.seconds",
        Integer(1, also=0),
        "0",
        "Least time between two moves; 0 is every cycle. Offsets that are translated in between are recorded as "
        "`waiting`.",
        field="sync_group_offsets_interval_s",
        mirrormaker_default="60",
    ),
)

INTERNAL_TOPICS = (
    Option(
        "offset-syncs.topic.replication.factor",
        REPLICATION_FACTOR,
        "3",
        "Replication factor of the topic that holds state and runs, and of MirrorMaker 2's offset-syncs topic.",
        field="offset_syncs_replication_factor",
    ),
    Option(
        "emit.offset-syncs.enabled",
        Flag(),
        "false",
        "Whether MirrorMaker 2's offset syncs are written, for the first and the last record of every run.",
        field="emit_offset_syncs_enabled",
        mirrormaker_default="true",
    ),
    Option(
        "offset-syncs.topic.location",
        SIDE,
        "source",
        "Cluster that those offset syncs are written to.",
        field="offset_syncs_location",
    ),
    Option(
        "checkpoints.topic.replication.factor",
        REPLICATION_FACTOR,
        "3",
        "Replication factor of `<source>.checkpoints.internal`. With too few brokers, the cluster's default.",
        field="checkpoints_replication_factor",
    ),
    Option(
        "heartbeats.replication.enabled",
        Flag(),
        "true",
        "Whether heartbeats topics are mirrored whatever `topics` says; `heartbeats` itself from its end on.",
        field="heartbeats_replication_enabled",
    ),
    Option(
        "emit.heartbeats.enabled",
        Flag(),
        "false",
        "Whether the mirror writes heartbeats, one when it starts and then at an interval: on the target, and on the "
        "source where the flow back has the property, too.",
        field="emit_heartbeats_enabled",
        mirrormaker_default="true",
    ),
    Option(
        "emit.heartbeats.interval.seconds",
        Integer(1),
        "1",
        "Time between two heartbeats.",
        field="emit_heartbeats_interval_s",
    ),
    Option(
        "heartbeats.topic.replication.factor",
        REPLICATION_FACTOR,
        "3",
        "Replication factor of `heartbeats`. With too few brokers, the cluster's default.",
        field="heartbeats_replication_factor",
    ),
)

MIGRATION = (
    Option(
        "group.id",
        Text(),
        "<source>-mm2",
        "Group of MirrorMaker 2's workers.",
        field="mirrormaker",
        is_derived=True,
    ),
    Option(
        "offset.storage.topic",
        TOPIC,
        "mm2-offsets.<source>.internal",
        "Topic on the target in which MirrorMaker 2's workers keep the offsets of the source.",
        field="mirrormaker",
        is_derived=True,
    ),
    Option(
        "offset.storage.replication.factor",
        REPLICATION_FACTOR,
        "-1",
        "Replication factor of that topic, if giving back has to create it. -1 is the target's default.",
        field="mirrormaker",
        is_derived=True,
        mirrormaker_default="3",
    ),
    Option(
        "consumer.isolation.level",
        ISOLATION,
        "read_uncommitted",
        "How MirrorMaker 2 has read the source. mirrorlake itself copies committed records only. Also allowed as a "
        "property of the source's consumer.",
        field="mirrormaker",
        is_derived=True,
    ),
    Option(
        "source.consumer.isolation.level",
        ISOLATION,
        "",
        "The same. It wins over `consumer.isolation.level`.",
        field="mirrormaker",
        is_derived=True,
        default_description="that of `consumer.isolation.level`",
    ),
)

# By the name that the table has in docs/configuration.md.
TABLES: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "clusters": (*CLUSTERS, *CLIENTS),
        "copying": COPYING,
        "naming": NAMING,
        "remote topics": REMOTE_TOPICS,
        "groups": GROUPS,
        "internal topics": INTERNAL_TOPICS,
        "migration": MIGRATION,
        "batches": BATCHES,
        "rates": RATES,
        "contents": CONTENTS,
        "transforms": TRANSFORMS,
        "registries": REGISTRIES,
        "monitoring": MONITORING,
        "canary": CANARY,
    }
)
OPTIONS = tuple(chain.from_iterable(TABLES.values()))


# MirrorMaker 2 of Kafka 2.7 to 3.9 reads these where the option itself is missing (`DefaultTopicFilter` and others).
FORMER_NAMES: Mapping[str, str] = MappingProxyType(
    {f"{what}.exclude": f"{what}.blacklist" for what in ("topics", "groups", "config.properties")}
)


@cache
def find(name: str) -> Option:
    """Returns the option that a property is, by its name without a flow or a target in front.

    Raises:
        KeyError: there is none.
    """
    for option in OPTIONS:
        if option.takes(name):
            return option
    raise KeyError(name)
