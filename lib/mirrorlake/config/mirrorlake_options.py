"""The options that are mirrorlake's own; `options` joins them with MirrorMaker 2's."""

from __future__ import annotations

from itertools import chain

from mirrorlake.config.option import Flag, Integer, Names, OneOf, Option, Patterns, Text

# Brokers refuse a longer transaction by default (transaction.max.timeout.ms).
LONGEST_TRANSACTION_MS = 900_000

START = Text("earliest, latest, or a time such as 2026-11-01T08:00:00Z")
TOPIC = Text("the name of a topic")
PRINCIPAL = Text("a principal such as User:mirrorlake, or empty")
FORMATS = ("bytes", "json", "avro", "confluent-avro")
ON_ERROR = ("stop", "dead-letter")
SCHEMA_IDS = ("keep", "translate")

BATCHES = (
    Option(
        "mirrorlake.slots",
        Integer(0, 1_000),
        "0",
        "Transactional ids that copy side by side. 0 is one for each core of the Spark cluster but two, which are the "
        "ledger's; of fewer than four cores, all.",
        field="slots",
    ),
    Option(
        "mirrorlake.batch.max.records",
        Integer(1),
        "5000000",
        "Offsets of one micro-batch, shared out over partitions.",
        field="batch_max_records",
        is_live=True,
    ),
    Option(
        "mirrorlake.batch.max.transformed.records",
        Integer(1),
        "200000",
        "Offsets of one micro-batch in topics with a [transform](#transforms), which Spark reads as a whole before "
        "they are written.",
        field="batch_max_transformed_records",
    ),
    Option(
        "mirrorlake.batch.max.bytes",
        Integer(1 << 10),
        str(1 << 30),
        "Bytes that one slot copies in one micro-batch. A little more may be copied, as record batches are not split.",
        field="batch_max_bytes",
        is_live=True,
    ),
    Option(
        "mirrorlake.batch.max.ms",
        Integer(100, LONGEST_TRANSACTION_MS),
        "5000",
        "Time for which one slot copies in one micro-batch. Beside slots with new records, one with a "
        "backlog copies for one second, or five times what a micro-batch takes besides copying if that is longer.",
        field="batch_max_ms",
    ),
    Option(
        "mirrorlake.batch.memory.bytes",
        Integer(1 << 20),
        str(48 << 20),
        "Bytes of fetched batches that one slot holds at a time, shared out over the leaders that it reads from. One "
        "batch of each is held in any case.",
        field="batch_memory_bytes",
        is_live=True,
    ),
    Option(
        "mirrorlake.fetch.connections",
        Integer(0, 64),
        "0",
        "Connections of one slot to each broker of the source, which its partitions there share out. 0: one, and more "
        "where a round trip takes 20 ms or longer, up to eight, if the broker accepts them. One partition may then be "
        "read over several.",
        field="fetch_connections",
        is_live=True,
    ),
    Option(
        "mirrorlake.produce.connections",
        Integer(0, 64),
        "0",
        "Connections of one slot to each broker of the target. 0: as for the source, by the round trip to the target. "
        "A partition stays on one of them in a transaction.",
        field="produce_connections",
        is_live=True,
    ),
    Option(
        "mirrorlake.batch.max.decompressed.bytes",
        Integer(1 << 20),
        str(256 << 20),
        "Bytes that one record batch may have once it is decompressed, which a task needs as memory. Most batches are "
        "copied without being opened.",
        field="batch_max_decompressed_bytes",
    ),
    Option(
        "mirrorlake.transaction.timeout.ms",
        Integer(1_000, LONGEST_TRANSACTION_MS),
        "60000",
        "Time after which the target aborts a transaction whose driver is gone. At least twice "
        "`mirrorlake.batch.max.ms`.",
        field="transaction_timeout_ms",
    ),
    Option(
        "mirrorlake.retry.timeout.ms",
        Integer(0),
        "300000",
        "Time for which the job retries failures that may go away, without a success in between, before it stops.",
        field="retry_timeout_ms",
    ),
    Option(
        "mirrorlake.connect.timeout.ms",
        Integer(100),
        "30000",
        "Deadline of a first contact, and of a single request with its retries. A job that starts repeats a step that "
        "fails and may pass for as long.",
        field="connect_timeout_ms",
    ),
    Option(
        "mirrorlake.ledger.interval.seconds",
        Integer(0),
        "30",
        "Time from the start of a job to its first append to `offset_syncs`, and between two appends, for which no "
        "other step waits. The last append is at the end. 0: only that one.",
        field="ledger_interval_s",
    ),
    Option(
        "mirrorlake.state.changes.enabled",
        Flag(),
        "true",
        "Whether a transaction writes only what it has changed of a slot's [state](design.md#states), and now and then "
        "all of it. Otherwise each one writes the positions of all partitions of its slots. Both are read. Without an "
        "entry, a job writes all of it to an offset-syncs topic that has retention, is compacted, or may not be "
        "described; with `true`, it refuses a topic that has retention or is compacted.",
        field="state_changes_enabled",
    ),
)

