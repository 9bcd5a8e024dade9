"""Brokers that die and come back during copying: the job retries, leaders move, and every record arrives once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, ElectionType, TopicPartition
from confluent_kafka.admin import NewTopic
from kafka.protocol.admin import AlterPartitionReassignmentsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest
from mirrorlake.errors import TargetError
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network.response_error import check

from tests.disk import fill, small_disk
from tests.world import World, eventually

FROZEN_S = 10
FORGETFUL = {
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": "4000",
    "producer.id.expiration.check.interval.ms": "1000",
}
QUICKLY_FENCED = {"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500"}


def replicated(replicas: int, in_sync: int) -> dict[str, str]:
    return {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "min.insync.replicas": str(in_sync),
        **QUICKLY_FENCED,
    }


@pytest.fixture(scope="module")
def clusters(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalCluster]]:
    """Starts a source of two brokers and a target of three, for these tests alone."""
    base, jars = tmp_path_factory.mktemp("faults"), root / ".local/jars/kafka"
    source = LocalCluster("source", base / "source", jars, size=2, properties=replicated(2, 1))
    target = LocalCluster("target", base / "target", jars, size=3, properties=replicated(3, 2))
    with running(source), running(target):
        yield {"source": source, "target": target}


@pytest.fixture
def world(clusters: dict[str, LocalCluster], tmp_path: Path) -> World:
    world = World(clusters["source"].bootstrap_servers, clusters["target"].bootstrap_servers, tmp_path)
    world.write_config(
        **{
            "replication.factor": "3",
            "offset-syncs.topic.replication.factor": "3",
            "mirrorlake.batch.max.records": "400",
            "mirrorlake.connect.timeout.ms": "10000",
        }
    )
    return world


def retries(world: World) -> int:
    """Returns the number of failed attempts that the job has logged."""
    return sum("retrying" in line or "slots_failed" in line for line in world.lines)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_killed_in_the_middle_moves_its_leaders_and_nothing_is_lost_or_doubled(
    world: World, clusters: dict[str, LocalCluster], side: str
) -> None:
    topic = world.topic("killed", 4, replication_factor=2)
    with world.mirroring_through(topic):
        clusters[side].stop_broker(2, kill=True)
        before = world.batches
        world.produce(topic, 1_000, 4, seed=3)
        eventually(lambda: world.batches > before, what="a micro-batch without the killed broker")
        clusters[side].start_broker(2)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_whole_cluster_restarted_in_the_middle_is_waited_for(
    world: World, clusters: dict[str, LocalCluster], side: str
) -> None:
    topic = world.topic("restarted", 4, replication_factor=2)
    with world.mirroring_through(topic):
        for broker in reversed(clusters[side].brokers):
            clusters[side].stop_broker(broker.node_id)
        clusters[side].start()


def test_brokers_of_the_target_restarted_one_by_one_cost_nothing(
    world: World, clusters: dict[str, LocalCluster]
) -> None:
    topic, target = world.topic("rolling", 4, replication_factor=2), clusters["target"]

    with world.mirroring_through(topic):
        for seed, broker in enumerate((3, 2, 1), 10):  # the controller last, as Kafka advises
            target.stop_broker(broker)
            world.produce(topic, 300, 4, seed=seed)
            target.start_broker(broker)


def test_a_controller_killed_in_the_middle_is_waited_for(world: World, clusters: dict[str, LocalCluster]) -> None:
    topic, target = world.topic("controller", 4, replication_factor=2), clusters["target"]

    with world.mirroring_through(topic):
        target.stop_broker(1, kill=True)
        world.produce(topic, 1_000, 4, seed=3)
        target.start_broker(1)


def test_too_few_replicas_in_sync_on_the_target_are_waited_for(world: World, clusters: dict[str, LocalCluster]) -> None:
    topic, target = world.topic("isr", 4, replication_factor=2), clusters["target"]

    with world.mirroring_through(topic):
        before = retries(world)
        for broker in (2, 3):
            target.stop_broker(broker, kill=True)
        world.produce(topic, 1_000, 4, seed=3)
        eventually(lambda: retries(world) > before, what="an attempt without enough replicas")
        target.start()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_that_is_frozen_and_comes_back_as_if_nothing_had_happened_doubles_nothing(
    world: World, clusters: dict[str, LocalCluster], side: str
) -> None:
    topic = world.topic("frozen", 4, replication_factor=2)
    with world.mirroring_through(topic):
        began = time.monotonic()
        clusters[side].freeze_broker(2)
        try:
            before = world.batches
            world.produce(topic, 1_000, 4, seed=3)
            eventually(lambda: world.batches > before, what="a micro-batch without the frozen broker")
            eventually(lambda: time.monotonic() > began + FROZEN_S)
        finally:
            clusters[side].thaw_broker(2)
        clusters[side].wait_ready()


def test_a_target_broker_whose_disk_is_full_is_done_without_until_it_has_room(
    world: World, clusters: dict[str, LocalCluster]
) -> None:
    topic, target = world.topic("full", 4, replication_factor=2), clusters["target"]
    data = target.directory / "broker-3/data"
    target.stop_broker(3)
    with small_disk(data, "96m"):
        target.start_broker(3)

        with world.mirroring_through(topic):
            fill(data / "ballast")
            before = world.batches
            world.produce(topic, 2_000, 4, seed=3, size=2_000)
            eventually(lambda: not target.is_running(3), what="the end of the broker")
            eventually(lambda: world.batches > before, what="a micro-batch without the broker")
            (data / "ballast").unlink()
            target.start_broker(3)
        target.stop_broker(3)
    target.start_broker(3)


def test_replicas_that_move_and_leaders_that_change_cost_nothing(
    world: World, clusters: dict[str, LocalCluster]
) -> None:
    topic = world.topic("moved", 4, replication_factor=2)
    with world.mirroring_through(topic):
        remote = world.remote(topic)
        for number in range(3):
            replicas = [1 + (number + step) % 3 for step in range(3)]
            reassign(world, remote, replicas)
            world.produce(topic, 300, 4, seed=10 + number)
            wanted = [TopicPartition(remote, partition) for partition in range(4)]
            world.target_admin.elect_leaders(ElectionType.PREFERRED, wanted).result()
            eventually(lambda leader=replicas[0]: leaders(world, remote) == {leader})


def reassign(world: World, topic: str, replicas: list[int]) -> None:
    """Gives every partition of a remote topic these replicas; the first is the preferred leader."""
    partition = AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition
    wanted = [partition(partition_index=index, replicas=replicas) for index in range(4)]
    topics = [AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=wanted)]
    request = AlterPartitionReassignmentsRequest[0](timeout_ms=30_000, topics=topics)
    with closing(Cluster(world.flow.target_connection, "target", "tests").connect()) as cluster:

        async def attempt() -> None:
            check((await cluster.send_any(request)).error_code)

        cluster.call("moving replicas", attempt, 30_000)


def leaders(world: World, topic: str) -> set[int]:
    found = world.target_admin.list_topics(topic, timeout=10).topics[topic]
    return {partition.leader for partition in found.partitions.values()}


@pytest.fixture(scope="module")
def older(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Starts a target without transaction.version=2, which soon forgets producers that rest.

    A request of its own adds partitions to a transaction then, and EndTxn does not bump the epoch.
    """
    directory, jars = tmp_path_factory.mktemp("older"), root / ".local/jars/kafka"
    features = {"transaction.version": 0}
    with running(LocalCluster("older", directory, jars, features=features, properties=FORGETFUL)) as cluster:
        yield cluster


