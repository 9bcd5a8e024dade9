"""The scope of a verification, and the summary of its result."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mirrorlake.errors import ConfigurationError, GateError
from mirrorlake.gate import ExpectationResult
from mirrorlake.jobs.verification.result import Finding, PartitionVerification, VerificationResult, is_exempt
from mirrorlake.jobs.verification.scope import DEFAULTS, VerificationScope

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mode": "everything"}, "allowed is incremental, full, time, sample"),
        ({"mode": "time"}, "needs from_time, to_time, or both"),
        ({"mode": "full", "to_time": "2026-11-01"}, "they belong to mode = time"),
        ({"mode": "time", "from_time": "yesterday"}, "from_time is 'yesterday'"),
        ({"mode": "time", "from_time": "2026-11-02", "to_time": "2026-11-01"}, "not before to_time"),
        ({"version": "-1"}, "version is '-1'"),
        ({"version": "newest"}, "version is 'newest'"),
        ({"mode": "sample", "fraction": "0"}, "above 0 and up to 1"),
        ({"mode": "sample", "fraction": "1.5"}, "above 0 and up to 1"),
        ({"mode": "sample", "fraction": "half"}, "above 0 and up to 1"),
        ({"mode": "full", "fraction": "0.5"}, "fraction belongs to mode = sample"),
        ({"max_lateness_seconds": "99999999999999"}, "allowed is a whole number from 0 to"),
        ({"topics": "("}, "not a valid regular expression"),
    ],
)
def test_what_means_nothing_is_refused(asked: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VerificationScope.parse(**asked)


def test_parameters_are_read() -> None:
    assert VerificationScope.parse(**DEFAULTS) == VerificationScope("incremental")
    scope = VerificationScope.parse(
        "time", "2026-11-01 12:00", "2026-11-01T14:00:00+01:00", "7", topics="orders.*, payments"
    )
    assert (scope.from_time, scope.to_time, scope.version) == (NOON, NOON + timedelta(hours=1), 7)
    assert [scope.has(topic) for topic in ("orders.v1", "payments", "payments.v1")] == [True, True, False]


def result(*partitions: PartitionVerification, success: bool = True, **changes: Any) -> VerificationResult:
    evaluated = ExpectationResult("verification", "a->b", "x", success, "{}", "[]", NOON, "v")
    return VerificationResult(
        "a->b", "v", "full", 7, 3, NOON, NOON + timedelta(hours=3), partitions, (evaluated,), **changes
    )


def partition(**values: Any) -> PartitionVerification:
    values = {
        "records": 10,
        "mapped": 10,
        "accounted": 10,
        "verified_to": NOON + timedelta(hours=2, minutes=3, seconds=7),
        **values,
    }
    return PartitionVerification("t", 0, **values)


def test_a_person_understands_what_it_comes_to() -> None:
    assert (
        result(partition(records=12_345_678)).statement() == "verified to 14:03:07, 12,345,678 records, 0 differences"
    )
    assert (
        result(partition(verified_to=NOON - timedelta(days=1))).statement()
        == "verified to 2026-10-31 12:00:00, 10 records, 0 differences"
    )
    assert (
        result(partition(different=1, out_of_order=2), success=False).statement()
        == "NOT EQUAL: verified to 14:03:07, 10 records, 3 differences (2 out of order, 1 different)"
    )
    left = partition(not_comparable=5), PartitionVerification("u", 0, is_covered=False)
    assert result(*left).statement().endswith("0 differences; 5 can't be compared any more; 1 partition not covered")
    assert result(success=False).statement().startswith("not verified: there was nothing to compare")
    late = partition(unmirrored=7), PartitionVerification("u", 0, is_covered=False, unmirrored=3)
    assert result(*late, success=False).statement() == (
        "NOT WHOLE: verified to 14:03:07, 10 records, 0 differences; 1 partition not covered; 10 records of 2 "
        "partitions are late: not mirrored yet"
    )
    assert result(late[1], success=False).statement().endswith("; 3 records of 1 partition are late: not mirrored yet")
    nothing_new = replace(result(), results=(), is_neutral=True)
    assert nothing_new.statement().startswith("nothing new: no record was mirrored since")
    assert (nothing_new.passed, nothing_new.to_json()["nothing_new"]) == (False, True)
    nothing_new.require()
    exempt = [PartitionVerification("t", number, is_covered=False, is_exempt=True) for number in range(3)]
    nothing_else = replace(result(*exempt), results=(), is_neutral=True)
    assert nothing_else.statement() == (
        "nothing to compare: of all 3 partitions, a transform changes the records, or the topic was promoted"
    )
    nothing_else.require()
    assert not is_exempt([]), "zero is never a pass"
    assert not is_exempt([*exempt, PartitionVerification("u", 0, is_covered=False)])
    assert not is_exempt([replace(exempt[0], unmirrored=1)])
    assert (
        result(partition(records=0), success=False).statement().startswith("not verified: there was nothing to compare")
    )


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({}, "equal"),
        ({"not_comparable": 5, "mapped": 15, "accounted": 15}, "equal"),
        ({"missing": 1}, "different"),
        ({"unexpected": 1}, "different"),
        ({"accounted": 9}, "different"),
        ({"records": 0, "not_comparable": 10}, "not_comparable"),
        ({"records": 0, "is_covered": False}, "not_covered"),
        ({"records": 0, "is_covered": False, "unmirrored": 3}, "not_mirrored"),
        ({"unmirrored": 3}, "equal"),  # what was compared
    ],
)
def test_a_partition_passes_only_if_records_were_compared_and_all_are_the_same(
    values: dict[str, Any], status: str
) -> None:
    row = partition(**values).row()
    assert (row["status"], row["passed"]) == (status, status == "equal")


def test_a_verification_that_has_failed_stops_whoever_depends_on_it_and_names_records_by_both_offsets() -> None:
    result(partition()).require()
    found = Finding("t", 0, 1_000, 1_007, "different", "value"), Finding("t", 0, None, 9, "unexpected", None)
    failed = result(partition(different=1, unexpected=1), success=False, examples=found)
    with pytest.raises(
        GateError,
        match="t, partition 0: source offset 1,000, target offset 1,007: different \\(value\\)\n  t, partition 0: "
        "source offset none, target offset 9",
    ):
        failed.require()
    assert failed.to_json()["differences"] == 2
