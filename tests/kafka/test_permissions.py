"""Principals with too few rights, or a wrong password: an error names what is missing, and with exactly the rights of
docs/security.md every job works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from mirrorlake import resources
from mirrorlake.config.properties import Properties
from mirrorlake.errors import GateError, MirrorlakeError, SourceError, TargetError
from mirrorlake.jobs.failover.access import (
    AccessKind,
    MissingAccess,
    give,
    missing_on_target,
    missing_to_close,
    missing_to_open,
    open_to_writers,
)
from mirrorlake.jobs.failover.snapshot import HIDES_GROUPS
from mirrorlake.jobs.inspection.doctor import examine
from mirrorlake.jobs.inspection.finding import Level
from mirrorlake.jobs.inspection.flow_checks import Peers, source_permissions
from mirrorlake.jobs.mirror.lag_meter import measure
from mirrorlake.jobs.mirror.observation import holdups
from mirrorlake.jobs.mirror.planning import planner
from mirrorlake.jobs.verification.completeness import Completeness, CountScope
from mirrorlake.jobs.verification.counting import Counting
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.logs import FlowLogs
from mirrorlake.jobs.verification.result import VerificationResult
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.local.cluster import Broker, LocalCluster, running
from mirrorlake.local.ports import free_port
from mirrorlake.local.quota import quota
from mirrorlake.model.partition_lag import PartitionState
from mirrorlake.protocol.acls import Acl
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.connect_offsets import MirrorMaker
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.protocol.probes.permissions import denied_commits
from mirrorlake.protocol.users import read_quotas
from mirrorlake.translation.translator import Translator

from tests.world import (
    World,
    config_of,
    configure,
    eventually,
    now_ms,
    read_committed,
    set_config,
    transactional_producer,
    write_in_transaction,
)


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


SECRET = "canary-9f3b"
SENT_MS = now_ms()  # on both sides: records are compared with their timestamps


@pytest.fixture(scope="module")
def secured(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Starts a target with SASL and an authorizer: `admin` may do everything, `limited` what tests grant."""
    jaas = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="{SECRET}" '
        f'user_limited="{SECRET}";'
    )
    cluster = SecuredCluster(
        "secured",
        tmp_path_factory.mktemp("secured"),
        root / ".local/jars/kafka",
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        },
    )
    with running(cluster):
        yield cluster


