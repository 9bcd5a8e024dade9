"""The lag of each partition: measured apart from any group, true in the face of what logs and clocks do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from mirrorlake.jobs.mirror.lag_meter import LagMeter, measure
from mirrorlake.model.partition_lag import FlowLag, PartitionLag

from tests.world import World, eventually, transactional_producer, write_in_transaction

HOUR_MS = 3_600_000


def lags(found: FlowLag) -> dict[tuple[str, int], PartitionLag]:
    return {(one.topic, one.partition): one for one in found.partitions}


def send(world: World, topic: str, timestamp_ms: int, count: int = 1) -> None:
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, f"{number}", partition=0, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def test_the_lag_is_measured_in_records_and_seconds_whatever_the_timestamps_say(plain_world: World) -> None:
    world, now_ms = plain_world, int(1000 * time.time())
    slow, idle, future, old = (world.topic(name, 1) for name in ("slow", "idle", "future", "old"))
    for topic in (slow, idle, future, old):
        send(world, topic, now_ms)
    begun = lags(measure(world.flow))
    assert {(one.state, one.upstream_next, one.lag) for one in begun.values()} == {("not_begun", None, 1)}
    world.mirror()
    assert {(one.state, one.lag, one.lag_seconds) for one in lags(measure(world.flow)).values()} == {
        ("mirroring", 0, 0.0)
    }
    meter = LagMeter(world.flow)
    caught_up = meter.measure()
    assert caught_up.is_caught_up
    assert caught_up.records == caught_up.seconds == 0
    send(world, slow, now_ms - HOUR_MS, 3)
    send(world, future, now_ms + HOUR_MS, 2)
    send(world, old, 1, 2)
    alone = lags(measure(world.flow))
    assert 3600 <= (alone[slow, 0].lag_seconds or 0) < 3700, "by the timestamp, as nothing else is known"
    assert alone[slow, 0].oldest_at is not None
    assert (alone[future, 0].lag, alone[future, 0].oldest_at, alone[future, 0].lag_seconds) == (2, None, None)
    assert (alone[old, 0].lag_seconds or 0) > 1e9
    seen = lags(meter.measure())
    assert seen[slow, 0].lag == 3
    for topic in (slow, future, old):
        assert (seen[topic, 0].lag_seconds or 0) < 60, "the log was seen to end at the position just now"
    assert seen[idle, 0].lag_seconds == 0
    later = lags(eventually_older(meter, (future, 0), 1.0))
    assert later[future, 0].lag_seconds is not None
    meter.close()


def eventually_older(meter: LagMeter, key: tuple[str, int], age_s: float) -> FlowLag:
    """Measures until the record is known to have waited for that long, though its timestamp is in the future."""
    found: list[FlowLag] = []

    def is_older() -> bool:
        found[:] = [meter.measure()]
        return (lags(found[0])[key].lag_seconds or 0) >= age_s

    eventually(is_older)
    return found[0]


def test_offsets_without_records_open_transactions_and_topics_that_rest_are_told_apart(plain_world: World) -> None:
    world, now_ms = plain_world, int(1000 * time.time())
    topic, resting = world.topic("orders", 1), world.topic("resting", 1)
    send(world, topic, now_ms)
    send(world, resting, now_ms)
    world.mirror()
    world.write_config(mirrorlake_topics_paused=resting)
    send(world, resting, now_ms, 5)
    producer = transactional_producer(world.source_servers, f"{topic}-open")
    write_in_transaction(producer, topic)
    producer.abort_transaction(30)
    eventually(lambda: lags(measure(world.flow))[topic, 0].lag == 2, what="an aborted record and its marker")
    found = measure(world.flow)
    tail, rest = lags(found)[topic, 0], lags(found)[resting, 0]
    assert (tail.lag, tail.oldest_at, tail.lag_seconds) == (2, None, 0.0), "no record waits"
    assert (rest.state, rest.lag) == ("paused", 5)
    write_in_transaction(producer, topic)
    waiting = lags(measure(world.flow))[topic, 0]
    assert (waiting.lag, waiting.uncommitted) == (2, 1)
    producer.commit_transaction(30)
    world.mirror()
    done = measure(world.flow)
    assert lags(done)[topic, 0].lag == 0
    assert done.is_caught_up, "a topic that rests does not count"
    assert done.worst()[0].topic == resting


def test_a_job_keeps_measuring_and_its_last_row_says_that_none_follows(plain_world: World) -> None:
    world = plain_world
    topic = world.topic("orders", 2)
    world.produce(topic, 50)
    world.write_config(mirrorlake_lag_interval_seconds="1")
    with world.mirroring():
        measured = eventually(lambda: world.metric("lag_measured_timestamp_seconds"), what="a measurement")
        assert measured == pytest.approx(time.time(), abs=30)
        eventually(lambda: world.batches == 1, what="the first records' commit")
        world.produce(topic, 20, seed=2)
        eventually(lambda: world.batches == 2)
        before = world.metric("lag_measured_timestamp_seconds")
        eventually(lambda: world.metric("lag_measured_timestamp_seconds") != before, what="another measurement")
    rows: list[dict[str, Any]] = world.rows("lag_samples")
    assert len(rows) >= 2
    assert [row["records"] for row in rows][-1] == 0
    assert all(row["due_at"] > row["measured_at"] for row in rows[:-1])
    assert rows[-1]["due_at"] == rows[-1]["measured_at"], "the job has ended, so the figures are stale"
    ends = {(one["partition"], one["upstream_next"]) for one in rows[-1]["partitions"]}
    assert sum(end for _, end in ends) >= 70