def test_a_target_with_the_older_transaction_protocol_is_mirrored_to_as_well(
    servers: tuple[str, str], older: LocalCluster, tmp_path: Path
) -> None:
    world = World(servers[0], older.bootstrap_servers, tmp_path)
    topic = world.topic()
    for seed in range(2):
        world.produce(topic, 500, seed=seed)
        world.produce_transactions(topic, 5, 20, seed=seed)
        world.mirror()
    world.assert_equal(topic)
    world.assert_nothing_open()
    begun_again(world, topic)


def test_partitions_that_a_coordinator_does_not_know_yet_are_added_once_it_does(
    servers: tuple[str, str], older: LocalCluster, tmp_path: Path
) -> None:
    """The coordinator answers OPERATION_NOT_ATTEMPTED for those that it knows."""
    world = World(servers[0], older.bootstrap_servers, tmp_path)
    there, new = f"{world.alias}-there", f"{world.alias}-new"
    keys = [*((there, partition) for partition in range(4)), (new, 0)]
    world.target_admin.create_topics([NewTopic(there, 4, 1)])[there].result()
    with closing(Cluster(world.flow.target_connection, "target", "tests", 30_000).connect()) as target:
        producer = transaction.begin(target, f"{world.alias}-add", 20_000, 30_000)

        def add(timeout_ms: int) -> None:
            target.net.run(lambda: transaction.add_partitions(target, producer, keys, timeout_ms))

        with pytest.raises(TargetError, match="UnknownTopicOrPartition") as caught:
            add(1_000)
        assert caught.value.retriable
        world.target_admin.create_topics([NewTopic(new, 1, 1)])[new].result()
        add(30_000)


def test_a_flow_that_rests_until_its_producers_are_forgotten_and_its_copies_deleted_goes_on_where_it_was(
    servers: tuple[str, str], older: LocalCluster, tmp_path: Path
) -> None:
    world = World(servers[0], older.bootstrap_servers, tmp_path)
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    remote = TopicPartition(world.remote(topic), 0, OFFSET_END)
    for future in world.target_admin.delete_records([remote]).values():
        future.result()
    eventually(lambda: not known_producers(world, topic), what="the end of the producers' state")
    world.produce(topic, 50, 1, seed=2)
    assert world.mirror().records == 50
    source, target = world.source_records(topic)[0], world.target_records(topic)[0]
    assert [record for _, record in target] == [record for _, record in source[100:]]
    world.assert_nothing_open()


def known_producers(world: World, topic: str) -> set[object]:
    """Returns the transactional ids of the flow, and the producers of the remote topic, that the target knows."""
    describe = DescribeProducersRequest.TopicRequest(name=world.remote(topic), partition_indexes=[0])
    with closing(Cluster(world.flow.target_connection, "target", "tests").connect()) as cluster:

        async def known() -> set[object]:
            listed = await cluster.ask(ListTransactionsRequest[0](state_filters=[], producer_id_filters=[]), 1)
            active = await cluster.ask(DescribeProducersRequest[0](topics=[describe]), 1)
            mine = {world.flow.transactional_id(slot) for slot in range(2)}
            return {state.transactional_id for state in listed.transaction_states} & mine | {
                producer.producer_id for producer in active.topics[0].partitions[0].active_producers
            }

        found: set[object] = cluster.call("listing producers", known, 10_000)
        return found


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
    assert world.disturbed_job(overtake).run(None).records == 500
    assert begun
    assert any("the transaction was ended" in line for line in world.lines)
    world.assert_equal(topic)
    world.assert_nothing_open()
