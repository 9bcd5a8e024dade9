"""What stands on a remote topic between the position and the records of an attempt, on a real broker."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy import target_writer
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.target_ends import require_ends
from mirrorlake.jobs.mirror.copy.target_writer import Outlet
from mirrorlake.jobs.mirror.planning import readiness
from mirrorlake.model.run import Run
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.log_reader import read_stretch

from tests.world import DEADLINE_S, World, eventually, transactional_producer, write_in_transaction


def producer_ids(cluster: Cluster, key: PartitionKey, start: int, end: int) -> set[int]:
    """Returns the ids of the producers of `[start, end)`."""

    async def found() -> set[int]:
        log = read_stretch(cluster, key, start, end, 1 << 20, READ_UNCOMMITTED)
        return {batch.producer_id async for batch, _ in log}

    ids: set[int] = cluster.net.run(found)
    return ids


def test_on_shared_topics_open_transactions_of_others_hold_back_no_job_and_a_marker_may_stand_at_the_position(
    plain_world: World,
) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    world.write_config(**{"mirrorlake.connect.timeout.ms": "10000"})
    world.produce(topic, 5, 1)
    world.mirror()
    remote, flow = world.remote(topic), world.flow
    end = world.target_records(topic)[0][-1][0] + 1
    behind = Stretch(topic, 0, "", remote, 5, 5, end + 1, 6)  # as after a take-over: the marker of the flow is there
    with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
        target.refresh([remote], 30_000)
        require_ends(flow, target, [behind], generation=1)
        assert target.limits.ends_checked == {(remote, 0): 1}

    world.write_config(**{"mirrorlake.topics.shared": "true"})
    producer = transactional_producer(world.target_servers, topic)
    write_in_transaction(producer, remote)
    for seed in (1, 2):  # the second job begins behind records that can't be read yet
        world.produce(topic, 5, 1, seed=seed)
        assert world.mirror().records == 5
    producer.abort_transaction(DEADLINE_S)
    world.assert_equal(topic)


def test_an_open_transaction_of_an_earlier_attempt_is_waited_for_and_one_of_others_is_not(plain_world: World) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    world.produce(topic, 5, 1)
    world.mirror()
    remote, flow = world.remote(topic), world.flow
    end = world.target_records(topic)[0][-1][0] + 1
    producer = transactional_producer(world.target_servers, topic)
    write_in_transaction(producer, remote)
    stretch = Stretch(topic, 0, "", remote, 5, 5, end, 6)
    with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
        target.refresh([remote], 30_000)
        outlet = Outlet(flow, target, transaction.Producer("own", 1 << 40, 0))

        known = producer_ids(target, (remote, 0), end + 1, end + 2)
        assert len(known) == 1

        def foreign(known_producers: set[int]) -> int | None:
            return target.net.run(
                lambda: outlet._foreign_before(
                    stretch, (remote, 0), end + 3, known_producers, are_expected=False, until=math.inf
                )
            )

        with pytest.raises(TargetError, match="not ended an earlier attempt's transaction yet") as caught:
            foreign(known)
        assert caught.value.retriable
        assert foreign(set()) == end + 1
    producer.abort_transaction(DEADLINE_S)


def test_the_look_at_what_others_have_written_to_a_shared_topic_finds_the_flows_own_records_and_ends_in_time(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    world.write_config(**{"mirrorlake.topics.shared": "true"})
    world.produce(topic, 5, 1)
    world.mirror()
    remote, flow = world.remote(topic), world.flow
    position = world.target_records(topic)[0][-1][0] + 2  # behind the marker
    others = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
    for _ in range(3):  # batches
        others.produce(remote, b"x", partition=0)
        others.flush(DEADLINE_S)
    world.produce(topic, 5, 1, seed=2)
    world.mirror()
    end = world.target_records(topic)[0][-1][0] + 1
    stretch = Stretch(topic, 0, "", remote, 5, 5, position, 6)  # by a state that is older
    stretch.runs.append(Run(topic, 0, remote, 0, 5, 6, end, end + 1, 1, 1, 0, 0, 0))
    monkeypatch.setattr(target_writer, "FETCH_BYTES", 1)
    with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
        target.refresh([remote], 30_000)
        outlet = Outlet(flow, target, transaction.Producer("own", 1 << 40, 0))

        own = producer_ids(target, (remote, 0), 0, position - 1)

        def look() -> list[str]:
            return target.net.run(lambda: outlet.require_sole_writer([stretch], own))

        monkeypatch.setattr(target_writer, "CHECKED_S", 0.0)
        for _ in range(2):  # a response each
            assert look() == []
        assert target.limits.looked[remote, 0][2] == position + 2
        monkeypatch.setattr(target_writer, "CHECKED_S", 60.0)
        with pytest.raises(TargetError, match=f"records of this flow at offset {position + 3} of"):
            look()


def test_a_look_for_records_reads_on_from_where_the_last_one_has_found_those_of_failed_attempts_only(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    key, starts = (topic, 0), list[int]()

    def read(cluster: Cluster, key: tuple[str, int], **given: Any) -> Any:
        starts.append(given["start"])
        return read_stretch(cluster, key, **given)

    monkeypatch.setattr(readiness, "read_stretch", read)
    producer = transactional_producer(world.source_servers, topic)
    blank: readiness.Blank = {}
    with closing(Cluster(world.flow.source_connection, "source", "test").connect()) as cluster:
        cluster.refresh([topic], 30_000)

        def is_decided() -> bool:
            _, stable, high = cluster.log_bounds([key])[0][key]
            return stable == high

        for commits in (False, False, True):
            write_in_transaction(producer, topic, records=3)
            (producer.commit_transaction if commits else producer.abort_transaction)(DEADLINE_S)
            eventually(is_decided, what="the marker")
            found, _ = readiness.first_records(cluster, {topic: [key]}, 30_000, blank)
            assert found == ({topic: key} if commits else {})
        assert starts == [0, 4, 8]
        here = cluster.topics[topic].topic_id, cluster.leader_epoch(*key)
        assert blank == {key: (here, 8)}
        for other in (("of another topic", here[1]), (here[0], here[1] + 1)):
            blank[key] = other, 8
            assert readiness.first_records(cluster, {topic: [key]}, 30_000, blank)[0] == {topic: key}
            assert starts.pop() == 0
