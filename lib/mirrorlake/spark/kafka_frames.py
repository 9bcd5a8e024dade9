"""Reads logs as Spark frames, through Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mirrorlake.config.connection import Connection
from mirrorlake.partition_key import PartitionKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_TASK = 1_000_000  # a large partition is read by several tasks
# Of 500 records at a time, most of the time goes into asking; and nobody waits for records at the end of a log that is
# read to a given offset.
POLL = {"kafka.max.poll.records": "10000", "kafka.fetch.max.wait.ms": "20"}


def log_records(
    spark: SparkSession,
    connection: Connection,
    start: Mapping[PartitionKey, int],
    end: Mapping[PartitionKey, int],
    isolation: str,
    names: Mapping[str, str],
) -> DataFrame:
    """The records of partitions from `start` to `end` (by topic and partition) as Spark's Kafka source has them, with
    headers.

    Args:
        isolation: `read_committed` or `read_uncommitted`.
        names: what the column topic says of each topic, so that both sides of a flow can be joined.
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
        .options(**{**POLL, **connection.spark()})
        .option("maxRecordsPerPartition", str(RECORDS_PER_TASK))
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", offsets[0])
        .option("endingOffsets", offsets[1])
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", isolation)
        .option(
            "failOnDataLoss", "false"
        )  # compacted logs have gaps; what retention takes meanwhile is missing on one side
        .load()
    )
    renamed = {topic: name for topic, name in names.items() if topic != name}
    if not renamed:
        return frame
    table = spark.createDataFrame(sorted(names.items()), "topic STRING, name STRING")
    return frame.join(F.broadcast(table), "topic").drop("topic").withColumnRenamed("name", "topic")
