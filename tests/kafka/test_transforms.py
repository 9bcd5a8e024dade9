"""Topics with a transform: the same transactions, gate and map, and exact positions around filtered records."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import ConfigurationError, SourceError
from mirrorlake.model.copy_plan import Range
from mirrorlake.protocol.admin import Admin
from mirrorlake.transforms.frame import with_records

from tests.world import World, configure, consume_as, eventually, read_committed

COUNTRIES = ("DE", "FR", "US")


def transform(world: World, name: str, topics: str, **parts: str) -> None:
    values = {f"mirrorlake.transform.{name}.{part.replace('_', '.')}": value for part, value in parts.items()}
    world.write_config(**{"mirrorlake.transforms": name, f"mirrorlake.transform.{name}.topics": topics, **values})


def customers(world: World, topic: str, numbers: range, transactional: bool = False, bad: int = -1) -> None:
    """Produces one JSON document for each number, to partition number % 2."""
    settings = {"transactional.id": f"{topic}-{numbers.start}"} if transactional else {}
    producer = Producer(
        {
            "bootstrap.servers": world.source_servers,
            "compression.type": "zstd",
            "linger.ms": 5,
            "log_level": 0,
            **settings,
        }
    )
    if transactional:
        producer.init_transactions(30)
    for number in numbers:
        if transactional and number % 20 == 0:
            producer.begin_transaction()
        value = (
            json.dumps({"id": number, "name": f"name {number}", "country": COUNTRIES[number % 3]}).encode()
            if number != bad
            else b"not json"
        )
        producer.produce(
            topic,
            value,
            str(number).encode(),
            partition=number % 2,
            headers=[("n", str(number).encode()), ("none", None)],
        )
        if transactional and number % 20 == 19:
            producer.flush(30)
            producer.abort_transaction(30) if number % 60 == 39 else producer.commit_transaction(30)
    assert producer.flush(30) == 0


def test_filtered_and_masked_records_arrive_in_order_and_every_position_translates_to_the_first_kept_record(
    world: World,
) -> None:
    topic, plain = world.topic("customers", 2), world.topic("plain", 2)
    masking = "to_json(struct(value_data.id, 'x' AS name, value_data.country))"
    transform(
        world,
        "gdpr",
        topic,
        where="value_data.country <> 'DE'",
        value=masking,
        value_format="json",
        value_schema="id INT, name STRING, country STRING",
    )
    customers(world, topic, range(400))
    customers(world, topic, range(400, 600), transactional=True)
    world.produce(plain, 200)
    result = world.mirror()
    source, target = world.source_records(topic), world.target_records(topic)
    assert result.records == 200 + sum(map(len, target.values()))
    for partition, records in source.items():
        wanted = [(offset, record) for offset, record in records if json.loads(record[1])["country"] != "DE"]
        assert [json.loads(record[1]) for _, record in target[partition]] == [
            json.loads(record[1]) | {"name": "x"} for _, record in wanted
        ]
        assert [(record[0], record[2], record[3]) for _, record in target[partition]] == [
            (record[0], record[2], record[3]) for _, record in wanted
        ]
        kinds = {kind for number, _, _, kind in world.gaps(topic) if number == partition}
        assert kinds == {"filtered", "marker", "aborted"}
    world.assert_accounted(topic)
    world.assert_equal(plain)
    ends = {partition: records[-1][0] + 1 for partition, records in source.items()}
    positions = {f"g{at}": {(topic, partition): end * at // 10 for partition, end in ends.items()} for at in range(11)}
    groups = {world.commit(name, offsets): offsets for name, offsets in positions.items()}
    world.checkpoint()
    for group, offsets in groups.items():
        read = consume_as(world.target_servers, group, [world.remote(topic)])
        for partition in ends:
            wanted = [
                json.loads(record[1])["id"]
                for offset, record in source[partition]
                if offset >= offsets[topic, partition] and json.loads(record[1])["country"] != "DE"
            ]
            assert [json.loads(value)["id"] for value in read[world.remote(topic), partition]] == wanted
    assert world.mirror().records == 0
    world.assert_nothing_open()


def test_keys_headers_timestamps_and_partitions_are_what_the_transform_says(world: World) -> None:
    topic = world.topic("moved", 2)
    transform(
        world,
        "moved",
        topic,
        key="concat('k', CAST(key AS STRING))",
        headers="array(struct('from' AS key, CAST(CAST(offset AS STRING) AS BINARY) AS value))",
        timestamp="timestamp + INTERVAL 1 HOUR - INTERVAL 2 HOURS",
        partition="CAST(CAST(CAST(key AS STRING) AS INT) % 2 = 0 AS INT)",
        compression_type="snappy",
    )
    customers(world, topic, range(100))
    assert world.mirror().records == 100
    source, target = world.source_records(topic), world.target_records(topic)
    for partition, records in source.items():
        copies = target[1 - partition]
        assert [(key, value, headers, stamp) for _, (key, value, headers, (_, stamp)) in copies] == [
            (b"k" + key, value, [("from", str(offset).encode())], stamp - 3_600_000)
            for offset, (key, value, _, (_, stamp)) in records
        ]
    rows = world.rows("offset_syncs")
    assert {(row["partition"], row["target_partition"]) for row in rows} == {(0, 1), (1, 0)}
    group = world.commit("g", {(topic, 0): 3})
    world.checkpoint()
    assert world.checkpoints()[group, topic, 0]["status"] == "not_covered"
    customers(world, topic, range(100, 110))
    assert world.mirror().records == 10  # what stands there is its own


def test_a_record_that_cannot_be_transformed_stops_the_flow_or_goes_to_the_dead_letters(world: World) -> None:
    topic = world.topic("doubtful", 2)
    letters = f"{world.alias}-letters"
    parts = {"value": "CAST(value_data.id + 1 AS STRING)", "value_format": "json", "value_schema": "id INT"}
    transform(world, "t", topic, **parts)
    world.write_config(**{"mirrorlake.dead.letter.topic": letters})
    customers(world, topic, range(50), bad=21)
    with pytest.raises(
        SourceError,
        match=rf"topic {topic}, partition 1, offset 10: the record can't be transformed: "
        rf"mirrorlake\.transform\.t\.value\.format.*Spark says: MALFORMED_RECORD_IN_PARSING[A-Z_.]*\. ",
    ) as caught:
        world.mirror()
    (about,) = world.rows("anomalies")
    log = Path(f".local/logs/spark-{os.getpid()}.log").read_text()
    assert "JsonParseException" in log
    for place in (str(caught.value), "\n".join(world.lines), str(about), log):
        assert not re.search(r"not.{0,3}json|Unrecognized token", place), "contents of a record"
    assert sum(map(len, world.target_records(topic).values())) == 0
    transform(world, "t", topic, **parts, on_error="dead-letter")
    assert world.mirror().records == 49
    ((_, (key, value, headers, _)),) = read_committed(world.target_servers, letters)[0]
    assert (key, value) == (b"21", b"not json")
    why = {name: content.decode() for name, content in headers if name.startswith("mirrorlake.")}
    assert why == {
        "mirrorlake.flow": world.flow_name,
        "mirrorlake.topic": topic,
        "mirrorlake.partition": "1",
        "mirrorlake.offset": "10",
        "mirrorlake.reason": "mirrorlake.transform.t.value.format",
    }
    assert world.gaps(topic) == [(1, 10, 11, "dead_letter")]
    assert [value for _, (_, value, _, _) in world.target_records(topic)[1]] == [
        str(number + 1).encode() for number in range(1, 50, 2) if number != 21
    ]


def test_a_record_that_a_transform_leaves_without_a_key_stops_no_flow_to_a_compacted_topic(world: World) -> None:
    topic, letters = world.topic("keyless", 1, {"cleanup.policy": "compact"}), f"{world.alias}-letters"
    transform(world, "t", topic, key="CASE WHEN CAST(key AS STRING) <> '3' THEN key END", on_error="dead-letter")
    world.write_config(**{"mirrorlake.dead.letter.topic": letters})
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for number in range(5):
        producer.produce(topic, b"value", str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    assert world.mirror().records == 4
    ((_, (key, _, headers, _)),) = read_committed(world.target_servers, letters)[0]
    assert key is None, "as the transform has made it"
    assert f"no key, and topic {world.remote(topic)} is compacted" in dict(headers)["mirrorlake.reason"].decode()
    config = Admin(world.flow.target_connection, "target", "test").configs([letters])[letters]
    assert (config["cleanup.policy"].value, config["retention.ms"].value) == ("delete", "-1"), "nothing else has them"


def readers(world: World) -> set[str]:
    """Returns the group ids and partitions for which Spark's executors keep what they read with, for ever."""
    name = "org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$"
    loader = world.spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    one = world.spark._jvm.java.lang.Class.forName(name, True, loader).getField("MODULE$").get(None)
    for path in ("consumerPool", "objectFactory", "keyToKafkaParams"):
        (field,) = (field for field in one.getClass().getDeclaredFields() if field.getName().endswith(path))
        field.setAccessible(True)
        one = field.get(one)
    return {key.toString() for key in one.keySet()}


