"""A preview applies a transform to the newest records of a topic."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import ConfigurationError
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.transforms.evaluate import apply
from mirrorlake.transforms.preview import After, preview

from tests.world import World

PREFIX = "mirrorlake.transform.gdpr."
GDPR = {
    "topics": ".*-customers, .*-missing",
    "where": "value_data.country <> 'DE'",
    "key": "upper(CAST(key AS STRING))",
    "value": "CAST(CAST(value_data.age AS INT) AS STRING)",
    "value.format": "json",
    "value.schema": "country STRING, age STRING",
}
VALUES = [
    b'{"country": "FR", "age": "7"}',
    b'{"country": "DE", "age": "x"}',
    b'{"country": "FR", "age": "x"}',
    b"\x00\xff",
]


@pytest.fixture
def world(world: World) -> World:
    world.write_config(
        **{"mirrorlake.transforms": "gdpr"}, **{f"{PREFIX}{name}": value for name, value in GDPR.items()}
    )
    return world


def test_the_newest_committed_records_are_shown_before_and_after(world: World) -> None:
    topic = world.topic("customers")
    world.produce(topic, 20)
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for at, value in enumerate(VALUES):
        producer.produce(topic, value, key=f"k{at}", partition=at % 2, headers=[("h", b"\xff")])
        producer.flush()
    # The end of one log holds no committed records: it has to be read further back than the other.
    world.produce_transactions(topic, 8, 20, partitions=1, aborted=1.0)

    found = preview(world.spark, world.flow, topic, 4)
    assert {before.value for before, _ in found.records} == {*(value.decode() for value in VALUES[:3]), "0x00ff"}
    assert {before.headers for before, _ in found.records} == {"h=0xff"}
    after = {before.key: after for before, after in found.records}
    assert (after["k0"].outcome, after["k0"].key, after["k0"].value, after["k0"].partition, after["k0"].headers) == (
        "kept",
        "K0",
        "7",
        0,
        "h=0xff",
    )
    assert after["k1"] == After("filtered")
    assert (after["k2"].outcome, after["k2"].reason, after["k2"].value) == ("failed", f"{PREFIX}value", None)
    assert "'x'" in str(after["k2"].explanation)
    assert after["k3"].reason == f"{PREFIX}value.format"
    assert found.to_json() == {
        "flow": world.flow_name,
        "topic": topic,
        "transform": "gdpr",
        "records": 4,
        "kept": 1,
        "filtered": 1,
        "failed": 2,
    }
    assert found.reasons() == {f"{PREFIX}value": 1, f"{PREFIX}value.format": 1}
    assert len(preview(world.spark, world.flow, topic, 1_000).records) == 24


def test_what_spark_reads_from_kafka_is_transformed_as_it_is(world: World) -> None:
    world.write_config(**{f"{PREFIX}key.format": "json", f"{PREFIX}key.schema": "n INT"})
    topic = world.topic("customers", partitions=1)
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for key, headers in ((b'{"n": 1}', [("h", None), ("h", b"")]), (None, None)):
        producer.produce(topic, VALUES[0], key=key, headers=headers)
    producer.flush()
    how = world.flow.transform_of(topic)
    assert how is not None
    records = log_records(
        world.spark, world.flow.source_connection, {(topic, 0): 0}, {(topic, 0): 2}, "read_committed", {}
    )
    rows = sorted(apply(records, how).collect(), key=lambda row: row["offset"])
    assert [(row["outcome"], row["key"], bytes(row["value"])) for row in rows] == [
        ("kept", b'{"N": 1}', b"7"),
        ("kept", None, b"7"),
    ]
    assert [[tuple(header) for header in row["headers"]] for row in rows] == [[("h", None), ("h", b"")], []]


def test_a_topic_without_records_gives_none(world: World) -> None:
    found = preview(world.spark, world.flow, world.topic("customers"), 5)
    assert (found.records, len(found.table()), found.to_json()["records"]) == ((), 0, 0)


def test_a_topic_that_is_not_there_not_mirrored_or_not_transformed_is_refused(world: World) -> None:
    world.topic("misssing")
    refused = {
        "": "parameter topic is empty",
        f"{world.alias}-missing": f"cluster {world.alias} has no topic {world.alias}-missing; did you mean "
        f"{world.alias}-misssing?",
        f"{world.alias}-orders": f"topic {world.alias}-orders has no transform.*gdpr",
        "elsewhere": "topic elsewhere does not belong to the flow",
    }
    for topic, message in refused.items():
        with pytest.raises(ConfigurationError, match=message):
            preview(world.spark, world.flow, topic, 5)


def test_a_transform_that_can_not_be_run_is_refused_before_anything_is_read(world: World) -> None:
    world.write_config(**{f"{PREFIX}key": "max(topic)"})
    with pytest.raises(ConfigurationError, match=f"property {PREFIX}key is "):
        preview(world.spark, world.flow, f"{world.alias}-missing", 5)
