"""What the report says of verifications, from rows of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mirrorlake.errors import LedgerError
from mirrorlake.notebook.audit import Question
from mirrorlake.notebook.report import FlowReport, make_report
from mirrorlake.reasons import NotCompared

from tests.empty_ledger import ledger_in
from tests.example_ledger import at, run, verification

UNTIL = at("14:00:00")
UNCOVERED = {"records": 0, "passed": False, "status": "not_covered", "mode": "full"}
IN_VAIN = {**UNCOVERED, "topic": None, "partition": None, "target_topic": None, "target_partition": None}
MASKED = {**UNCOVERED, "detail": "transform mask changes the records"}


def flow(number: int) -> dict[str, str]:
    return {"source": f"s{number}", "target": "t"}


@pytest.fixture(scope="module")
def reports(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FlowReport]:
    """Reports on flows with one verified topic, and what else their verifications have found."""
    masked = {**verification(2, "customers", 0, (0, 100), "12:00:00"), **MASKED}
    orders = verification(2, "orders", 0, (0, 200), "12:00:00", mode="full")
    differs = verification(1, "orders", 0, (0, 100), "11:00:00", passed=False, mode="full")
    late, short = ({**verification(2, name, 0, (0, 9), "12:00:00"), **UNCOVERED} for name in ("late", "short"))
    found: list[list[dict[str, Any]]] = [
        [{**verification(1, "", 0, (0, 0), "09:00:00"), **IN_VAIN}, orders],  # before anything was mirrored
        [orders, masked],
        [differs, verification(2, "orders", 0, (0, 200), "12:00:00", mode="sample")],
        [orders, {**verification(3, "", 0, (0, 0), "13:00:00"), **IN_VAIN}],
        [orders, {**late, "status": "not_mirrored"}],
        [orders, {**short, "status": "not_comparable"}],
        [orders, {**masked, "detail": NotCompared.NOT_IN_MAP.value}],  # it was mirrored afterwards
        [{**orders, "unmirrored": 7}],
    ]
    ledger = ledger_in(spark, "report_rows", tmp_path_factory.mktemp("report"))
    runs = [run(1, "customers", 0, (0, 100), 0, "10:00:00"), run(2, "orders", 0, (0, 200), 0, "10:30:00")]
    ledger.append("offset_syncs", [{**one, **flow(number)} for number in range(len(found)) for one in runs])
    rows = [{**row, **flow(number)} for number, of in enumerate(found) for row in of]
    ledger.append("verifications", rows)
    return {one.flow: one for one in make_report(ledger, "", "24", until=str(UNTIL)).flows}


@pytest.mark.parametrize(
    ("number", "failed"),
    [
        (0, 0),  # one that had nothing to compare, and was followed by one that had
        (1, 0),  # a topic that a transform changes
        (2, 1),  # a difference that a sample has not seen
        (3, 1),  # the newest one had nothing to compare
        (4, 1),  # records are late
        (5, 0),  # nothing is left to compare
        (7, 1),  # records are late, behind others that are equal
    ],
)
def test_a_verification_counts_as_failed_while_what_it_has_found_stands(
    number: int, failed: int, reports: dict[str, FlowReport]
) -> None:
    assert reports[f"s{number}->t"].failed_verifications == failed


def test_a_topic_that_can_never_be_compared_does_not_keep_its_flow_from_being_verified(
    reports: dict[str, FlowReport],
) -> None:
    masked, unverified = reports["s1->t"], reports["s5->t"]
    assert (masked.verified_to, masked.unverified) == (at("10:30:00"), 0)
    early = reports["s6->t"]
    assert (early.verified_to, early.unverified) == (None, 100), "it was mirrored after the verification"
    assert (unverified.verified_to, unverified.unverified) == (None, 100), "nobody has looked at customers"


def test_an_audit_of_a_flow_that_is_not_there_is_refused_by_those_that_are(spark: Any, tmp_path: Path) -> None:
    ledger = ledger_in(spark, "audited", tmp_path)
    ledger.append("offset_syncs", [run(1, "orders", 0, (0, 100), 0, "10:00:00")])
    question = Question.resolve(ledger, " west -> east", {})
    assert (question.source, question.target, question.topic) == ("west", "east", "orders")
    with pytest.raises(LedgerError, match="no rows of flow wset->east; they have rows of west->east"):
        Question.resolve(ledger, "wset->east", {})
