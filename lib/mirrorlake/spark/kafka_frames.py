"""Reads logs as Spark frames, through Spark's Kafka source."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mirrorlake.config.connection import Connection
from mirrorlake.errors import without_contents
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.damage import SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_TASK = 1_000_000  # a large partition is read by several tasks
# Polls of 500 records spend most of their time on requests. Waiting for more records is useless, because the end offset
# is given.
POLL = {"kafka.max.poll.records": "10000", "kafka.fetch.max.wait.ms": "20"}
CORRUPT_BATCH = re.compile(
    r"Record batch for partition (\S+) at offset \d+ is invalid|Received exception when fetching the next record from "
    r"([^\s.]\S*)|Record is corrupt[^\n]*"
)
OVERFLOW = "long overflow"
TOO_FAR = (
    "a record has a timestamp beyond 9,223,372,036,854,775 ms (the year 294,247), which Spark's Kafka source can't "
    "read. Table offset_syncs has no first_timestamp or last_timestamp for its run"
)


def log_records(
    spark: SparkSession,
    connection: Connection,
    start: Mapping[PartitionKey, int],
    end: Mapping[PartitionKey, int],
    isolation: str,
    names: Mapping[str, str],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Reads the records of partitions from `start` to `end` as a frame of Spark's Kafka source, with headers.

    Args:
        spark: the session.
        connection: the connection to the cluster.
        start: the first offset, by topic and partition.
        end: the offset after the last one, by topic and partition.
        isolation: `read_committed` or `read_uncommitted`.
        names: the value of the column topic for each topic, so that both sides of a flow can be joined.
        options: more options of Spark's Kafka source.
    """
    from pyspark.sql import functions as F

    partitions: dict[str, list[int]] = {}
    for topic, partition in start:
        partitions.setdefault(topic, []).append(partition)
    offsets = [
        json.dumps(
            {topic: {str(partition): at[topic, partition] for partition in of} for topic, of in partitions.items()}
        )
        for at in (start, end)
    ]
    frame = (
        spark.read.format("kafka")
        .options(**{**POLL, **connection.spark(), **(options or {})})
        .option("maxRecordsPerPartition", str(RECORDS_PER_TASK))
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", offsets[0])
        .option("endingOffsets", offsets[1])
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", isolation)
        .option("failOnDataLoss", "false")  # compacted logs have gaps, and retention may delete records meanwhile
        .load()
    )
    renamed = {topic: name for topic, name in names.items() if topic != name}
    if not renamed:
        return frame
    table = spark.createDataFrame(sorted(names.items()), "topic STRING, name STRING")
    return frame.join(F.broadcast(table), "topic").drop("topic").withColumnRenamed("name", "topic")


def corrupt_batch(error: Any) -> str | None:
    """Returns the message of Kafka's Java client about a corrupt batch, or None if the error has another cause."""
    found = CORRUPT_BATCH.search(str(error))
    return found[0].rstrip(".") if found else None


def corrupt_partitions(error: Any) -> set[PartitionKey]:
    """Returns the partitions in which Kafka's Java client has met a corrupt batch, as far as it names them."""
    names = {(found[1] or found[2] or "").rstrip(".") for found in CORRUPT_BATCH.finditer(str(error))}
    parts = (name.rpartition("-") for name in names)
    return {(topic, int(partition)) for topic, _, partition in parts if partition.isdecimal()}


class Damage:
    """What Spark has found damaged, over reads that have failed for it one after the other."""

    def __init__(self) -> None:
        self._sightings = Counter[str]()

    def none(self) -> None:
        """Notes a read that has found nothing damaged."""
        self._sightings.clear()

    def is_of_the_log(self, found: str) -> bool:
        """Notes what a read has found; returns True once the same was found so often that it is not the line."""
        self._sightings[found] += 1
        return self._sightings[found] >= SIGHTINGS


def why_unread(error: Exception) -> str:
    """Returns the reason for which Spark could not read records, without their contents."""
    said = without_contents(error)
    return f"{said}: {TOO_FAR}" if OVERFLOW in said else said