RATES = (
    Option(
        "mirrorlake.max.bytes.per.second",
        Integer(0),
        "0",
        "Bytes that the flow writes in a second, about; 0 for no limit. The slots that have work share it.",
        field="max_bytes_per_s",
        is_live=True,
    ),
    Option(
        "mirrorlake.backfill.topics",
        Patterns(),
        "",
        "Topics that give way to others. A slot copies them after its other topics, in micro-batches of a second at "
        "most.",
        field="backfill_topics",
        is_live=True,
    ),
    Option(
        "mirrorlake.backfill.max.bytes.per.second",
        Integer(0),
        "0",
        "Bytes that the flow writes in a second of these topics, about; 0 for no limit of their own.",
        field="backfill_max_bytes_per_s",
        is_live=True,
    ),
    Option(
        "mirrorlake.linger.ms",
        Integer(0, 60_000),
        "0",
        "Time for which a partition with fewer than 500 new offsets may wait, about, so that it takes part in fewer "
        "commits; 0 for none.",
        field="linger_ms",
        is_live=True,
    ),
)

CONTENTS = (
    Option(
        "mirrorlake.start",
        START,
        "earliest",
        "Where partitions begin when the flow starts for the first time.",
        field="start",
        is_derived=True,
        is_live=True,
        default_description="`earliest`, or as `consumer.auto.offset.reset` says",
    ),
    Option(
        "mirrorlake.start.new",
        START,
        "earliest",
        "Where partitions of topics begin that appear later.",
        field="start",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "mirrorlake.start.topic.<topic>",
        Text(f"{START.form}, or offsets by partition such as 0:1500, 1:1720"),
        "",
        "Where the partitions of one topic begin, whenever they appear.",
        field="start",
        is_derived=True,
        is_live=True,
    ),
    Option(
        "mirrorlake.paused",
        Flag(),
        "false",
        "Stops all copying. Positions stay. [`mirrorlake pause`](cli.md#pause-and-resume) does it by an order, with "
        "who and why.",
        field="paused",
        is_live=True,
    ),
    Option(
        "mirrorlake.topics.paused",
        Patterns(),
        "",
        "Stops the copying of these topics. Positions stay.",
        field="topics_paused",
        is_live=True,
    ),
    Option(
        "mirrorlake.records",
        OneOf(("all", "local")),
        "all",
        "With `local`, only records are mirrored that no flow has brought to the source.",
        field="records",
    ),
    Option(
        "mirrorlake.topics.shared",
        Flag(),
        "false",
        "Whether others write to the remote topics, too: producers of the target, or other flows that are merged.",
        field="topics_shared",
        is_derived=True,
        default_description="`false`; `true` where two flows keep names both ways",
    ),
    Option(
        "mirrorlake.remote.topics.writer",
        PRINCIPAL,
        "",
        "Principal of mirrorlake on the target. If it is set, ACLs deny writing to remote topics to every other "
        "principal that may write to them, until they are promoted or the flow is failed over.",
        field="remote_topics_writer",
        is_live=True,
        is_derived=True,
    ),
    Option(
        "mirrorlake.topic.configs",
        OneOf(("all", "intersection")),
        "all",
        "With `intersection`, only properties of topics are kept in step that the target knows, too.",
        field="topic_configs",
        is_live=True,
    ),
    Option(
        "mirrorlake.on.loss",
        OneOf(("stop", "continue")),
        "stop",
        "What the flow does where records are lost ([see below](#what-is-lost)): `stop`, or `continue` and write down "
        "what is missing.",
        field="passes_over_losses",
        is_derived=True,
    ),
    Option(
        "mirrorlake.same.cluster.allowed",
        Flag(),
        "false",
        "Whether source and target may be one cluster.",
        field="same_cluster_allowed",
    ),
)