class SecuredCluster(LocalCluster):
    """A local cluster whose clients log in; brokers and controller trust each other, and the test, which comes by
    another listener."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        port = free_port()
        self.open_servers = f"127.0.0.1:{port}"
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",PROXIED://{self.open_servers}"
        return {
            name: value.replace("PLAINTEXT://127.0.0.1", "SASL_PLAINTEXT://127.0.0.1") if "listeners" in name else value
            for name, value in properties.items()
        } | {
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": properties[
                "listener.name.sasl_plaintext.plain.sasl.jaas.config"
            ].replace("required ", f'required username="admin" password="{SECRET}" '),
        }

    @property
    def client_properties(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": SECRET,
        }


def as_limited(world: World, cluster: LocalCluster, password: str = "", aliases: tuple[str, ...] = ("t",)) -> None:
    """Lets the flow log in as `limited`, by default at the target; the password is a reference to a file that workers
    can read."""
    file = world.directory / "secrets.properties"
    file.touch(0o600)
    file.write_text(f"password = {SECRET}\n")
    password = password or f"${{file:{file}:password}}"
    values = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="limited" password="{password}";',
    }
    of_clusters = {f"{alias}.{name}": value for alias in aliases for name, value in values.items()}
    world.write_config(**{"mirrorlake.connect.timeout.ms": "5000"}, **of_clusters)


def grant(
    cluster: LocalCluster,
    world: World,
    *rights: tuple[ResourceType, str, AclOperation],
    principal: str = "User:limited",
) -> None:
    """Gives rights on all resources whose names begin so, or on the cluster."""
    admin = admin_of(cluster)
    allow, prefixed = AclPermissionType.ALLOW, ResourcePatternType.PREFIXED
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL if kind is ResourceType.BROKER else prefixed,
            principal,
            "*",
            operation,
            allow,
        )
        for kind, name, operation in rights
    ]
    for future in admin.create_acls(bindings).values() if bindings else ():
        future.result()


def grant_all_that_it_writes(cluster: LocalCluster, world: World) -> None:
    """Gives all rights on what a mirror job writes on the target."""
    topics = f"{world.alias}.", f"mirrorlake.offset-syncs.{world.alias}.internal"
    grant(
        cluster,
        world,
        *((ResourceType.TOPIC, name, AclOperation.ALL) for name in topics),
        (ResourceType.TRANSACTIONAL_ID, f"mirrorlake.{world.alias}.", AclOperation.ALL),
    )


def wait_for_records(world: World, topic: str, count: int) -> None:
    """Waits until the remote topic has so many records."""
    eventually(lambda: sum(map(len, world.target_records(topic).values())) == count, what=f"{count} of {topic}")


def test_missing_permissions_are_named_one_after_the_other_and_with_all_of_them_it_works(
    secured: SecuredCluster, spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cluster is source and target, so each right is one on a resource of its side: the table of docs/security.md.

    Without DESCRIBE on CLUSTER, Kafka hides groups that a principal may not describe; such topics it always hides.
    """
    monkeypatch.setattr(holdups, "LONG_MS", 0)
    world = World(secured.open_servers, secured.open_servers, tmp_path)
    topic = world.topic(config={"retention.ms": "7200000"})
    world.produce(topic, 100)
    group = world.commit("g", {(topic, 0): 5})
    as_limited(world, secured, aliases=(world.alias, "t"))
    world.write_config(
        **{
            "mirrorlake.same.cluster.allowed": "true",
            "mirrorlake.retry.timeout.ms": "3000",
            "sync.topic.acls.enabled": "true",
            "emit.heartbeats.enabled": "true",
            "emit.offset-syncs.enabled": "true",
        }
    )
    reader = (ResourceType.TOPIC, topic, AclOperation.READ)
    grant(secured, world, reader, principal="User:reader")
    ids, syncs = f"mirrorlake.{world.alias}.t.", f"mirrorlake.offset-syncs.{world.alias}.internal"
    mine, remote = f"{world.alias}-", f"{world.alias}."
    mm2_syncs, letters = "mm2-offset-syncs.t.internal", f"mirrorlake.dead-letters.{world.alias}"

    def on(kind: ResourceType, name: str, *operations: AclOperation) -> list[tuple[ResourceType, str, AclOperation]]:
        return [(kind, name, operation) for operation in operations]

    def said() -> str:
        """Returns the error of a run and what it has logged."""
        before, error = len(world.lines), ""
        world.produce(topic, 10)
        try:
            world.mirror()
        except MirrorlakeError as failed:
            error = str(failed)
        found = "\n".join([error, *world.lines[before:]])
        assert SECRET not in found
        return found

    of_topic, cluster = ResourceType.TOPIC, (ResourceType.BROKER, "kafka-cluster")
    stopping = [
        (
            rf"TRANSACTIONAL_ID {ids}.*needs DESCRIBE.*TransactionalIdAuthorization",
            on(of_topic, mine, AclOperation.READ) + on(ResourceType.TRANSACTIONAL_ID, ids, AclOperation.WRITE),
        ),
        (rf"creating topic {syncs} .*needs CREATE on this TOPIC", on(of_topic, syncs, AclOperation.CREATE)),
        (rf"creating topic {remote}.*-orders .*needs CREATE on this", on(of_topic, remote, AclOperation.CREATE)),
        (rf"{syncs}.*lacks a permission on this TOPIC", on(of_topic, syncs, AclOperation.WRITE)),
        (rf"{syncs}.*needs READ.*lacks a permission on this TOPIC", on(of_topic, syncs, AclOperation.READ)),
        (
            r"-orders \(needs DESCRIBE\).*lacks a permission on this TOPIC",
            on(of_topic, remote, AclOperation.DESCRIBE),
        ),
        (r"-orders \(needs WRITE\).*lacks a permission on this TOPIC", on(of_topic, remote, AclOperation.WRITE)),
    ]
    for message, rights in stopping:
        text = said()
        assert re.search(message, text), f"{message} is not in {text}"
        assert "mirror_failed" in text
        grant(secured, world, *rights)
    world.source_admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    text = said()
    assert re.search(r"adding partitions to topic .*needs ALTER on this TOPIC", text)
    grant(secured, world, *on(of_topic, remote, AclOperation.ALTER))
    refused = said()
    for message, rights in [
        (r"heartbeats on cluster t: .*needs CREATE on this TOPIC", on(of_topic, "heartbeats", AclOperation.CREATE)),
        (rf"configs_not_synced .*cluster={world.alias} .*needs DESCRIBE_CONFIGS", []),
        (
            r"configs_not_synced .*cluster=t .*needs DESCRIBE_CONFIGS",
            [right for name in (mine, remote) for right in on(of_topic, name, AclOperation.DESCRIBE_CONFIGS)],
        ),
        (rf"acls_not_synced .*cluster={world.alias} .*needs DESCRIBE on CLUSTER", on(*cluster, AclOperation.DESCRIBE)),
        (rf"creating topic {mm2_syncs} .*needs CREATE on this TOPIC", on(of_topic, mm2_syncs, AclOperation.CREATE)),
    ]:
        assert re.search(message, refused), f"{message} is not in {refused}"
        grant(secured, world, *rights)
    configure(world, topic, {"retention.ms": "7300000"})
    undecided = world.topic("undecided", 1)
    hanging = transactional_producer(world.source_servers, undecided)
    write_in_transaction(hanging, undecided)
    refused = said()
    for message, rights in [
        (r"heartbeats on cluster t can't .*needs WRITE on this TOPIC", on(of_topic, "heartbeats", AclOperation.WRITE)),
        (r"setting retention.ms .*needs ALTER_CONFIGS on this TOPIC", on(of_topic, remote, AclOperation.ALTER_CONFIGS)),
        (r"giving ALLOW READ to User:reader .*needs ALTER on this CLUSTER", []),
        (rf"{mm2_syncs} on cluster .*needs WRITE on this TOPIC", on(of_topic, mm2_syncs, AclOperation.WRITE)),
        (
            rf"configs_not_synced .*cluster=t topics={syncs} .*needs DESCRIBE_CONFIGS",
            on(of_topic, syncs, AclOperation.DESCRIBE_CONFIGS),
        ),
        (
            r"open_transaction .*producer id \d+ .*needs DESCRIBE on TRANSACTIONAL_ID",
            on(ResourceType.TRANSACTIONAL_ID, f"{mine}undecided", AclOperation.DESCRIBE),
        ),
    ]:
        assert re.search(message, refused), f"{message} is not in {refused}"
        grant(secured, world, *rights)

    world.spark = spark
    world.mirror()  # its ledger is in Delta
    with pytest.raises(SourceError, match=rf"offsets of GROUP {group} .*needs DESCRIBE"):
        world.checkpoint()
    grant(secured, world, *on(ResourceType.GROUP, mine, AclOperation.DESCRIBE))
    for resource, right in (
        ("GROUP", (ResourceType.GROUP, mine, AclOperation.READ)),
        ("TOPIC", (of_topic, remote, AclOperation.READ)),
    ):
        world.checkpoint()
        row = world.checkpoints()[group, topic, 0]
        expected = ("refused", f"not authorised: the principal needs READ on this {resource}")
        assert (row["sync"], row["reason"]) == expected
        grant(secured, world, right)
    world.checkpoint()
    assert world.checkpoints()[group, topic, 0]["sync"] == "committed"

    grant(secured, world, *on(*cluster, AclOperation.ALTER))
    doubtful = world.topic("doubtful", 1)
    world.produce(doubtful, 3, 1)
    transform = {"topics": doubtful, "where": "CAST(CAST(value AS STRING) AS INT) > 0", "on.error": "dead-letter"}
    world.write_config(
        **{"mirrorlake.transforms": "t"},
        **{f"mirrorlake.transform.t.{name}": value for name, value in transform.items()},
    )
    for message, operation in [
        (rf"creating topic {letters} .*needs CREATE on this TOPIC", AclOperation.CREATE),
        (rf"topic {letters} \(needs WRITE\): .*lacks a permission on this TOPIC", AclOperation.WRITE),
    ]:
        text = said()
        assert re.search(message, text), f"{message} is not in {text}"
        assert "mirror_failed" in text
        grant(secured, world, *on(of_topic, letters, operation))
    text = said()
    wrong = [value for _, (_, value, _, _) in world.source_records(doubtful)[0] if value is not None]
    assert [value for _, (_, value, _, _) in read_committed(secured.open_servers, letters)[0]] == wrong
    assert f"transactional.id {mine}undecided, producer id" in text
    hanging.abort_transaction(30)
    assert not re.search(r"needs|not_synced|mirror_failed", text), text
    assert config_of(world.target_admin, world.remote(topic))["retention.ms"] == "7300000"
    assert sum(map(len, world.target_records(topic).values())) == sum(map(len, world.source_records(topic).values()))