def test_executors_keep_one_reader_of_a_partition_however_many_micro_batches_there_are(world: World) -> None:
    topic = world.topic(partitions=1)
    transform(world, "t", topic, value="upper(CAST(value AS STRING))")
    before = readers(world)
    with world.mirroring():
        for number in range(1, 5):
            world.produce(topic, 5, 1, seed=number)
            eventually(lambda number=number: world.metric("mirrored_records_total") == 5 * number, 60)
    assert world.batches >= 4
    assert len([name for name in readers(world) - before if topic in name]) == 1


def test_a_record_that_a_transform_makes_too_large_goes_to_the_dead_letters(world: World) -> None:
    topic, letters = world.topic("growing", 1, {"max.message.bytes": "20000"}), f"{world.alias}-letters"
    transform(world, "t", topic, value="concat(value, value)", on_error="dead-letter", compression_type="none")
    world.write_config(**{"mirrorlake.dead.letter.topic": letters, "mirrorlake.on.loss": "continue"})
    large, producer = os.urandom(15_000), Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for value in (b"small", large, b"small", large[::-1], b"small"):
        producer.produce(topic, value, b"k", partition=0)
        assert producer.flush(30) == 0
    world.produce(topic, 25_000, 1)  # the target would answer before Spark has delivered all of them
    assert world.mirror().records == 25_003
    assert world.gaps(topic) == [(0, 1, 2, "dead_letter"), (0, 3, 4, "dead_letter")]
    found = [record for _, record in read_committed(world.target_servers, letters)[0]]
    assert [value for _, value, _, _ in found] == [2 * large, 2 * large[::-1]]
    assert all("larger than topic" in dict(headers)["mirrorlake.reason"].decode() for _, _, headers, _ in found)
    assert not [line for line in world.lines if "makes batches that fit" in line], "no attempt learns of one only"