# A flow reads these for each of its transforms. `Transform` names the fields that they feed.
TRANSFORM = (
    Option(
        "mirrorlake.transform.<name>.topics",
        Patterns(),
        "",
        "Topics that the transform is for. Required.",
    ),
    Option(
        "mirrorlake.transform.<name>.where",
        Text("BOOLEAN"),
        "",
        "A record for which it is not true, or is NULL, is left out.",
    ),
    Option("mirrorlake.transform.<name>.key", Text("STRING or BINARY"), "", "New key. Without it, the key stays."),
    Option(
        "mirrorlake.transform.<name>.value", Text("STRING or BINARY"), "", "New value. Without it, the value stays."
    ),
    Option(
        "mirrorlake.transform.<name>.headers",
        Text("`ARRAY<STRUCT<key: STRING, value: BINARY>>`"),
        "",
        "New headers; `array()` for none. Without it, the headers stay.",
    ),
    Option(
        "mirrorlake.transform.<name>.timestamp",
        Text("TIMESTAMP, or BIGINT in ms"),
        "",
        "New timestamp. Without it, the timestamp stays.",
    ),
    Option(
        "mirrorlake.transform.<name>.partition",
        Text("INT"),
        "",
        "Partition on the target. Without it, the record keeps its partition.",
    ),
    *chain.from_iterable(
        (
            Option(
                f"mirrorlake.transform.<name>.{side}.format",
                OneOf(FORMATS),
                "bytes",
                f"Format by which `{side}_data` is read; `confluent-avro` is Avro behind the five bytes of a schema "
                "registry.",
            ),
            Option(
                f"mirrorlake.transform.<name>.{side}.schema",
                Text(),
                "",
                "Schema of that format. For json a DDL (`id BIGINT, name STRING`) or a type (`MAP<STRING, STRING>`), "
                "for Avro the writer's schema in JSON.",
            ),
            Option(
                f"mirrorlake.transform.<name>.{side}.schema.ids",
                OneOf(SCHEMA_IDS),
                "keep",
                "With `translate`, the schema id in front becomes that of the target's registry "
                "([see below](#schema-registries)).",
            ),
        )
        for side in ("key", "value")
    ),
    Option(
        "mirrorlake.transform.<name>.on.error",
        OneOf(ON_ERROR),
        "stop",
        "What happens when a record can't be transformed: the job stops, or the record goes to the dead-letter topic "
        "as it is.",
    ),
    Option(
        "mirrorlake.transform.<name>.compression.type",
        OneOf(("none", "gzip", "snappy", "lz4", "zstd")),
        "lz4",
        "Compression of the batches that are written.",
    ),
)

