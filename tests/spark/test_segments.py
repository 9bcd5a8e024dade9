"""A map is cut into segments without a hole, and errors of the map itself are detected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.jobs.verification.segments import Extent, extents_frame, first_later_runs, segments, with_choice

RUNS = """topic STRING, partition INT, target_topic STRING, target_partition INT, upstream_start BIGINT,
  upstream_end BIGINT, downstream_start BIGINT, downstream_end BIGINT,
    digest STRING, committed_at TIMESTAMP, is_inferred BOOLEAN, is_void BOOLEAN"""
VERIFIED = """topic STRING, partition INT, target_topic STRING, target_partition INT, upstream_to BIGINT,
  downstream_from BIGINT, downstream_to BIGINT, finished_at TIMESTAMP"""
STANDING = "topic STRING, partition INT, upstream_from BIGINT"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
EXTENT = Extent("t", 0, "a.t", 0, 0, 30, 0, 33, 0, -1, 0, 0, downstream_to=36, source_end=30, target_end=36)


def runs(spark: Any, *spans: tuple[int, int, int], topic: str = "t", target: str = "a.t") -> Any:
    """Makes runs as (upstream_start, downstream_start, records), one committed each minute."""
    rows = [
        (topic, 0, target, 0, up, up + records, down, down + records, None, NOON + timedelta(minutes=at), False, False)
        for at, (up, down, records) in enumerate(spans)
    ]
    return spark.createDataFrame(rows, RUNS)


def cut(spark: Any, chosen: Any, *extents: Extent, is_shared: bool = False, **options: Any) -> list[tuple[Any, ...]]:
    from pyspark.sql import functions as F

    found = segments(
        chosen.withColumn("choice", F.lit("chosen")), extents_frame(spark, extents), is_shared=is_shared, **options
    ).orderBy("downstream_start", "topic")
    names = (
        "upstream_from",
        "upstream_start",
        "upstream_end",
        "downstream_from",
        "downstream_start",
        "downstream_end",
        "expired",
        "overlap",
        "is_behind",
        "is_judged",
    )
    return [tuple(row[name] for name in names) for row in found.collect()]


def test_each_run_has_the_gap_in_front_of_it_and_the_last_segment_has_no_run(spark: Any) -> None:
    assert cut(spark, runs(spark, (2, 1, 8), (10, 10, 5), (20, 23, 10)), EXTENT) == [
        (0, 2, 10, 0, 1, 9, 0, 0, False, True),
        (10, 10, 15, 9, 10, 15, 0, 0, False, True),
        (15, 20, 30, 15, 23, 33, 0, 0, False, True),
        (30, 30, 30, 33, 36, 36, 0, 0, False, True),
    ]


def test_what_has_expired_on_either_side_is_cut_off(spark: Any) -> None:
    spans = (2, 1, 8), (10, 10, 5), (20, 23, 10)
    assert [row[:7] for row in cut(spark, runs(spark, *spans), replace(EXTENT, source_start=5, target_start=12))][
        :3
    ] == [
        (10, 10, 10, 9, 9, 9, 8),
        (12, 12, 15, 12, 12, 15, 2),
        (15, 20, 30, 15, 23, 33, 0),
    ]


def test_a_map_that_has_offsets_twice_or_goes_back_is_seen(spark: Any) -> None:
    assert [row[7:9] for row in cut(spark, runs(spark, (0, 0, 10), (8, 10, 10), (18, 20, 5)), EXTENT)][:3] == [
        (0, False),
        (2, False),
        (0, False),
    ]
    assert [row[7:9] for row in cut(spark, runs(spark, (0, 20, 10), (10, 5, 10)), EXTENT)][:2] == [
        (0, True),
        (0, False),
    ]


def test_of_merged_topics_each_has_its_own_segments_and_nothing_behind_the_last_run(spark: Any) -> None:
    merged = runs(spark, (0, 0, 5), (5, 11, 5)).unionByName(runs(spark, (0, 6, 4), (4, 17, 4), topic="u"))
    other = replace(EXTENT, topic="u")
    assert [row[:6] for row in cut(spark, merged, EXTENT, other, is_shared=True)] == [
        (0, 0, 5, 0, 0, 5), (0, 0, 4, 5, 6, 10), (5, 5, 10, 10, 11, 16), (4, 4, 8, 16, 17, 21),
    ]  # fmt: skip


def test_a_fraction_is_the_same_for_the_same_seed(spark: Any) -> None:
    spans = [(at * 10, at * 10, 10) for at in range(200)]
    judged = [
        [row[9] for row in cut(spark, runs(spark, *spans), EXTENT, fraction=0.3, seed=seed)][:200] for seed in (1, 1, 2)
    ]
    assert 30 < sum(judged[0]) < 90
    assert judged[0] == judged[1] != judged[2]


@pytest.mark.parametrize(
    ("verified", "expected"),
    [
        ([(10, 0, 11)], ["before", "chosen", "chosen"]),
        ([(10, 0, 11), (20, 10, 22)], ["before", "before", "chosen"]),
        ([(15, 0, 16)], ["chosen", "chosen", "chosen"]),  # no run ends there any more
        ([(10, 100, 111)], ["chosen", "chosen", "chosen"]),  # another log's
        ([], ["chosen", "chosen", "chosen"]),
    ],
)
def test_incremental_goes_on_behind_a_run_that_is_still_in_the_map(
    spark: Any, verified: list[tuple[int, int, int]], expected: list[str]
) -> None:
    assert chosen_after(spark, verified) == expected


def test_incremental_looks_at_runs_that_were_committed_after_the_verification_of_their_offsets(spark: Any) -> None:
    earlier = chosen_after(spark, [(10, 0, 11), (20, 10, 22)], finished=NOON + timedelta(seconds=30))
    assert earlier == ["before", "chosen", "chosen"], "the remote topic may have been filled again"


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ([20], ["before", "before", "chosen"]),
        ([10], ["before", "chosen", "chosen"]),
        ([20, 5], ["chosen", "chosen", "chosen"]),
        ([None], ["chosen", "chosen", "chosen"]),
    ],
)
def test_incremental_begins_at_or_before_each_difference_that_stands(
    spark: Any, standing: list[int | None], expected: list[str]
) -> None:
    assert chosen_after(spark, [(10, 0, 11), (20, 10, 22)], standing) == expected


def chosen_after(
    spark: Any,
    verified: list[tuple[int, int, int]],
    standing: Sequence[int | None] = (),
    finished: datetime = NOON + timedelta(hours=1),
) -> list[str]:
    passed = spark.createDataFrame([("t", 0, "a.t", 0, *row, finished) for row in verified], VERIFIED)
    differences = spark.createDataFrame([("t", 0, offset) for offset in standing], STANDING)
    mine = runs(spark, (0, 0, 10), (10, 11, 10), (20, 22, 10))
    chosen = with_choice(mine, VerificationScope("incremental"), passed, differences)
    return [row["choice"] for row in chosen.orderBy("upstream_start").collect()]


def test_a_time_takes_the_runs_that_were_committed_in_it(spark: Any) -> None:
    scope = VerificationScope("time", NOON + timedelta(minutes=1), NOON + timedelta(minutes=2))
    nothing = spark.createDataFrame([], VERIFIED), spark.createDataFrame([], STANDING)
    chosen = with_choice(runs(spark, (0, 0, 10), (10, 11, 10), (20, 22, 10)), scope, *nothing)
    assert [row["choice"] for row in chosen.orderBy("upstream_start").collect()] == ["before", "chosen", "after"]


def test_where_the_map_goes_on_is_the_first_run_behind_the_last_one(spark: Any) -> None:
    assert first_later_runs(runs(spark, (0, 0, 10), (40, 44, 10), (50, 54, 10)), extents_frame(spark, [EXTENT])) == {
        ("a.t", 0): 44
    }
