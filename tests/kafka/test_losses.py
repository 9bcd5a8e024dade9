"""Losses are never silent: a flow stops, or continues and records the loss, as configured.

The tests use real logs that lose records in every known way.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.metadata import MetadataRequest
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from mirrorlake.errors import ConfigurationError, GateError, SourceError, TargetError
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.planning import planner
from mirrorlake.jobs.mirror.spark_engine import SparkTasks
from mirrorlake.jobs.verification.completeness import CountScope
from mirrorlake.jobs.verification.counting import Counting
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.model.recent_runs import RecentRuns
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import commit_group_offsets
from mirrorlake.protocol.group_requests import delete_group, group_coordinators
from mirrorlake.protocol.mm2_topics import Mm2Topic
from mirrorlake.protocol.network.event_loop import EventLoop
from mirrorlake.reasons import NotCompared, PositionReason

from tests.conftest import CLEANER
from tests.moving import IDENTITY, both_ways, failback, failover
from tests.world import (
    ROOT,
    Record,
    World,
    config_of,
    configure,
    consume_as,
    eventually,
    now_ms,
    transactional_producer,
    write_in_transaction,
)


def contents(records: list[tuple[int, Record]]) -> list[Record]:
    return [record for _, record in records]


def anomalies(world: World, action: str) -> list[tuple[str, str, int, int, int]]:
    return sorted(
        (row["kind"], row["topic"], row["partition"], row["from_offset"], row["to_offset"])
        for row in world.rows("anomalies")
        if row["action"] == action and row["kind"] != "held"
    )


def go_on(world: World) -> None:
    world.write_config(**{"mirrorlake.on.loss": "continue"})


def delete_records(world: World, topic: str, before: int) -> None:
    for future in world.source_admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result()


def recreate(world: World, topic: str) -> None:
    delete(world.source_admin, topic)
    world.topic(topic.removeprefix(f"{world.alias}-"), 1)


def delete(admin: object, topic: str) -> None:
    admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics)


def position_after(world: World, topic: str, upstream_offset: int) -> int:
    """Returns the target offset of a group at that upstream offset."""
    group = world.commit("g", {(topic, 0): upstream_offset})
    world.checkpoint()
    return world.checkpoints()[group, topic, 0]["downstream_offset"]


def test_records_deleted_before_they_were_mirrored_are_passed_over_where_the_flow_says_so_and_written_down(
    world: World,
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    world.produce(topic, 100, 1, seed=2)
    delete_records(world, topic, 150)
    with pytest.raises(
        SourceError,
        match=rf"topic {topic}, partition 0, offsets 100 to 150: the log start offset is 150 .*mirrorlake\.on\.loss",
    ):
        world.mirror()
    assert len(world.target_records(topic)[0]) == 100
    assert anomalies(world, "stop") == [("retention", topic, 0, 100, 150)]
    go_on(world)
    assert world.mirror().records == 50
    assert contents(world.target_records(topic)[0])[100:] == contents(world.source_records(topic)[0])
    assert world.gaps(topic) == [(0, 100, 150, "retention")]
    assert anomalies(world, "continue") == [("retention", topic, 0, 100, 150)]
    assert any("from_offset=100 to_offset=150" in line and "deleted on the source" in line for line in world.lines)
    assert world.metric("anomalies_total", kind="retention") == 2, "when the flow stopped, and when it went on"
    world.assert_accounted(topic)
    first_kept = world.target_records(topic)[0][100][0]
    assert position_after(world, topic, 120) == first_kept


def test_retention_that_overtakes_a_paused_mirror_is_noticed(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1, config={"segment.bytes": "1048576", "retention.ms": "-1"})
    plain_world.produce(topic, 100, 1)
    plain_world.mirror()
    plain_world.write_config(**{"mirrorlake.paused": "true"})
    plain_world.produce(topic, 6_000, 1, size=1_000, codec="none")
    assert plain_world.mirror().records == 0
    configure(plain_world, topic, {"retention.bytes": "1100000"})
    first = eventually(lambda: plain_world.source_records(topic)[0][0][0], what="retention")
    configure(plain_world, topic, {"retention.bytes": "-1"})
    plain_world.write_config(**{"mirrorlake.paused": "false"})
    with pytest.raises(SourceError, match=rf"offsets 100 to {first}: the log start offset is {first}"):
        plain_world.mirror()
    go_on(plain_world)
    assert plain_world.mirror().records == 6_100 - first
    assert plain_world.gaps(topic) == [(0, 100, first, "retention")]


def test_a_topic_created_anew_is_mirrored_from_its_first_record_where_the_flow_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    group = world.commit("g", {(topic, 0): 60})
    world.checkpoint()
    recreate(world, topic)
    world.commit(group, {(topic, 0): 0})  # of the new topic, which is empty
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["sync"], row["downstream_offset"]) == ("not_mirrored_yet", "waiting", None)
    assert "created anew" in row["reason"]
    for source in ("alive", "dead"):
        (planned,) = failover(world, source=source).lines
        assert [kind for kind, _ in planned.blocks] == ["not_mirrored_yet"], "the old map has a place for it"
    world.produce(topic, 30, 1, seed=2)
    with pytest.raises(SourceError, match=r"was deleted and created anew .*mirrorlake\.on\.loss = continue"):
        world.mirror()
    go_on(world)
    assert world.mirror().records == 30
    late = world.commit("late", {(topic, 0): 20})
    world.checkpoint()
    first = world.target_records(topic)[0][100][0]
    assert world.committed(group)[world.remote(topic), 0][0] == first, "behind all records of the former topic"
    for planned in failover(world, source="dead").lines:
        assert (planned.lag_seen, planned.blocks) == (0, ()), "the end of the former topic was seen, and is forgotten"
    rows = world.ledger.table("checkpoints")
    world.ledger.change("checkpoints", f"UPDATE {rows} SET created_at = created_at - INTERVAL 1 HOUR")
    planned = next(one for one in failover(world, source="dead").lines if one.group_id == late)
    assert "not_mirrored_yet" in {kind for kind, _ in planned.blocks}, "20 of the former topic, and not of the new one"
    world.ledger.change("checkpoints", f"UPDATE {rows} SET created_at = created_at + INTERVAL 1 HOUR")
    target = world.target_records(topic)[0]
    assert contents(target)[100:] == contents(world.source_records(topic)[0])
    assert world.gaps(topic) == [(0, 0, 100, "recreated")]
    world.assert_accounted(topic)
    assert position_after(world, topic, 10) == target[110][0]  # the new tenth record, not the old one

    # Without the table gaps, runs of the former topic would count again.
    world.spark.sql(f"DELETE FROM {world.ledger.table('gaps')} WHERE source = '{world.alias}'")
    for planned in failover(world, source="dead").lines:
        assert "stale_map" in [kind for kind, _ in planned.blocks]
    monkeypatch.setattr(RecentRuns, "near", lambda *_: None)  # so that the ledger is asked
    assert position_after(world, topic, 30) == target[-1][0] + 1, "not the thirtieth record of the former topic"
    assert world.mirror().records == 0
    assert world.gaps(topic) == [(0, 0, 100, "recreated")], "a table that was emptied apart is filled again"


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_topic_created_anew_while_the_mirror_runs_is_noticed(plain_world: World, policy: str) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.write_config(**{"mirrorlake.on.loss": policy})
    plain_world.produce(topic, 100, 1)
    stops = pytest.raises(SourceError, match="was deleted and created anew")
    with stops if policy == "stop" else nullcontext(), plain_world.mirroring() as job:
        eventually(lambda: len(plain_world.target_records(topic)[0]) == 100)
        recreate(plain_world, topic)
        plain_world.produce(topic, 40, 1, seed=2)
        if policy == "stop":
            eventually(job.done, what="the end of the job")
        else:
            eventually(lambda: len(plain_world.target_records(topic)[0]) == 140)
    if policy == "stop":
        assert len(plain_world.target_records(topic)[0]) == 100
    else:
        assert contents(plain_world.target_records(topic)[0])[100:] == contents(plain_world.source_records(topic)[0])


def assert_stops(world: World, topic: str) -> None:
    with pytest.raises(
        TargetError,
        match=rf"topic {world.remote(topic)} was deleted and created anew on cluster t; the flow had "
        rf"mirrored up to offset \d+\. ",
    ):
        world.mirror()
    assert {kind for kind, *_ in anomalies(world, "stop")} == {"target_recreated"}


def test_a_remote_topic_that_was_deleted_stops_the_flow_though_nothing_new_comes(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 40, 1)
    plain_world.mirror()
    delete(plain_world.target_admin, plain_world.remote(topic))
    for _ in range(2):
        assert_stops(plain_world, topic)


def test_a_remote_topic_that_was_deleted_stops_the_flow_or_is_filled_again(world: World) -> None:
    topic = world.topic(partitions=2)  # nothing new will come to the second one
    world.produce(topic, 40, 1)
    world.mirror()
    world.produce(topic, 60, 1, seed=3)
    idle = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    idle.produce(topic, b"idle", partition=1)
    assert idle.flush(30) == 0
    world.mirror()
    position_after(world, topic, 70)
    delete(world.target_admin, world.remote(topic))
    world.produce(topic, 50, 1, seed=2)
    assert_stops(world, topic)
    late = world.commit("late", {(topic, 0): 70})
    world.checkpoint()
    row = world.checkpoints()[late, topic, 0]
    assert (row["status"], row["downstream_offset"]) == ("not_mirrored_yet", None), "the map is of the former topic"
    go_on(world)
    assert world.mirror().records == 151
    for partition in (0, 1):
        assert contents(world.target_records(topic)[partition]) == contents(world.source_records(topic)[partition])
    assert world.gaps(topic) == [(0, 0, 100, "target_recreated"), (1, 0, 1, "target_recreated")]
    world.assert_accounted(topic)
    assert position_after(world, topic, 70) == world.target_records(topic)[0][70][0]


def test_someone_elses_record_in_a_remote_topic_that_nobody_will_read_is_passed_over(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 100, 1)
    plain_world.mirror()
    other = transactional_producer(plain_world.target_servers, f"{topic}-other")
    write_in_transaction(other, plain_world.remote(topic))
    other.abort_transaction(30)
    plain_world.produce(topic, 50, 1, seed=2)
    assert plain_world.mirror().records == 50


def test_someone_else_who_writes_into_a_remote_topic_is_noticed(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    other = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
    other.produce(world.remote(topic), b"not ours", partition=0)
    assert other.flush(30) == 0
    world.produce(topic, 50, 1, seed=2)
    with pytest.raises(
        TargetError,
        match=rf"another program has written to topic {world.remote(topic)}, partition 0 on cluster t, at offset 101,"
        r" .* to mirror on behind it, set mirrorlake\.on\.loss = continue until",
    ):
        world.mirror()
    assert len(world.target_records(topic)[0]) == 101
    go_on(world)
    assert world.mirror().records == 50
    assert [kind for kind, *_ in anomalies(world, "continue")] == ["foreign"]
    world.produce(topic, 10, 1, seed=3)
    world.mirror()
    assert [kind for kind, *_ in anomalies(world, "continue")] == ["foreign"]  # said once
    assert len(world.target_records(topic)[0]) == 161


def test_batches_that_are_too_large_for_the_remote_topic_are_split(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1, config={"max.message.bytes": "4000000"})
    for seed, codec in enumerate(("none", "lz4", "zstd")):
        plain_world.produce(topic, 300, 1, codec, size=400, seed=seed, **{"batch.num.messages": 300, "linger.ms": 200})
    large = Producer({"bootstrap.servers": plain_world.source_servers, "message.max.bytes": 4_000_000, "log_level": 0})
    for size in (10, 3_500_000, 20):
        large.produce(topic, os.urandom(size), partition=0)
        assert large.flush(30) == 0
    configure(
        plain_world, topic, {"max.message.bytes": "3000"}
    )  # existing records stay; the remote topic gets the new limit
    plain_world.target_admin.create_topics(
        [NewTopic(plain_world.remote(topic), 1, 1, config={"max.message.bytes": "3000", "compression.type": "gzip"})]
    )[plain_world.remote(topic)].result()
    with pytest.raises(
        TargetError,
        match=rf"offset 901: the record of 3,\d+,\d+ bytes is larger than topic {plain_world.remote(topic)} .* allows",
    ):
        plain_world.mirror()
    go_on(plain_world)
    assert plain_world.mirror().records == 902
    assert plain_world.gaps(topic) == [(0, 901, 902, "too_large")]
    assert contents(plain_world.target_records(topic)[0]) == [
        record for offset, record in plain_world.source_records(topic)[0] if offset != 901
    ]
    plain_world.assert_accounted(topic)


def test_a_batch_that_would_take_too_much_memory_to_open_stops_the_flow_or_is_left_out(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    settings = {"compression.type": "zstd", "message.max.bytes": 20_000_000, "batch.size": 20_000_000, "linger.ms": 500}
    bomb = Producer({"bootstrap.servers": plain_world.source_servers, "log_level": 0, **settings})
    for _ in range(8):
        bomb.produce(topic, bytes(1_000_000), partition=0)
    assert bomb.flush(30) == 0
    plain_world.produce(topic, 5, 1)
    plain_world.write_config(
        **{"mirrorlake.batch.max.decompressed.bytes": "1048576", f"mirrorlake.start.topic.{topic}": "0:3"}
    )  # a start within the batch, which must be opened therefore
    said = "it has more than 1,048,576 bytes once it is decompressed. Raise mirrorlake.batch.max.decompressed.bytes"
    with pytest.raises(SourceError, match=rf"{topic}, partition 0, offsets 3 to 8: the batch can't be opened: {said}"):
        plain_world.mirror()
    go_on(plain_world)
    assert plain_world.mirror().records == 5
    assert plain_world.gaps(topic) == [(0, 3, 8, "too_large")]
    plain_world.assert_accounted(topic)


def test_records_without_a_key_from_before_a_topic_was_compacted_stop_the_flow_or_are_left_out(
    plain_world: World,
) -> None:
    topic = plain_world.topic(partitions=2)
    settings = {"bootstrap.servers": plain_world.source_servers, "linger.ms": 200, "log_level": 0}
    for codec in ("none", "zstd"):
        mixed = Producer({**settings, "compression.type": codec})
        for number in range(300):
            key = None if number % 3 == 0 else b"" if number == 1 else b"k%d" % number
            mixed.produce(topic, b"v%d" % number, key, partition=0)
        assert mixed.flush(30) == 0
        mixed.produce(topic, b"alone", partition=1)
        assert mixed.flush(30) == 0
    plain_world.produce(topic, 40, 1, seed=7)
    configure(plain_world, topic, {"cleanup.policy": "compact"})
    with pytest.raises(
        SourceError, match=rf"{topic}, partition \d, offsets 0 to 1: the record was written before .* no key"
    ):
        plain_world.mirror()
    (stopped,) = anomalies(plain_world, "stop")
    assert (stopped[0], *stopped[3:]) == ("no_key", 0, 1)
    go_on(plain_world)
    kept = [record for _, record in plain_world.source_records(topic)[0] if record[0] is not None]
    assert plain_world.mirror().records == len(kept)
    assert contents(plain_world.target_records(topic)[0]) == kept
    assert {kind for *_, kind in plain_world.gaps(topic)} == {"no_key"}
    keyed = Producer(settings)
    for number in range(10):  # such batches pass as they are
        keyed.produce(topic, b"later", b"k%d" % number, partition=0)
    assert keyed.flush(30) == 0
    assert plain_world.mirror().records == 10
    plain_world.assert_accounted(topic)


def test_a_record_without_a_key_waits_where_only_the_remote_topic_is_compacted(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.write_config(**{"sync.topic.configs.enabled": "false", "mirrorlake.retry.timeout.ms": "2000"})
    plain_world.produce(topic, 5, 1)
    plain_world.mirror()
    configure(plain_world, plain_world.remote(topic), {"cleanup.policy": "compact"}, target=True)
    plain = Producer({"bootstrap.servers": plain_world.source_servers, "log_level": 0})
    plain.produce(topic, b"no key", partition=0)
    assert plain.flush(30) == 0
    with pytest.raises(
        TargetError,
        match=rf"{topic}, partition 0, offset 5: the record has no key, and topic .* refuses it, as compact",
    ):
        plain_world.mirror()
    configure(plain_world, plain_world.remote(topic), {"cleanup.policy": "delete"}, target=True)
    assert plain_world.mirror().records == 1
    plain_world.assert_accounted(topic)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_lone_record_larger_than_the_remote_topic_allows_by_then_stops_the_flow_or_is_left_out(
    plain_world: World, codec: str
) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.write_config(**{"sync.topic.configs.enabled": "false"})
    plain_world.produce(topic, 5, 1)
    plain_world.mirror()
    lone = Producer({"bootstrap.servers": plain_world.source_servers, "compression.type": codec, "log_level": 0})
    lone.produce(topic, os.urandom(100_000), partition=0)
    assert lone.flush(30) == 0
    for name, target in ((topic, False), (plain_world.remote(topic), True)):  # existing records stay
        configure(plain_world, name, {"max.message.bytes": "3000"}, target=target)
    with pytest.raises(
        TargetError, match=rf"{topic}, partition 0, offset 5: the record of 100,\d+ bytes is larger than"
    ):
        plain_world.mirror()
    go_on(plain_world)
    assert plain_world.mirror().records == 0
    plain_world.produce(topic, 5, 1)
    assert plain_world.mirror().records == 5
    assert plain_world.gaps(topic) == [(0, 5, 6, "too_large")]
    plain_world.assert_accounted(topic)


def test_a_record_that_is_larger_than_the_source_allowed_before_arrives_once_the_remote_topic_has_followed(
    plain_world: World,
) -> None:
    topic = plain_world.topic(partitions=1)
    with plain_world.mirroring():
        plain_world.produce(topic, 5, 1)
        eventually(lambda: len(plain_world.target_records(topic).get(0, ())) == 5)
        configure(plain_world, topic, {"max.message.bytes": "3000000"})
        large = Producer(
            {"bootstrap.servers": plain_world.source_servers, "message.max.bytes": 3_000_000, "log_level": 0}
        )
        large.produce(topic, os.urandom(2_000_000), partition=0)
        assert large.flush(30) == 0
        eventually(lambda: len(plain_world.target_records(topic)[0]) == 6, 60)
    assert config_of(plain_world.target_admin, plain_world.remote(topic))["max.message.bytes"] == "3000000"
    plain_world.assert_equal(topic)


# -- logs that lose what they had -------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Starts a source of three brokers; the first is the controller, the others may lose data."""
    properties = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", **CLEANER}
    cluster = LocalCluster(
        "fragile", tmp_path_factory.mktemp("fragile"), root / ".local/jars/kafka", size=3, properties=properties
    )
    with running(cluster):
        yield cluster


