"""Invalid input on real brokers: a clear error, and nothing is created or written."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, LedgerError, MirrorlakeError, SourceError, TargetError
from mirrorlake.jobs.failover.access import missing_to_close
from mirrorlake.jobs.inspection.doctor import examine
from mirrorlake.jobs.inspection.finding import Level
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.local.cluster import Broker, LocalCluster, free_port, running
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.probes.permissions import denied_commits

from tests.world import World, config_of, configure, eventually


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


def nothing_was_created(world: World) -> bool:
    return not [name for name in world.target_admin.list_topics(timeout=10).topics if world.alias in name]


def test_an_unreachable_cluster_is_named_within_the_deadline(world: World) -> None:
    world.topic()
    world.write_config(**{"t.bootstrap.servers": "127.0.0.1:1", "mirrorlake.connect.timeout.ms": "2000"})
    began = time.monotonic()
    with pytest.raises(
        TargetError,
        match=r"cluster t \(127\.0\.0\.1:1, PLAINTEXT\) can't be reached within 2000 ms: .*t\.bootstrap\.servers",
    ):
        world.mirror()
    assert time.monotonic() - began < 30


def test_the_same_cluster_on_both_ends_is_refused_unless_it_is_meant(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 20)
    world.write_config(**{"t.bootstrap.servers": world.source_servers})
    with pytest.raises(ConfigurationError, match="are the same Kafka cluster"):
        world.mirror()
    assert not [
        name for name in world.source_admin.list_topics(timeout=10).topics if name != topic and world.alias in name
    ]
    world.write_config(**{"mirrorlake.same.cluster.allowed": "true"})
    assert world.mirror().records == 20


def test_another_source_cluster_behind_the_same_alias_is_refused(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 20)
    world.mirror()
    world.write_config(
        **{f"{world.alias}.bootstrap.servers": world.target_servers, "mirrorlake.same.cluster.allowed": "true"}
    )
    with pytest.raises(SourceError, match="the records mirrored so far came from cluster"):
        world.mirror()


def test_a_warehouse_that_cannot_be_written_is_refused_before_anything_is_created(
    spark_world: World, tmp_path: Path
) -> None:
    spark_world.topic()
    (tmp_path / "file").write_text("not a directory")
    spark_world.warehouse = str(tmp_path / "file")
    with pytest.raises(LedgerError, match=r"warehouse .*file can't be written"):
        spark_world.mirror()
    assert nothing_was_created(spark_world)


MAGIC = '{"name": "x", "expectations": [{"type": "expect_magic", "kwargs": {}}]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "are not JSON"),
        ('{"name": "x", "expectations": []}', "are empty"),
        ("[]", "are not a suite"),
        (MAGIC, "does not know expect_magic"),
    ],
)
def test_expectations_that_do_not_load_are_refused_before_anything_is_created(
    world: World, tmp_path: Path, text: str, message: str
) -> None:
    world.topic()
    suite = tmp_path / "suite.json"
    suite.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        MirrorJob(world.engine(), world.config, world.flow, world.ledger, suite)
    assert nothing_was_created(world)


def test_too_few_brokers_for_the_replication_factor_is_said(world: World) -> None:
    world.topic()
    world.write_config(**{"replication.factor": "3"})
    with pytest.raises(TargetError, match=r"creating topic .*Set replication\.factor"):
        world.mirror()


def test_a_target_without_transactions_is_refused(world: World, tmp_path: Path, root: Path) -> None:
    """The transaction log of the cluster can't be created: it needs more replicas than there are brokers."""
    from mirrorlake.protocol.cluster import Cluster

    cluster = LocalCluster(
        "no-transactions",
        tmp_path / "cluster",
        root / ".local/jars/kafka",
        properties={"transaction.state.log.replication.factor": "3"},
    )
    try:
        with pytest.raises(ConfigurationError, match="not ready"):
            _start_briefly(cluster)
        world.write_config(
            **{"t.bootstrap.servers": cluster.bootstrap_servers, "mirrorlake.connect.timeout.ms": "3000"}
        )
        with pytest.raises(TargetError, match="Mirroring needs transactions on the target"):
            world.mirror()
        topics = Cluster(world.flow.target_connection, "target", "test").connect().refresh(None, 5_000)
        assert not [name for name in topics if world.alias in name]
    finally:
        cluster.stop()


def _start_briefly(cluster: LocalCluster) -> None:
    from mirrorlake.local import cluster as module

    before, module.READY_DEADLINE_S = module.READY_DEADLINE_S, 12
    try:
        cluster.start()
    finally:
        module.READY_DEADLINE_S = before


SECRET = "canary-9f3b"


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
        port = free_port(0, {each.port for each in self.brokers} | {self.controller_port})
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
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **cluster.client_properties})
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


def test_missing_permissions_are_named_one_after_the_other_and_with_all_of_them_it_works(
    secured: SecuredCluster, spark: object, tmp_path: Path
) -> None:
    """One cluster is source and target, so each right is one on a resource of its side: the table of docs/security.md.

    Without DESCRIBE on CLUSTER, Kafka hides groups that a principal may not describe; such topics it always hides.
    """
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
        }
    )
    reader = (ResourceType.TOPIC, topic, AclOperation.READ)
    grant(secured, world, reader, principal="User:reader")
    ids, syncs = f"mirrorlake.{world.alias}.t.", f"mirrorlake.offset-syncs.{world.alias}.internal"
    mine, remote = f"{world.alias}-", f"{world.alias}."

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
    ]:
        assert re.search(message, refused), f"{message} is not in {refused}"
        grant(secured, world, *rights)
    configure(world, topic, {"retention.ms": "7300000"})
    refused = said()
    for message, rights in [
        (r"heartbeats on cluster t can't .*needs WRITE on this TOPIC", on(of_topic, "heartbeats", AclOperation.WRITE)),
        (r"setting retention.ms .*needs ALTER_CONFIGS on this TOPIC", on(of_topic, remote, AclOperation.ALTER_CONFIGS)),
        (r"giving ALLOW READ to User:reader .*needs ALTER on this CLUSTER", []),
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
    text = said()
    assert not re.search(r"needs|not_synced|mirror_failed", text), text
    assert config_of(world.target_admin, world.remote(topic))["retention.ms"] == "7300000"
    assert sum(map(len, world.target_records(topic).values())) == sum(map(len, world.source_records(topic).values()))


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
    admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers, "log_level": 0, **secured.client_properties})

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


def revoke(admin: AdminClient, kind: ResourceType, name: str) -> None:
    """Deletes the rights of `limited` on a resource."""
    rights = AclBindingFilter(
        kind, name, ResourcePatternType.PREFIXED, "User:limited", None, AclOperation.ANY, AclPermissionType.ANY
    )
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
