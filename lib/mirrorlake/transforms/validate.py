"""Validates transforms: Spark must be able to evaluate them record by record, and no single record may end the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mirrorlake.config.transform import HEADERS, KEY, PARTITION, TIMESTAMP, VALUE, WHERE, Transform
from mirrorlake.errors import ConfigurationError, root_cause
from mirrorlake.ledger.sql_text import identifier
from mirrorlake.transforms.evaluate import HEADERS_TYPE, SEEN_AS, apply, decoded, seen, with_data_or_raise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    f"headers {HEADERS_TYPE}"
)
ALLOWED = {
    WHERE: ("BOOLEAN",),
    KEY: ("STRING", "BINARY"),
    VALUE: ("STRING", "BINARY"),
    HEADERS: ("ARRAY<STRUCT<key: STRING, value: BINARY>>",),
    TIMESTAMP: ("TIMESTAMP", "BIGINT"),
    PARTITION: ("INT", "SMALLINT", "TINYINT"),
}
# Expressions that Spark may evaluate outside of an attempt, as the key of a join: none of them raises. `_is_safe`
# checks casts separately.
SAFE = frozenset(
    """
    Alias AttributeReference OuterReference Literal GetStructField And Or Not EqualTo EqualNullSafe LessThan
    LessThanOrEqual
    GreaterThan GreaterThanOrEqual In IsNull IsNotNull
    Coalesce If CaseWhen Lower Upper StringTrim Substring Concat Length OctetLength Md5 Sha2 XxHash64 Murmur3Hash Hex
    """.split()
)

# Functions that call any method of the JVM, read secrets, logs or files, or send data away, on Spark or Databricks.
REACHING_OUT = frozenset(
    """
    reflect java_method try_reflect secret try_secret list_secrets http_request vector_search python_worker_logs
    read_files read_kafka read_kinesis read_pubsub read_pulsar read_statestore cloud_files remote_query
    """.split()
)
AI = "ai_"  # functions that send their arguments to a model

# Plan nodes allowed above the comparison of a subquery with a record. A LIMIT there takes one row in total instead of
# one for each record (Spark 4.1.3, unless the comparison is with a plain column). Windows may have the same problem.
SAFE_PLANS = frozenset("Project Filter Aggregate SubqueryAlias".split())


def validate(spark: SparkSession, transform: Transform) -> None:
    """Analyses a transform on an empty frame, without contacting Kafka.

    Raises:
        ConfigurationError: a schema or an expression is invalid: Spark can't parse it, its type is not allowed, it
            isn't about a single record, or one record could end the job. The message names the property, the expression
            and the cause.
    """
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        raise ConfigurationError(
            f"transform {transform.name}: spark.sql.ansi.enabled is not true in this session, so failed expressions "
            "would become NULL. Set spark.sql.ansi.enabled = true"
        )
    records = seen(spark.createDataFrame([], KAFKA))
    for side, how in transform.formats.items():
        with _refusing(transform, f"{side}.schema", how.schema):
            records.select(decoded(side, how))
    records = with_data_or_raise(records, transform)
    for part, text in transform.expressions.items():
        with _refusing(transform, part, text):
            for problem in _problems(records, part, text):
                raise _refused(transform, part, text, problem)
    apply(spark.createDataFrame([], KAFKA), transform)


@contextmanager
def _refusing(transform: Transform, part: str, text: str) -> Iterator[None]:
    """Turns Spark's analysis errors into configuration errors."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(transform, part, text, root_cause(error).rstrip("; ")) from None


def _refused(transform: Transform, part: str, text: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"property {transform.property_name(part)} is '{text}': {why}")


def _problems(records: DataFrame, part: str, text: str) -> Iterator[str]:
    """Yields the reasons against an expression, worst first."""
    from pyspark.sql import functions as F

    parsed = records.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)
    if any(_is_open_star(node) for node in _nodes(parsed)):
        yield "* stands for all columns that exist. Name the columns"
    yield from _reaches(records.sparkSession, parsed)
    result = records.select(F.expr(text).alias("it"))
    records.filter(F.expr(text).isNull())  # Spark refuses aggregates, windows and generators in a filter
    found = result.schema["it"].dataType
    if not _is_allowed(part, found):
        yield f"its type is {found.simpleString().upper()}; allowed is {' or '.join(ALLOWED[part])}"
    yield from _dangers(result, records)


def _reaches(spark: SparkSession, parsed: Any) -> Iterator[str]:
    """Yields the reasons why an expression, as it was parsed, could reach something other than records and tables."""
    for node in _nodes_within(parsed):
        kind = _kind(node)
        if kind in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
            name = str(_list(node.nameParts() if kind == "UnresolvedFunction" else node.name())[-1]).lower()
            if name in REACHING_OUT or name.startswith(AI):
                yield f"function {name} reaches beyond records and tables, and is not allowed in a transform"
        elif kind == "UnresolvedRelation":
            names = [str(name) for name in _list(node.multipartIdentifier())]
            if _is_of_files(spark, names):
                yield f"it reads the files at {names[1]}. Read a table, by its name or as delta.`{names[1]}`"
        elif kind == "UnresolvedWith":
            yield "WITH is not allowed in a transform. Write the query in its place"
        elif kind in ("ExpressionWithUnresolvedIdentifier", "PlanWithUnresolvedIdentifier"):
            yield "IDENTIFIER(...) is not allowed in a transform. Write the name in its place"


