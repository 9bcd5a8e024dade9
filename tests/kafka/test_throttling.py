"""Quotas: a cluster that throttles its clients slows the mirror down, and stops nothing.

`make bench-quota` measures the share of the quota that is used.
"""

from __future__ import annotations

import time
from contextlib import closing
from statistics import median

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import ConfigurationError
from mirrorlake.gate import Gate
from mirrorlake.jobs.mirror.planning.linger import BATCH_RECORDS
from mirrorlake.local.quota import quota
from mirrorlake.protocol.cluster import Cluster

from tests.world import ROOT, World, eventually

MB = 1_000_000
QUOTA_BYTES_PER_S = 2.5 * MB
RECORDS = 12_000


@pytest.mark.parametrize(("side", "name"), [("target", "producer_byte_rate"), ("source", "consumer_byte_rate")])
def test_a_throttled_backlog_arrives_without_an_attempt_in_vain(plain_world: World, side: str, name: str) -> None:
    plain_world.write_config(**{"mirrorlake.transaction.timeout.ms": "60000"})
    topic = plain_world.topic()
    plain_world.produce(topic, RECORDS, codec="none", size=1_900)
    Gate(ROOT / "expectations/offset_syncs.json")  # loads what takes seconds
    flow = plain_world.flow
    connection = flow.target_connection if side == "target" else flow.source_connection
    with (
        closing(Cluster(connection, side, "tests").connect()) as cluster,
        quota(cluster, f"{flow.name}|copy", name, QUOTA_BYTES_PER_S),
    ):
        began = time.monotonic()
        result = plain_world.mirror()
        seconds = time.monotonic() - began
    assert result.records == RECORDS

    assert result.bytes > 20 * MB
    assert result.bytes / seconds < 1.5 * QUOTA_BYTES_PER_S, "the quota was in force"
    for kind in ("SourceError", "TargetError"):
        assert not plain_world.metric("retries_total", kind=kind)
    plain_world.assert_equal(topic)
    plain_world.assert_nothing_open()
    throttled_s = plain_world.metric("throttled_seconds_total", cluster=side)
    assert throttled_s is not None
    assert 1 < throttled_s <= seconds, "a share of the time, whatever the number of slots and connections"


def test_a_rate_is_kept_and_changed_while_it_runs_and_a_backfill_gives_way_to_other_topics(plain_world: World) -> None:
    world, slow, fast = plain_world, 0.5 * MB, 3 * MB
    world.write_config(
        **{
            "mirrorlake.backfill.topics": f"{world.alias}-bulk",
            "mirrorlake.backfill.max.bytes.per.second": str(int(slow)),
            "mirrorlake.slots": "1",
        }
    )
    bulk, live = world.topic("bulk"), world.topic("live")
    world.produce(bulk, RECORDS, codec="none", size=1_900)

    def mirrored() -> float:
        return world.metric("mirrored_bytes_total") or 0.0

    with world.mirroring():
        eventually(mirrored, what="the first micro-batch")
        began, before = time.monotonic(), mirrored()
        eventually(lambda: mirrored() > before + 3 * slow, what="three seconds of the backfill")
        assert mirrored() - before < 1.5 * slow * (time.monotonic() - began + 1), "the rate of the backfill"
        world.produce(live, 500)
        eventually(lambda: sum(map(len, world.target_records(live).values())) == 500, what="the live topic")
        assert world.metric("lag_records"), "the backfill goes on"
        began, before = time.monotonic(), mirrored()
        world.write_config(
            **{"mirrorlake.backfill.max.bytes.per.second": "0", "mirrorlake.max.bytes.per.second": str(int(fast))}
        )
        eventually(lambda: any("max_bytes_per_s now in effect" in line for line in world.lines), what="the new rates")
        eventually(lambda: world.metric("lag_records") == 0, what="the rest")
        assert mirrored() - before > 2 * fast, "so much was left that the rate shows"
        assert mirrored() - before < 1.5 * fast * (time.monotonic() - began + 1), "the rate of the flow"
    world.assert_equal(bulk, live)