def test_a_remote_topic_that_stamps_records_anew_and_may_not_be_changed_is_held_and_the_others_go_on(
    secured: SecuredCluster, servers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "RETRY_HELD_S", 2)
    world = World(servers[0], secured.open_servers, tmp_path)
    stamped, kept = world.topic("stamped", 1), world.topic("kept", 1)  # each has a slot
    as_limited(world, secured)
    grant_all_that_it_writes(secured, world)
    remote = ResourceType.TOPIC, world.remote(stamped), ResourcePatternType.LITERAL
    may_not_configure = *remote, "User:limited", "*", AclOperation.ALTER_CONFIGS, AclPermissionType.DENY
    denial, admin = AclBinding(*may_not_configure), admin_of(secured)
    for topic in (stamped, kept):
        world.produce(topic, 20, 1)
    stamps, anew = "message.timestamp.type", "LogAppendTime"
    for topic in (stamped, kept):
        there = NewTopic(world.remote(topic), 1, 1, config={stamps: anew} if topic == stamped else {})
        world.target_admin.create_topics([there])[there.topic].result()
    admin.create_acls([denial])[denial].result()

    def held() -> list[str]:
        return [row["detail"] for row in world.rows("anomalies") if (row["kind"], row["topic"]) == ("held", stamped)]

    assert world.mirror().records == 20, "a run that ends with the source's end ends"
    (why,) = held()
    assert re.search(rf"{world.remote(stamped)} on cluster t would not keep .*setting {stamps} .*ALTER_CONFIGS", why)
    assert not sum(map(len, world.target_records(stamped).values()))
    assert "replaces the timestamps" not in "".join(world.lines), "no record was sent to it"

    def told() -> int:
        return sum("topic_held" in line and stamped in line for line in world.lines)

    before = told()
    with world.mirroring():
        eventually(lambda: told() > before, what="it is held by this job, too")
        world.produce(kept, 20, 1, seed=2)
        wait_for_records(world, kept, 40)
        set_config(world.target_admin, world.remote(stamped), stamps, "CreateTime")
        wait_for_records(world, stamped, 20)
        eventually(lambda: world.metric("held_topics") == 0, what="nothing is held")
        set_config(world.target_admin, world.remote(stamped), stamps, anew)
        for topic in (stamped, kept):
            world.produce(topic, 20, 1, seed=3)
        wait_for_records(world, kept, 60)
        eventually(lambda: world.metric("held_topics") == 1, what="it has begun to stamp")
        next(iter(admin.delete_acls([AclBindingFilter(*may_not_configure)]).values())).result()
        wait_for_records(world, stamped, 40)
        eventually(lambda: world.metric("held_topics") == 0, what="nothing is held any more")
    assert not [line for line in world.lines if "partition_held" in line], "no slot counts as one that fails"
    assert world.assert_equal(stamped, kept) == 100


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.DESCRIBE])
def test_a_remote_topic_that_may_be_written_no_more_is_held_until_it_may_and_the_others_go_on(
    secured: SecuredCluster,
    servers: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: AclOperation,
) -> None:
    """The job that runs finds it by a write, and one that starts by its look at the last mirrored records."""
    monkeypatch.setattr(planner, "RETRY_HELD_S", 2)
    world = World(servers[0], secured.open_servers, tmp_path)
    denied, kept = world.topic("denied", 2), world.topic("kept", 2)
    as_limited(world, secured)
    grant_all_that_it_writes(secured, world)
    remote, admin = (ResourceType.TOPIC, world.remote(denied), ResourcePatternType.LITERAL), admin_of(secured)
    denial = *remote, "User:limited", "*", operation, AclPermissionType.DENY

    def produced(seed: int) -> None:
        for topic in (denied, kept):
            world.produce(topic, 20, seed=seed)

    produced(1)
    with world.mirroring():
        wait_for_records(world, denied, 20)
        binding = AclBinding(*denial)
        admin.create_acls([binding])[binding].result()
        produced(2)
        wait_for_records(world, kept, 40)
        eventually(lambda: world.metric("held_topics") == 1, what="it is held")
    produced(3)
    with world.mirroring():
        wait_for_records(world, kept, 60)
        eventually(lambda: world.metric("held_topics") == 1, what="it is held by this job, too")
        next(iter(admin.delete_acls([AclBindingFilter(*denial)]).values())).result()
        wait_for_records(world, denied, 60)
        eventually(lambda: world.metric("held_topics") == 0, what="nothing is held any more")
    details = [row["detail"] for row in world.rows("anomalies") if row["kind"] == "held"]
    assert details
    assert all(re.search(rf"{world.remote(denied)} \(needs ", one) for one in details), details
    assert world.assert_equal(denied, kept) == 120


