from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mirrorlake.config import secret_reference
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.replication_policy import IdentityReplicationPolicy, find_ring
from mirrorlake.errors import ConfigurationError

BASE = {"clusters": "a, b", "a.bootstrap.servers": "h1:1, h2:2", "b.bootstrap.servers": "h3:3", "a->b.enabled": "true"}


def flow(name: str = "a->b", **changes: str) -> Flow:
    return Flow.from_properties(Properties({**BASE, **changes}), name)


def test_defaults_are_mirrormaker_twos() -> None:
    found = flow()
    assert found.topics.include == (".*",)
    assert found.topics.exclude == (r"mm2.*\.internal", r".*\.replica", "__.*")
    assert found.groups.exclude == ("console-consumer-.*", "connect-.*", "__.*")
    assert (found.replication_factor, found.offset_syncs_replication_factor) == (2, 3)
    assert (found.emit_checkpoints_interval_s, found.refresh_topics_interval_s, found.sync_group_offsets_enabled) == (
        5,
        600,
        False,
    )


def test_a_property_of_the_flow_wins_over_the_targets_and_the_files() -> None:
    assert flow(topics="x").topics.include == ("x",)
    assert flow(**{"topics": "x", "b.topics": "y"}).topics.include == ("y",)
    assert flow(**{"topics": "x", "b.topics": "y", "a->b.topics": "z"}).topics.include == ("z",)


def test_a_client_property_of_a_role_wins_over_the_clusters_and_the_files() -> None:
    timing = {"retries": "1", "a.retries": "2", "a.consumer.retries": "3", "security.protocol": "ssl"}
    properties = Properties({**BASE, **timing})
    found = dict(properties.connection("a").properties)
    assert (found["retries"], found["security.protocol"]) == ("3", "ssl")
    assert dict(properties.connection("b").properties)["retries"] == "1"


OF_ALL = {f"a.{role}.security.protocol": "SSL" for role in ("consumer", "producer", "admin")}


def test_credentials_of_roles_are_taken_if_they_are_those_of_all() -> None:
    assert flow(**OF_ALL).source_connection.security_protocol == "SSL"
    of_flow = {"a->b.consumer.security.protocol": "SSL", "b.security.protocol": "SSL"}
    assert flow(**OF_ALL, **of_flow).target_connection.uses_tls


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {**OF_ALL, "a.admin.security.protocol": "PLAINTEXT"},
            r"a\.consumer\.security\.protocol differs from a\.admin",
        ),
        (
            {"a.consumer.sasl.jaas.config": "x"},
            r"a\.consumer\.sasl\.jaas\.config differs from those of the producer, wh",
        ),
        ({"producer.ssl.key.password": "x"}, r"producer\.ssl\.key\.password differs from those of the consumer"),
        ({"a->b.producer.sasl.mechanism": "PLAIN"}, r"a->b\.producer\.sasl\.mechanism differs from a\.sasl\.mechanism"),
        ({"source.consumer.sasl.mechanism": "PLAIN"}, r"source\.consumer\.sasl\.mechanism differs from a\.sasl"),
        (
            {"b.target.admin.bootstrap.servers": "h:1"},
            r"b\.target\.admin\.bootstrap\.servers differs from b\.bootstrap",
        ),
        ({"a->b.sasl.jaas.config": "x"}, r"a->b\.sasl\.jaas\.config differs from a\.sasl\.jaas\.config"),
    ],
)
def test_separate_credentials_of_roles_and_flows_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message + ".*one principal.*remove"):
        flow(**changes)


def test_a_java_property_file_with_escapes_and_continuations_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "# comment\nclusters = us-west, us-east\nus-west.bootstrap.servers: "
        "h:1\nus-east.bootstrap.servers=h:2\nus-west->us-east.enabled = true\n"
        "us-west->us-east.topics = orders\\\n   , "
        "pay\\u006dents\nreplication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    )
    found = Flow.load(file, "us-west->us-east")
    assert found.topics.include == ("orders", "payments")
    assert isinstance(found.policy, IdentityReplicationPolicy)


