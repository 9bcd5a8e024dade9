"""Partitions that can't be mirrored hold back only themselves, with a row and a metric."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from kafka.protocol.metadata import ApiVersionsRequest
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.lag_meter import LagMeter
from mirrorlake.jobs.mirror.planning import readiness
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.ports import HOST, free_port
from mirrorlake.model.partition_lag import PartitionState
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import PositionReason
from mirrorlake.state import offset_syncs
from mirrorlake.state.generation import begin_generation

from tests.world import World, eventually

STANDSTILL_S = 2.0


@pytest.fixture(scope="module")
def pair(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Starts a source of two brokers; the first is the controller."""
    jars = root / ".local/jars/kafka"
    cluster = LocalCluster("pair", tmp_path_factory.mktemp("pair"), jars, size=2)
    with running(cluster):
        yield cluster


@pytest.fixture
def world(servers: tuple[str, str], pair: LocalCluster, tmp_path: Path) -> World:
    return World(pair.bootstrap_servers, servers[1], tmp_path)


def topic_on(world: World, name: str, broker: int) -> str:
    full = f"{world.alias}-{name}"
    world.source_admin.create_topics([NewTopic(full, 1, replica_assignment=[[broker]])])[full].result()
    eventually(lambda: world.source_admin.list_topics(full, timeout=5).topics[full].partitions[0].leader == broker)
    return full


def remote_topics_on(world: World, places: dict[str, int]) -> None:
    """Creates topics of one partition on the target, each on the broker that is given with its name."""
    made = world.target_admin.create_topics(
        [NewTopic(name, 1, replica_assignment=[[broker]]) for name, broker in places.items()]
    )
    for future in made.values():
        future.result()
    eventually(lambda: {*places} <= {*world.target_admin.list_topics(timeout=5).topics})


def leader(world: World, remote: str) -> int:
    """Returns the node id of a remote topic's leader, -1 if it has none."""
    return int(world.target_admin.list_topics(remote, timeout=5).topics[remote].partitions[0].leader)


def on_one_slot(source: str, pair: LocalCluster, directory: Path) -> tuple[World, str, str]:
    """Returns a world of one slot and two topics with records, whose remote topics are on a broker each."""
    world = world_with_coordinator(source, pair, directory, broker=1)
    world.write_config(**{"mirrorlake.slots": "1"})
    alive, dead = world.topic("alive", 1), world.topic("dead", 1)
    remote_topics_on(world, {world.flow.offset_syncs_topic: 1, world.remote(alive): 1, world.remote(dead): 2})
    for topic in (alive, dead):
        world.produce(topic, 20, 1)
    return world, alive, dead


def states(meter: LagMeter) -> dict[str, tuple[PartitionState, str | None]]:
    """Measures; returns state and reason of each topic, which have one partition."""
    return {one.topic: (one.state, one.reason) for one in meter.measure().partitions}


def arrived(world: World, topic: str) -> int:
    try:
        return len(world.target_records(topic)[0])
    except (KafkaException, KeyError):
        return 0


@pytest.mark.parametrize("is_frozen", [False, True], ids=["stopped", "frozen"])
def test_a_partition_whose_leader_is_down_holds_back_only_itself(
    world: World, pair: LocalCluster, is_frozen: bool
) -> None:
    stop, start = (pair.freeze_broker, pair.thaw_broker) if is_frozen else (pair.stop_broker, pair.start_broker)
    alive, dead = topic_on(world, "alive", 1), topic_on(world, "dead", 2)
    for topic in (alive, dead):
        world.produce(topic, 20, 1)
    with world.mirroring():
        eventually(lambda: arrived(world, alive) == arrived(world, dead) == 20)
        try:
            stop(2)
            for count in range(40, 121, 20):
                world.produce(alive, 20, 1)
                began = time.monotonic()
                eventually(lambda count=count: arrived(world, alive) == count, 60)
                last_s = time.monotonic() - began
            eventually(lambda: world.metric("held_partitions") == 1, 60)
            assert last_s < 10
        finally:
            start(2)
        eventually(lambda: world.source_admin.list_topics(dead, timeout=5).topics[dead].partitions[0].leader == 2)
        world.produce(dead, 20, 1)
        eventually(lambda: arrived(world, dead) == 40)
        eventually(lambda: world.metric("held_partitions") == 0)
    (row,) = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert (row["topic"], row["partition"], row["action"]) == (dead, 0, "the others go on")
    assert "does not answer" in row["detail"]
    world.assert_equal(alive, dead)


