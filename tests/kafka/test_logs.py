"""What a verification reads of a flow's logs, on real brokers: late records, and records that retention is to keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from mirrorlake.jobs.failover.plan import ALIVE, Choice
from mirrorlake.jobs.failover.snapshot import connected
from mirrorlake.jobs.verification.logs import FlowLogs
from mirrorlake.state import backlog

from tests.moving import IDENTITY, both_ways, failback, failover
from tests.world import DEADLINE_S, World, eventually, now_ms

HOUR_MS = 3_600_000


@contextmanager
def logs_of(world: World) -> Iterator[FlowLogs]:
    with connected(world.flow, Choice(source=ALIVE)) as (target, source):
        assert source is not None
        yield FlowLogs(world.spark, world.flow, source, target)


def write(world: World, topic: str, records: int, age_ms: int = 2 * HOUR_MS, *, aborted: bool = False) -> None:
    """Writes records to partition 0, or aborts a transaction of them."""
    settings = {"transactional.id": topic} if aborted else {}
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0, **settings})
    if aborted:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, f"v{number}", f"k{number}", partition=0, timestamp=now_ms() - age_ms)
    assert producer.flush(DEADLINE_S) == 0
    if aborted:
        producer.abort_transaction(DEADLINE_S)


def test_records_of_a_topic_created_anew_are_late_by_their_own_log_and_until_it_is_mirrored(plain_world: World) -> None:
    world = plain_world
    world.write_config(**{"mirrorlake.on.loss": "continue"})
    topic = world.topic(partitions=1)
    write(world, topic, 100)
    world.mirror()
    world.source_admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in world.source_admin.list_topics(timeout=5).topics)
    world.topic(partitions=1)
    write(world, topic, 3)
    with logs_of(world) as logs:
        late = logs.late(now_ms() - HOUR_MS, lambda _: True)
        assert {key: (one.start, one.records) for key, one in late.items()} == {(topic, 0): (0, 3)}
        assert logs.still_late(late) == late, "the position in the former log is no progress"
        assert logs.late(now_ms() - 3 * HOUR_MS, lambda _: True) == {}, "not that late"
        world.mirror()
        assert logs.still_late(late) == {}


def test_records_of_a_topic_created_anew_came_from_nobody_though_a_flow_back_had_written_at_their_offsets(
    world: World,
) -> None:
    home = both_ways(world, **IDENTITY, **{"mirrorlake.on.loss": "continue"})
    topic = world.topic(partitions=1)
    write(world, topic, 1)
    world.mirror()
    home.produce(topic, 10, 1)
    home.mirror()
    with logs_of(world) as logs:
        assert logs.source_fingerprints({(topic, 0): (0, 11)}).filter("left_out").count() == 10
    world.source_admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in world.source_admin.list_topics(timeout=5).topics)
    world.topic(partitions=1)
    assert failover(world, mode="promote", signed_by="ann", close="true").generation > 0
    write(world, topic, 6)
    with logs_of(world) as logs:
        assert logs.source_fingerprints({(topic, 0): (0, 6)}).filter("left_out").count() == 0
    assert failback(world).divergence.records == 6


def test_a_long_backlog_is_as_late_as_its_first_record_wherever_that_is(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    write(world, topic, 10)
    world.mirror()
    write(world, topic, 10, aborted=True)
    write(world, topic, 20)
    with logs_of(world) as logs:
        monkeypatch.setattr(backlog, "EXACT_OFFSETS", 5)
        late = logs.late(now_ms() - HOUR_MS, lambda _: True)
    assert {key: one.start for key, one in late.items()} == {(topic, 0): 10}, "offset 10 is of an aborted record"


def test_a_compacted_topic_keeps_records_of_any_age_and_others_as_long_as_their_retention(world: World) -> None:
    policies = {"compact": 6, "compact,delete": 1, "delete": 1}
    topics = {
        world.topic(policy.replace(",", "-"), 1, {"cleanup.policy": policy, "retention.ms": "3600000"}): kept
        for policy, kept in policies.items()
    }
    for topic in topics:
        write(world, topic, 5)
        write(world, topic, 1, age_ms=0)  # in the same segment, which retention therefore leaves
    with logs_of(world) as logs:
        kept = logs.kept_records({(topic, 0): (0, 6) for topic in topics})
    assert kept is not None
    assert {row["topic"]: row["count"] for row in kept.groupBy("topic").count().collect()} == topics