def test_the_mark_of_an_editor_does_not_hide_the_first_property(tmp_path: Path) -> None:
    text = "west->east.topics = orders\nclusters = west, east\nwest->east.enabled = true\n"
    text += "west.bootstrap.servers = h:1\neast.bootstrap.servers = h:2\n"
    file = tmp_path / "mm2.properties"
    file.write_text(text, encoding="utf-8-sig")
    assert Flow.load(file, "west->east").topics.include == ("orders",)
    file.write_text(text, encoding="utf-16")
    with pytest.raises(ConfigurationError, match=r"is in UTF-16\. Save it as UTF-8"):
        Flow.load(file, "west->east")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("a->b", {"clusters": ""}, "property clusters is missing"),
        ("a->b", {"clusters": "a, b, a"}, "names a twice"),
        ("ab", {}, "is not of the form source->target"),
        ("a->bb", {}, "has no cluster 'bb'.*Did you mean 'b'"),
        ("a->a", {}, "source and target are the same"),
        ("b->a", {}, r"flow b->a is not enabled.*set b->a\.enabled = true \(enabled: a->b\)"),
        ("a->b", {"a.bootstrap.servers": ""}, r"a\.bootstrap\.servers is missing"),
        ("a->b", {"a.bootstrap.servers": "h1"}, "'h1' is not host:port"),
        ("a->b", {"a.security.protocol": "TLS"}, "allowed are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("a->b", {"a.security.protocol": "SASL_SSL", "a.sasl.mechanism": "PLAIN"}, r"sasl\.jaas\.config is missing"),
        ("a->b", {"topics": "("}, "property topics: .* is not a valid regular expression"),
        ("a->b", {"replication.factor": "0"}, "allowed is a whole number from 1 to 32767, or -1"),
        ("a->b", {"sync.group.offsets.enabled": "yes"}, "allowed is true or false"),
        ("a->b", {"emit.checkpoints.interval.seconds": "fast"}, "emit.checkpoints.interval.seconds is 'fast'"),
        (
            "a->b",
            {"sync.group.offsets.enabled": "true", "emit.checkpoints.enabled": "false"},
            "offsets are synced from checkpoints. Set both to true, or set sync.group.offsets.enabled = false",
        ),
        (
            "a->b",
            {"replication.policy.class": "com.example.Mine"},
            "supported are DefaultReplicationPolicy, IdentityReplicationPolicy",
        ),
        ("a->b", {"replication.policy.separator": "/"}, "allowed are characters that a topic name may have"),
        (
            "a->b",
            {"mirrorlake.linger.ms": "10000", "mirrorlake.canary.enabled": "true"},
            "a canary waits as any record, but must arrive within 10000 ms",
        ),
        ("a->b", {"mirrorlake.transaction.timeout.ms": "5000"}, "Set it to at least twice mirrorlake.batch.max.ms"),
    ],
)
def test_bad_configuration_is_refused_with_property_value_and_what_is_allowed(
    name: str, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        flow(name, **changes)


def test_a_missing_file_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.properties can't be read"):
        Flow.load(tmp_path / "nowhere.properties", "a->b")
    (tmp_path / "bad.properties").write_text("a = \\u12\n")
    with pytest.raises(ConfigurationError, match="is not a Java property file"):
        Flow.load(tmp_path / "bad.properties", "a->b")


def test_every_property_of_a_file_is_accounted_for() -> None:
    given = {
        "a->b.sync.topic.acls.enabled": "true",
        "a->b.topic": "x",
        "tasks.max": "4",
        "a.consumer.ssl.keystore.location": "x",
        "offset.storage.partitions": "x",
        "transforms": "x",
        "b.client.id": "x",
        "a->b.producer.request.timeout.ms": "1",
    }
    found = {line.name: line.status for line in Properties({**BASE, **given}).report()}
    assert found == {
        **dict.fromkeys([*BASE, "a->b.sync.topic.acls.enabled", "a.consumer.ssl.keystore.location"], "supported"),
        "tasks.max": "not needed",
        "offset.storage.partitions": "not needed",
        "transforms": "not supported",
        "b.client.id": "not supported",
        "a->b.producer.request.timeout.ms": "not supported",
        "a->b.topic": "unknown",
    }


def test_properties_that_somebody_may_count_on_without_effect_are_named_in_warnings() -> None:
    assert flow(**{"a->b.topic": "x", "tasks.max": "4", "transforms": "x"}).warnings == (
        "property a->b.topic is unknown; it has no effect (did you mean topics?)",
        "property transforms is MirrorMaker 2's and not supported; it has no effect (use mirrorlake.transforms, which "
        "are Spark SQL)",
    )


def test_properties_of_an_alias_that_begins_with_another_one_are_its_own(tmp_path: Path) -> None:
    values = {
        "clusters": "us, us.east",
        "us.bootstrap.servers": "h1:1",
        "us.east.bootstrap.servers": "h2:2",
        "us.east.sasl.jaas.config": "module required password=x;",
        "us->us.east.topics": "t",
    }
    file = tmp_path / "mm2.properties"
    file.touch(mode=0o644)
    (warning,) = Properties(values, str(file)).warnings()
    assert warning.startswith("property us.east.sasl.jaas.config is a secret")


def test_the_offsets_topic_of_mirrormaker_2_is_the_one_that_its_workers_take() -> None:
    name, flows = "offset.storage.topic", {"a->b.offset.storage.topic": "flows"}
    assert flow(**{name: "all", f"b.{name}": "target"}, **flows).mirrormaker.offsets_topic == "all"
    assert flow(**{f"b.{name}": "target"}, **flows).mirrormaker.offsets_topic == "target"
    assert flow(**flows).mirrormaker.offsets_topic == "flows", "in a Connect cluster, no file says it"
    assert flow().mirrormaker.offsets_topic == "mm2-offsets.a.internal"


def test_names_that_mirrormaker_2_has_read_until_kafka_4_count_where_the_new_ones_are_missing() -> None:
    former = {"topics.blacklist": "pii.*", "a->b.groups.blacklist": "tools", "config.properties.blacklist": "x"}
    found = flow(**former)
    assert not found.mirrors_topic("pii-1")
    assert (found.groups.exclude, found.config_properties_excluded.include, found.warnings) == (("tools",), ("x",), ())
    assert flow(**former, **{"topics.exclude": "tmp.*"}).mirrors_topic("pii-1"), "the new name counts"
    assert {use.why for use in Properties({**BASE, **former}).report() if use.name == "topics.blacklist"} == {
        "the former name of topics.exclude"
    }


def test_a_cluster_may_be_called_source_or_target() -> None:
    values = {"clusters": "source, target", "source.bootstrap.servers": "h:1", "target.bootstrap.servers": "h:2"}
    values |= {"source->target.enabled": "true", "target->source.enabled": "true"}
    values |= {f"source.{role}.security.protocol": "SSL" for role in ("consumer", "producer", "admin")}
    values |= {"target.topic.creation.partitions": "3"}
    for name in ("source->target", "target->source"):
        found = Flow.from_properties(Properties(values), name)
        assert {one.alias: one.security_protocol for one in (found.source_connection, found.target_connection)} == {
            "source": "SSL",
            "target": "PLAINTEXT",
        }
    assert {use.status for use in Properties(values).report() if use.name in values} == {"supported"}


def test_an_interval_below_0_which_is_off_to_mirrormaker_2_is_refused_with_the_property_that_is() -> None:
    with pytest.raises(ConfigurationError, match=r"\. To switch this off, set refresh.topics.enabled = false$"):
        flow(**{"refresh.topics.interval.seconds": "-1"})


def test_an_interval_below_0_of_what_is_switched_off_is_taken_as_mirrormaker_2_takes_it() -> None:
    off = {"emit.heartbeats.enabled": "false", "emit.heartbeats.interval.seconds": "-1"}
    off |= {"refresh.topics.enabled": "false", "a->b.refresh.topics.interval.seconds": "-1"}
    found = flow(**off, **{"sync.topic.acls.interval.seconds": "-1"})
    assert (found.emit_heartbeats_interval_s, found.sync_topic_acls_interval_s) == (1, 600)
    assert (found.refresh_topics_interval_s, found.warnings) == (0, ())
    with pytest.raises(ConfigurationError, match=r"sync.topic.acls.interval.seconds is '-1'"):
        flow(**{"sync.topic.acls.enabled": "true", "sync.topic.acls.interval.seconds": "-1"})


@pytest.mark.parametrize("end", ["\n", "\\n\n"])
def test_no_line_of_a_private_key_becomes_the_name_of_a_property(tmp_path: Path, end: str) -> None:
    """In Java's property files, a line that does not end with a backslash ends the property."""
    file, key = (
        tmp_path / "mm2.properties",
        ("-----BEGIN PRIVATE KEY-----", "MIIEvQIBADAN", "-----END PRIVATE KEY-----"),
    )
    file.write_text("clusters = a, b\na.ssl.keystore.key = " + end.join(key))
    with pytest.raises(ConfigurationError, match=r"the PEM text of a.ssl.keystore.key has no end\.") as raised:
        Properties.load(file)
    assert "MIIE" not in raised.value.message
    file.write_text("clusters = a, b\n" + "\n".join(key))
    with pytest.raises(ConfigurationError, match=r"a line of a PEM text is no value") as raised:
        Properties.load(file)
    assert "MIIE" not in raised.value.message
    file.write_text("clusters = a, b\n----- groups -----\n")
    assert Properties.load(file).values["-----"] == "groups -----", "no more than a line that has no effect"
    file.write_text("clusters = a, b\na.ssl.keystore.key = " + "\\n\\\n".join(key))
    assert Properties.load(file).values["a.ssl.keystore.key"] == "\n".join(key)


def test_only_what_belongs_to_the_flow_is_mirrored() -> None:
    found = flow(topics="orders.*, b.orders, a.orders")
    assert [
        topic for topic in ("orders", "orders-2", "b.orders", "a.orders", "x", "__orders") if found.mirrors_topic(topic)
    ] == ["orders", "orders-2", "a.orders"]


def test_heartbeats_are_mirrored_whatever_topics_says_unless_that_is_off() -> None:
    assert flow(topics="orders").mirrors_topic("heartbeats")
    assert flow(topics="orders").mirrors_topic("x.heartbeats")
    assert not flow(topics="orders", **{"replication.policy.separator": "_"}).mirrors_topic("x.heartbeats")
    off = {"heartbeats.replication.enabled": "false"}
    assert not flow(topics="orders", **off).mirrors_topic("heartbeats")
    assert flow(topics="heartbeats", **off).mirrors_topic("heartbeats")


def test_references_are_resolved_from_environment_file_and_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.properties").write_text("key = from file\n")
    monkeypatch.setenv("NAME", "from environment")
    monkeypatch.setenv("SECRET_KAFKA_PROD_PASS_WORD", "from scope")
    assert (
        secret_reference.resolve(
            "p", f"<${{env:NAME}}|${{file:{tmp_path}/s.properties:key}}|${{secrets:kafka-prod:pass.word}}>"
        )
        == "<from environment|from file|from scope>"
    )


def test_a_reference_in_any_property_is_resolved_and_one_to_a_secret_stays_until_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.properties").write_text("excluded = pii.*, tmp.*\ngroup = mm2\n")
    file = f"${{file:{tmp_path}/t.properties:"
    found = flow(**{"topics": ".*", "topics.exclude": f"{file}excluded}}", "group.id": f"{file}group}}"})
    assert [topic for topic in ("orders", "pii-1", "tmp") if found.mirrors_topic(topic)] == ["orders"]
    assert found.mirrormaker.group_id == "mm2"
    monkeypatch.setenv("Switch_On", "TRUE")
    monkeypatch.setenv("RETENTION", "1000")
    monkeypatch.setenv("PROTOCOL", "SSL\n")
    found = flow(
        **{
            "sync.group.offsets.enabled": "${env:Switch_On}",
            "target.topic.creation.retention.ms": "${env:RETENTION}",
            "mirrorlake.start.topic.t": "0:${env:RETENTION}",
            "a.security.protocol": "${env:PROTOCOL}",
        }
    )
    assert (found.sync_group_offsets_enabled, found.topic_creation) == (True, (("retention.ms", "1000"),))
    assert found.start.of("t", is_first=True).offsets == ((0, 1000),)
    assert found.source_connection.uses_tls
    of_flow = {"a.security.protocol": "${env:PROTOCOL}", "a->b.source.consumer.security.protocol": "SSL"}
    assert flow(**of_flow, **{"a.sasl.mechanism": "${env:UNSET}"}).source_connection.uses_tls
    with pytest.raises(ConfigurationError, match=r"topics\.exclude refers to .*which does not exist here"):
        flow(**{"topics.exclude": f"{file}nothing}}"})


def test_a_start_that_names_a_partition_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"start.topic.t is '0:1500, 0:1720': it names a partition twice"):
        flow(**{"mirrorlake.start.topic.t": "0:1500, 0:1720"})


