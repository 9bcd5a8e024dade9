"""Differences that stand until a later verification has refuted them."""

from datetime import timedelta
from typing import Any

import pytest
from mirrorlake.ledger.store import standing_differences

from tests.example_ledger import DAY, verification

Verdict = dict[str, Any]
COLUMNS = (
    "source STRING, target STRING, topic STRING, partition INT, mode STRING, status STRING, passed BOOLEAN, "
    "upstream_from BIGINT, upstream_to BIGINT, offset_syncs_version BIGINT, verification_id STRING, "
    "started_at TIMESTAMP, finished_at TIMESTAMP"
)


def wrong(upstream: tuple[int, int] = (0, 12), **changes: Any) -> Verdict:
    return {**verification(0, "t", 0, upstream, "10:00:00", passed=False), **changes}


def passed(mode: str, upstream: tuple[int, int], version: int = 1, **changes: Any) -> Verdict:
    known = {"mode": mode, "offset_syncs_version": version}
    return {**verification(0, "t", 0, upstream, "10:00:00", **known), **changes}


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        ([], True),
        ([passed("full", (0, 12))], False),
        ([passed("full", (5, 20))], False),  # retention has deleted what differed
        ([passed("incremental", (0, 15))], False),
        ([passed("full", (0, 8), version=0)], True),  # an earlier version of the map is verified again
        ([passed("time", (0, 12))], False),
        ([passed("time", (2, 12))], True),
        ([passed("sample", (0, 12))], True),
        ([passed("full", (0, 12), topic="u")], True),
        ([passed("full", (0, 12), source="else")], True),
        ([wrong(status="not_covered")], True),
        ([passed("full", (0, 12)), wrong((3, 4), mode="sample")], True),
        ([wrong((0, 20), mode="full", status="not_comparable")], False),  # retention has deleted all on one side
        ([wrong((0, 12), mode="incremental", status="not_comparable")], False),
        ([wrong((2, 20), mode="full", status="not_comparable")], False),  # the map before 2 has expired meanwhile
        ([wrong((0, 9), mode="full", status="not_comparable", offset_syncs_version=0)], True),  # of an earlier map
        ([wrong((0, 12), mode="time", status="not_comparable")], True),
        ([wrong((0, 12), mode="sample", status="not_comparable")], True),
        ([wrong((0, 12), mode="full", status="nothing_new")], True),
    ],
)
def test_a_difference_stands_until_a_later_verification_has_passed_over_it(
    spark: Any, later: list[Verdict], stands: bool
) -> None:
    rows = [
        {**row, "started_at": DAY + timedelta(hours=hour), "finished_at": DAY + timedelta(hours=hour, minutes=1)}
        for hour, row in enumerate([wrong(mode="full"), *later])
    ]
    assert bool(standing_of(spark, rows)) is stands


def test_a_verification_that_had_begun_before_the_difference_was_found_refutes_nothing(spark: Any) -> None:
    at = [DAY + timedelta(minutes=minute) for minute in range(4)]
    found = {**wrong(mode="full"), "started_at": at[1], "finished_at": at[2]}
    beside = {**passed("incremental", (50, 60)), "started_at": at[0], "finished_at": at[3]}
    assert standing_of(spark, [found, beside])


def test_what_could_compare_nothing_is_no_difference(spark: Any) -> None:
    rows = [wrong(status=status) for status in ("not_covered", "not_comparable", "not_mirrored")]
    rows += [wrong(status="nothing_new", topic=None)]
    assert not standing_of(spark, rows)


def standing_of(spark: Any, rows: list[Verdict]) -> list[Any]:
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    frame = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], COLUMNS)
    return list(standing_differences(frame).collect())
