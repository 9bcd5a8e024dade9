"""Transforms as they are in the property file."""

from __future__ import annotations

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.transform import Format, Transform
from mirrorlake.errors import ConfigurationError
from mirrorlake.parameters import integer

BASE = {"clusters": "a, b", "a.bootstrap.servers": "h1:1", "b.bootstrap.servers": "h3:3", "a->b.enabled": "true"}
GDPR = {
    "mirrorlake.transforms": "gdpr",
    "mirrorlake.transform.gdpr.topics": "customers.*, people",
    "mirrorlake.transform.gdpr.where": "value_data.country <> 'DE'",
    "mirrorlake.transform.gdpr.value.format": "json",
    "mirrorlake.transform.gdpr.value.schema": "country STRING",
}


def flow(**changes: str | None) -> Flow:
    return Flow.from_properties(
        Properties({name: value for name, value in {**BASE, **GDPR, **changes}.items() if value is not None}), "a->b"
    )


def of(part: str, value: str | None) -> dict[str, str | None]:
    return {f"mirrorlake.transform.gdpr.{part}": value}


def test_without_any_property_there_are_no_transforms() -> None:
    found = Flow.from_properties(Properties(BASE), "a->b")
    assert (found.transforms, found.transform_of("customers"), found.dead_letter_topic) == (
        (),
        None,
        "mirrorlake.dead-letters.a",
    )


def test_a_transform_is_what_its_properties_say() -> None:
    every = {
        "key": "k",
        "value": "v",
        "headers": "h",
        "timestamp": "t",
        "partition": "p",
        "key.format": "avro",
        "key.schema": '"long"',
    }
    changes = {
        name: value
        for part, text in {**every, "on.error": "dead-letter", "compression.type": "zstd"}.items()
        for name, value in of(part, text).items()
    }
    found = flow(**changes, **{"mirrorlake.dead.letter.topic": "dead"})
    (transform,) = found.transforms
    assert transform.expressions == {
        "where": "value_data.country <> 'DE'",
        "key": "k",
        "value": "v",
        "headers": "h",
        "timestamp": "t",
        "partition": "p",
    }
    assert transform.formats == {"key": Format("avro", '"long"'), "value": Format("json", "country STRING")}
    assert (transform.on_error, transform.compression_type, found.dead_letter_topic) == ("dead-letter", "zstd", "dead")
    assert "mirrorlake.transform.gdpr.value.schema = country STRING" in transform.describe().splitlines()
    assert found.warnings == ()


def test_what_is_not_given_stays_as_it_is() -> None:
    (transform,) = flow().transforms
    assert transform == Transform(
        "gdpr", transform.topics, where="value_data.country <> 'DE'", value_format=Format("json", "country STRING")
    )
    assert (transform.on_error, transform.compression_type, transform.key_format) == ("stop", "lz4", Format("bytes"))


def test_a_topic_takes_the_first_transform_whose_filter_matches_and_heartbeats_take_none() -> None:
    slim = {
        "mirrorlake.transforms": "gdpr, slim",
        "mirrorlake.transform.slim.topics": ".*",
        "mirrorlake.transform.slim.headers": "array()",
    }
    found = flow(**slim)
    names = {
        topic: transform.name if (transform := found.transform_of(topic)) else None
        for topic in ("customers", "customers-2", "people", "people2", "heartbeats")
    }
    assert names == {
        "customers": "gdpr",
        "customers-2": "gdpr",
        "people": "gdpr",
        "people2": "slim",
        "heartbeats": None,
    }
    alone = flow(**slim, **{"heartbeats.replication.enabled": "false"}).transform_of("heartbeats")
    assert alone is not None
    assert alone.name == "slim"


def test_a_property_of_the_flow_wins_over_the_targets_and_the_files() -> None:
    cascade = {
        "b.mirrorlake.transform.gdpr.where": "target",
        "mirrorlake.transform.gdpr.key": "file",
        "a->b.mirrorlake.transform.gdpr.on.error": "dead-letter",
    }
    (transform,) = flow(**cascade).transforms
    assert (transform.where, transform.key, transform.on_error) == ("target", "file", "dead-letter")
    assert flow(**{"a->b.mirrorlake.transforms": ""}).transforms == ()