def test_a_property_of_the_cluster_that_is_only_read_from_is_named_in_a_warning() -> None:
    given = {**BASE, "a.topics.exclude": "x", "b.topics": "y", "a.consumer.auto.offset.reset": "latest"}
    found = {line.name: line for line in Properties(given).report() if line.name not in BASE}
    assert {name: line.status for name, line in found.items()} == {
        "a.topics.exclude": "unknown", "b.topics": "supported", "a.consumer.auto.offset.reset": "supported"
    }  # fmt: skip
    assert found["a.topics.exclude"].why == "no flow has the target a; set a->b.topics.exclude"
    both = {line.name: line.status for line in Properties({**given, "b->a.enabled": "true"}).report()}
    assert both["a.topics.exclude"] == "supported"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${vault:a:b}", "unknown config provider 'vault'; allowed are directory, env, file, secrets"),
        ("${env:NOT_THERE}", "which does not exist here"),
    ],
)
def test_a_reference_to_nothing_is_refused_by_name(value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        secret_reference.resolve("a.sasl.jaas.config", value)


RENAME = {"topics.rename.regex": "(.*)-v1", "topics.rename.replacement": "$1"}


def test_rename_rules_choose_the_policy_and_contradict_any_other() -> None:
    assert flow(**RENAME).policy.remote_topic("orders-v1") == "orders"
    with pytest.raises(ConfigurationError, match=r"contradict replication.policy.class = IdentityReplicationPolicy"):
        flow(**RENAME, **{"replication.policy.class": "IdentityReplicationPolicy"})
    with pytest.raises(ConfigurationError, match="needs both"):
        flow(**{"topics.rename.regex": "x"})


def test_two_topics_with_one_remote_name_are_refused_unless_shared() -> None:
    with pytest.raises(ConfigurationError, match="topics orders and orders-v1 would both be called orders"):
        flow(**RENAME).remote_topics(["orders-v1", "orders"])
    assert flow(**RENAME, **{"mirrorlake.topics.shared": "true"}).remote_topics(["orders-v1", "orders"]) == {
        "orders": "orders",
        "orders-v1": "orders",
    }


@pytest.mark.parametrize("replacement", ["mm2-x.internal", "a b", "..", "__x"])
def test_a_remote_name_that_is_none_is_refused(replacement: str) -> None:
    with pytest.raises(ConfigurationError, match="which is not a valid topic name"):
        flow(**{"topics.rename.regex": "t", "topics.rename.replacement": replacement}).remote_topics(["t"])


IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}


