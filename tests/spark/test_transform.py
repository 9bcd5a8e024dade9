"""Transforms in Spark: each row yields one row, for any record.

A transform that can't guarantee this is refused beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.transform import Format, Transform
from mirrorlake.errors import ConfigurationError
from mirrorlake.transforms.evaluate import apply, explain_failure
from mirrorlake.transforms.validate import KAFKA, validate
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

PROPERTY = "mirrorlake.transform.t."
CUSTOMER = Format("json", "id BIGINT, country STRING, email STRING")
TIME_MS = 1_793_491_200_123
TIME = datetime.fromtimestamp(TIME_MS / 1000, UTC)
MASK = (
    "CASE WHEN value IS NOT NULL THEN to_json(struct(value_data.* EXCEPT (email), sha2(value_data.email, 256) AS "
    "email)) END"
)
AVRO = (
    '{"type": "record", "name": "customer", "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": '
    '["null", "string"]}]}'
)


def transform(**given: Any) -> Transform:
    return Transform("t", NameFilter(f"{PROPERTY}topics", (".*",)), **given)


def records(spark: Any, *values: bytes | None, **columns: Any) -> Any:
    """Makes records of topic `x`, partition 3, with offsets from 0 and keys k0, k1, ..."""
    constant = {"timestamp": TIME, "headers": None, **columns}
    rows = [
        (f"k{at}".encode(), value, "x", 3, at, constant["timestamp"], 0, constant["headers"])
        for at, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, KAFKA).repartition(2)


def applied(frame: Any, how: Transform) -> list[Row]:
    """Applies a transform; returns the records in the order of their offsets."""
    validate(frame.sparkSession, how)
    return sorted(apply(frame, how).collect(), key=lambda row: row["offset"])


def outcomes(rows: list[Row]) -> list[tuple[str, str | None, Any]]:
    """Returns outcome, failed part and value of each record."""
    return [
        (row["outcome"], row["reason"] and row["reason"].removeprefix(PROPERTY), row["value"] and bytes(row["value"]))
        for row in rows
    ]


@pytest.fixture(scope="module", autouse=True)
def lookups(spark: Any) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW segments AS SELECT * FROM VALUES (1L, 'gold'), (1L, 'amber'), (2L, 'silver') "
        "AS t(id, segment)"
    )
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW settings AS SELECT * FROM VALUES ('k0', 'zero') AS t(key, value)")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION segment_of(x BIGINT) RETURNS STRING RETURN (SELECT max(segment) FROM "
        "segments WHERE id = x)"
    )
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION number_of(x STRING) RETURNS INT RETURN CAST(x AS INT)")
    spark.udf.register("in_python", lambda text: text, "string")


@pytest.fixture(params=["interpreted", "generated"])
def code(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """Switches code generation: local sessions interpret, clusters generate code.

    Generated code evaluates expressions beforehand that occur twice.
    """
    names = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items() if request.param == "generated" else ():
        spark.conf.set(name, value)
    yield request.param
    for name, value in before.items():
        spark.conf.set(name, value)


def test_nothing_but_what_is_named_changes(spark: Any) -> None:
    (row,) = applied(
        records(spark, b"\x00\xff", headers=[("h", b"1"), ("h", None)]), transform(key="upper(CAST(key AS STRING))")
    )
    assert row.asDict(recursive=True) == {
        "topic": "x",
        "partition": 3,
        "offset": 0,
        "outcome": "kept",
        "reason": None,
        "key": b"K0",
        "value": b"\x00\xff",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "timestamp_ms": TIME_MS,
        "target_partition": 3,
    }


def test_key_headers_timestamp_and_partition_can_be_given(spark: Any) -> None:
    how = transform(
        key="NULL",
        headers="array(named_struct('key', topic, 'value', key))",
        timestamp="timestamp + INTERVAL 1 SECOND",
        partition="pmod(hash(key), 5)",
    )
    for row in applied(records(spark, b"a", b"b"), how):
        assert (row["outcome"], row["key"], row["timestamp_ms"]) == ("kept", None, TIME_MS + 1_000)
        assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [
            ("x", f"k{row['offset']}".encode())
        ]
        assert row["target_partition"] in range(5)
    (row,) = applied(
        records(spark, b"a"), transform(headers="array()", timestamp="offset + 7", partition="CAST(2 AS TINYINT)")
    )
    assert (row["headers"], row["timestamp_ms"], row["target_partition"]) == ([], 7, 2)


def test_a_field_of_json_is_masked_and_tombstones_stay_tombstones(spark: Any, code: str) -> None:
    rows = applied(records(spark, b'{"id": 1, "email": "a@b"}', None), transform(value=MASK, value_format=CUSTOMER))
    assert outcomes(rows) == [
        ("kept", None, b'{"id":1,"email":"%s"}' % sha256(b"a@b").hexdigest().encode()),
        ("kept", None, None),
    ]


def test_where_keeps_what_is_true_and_null_is_not(spark: Any) -> None:
    rows = applied(
        records(spark, b'{"country": "FR"}', b'{"country": "DE"}', b"{}", None),
        transform(where="value_data.country <> 'DE'", value_format=CUSTOMER),
    )
    assert outcomes(rows) == [("kept", None, b'{"country": "FR"}'), *[("filtered", None, None)] * 3]
    assert rows[1].asDict() == {
        **dict.fromkeys(rows[1].asDict()), "topic": "x", "partition": 3, "offset": 1, "outcome": "filtered",
    }  # fmt: skip


def test_an_expression_that_raises_fails_one_record_only_and_leaves_it_as_it_is(spark: Any, code: str) -> None:
    number = "CAST(CAST(value AS STRING) AS INT)"
    how = transform(where=f"{number} > 0 AND {number} % 2 = 1", value=f"CAST({number} + {number} AS STRING)")
    frame = records(spark, b"21", b"x", b"-1", None, str(2**31 - 1).encode())
    rows = applied(frame, how)
    assert outcomes(rows) == [
        ("kept", None, b"42"),
        ("failed", "where", b"x"),
        ("filtered", None, None),
        ("filtered", None, None),
        ("failed", "value", b"2147483647"),
    ]
    assert (bytes(rows[1]["key"]), rows[1]["timestamp_ms"], rows[1]["target_partition"]) == (b"k1", TIME_MS, 3)
    assert apply(frame, how).groupBy("outcome").count().orderBy("outcome").collect() == [
        ("failed", 2),
        ("filtered", 2),
        ("kept", 1),
    ]
    assert [
        row["offset"]
        for row in apply(frame, how).filter("outcome = 'failed'").orderBy("offset").select("offset").collect()
    ] == [1, 4]
    assert "'x'" in explain_failure(frame, how, "x", 3, 1, f"{PROPERTY}where", quotes_contents=True)
    assert explain_failure(frame, how, "x", 3, 1, f"{PROPERTY}where") == "CAST_INVALID_INPUT"
    assert "overflow" in explain_failure(frame, how, "x", 3, 4, f"{PROPERTY}value", quotes_contents=True)
    assert explain_failure(frame, how, "x", 3, 4, f"{PROPERTY}value") == "ARITHMETIC_OVERFLOW"


def test_every_record_is_decoded_once(spark: Any) -> None:
    how = transform(
        where="value_data.country <> 'DE'", key="value_data.country", value="value_data.email", value_format=CUSTOMER
    )
    only_filter, only_value = (
        transform(**{part: getattr(how, part)}, value_format=CUSTOMER) for part in ("where", "value")
    )
    for one in (how, only_filter, only_value):
        for frame in (
            apply(records(spark, b"{}"), one),
            apply(records(spark, b"{}"), one).filter("outcome = 'failed'"),
        ):
            assert frame._jdf.queryExecution().optimizedPlan().toString().count("from_json") == 1


def test_a_filtered_record_does_not_fail_by_anything_else(spark: Any, code: str) -> None:
    how = transform(
        where="key <> CAST('k1' AS BINARY)",
        value="CAST(CAST(value_data.country AS INT) AS STRING)",
        partition="CAST(1 / value_data.id AS INT)",
        value_format=CUSTOMER,
    )
    rows = applied(
        records(
            spark,
            b'{"country": "7", "id": 1}',
            b'{"country": "x"}',
            b'{"country": "x", "id": 1}',
            b'{"country": "7", "id": 0}',
            b"{",
        ),
        how,
    )
    assert outcomes(rows) == [
        ("kept", None, b"7"),
        ("filtered", None, None),
        ("failed", "value", b'{"country": "x", "id": 1}'),
        ("failed", "partition", b'{"country": "7", "id": 0}'),
        ("failed", "value.format", b"{"),
    ]
    unread = records(spark, b"{", b"{")  # malformed, but the filter reads the key only
    assert [row["outcome"] for row in applied(unread, how)] == ["failed", "filtered"]


def test_what_is_no_json_of_the_schema_fails(spark: Any) -> None:
    values = [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b"{",
        b'{"id": "x"}',
        b'{"id": 1.5}',
        b'{"email": "\xff"}',
        b"{}",
        b'{"other": 1}',
        None,
    ]
    frame, how = records(spark, *values), transform(value_format=CUSTOMER)
    rows = applied(frame, how)
    assert outcomes(rows) == [
        *[("failed", "value.format", value) for value in values[:9]],
        *[("kept", None, value) for value in values[9:]],
    ]
    said = [
        explain_failure(frame, how, "x", 3, at, f"{PROPERTY}value.format", quotes_contents=at > 0) for at in (0, 6, 8)
    ]
    assert "there is no JSON document" in said[0]
    assert "'id'" in said[1]
    assert "UTF-8" in said[2]


def test_a_record_that_can_not_be_judged_fails_and_is_not_filtered(spark: Any) -> None:
    rows = applied(
        records(spark, b"{", b'{"country": "DE"}'), transform(where="value_data.country <> 'DE'", value_format=CUSTOMER)
    )
    assert outcomes(rows) == [("failed", "value.format", b"{"), ("filtered", None, None)]


def test_avro_and_avro_of_a_registry_are_read(spark: Any) -> None:
    plain = [
        bytes(row[0])
        for row in spark.createDataFrame([(1, "FR"), (2, None)], "id BIGINT, country STRING")
        .select(to_avro(F.struct("id", "country"), AVRO))
        .collect()
    ]
    expression = "concat(CAST(value_data.id AS STRING), '/', coalesce(value_data.country, '?'))"
    rows = applied(
        records(spark, *plain, None, b"\x02"),
        transform(value=f"CASE WHEN value IS NOT NULL THEN {expression} END", value_format=Format("avro", AVRO)),
    )
    assert outcomes(rows) == [
        ("kept", None, b"1/FR"),
        ("kept", None, b"2/?"),
        ("kept", None, None),
        ("failed", "value.format", b"\x02"),
    ]

    framed = [b"\x00" + (70_000).to_bytes(4, "big") + value for value in plain]
    how = transform(
        value=f"concat(CAST(value_schema_id AS STRING), ' ', {expression})", value_format=Format("confluent-avro", AVRO)
    )
    frame = records(spark, *framed, plain[0], b"\x00\x00")
    rows = applied(frame, how)
    assert outcomes(rows) == [
        ("kept", None, b"70000 1/FR"),
        ("kept", None, b"70000 2/?"),
        *[("failed", "value.format", value) for value in (plain[0], b"\x00\x00")],
    ]
    assert "does not begin with a zero byte and a schema id of four bytes" in explain_failure(
        frame, how, "x", 3, 2, f"{PROPERTY}value.format"
    )
    by_id = transform(where="value_schema_id = 70000", value_format=Format("confluent-avro", AVRO))
    assert [row["outcome"] for row in applied(frame, by_id)] == ["kept", "kept", "filtered", "filtered"]


def test_records_are_enriched_from_tables(spark: Any, code: str) -> None:
    frame = records(spark, b'{"id": 1}', b'{"id": 2}', b'{"id": 3}', b"{}", b'{"id": "x"}')
    found = [b"gold", b"silver", None, None]
    for expression in (
        "(SELECT max(s.segment) FROM segments s WHERE s.id = value_data.id)",
        "(SELECT max_by(s.segment, s.segment) FROM (SELECT *, row_number() OVER (ORDER BY id) FROM segments) s WHERE "
        "s.id = value_data.id HAVING count(*) > 0)",
        "segment_of(value_data.id)",
    ):
        rows = applied(frame, transform(value=expression, value_format=CUSTOMER))
        assert outcomes(rows) == [
            *[("kept", None, value) for value in found],
            ("failed", "value.format", b'{"id": "x"}'),
        ]
    kept = transform(
        where="value_data.id IN (SELECT id FROM segments) AND NOT EXISTS (SELECT 1 FROM segments s WHERE s.id = "
        "value_data.id AND s.segment = 'silver')"
    )
    rows = applied(frame, Transform(**{**vars(kept), "value_format": CUSTOMER}))
    assert [row["outcome"] for row in rows] == ["kept", "filtered", "filtered", "filtered", "failed"]


def test_a_lookup_of_what_is_no_number_finds_nothing_with_try_cast(spark: Any, code: str) -> None:
    how = transform(
        value="(SELECT max(s.segment) FROM segments s WHERE s.id = try_cast(CAST(value AS STRING) AS BIGINT))"
    )
    assert outcomes(applied(records(spark, b"1", b"x", None), how)) == [
        ("kept", None, b"gold"),
        ("kept", None, None),
        ("kept", None, None),
    ]


def test_a_column_of_the_record_can_be_told_from_one_of_a_table(spark: Any) -> None:
    how = transform(value="(SELECT max(value) FROM settings WHERE settings.key = CAST(record.key AS STRING))")
    assert outcomes(applied(records(spark, b"a", b"b"), how)) == [("kept", None, b"zero"), ("kept", None, None)]


def test_what_no_record_can_have_is_a_failure(spark: Any) -> None:
    is_first = "CASE WHEN offset = 0 THEN {} ELSE {} END"
    for part, given, said in [
        ("timestamp", is_first.format("CAST(NULL AS TIMESTAMP)", "timestamp"), "the expression gave NULL"),
        ("partition", is_first.format("CAST(NULL AS INT)", "1"), "the expression gave NULL"),
        (
            "headers",
            is_first.format("array(named_struct('key', CAST(NULL AS STRING), 'value', value))", "headers"),
            "the expression gave a header whose key is NULL",
        ),
    ]:
        frame, how = records(spark, b"a", b"b"), transform(**{part: given})
        assert outcomes(applied(frame, how)) == [("failed", part, b"a"), ("kept", None, b"b")]
        assert explain_failure(frame, how, "x", 3, 0, f"{PROPERTY}{part}") == said
    made = transform(headers="array(named_struct('key', CAST(value AS STRING), 'value', value))")
    frame = records(spark, b"\xff", b"b")
    assert outcomes(applied(frame, made)) == [("failed", "headers", b"\xff"), ("kept", None, b"b")]
    said = "the expression gave a header whose key is not valid UTF-8"
    assert explain_failure(frame, made, "x", 3, 0, f"{PROPERTY}headers") == said
    theirs = f"{PROPERTY}value.schema.ids: schema id 9 is not in the registry of cluster a"
    assert explain_failure(frame, made, "x", 3, 0, theirs) == theirs, "Spark has not refused it"
    (row,) = applied(records(spark, b"a"), transform(headers="CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"))
    assert (row["outcome"], row["headers"]) == ("kept", [])


def test_a_record_that_is_gone_or_would_not_fail_now_is_said_to_be(spark: Any) -> None:
    frame, how = records(spark, b"1"), transform(value="CAST(CAST(CAST(value AS STRING) AS INT) AS STRING)")
    assert explain_failure(frame, how, "x", 3, 9, f"{PROPERTY}value") == "the source no longer has the record"
    assert "the expression can be evaluated now" in explain_failure(frame, how, "x", 3, 0, f"{PROPERTY}value")


REFUSED = [
    ("where", "value_data.contry <> 'DE'", "FIELD_NOT_FOUND.*`contry`"),
    ("where", "nothing > 1", "UNRESOLVED_COLUMN.*`nothing`"),
    ("where", "value_data.country", "its type is STRING; allowed is BOOLEAN"),
    ("value", "frobnicate(value)", "UNRESOLVED_ROUTINE.*`frobnicate`"),
    ("value", "upper(value_data.country", "PARSE_SYNTAX_ERROR"),
    ("value", "value_data.country; DROP TABLE x", "PARSE_SYNTAX_ERROR"),
    ("value", "value_data", "its type is STRUCT<.*; allowed is STRING or BINARY"),
    ("value", "to_json(struct(*))", "Name the columns"),
    ("value", "to_json(struct(Record.*))", "Name the columns"),
    ("value", "value_data.*", "INVALID_USAGE_OF_STAR"),
    ("key", "max(topic)", r"INVALID_WHERE_CONDITION.*max\(record.topic\)"),
    ("key", "first_value(topic) OVER (ORDER BY offset)", "not allowed to use window functions"),
    ("key", "explode(array('a', 'b'))", "UNSUPPORTED_GENERATOR"),
    ("key", "inline(array(struct('a')))", "UNSUPPORTED_GENERATOR"),
    ("key", "uuid()", "the expression is not deterministic"),
    ("key", "in_python(value_data.country)", "in_python is a Python function"),
    (
        "headers",
        "array(named_struct('value', 'a', 'key', value))",
        "its type is ARRAY<.*; allowed is ARRAY<STRUCT<key: STRING, value: BINARY>>",
    ),
    ("value", "java_method('java.lang.System', 'getenv', 'HOME')", "function java_method reaches beyond"),
    ("value", "upper(concat('x', REFLECT('java.lang.System', 'getenv', 'HOME')))", "function reflect reaches beyond"),
    ("value", "(SELECT max(reflect('java.util.UUID', 'randomUUID')) FROM segments)", "function reflect reaches beyond"),
    ("value", "(SELECT max(value) FROM text.`/etc/passwd`)", r"it reads the files at /etc/passwd\. Read a table"),
    ("where", "topic IN (SELECT value FROM `TEXT`.`file:/etc/passwd`)", "it reads the files at file:/etc/passwd"),
    ("where", "EXISTS (SELECT 1 FROM (SELECT * FROM csv.`/etc/passwd`))", "it reads the files at /etc/passwd"),
    ("value", "(WITH p AS (SELECT * FROM text.`/etc/passwd`) SELECT max(value) FROM p)", "WITH is not allowed"),
    ("value", "(SELECT max(_1) FROM read_files('/etc/passwd'))", "function read_files reaches beyond"),
    ("value", "(SELECT max(value) FROM text.`*`)", r"it reads the files at \*"),
    (
        "value",
        "(SELECT max(v) FROM `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`..` AS t(v))",
        "reads the",
    ),
    (
        "value",
        "(SELECT max(value) FROM VALUES (1), LATERAL (SELECT value FROM text.`/etc/passwd`))",
        "it reads the files",
    ),
    ("value", "(SELECT max(value) FROM text.`/etc/passwd` VERSION AS OF 1)", "it reads the files"),
    ("value", "(SELECT max(value) FROM IDENTIFIER('text.`/etc/passwd`'))", r"IDENTIFIER\(...\) is not allowed"),
    ("value", "IDENTIFIER('re' || 'flect')('java.lang.System', 'getenv', 'HOME')", r"IDENTIFIER\(...\) is not allowed"),
    ("value", "ai_translate(value, 'en')", "function ai_translate reaches beyond"),
    ("timestamp", "1", "its type is INT; allowed is TIMESTAMP or BIGINT"),
    ("partition", "offset", "its type is BIGINT; allowed is INT or SMALLINT or TINYINT"),
    ("value", "(SELECT max(segment) FROM nowhere)", "TABLE_OR_VIEW_NOT_FOUND.*`nowhere`"),
    (
        "value",
        "(SELECT segment FROM segments s WHERE s.id = value_data.id)",
        r"may return several rows\. Use an aggregate",
    ),
    (
        "value",
        "(SELECT segment FROM segments s WHERE s.id = value_data.id LIMIT 1)",
        "the subquery has GlobalLimit around a comparison",
    ),
    (
        "value",
        "(SELECT CAST(max(n) AS STRING) FROM (SELECT row_number() OVER (ORDER BY id) n FROM segments s WHERE s.id = "
        "value_data.id))",
        "the subquery has Window around a comparison",
    ),
    (
        "value",
        "(SELECT max(segment) FROM segments s WHERE s.id = value_data.country)",
        r"CAST\(.*country` AS BIGINT\) is evaluated for all records at once",
    ),
    (
        "value",
        "(SELECT max(segment) FROM segments s WHERE s.id = value_data.id + 1)",
        r"id` \+ .* is evaluated for all records at once",
    ),
    (
        "where",
        "CAST(value_data.country AS BIGINT) IN (SELECT id FROM segments)",
        r"CAST\(.*country` AS BIGINT\) is evaluated for all records at once",
    ),
    (
        "value",
        "segment_of(CAST(value_data.country AS BIGINT))",
        r"CAST\(.*country` AS BIGINT\) is evaluated for all records at once",
    ),
]


@pytest.mark.parametrize(("part", "text", "why"), REFUSED, ids=[f"{part}: {text}"[:60] for part, text, _ in REFUSED])
def test_an_expression_that_can_not_be_used_is_refused_with_its_property(
    spark: Any, part: str, text: str, why: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        validate(spark, transform(**{part: text}, value_format=CUSTOMER))
    assert refused.value.message.startswith(f"property {PROPERTY}{part} is '{text}': ")
    assert refused.match(why)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(("name", "schema"), [("json", "id NOTYPE"), ("json", "INT"), ("avro", '{"type": "recrd"}')])
def test_a_schema_that_spark_does_not_know_is_refused(spark: Any, name: str, schema: str) -> None:
    with pytest.raises(ConfigurationError, match=f"property {PROPERTY}key.schema is '.*': "):
        validate(spark, transform(key_format=Format(name, schema)))


def test_sql_functions_and_sound_arguments_pass(spark: Any) -> None:
    rows = applied(
        records(spark, b'{"country": "5"}', b'{"country": "x"}'),
        transform(partition="number_of(value_data.country)", value_format=CUSTOMER),
    )
    assert [(row["outcome"], row["target_partition"]) for row in rows] == [("kept", 5), ("failed", 3)]


def test_a_session_that_hides_errors_is_refused(spark: Any) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(ConfigurationError, match=r"spark\.sql\.ansi\.enabled is not true"):
            validate(spark, transform(key="'k'"))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
