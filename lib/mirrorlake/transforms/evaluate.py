"""Transforms records in Spark: one output row for each input row, whatever a record holds.

In ANSI mode, an expression that can't be evaluated for one record ends the whole job. Catalyst's TryEval therefore
evaluates each expression. It returns a struct, which distinguishes "returned null" (a struct that holds null) from
"raised" (no struct). Three properties of Spark need care:

- Generated code evaluates common subexpressions in advance, outside of TryEval. It does not do so in conditional
  branches, so every attempt is in one.
- The optimizer copies an expression to wherever its result is used, and pushes it into filters. It does not move
  nondeterministic expressions, so every attempt looks nondeterministic.
- The outer references of a correlated subquery become the key of a join. `transforms.validate.validate` only accepts
  expressions there that can't raise.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from mirrorlake.config.transform import (
    CONFLUENT_AVRO,
    HEADERS,
    JSON,
    KEY,
    PARTITION,
    TIMESTAMP,
    VALUE,
    WHERE,
    Format,
    Transform,
)
from mirrorlake.errors import condition, root_cause

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEPT, FILTERED, FAILED = "kept", "filtered", "failed"
SEEN_AS = "record"  # qualifier of a record's columns, for subqueries whose tables have columns of the same name
HEADERS_TYPE = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
GUARD = "spark_partition_id() >= 0"  # condition of every attempt: always true, but the optimizer can't know it
REGISTRY_BYTES = 5  # magic byte 0 and the schema id
REPLACED = "\ufffd"  # what Java makes of bytes that are no UTF-8
NO_DOCUMENT = "there is no JSON document"
NO_SCHEMA_ID = "the data does not begin with a zero byte and a schema id of four bytes"


def apply(records: DataFrame, transform: Transform) -> DataFrame:
    """Transforms records.

    Args:
        records: rows of Spark's Kafka source with includeHeaders: key, value, topic, partition, offset, timestamp,
            headers.
        transform: a transform that `transforms.validate.validate` has accepted.

    Returns:
        One row for each record, in no particular order if expressions hold subqueries. Its columns are topic,
        partition, offset; outcome (`kept`, `filtered`, `failed`); reason (the property that failed); key and value
        (BINARY), headers, timestamp_ms (BIGINT), target_partition (INT). The columns from key on are null for a
        filtered record, and those of the source for a failed record.
    """
    from pyspark.sql import functions as F

    frame = _with_data(seen(records), transform)
    undecoded = {f"{side}.format": F.col(side).isNotNull() & F.col(f"_{side}").isNull() for side in transform.formats}
    # A filtered record may be malformed, as long as the filter doesn't read the malformed part.
    needed = {
        part: is_bad
        for part, is_bad in undecoded.items()
        if _mentions(frame, transform.where, f"{part.partition('.')[0]}_data")
    }
    frame = _with_where(frame, transform, needed)
    frame = _with_contents(frame, transform, undecoded)
    contents = {part: _is_bad(part, F.col(f"_new_{part}")) for part in transform.expressions if part != WHERE}
    is_filtered = F.col("_where").isNotNull() & ~F.coalesce("_where.it", F.lit(False))
    reason = _first(
        transform,
        {**needed, WHERE: F.col("_where").isNull()},
        F.when(~is_filtered, _first(transform, {**undecoded, **contents})),
    )
    return _outcome(frame.withColumns({"_is_filtered": is_filtered, "_reason": reason}), transform)


def explain_failure(
    records: DataFrame,
    transform: Transform,
    topic: str,
    partition: int,
    offset: int,
    reason: str,
    *,
    quotes_contents: bool = False,
) -> str:
    """Explains why a record failed, in one line.

    The line is Spark's error when it evaluates the expression for this record alone, without TryEval.

    Args:
        records: the input of `apply`, or the smallest part of it that holds the record: Spark reads all of it again.
        transform: the transform that failed.
        topic: source topic of the record.
        partition: source partition of the record.
        offset: source offset of the record.
        reason: the reason that `apply` returned for the record.
        quotes_contents: whether the line has Spark's message, which may quote contents of the record; else it has the
            error's condition only.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    part = reason.removeprefix(transform.property_name(""))
    side, _, is_format = part.partition(".")
    if part not in {*transform.expressions, *(f"{side}.format" for side in transform.formats)}:
        return reason  # not Spark has refused the record: a schema registry, or what the target needs
    record = seen(
        records.filter((F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") == offset))
    )
    try:
        if is_format:
            rows = record.select(decoded(side, transform.formats[side]).alias("it")).collect()
        else:
            rows = (
                with_data_or_raise(record, transform).select(F.expr(transform.expressions[part]).alias("it")).collect()
            )
    except (PySparkException, Py4JJavaError) as error:
        said = root_cause(error)
        own = next((reason for reason in (NO_DOCUMENT, NO_SCHEMA_ID) if reason in said), None)
        return said if quotes_contents else own or condition(error)[0]
    if not rows:
        return "the source no longer has the record"
    return (
        _what_is_wrong(part, rows[0]["it"])
        or "the expression can be evaluated now; a table that it looks up may have changed"
    )


def seen(records: DataFrame) -> DataFrame:
    """Returns the columns that expressions see before formats are decoded."""
    from pyspark.sql import functions as F

    headers = F.coalesce("headers", F.array().cast(HEADERS_TYPE)).alias("headers")
    return records.select("topic", "partition", "offset", "timestamp", "key", "value", headers).alias(SEEN_AS)


def with_data_or_raise(frame: DataFrame, transform: Transform) -> DataFrame:
    """Adds the columns of the formats to the result of `seen`; reading them raises for a malformed record."""
    data = {f"{side}_data": decoded(side, how) for side, how in transform.formats.items()}
    return frame.withColumns({**data, **_schema_ids(transform)}).alias(SEEN_AS) if data else frame


def decoded(side: str, how: Format) -> Column:
    """Returns the decoded keys or values, null for null; raises for malformed data."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    if how.name == JSON:
        document = F.from_json(
            F.decode(side, "UTF-8"), how.schema, {"mode": "FAILFAST"}
        )  # a cast would accept bytes that are not valid UTF-8
        return F.when(F.col(side).isNotNull(), F.coalesce(document, F.raise_error(F.lit(NO_DOCUMENT))))
    binary = F.col(side)
    if how.name == CONFLUENT_AVRO:
        error = F.raise_error(F.lit(NO_SCHEMA_ID))
        binary = (
            F.when(F.col(side).isNull(), None)
            .when(_is_registered(side), F.expr(f"substring({side}, {REGISTRY_BYTES + 1})"))
            .otherwise(error)
        )
    return from_avro(binary, how.schema, {"mode": "FAILFAST"})


# -- the stages of `apply`: each adds columns whose names begin with _ ------------------------------


def _with_data(frame: DataFrame, transform: Transform) -> DataFrame:
    """Decodes keys and values: _key and _value hold the attempts, key_data and value_data their results."""
    from pyspark.sql import functions as F

    if not transform.formats:
        return frame
    attempts = {
        f"_{side}": F.when(F.expr(GUARD) & F.col(side).isNotNull(), _attempt(frame, decoded(side, how)))
        for side, how in transform.formats.items()
    }
    frame = frame.withColumns({**attempts, **_schema_ids(transform)})
    return frame.withColumns({f"{side}_data": F.col(f"_{side}.it") for side in transform.formats}).alias(SEEN_AS)


def _with_where(frame: DataFrame, transform: Transform, needed: Mapping[str, Column]) -> DataFrame:
    """Adds _where, the attempt to evaluate the filter."""
    from pyspark.sql import functions as F

    verdict = _attempt(frame, F.expr(transform.where or "true"))
    return frame.withColumn("_where", F.when(F.expr(GUARD) & _none(needed), verdict))


def _with_contents(frame: DataFrame, transform: Transform, undecoded: Mapping[str, Column]) -> DataFrame:
    """Adds _new_<part>, the attempt to evaluate each expression, for records that pass the filter."""
    from pyspark.sql import functions as F

    goes_on = F.expr(GUARD) & F.coalesce("_where.it", F.lit(False)) & _none(undecoded)
    given = {part: F.expr(text) for part, text in transform.expressions.items() if part != WHERE}
    if HEADERS in given:
        given[HEADERS] = F.coalesce(given[HEADERS].cast(HEADERS_TYPE), F.array().cast(HEADERS_TYPE))
    return (
        frame.withColumns({f"_new_{part}": F.when(goes_on, _attempt(frame, column)) for part, column in given.items()})
        if given
        else frame
    )


def _outcome(frame: DataFrame, transform: Transform) -> DataFrame:
    """Returns the columns of `apply`."""
    from pyspark.sql import functions as F

    types = dict(frame.dtypes)
    old = {
        KEY: F.col("key"),
        VALUE: F.col("value"),
        HEADERS: F.col("headers"),
        TIMESTAMP: F.unix_millis("timestamp"),
        PARTITION: F.col("partition"),
    }
    new = {**old, **{part: F.col(f"_new_{part}.it") for part in old if part in transform.expressions}}
    if types.get(f"_new_{TIMESTAMP}") == "struct<it:timestamp>":
        new[TIMESTAMP] = F.unix_millis(new[TIMESTAMP])
    names = {
        KEY: ("key", "binary"),
        VALUE: ("value", "binary"),
        HEADERS: ("headers", HEADERS_TYPE),
        TIMESTAMP: ("timestamp_ms", "bigint"),
        PARTITION: ("target_partition", "int"),
    }
    is_failed, is_filtered = F.col("_reason").isNotNull(), F.col("_is_filtered")
    outcome = F.when(is_filtered, FILTERED).when(is_failed, FAILED).otherwise(KEPT).alias("outcome")
    payload = [
        F.when(is_failed, old[part]).when(~is_filtered, new[part].cast(kind)).alias(name)
        for part, (name, kind) in names.items()
    ]
    return frame.select("topic", "partition", "offset", outcome, F.col("_reason").alias("reason"), *payload)


# -- columns ----------------------------------------------------------------------------------------


def _attempt(frame: DataFrame, column: Column) -> Column:
    """Returns a struct with the column's value as `it`, or null if the column raises; must be used with GUARD."""
    from pyspark.sql import functions as F
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = frame.sparkSession._jvm
    columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
    return ClassicColumn(
        columns.column(
            jvm.org.apache.spark.sql.catalyst.expressions.TryEval(columns.expression(F.struct(column.alias("it"))._jc))
        )
    )


def _is_registered(side: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"octet_length({side}) >= {REGISTRY_BYTES} AND substring({side}, 1, 1) = X'00'")


def _schema_ids(transform: Transform) -> dict[str, Column]:
    """Returns the registry's schema ids, null where there is none."""
    from pyspark.sql import functions as F

    sides = [side for side, how in transform.formats.items() if how.name == CONFLUENT_AVRO]
    return {
        f"{side}_schema_id": F.when(
            _is_registered(side), F.expr(f"try_cast(conv(hex(substring({side}, 2, 4)), 16, 10) AS INT)")
        )
        for side in sides
    }


def _mentions(frame: DataFrame, text: str, column: str) -> bool:
    """Returns true if an expression needs a column."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    if not text:
        return False
    try:
        frame.drop(column).select(F.expr(text))
    except AnalysisException:
        return True
    return False


def _none(failures: Mapping[str, Column]) -> Column:
    from pyspark.sql import functions as F

    return reduce(operator.and_, (~is_bad for is_bad in failures.values()), F.lit(True))


def _first(transform: Transform, failures: Mapping[str, Column], otherwise: Column | None = None) -> Column:
    """Returns the property of the first part that failed, else `otherwise`."""
    from pyspark.sql import functions as F

    properties = [F.when(is_bad, F.lit(transform.property_name(part))) for part, is_bad in failures.items()]
    return F.coalesce(*properties, F.lit(None).cast("string") if otherwise is None else otherwise)


def _is_bad(part: str, attempt: Column) -> Column:
    """Returns true if an attempt raised, or returned a value that no record can have (`_what_is_wrong`)."""
    from pyspark.sql import functions as F

    if part in (TIMESTAMP, PARTITION):
        return attempt["it"].isNull()
    if part == HEADERS:
        return attempt.isNull() | F.exists(
            attempt["it"], lambda header: header["key"].isNull() | ~F.is_valid_utf8(header["key"])
        )
    return attempt.isNull()


def _what_is_wrong(part: str, value: Any) -> str:
    if part in (TIMESTAMP, PARTITION) and value is None:
        return "the expression gave NULL"
    keys = [header and header["key"] for header in (value or ())] if part == HEADERS else []
    if None in keys:
        return "the expression gave a header whose key is NULL"
    return "the expression gave a header whose key is not valid UTF-8" if any(REPLACED in key for key in keys) else ""