def test_a_remote_partition_without_a_leader_holds_back_its_topic_and_no_other_while_nothing_of_it_is_mirrored(
    servers: tuple[str, str], pair: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "WAIT_S", 3.0)
    world, alive, dead = on_one_slot(servers[0], pair, tmp_path)
    groups = [world.commit(f"g{number}", {(alive, 0): 5, (dead, 0): 7}) for number in range(6)]
    with ExitStack() as stopped:
        pair.stop_broker(2)
        stopped.callback(pair.start_broker, 2)
        with world.mirroring():
            eventually(lambda: arrived(world, alive) == 20, 60)
            world.checkpoint()
            positions = {(row["group_id"], row["topic"]): row for row in world.rows("checkpoints")}
            assert {positions[group, dead]["reason"] for group in groups} == {PositionReason.REMOTE_UNREAD}
            assert {positions[group, alive]["downstream_offset"] for group in groups} == {5}
            world.produce(alive, 20, 1, seed=2)
            eventually(lambda: arrived(world, alive) == 40, 30)
            eventually(lambda: world.metric("held_topics") == 1)
            stopped.close()
            eventually(lambda: arrived(world, dead) == 20, 90)
    (row,) = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert row["topic"] == dead
    assert "not known whether the topic holds records of others" in row["detail"]
    world.assert_equal(alive, dead)


def test_a_remote_partition_that_loses_its_leader_holds_back_only_itself(
    servers: tuple[str, str], pair: LocalCluster, tmp_path: Path
) -> None:
    world, alive, dead = on_one_slot(servers[0], pair, tmp_path)
    with ExitStack() as stopped, closing(LagMeter(world.flow)) as meter, world.mirroring():
        eventually(lambda: arrived(world, alive) == arrived(world, dead) == 20, 60)
        assert {state for state, _ in states(meter).values()} == {PartitionState.MIRRORING}
        pair.stop_broker(2)
        stopped.callback(pair.start_broker, 2)
        eventually(lambda: leader(world, world.remote(dead)) == -1)
        for count in (40, 60, 80):
            for topic in (alive, dead):
                world.produce(topic, 20, 1, seed=count)
            eventually(lambda count=count: arrived(world, alive) == count, 30)
        eventually(lambda: world.metric("held_partitions") == 1)
        seen = states(meter)
        assert seen[alive] == (PartitionState.MIRRORING, None)
        assert seen[dead][0] is PartitionState.SILENT
        assert f"the leader of {world.remote(dead)}-0 does not answer" in (seen[dead][1] or "")
        stopped.close()
        eventually(lambda: leader(world, world.remote(dead)) == 2, 60)
        eventually(lambda: arrived(world, dead) == 80, 90)
        eventually(lambda: world.metric("held_partitions") == 0)
        assert states(meter)[dead] == (PartitionState.MIRRORING, None)
    (row,) = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert (row["topic"], row["partition"], row["action"]) == (dead, 0, "the others go on")
    assert f"the leader of {world.remote(dead)}-0 does not answer" in row["detail"]
    world.assert_equal(alive, dead)
    world.write_config(**{"mirrorlake.retry.timeout.ms": "3000"})
    with ExitStack() as stopped:
        pair.stop_broker(2)
        stopped.callback(pair.start_broker, 2)
        eventually(lambda: leader(world, world.remote(dead)) == -1)
        for topic in (alive, dead):
            world.produce(topic, 20, 1, seed=9)
        with pytest.raises(TargetError, match="has no leader now"):  # a run that ends with what there is
            world.mirror()
        assert arrived(world, alive) == 100
    eventually(lambda: leader(world, world.remote(dead)) == 2, 60)
    assert world.mirror().records == 20


def test_a_job_whose_only_topic_has_a_remote_partition_without_a_leader_tries_again_until_it_has_one(
    servers: tuple[str, str], pair: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "WAIT_S", 3.0)
    world = world_with_coordinator(servers[0], pair, tmp_path, broker=1)
    world.write_config(**{"mirrorlake.slots": "1"})
    topic = world.topic("only", 1)
    remote_topics_on(world, {world.flow.offset_syncs_topic: 1, world.remote(topic): 2})
    world.produce(topic, 20, 1)
    with ExitStack() as stopped:
        pair.stop_broker(2)
        stopped.callback(pair.start_broker, 2)
        with world.mirroring():
            eventually(lambda: any("retrying" in line and "does not answer" in line for line in world.lines), 60)
            stopped.close()
            eventually(lambda: arrived(world, topic) == 20, 90)
    world.assert_equal(topic)


def test_a_topic_that_is_deleted_does_not_hold_up_the_others(world: World) -> None:
    world.write_config(**{"refresh.topics.interval.seconds": "600"})
    kept, deleted = topic_on(world, "kept", 1), topic_on(world, "deleted", 2)
    for topic in (kept, deleted):
        world.produce(topic, 20, 1)
    with world.mirroring():
        eventually(lambda: arrived(world, kept) == arrived(world, deleted) == 20)
        world.source_admin.delete_topics([deleted])[deleted].result()
        eventually(lambda: deleted not in world.source_admin.list_topics(timeout=5).topics)
        world.produce(kept, 20, 1)
        began = time.monotonic()
        eventually(lambda: arrived(world, kept) == 40)
        assert time.monotonic() - began < 10
    assert not [row for row in world.rows("anomalies") if row["topic"] == deleted]