def test_where_names_cannot_tell_records_are_asked_where_they_came_from() -> None:
    both_ways = {"b->a.enabled": "true"}
    assert not flow(**both_ways).minds_provenance
    assert flow(**IDENTITY).minds_provenance, "the flow back may have been on before, or be in another file"
    assert not flow(**IDENTITY).topics_shared
    alias_with_separator = {
        "clusters": "a-1, b",
        "a-1.bootstrap.servers": "h:1",
        "a-1->b.enabled": "true",
        "replication.policy.separator": "-",
    }
    assert flow("a-1->b", **alias_with_separator).minds_provenance
    assert flow(**IDENTITY, **both_ways).minds_provenance
    assert flow(**both_ways, **{"b->a.replication.policy.class": "IdentityReplicationPolicy"}).minds_provenance
    assert flow(**IDENTITY, **both_ways).topics_shared
    assert flow(**{"mirrorlake.records": "local"}).minds_provenance


def test_a_ring_of_clusters_that_keep_names_is_refused() -> None:
    ring = {
        **IDENTITY,
        "clusters": "a, b, c",
        "c.bootstrap.servers": "h:1",
        "b->c.enabled": "true",
        "c->a.enabled": "true",
    }
    with pytest.raises(ConfigurationError, match="a -> b -> c -> a form a ring"):
        flow(**ring)
    assert flow(**ring, **{"mirrorlake.records": "local"}).records == "local"
    assert flow(**{**ring, "c->a.enabled": "false"}).policy.remote_topic("t") == "t"
    assert (
        flow(
            **{
                **ring,
                "b->c.replication.policy.class": "DefaultReplicationPolicy",
                "c->a.replication.policy.class": "DefaultReplicationPolicy",
            }
        ).name
        == "a->b"
    )
    with pytest.raises(ConfigurationError, match="form a ring"):
        flow(**{**ring, "c->a.replication.policy.class": "DefaultReplicationPolicy"})


