"""Start offsets of a flow, paused topics, and properties that a running job reloads."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import SourceError

from tests.world import World, eventually, read_committed


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


def test_latest_takes_what_comes_after_the_first_start_also_on_topics_that_were_idle_then(world: World) -> None:
    busy, idle = world.topic("busy", 2), world.topic("idle", 1)
    world.produce(busy, 100)
    world.produce(idle, 40, 1)
    world.write_config(**{"mirrorlake.start": "latest"})
    assert world.mirror().records == 0
    world.produce(busy, 30, seed=2)
    world.produce(idle, 5, 1, seed=3)
    later = world.topic("later", 1)
    world.produce(later, 7, 1)
    assert world.mirror().records == 30 + 5 + 7, "what appears later begins with its first record"


def test_consumer_auto_offset_reset_means_what_it_means_to_mirrormaker_2(world: World) -> None:
    topic = world.topic("busy", 1)
    world.produce(topic, 100, 1)
    world.write_config(**{"consumer.auto.offset.reset": "latest"})
    assert world.mirror().records == 0


def test_a_topic_that_appears_later_can_begin_at_its_end(world: World) -> None:
    first = world.topic("first", 1)
    world.produce(first, 10, 1)
    world.write_config(**{"mirrorlake.start.new": "latest"})
    assert world.mirror().records == 10
    later = world.topic("later", 1)
    world.produce(later, 50, 1)
    assert world.mirror().records == 0
    world.produce(later, 6, 1, seed=2)
    assert world.mirror().records == 6


def test_a_time_and_offsets_are_kept_to_the_record(world: World) -> None:
    by_time, by_offset = world.topic("by.time", 1), world.topic("by.offset", 1)
    for topic in (by_time, by_offset):
        world.produce(topic, 200, 1)
    newest_ms = max(record[3][1] for _, record in world.source_records(by_time)[0])
    boundary = datetime.fromtimestamp((newest_ms + 1) / 1000, UTC)
    world.write_config(
        **{f"mirrorlake.start.topic.{by_time}": boundary.isoformat(), f"mirrorlake.start.topic.{by_offset}": "0:120"}
    )
    eventually(lambda: datetime.now(UTC) > boundary)
    producer = Producer({"bootstrap.servers": world.source_servers})
    for number in range(20):
        producer.produce(by_time, str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    world.mirror()
    copied = world.target_records(by_time)[0]
    assert [record for _, record in copied] == [record for _, record in world.source_records(by_time)[0]][200:]
    copied = world.target_records(by_offset)[0]  # batches have 50 records, so one begins earlier
    assert [record for _, record in copied] == [
        record for offset, record in world.source_records(by_offset)[0] if offset >= 120
    ]
    first = min(run["upstream_start"] for run in world.ledger_map(by_offset)[0])
    assert first == 120


def test_an_offset_the_log_does_not_reach_is_refused(world: World) -> None:
    topic = world.topic("plain", 1)
    world.produce(topic, 10, 1)
    world.write_config(**{f"mirrorlake.start.topic.{topic}": "0:500"})
    with pytest.raises(SourceError, match=r"names offset 500, but the log .* reaches from 0 to 10"):
        world.mirror()


def test_a_topic_that_appears_before_the_offset_at_which_it_is_to_begin_holds_up_no_other(world: World) -> None:
    here = world.topic("here", 1)
    later = f"{world.alias}-later"
    world.write_config(**{f"mirrorlake.start.topic.{later}": "0:5"})
    with world.mirroring():
        world.produce(here, 20, 1)
        eventually(lambda: world.metric("mirrored_records_total") == 20)
        world.topic("later", 1)
        eventually(lambda: world.metric("held_topics") == 1)
        world.produce(later, 10, 1)
        eventually(lambda: world.metric("mirrored_records_total") == 25, what="the records from the offset on")
        eventually(lambda: world.metric("held_topics") == 0, 60)
    (row,) = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert (row["topic"], row["action"]) == (later, "the others go on")
    assert "names offset 5, but the log of cluster" in row["detail"]


def test_a_running_job_pauses_and_resumes_and_takes_new_topics_from_its_file(world: World) -> None:
    topic, other = world.topic("plain", 1), world.topic("other", 1)
    world.write_config(topics=topic)
    world.produce(topic, 50, 1)
    world.produce(other, 20, 1)

    def copied(name: str) -> int:
        return sum(map(len, world.target_records(name).values()))

    with world.mirroring():
        eventually(lambda: copied(topic) == 50)
        world.write_config(**{"mirrorlake.paused": "true"})
        eventually(lambda: "paused now in effect" in "".join(world.lines))
        world.produce(topic, 50, 1, seed=2)
        world.write_config(
            **{"mirrorlake.topics.paused": topic, "mirrorlake.paused": "false", "topics": f"{topic}, {other}"}
        )
        eventually(lambda: copied(other) == 20)
        assert copied(topic) == 50, "a paused topic was copied"
        world.write_config(**{"mirrorlake.topics.paused": "", "replication.policy.separator": "-", "topics": "["})
        eventually(
            lambda: "is not used: property topics: '[' is not a valid regular expression" in "".join(world.lines)
        )
        world.write_config(topics=f"{topic}, {other}")
        eventually(lambda: copied_under_old_name(world, topic) == 100)
        assert "policy takes effect when the job is started again" in "".join(world.lines)


def copied_under_old_name(world: World, topic: str) -> int:
    return sum(map(len, read_committed(world.target_servers, f"{world.alias}.{topic}").values()))