def test_a_topic_that_may_be_described_no_more_is_held_until_it_may_and_its_groups_keep_their_positions(
    secured: SecuredCluster, servers: tuple[str, str], tmp_path: Path
) -> None:
    """Kafka leaves such topics out of its list of topics, and their offsets out of a group's, without an error."""
    world = World(secured.open_servers, servers[1], tmp_path)
    hidden, kept = world.topic("hidden"), world.topic("kept")
    as_limited(world, secured, aliases=(world.alias,))
    mine = f"{world.alias}-"
    grant(
        secured, world, (ResourceType.TOPIC, mine, AclOperation.READ), (ResourceType.GROUP, mine, AclOperation.DESCRIBE)
    )
    for topic in (hidden, kept):
        world.produce(topic, 20)
    sole, both = world.commit("sole", {(hidden, 0): 2}), world.commit("both", {(hidden, 0): 3, (kept, 0): 4})
    assert world.mirror().records == 40
    world.checkpoint()
    before = last_rows(world)
    assert {row["status"] for row in before.values()} == {"exact"}
    on_hidden = ResourceType.TOPIC, hidden, ResourcePatternType.LITERAL
    may_not_describe = *on_hidden, "User:limited", "*", AclOperation.DESCRIBE, AclPermissionType.DENY
    denial = AclBinding(*may_not_describe)
    admin = admin_of(secured)
    admin.create_acls([denial])[denial].result()

    def listed() -> bool:
        with closing(Cluster(world.flow.source_connection, "source", "test", 5_000).connect()) as source:
            return hidden in source.refresh(None, 5_000)

    eventually(lambda: not listed(), what="the right is revoked")
    for topic in (hidden, kept):
        world.produce(topic, 20, seed=2)
    world.commit(both, {(kept, 0): 6})
    with world.mirroring():
        eventually(lambda: sum(map(len, world.target_records(kept).values())) == 40, what="the other topic")
        eventually(lambda: world.metric("held_topics") == 1, what="it is said what is held")
    reason = f"topic {hidden} (needs DESCRIBE): the principal of cluster {world.alias} lacks a permission"
    (held,) = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert (held["topic"], reason in held["detail"]) == (hidden, True)
    lags = {(one.topic, one.partition): one for one in measure(world.flow).partitions}
    assert [lags[hidden, index].state for index in (0, 1)] == [PartitionState.HELD] * 2
    assert reason in str(lags[hidden, 0].reason)
    world.checkpoint()
    rows = last_rows(world)
    assert rows.keys() == before.keys()
    for group in (sole, both):
        now, was = rows[group, hidden, 0], before[group, hidden, 0]
        names = ("status", "upstream_offset", "downstream_offset")
        assert [now[name] for name in names] == [was[name] for name in names]
        assert (now["sync"], "needs DESCRIBE on the topic" in now["reason"]) == ("held", True)
    assert rows[both, kept, 0]["upstream_offset"] == 6
    with (
        closing(Cluster(world.flow.source_connection, "source", "test", 5_000).connect()) as source,
        closing(Cluster(world.flow.target_connection, "target", "test", 5_000).connect()) as target,
    ):
        translator = Translator(world.flow, world.memory)
        translator._known = lambda: {(hidden, 0): None, (kept, 0): None}
        counting, now = (
            Counting(None, world.flow, world.memory, resources.expectations() / "counts.json"),
            datetime.now(UTC),
        )
        logs = FlowLogs(None, world.flow, source, target)
        for effect, look in (
            ("hides the offsets", lambda: require_visible(source, world.flow, {hidden, kept, "deleted"}, HIDES_GROUPS)),
            ("can't be counted", lambda: counting._ranges(source, target, {}, now)),
            ("are mirrored", lambda: logs.late(0, lambda topic: topic == hidden)),
            ("at a time is not known", lambda: translator.at(0)),
        ):
            with pytest.raises(SourceError, match=rf"topic {hidden} \(needs DESCRIBE\).* grant it\. .*{effect}"):
                look()
        assert logs.late(0, lambda topic: topic == kept) == {}, "the others can be compared"
        lacking = [one for one in source_permissions(Peers(world.flow, source, target, 5_000)) if hidden in one.detail]
        assert {one.detail.split()[3] for one in lacking} == {"DESCRIBE"}

    with world.mirroring():
        eventually(lambda: world.metric("held_topics") == 1, what="it is held by this job, too")
        next(iter(admin.delete_acls([AclBindingFilter(*may_not_describe)]).values())).result()
        eventually(lambda: sum(map(len, world.target_records(hidden).values())) == 40, what="the topic goes on")
        eventually(lambda: world.metric("held_topics") == 0, what="nothing is held")
    assert world.assert_equal(hidden, kept) == 80
    world.checkpoint()
    assert {(row["status"], row["sync"], row["reason"]) for row in last_rows(world).values()} <= {
        ("exact", sync, None) for sync in ("committed", "in_step")
    }
    world.source_admin.delete_topics([hidden])[hidden].result()
    eventually(lambda: not listed())
    assert {one.topic for one in measure(world.flow).partitions} == {kept}


