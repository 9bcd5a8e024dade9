"""What the flow back has brought to the source is told by the runs whose records are still there."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.jobs.verification.compare import disjoint
from mirrorlake.jobs.verification.logs import RANGE, brought_ranges
from mirrorlake.model.gap import GapKind

RUNS = """topic STRING, partition INT, target_topic STRING, target_partition INT, upstream_start BIGINT,
  upstream_end BIGINT, downstream_start BIGINT, downstream_end BIGINT, digest STRING, committed_at TIMESTAMP,
  inferred BOOLEAN, sync_partition INT, sync_offset BIGINT, incarnation INT"""
GAPS = "topic STRING, partition INT, kind STRING, from_offset BIGINT, incarnation INT"
PLACE: dict[str, Any] = {"on": ("topic", "partition"), "start": "from_offset", "end": "to_offset"}


def run(upstream: int, downstream: int, records: int, incarnation: int, *, inferred: bool = False) -> tuple[Any, ...]:
    ends = upstream, upstream + records, downstream, downstream + records
    return ("t", 0, "t", 0, *ends, None, None, inferred, 0, incarnation, incarnation)


@pytest.mark.parametrize(
    ("kind", "still_there"),
    [
        (GapKind.TARGET_RECREATED, [(40, 50)]),
        (GapKind.TRUNCATED, [(0, 30), (40, 50)]),
    ],
)
def test_records_are_brought_as_long_as_the_topic_is_the_one_that_they_were_written_to(
    spark: Any, kind: GapKind, still_there: list[tuple[int, int]]
) -> None:
    runs = spark.createDataFrame([run(0, 0, 20, 0), run(20, 20, 10, 0), run(0, 40, 10, 1)], RUNS)
    gaps = spark.createDataFrame([("t", 0, str(kind), 0, 0)], GAPS)
    rows = disjoint(brought_ranges(runs, gaps), **PLACE).orderBy("from_offset").collect()
    assert [(row["from_offset"], row["to_offset"]) for row in rows] == still_there


def test_a_part_of_a_run_that_the_target_has_lost_is_not_brought_any_more(spark: Any) -> None:
    runs = spark.createDataFrame([run(0, 0, 20, 0), run(100, 30, 5, 0, inferred=True)], RUNS)
    gaps = spark.createDataFrame([("t", 0, str(GapKind.TARGET_RECREATED), 12, 0)], GAPS)
    rows = brought_ranges(runs, gaps).collect()
    assert [(row["from_offset"], row["to_offset"]) for row in rows] == [(0, 12)]


def test_ranges_that_overlap_or_adjoin_become_one_and_those_of_other_partitions_stay_apart(spark: Any) -> None:
    ranges = [
        ("t", 0, 0, 100),
        ("t", 0, 10, 20),
        ("t", 0, 100, 110),
        ("t", 0, 111, 120),
        ("t", 1, 5, 7),
        ("t", 1, 9, 9),
    ]
    rows = disjoint(spark.createDataFrame(ranges, RANGE), **PLACE).orderBy("partition", "from_offset").collect()
    assert [tuple(row) for row in rows] == [("t", 0, 0, 110), ("t", 0, 111, 120), ("t", 1, 5, 7)]
