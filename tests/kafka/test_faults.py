"""Brokers that die and come back during copying: the job retries, leaders move, and every record arrives once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster

from tests.world import ROOT, World, eventually

TWO_REPLICAS = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}


@pytest.fixture(scope="module")
def pair(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalCluster]]:
    """Starts two clusters of two brokers each, for these tests alone."""
    base, jars = tmp_path_factory.mktemp("pair"), root / ".local/jars/kafka"
    made = {
        side: LocalCluster(side, base / side, jars, size=2, properties=TWO_REPLICAS) for side in ("source", "target")
    }
    with running(made["source"]), running(made["target"]):
        yield made


@pytest.fixture
def world(pair: dict[str, LocalCluster], tmp_path: Path) -> World:
    world = World(pair["source"].bootstrap_servers, pair["target"].bootstrap_servers, tmp_path)
    world.write_config(
        **{
            "replication.factor": "2",
            "offset-syncs.topic.replication.factor": "2",
            "mirrorlake.batch.max.records": "400",
            "mirrorlake.connect.timeout.ms": "10000",
        }
    )
    return world


def mirror_through(world: World, topic: str, trouble: Callable[[], None]) -> None:
    """Mirrors a growing topic during `trouble`, then the rest, and compares both sides."""
    world.produce(topic, 2_000, 4)
    with world.mirroring(interval_s=0.1):
        eventually(lambda: batches(world), what="the first micro-batch")
        trouble()
        before = batches(world)
        world.produce(topic, 1_000, 4, seed=2)
        eventually(lambda: batches(world) > before, what="a micro-batch after the trouble")
    world.mirror()
    assert world.assert_equal(topic) >= 3_000
    world.assert_nothing_open()


def batches(world: World) -> int:
    """Returns the number of micro-batches that the job has logged."""
    return sum("micro_batch_committed" in line for line in world.lines)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_killed_in_the_middle_moves_its_leaders_and_nothing_is_lost_or_doubled(
    world: World, pair: dict[str, LocalCluster], side: str
) -> None:
    topic = world.topic("killed", 4, replication_factor=2)

    def kill_and_start() -> None:
        pair[side].stop_broker(2, kill=True)
        before = batches(world)
        world.produce(topic, 1_000, 4, seed=3)
        eventually(lambda: batches(world) > before, what="a micro-batch without the killed broker")
        pair[side].start_broker(2)

    mirror_through(world, topic, kill_and_start)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_whole_cluster_restarted_in_the_middle_is_waited_for(
    world: World, pair: dict[str, LocalCluster], side: str
) -> None:
    topic = world.topic("restarted", 4, replication_factor=2)

    def restart() -> None:
        for broker in (2, 1):
            pair[side].stop_broker(broker)
        for broker in (1, 2):
            pair[side].start_broker(broker, wait=False)
        pair[side].wait_ready()

    mirror_through(world, topic, restart)


def test_a_target_with_the_older_transaction_protocol_is_mirrored_to_as_well(
    servers: tuple[str, str], tmp_path: Path, root: Path
) -> None:
    """Without transaction.version=2, a request of its own adds partitions to the transaction.

    EndTxn does not bump the epoch then.
    """
    cluster = LocalCluster("older", tmp_path / "older", root / ".local/jars/kafka", features={"transaction.version": 0})
    with running(cluster):
        world = World(servers[0], cluster.bootstrap_servers, tmp_path)
        topic = world.topic()
        for seed in range(2):
            world.produce(topic, 500, seed=seed)
            world.produce_transactions(topic, 5, 20, seed=seed)
            world.mirror()
        world.assert_equal(topic)
        world.assert_nothing_open()
        begun_again(world, topic)


def begun_again(world: World, topic: str) -> None:
    """Mirrors while somebody begins a transaction of the slot between the task's and its first record."""
    begun: list[int] = []

    def overtake(step: str) -> None:
        if step == "task.compared" and not begun:
            with closing(Cluster(world.flow.target_connection, "target", "other").connect()) as other:
                for slot in range(2):
                    begun.append(
                        transaction.begin(other, world.flow.transactional_id(slot), 20_000, 30_000).producer_epoch
                    )

    world.produce(topic, 500, seed=7)
    suite = ROOT / "expectations/offset_syncs.json"
    job = MirrorJob(InProcessEngine(failpoint=overtake), world.config, world.flow, world.ledger, suite, "")
    assert job.run(None, None).records == 500
    assert begun
    assert any("the transaction was ended" in line for line in world.lines)
    world.assert_equal(topic)
    world.assert_nothing_open()
