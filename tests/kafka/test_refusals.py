"""Invalid input on real brokers: a clear error, and nothing is created or written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from mirrorlake.errors import ConfigurationError, LedgerError, SourceError, TargetError
from mirrorlake.jobs.migration.takeover import Takeover
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.topics.topics_job import keep_in_step
from mirrorlake.local.cluster import LocalCluster
from mirrorlake.protocol.cluster import Cluster

from tests.world import ROOT, World, eventually


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


def test_states_of_another_flow_are_continued_by_no_job(world: World) -> None:
    world.produce(world.topic(), 20)
    world.mirror()
    world.target_alias = "u"  # as if a mirror had copied the topic, whose name has the source's alias alone
    world.write_config()
    takeover = Takeover(None, world.flow, world.ledger, ROOT / "expectations/takeover.json")  # it reads no logs
    for job in (
        world.mirror,
        world.checkpoint,
        takeover.run,
        lambda: keep_in_step(world.config, world.flow, world.ledger, dry_run=True),
    ):
        with pytest.raises(ConfigurationError, match=f"has states of flow {world.alias}->t: another installation"):
            job()


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
    world.write_config(**{"replication.factor": "3", "mirrorlake.connect.timeout.ms": "3000"})
    with pytest.raises(TargetError, match=r"creating topic .*Set replication\.factor"):
        world.mirror()
    assert any("retrying" in line for line in world.lines), "one that is being restarted comes back"


def test_a_target_without_transactions_is_refused(world: World, tmp_path: Path, root: Path) -> None:
    """The transaction log of the cluster can't be created: it needs more replicas than there are brokers."""

    cluster = LocalCluster(
        "no-transactions",
        tmp_path / "cluster",
        root / ".local/jars/kafka",
        properties={"transaction.state.log.replication.factor": "3"},
    )
    try:
        with pytest.raises(ConfigurationError, match="not ready"):
            _start_briefly(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        eventually(lambda: admin.list_topics(timeout=2).brokers, what="the broker, but for its transactions")
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
