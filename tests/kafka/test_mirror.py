"""The mirror job on real brokers: everything arrives once, in order, as it was."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from mirrorlake.errors import SourceError, TargetError

from tests.world import CODECS, World, configure, eventually, read_committed


def test_every_record_arrives_once_and_unchanged_with_every_codec_and_through_transactions(world: World) -> None:
    plain, transactional = world.topic("plain", 3), world.topic("transactional", 2)
    for number, codec in enumerate(CODECS):
        world.produce(plain, 400, 3, codec, seed=number)
    world.produce_transactions(transactional, 30, 20, seed=7)
    result = world.mirror()
    records = world.assert_equal(plain, transactional)
    assert result.records == records
    assert result.lag == 0
    world.assert_nothing_open()


def test_a_second_run_copies_only_what_is_new(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 500, seed=1)
    assert world.mirror().records == 500
    assert world.mirror().records == 0
    world.produce(topic, 300, seed=2)
    assert world.mirror().records == 300
    assert world.assert_equal(topic) == 800


def test_a_backlog_is_copied_in_many_bounded_micro_batches(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 3_000)
    world.write_config(mirrorlake_batch_max_records="500")
    result = world.mirror()
    assert result.batches >= 5
    world.assert_equal(topic)


def test_an_open_transaction_on_the_source_is_waited_for_and_not_copied(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    producer = Producer({"bootstrap.servers": world.source_servers, "transactional.id": f"{topic}-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=0)
    producer.flush(30)
    world.produce(topic, 50, 1, seed=2)
    assert world.mirror().records == 100
    producer.commit_transaction(30)
    assert world.mirror().records == 51
    world.assert_equal(topic)


def test_new_topics_and_new_partitions_are_followed_while_it_runs(world: World) -> None:
    first = world.topic("first", 1)
    world.produce(first, 100, 1)
    job = threading.Thread(target=world.mirror, kwargs={"interval_s": 0.2, "run_for_s": 30})
    job.start()
    eventually(lambda: len(world.target_records(first)[0]) == 100)
    second = world.topic("second", 2)
    world.produce(second, 200, 2)
    world.source_admin.create_partitions([NewPartitions(first, 3)])[first].result()
    eventually(lambda: len(world.source_admin.list_topics(first, timeout=5).topics[first].partitions) == 3)
    world.produce(first, 200, 3, seed=3)
    eventually(
        lambda: (
            sum(map(len, world.target_records(first).values())) == 300
            and sum(map(len, world.target_records(second).values())) == 200
        )
    )
    job.join()
    assert len(world.target_records(first)) == 3
    world.assert_equal(first, second)


def test_empty_topics_are_created_with_the_partitions_of_the_source(world: World) -> None:
    topic = world.topic("empty", 5)
    world.mirror()
    assert len(world.target_admin.list_topics(timeout=10).topics[world.remote(topic)].partitions) == 5


def test_internal_and_excluded_topics_are_not_mirrored(world: World) -> None:
    kept, excluded = world.topic("kept", 1), world.topic("skip-me", 1)
    world.write_config(**{"topics.exclude": ".*skip.*, __.*"})
    world.produce(kept, 10, 1)
    world.produce(excluded, 10, 1)
    world.mirror()
    remote = {name for name in world.target_admin.list_topics(timeout=10).topics if name.startswith(f"{world.alias}.")}
    assert remote == {world.remote(kept)}


def test_identity_policy_keeps_the_names(world: World) -> None:
    topic = world.topic("same", 2)
    world.write_config(**{"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"})
    world.produce(topic, 200)
    world.mirror()
    source, target = world.source_records(topic), read_committed(world.target_servers, topic)
    assert {partition: [record for _, record in records] for partition, records in source.items()} == {
        partition: [record for _, record in records] for partition, records in target.items()
    }


def test_a_compacted_log_with_holes_and_transactions_arrives_record_by_record(world: World) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topic = world.topic("compacted", 1, compacted)
    producer = Producer(
        {"bootstrap.servers": world.source_servers, "linger.ms": 5, "compression.type": "zstd", "log_level": 0}
    )
    transactional = Producer(
        {
            "bootstrap.servers": world.source_servers,
            "transactional.id": topic,
            "linger.ms": 5,
            "compression.type": "snappy",
            "log_level": 0,
        }
    )
    transactional.init_transactions(30)

    def is_compacted() -> bool:
        for at in range(4):
            transactional.begin_transaction()
            for number in range(50):
                transactional.produce(
                    topic,
                    f"{at}-{number}".encode(),
                    f"key-{number % 7}".encode(),
                    partition=0,
                    headers=[("h", None), ("h", b"\0")],
                )
            transactional.flush(30)
            transactional.commit_transaction(30) if at % 2 else transactional.abort_transaction(30)
        for number in range(200):  # every third record survives, so that what is left has holes
            key = f"key-{number}" if number % 3 == 0 else "again and again"
            producer.produce(topic, f"value-{number}".encode() if number % 10 else None, key.encode(), partition=0)
        assert producer.flush(30) == 0
        offsets = [offset for offset, _ in world.source_records(topic)[0]]
        return len(offsets) < (offsets[-1] - offsets[0]) / 2  # holes: the cleaner has been here

    eventually(is_compacted, 300, "compaction")
    configure(world, topic, {"cleanup.policy": "delete"})
    with pytest.raises(
        SourceError, match="hole although the topic isn't compacted"
    ):  # compaction explains nothing here: records are gone
        world.mirror()
    assert world.target_records(topic) == {0: []}
    configure(
        world,
        topic,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1",
            "min.compaction.lag.ms": "3600000",
            "max.compaction.lag.ms": "7200000",
        },
    )
    source = world.source_records(topic)
    world.mirror()
    assert world.source_records(topic) == source, "the cleaner still runs"
    assert world.assert_equal(topic) == len(source[0])
    assert world.mirror().records == 0


def test_records_that_the_source_has_stamped_arrive_with_its_time(world: World) -> None:
    topic = world.topic("stamped", 2, {"message.timestamp.type": "LogAppendTime"})
    for seed, codec in enumerate(CODECS):
        world.produce(topic, 60, codec=codec, seed=seed)
    assert world.mirror().records == 300
    source, target = world.source_records(topic), world.target_records(topic)
    for partition, records in source.items():
        assert [(key, value, headers, time_ms) for _, (key, value, headers, (_, time_ms)) in records] == [
            (key, value, headers, time_ms) for _, (key, value, headers, (_, time_ms)) in target[partition]
        ]


def test_a_lost_state_on_the_target_stops_the_flow(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 10, 1)
    world.mirror()
    syncs = world.flow.offset_syncs_topic
    world.target_admin.delete_topics([syncs])[syncs].result()
    eventually(lambda: syncs not in world.target_admin.list_topics(timeout=5).topics)
    with pytest.raises(TargetError, match=r"partition 0 on cluster t holds records already, but .* has no position"):
        world.mirror()