def test_a_slot_with_a_backlog_holds_up_new_records_of_others_for_a_short_time_only(plain_world: World) -> None:
    world, batch_s, rate = plain_world, 6.0, MB
    limits = {"mirrorlake.batch.max.ms": str(int(1000 * batch_s)), "mirrorlake.slots": "2"}
    world.write_config(**limits, **{"mirrorlake.max.bytes.per.second": str(int(rate))})
    backlog, live = world.topic("a", partitions=1), world.topic("b", partitions=1)
    world.produce(backlog, 2 * RECORDS, partitions=1, codec="none", size=1_900)
    with world.mirroring() as running:
        eventually(lambda: world.batches, what="the first micro-batch")
        for expected in range(100, 500, 100):
            world.produce(live, 100, partitions=1, seed=expected)
            eventually(lambda there=expected: len(world.target_records(live).get(0, ())) == there, what="new records")
        assert world.metric("lag_records"), "the backlog goes on"
    history = running.result().history
    assert history[0].seconds > batch_s, "alone, it has all of its time"
    first = next(number for number, done in enumerate(history) if done.partitions == 2)
    shortened_s = median(done.seconds for done in history[first:])
    assert shortened_s < batch_s / 2, "others have records, or had a moment ago"
    world.write_config(**limits, **{"mirrorlake.max.bytes.per.second": "0"})
    world.mirror()
    world.assert_equal(backlog, live)


def test_partitions_with_few_records_wait_but_others_and_a_run_with_an_end_do_not(plain_world: World) -> None:
    world, few = plain_world, 6
    world.write_config(**{"mirrorlake.linger.ms": "60000", "mirrorlake.slots": "1"})
    topic = world.topic(partitions=few + 1)
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})

    def put(topic: str, partition: int, records: int) -> None:
        for _ in range(records):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(30) == 0

    def arrived() -> int:
        return sum(map(len, world.target_records(topic).values()))

    for partition in range(few + 1):
        put(topic, partition, 1)
    with world.mirroring():
        eventually(lambda: arrived() == few + 1, what="what was there when the job started")
        for partition in range(few):
            put(topic, partition, 1)
        eventually(lambda: world.metric("lag_records") == few, what="the lag of those that wait")
        before = world.batches
        put(topic, few, BATCH_RECORDS)
        eventually(lambda: len(world.target_records(topic)[few]) == 1 + BATCH_RECORDS, what="a batch's worth")
        assert arrived() == few + 1 + BATCH_RECORDS, "the others wait"
        assert world.metric("lag_records") == few
    assert world.batches - before <= 2
    assert world.mirror().records == few
    put(topic, 1, 1)
    there = arrived() + 1
    with world.mirroring():
        eventually(lambda: arrived() == there, what="the first plan, from which on records wait")
        put(topic, 0, 1)
        eventually(lambda: world.metric("lag_records") == 1, what="one that waits")
        world.write_config(**{"mirrorlake.linger.ms": "0"})
        eventually(lambda: any("linger_ms now in effect" in line for line in world.lines), what="the new time")
        eventually(lambda: world.metric("lag_records") == 0, what="the end of waiting")
    assert world.assert_equal(topic) == 2 * few + 3 + BATCH_RECORDS


def test_a_rate_is_refused_only_for_slots_that_can_have_work(plain_world: World) -> None:
    """At the retry timeout of these tests, a slot needs 17,477 bytes per second."""
    topic = plain_world.topic(partitions=1)
    plain_world.write_config(**{"mirrorlake.slots": "4", "mirrorlake.max.bytes.per.second": "20000"})
    plain_world.produce(topic, 10, 1)
    job = plain_world.mirror_job()
    assert job.run(None).records == 10
    assert job._live.slots == 1, "for rates that change while the job runs"
    plain_world.topic("others", partitions=3)
    with pytest.raises(ConfigurationError, match=r"too little for 4 slots: .* at least 69906"):
        plain_world.mirror()