def test_a_record_without_a_key_from_before_a_topic_was_compacted_is_a_loss_also_with_a_transform(
    world: World,
) -> None:
    topic = world.topic("keyed", 1)
    transform(world, "t", topic, value="upper(CAST(value AS STRING))")
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for key in (b"k", None, b"l"):
        producer.produce(topic, b"v", key, partition=0)
    assert producer.flush(30) == 0
    configure(world, topic, {"cleanup.policy": "compact"})
    with pytest.raises(SourceError, match="offsets 1 to 2: the record was written before the topic was compacted"):
        world.mirror()
    world.write_config(**{"mirrorlake.on.loss": "continue"})
    assert world.mirror().records == 2
    assert world.gaps(topic) == [(0, 1, 2, "no_key")]


def test_a_transformed_topic_whose_remote_topic_was_deleted_is_filled_again(world: World) -> None:
    topic = world.topic("refilled", 2)
    transform(world, "t", topic, where="offset % 2 = 0")
    customers(world, topic, range(40))
    assert world.mirror().records == 20
    remote = world.remote(topic)
    world.target_admin.delete_topics([remote])[remote].result()
    eventually(lambda: remote not in world.target_admin.list_topics(timeout=5).topics)
    world.write_config(**{"mirrorlake.on.loss": "continue"})
    customers(world, topic, range(40, 50))
    assert world.mirror().records == 26
    assert all(len(records) == 13 for records in world.target_records(topic).values())
    world.assert_accounted(topic)


