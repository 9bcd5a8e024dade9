"""Previews a transform: applies it to the newest records of a topic, without writing anything."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.transform import TRANSFORMS, Transform
from mirrorlake.errors import ConfigurationError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.transforms.evaluate import FAILED, FILTERED, HEADERS_TYPE, KEPT, apply, explain_failure
from mirrorlake.transforms.validate import validate

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row, SparkSession

LONGEST_TEXT = 300
MOST_EXPLAINED = 20  # each explanation costs a Spark job
SAMPLE = (
    f"topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, headers {HEADERS_TYPE}"
)


@dataclass(frozen=True)
class Before:
    """A record as it is on the source, for display: bytes as text, or in hexadecimal digits if they are not text."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: str


@dataclass(frozen=True)
class After:
    """The result of a transform for one record, or the property that failed and the cause.

    Contents are None unless the record is kept.
    """

    outcome: str
    reason: str | None = None
    explanation: str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None


@dataclass(frozen=True)
class Preview:
    """The result of a transform for a sample, newest record first."""

    flow: str
    topic: str
    transform: Transform
    records: tuple[tuple[Before, After], ...]

    def count(self, outcome: str) -> int:
        return sum(after.outcome == outcome for _, after in self.records)

    def reasons(self) -> dict[str, int]:
        """Returns the number of failed records by the property that failed."""
        return dict(Counter(str(after.reason) for _, after in self.records if after.outcome == FAILED))

    def table(self) -> pd.DataFrame:
        """Returns the records before and after the transform, side by side, for display."""
        import pandas as pd

        rows = [[*vars(before).values(), *vars(after).values()] for before, after in self.records]
        columns = [
            (side, field.name) for side, kind in (("before", Before), ("after", After)) for field in fields(kind)
        ]
        return pd.DataFrame(rows, columns=pd.MultiIndex.from_tuples(columns), dtype=object)

    def to_json(self) -> dict[str, Any]:
        counts = {outcome: self.count(outcome) for outcome in (KEPT, FILTERED, FAILED)}
        return {
            "flow": self.flow,
            "topic": self.topic,
            "transform": self.transform.name,
            "records": len(self.records),
            **counts,
        }


def preview(spark: SparkSession, flow: Flow, topic: str, limit: int) -> Preview:
    """Transforms the newest committed records of a topic of the source.

    Args:
        spark: Spark session.
        flow: flow of the topic.
        topic: topic of the source.
        limit: maximum number of records. The driver collects them.

    Raises:
        ConfigurationError: the topic does not belong to the flow, does not exist, or has no transform; or its transform
            is invalid.
        SourceError: the source can't be read.
    """
    from pyspark.sql import functions as F

    transform = _transform_of(flow, topic)
    validate(spark, transform)
    # The sample is collected once, so that a failed record can be explained without reading the topic again.
    rows = _newest(spark, flow, topic, limit)
    records = spark.createDataFrame(rows, SAMPLE).withColumn("timestamp", F.timestamp_millis("timestamp"))
    found = {(row["partition"], row["offset"]): row for row in apply(records, transform).collect()}
    explained = [row for row in found.values() if row["outcome"] == FAILED][:MOST_EXPLAINED]
    why = {
        (row["partition"], row["offset"]): explain_failure(
            records,
            transform,
            topic=topic,
            partition=row["partition"],
            offset=row["offset"],
            reason=row["reason"],
            quotes_contents=True,
        )
        for row in explained
    }
    pairs = [
        (_before(row), _after(found[key], why.get(key))) for row in rows for key in [(row["partition"], row["offset"])]
    ]
    return Preview(flow.name, topic, transform, tuple(pairs))


