"""Counts of records on both sides, by topic and hour, on real brokers."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from mirrorlake.errors import ConfigurationError, GateError, MirrorlakeError
from mirrorlake.jobs.verification.completeness import Completeness, CountScope, CountStatus
from mirrorlake.jobs.verification.counting import Counting
from mirrorlake.ledger import views

from tests.workspace import connect_server, run_script
from tests.world import ROOT, World, eventually, transactional_producer, write_in_transaction

HOUR_MS = 3_600_000
THIS_HOUR_MS = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS  # a run that crosses an hour has no window more
IN_YEAR_33658_MS = 10**15


def count(world: World, max_lateness_seconds: str = "0", days: str = "7") -> Completeness:
    counting = Counting(world.spark, world.flow, world.ledger, ROOT / "expectations/counts.json")
    return counting.run(CountScope.parse(max_lateness_seconds, days))


def by_topic(result: Completeness) -> dict[str, tuple[str, int, int]]:
    return {one.topic: (one.status, one.source_records, one.target_records) for one in result.topics}


def windows(world: World, topic: str) -> list[tuple[int, int, str]]:
    """Returns both counts and the status of each hour of a topic, in order."""
    rows = views.read(world.ledger, "completeness").filter(f"source = '{world.alias}' AND topic = '{topic}'")
    return [
        (row["source_records"], row["target_records"], row["status"]) for row in rows.orderBy("window_start").collect()
    ]


def write(servers: str, topic: str, records: int, age_ms: int = 0, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(records):
        producer.produce(topic, f"v{number}".encode(), partition=partition, timestamp=THIS_HOUR_MS - age_ms)
    assert producer.flush(30) == 0


def write_and_abort(servers: str, topic: str, records: int) -> None:
    producer = transactional_producer(servers, uuid.uuid4().hex)
    write_in_transaction(producer, topic, records=records)
    producer.abort_transaction(30)


def drop_before(admin: Any, topic: str, offset: int) -> None:
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result()


def test_each_record_is_counted_once_and_is_missed_when_it_is_due(world: World) -> None:
    topic = world.topic("counted", 2)
    held = world.topic("held", 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    world.properties["topics.exclude"] = held
    world.write_config()
    write(world.source_servers, topic, 30, age_ms=3 * HOUR_MS)
    write(world.source_servers, topic, 20, partition=1)
    write_and_abort(world.source_servers, topic, 5)
    world.mirror()

    first = count(world)
    assert first.passed, first.statement()
    assert by_topic(first) == {topic: ("equal", 50, 50)}
    assert [one[2] for one in windows(world, topic)] == ["equal", "equal"]
    assert (first.new_source_records, first.new_target_records) == (50, 50)

    # Retention deletes what was counted; later records are counted by themselves, however old they claim to be.
    drop_before(world.source_admin, topic, 35)
    write(world.source_servers, topic, 7, age_ms=3 * HOUR_MS)
    waiting = count(world, "3600")
    assert by_topic(waiting) == {topic: ("pending", 57, 50)}
    assert waiting.passed
    assert waiting.new_source_records == 7
    late = count(world)
    assert late.new_source_records == 0
    assert by_topic(late) == {topic: ("missing", 57, 50)}
    with pytest.raises(GateError, match=rf"7 missing, 0 surplus(?s:.)*{topic}, .*: 37 on the source, 30 on the target"):
        late.require()
    world.mirror()
    assert by_topic(count(world)) == {topic: ("equal", 57, 57)}

    # A topic of the flow that the mirror has overlooked.
    del world.properties["topics.exclude"]
    world.write_config()
    write(world.source_servers, held, 2)
    write(world.source_servers, held, 1, age_ms=THIS_HOUR_MS - IN_YEAR_33658_MS)
    overlooked = count(world)
    assert by_topic(overlooked) == {topic: ("equal", 57, 57), held: ("missing", 3, 0)}
    assert f"{held}, 9999-12-30 23:00 to +1 h: 1 on the source, 0 on the target: 1 missing" in map(
        str, overlooked.unequal
    )
    world.mirror()
    whole = count(world)
    assert whole.passed
    assert (whole.new_source_records, whole.new_target_records) == (0, 3)
    assert world.ledger.read("counts").filter("window_start > '9999-12-31'").count() == 0
    counts = world.ledger.table("counts")  # earlier versions stored an hour of the year 33658 as it is
    far = f"window_start = timestamp_millis({IN_YEAR_33658_MS})"
    world.ledger.change("counts", f"UPDATE {counts} SET {far} WHERE window_start > '9999-01-01'")
    assert by_topic(count(world)) == {topic: ("equal", 57, 57), held: ("equal", 3, 3)}
    write(world.source_servers, held, 1, age_ms=THIS_HOUR_MS - (2**63 - 1))
    with pytest.raises(MirrorlakeError, match=r"can't be counted: long overflow: .*the year 294,247"):
        count(world)


def test_records_are_counted_without_a_spark_context(world: World) -> None:
    topic = world.topic("connected", 1)
    write(world.source_servers, topic, 12)
    world.mirror()
    with connect_server(world.spark) as address:
        script = Path(__file__).with_name("connect_counts.py")
        found = run_script(script, address, Path(world.warehouse).name, world.config, world.flow_name)
    assert (found["source_records"], found["target_records"], found["missing"]) == (12, 12, 0)
    assert windows(world, topic) == [(12, 12, "equal")]


def test_records_in_excess_of_the_source_fail_and_two_countings_at_once_count_once(world: World) -> None:
    topic = world.topic("excess", 1)
    write(world.source_servers, topic, 10)
    world.mirror()
    write(world.target_servers, world.remote(topic), 1)

    with ThreadPoolExecutor(2) as pool:
        results = [future.result() for future in [pool.submit(count, world) for _ in range(2)]]

    assert [by_topic(one) for one in results] == [{topic: ("surplus", 10, 11)}] * 2
    with pytest.raises(GateError, match="0 missing, 1 surplus"):
        results[0].require()


def test_topics_whose_counts_need_not_be_equal_are_neutral(world: World) -> None:
    compacted = world.topic("compacted", 1, {"cleanup.policy": "compact"})
    expired, replaced, grown = world.topic("expired", 1), world.topic("replaced", 1), world.topic("grown", 1)
    for topic in (expired, replaced, grown):
        write(world.source_servers, topic, 10)
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    producer.produce(compacted, b"v", b"k")
    assert producer.flush(30) == 0
    drop_before(world.source_admin, expired, 4)

    early = count(world)  # before the mirror: the log that begins at 4 may have lost records of any hour
    assert by_topic(early)[expired] == (CountStatus.NEUTRAL, 6, 0)
    assert by_topic(early)[compacted] == (CountStatus.NEUTRAL, 1, 0)
    assert by_topic(early)[replaced] == by_topic(early)[grown] == (CountStatus.MISSING, 10, 0)
    reasons = {one.topic: one.reason for one in early.topics}
    assert "compacted on the source" in (reasons[compacted] or "")
    assert reasons[expired] == views.UNCOUNTED

    world.source_admin.delete_topics([replaced])[replaced].result()
    eventually(lambda: replaced not in world.source_admin.list_topics(timeout=5).topics)
    world.source_admin.create_topics([NewTopic(replaced, 1, 1)])[replaced].result()
    eventually(lambda: replaced in world.source_admin.list_topics(timeout=5).topics)
    write(world.source_servers, replaced, 2)
    world.write_config(**{"mirrorlake.start.new": "latest"})
    world.source_admin.create_partitions([NewPartitions(grown, 2)])[grown].result()
    eventually(lambda: len(world.source_admin.list_topics(grown, timeout=5).topics[grown].partitions) == 2)
    write(world.source_servers, grown, 3, partition=1)
    again = count(world)
    assert by_topic(again)[replaced] == (CountStatus.NEUTRAL, 12, 0)
    assert by_topic(again)[grown] == (CountStatus.NEUTRAL, 13, 0), "what the new partition had may not be mirrored"
    assert again.new_source_records == 5
    assert again.is_neutral
    again.require()


def test_a_scope_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="parameter days is '0'; allowed is a whole number from 1 to 365"):
        CountScope.parse(days="0")
    with pytest.raises(ConfigurationError, match="max_lateness_seconds is '-1'"):
        CountScope.parse("-1")
