"""The mirror job on real brokers: every record arrives once, in order and unchanged."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.jobs.mirror.copy import fetcher, pace
from mirrorlake.jobs.mirror.observation import holdups
from mirrorlake.jobs.mirror.planning import uncommitted
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.spark.timing import STAGES

from tests.world import (
    CODECS,
    World,
    configure,
    eventually,
    read_committed,
    transactional_producer,
    write_in_transaction,
)


def test_every_record_arrives_once_and_unchanged_with_every_codec_and_through_transactions(spark_world: World) -> None:
    plain, transactional = spark_world.topic("plain", 3), spark_world.topic("transactional", 2)
    for number, codec in enumerate(CODECS):
        spark_world.produce(plain, 400, 3, codec, seed=number)
    spark_world.produce_transactions(transactional, 30, 20, seed=7)
    result = spark_world.mirror()
    records = spark_world.assert_equal(plain, transactional)
    assert result.records == records
    assert result.lag == 0
    spark_world.assert_nothing_open()


def test_a_second_run_copies_only_what_is_new(plain_world: World) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 500, seed=1)
    assert plain_world.mirror().records == 500
    assert plain_world.mirror().records == 0
    plain_world.produce(topic, 300, seed=2)
    assert plain_world.mirror().records == 300
    assert plain_world.assert_equal(topic) == 800


def test_what_is_mirrored_is_logged_and_counted(plain_world: World) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 300)
    began, result = time.time(), plain_world.mirror()
    metric = plain_world.metric
    assert (metric("mirrored_records_total"), metric("mirrored_bytes_total")) == (300, result.bytes)
    assert (metric("micro_batches_total"), metric("generation"), metric("lag_records")) == (result.batches, 1, 0)
    assert began < (metric("last_commit_timestamp_seconds") or 0) < time.time()
    stages = {name: metric("micro_batch_stage_seconds_count", stage=name) for name in STAGES}
    assert stages == dict.fromkeys(STAGES, result.batches)
    evaluated = (metric(f"gate_{name}_total", suite="offset_syncs") for name in ("evaluations", "failures"))
    assert [*evaluated] == [result.batches, 0]
    assert (metric("held_topics"), metric("ledger_appends_total")) == (0, 0), "there is no ledger in Delta"
    committed = [line for line in plain_world.lines if line.startswith("INFO micro_batch_committed ")]
    assert len(committed) == result.batches
    assert f" flow={plain_world.flow_name} generation=1 batch=" in committed[-1]
    assert " lag=0 plan_s=" in committed[-1]
    assert f"INFO generation_opened flow={plain_world.flow_name} generation=1 slots=2 " in "".join(plain_world.lines)


def test_a_backlog_is_copied_in_many_bounded_micro_batches_and_a_short_job_appends_once(spark_world: World) -> None:
    topic = spark_world.topic()
    spark_world.produce(topic, 3_000)
    spark_world.write_config(mirrorlake_batch_max_records="500", mirrorlake_ledger_interval_seconds="600")
    result = spark_world.mirror()
    assert result.batches >= 5
    spark_world.assert_equal(topic)
    runs, _ = spark_world.ledger_map(topic)
    assert (spark_world.metric("ledger_runs_total"), spark_world.metric("ledger_lag_runs")) == (len(runs), 0)
    assert spark_world.metric("ledger_appends_total") == 1


@pytest.mark.parametrize("interval_s", [None, 0.2], ids=["drained", "continuous"])
def test_an_open_transaction_on_the_source_is_waited_for_and_after_a_while_named(
    plain_world: World, interval_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdups, "LONG_MS", 1_000)
    monkeypatch.setattr(uncommitted, "LOOK_S", 0.5)
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 100, 1)
    transactional_id = f"{topic}-open"
    producer = transactional_producer(plain_world.source_servers, transactional_id)
    write_in_transaction(producer, topic)
    plain_world.produce(topic, 50, 1, seed=2)
    opened = time.monotonic()
    if interval_s is None:
        eventually(lambda: time.monotonic() > opened + 1)
        assert plain_world.mirror().records == 100
    else:
        with plain_world.mirroring(interval_s):
            eventually(lambda: plain_world.rows("anomalies"))
    assert plain_world.metric("uncommitted_records") == 51
    assert plain_world.metric("lag_records") == 0
    assert (plain_world.metric("open_transaction_age_seconds") or 0) >= 1
    (row,) = plain_world.rows("anomalies")
    assert (row["kind"], row["topic"], row["partition"], row["from_offset"]) == ("open_transaction", topic, 0, 100)
    assert f"a transaction of transactional.id {transactional_id}, producer id " in row["detail"]
    producer.commit_transaction(30)
    assert plain_world.mirror().records == 51
    assert plain_world.metric("uncommitted_records") == plain_world.metric("open_transaction_age_seconds") == 0
    plain_world.assert_equal(topic)


def test_a_topic_whose_remote_name_is_too_long_holds_back_only_itself(plain_world: World) -> None:
    fits, long = plain_world.topic("fits", 1), plain_world.topic("x" * (249 - len(plain_world.alias) - 1), 1)
    for topic in (fits, long):
        plain_world.produce(topic, 20, 1)
    assert plain_world.mirror().records == 20
    plain_world.assert_equal(fits)
    (row,) = plain_world.rows("anomalies")
    assert (row["kind"], row["topic"]) == ("held", long)
    assert "not a valid topic name" in row["detail"]
    assert plain_world.metric("held_topics") == 1
    group = plain_world.commit("g", {(fits, 0): 5, (long, 0): 7})
    plain_world.checkpoint()
    assert plain_world.committed(group) == {(plain_world.remote(fits), 0): (5, "")}


def test_new_topics_and_new_partitions_are_followed_while_it_runs(spark_world: World) -> None:
    first = spark_world.topic("first", 1)
    spark_world.produce(first, 100, 1)
    with spark_world.mirroring():
        eventually(lambda: len(spark_world.target_records(first)[0]) == 100)
        second = spark_world.topic("second", 2)
        spark_world.produce(second, 200, 2)
        spark_world.source_admin.create_partitions([NewPartitions(first, 3)])[first].result()
        eventually(lambda: len(spark_world.source_admin.list_topics(first, timeout=5).topics[first].partitions) == 3)
        spark_world.produce(first, 200, 3, seed=3)
        eventually(
            lambda: (
                sum(map(len, spark_world.target_records(first).values())) == 300
                and sum(map(len, spark_world.target_records(second).values())) == 200
            )
        )
    assert len(spark_world.target_records(first)) == 3
    spark_world.assert_equal(first, second)


def test_empty_topics_are_created_with_the_partitions_of_the_source(plain_world: World) -> None:
    topic = plain_world.topic("empty", 5)
    plain_world.mirror()
    assert len(plain_world.target_admin.list_topics(timeout=10).topics[plain_world.remote(topic)].partitions) == 5


def test_internal_and_excluded_topics_are_not_mirrored(plain_world: World) -> None:
    kept, excluded = plain_world.topic("kept", 1), plain_world.topic("skip-me", 1)
    plain_world.write_config(**{"topics.exclude": ".*skip.*, __.*"})
    plain_world.produce(kept, 10, 1)
    plain_world.produce(excluded, 10, 1)
    plain_world.mirror()
    remote = {
        name
        for name in plain_world.target_admin.list_topics(timeout=10).topics
        if name.startswith(f"{plain_world.alias}.")
    }
    assert remote == {plain_world.remote(kept)}


def test_identity_policy_keeps_the_names(plain_world: World) -> None:
    topic = plain_world.topic("same", 2)
    plain_world.write_config(
        **{"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
    )
    plain_world.produce(topic, 200)
    plain_world.mirror()
    source, target = plain_world.source_records(topic), read_committed(plain_world.target_servers, topic)
    assert {partition: [record for _, record in records] for partition, records in source.items()} == {
        partition: [record for _, record in records] for partition, records in target.items()
    }


def test_a_compacted_log_with_holes_and_transactions_arrives_record_by_record(plain_world: World) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topic = plain_world.topic("compacted", 1, compacted)
    producer = Producer(
        {"bootstrap.servers": plain_world.source_servers, "linger.ms": 5, "compression.type": "zstd", "log_level": 0}
    )
    transactional = Producer(
        {
            "bootstrap.servers": plain_world.source_servers,
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
        for number in range(200):  # every third record survives, so that the log has holes
            key = f"key-{number}" if number % 3 == 0 else "again and again"
            producer.produce(topic, f"value-{number}".encode() if number % 10 else None, key.encode(), partition=0)
        assert producer.flush(30) == 0
        offsets = [offset for offset, _ in plain_world.source_records(topic)[0]]
        return len(offsets) < (offsets[-1] - offsets[0]) / 2  # holes: the cleaner has been here

    eventually(is_compacted, 300, "compaction")
    configure(plain_world, topic, {"cleanup.policy": "delete"})
    with pytest.raises(
        SourceError, match="hole although the topic isn't compacted"
    ):  # the topic is not compacted: the records are lost
        plain_world.mirror()
    assert plain_world.target_records(topic) == {0: []}
    configure(
        plain_world,
        topic,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1",
            "min.compaction.lag.ms": "3600000",
            "max.compaction.lag.ms": "7200000",
        },
    )
    source = plain_world.source_records(topic)
    plain_world.mirror()
    assert plain_world.source_records(topic) == source, "the cleaner still runs"
    assert plain_world.assert_equal(topic) == len(source[0])
    assert plain_world.mirror().records == 0


def test_records_that_the_source_has_stamped_arrive_with_its_time(plain_world: World) -> None:
    topic = plain_world.topic("stamped", 2, {"message.timestamp.type": "LogAppendTime"})
    for seed, codec in enumerate(CODECS):
        plain_world.produce(topic, 60, codec=codec, seed=seed)
    assert plain_world.mirror().records == 300
    source, target = plain_world.source_records(topic), plain_world.target_records(topic)
    for partition, records in source.items():
        assert [(key, value, headers, time_ms) for _, (key, value, headers, (_, time_ms)) in records] == [
            (key, value, headers, time_ms) for _, (key, value, headers, (_, time_ms)) in target[partition]
        ]


def test_small_batches_are_merged_and_their_records_arrive_unchanged_with_an_exact_map(plain_world: World) -> None:
    plain, transactional = plain_world.topic("plain", 2), plain_world.topic("transactional", 1)
    alone = {"batch.num.messages": 1, "linger.ms": 0}
    for number, codec in enumerate(CODECS):
        plain_world.produce(plain, 120, 2, codec, seed=number, **alone)
    plain_world.produce(plain, 3_000, 2, "zstd", seed=8, **{"batch.num.messages": 1_500, "linger.ms": 200})
    plain_world.produce(plain, 20, 2, "lz4", size=40_000, seed=9, **alone)
    plain_world.produce(plain, 120, 2, "lz4", seed=10, **alone)
    plain_world.produce_transactions(transactional, 40, 2, 1, seed=11)
    plain_world.write_config(**{"mirrorlake.slots": "1", "sync.topic.configs.enabled": "false"})
    plain_world.mirror()
    plain_world.assert_equal(plain, transactional)
    assert count_batches(plain_world, plain) < 60, "of more than 750"

    # The remote topic allows less than a merged batch from now on.
    configure(plain_world, plain_world.remote(plain), {"max.message.bytes": "3000"}, target=True)
    plain_world.produce(plain, 300, 2, "lz4", seed=12, **alone)
    plain_world.mirror()
    plain_world.assert_equal(plain, transactional)
    assert count_batches(plain_world, plain) < 160


def count_batches(world: World, topic: str) -> int:
    """Counts the data batches of a remote topic."""
    target, remote = Cluster(world.flow.target_connection, "target", "test").connect(), world.remote(topic)
    try:
        keys = [(remote, partition) for partition in range(target.refresh([remote], 30_000)[remote].partitions)]
        ends = target.offsets(keys, LATEST_TIMESTAMP, 30_000)

        async def count(key: tuple[str, int]) -> int:
            log = read_stretch(target, key, start=0, end=ends[key], max_bytes=1 << 20)
            return sum([not batch.is_control async for batch, _ in log])

        return sum(target.net.run(lambda key=key: count(key)) for key in keys)
    finally:
        target.close()


def test_a_lost_state_on_the_target_stops_the_flow(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 10, 1)
    plain_world.mirror()
    syncs = plain_world.flow.offset_syncs_topic
    plain_world.target_admin.delete_topics([syncs])[syncs].result()
    eventually(lambda: syncs not in plain_world.target_admin.list_topics(timeout=5).topics)
    with pytest.raises(TargetError, match=r"partition 0 on cluster t holds records already, but .* has no position"):
        plain_world.mirror()


def test_a_clock_that_jumps_by_a_day_delays_nothing(plain_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, clock, jump_s = plain_world.topic(partitions=1), time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + jump_s[0])
    with plain_world.mirroring():
        for number, jump_s[0] in enumerate((0.0, 86_400.0, -86_400.0), 1):
            plain_world.produce(topic, 20, 1, seed=number)
            eventually(lambda count=20 * number: len(plain_world.target_records(topic).get(0, ())) == count, 30)
    plain_world.assert_equal(topic)


def test_all_partitions_of_a_backlog_advance_together(plain_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FETCH_BYTES", 400_000)  # two partitions fill a response
    monkeypatch.setattr(fetcher, "PARTITION_FETCH_BYTES", 200_000)
    plain_world.write_config(**{"mirrorlake.slots": "1", "mirrorlake.batch.max.bytes": "3000000"})
    topics = {plain_world.topic(f"backlog-{number}", 1) for number in range(8)}
    for topic in topics:
        plain_world.produce(topic, 6_000, 1, codec="none", size=200)
    plain_world.mirror()
    ((_, states),) = (
        (partition, found)
        for partition, found in read_committed(plain_world.target_servers, plain_world.flow.offset_syncs_topic).items()
        if found
    )
    turns = [{run.topic for run in SlotState.from_json(value).runs} for _, (_, value, _, _) in states]
    first = next(copied for copied in turns if copied)
    assert sum(map(bool, turns)) > 2, "the backlog takes several transactions"
    assert first == topics, "each topic has its turn before another one is drained"