def test_an_expression_that_is_wrong_is_refused_before_anything_is_created(world: World) -> None:
    topic = world.topic("refused", 1)
    customers(world, topic, range(0, 10, 2))
    transform(world, "t", topic, where="vlaue IS NULL")
    with pytest.raises(ConfigurationError, match=r"mirrorlake\.transform\.t\.where is 'vlaue IS NULL'"):
        world.mirror()
    assert not [name for name in world.target_admin.list_topics(timeout=10).topics if world.alias in name]


def test_records_are_enriched_from_a_table(world: World) -> None:
    topic = world.topic("enriched", 2)
    table = f"{world.directory}/segments"
    world.spark.createDataFrame(
        [(number, f"segment {number % 5}") for number in range(0, 60, 2)], "id INT, segment STRING"
    ).write.format("delta").save(table)
    looked_up = f"(SELECT max(s.segment) FROM delta.`{table}` s WHERE s.id = value_data.id)"
    transform(
        world,
        "e",
        topic,
        value=f"to_json(struct(value_data.id, {looked_up} AS segment))",
        value_format="json",
        value_schema="id INT",
    )
    customers(world, topic, range(100))
    assert world.mirror().records == 100
    found = {
        partition: [json.loads(record[1]) for _, record in records]
        for partition, records in world.target_records(topic).items()
    }
    assert found[0] == [
        {"id": number, "segment": f"segment {number % 5}"} if number < 60 else {"id": number}
        for number in range(0, 100, 2)
    ]
    assert found[1] == [{"id": number} for number in range(1, 100, 2)]
    world.assert_accounted(topic)


def test_a_compacted_topic_with_a_transform_has_its_holes_explained(world: World) -> None:
    topic = world.topic(
        "compacted",
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100",
        },
    )
    transform(world, "t", topic, value="upper(CAST(value AS STRING))")
    producer = Producer({"bootstrap.servers": world.source_servers, "linger.ms": 5, "log_level": 0})

    numbers = itertools.count()

    def holes() -> bool:
        for number in itertools.islice(numbers, 60):
            producer.produce(
                topic,
                f"value {number}".encode(),
                f"key {number}".encode() if number % 3 == 0 and number % 120 < 60 else b"again",
                partition=0,
            )
        producer.flush(30)
        offsets = [offset for offset, _ in world.source_records(topic)[0]]
        return len(offsets) < (offsets[-1] - offsets[0]) / 2

    eventually(holes, 300, "compaction")
    configure(
        world,
        topic,
        {"min.cleanable.dirty.ratio": "1", "min.compaction.lag.ms": "3600000", "max.compaction.lag.ms": "7200000"},
    )
    source = world.source_records(topic)
    # Some plans end between two batches: whole batches have gone.
    world.write_config(**{"mirrorlake.batch.max.transformed.records": str(source[0][-1][0] // 9)})
    world.mirror()
    assert world.source_records(topic) == source, "the cleaner still runs"
    assert [value for _, (_, value, _, _) in world.target_records(topic)[0]] == [
        value.upper() for _, (_, value, _, _) in source[0]
    ]
    assert {kind for *_, kind in world.gaps(topic)} == {"compacted"}
    world.assert_accounted(topic)


def test_the_records_of_a_plan_come_in_the_order_of_its_partitions_which_is_another_one_each_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic("customers", 2)
    transform(world, "all", topic, where="true")
    customers(world, topic, range(40))
    planned = [Range(topic, partition, "", 2, 0, 0, 20) for partition in range(2)]
    for turns in ([0, 1], [1, 0]):
        monkeypatch.setattr(random, "sample", lambda _, k, turns=turns: turns[:k])
        rows = with_records(world.spark, world.flow, planned, 1, uuid.uuid4().hex).collect()
        assert [(row.kind, row.partition) for row in rows[:2]] == [("range", partition) for partition in turns]
        assert [(row.partition, row.offset) for row in rows[2:]] == [
            (partition, offset) for partition in turns for offset in range(20)
        ]