def _transform_of(flow: Flow, topic: str) -> Transform:
    if not topic:
        raise ConfigurationError(
            f"flow {flow.name}: parameter topic is empty. Set it to the topic of cluster {flow.source} to preview"
        )
    if not flow.mirrors_topic(topic):
        raise ConfigurationError(
            f"flow {flow.name}: topic {topic} does not belong to the flow (topics, topics.exclude), so its records "
            "are not mirrored"
        )
    transform = flow.transform_of(topic)
    if transform is None:
        others = ", ".join(f"{one.name} ({', '.join(one.topics.include)})" for one in flow.transforms) or "none"
        raise ConfigurationError(
            f"flow {flow.name}: topic {topic} has no transform, so its records are mirrored unchanged. Transforms of "
            f"{TRANSFORMS}, with their topics: {others}"
        )
    return transform


def _newest(spark: SparkSession, flow: Flow, topic: str, limit: int) -> list[Row]:
    """Reads the newest committed records of all partitions."""
    from pyspark.sql import functions as F

    timeout_ms = flow.connect_timeout_ms
    source = Cluster(flow.source_connection, "source", f"{flow.name}|transform", timeout_ms).connect()
    try:
        there = source.refresh([topic], timeout_ms)
        if topic not in there:
            near = difflib.get_close_matches(topic, source.refresh(None, timeout_ms), 1)
            raise ConfigurationError(
                f"flow {flow.name}: cluster {flow.source} has no topic {topic}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        keys: list[PartitionKey] = [(topic, partition) for partition in there[topic].leaders]
        first, end = (source.offsets(keys, at, timeout_ms) for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    finally:
        source.close()

    def committed(start: Mapping[PartitionKey, int]) -> DataFrame:
        return log_records(spark, flow.source_connection, start=start, end=end, isolation="read_committed", names={})

    records = committed(_start_of_newest(committed, first, end, limit))
    newest = records.orderBy(F.desc("timestamp"), F.desc("offset"), "partition").limit(limit)
    return newest.select(
        "topic", "partition", "offset", F.unix_millis("timestamp").alias("timestamp"), "key", "value", "headers"
    ).collect()


def _start_of_newest(
    committed: Callable[[Mapping[PartitionKey, int]], DataFrame],
    first: Mapping[PartitionKey, int],
    end: Mapping[PartitionKey, int],
    limit: int,
) -> dict[PartitionKey, int]:
    """Returns for each partition an offset behind which it holds `limit` records, or its first one.

    Some offsets hold no record (markers, aborted or compacted records). The range of a partition therefore grows until
    it holds enough records, whatever the other partitions hold: the newest record may stand in any of them.
    """
    back = limit
    start = {key: max(first[key], end[key] - back) for key in end}
    growing = {key for key in start if start[key] > first[key]}
    while growing:
        counts = committed({key: start[key] for key in growing}).groupBy("partition").count().collect()
        held = {row["partition"]: row["count"] for row in counts}
        back *= 10
        start |= {key: max(first[key], end[key] - back) for key in growing if held.get(key[1], 0) < limit}
        growing = {key for key in growing if held.get(key[1], 0) < limit and start[key] > first[key]}
    return start


def _before(row: Row) -> Before:
    return Before(
        partition=row["partition"],
        offset=row["offset"],
        timestamp_ms=row["timestamp"],
        key=_text(row["key"]),
        value=_text(row["value"]),
        headers=_headers(row["headers"]),
    )


def _after(row: Row, explanation: str | None) -> After:
    if row["outcome"] != KEPT:
        return After(row["outcome"], row["reason"], explanation)
    return After(
        outcome=KEPT,
        reason=None,
        explanation=None,
        partition=row["target_partition"],
        timestamp_ms=row["timestamp_ms"],
        key=_text(row["key"]),
        value=_text(row["value"]),
        headers=_headers(row["headers"]),
    )


def _headers(headers: Iterable[Any] | None) -> str:
    return ", ".join(f"{header['key']}={_text(header['value'])}" for header in headers or ())


def _text(value: bytes | None) -> str | None:
    """Formats bytes for display, shortened."""
    if value is None:
        return None
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        text = ""
    if not text.replace("\n", " ").replace("\t", " ").isprintable() or (value and not text):
        text = f"0x{bytes(value).hex()}"
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(value)} bytes)"
