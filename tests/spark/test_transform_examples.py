"""The transforms of docs/configuration.md have the effects that the page describes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import javaproperties
import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.transforms.evaluate import apply
from mirrorlake.transforms.validate import KAFKA, validate

PAGE = Path(__file__).resolve().parents[2] / "docs/configuration.md"
EXAMPLES = re.findall(
    r"```properties\n(.*?)```", PAGE.read_text().partition("\n## Transforms\n")[2].partition("\n## ")[0], re.DOTALL
)
BASE = {"clusters": "a, b", "a.bootstrap.servers": "h1:1", "b.bootstrap.servers": "h3:3", "a->b.enabled": "true"}


def transformed(spark: Any, example: str, topic: str, *values: bytes | None) -> list[Any]:
    flow = Flow.from_properties(Properties({**BASE, **javaproperties.loads(example)}), "a->b")
    how = flow.transform_of(topic)
    assert how is not None
    assert flow.warnings == ()
    validate(spark, how)
    rows = [(b"k", value, topic, 0, at, datetime.now(UTC), 0, None) for at, value in enumerate(values)]
    return sorted(apply(spark.createDataFrame(rows, KAFKA), how).collect(), key=lambda row: row["offset"])


@pytest.fixture(scope="module")
def customers(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS ref")
    spark.sql(
        "CREATE OR REPLACE TABLE ref.customers (id BIGINT, segment STRING) USING DELTA LOCATION "
        f"'{tmp_path_factory.mktemp('ref')}'"
    )
    spark.sql("INSERT INTO ref.customers VALUES (7, 'gold')")


def test_there_is_an_example_for_masking_filtering_and_enriching() -> None:
    assert [re.findall(r"mirrorlake\.transforms = (\w+)", example) for example in EXAMPLES] == [
        ["mask"],
        ["outside"],
        ["segment"],
    ]


def test_the_example_masks_a_field(spark: Any) -> None:
    rows = transformed(spark, EXAMPLES[0], "customers", b'{"id": 1, "country": "FR", "email": "a@b"}', None)
    assert re.fullmatch(rb'\{"id":1,"country":"FR","email":"[0-9a-f]{64}"\}', rows[0]["value"])
    assert (rows[1]["outcome"], rows[1]["value"]) == ("kept", None)


def test_the_example_keeps_the_records_of_a_country_where_they_are(spark: Any) -> None:
    rows = transformed(spark, EXAMPLES[1], "orders-2", b'{"country": "DE"}', b'{"country": "FR"}', b"{}", None, b"?")
    assert [row["outcome"] for row in rows] == ["filtered", "kept", "filtered", "kept", "failed"]


def test_the_example_enriches_from_a_table_as_it_is_then(spark: Any, customers: None) -> None:
    values = (b'{"id": 1, "customer_id": 7, "amount": 9.95}', b'{"id": 2, "customer_id": 8}', None)
    rows = transformed(spark, EXAMPLES[2], "orders", *values)
    assert [row["value"] and bytes(row["value"]) for row in rows] == [
        b'{"id":1,"customer_id":7,"amount":9.95,"segment":"gold"}',
        b'{"id":2,"customer_id":8}',
        None,
    ]
    assert [(header["key"], bytes(header["value"])) for header in rows[0]["headers"]] == [("origin", b"orders")]
    spark.sql("INSERT INTO ref.customers VALUES (8, 'silver')")
    assert (
        bytes(transformed(spark, EXAMPLES[2], "orders", *values)[1]["value"])
        == b'{"id":2,"customer_id":8,"segment":"silver"}'
    )
