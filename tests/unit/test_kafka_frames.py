"""What Spark's Kafka source says of a log that it can't read."""

from __future__ import annotations

import pytest
from mirrorlake.spark.kafka_frames import corrupt_batch, corrupt_partitions

TRACE = "org.apache.spark.SparkException: Job aborted.\n\tat java.base/x.y(Z.java:1)\nCaused by: "


@pytest.mark.parametrize(
    ("said", "partitions"),
    [
        ("Record batch for partition us.orders-v1-12 at offset 7 is invalid, cause: CRC", {("us.orders-v1", 12)}),
        (
            "Received exception when fetching the next record from orders-0. If needed, please seek past the record",
            {("orders", 0)},
        ),
        ("Record is corrupt (stored crc = 1, computed crc = 2)", set()),
    ],
)
def test_a_corrupt_batch_is_known_with_its_partition_if_java_names_it(said: str, partitions: set[object]) -> None:
    assert corrupt_batch(TRACE + said)
    assert corrupt_partitions(RuntimeError(TRACE + said + "\n\tat " + said)) == partitions


def test_another_failure_is_no_corrupt_batch() -> None:
    assert corrupt_batch("long overflow") is None
    assert corrupt_partitions(RuntimeError("TimeoutException: partition orders-0 could not be determined")) == set()