@pytest.fixture
def fragile_world(world: World, fragile: LocalCluster) -> World:
    return World(fragile.bootstrap_servers, world.target_servers, world.directory, world.spark, world.warehouse)


@pytest.fixture
def fragile_plain_world(plain_world: World, fragile: LocalCluster) -> World:
    return World(fragile.bootstrap_servers, plain_world.target_servers, plain_world.directory)


def topic_on(world: World, name: str, replicas: list[int]) -> str:
    full = f"{world.alias}-{name}"
    world.source_admin.create_topics([NewTopic(full, 1, replica_assignment=[replicas])])[full].result()
    eventually(lambda: leader(world, full) in replicas)
    return full


def leader(world: World, topic: str) -> int:
    return world.source_admin.list_topics(topic, timeout=5).topics[topic].partitions[0].leader


def address_of(node_id: int, fragile: LocalCluster) -> str:
    return next(f"127.0.0.1:{broker.port}" for broker in fragile.brokers if broker.node_id == node_id)


def leader_known_to(node_id: int, fragile: LocalCluster, topic: str) -> int:
    """Asks one broker at its address; what others say of it counts as little as whether they know it at all."""
    address = address_of(node_id, fragile)
    with closing(EventLoop()) as net, closing(KafkaConnectionManager(net, bootstrap_servers=address)) as one:
        one.bootstrap(10_000)
        asked = MetadataRequest[9](
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        (told,) = net.run(lambda: one.send(asked, node_id="bootstrap-0", request_timeout_ms=10_000)).topics
    return int(told.partitions[0].leader_id)


def log_directory(cluster: LocalCluster, node_id: int, topic: str) -> Path:
    (found,) = [
        path
        for path in cluster.directory.rglob(f"{topic}-0")
        if f"{node_id}" in path.relative_to(cluster.directory).parts[0]
    ]
    return found


def elect_uncleanly(
    world: World, fragile: LocalCluster, leave: Callable[[], Any] = lambda: None
) -> tuple[str, list[Any], list[Any]]:
    """Lets a source lose 50 of the 150 records that are mirrored, and write 80 others; calls `leave` before it does.

    Returns:
        The topic, and its records before and after.
    """
    topic = topic_on(world, "unclean", [2, 3])
    world.produce(topic, 100, 1, acks="all")
    fragile.stop_broker(3)
    world.produce(topic, 50, 1, seed=2, **{"batch.num.messages": 10})
    assert world.mirror().records == 150
    before = world.source_records(topic)[0]
    leave()
    fragile.stop_broker(2, kill=True)
    fragile.start_broker(3, wait=False)
    eventually(lambda: leader(world, topic) == 3, what="the unclean election")
    world.produce(topic, 80, 1, seed=3)
    fragile.start_broker(2)
    after = world.source_records(topic)[0]
    assert contents(after)[:100] == contents(before)[:100]
    assert len(after) == 180
    return topic, before, after


def test_a_hole_that_compaction_has_left_across_an_election_is_no_truncation(
    fragile_plain_world: World, fragile: LocalCluster
) -> None:
    """The micro-batch ends in the hole, whose end the epoch before it did not reach."""
    world = fragile_plain_world
    topic = topic_on(world, "hole", [2, 3])
    often = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
    configure(world, topic, {"cleanup.policy": "compact", **often})
    producer = Producer({"bootstrap.servers": world.source_servers, "linger.ms": 100, "log_level": 0})

    def write(*keys: str) -> None:
        for at in range(0, len(keys), 10):  # ten records in each batch
            for key in keys[at : at + 10]:
                producer.produce(topic, b"value", key.encode(), partition=0)
            assert producer.flush(60) == 0

    again = [f"again-{number}" for number in range(90)]
    write(*(f"once-{number}" for number in range(10)), *again)
    fragile.stop_broker(2)
    try:
        eventually(lambda: leader(world, topic) == 3, what="the election")
        write(*again[:30])
        write(*again)

        def is_compacted() -> bool:
            write("more")  # begins a segment, so that the one before is compacted
            offsets = [offset for offset, _ in world.source_records(topic)[0]]
            return offsets[9:11] == [9, 130]

        eventually(is_compacted, 120, "compaction")
        world.write_config(**{"mirrorlake.batch.max.records": "50"})
        world.mirror()
        world.assert_equal(topic)
    finally:
        fragile.start_broker(2)


def test_an_unclean_election_that_truncates_the_source_stops_the_flow_even_when_the_log_has_grown_past_the_position(
    fragile_plain_world: World, fragile: LocalCluster
) -> None:
    world = fragile_plain_world
    topic, _, _ = elect_uncleanly(world, fragile)
    with pytest.raises(
        SourceError,
        match=rf"topic {topic}, partition 0: the log of cluster {world.alias} was truncated at offset 100, "
        rf"but the flow has mirrored up to 150 ",
    ):
        world.mirror()


def test_after_an_unclean_election_a_flow_that_may_goes_on_from_where_the_logs_differ(
    fragile_world: World, fragile: LocalCluster
) -> None:
    world = fragile_world
    go_on(world)
    topic, before, after = elect_uncleanly(world, fragile)
    assert world.mirror().records == 80
    target = world.target_records(topic)[0]
    assert contents(target) == contents(before) + contents(after)[100:]
    assert world.gaps(topic) == [(0, 100, 150, "truncated")]
    world.assert_accounted(topic)
    assert position_after(world, topic, 110) == target[160][0]
    assert position_after(world, topic, 90) == target[90][0]


def test_a_broker_that_led_a_partition_before_and_does_not_know_its_successor_is_no_loss(
    fragile_plain_world: World, fragile: LocalCluster
) -> None:
    """It is cut off from the controller, its log lacks what the successor has, and it is the only one that is named."""
    world = fragile_plain_world
    go_on(world)
    topic = topic_on(world, "former", [2, 3])
    configure(world, topic, {"unclean.leader.election.enable": "false"})
    world.produce(topic, 100, 1, acks="all")
    fragile.freeze_broker(2)
    try:
        eventually(lambda: leader(world, topic) == 3, what="the election")
        world.produce(topic, 50, 1, seed=2)
        assert world.mirror().records == 150
        world.produce(topic, 30, 1, seed=3)
        fragile.freeze_broker(1)
    finally:
        fragile.thaw_broker(2)
    try:
        world.write_config(**{f"{world.alias}.bootstrap.servers": address_of(2, fragile)})
        assert leader_known_to(2, fragile, topic) == 2
        assert world.mirror().records == 30
    finally:
        fragile.thaw_broker(1)
    eventually(lambda: leader_known_to(2, fragile, topic) == 3)
    world.assert_equal(topic)
    assert world.gaps(topic) == []


def test_groups_and_partitions_that_a_source_does_not_tell_of_hold_up_no_other(
    fragile_world: World, fragile: LocalCluster
) -> None:
    world = fragile_world
    here, away = topic_on(world, "here", [1]), topic_on(world, "away", [3])
    for topic in (here, away):
        world.produce(topic, 100, 1)
    world.mirror()
    names = [world.commit(f"g{number}", {(here, 0): 10, (away, 0): 20}) for number in range(12)]
    world.checkpoint()
    with closing(Cluster(world.flow.source_connection, "source", "tests", 10_000)) as cluster:
        cluster.connect()
        by_node = cluster.net.run(lambda: group_coordinators(cluster, names))
    lost, others = by_node[3], by_node.get(1, []) + by_node.get(2, [])
    before = world.checkpoints()
    fragile.stop_broker(3)
    try:
        moved = others[0]
        with closing(Cluster(world.flow.source_connection, "source", "tests", 10_000)) as cluster:
            assert not commit_group_offsets(cluster.connect(), {moved: {(here, 0): (50, "")}}, 10_000)
        world.checkpoint()
        rows = world.checkpoints()
        assert world.committed(moved)[world.remote(here), 0][0] == 50
        kept = {(group, topic, 0): rows[group, topic, 0] for group in names for topic in (here, away) if group != moved}
        assert {key: row["downstream_offset"] for key, row in kept.items()} == {
            key: before[key]["downstream_offset"] for key in kept
        }
        assert {rows[group, here, 0]["reason"] for group in lost} == {PositionReason.UNREAD}
        assert {rows[group, away, 0]["reason"] for group in names} == {PositionReason.LOG_UNREAD}
        assert f"groups_not_read flow={world.flow_name} cluster={world.alias} groups={len(lost)} " in "".join(
            world.lines
        )
        checkpoints, began = Mm2Topic(world.flow.source_connection, away, 1, world.flow_name), time.monotonic()
        assert not checkpoints.write([(b"k", b"v", None)] * 100_010), "ten more than a producer queues"
        assert time.monotonic() < began + 30, "one of them was waited for, and not each"
    finally:
        fragile.start_broker(3)
    eventually(lambda: leader(world, away) == 3)
    world.checkpoint()
    rows = world.checkpoints()
    assert {rows[group, topic, 0]["reason"] for group in names for topic in (here, away)} == {None}
    with closing(Cluster(world.flow.source_connection, "source", "tests", 10_000)) as cluster:
        delete_group(cluster.connect(), lost[0], 10_000)
    world.checkpoint()
    assert world.checkpoints()[lost[0], None, None]["status"] == "deleted"


@pytest.mark.parametrize("written", [40, 240])
def test_an_election_back_to_what_was_before_another_is_noticed(
    fragile_plain_world: World, fragile: LocalCluster, written: int
) -> None:
    """The log returns to an epoch older than the one read last, and longer or shorter than what was read."""
    world = fragile_plain_world
    go_on(world)
    topic = topic_on(world, f"back-{written}", [2, 3])
    world.produce(topic, 50, 1, acks="all")
    fragile.stop_broker(3)
    world.produce(topic, 200, 1, seed=2)  # on 2 only: 250 records
    fragile.stop_broker(2, kill=True)
    fragile.start_broker(3, wait=False)
    eventually(lambda: leader(world, topic) == 3, what="the first unclean election")
    world.produce(topic, written, 1, seed=3)  # on 3 only
    assert world.mirror().records == 50 + written
    fragile.stop_broker(3, kill=True)
    fragile.start_broker(2, wait=False)
    eventually(lambda: leader(world, topic) == 2, what="the second unclean election")
    fragile.start_broker(3)
    source = world.source_records(topic)[0]
    assert len(source) == 250
    assert world.mirror().records == 200
    assert contents(world.target_records(topic)[0])[50 + written :] == contents(source)[50:]
    assert world.gaps(topic) == [(0, 50, 50 + written, "truncated")]
    world.assert_accounted(topic)


def test_a_log_that_became_another_one_while_spark_read_it_for_a_transform_is_read_again(
    fragile_world: World, fragile: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads by offsets only, so it can't detect that the records were replaced."""
    world = fragile_world
    world.write_config(
        **{
            "mirrorlake.transforms": "plain",
            "mirrorlake.transform.plain.topics": ".*",
            "mirrorlake.transform.plain.headers": "array()",
        }
    )
    topic = topic_on(world, "swapped", [2, 3])
    world.produce(topic, 100, 1, acks="all")
    fragile.stop_broker(3)
    world.produce(topic, 50, 1, seed=2)
    copy, calls = SparkTasks.run, []

    def disturbed(tasks: SparkTasks, *given: object) -> object:
        calls.append(given)
        if len(calls) == 1:  # the plan is made
            fragile.stop_broker(2, kill=True)
            fragile.start_broker(3, wait=False)
            eventually(lambda: leader(world, topic) == 3, what="the unclean election")
            world.produce(topic, 80, 1, seed=3)
            fragile.start_broker(2)
        return copy(tasks, *given)

    monkeypatch.setattr(SparkTasks, "run", disturbed)
    assert world.mirror().records == 150
    assert any("has changed between offsets 0 and 150 while Spark read it" in line for line in world.lines)
    assert world.mirror().records == 30
    source, target = (
        [(key, value, timestamp) for key, value, _, timestamp in contents(records[0])]
        for records in (world.source_records(topic), world.target_records(topic))
    )
    assert target == source
    assert world.gaps(topic) == []


def test_a_partition_that_has_lost_its_whole_log_is_noticed_and_no_group_goes_back(
    fragile_world: World, fragile: LocalCluster
) -> None:
    world = fragile_world
    topic = topic_on(world, "gone", [2])
    world.produce(topic, 100, 1)
    world.mirror()
    fragile.stop_broker(2)
    shutil.rmtree(log_directory(fragile, 2, topic))
    fragile.start_broker(2)
    group = world.commit("g", {(topic, 0): 0})

    def place(of: str) -> tuple[str, int | None]:
        world.checkpoint()
        row = world.checkpoints()[of, topic, 0]
        return row["status"], row["downstream_offset"]

    assert place(group) == ("not_mirrored_yet", None)
    assert "it was truncated" in world.checkpoints()[group, topic, 0]["reason"]
    with pytest.raises(SourceError, match="the log ends at offset 0, but the flow has mirrored up to 100:"):
        world.mirror()
    go_on(world)
    assert world.mirror().records == 0
    assert place(group) == ("exact", 100), "nothing of the former log comes again"
    of_former_log = world.commit("h", {(topic, 0): 70})
    assert place(of_former_log) == ("not_mirrored_yet", None)
    world.produce(topic, 30, 1, seed=2)
    assert world.mirror().records == 30
    assert place(of_former_log) == ("not_mirrored_yet", None), "the group has read none of the thirty"
    assert contents(world.target_records(topic)[0])[100:] == contents(world.source_records(topic)[0])
    assert world.gaps(topic) == [(0, 0, 100, "truncated")]
    world.assert_accounted(topic)


def test_logs_in_the_old_message_formats_are_mirrored_and_corrupt_entries_are_noticed(
    fragile_world: World, fragile: LocalCluster
) -> None:
    world = fragile_world
    old, broken, flipped = (topic_on(world, name, [2]) for name in ("old", "broken", "flipped"))
    fragile.stop_broker(2)
    for topic in (old, broken):
        directory = log_directory(fragile, 2, topic)
        entries, offset = b"", 0
        for magic, codec, count in ((0, 0, 3), (0, 1, 5), (1, 0, 4), (1, 2, 6), (1, 1, 200), (0, 2, 7)):
            entries += old_entries(magic, codec, offset, count)
            offset += count
        for file in directory.iterdir():
            if (
                file.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")
                or file.name == "leader-epoch-checkpoint"
            ):
                file.unlink()
        (directory / "00000000000000000000.log").write_bytes(entries)
    for file in directory.parent.glob(".kafka_cleanshutdown"):
        file.unlink()
    fragile.start_broker(2)
    world.produce(old, 50, 1)
    source = world.source_records(old)[0]
    assert len(source) == 275
    world.write_config(topics=old)
    assert world.mirror().records == 275
    target = world.target_records(old)[0]
    # Format v0 has no timestamps: readers are told so there, and get -1 from the format that has them.
    plain = [
        [
            (key, value, headers, stamp if kind != TIMESTAMP_NOT_AVAILABLE else -1)
            for key, value, headers, (kind, stamp) in contents(side)
        ]
        for side in (source, target)
    ]
    assert plain[0] == plain[1]
    world.assert_accounted(old)
    path = log_directory(fragile, 2, broken) / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF  # inside the second entry; the broker serves it as it is
    at = 0
    while struct.unpack_from(">q", data, at)[0] != 17:  # the last offset of a compressed set
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    data[at + 12] ^= 0xFF  # its CRC: a broker opens a compressed set to know where it begins
    path.write_bytes(data)
    plain_copy = {
        "mirrorlake.transforms": "plain",
        "mirrorlake.transform.plain.topics": ".*",
        "mirrorlake.transform.plain.headers": "array()",
    }
    world.write_config(topics=broken, **plain_copy)
    with pytest.raises(SourceError, match=r"Spark can.t read a topic that has a transform: .*broken-0"):
        world.mirror()
    for name in plain_copy:
        del world.properties[name]
    world.write_config()
    with pytest.raises(SourceError, match=rf"topic {broken}, partition 0, offsets 1 to 2: the batch is corrupt .*CRC"):
        world.mirror()
    go_on(world)
    assert world.mirror().records == 218
    assert world.gaps(broken) == [(0, 1, 2, "corrupt"), (0, 12, 18, "corrupt")], "the next set has its last offset, 217"
    for seed in range(3):
        world.produce(flipped, 10, 1, seed=seed)
    path = log_directory(fragile, 2, flipped) / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    at = 0
    while struct.unpack_from(">q", data, at)[0] < 10:
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    data[at + 17] ^= 0xFF  # the CRC of a batch
    path.write_bytes(data)
    world.write_config(topics=f"{old},{broken},{flipped}")
    lost = 30 - world.mirror().records
    assert 0 < lost <= 10
    assert world.gaps(flipped) == [(0, 10, 10 + lost, "corrupt")]
    verified = Verification(world.spark, world.flow, world.ledger, ROOT / "expectations/verification.json").run(
        VerificationScope.parse("full", max_lateness_seconds="99999999")
    )
    verified.require()
    assert {one.topic: (one.status, one.records, one.notes) for one in verified.partitions} == {
        old: ("equal", 275, []),
        broken: ("not_covered", 0, [NotCompared.CORRUPT.value]),
        flipped: ("not_covered", 0, [NotCompared.CORRUPT.value]),
    }
    counts = Counting(world.spark, world.flow, world.ledger, ROOT / "expectations/counts.json").run(CountScope.parse())
    counts.require()
    neutral = {row["topic"]: row["neutral"] for row in world.rows("counts")}
    assert (neutral[old], neutral[flipped]) == (None, NotCompared.CORRUPT.value)


def old_entries(magic: int, codec: int, start: int, count: int) -> bytes:
    """Encodes entries of message format v0 or v1 from an offset on, as old brokers wrote them."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    now = now_ms()
    for number in range(count):
        offset = start + number if magic == 0 or not codec else number  # inner offsets are relative since v1
        builder.append(
            offset,
            now - number if magic else None,
            None if number % 5 == 0 else f"k{number}".encode(),
            None if number % 7 == 3 else f"{magic}/{codec}/{number}".encode(),
        )
    data = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", data, 0, start + count - 1)  # a set has the offset of its last record
    return bytes(data)


def lose_after_failover(world: World, fragile: LocalCluster) -> tuple[str, list[Any], list[Any], World, str, str]:
    """Fails over, lets the old source lose 50 mirrored records and write 80 others, and works on at the target.

    Returns:
        The topic, its records before and after on the old source, the flow back, and two groups: one has read all, the
        other stands among what is lost.
    """
    home = both_ways(world, **IDENTITY, **{"mirrorlake.batch.max.records": "30"})
    accept = "unreadable"  # a broker is away, and with it a part of the groups that nobody knows of
    leave = lambda: failover(world, mode="promote", close="true", accept=accept, signed_by="ann")  # noqa: E731
    topic, before, after = elect_uncleanly(world, fragile, leave)
    home.produce(topic, 20, 1, seed=7)
    target = world.target_records(topic)[0]
    read = world.commit("read", {(topic, 0): target[-1][0] + 1}, target=True)
    slow = world.commit("slow", {(topic, 0): target[120][0]}, target=True)
    return topic, before, after, home, read, slow


def test_an_old_source_that_has_lost_what_was_mirrored_is_refused_until_the_loss_is_accepted(
    fragile_world: World, fragile: LocalCluster
) -> None:
    world = fragile_world
    topic, _, after, home, read, slow = lose_after_failover(world, fragile)
    local = contents(world.target_records(topic)[0])[150:]

    plan = failback(world)
    (lost,) = plan.lost
    assert (lost.from_offset, lost.to_offset, lost.records, lost.kind) == (100, 150, 50, "truncated")
    assert (plan.divergence.records, plan.to_json()["lost"], len(plan.lost_table())) == (80, 50, 1)
    said = "has lost 50 records that were mirrored before the failover, in 1 partitions"
    with pytest.raises(GateError, match=said):
        failback(world, mode="run", signed_by="ann")
    with pytest.raises(ConfigurationError, match=said):
        failback(world, "drop", mode="begin", signed_by="ann")
    with pytest.raises(ConfigurationError, match=r"80 records of cluster .* have diverged"):
        failback(world, lost="accept", mode="begin", signed_by="ann")
    assert world.gaps(topic) == [], "nothing was changed"

    begun = failback(world, "drop", lost="accept", mode="begin", signed_by="ann")
    assert (begun.decided, begun.divergence.records, len(begun.lost), begun.refilled) == ("drop", 80, 1, 0)
    assert {(0, 100, 150, "truncated"), (0, 100, 180, "dropped")} <= {*world.gaps(topic)}
    assert [row["records"] for row in world.rows("anomalies") if row["action"] == "accept, signed by ann"] == [50]
    assert home.mirror().records == 20
    assert failback(world, mode="run", signed_by="ann").reopened > 0
    ours = world.source_records(topic)[0]
    assert contents(ours) == contents(after) + local
    assert consume_as(world.source_servers, read, [topic]) == {(topic, 0): []}
    assert consume_as(world.source_servers, slow, [topic]) == {(topic, 0): [one[1] for one in local]}
    world.produce(topic, 30, 1, seed=9)
    assert world.mirror().records == 30, "the flow goes on"
    world.assert_accounted(topic)


def test_what_an_old_source_has_lost_is_copied_home_once_and_in_order_also_after_a_death_in_the_midst(
    fragile_world: World, fragile: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = fragile_world
    topic, before, after, home, read, slow = lose_after_failover(world, fragile)
    local = contents(world.target_records(topic)[0])[150:]
    mirror = MirrorJob._mirror

    def dies(job: MirrorJob, *given: Any) -> set[int]:
        if home.metric("mirrored_records_total"):  # of some of the lost records
            raise TargetError("the process died")
        return mirror(job, *given)

    with monkeypatch.context() as patched:
        patched.setattr(MirrorJob, "_mirror", dies)
        with pytest.raises(TargetError, match="died"):
            failback(world, "drop", lost="refill", mode="begin", signed_by="ann")
    with pytest.raises(ConfigurationError, match="was failed over"):
        home.mirror()  # it would leave out the rest
    copied = int(home.metric("mirrored_records_total") or 0)
    assert 0 < copied < 50
    begun = failback(world, "drop", lost="refill", mode="begin", signed_by="ann")
    assert begun.refilled == 50 - copied + 20, "the rest of what was lost, and what was written since"
    assert home.mirror().records == 0
    assert failback(world, mode="run", signed_by="ann").reopened > 0
    lost = contents(before)[100:]
    ours = world.source_records(topic)[0]
    assert contents(ours) == contents(after) + lost + local
    assert consume_as(world.source_servers, read, [topic]) == {(topic, 0): []}
    assert consume_as(world.source_servers, slow, [topic]) == {(topic, 0): [one[1] for one in lost[20:] + local]}
    world.produce(topic, 30, 1, seed=9)
    assert world.mirror().records == 30, "what was copied home does not come back"
    world.assert_accounted(topic)
    home.assert_accounted(topic)


def test_a_remote_topic_that_is_deleted_while_a_job_runs_is_created_and_filled_again(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "RETRY_HELD_S", 1.0)
    go_on(plain_world)
    topic, other = plain_world.topic(partitions=1), plain_world.topic("other", partitions=1)
    plain_world.produce(topic, 50, 1)
    plain_world.produce(other, 10, 1)
    remote = plain_world.remote(topic)
    with plain_world.mirroring():
        eventually(lambda: len(plain_world.target_records(topic).get(0, ())) == 50)
        plain_world.target_admin.delete_topics([remote])[remote].result()
        plain_world.produce(topic, 30, 1, seed=1)
        eventually(lambda: len(plain_world.target_records(topic).get(0, ())) == 80, 60)
        plain_world.produce(other, 10, 1, seed=1)
        eventually(lambda: len(plain_world.target_records(other).get(0, ())) == 20)