def test_names_go_round_neither_between_two_separators_nor_where_one_flow_keeps_them() -> None:
    for there, back in (
        ({}, {"b->a.replication.policy.separator": "_"}),
        ({"a->b.replication.policy.class": "IdentityReplicationPolicy"}, {}),
    ):
        file = {"b->a.enabled": "true", **there, **back}
        forth, home = flow("a->b", **file), flow("b->a", **file)
        on_a, on_b = {"t"}, set[str]()
        for _ in range(4):
            on_b |= {forth.policy.remote_topic(topic) for topic in on_a if forth.mirrors_topic(topic)}
            on_a |= {home.policy.remote_topic(topic) for topic in on_b if home.mirrors_topic(topic)}
        assert len(on_a) + len(on_b) <= 4, (on_a, on_b)


def test_a_rule_of_names_takes_home_what_the_alias_in_front_has_brought() -> None:
    home = flow(
        "b->a",
        **{
            "b->a.enabled": "true",
            "b->a.topics.rename.regex": r"a\.(.*)",
            "b->a.topics.rename.replacement": "$1",
        },
    )
    assert home.mirrors_topic("a.orders")
    assert home.policy.remote_topic("a.orders") == "orders"


def test_a_ring_with_several_separators_is_refused() -> None:
    ring = {"clusters": "a, b, c", "c.bootstrap.servers": "h:1", "b->c.enabled": "true", "c->a.enabled": "true"}
    assert flow(**ring).name == "a->b"
    elsewhere = {"clusters": "a, b, c, d, e", "d.bootstrap.servers": "h:1", "e.bootstrap.servers": "h:1"}
    elsewhere |= {"d->e.enabled": "true", "d->e.replication.policy.separator": "_"}
    assert flow(**{**ring, **elsewhere}).name == "a->b"
    with pytest.raises(ConfigurationError, match=r"form a ring and .*, or have several separators"):
        flow(**ring, **{"b->c.replication.policy.separator": "_"})