def test_records_are_missing_where_nobody_can_tell_whether_compaction_has_deleted_them(
    secured: SecuredCluster, servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path
) -> None:
    world = World(servers[0], secured.open_servers, tmp_path, spark, warehouse)
    topic = world.topic(partitions=1)
    values, remote = [f"v{number}".encode() for number in range(20)], world.remote(topic)
    send(world.source_servers, topic, values)
    world.mirror()
    world.target_admin.delete_topics([remote])[remote].result()
    eventually(lambda: remote not in world.target_admin.list_topics(timeout=5).topics)
    world.target_admin.create_topics([NewTopic(remote, 1, 1)])[remote].result()
    send(world.target_servers, remote, values[:-1])  # without a key: compaction would delete each of them
    of_topic, syncs = ResourceType.TOPIC, world.flow.offset_syncs_topic
    grant(secured, world, (of_topic, remote, AclOperation.READ), (of_topic, syncs, AclOperation.READ))
    as_limited(world, secured)
    doubt = f"grant DESCRIBE_CONFIGS on TOPIC {remote} there"

    def verified() -> VerificationResult:
        suite = resources.expectations() / "verification.json"
        return Verification(spark, world.flow, world.ledger, suite).run(VerificationScope.parse("full"))

    def counted() -> Completeness:
        suite = resources.expectations() / "counts.json"
        return Counting(spark, world.flow, world.ledger, suite).run(CountScope(max_lateness_s=0))

    for look, said in ((verified, "1 missing"), (counted, "1 missing")):
        with pytest.raises(GateError, match=rf"{said}(.|\n)*deletes by itself: {doubt}"):
            look().require()
    grant(secured, world, (of_topic, remote, AclOperation.DESCRIBE_CONFIGS))
    for look in (verified, counted):  # it is not compacted
        with pytest.raises(GateError) as failed:
            look().require()
        assert "1 missing" in str(failed.value)
        assert doubt not in str(failed.value)
    compacted = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, remote, incremental_configs=[compacted])
    next(iter(world.target_admin.incremental_alter_configs([resource]).values())).result()
    assert counted().is_neutral
    assert verified().total("not_comparable") == 1


