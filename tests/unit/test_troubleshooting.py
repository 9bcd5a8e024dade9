"""The page on troubleshooting has an entry for everything that an operator can meet, taken from the code itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from mirrorlake import errors
from mirrorlake.jobs.failover.plan import BlockKind, FailoverOutcome
from mirrorlake.jobs.failover.rehearsal import Proof
from mirrorlake.jobs.verification.classify import FindingKind
from mirrorlake.jobs.verification.completeness import CountStatus
from mirrorlake.jobs.verification.result import VerificationStatus
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind
from mirrorlake.model.gap import LOSS
from mirrorlake.model.partition_lag import PartitionState
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.reasons import NotCompared, PartitionHeld, PositionReason, TopicHeld

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ALERTS = ROOT / "monitoring/alerts.yml"
PARTS = ("Cause", "Look", "Do")


def section(title: str) -> str:
    """Returns the text below a heading of the second level."""
    return next(part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(f"{title}\n"))


def entries(title: str) -> dict[str, dict[str, str]]:
    """Returns the entries below a heading, by name: cause, where to look, and what to do."""
    parts = re.split(r"^### `?(\w+)`?\n", section(title), flags=re.MULTILINE)[1:]
    return {
        name: dict(re.findall(r"^- \*\*(\w+)\.\*\* +(\S.*)$", body, re.MULTILINE))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def rows(title: str, column: str) -> list[list[str]]:
    """Returns the rows of the table below a heading whose first column has this name."""
    found = re.search(rf"^\| {re.escape(column)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", section(title), re.MULTILINE)
    assert found, column
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in found[1].splitlines()]


def names(title: str, column: str) -> set[str]:
    """Returns the names in backticks in the first column of a table; every row must have all its cells."""
    table = rows(title, column)
    assert all(len(row) == len(table[0]) for row in table)
    return {name for row in table for name in re.findall(r"`([^`]+)`", row[0])}


def as_shown(reason: str) -> str:
    return re.sub(r"\{\w+\}", "…", reason)


@pytest.mark.parametrize(
    ("title", "wanted"),
    [
        ("A job has stopped", errors.KINDS.keys()),
        ("Anomalies", {*map(str, AnomalyKind), *map(str, LOSS)}),
    ],
)
def test_each_kind_of_error_and_anomaly_has_an_entry_with_cause_look_and_remedy(
    title: str, wanted: Iterable[str]
) -> None:
    found = entries(title)
    assert set(found) == set(wanted)
    assert {name for name, entry in found.items() if tuple(entry) != PARTS} == set()


def test_each_alert_has_an_entry_at_the_anchor_that_it_names() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    found = entries("Alerts")
    assert set(found) == {rule["alert"] for rule in rules}
    assert {name for name, entry in found.items() if tuple(entry) != PARTS} == set()
    for rule in rules:
        assert rule["annotations"]["runbook"].endswith(f"docs/troubleshooting.md#{rule['alert'].lower()}")


def test_each_class_of_error_can_cross_from_a_worker_and_is_therefore_known_to_the_page() -> None:
    tree = ast.parse((ROOT / "lib/mirrorlake/errors.py").read_text())
    assert {node.name for node in tree.body if isinstance(node, ast.ClassDef)} == set(errors.KINDS)


@pytest.mark.parametrize(
    ("title", "column", "wanted"),
    [
        ("Groups", "status", Status),
        ("Groups", "sync", SyncOutcome),
        ("Records are late", "state", PartitionState),
        ("Verifications and counts", "status of a verification", VerificationStatus),
        ("Verifications and counts", "finding", FindingKind),
        ("Failovers", "outcome", FailoverOutcome),
        ("Failovers", "proof of a rehearsal", Proof),
        ("Verifications and counts", "status of an hour in `completeness`", CountStatus),
    ],
)
def test_each_status_has_a_row(title: str, column: str, wanted: Iterable[str]) -> None:
    assert names(title, column) == set(wanted)


@pytest.mark.parametrize(
    ("title", "column", "wanted"),
    [
        ("Held topics and partitions", "reason", [*TopicHeld, *PartitionHeld]),
        ("Groups", "reason", [*PositionReason]),
        ("Verifications and counts", "reason for `not_covered`", [*NotCompared]),
    ],
)
def test_each_reason_has_a_row_with_its_own_words(title: str, column: str, wanted: list[str]) -> None:
    table = rows(title, column)
    assert sorted(row[0] for row in table) == sorted(map(as_shown, wanted))
    assert all(cell for row in table for cell in row)


def test_each_action_on_an_anomaly_is_explained() -> None:
    assert {action for action in AnomalyAction if f"`{action}`" not in section("Anomalies")} == set()


def test_each_block_of_a_failover_has_a_row_in_its_runbook() -> None:
    page = (ROOT / "docs/failover.md").read_text()
    first = re.findall(r"^ *\| ((?:`\w+`(?:, )?)+) \|", page.partition("| block | cause | remedy |")[2], re.MULTILINE)
    assert {name for cell in first for name in re.findall(r"\w+", cell)} >= set(BlockKind)


def warnings_logged() -> Iterator[str]:
    """Yields the events of all warnings in the code; of a name that is put together, a regex."""
    for file in (ROOT / "lib/mirrorlake").rglob("*.py"):
        if "local" in file.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "Notice"
                and "is_warning=True" in ast.unparse(node)
            ):
                yield re.escape(ast.literal_eval(node.args[0]))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "log.warning":
                calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                events = [one.args[0] for one in calls if ast.unparse(one.func) == "event"]
                assert len(events) == 1, f"{file}, line {node.lineno}: a warning is one event"
                name = events[0]
                if isinstance(name, ast.JoinedStr):
                    yield "".join(
                        re.escape(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in name.values
                    )
                else:
                    yield re.escape(ast.literal_eval(name))


def test_each_warning_in_the_log_has_a_row_and_no_row_is_out_of_date() -> None:
    listed, logged = names("Log lines", "event"), set(warnings_logged())
    assert len(logged) > 15
    assert {name for name in logged if not any(re.fullmatch(name, row) for row in listed)} == set()
    assert {row for row in listed if not any(re.fullmatch(name, row) for name in logged)} == set()