def test_a_full_mesh_whose_names_tell_the_origin_has_no_ring_however_many_clusters_there_are() -> None:
    aliases = [f"c{number}" for number in range(20)]
    pairs = [(one, other) for one in aliases for other in aliases if one != other]
    mesh = {"clusters": ", ".join(aliases), **{f"{one}->{other}.enabled": "true" for one, other in pairs}}
    scope = Properties({**mesh, "a->b.enabled": "false"}).scope("c0->c1")
    assert find_ring(scope) == ()
    keeping = {f"{one}->{other}.replication.policy.class": "IdentityReplicationPolicy" for one, other in pairs[:1]}
    assert find_ring(Properties({**mesh, **keeping}).scope("c0->c1")) == (), "one of three does not let it go round"


@pytest.mark.parametrize(
    "name",
    [
        "consumer.auto.offset.reset",
        "a.consumer.auto.offset.reset",
        "source.consumer.auto.offset.reset",
        "a->b.source.consumer.auto.offset.reset",
    ],
)
def test_auto_offset_reset_is_found_wherever_mirrormaker_2_takes_it(name: str) -> None:
    assert flow(**{name: "latest"}).start.flow.word == "latest"


@pytest.mark.parametrize(
    ("name", "value", "is_warned"),
    [
        ("consumer.auto.offset.reset", "latest", True),
        ("source.consumer.isolation.level", "read_committed", True),
        ("consumer.auto.offset.reset", "earliest", False),
        ("a.consumer.auto.offset.reset", "latest", False),
        ("a->b.consumer.isolation.level", "read_committed", False),
    ],
)
def test_a_consumer_property_that_mirrormaker_2_ignores_where_it_stands_is_warned_about(
    name: str, value: str, is_warned: bool
) -> None:
    found = [line for line in flow(**{name: value}).warnings if "only in the configuration of a connector" in line]
    assert (bool(found), all(line.startswith(f"property {name} holds here") for line in found)) == (is_warned, True)


def test_a_property_of_the_consumer_of_the_target_does_not_decide_where_the_source_is_read() -> None:
    assert flow(**{"b.consumer.auto.offset.reset": "latest"}).start.flow.word == "earliest"
    named = {"clusters": "source, target", "target->source.enabled": "true"}
    named |= {f"{alias}.bootstrap.servers": "h:1" for alias in ("source", "target")}
    properties = Properties({**named, "source.consumer.auto.offset.reset": "latest"})
    assert properties.scope("source->target").source_consumer("auto.offset.reset") == "latest"
    assert properties.scope("target->source").source_consumer("auto.offset.reset") == "earliest"
    assert [*properties.scope("source->target").consumer_warnings()] == [], "MirrorMaker 2 obeys it, too"