def _is_of_files(spark: SparkSession, names: list[str]) -> bool:
    """Tells whether Spark takes the name of a relation for a source and a path, as it does where no table has it."""
    if len(names) != 2 or names[0].lower() == "delta":
        return False
    return not spark.catalog.tableExists(identifier(*names))


def _nodes_within(node: Any) -> Iterator[Any]:
    """Yields an expression that was parsed, its subexpressions, and the plans of its subqueries with theirs."""
    for expression in _nodes(node):
        yield expression
        if _is_subquery(expression):
            yield from _plan_within(expression.plan())


def _is_subquery(expression: Any) -> bool:
    """Tells whether an expression holds a plan, of whatever kind, which is none of its children."""
    kind = expression.getClass()
    while kind is not None and kind.getSimpleName() != "PlanExpression":
        kind = kind.getSuperclass()
    return kind is not None


def _plan_within(plan: Any) -> Iterator[Any]:
    for below in _plans(plan):
        yield below
        if _kind(below) == "RelationTimeTravel":
            yield from _plan_within(below.relation())
        for expression in _list(below.expressions()):
            yield from _nodes_within(expression)


def _is_allowed(part: str, found: DataType) -> bool:
    from pyspark.sql import types as T

    if part == HEADERS:
        element = found.elementType if isinstance(found, T.ArrayType) else None
        names = (
            [(field.name, type(field.dataType)) for field in element.fields]
            if isinstance(element, T.StructType)
            else []
        )
        return isinstance(element, T.NullType) or names == [("key", T.StringType), ("value", T.BinaryType)]
    text, time, number = (
        (T.StringType, T.BinaryType, T.NullType),
        (T.TimestampType, T.LongType),
        (T.IntegerType, T.ShortType, T.ByteType),
    )
    allowed: dict[str, tuple[type[DataType], ...]] = {
        WHERE: (T.BooleanType,),
        KEY: text,
        VALUE: text,
        TIMESTAMP: time,
        PARTITION: number,
    }
    return isinstance(found, allowed[part])


# -- Catalyst's trees -------------------------------------------------------------------------------


def _dangers(result: DataFrame, records: DataFrame) -> Iterator[str]:
    """Yields the reasons why an expression could end the job despite the attempt, or is nondeterministic."""
    plan, base = _plan(result), _plan(records)
    (expression,) = _list(plan.expressions())
    if not expression.deterministic():
        yield "the expression is not deterministic. Use a hash of a field of the record instead"
    for node in _nodes(expression):
        if _kind(node) == "PythonUDF":
            yield (
                f"{node.name()} is a Python function, and a record on which it fails would end the job. Use SQL instead"
            )
        elif _kind(node) == "InSubquery":
            yield from _unsafe(_list(node.values()))
        elif _kind(node) in ("ScalarSubquery", "ListQuery", "Exists"):
            yield from _dangers_of_subquery(node)
    while not (plan := plan.children().apply(0)).equals(base):  # arguments of SQL functions
        yield from _unsafe(_list(plan.expressions()))


def _dangers_of_subquery(node: Any) -> Iterator[str]:
    compared = [plan for plan in _plans(node.plan()) if any(_is_correlated(plan_below) for plan_below in _plans(plan))]
    if _kind(node) == "ScalarSubquery" and compared and not _has_one_row(node.plan()):
        yield "the subquery may return several rows. Use an aggregate such as max(...) without GROUP BY"
    for plan in compared:
        if _kind(plan) not in SAFE_PLANS:
            yield (
                f"the subquery has {plan.nodeName()} around a comparison with the record. Only filters and "
                "aggregates (max, max_by, count, ...) are allowed there"
            )
        yield from _unsafe(expression for expression in _list(plan.expressions()) if _has_outer(expression))


def _unsafe(expressions: Iterable[Any]) -> Iterator[str]:
    for expression in expressions:
        for node in _nodes(expression):
            if not _is_safe(node):
                yield (
                    f"{node.sql()} is evaluated for all records at once, outside of the expression, so one record on "
                    "which it fails would end the job. In comparisons of subqueries and in arguments of SQL "
                    "functions, use plain fields of the compared type, or try_cast(... AS ...)"
                )


def _is_safe(node: Any) -> bool:
    if _kind(node) != "Cast":
        return _kind(node) in SAFE
    before, after = node.child().dataType(), node.dataType()
    to_text = (before.typeName(), after.typeName()) == ("binary", "string")
    return to_text or node.evalMode().toString() == "TRY" or node.canUpCast(before, after)


def _has_one_row(plan: Any) -> bool:
    rows = plan.maxRows()
    return bool(rows.isDefined() and rows.get() <= 1)


def _is_open_star(node: Any) -> bool:
    """Returns true for * and record.*, which would expose internal columns of the transformation."""
    return _kind(node).startswith("UnresolvedStar") and (
        node.target().isEmpty() or [part.lower() for part in _list(node.target().get())] == [SEEN_AS]
    )


def _is_correlated(plan: Any) -> bool:
    return any(_has_outer(expression) for expression in _list(plan.expressions()))


def _has_outer(expression: Any) -> bool:
    return any(_kind(node) == "OuterReference" for node in _nodes(expression))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _nodes(node: Any) -> Iterator[Any]:
    """Yields an expression and all its subexpressions, without the plans of its subqueries."""
    yield node
    for child in _list(node.children()):
        yield from _nodes(child)


def _plans(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _list(plan.children()):
        yield from _plans(child)


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _list(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