TRANSFORMS = (
    Option(
        "mirrorlake.transforms",
        Names(),
        "",
        "Names of transforms. A topic takes the first one whose `topics` match.",
        field="transforms",
        is_derived=True,
    ),
    *TRANSFORM,
    Option(
        "mirrorlake.dead.letter.topic",
        TOPIC,
        "mirrorlake.dead-letters.<source>",
        "Topic on the target for records that can't be transformed.",
        field="dead_letter_topic",
        is_derived=True,
    ),
)

MONITORING = (
    Option(
        "mirrorlake.lag.interval.seconds",
        Integer(0, 86_400),
        "60",
        "Time between two measurements of the lag of each partition, for [lag_now](sql.md#lag_now) and metrics. 0: "
        "none.",
        field="lag_interval_s",
    ),
    Option(
        "mirrorlake.metrics.port",
        Integer(0, 65_534),
        "0",
        "Port on which a mirror job serves `/metrics` and `/health`; the checkpoint job takes the next one. 0: none.",
        field="metrics_port",
    ),
    Option(
        "mirrorlake.metrics.host",
        Text("a host name or address of this machine"),
        "127.0.0.1",
        "Address that is listened on. There is no login: with another than the loopback address, a firewall decides "
        "who may read names and figures.",
        field="metrics_host",
    ),
    Option(
        "mirrorlake.metrics.health.seconds",
        Integer(1),
        "300",
        "Time without progress after which `/health` answers with 503.",
        field="metrics_health_s",
    ),
    Option(
        "mirrorlake.metrics.detailed",
        Flag(),
        "false",
        "Whether there are metrics of each topic, partition and group, too, also under "
        "[MirrorMaker 2's names](monitoring.md#mirrormaker-2s-names).",
        field="metrics_detailed",
    ),
    Option(
        "mirrorlake.metrics.otlp.endpoint",
        Text("an address that begins with http:// or https://"),
        "",
        "Address to which jobs push their metrics by OTLP over HTTP, such as `http://127.0.0.1:4318/v1/metrics`.",
        field="metrics_otlp_endpoint",
    ),
    Option(
        "mirrorlake.metrics.otlp.headers",
        Text("`name=value`, separated by commas; values may be references"),
        "",
        "Headers of these requests, such as `authorization=${env:OTLP_TOKEN}`.",
        field="metrics_otlp_headers",
    ),
    Option(
        "mirrorlake.metrics.otlp.interval.seconds",
        Integer(1, 86_400),
        "60",
        "Time between two pushes. The last one is at the end of a run.",
        field="metrics_otlp_interval_s",
    ),
)

CANARY = (
    Option(
        "mirrorlake.canary.enabled",
        Flag(),
        "false",
        "Whether the mirror job sends [canaries](monitoring.md#the-canary): a record and the offset of a group, which "
        "travel the whole way.",
        field="canary_enabled",
    ),
    Option(
        "mirrorlake.canary.interval.seconds",
        Integer(1, 86_400),
        "10",
        "Time between two canaries.",
        field="canary_interval_s",
    ),
    Option(
        "mirrorlake.canary.record.sla.ms",
        Integer(1),
        "10000",
        "Time within which a record must be readable on the target.",
        field="canary_record_sla_ms",
    ),
    Option(
        "mirrorlake.canary.group.sla.ms",
        Integer(1),
        "60000",
        "Time within which the offset of a group must be on the target.",
        field="canary_group_sla_ms",
    ),
    Option(
        "mirrorlake.canary.objective.percent",
        Integer(1, 99),
        "99",
        "Share of canaries that must arrive in time.",
        field="canary_objective_percent",
    ),
)

REGISTRIES = (
    Option(
        "<alias>.schema.registry.url",
        Text("an address that begins with http:// or https://"),
        "",
        "Address of the cluster's schema registry.",
        field="registries",
        is_derived=True,
    ),
    Option(
        "<alias>.schema.registry.basic.auth.user.info",
        Text("`user:password`, or better a reference to it"),
        "",
        "Credentials for the registry.",
        field="registries",
        is_derived=True,
    ),
)