def test_what_the_file_says_itself_is_told_from_a_default() -> None:
    both = {"b->a.enabled": "true", "replication.policy.class": "IdentityReplicationPolicy"}
    shared = [flow(**both), *(flow(**both, **{"mirrorlake.topics.shared": value}) for value in ("true", "false"))]
    assert [(one.topics_shared, one.shares_by_default) for one in shared] == [
        (True, True), (True, False), (False, False)
    ]  # fmt: skip
    starts = ({}, {"consumer.auto.offset.reset": "earliest"}, {"mirrorlake.start": "earliest"},
              {"consumer.auto.offset.reset": "latest"}, {"a->b.mirrorlake.start": "2026-11-01T08:00"})  # fmt: skip
    assert [flow(**given).start.is_chosen for given in starts] == [False, False, True, True, True]


def test_topics_of_one_remote_name_hold_back_each_other_but_never_one_that_is_mirrored() -> None:
    found = flow(**{"topics.rename.regex": "(orders)-.*", "topics.rename.replacement": "$1"})
    names = ["orders-v1", "orders-v2", "other", "x" * 249]
    assert found.unnamed(names).keys() == {"orders-v1", "orders-v2"}
    assert found.unnamed(names, {"orders-v1"}).keys() == {"orders-v2"}
    shared = replace(found, topics_shared=True)
    assert not shared.unnamed(names)
    assert flow().unnamed(names).keys() == {"x" * 249}


def test_what_mirrormaker_2_ignores_at_the_targets_alias_is_said() -> None:
    given = {"b.topics": "x", "b.mirrorlake.slots": "2", "b.offset.storage.topic": "o", "b.ssl.key.password": "p"}
    (warning,) = flow(**given).warnings
    assert warning.startswith("property b.topics holds here for all flows to b, and MirrorMaker 2 ignores it there. ")
    assert "Write a->b.topics if it is meant" in warning
    assert flow(**given, **{"a->b.topics": "x"}).warnings == ()


def test_clusters_may_be_named_by_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_CLUSTERS", "a, b")
    assert Properties({**BASE, "clusters": "${env:MM2_CLUSTERS}"}).flows == ("a->b",)


def test_a_config_provider_of_a_class_that_is_not_known_is_refused_where_a_reference_names_it(tmp_path: Path) -> None:
    def read(name: str, kind: str, reference: str) -> Properties:
        file = tmp_path / "mm2.properties"
        lines = {**BASE, "config.providers": name, f"config.providers.{name}.class": kind, "topics": reference}
        file.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        return Properties.load(file)

    vault = "com.acme.VaultProvider"
    for name in ("env", "secrets", "vault"):
        with pytest.raises(ConfigurationError, match=f"config provider {name} is of class {vault}"):
            read(name, vault, f"${{{name}:ns/creds:password}}")
        assert read(name, vault, "orders").flows == ("a->b",)
    read("e", "io.strimzi.kafka.EnvVarConfigProvider", "${e:HOME}")


def test_connects_own_properties_of_a_cluster_that_is_called_target_are_none_of_a_topic() -> None:
    given = {"source.bootstrap.servers": "s:1", "target.bootstrap.servers": "t:1", "source->target.enabled": "true"}
    of_connect = {"target.topic.creation.enable": "true", "target.topic.creation.default.partitions": "3"}
    of_topics = {"target.topic.creation.min.insync.replicas": "2"}
    properties = Properties({"clusters": "source, target", **given, **of_connect, **of_topics})
    assert Flow.from_properties(properties, "source->target").topic_creation == (("min.insync.replicas", "2"),)


@pytest.mark.parametrize(
    ("name", "value"), [("auto.offset.reset", "none"), ("auto.offset.reset", "x"), ("isolation.level", "read_commited")]
)
def test_a_wrong_property_of_the_sources_consumer_is_refused_by_the_name_that_it_has(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"a\.consumer\.{name} is '{value}'"):
        flow(**{f"a.consumer.{name}": value})
