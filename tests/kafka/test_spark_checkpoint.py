"""Streaming queries that move to the target.

They stop on the source, their checkpoint is translated, and they continue with the remote topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from mirrorlake.errors import TargetError
from mirrorlake.reasons import PositionReason
from mirrorlake.translation.inputs import ExternalPositions
from mirrorlake.translation.positions import ReaderPosition, listed
from mirrorlake.translation.translator import Translator
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.world import World, eventually

Batches = dict[int, dict[int, list[Any]]]  # by batch and partition, the values in order


def topic_frame(world: World, servers: str, topic: str, **options: object) -> Any:
    reader = (
        world.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
    )
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def run(frame: Any, checkpoint: Path, sink: Callable[[Any], Any], mode: str = "append") -> None:
    """Runs a query until it has read all records."""
    sink(frame.writeStream.outputMode(mode)).option("checkpointLocation", str(checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()


def collected(batches: Batches, fails_at: int = -1) -> Callable[[Any], Any]:
    """Returns a sink that keeps the rows of every batch, and fails at the end of one."""

    def keep(frame: Any, batch: int) -> None:
        found: dict[int, list[Any]] = {}
        for row in frame.orderBy("partition", "offset").select("partition", "value").collect():
            found.setdefault(row["partition"], []).append(None if row["value"] is None else bytes(row["value"]))
        batches[batch] = found
        if batch == fails_at:
            raise RuntimeError("the query breaks down here")

    return lambda writer: writer.foreachBatch(keep)


def moved(world: World, checkpoint: Path, **more: str) -> Path:
    """Returns the translated checkpoint."""
    output = checkpoint.with_name(f"{checkpoint.name}-moved")
    ExternalPositions(positions=str(checkpoint), output=str(output), **more).translate(
        Translator(world.flow, world.ledger.ensure_tables())
    )
    return output


def values(world: World, topic: str) -> dict[int, list[Any]]:
    return {
        partition: [record[1] for _, record in records] for partition, records in world.source_records(topic).items()
    }


def test_a_query_that_broke_down_within_a_batch_repeats_it_on_the_target_and_goes_on(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce_transactions(topic, 15, 15)
    world.produce(topic, 300, seed=1)
    limited = {"maxOffsetsPerTrigger": 150}
    on_source: Batches = {}
    on_target: Batches = {}
    with pytest.raises(StreamingQueryException):
        run(
            topic_frame(world, world.source_servers, topic, **limited),
            tmp_path / "query",
            collected(on_source, fails_at=1),
        )
    world.mirror()
    checkpoint = moved(world, tmp_path / "query")
    for seed in (2, 3):  # it continues while more records are mirrored
        world.produce_transactions(topic, 10, 10, seed=seed)
        world.mirror()
        run(topic_frame(world, world.target_servers, world.remote(topic), **limited), checkpoint, collected(on_target))
    assert on_source.keys() == {0, 1}
    assert on_target[1] == on_source[1]
    assert min(on_target) == 1
    got: dict[int, list[Any]] = {}
    for batch in (on_source[0], *(on_target[number] for number in sorted(on_target))):
        for partition, part in batch.items():
            got.setdefault(partition, []).extend(part)
    assert got == values(world, topic)
    assert sum(map(len, got.values())) > 300


def test_a_query_with_state_and_several_sources_counts_on(world: World, tmp_path: Path) -> None:
    orders, payments = world.topic("orders"), world.topic("payments", 1)

    def counting(servers: str, name: Callable[[str], str]) -> Any:
        return (
            topic_frame(world, servers, name(orders))
            .union(topic_frame(world, servers, name(payments)))
            .groupBy("key")
            .count()
        )

    counts: dict[Any, int] = {}

    def keep(frame: Any, batch: int) -> None:
        counts.update({None if row["key"] is None else bytes(row["key"]): row["count"] for row in frame.collect()})

    def more(seed: int) -> None:
        world.produce_transactions(orders, 10, 12, seed=seed)  # so that the query's offset is behind a marker
        world.produce(payments, 50, 1, seed=seed)

    more(1)
    run(counting(world.source_servers, str), tmp_path / "query", lambda writer: writer.foreachBatch(keep), "update")
    more(2)
    world.mirror()
    run(
        counting(world.target_servers, world.remote),
        moved(world, tmp_path / "query"),
        lambda writer: writer.foreachBatch(keep),
        "update",
    )
    assert counts == Counter(
        record[0]
        for topic in (orders, payments)
        for records in world.source_records(topic).values()
        for _, record in records
    )


def test_a_query_past_what_is_mirrored_has_to_wait_and_then_its_files_are_complete(
    world: World, tmp_path: Path
) -> None:
    topic, files = world.topic(partitions=1), tmp_path / "files"

    def to_files(writer: Any) -> Any:
        return writer.format("parquet").option("path", str(files))

    world.produce(topic, 100, 1)
    world.mirror()
    world.produce(topic, 100, 1, seed=2)
    run(topic_frame(world, world.source_servers, topic).select("value"), tmp_path / "query", to_files)
    with pytest.raises(
        TargetError,
        match=rf"topic {topic}, partition 0, offset 200 \(offsets/0, source 0\): the position is clamped .* Let the "
        rf"mirror and its ledger catch up",
    ):
        moved(world, tmp_path / "query")
    world.produce(topic, 100, 1, seed=3)
    world.mirror()
    run(
        topic_frame(world, world.target_servers, world.remote(topic)).select("value"),
        moved(world, tmp_path / "query"),
        to_files,
    )
    found = world.spark.read.parquet(str(files)).select(F.col("value").cast("binary")).collect()
    assert Counter(None if row["value"] is None else bytes(row["value"]) for row in found) == Counter(
        values(world, topic)[0]
    )


def test_a_reader_is_not_placed_where_the_flow_has_begun_nothing_or_only_later_records(world: World) -> None:
    """Neither has a row in the ledger: the flow's states have its beginning, and the target has the records of others.

    The same holds for a flow that was taken over from a mirror whose records the target has no more.
    """
    late, taken = world.topic("late", 1), world.topic("taken", 1)
    for topic in (late, taken):
        world.produce(topic, 30, 1)
    remote = world.remote(taken)
    world.target_admin.create_topics([NewTopic(remote, 1, 1)])[remote].result()
    producer = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
    producer.produce(remote, b"of somebody else")
    assert producer.flush(30) == 0
    world.write_config(**{f"mirrorlake.start.topic.{late}": "latest"})
    assert world.mirror().records == 0
    translator = Translator(world.flow, world.ledger.ensure_tables())
    found = translator.translate(
        [ReaderPosition(*key) for key in ((late, 0, 0), (late, 0, 30), (late, 0, -2), (late, 0, -1), (taken, 0, 0))]
    )
    assert [(one.status, one.downstream_offset) for one in found.positions] == [
        ("before_mirror", 0),
        ("exact", 0),
        ("exact", 0),
        ("exact", 0),
        ("not_mirrored_yet", None),
    ]
    assert found.positions[-1].reason == PositionReason.NOT_BEGUN
    world.produce(late, 10, 1, seed=2)
    assert world.mirror().records == 10
    # As long as the ledger lacks the records, nobody knows where they are; behind them, nothing is missing.
    asked = [ReaderPosition(late, 0, offset) for offset in (0, 35, -2, 40, -1)]
    found = translator.translate(asked)
    assert [one.reason for one in found.positions] == 3 * [PositionReason.LEDGER_BEHIND] + 2 * [None]
    end = world.target_records(late)[0][-1][0] + 1
    assert [one.downstream_offset for one in found.positions] == [None, None, None, end, end]
    found = Translator(world.flow, world.ledger).translate(asked)
    assert [one.status for one in found.positions] == ["before_mirror", *4 * ["exact"]]
    assert [one.downstream_offset for one in found.positions] == [0, 5, 0, end, end]


def test_a_time_is_the_first_record_at_or_after_it_and_an_idle_partition_begins_where_its_log_does(
    world: World,
) -> None:
    from confluent_kafka import TopicPartition

    topic, idle = world.topic(), world.topic("idle", 1)
    world.produce(topic, 200)
    world.produce(idle, 30, 1)
    for future in world.source_admin.delete_records([TopicPartition(idle, 0, 30)]).values():
        future.result()
    world.mirror()
    translator = Translator(world.flow, world.ledger.ensure_tables())
    source, target = world.source_records(topic), world.target_records(topic)
    # no later than the middle of every partition, so that each has a record at or after it
    when = min(sorted(record[3][1] for _, record in records)[len(records) // 2] for records in source.values())
    asked = translator.at(when)
    expected = {
        partition: next(number for number, (_, record) in enumerate(records) if record[3][1] >= when)
        for partition, records in source.items()
    }
    assert {p.partition: p.upstream_offset for p in asked if p.topic == topic} == {
        partition: source[partition][number][0] for partition, number in expected.items()
    }
    found = translator.translate(asked)
    assert found.offsets()[world.remote(topic)] == {
        partition: target[partition][number][0] for partition, number in expected.items()
    }
    assert found.offsets()[world.remote(idle)] == {0: 0}
    assert found.statuses == {"exact": 3}
    for admin, name, reason in (
        (world.target_admin, world.remote(topic), PositionReason.REMOTE_REPLACED),
        (world.source_admin, topic, PositionReason.RECREATED),
    ):
        admin.delete_topics([name])[name].result()
        eventually(lambda admin=admin, name=name: name not in admin.list_topics(timeout=5).topics)
        admin.create_topics([NewTopic(name, 2, 1)])[name].result()
        if name == topic:
            world.produce(topic, 400, seed=2)  # longer than the former log
        (one,) = translator.translate(listed({topic: {0: 10}})).positions
        assert (one.status, one.reason) == ("not_mirrored_yet", reason)