def send(servers: str, topic: str, values: Iterable[bytes]) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0, timestamp=SENT_MS)
    assert producer.flush(30) == 0


def last_rows(world: World) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Returns the newest row of each position in the memory of a world without Spark."""
    return {(row["group_id"], row["topic"], row["partition"]): row for row in world.rows("checkpoints")}


def test_access_that_a_failover_can_not_read_or_give_is_said_and_the_rest_goes_on(
    world: World, secured: LocalCluster
) -> None:
    """The target asks for DESCRIBE and DESCRIBE_CONFIGS on CLUSTER to read, ALTER and ALTER_CONFIGS to write."""
    as_limited(world, secured)
    flow, on_cluster = world.flow, (ResourceType.BROKER, "kafka-cluster")
    back = replace(flow, source_connection=flow.target_connection, target_connection=flow.source_connection)
    admin = admin_of(secured)
    revoke(admin, *on_cluster, ResourcePatternType.LITERAL)
    with (
        closing(Cluster(flow.source_connection, "source", "test", 5_000).connect()) as source,
        closing(Cluster(flow.target_connection, "target", "test", 5_000).connect()) as target,
        quota(source, world.alias, "producer_byte_rate", 9e9, of="user"),
    ):

        def found(kind: AccessKind) -> list[MissingAccess]:
            return [one for one in missing_on_target(flow, source, target) if one.kind is kind]

        def unknown() -> str:
            return "\n".join(one.missing for one in found(AccessKind.UNKNOWN))

        quotas = r"quotas can't be compared: cluster t: .*needs DESCRIBE_CONFIGS on CLUSTER"
        eventually(lambda: re.search(quotas, unknown()))
        eventually(lambda: re.search(r"SCRAM users can't be compared: .*needs DESCRIBE on CLUSTER", unknown()))
        of_source = [one.missing for one in missing_on_target(back, target, source)]
        assert [one for one in of_source if re.search(quotas, one)], of_source
        grant(secured, world, (*on_cluster, AclOperation.DESCRIBE_CONFIGS), (*on_cluster, AclOperation.DESCRIBE))
        eventually(lambda: not unknown())
        mine = [one for one in found(AccessKind.QUOTA) if world.alias in one.principal]
        assert mine, read_quotas(source, 5_000)
        (refused,) = give(mine, flow, target, world.ledger, "me")
        assert re.search(r"setting client quotas .*needs ALTER_CONFIGS on CLUSTER", refused.outcome)
        grant(secured, world, (*on_cluster, AclOperation.ALTER_CONFIGS))
        eventually(lambda: [one.outcome for one in give(mine, flow, target, world.ledger, "me")] == ["applied"])
        assert not [one for one in found(AccessKind.QUOTA) if world.alias in one.principal]

    # What denies writing is looked at before a run, and is told of if it stays.
    topic = world.topic()
    denial = Acl(world.remote(topic), "LITERAL", "User:app", "*", "WRITE", "DENY")
    given = {"source": flow.source, "target": flow.target, "kind": "create_acl", "after": str(denial), "before": None}
    world.ledger.append("topology_changes", [given | {"outcome": "applied"}])

    def to_open(*topics: str) -> list[tuple[str, str]]:
        return [(one.kind, one.missing) for one in missing_to_open(flow, topics or None, world.ledger)]

    assert to_open() == [], "an operator has deleted it on the target"
    there = AclBinding(
        ResourceType.TOPIC,
        denial.name,
        ResourcePatternType.LITERAL,
        denial.principal,
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    admin.create_acls([there])[there].result()
    lacking = [("permission", f"closing the flow needs ALTER on CLUSTER, to delete 1 ACLs such as {denial}")]
    eventually(lambda: to_open() == lacking)
    assert to_open("other") == [], "others are promoted"
    assert to_open(topic) == lacking
    (left,) = open_to_writers(flow, None, world.ledger)
    assert (left.kind, left.missing) == ("denial", str(denial))
    assert "needs ALTER on" in left.outcome
    assert "--remove" in left.command
    grant(secured, world, (*on_cluster, AclOperation.ALTER))
    eventually(lambda: to_open() == [])
    assert open_to_writers(flow, None, world.ledger) == []
    assert open_to_writers(flow, None, world.ledger) == [], "nothing is left to delete"
    revoke(admin, *on_cluster, ResourcePatternType.LITERAL)


def test_a_plan_names_the_permissions_that_a_failover_would_lack_and_tests_them_without_any_change(
    world: World, secured: LocalCluster
) -> None:
    topic, groups = world.topic(), [f"{world.alias}-{name}" for name in ("known", "new")]
    world.produce(topic, 100)
    as_limited(world, secured)
    ids, syncs, remote = f"mirrorlake.{world.alias}", f"mirrorlake.offset-syncs.{world.alias}", f"{world.alias}."
    own = (ResourceType.TRANSACTIONAL_ID, ids, AclOperation.WRITE)
    grant(
        secured,
        world,
        own,
        (ResourceType.TOPIC, syncs, AclOperation.ALL),
        (ResourceType.TOPIC, remote, AclOperation.ALL),
    )
    assert world.mirror().records == 100
    admin = admin_of(secured)

    def denied() -> dict[str, str]:
        with closing(Cluster(world.flow.target_connection, "target", "probe", 5_000).connect()) as target:
            return denied_commits(target, {group: [world.remote(topic)] for group in groups}, 5_000)

    def lacking() -> list[str]:
        with closing(Cluster(world.flow.target_connection, "target", "probe", 5_000).connect()) as target:
            return [one.missing for one in missing_to_close(world.flow, target)]

    assert denied() == {group: f"the principal needs READ on GROUP {group}" for group in groups}
    grant(secured, world, (ResourceType.GROUP, groups[0], AclOperation.READ))
    eventually(lambda: denied() == {groups[1]: f"the principal needs READ on GROUP {groups[1]}"})
    grant(secured, world, (ResourceType.GROUP, groups[1], AclOperation.READ))
    eventually(lambda: denied() == {})
    assert lacking() == []

    revoke(admin, ResourceType.TOPIC, remote)
    grant(secured, world, (ResourceType.TOPIC, remote, AclOperation.DESCRIBE))
    reason = f"the principal needs READ on TOPIC {world.remote(topic)}"
    eventually(lambda: denied() == dict.fromkeys(groups, reason))
    revoke(admin, ResourceType.TRANSACTIONAL_ID, ids)
    grant(secured, world, (ResourceType.TRANSACTIONAL_ID, ids, AclOperation.DESCRIBE))
    slot = world.flow.transactional_id(0)
    eventually(lambda: lacking()[:1] == [f"closing the flow needs WRITE on TRANSACTIONAL_ID {slot}"])
    findings = examine(Properties.load(world.config), [world.flow_name])
    problems = [one.detail for one in findings if one.level is Level.PROBLEM]
    assert f"the principal lacks WRITE on 1 of 1 TOPICs of t: {world.remote(topic)}" in problems
    assert f"the principal may not use TRANSACTIONAL_ID {slot} on t" in problems
    assert {one.check for one in findings if one.level is Level.UNKNOWN} == set()

    assert not [one for one in admin.list_consumer_groups().result().valid if one.group_id in groups]
    grant(secured, world, own, (ResourceType.TOPIC, remote, AclOperation.ALL))
    world.produce(topic, 10)
    eventually(lambda: lacking() == [])
    assert world.mirror().records == 10


def admin_of(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **cluster.client_properties})


def revoke(
    admin: AdminClient, kind: ResourceType, name: str, pattern: ResourcePatternType = ResourcePatternType.PREFIXED
) -> None:
    """Deletes the rights of `limited` on a resource."""
    rights = AclBindingFilter(kind, name, pattern, "User:limited", None, AclOperation.ANY, AclPermissionType.ANY)
    next(iter(admin.delete_acls([rights]).values())).result()


def test_a_wrong_password_is_said_and_not_shown_and_tried_once(
    world: World, secured: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    world.topic()
    as_limited(world, secured, password=f"wrong-{SECRET}")
    with pytest.raises(TargetError, match=r"can't be reached .*Authentication") as caught:
        world.mirror()
    assert SECRET not in str(caught.value)
    assert [line for line in world.lines if line.startswith(f"ERROR mirror_failed flow={world.flow_name} ")]
    assert SECRET not in "".join(world.lines)
    ended = [record for record in caplog.records if record.name == "kafka.net.connection"]
    rejected = [record for record in ended if "SaslAuthenticationFailedError" in record.getMessage()]
    assert len(rejected) == 1, "accounts are locked after repeated ones"


def test_offsets_of_mirrormaker_are_read_with_the_right_to_read_their_topic_and_none_on_groups(
    plain_world: World, secured: LocalCluster
) -> None:
    """librdkafka asks for the coordinator of a group that is not used, and says that it may not."""
    world = plain_world
    as_limited(world, secured)
    flow, owner = world.flow, AdminClient({"bootstrap.servers": secured.open_servers})  # type: ignore[attr-defined]
    topic = flow.mirrormaker.offsets_topic
    owner.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": secured.open_servers, "log_level": 0})  # type: ignore[attr-defined]
    for partition in range(2):
        key = ["MirrorSourceConnector", {"cluster": world.alias, "partition": partition, "topic": "orders"}]
        producer.produce(topic, json.dumps({"offset": 41}), json.dumps(key), partition=partition)
    assert producer.flush(30) == 0
    grant(secured, world, (ResourceType.TOPIC, topic, AclOperation.READ))
    found = MirrorMaker(flow, Admin(flow.target_connection, "target", flow.name))
    assert found.positions() == {("orders", 0): 42, ("orders", 1): 42}
