"""Sources and targets of older Kafka releases, for the mirror, the checkpoint job and the failover."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.jobs.mirror.topics.topics_job import keep_in_step
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.ports import HOST
from mirrorlake.protocol.topic_changes import ChangeOutcome

from tests.moving import failover
from tests.older_clusters import older_cluster
from tests.world import World

TOO_OLD = "2.7.2"
VERSIONS = os.environ.get("MIRRORLAKE_TEST_VERSIONS", "2.8.2 3.9.1").split()


@pytest.fixture(scope="module", params=VERSIONS)
def pair(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    directory = tmp_path_factory.mktemp("older")
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(running(older_cluster(request.param, side, directory / side, root)))
            for side in ("source", "target")
        )


@pytest.fixture(scope="module")
def upgraded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster in the midst of an upgrade: broker 1 has the older release, broker 2 the newer one."""
    older, newer = "2.8.2", "3.9.1"
    protocol = {"inter.broker.protocol.version": "2.8"}
    cluster = older_cluster(older, "upgraded", tmp_path_factory.mktemp("upgraded"), root, size=2, properties=protocol)
    with running(cluster):
        cluster.stop_broker(2)
        cluster.jars = cluster.jars.with_name(cluster.jars.name.replace(older, newer))
        cluster.start_broker(2)
        yield cluster


def test_records_and_groups_are_mirrored_between_older_clusters(
    pair: tuple[LocalCluster, LocalCluster], spark: object, warehouse: str, tmp_path: Path
) -> None:
    world = World(pair[0].bootstrap_servers, pair[1].bootstrap_servers, tmp_path, spark, warehouse)
    topic, transactional = world.topic(), world.topic("transactional")
    world.produce(topic, 300)
    world.produce_transactions(transactional, 10, 20, seed=1)
    created = keep_in_step(world.config, world.flow, world.ledger, dry_run=False)
    assert {*created.outcomes.values()} == {ChangeOutcome.APPLIED}, "the mirror job has never run"
    world.mirror()
    world.produce(topic, 300, seed=1)
    world.mirror()
    world.assert_equal(topic, transactional)
    world.assert_nothing_open()
    source = world.source_records(topic)
    groups = {
        world.commit(f"g{number}", {(topic, 0): source[0][number][0]}): source[0][number][0]
        for number in range(0, 60, 20)
    }
    world.checkpoint()
    target = dict(enumerate(world.target_records(topic)[0]))
    for number, group in enumerate(groups):
        assert world.committed(group)[world.remote(topic), 0][0] == target[20 * number][0]
    late = world.commit(next(iter(groups)), {(topic, 0): source[0][50][0]})
    failover(world, mode="promote", signed_by="ann")
    assert world.committed(late)[world.remote(topic), 0][0] == target[50][0]


def test_a_cluster_before_2_8_is_refused_by_name_before_anything_is_created(
    servers: tuple[str, str], root: Path, tmp_path: Path
) -> None:
    with running(older_cluster(TOO_OLD, "old", tmp_path / "old", root)) as old:
        away = World(old.bootstrap_servers, servers[1], tmp_path / "away")
        home = World(servers[0], old.bootstrap_servers, tmp_path / "home")
        with pytest.raises(SourceError, match=rf"cluster {away.alias} runs Kafka 2\.7, .* of 2\.8 or later"):
            away.mirror()
        with pytest.raises(TargetError, match=r"cluster t runs Kafka 2\.7, .* of 2\.8 or later"):
            home.mirror()
        for world in (away, home):
            assert world.flow.offset_syncs_topic not in world.target_admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("known", [1, 2], ids=["old", "new"])
def test_a_source_whose_brokers_are_upgraded_one_by_one_is_read_from_old_and_new_ones(
    upgraded: LocalCluster, servers: tuple[str, str], tmp_path: Path, known: int
) -> None:
    """Only the newer broker understands the requests that it asks for."""
    world = World(upgraded.bootstrap_servers, servers[1], tmp_path)
    (server,) = (f"{HOST}:{broker.port}" for broker in upgraded.brokers if broker.node_id == known)
    world.write_config(**{f"{world.alias}.bootstrap.servers": server})
    topic = world.topic(partitions=4)
    world.produce(topic, 300, 4)
    leaders = world.source_admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
    assert {one.leader for one in leaders} == {1, 2}
    world.mirror()
    world.assert_equal(topic)