def test_what_could_not_be_masked_goes_to_no_third_cluster_whatever_its_topic_is_called() -> None:
    file = {
        "clusters": "a, b, c",
        "c.bootstrap.servers": "c:9092",
        "mirrorlake.dead.letter.topic": "dlq",
        "b->c.enabled": "true",
        "b->c.topics": ".*",
    }
    onward = Flow.from_properties(Properties({**BASE, **file}), "b->c")
    assert not onward.mirrors_topic("dlq")
    assert onward.mirrors_topic("orders")
    assert flow(**file, **{"replication.policy.class": "IdentityReplicationPolicy"}).unnamed(
        {"dlq", "orders"}
    ).keys() == {"dlq"}, "the flow's own dead letters are there"


def test_a_transform_that_no_flow_names_is_warned_of() -> None:
    assert flow(**{"mirrorlake.transforms": None}).warnings == (
        "transform gdpr is configured, but no flow names it in mirrorlake.transforms; it has no effect",
    )
    elsewhere = {"mirrorlake.transforms": None, "b->a.enabled": "true", "b->a.mirrorlake.transforms": "gdpr"}
    assert flow(**elsewhere).warnings == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mirrorlake.transforms": "gdpr, a b"}, "mirrorlake.transforms names 'a b'; allowed in a name are letters"),
        ({"mirrorlake.transforms": "gdpr, gdpr"}, "names gdpr twice"),
        ({"mirrorlake.transforms": "gdpr, slim"}, "property mirrorlake.transform.slim.topics is missing"),
        (of("topics", None), "property mirrorlake.transform.gdpr.topics is missing"),
        (of("topics", ","), "mirrorlake.transform.gdpr.topics is ',', which names no topic"),
        (of("topics", "("), "property mirrorlake.transform.gdpr.topics: .* is not a valid regular expression"),
        (of("filter", "x"), "property mirrorlake.transform.gdpr.filter is unknown.* Allowed are topics, where, key"),
        (of("wehre", "x"), "mirrorlake.transform.gdpr.wehre is unknown; did you mean where?"),
        (of("where", ""), "property mirrorlake.transform.gdpr.where is empty"),
        (
            of("value", "sha2(value, '${env:SALT}')"),
            r"mirrorlake.transform.gdpr.value holds the reference \$\{env:SALT\}\. Remove the reference: "
            r"Spark would put in the value of a variable or of its own configuration",
        ),
        (of("value", "concat(value, '${spark.app.name}')"), r"gdpr.value holds the reference \$\{spark.app.name\}"),
        (of("on.error", "skip"), "mirrorlake.transform.gdpr.on.error is 'skip' .*allowed is stop or dead-letter"),
        (
            of("compression.type", "br"),
            "gdpr.compression.type is 'br' .*allowed is none or gzip or snappy or lz4 or zstd",
        ),
        (of("value.format", "xml"), "gdpr.value.format is 'xml' .*allowed is bytes or json or avro or confluent-avro"),
        (
            of("value.schema", None),
            "gdpr.value.schema is missing, but mirrorlake.transform.gdpr.value.format = json needs a schema",
        ),
        (of("key.schema", "x INT"), "gdpr.key.schema has no effect: set mirrorlake.transform.gdpr.key.format"),
        (of("value.format", "avro"), "gdpr.value.schema is 'country STRING', which is not JSON"),
        (
            {**of("where", None), **of("value.format", None), **of("value.schema", None)},
            "transform gdpr changes nothing. Set at least one of",
        ),
        (
            {"mirrorlake.dead.letter.topic": "a/b"},
            "mirrorlake.dead.letter.topic is 'a/b', which is not a valid topic name",
        ),
    ],
)
def test_a_bad_transform_is_refused_with_property_and_what_is_allowed(
    changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        flow(**changes)


@pytest.mark.parametrize("text", ["", "0", "10001", "-5", "ten", "1.5", "²"])
def test_a_sample_that_is_no_number_or_out_of_bounds_is_refused(text: str) -> None:
    assert integer("sample", {"sample": " 7 "}, 20, 1, 10_000, {}) == 7
    with pytest.raises(ConfigurationError, match=r"parameter sample is .* allowed is a whole number from 1 to 10000"):
        integer("sample", {"sample": text}, 20, 1, 10_000, {})