def test_a_broker_that_comes_back_at_another_address_is_found(world: World, pair: LocalCluster) -> None:
    topic = topic_on(world, "moved", 2)
    world.produce(topic, 20, 1)
    with world.mirroring():
        eventually(lambda: arrived(world, topic) == 20)
        pair.stop_broker(2)
        pair.move_broker(2)
        pair.start_broker(2)
        world.source_servers = pair.bootstrap_servers  # of this test's producer; the job has the older ones
        world.produce(topic, 20, 1)
        eventually(lambda: arrived(world, topic) == 40)
    world.assert_equal(topic)


def test_brokers_of_the_target_that_all_come_back_at_other_addresses_are_found(
    servers: tuple[str, str], pair: LocalCluster, tmp_path: Path
) -> None:
    later = {broker.node_id: free_port() for broker in pair.brokers}
    addresses = [pair.bootstrap_servers, *(f"{HOST}:{port}" for port in later.values())]
    world = World(servers[0], ",".join(addresses), tmp_path)
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    with world.mirroring():
        eventually(lambda: arrived(world, topic) == 20)
        for broker in reversed(pair.brokers):  # the last one is the controller, which the others ask
            pair.stop_broker(broker.node_id)
        for broker in pair.brokers:
            pair.move_broker(broker.node_id, later[broker.node_id])
        for broker in pair.brokers:
            pair.start_broker(broker.node_id, wait=False)
        pair.wait_ready()
        world.target_servers = pair.bootstrap_servers  # of this test's consumers
        world.produce(topic, 20, 1)
        eventually(lambda: arrived(world, topic) == 40)
    world.assert_equal(topic)


def test_another_broker_is_asked_while_one_is_silent(world: World, pair: LocalCluster) -> None:
    hello = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with closing(Cluster(world.flow.source_connection, "source", "test").connect()) as cluster:
        cluster.net.run(lambda: cluster.ask(hello, 2))
        pair.freeze_broker(2)
        try:
            cluster.net.run(lambda: sent(cluster, hello))
            eventually(lambda: cluster.net.run(lambda: silent(cluster)), 30, "silence")
            began = time.monotonic()
            for _ in range(10):
                cluster.refresh([], 10_000)
            assert time.monotonic() - began < 5
        finally:
            pair.thaw_broker(2)
        eventually(lambda: not cluster.net.run(lambda: silent(cluster)), 30, "an answer")


def test_a_generation_is_open_once_every_reader_sees_it(
    servers: tuple[str, str], pair: LocalCluster, tmp_path: Path
) -> None:
    """The second broker leads the offset-syncs topic, and stands still while the first decides the commit."""
    world = world_with_coordinator(servers[0], pair, tmp_path, broker=1)
    flow = world.flow
    syncs = NewTopic(flow.offset_syncs_topic, 1, replica_assignment=[[2]])
    world.target_admin.create_topics([syncs])[flow.offset_syncs_topic].result()
    seen: list[str] = []
    thaw = threading.Timer(STANDSTILL_S, lambda: (seen.append("thawed"), pair.thaw_broker(2)))

    def freeze(step: str) -> None:
        seen.append(step)
        if step == "driver.stated":
            pair.freeze_broker(2)
            thaw.start()

    with closing(Cluster(flow.target_connection, "target", "test", 10_000).connect()) as target:
        try:
            generation = begin_generation(flow, "", target, slots=1, failpoint=freeze)
        finally:
            thaw.join()
        states = offset_syncs.read_states(target, flow.offset_syncs_topic, [0], 10_000)
    assert seen == ["driver.stated", "driver.opening", "thawed"], "the commit was not decided during the standstill"
    assert states[0].generation == generation == 1


def world_with_coordinator(source: str, pair: LocalCluster, directory: Path, broker: int) -> World:
    """Returns a world whose first slot has this broker of the target as the coordinator of its transactions."""
    for number in range(50):
        world = World(source, pair.bootstrap_servers, directory / f"world-{number}")
        with closing(Cluster(world.flow.target_connection, "target", "test", 30_000).connect()) as target:
            transactional_id = world.flow.transactional_id(0)

            async def coordinator(target: Cluster = target, name: str = transactional_id) -> int:
                return await target.coordinator(name)

            if target.call("finding the coordinator", coordinator, 30_000) == broker:
                return world
    raise AssertionError(f"broker {broker} coordinates nothing")


async def sent(cluster: Cluster, request: object) -> None:
    """Sends a request to the second broker without waiting for the response."""
    cluster.send(request, 2)


async def silent(cluster: Cluster) -> bool:
    """Lets the event loop run for a moment; returns True if the second broker is silent."""
    await cluster.net.sleep(0.2)
    return cluster.is_silent(2)
