"""Each name has one meaning: types, and the values of enumerations wherever text repeats them."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
from mirrorlake.jobs.checkpoint.group_positions import SeenIn
from mirrorlake.jobs.failover.plan import FailoverMode, FailoverOutcome
from mirrorlake.jobs.verification.classify import FindingKind
from mirrorlake.jobs.verification.completeness import CountStatus
from mirrorlake.jobs.verification.result import VerificationStatus
from mirrorlake.jobs.verification.scope import VerificationMode
from mirrorlake.ledger.journal import CycleJob
from mirrorlake.ledger.tables import column_definitions
from mirrorlake.ledger.views import FUNCTIONS, VIEWS, Definition, UnrecordedKind
from mirrorlake.model.gap import EXPLAINED, LOSS, RESETS, GapKind
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.protocol.topic_changes import ChangeKind, ChangeOutcome

ROOT = Path(__file__).parents[2]
LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'")
COMMENT = re.compile(r"--.*")
WORD = re.compile(r"\b[a-z]+(?:_[a-z]+)*\b")

STATUSES_OF_POSITIONS = {*Status} - {Status.NO_GROUPS}
STATUSES_OF_THE_MAP = {Status.EXACT, Status.CLAMPED, Status.BEFORE_MIRROR, Status.NOT_COVERED}
WITHOUT_A_GAP = {*RESETS, GapKind.DROPPED}  # gap_reasons leaves out resets, and another job records dropped

# The words in comments of columns that list them, by table and column.
LISTED: dict[tuple[str, str], set[StrEnum]] = {
    ("checkpoints", "status"): {*STATUSES_OF_POSITIONS},
    ("checkpoints", "sync"): {*SyncOutcome},
    ("topology_changes", "kind"): {*ChangeKind},
    ("topology_changes", "outcome"): {ChangeOutcome.APPLIED},
    ("verifications", "mode"): {*VerificationMode},
    ("verifications", "status"): {*VerificationStatus},
    ("verification_findings", "kind"): {*FindingKind},
    ("failovers", "status"): {*Status} - {Status.DELETED},
    ("failovers", "outcome"): {*FailoverOutcome},
    ("failovers", "mode"): {FailoverMode.REHEARSE, FailoverMode.RUN},
    ("failovers", "seen_in"): {*SeenIn},
    ("cycles", "job"): {*CycleJob},
}
# The same in the heads of views; current_position and group_history have what checkpoints has.
LISTED_IN_VIEWS: dict[tuple[str, str], set[StrEnum]] = {
    ("group_history", "status"): {*STATUSES_OF_POSITIONS},
    ("group_history", "sync"): {*SyncOutcome},
    ("current_position", "status"): {*STATUSES_OF_POSITIONS},
    ("current_position", "sync"): {*SyncOutcome},
    ("offset_map", "status"): STATUSES_OF_THE_MAP,
    ("translate", "status"): {*STATUSES_OF_THE_MAP, Status.NOT_MIRRORED},
    ("unmirrored", "kind"): {*UnrecordedKind},
    ("completeness", "status"): {*CountStatus},
}


def types() -> Iterator[tuple[str, str]]:
    """Returns classes and type aliases, with their modules."""
    for file in (ROOT / "lib/mirrorlake").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, str(file.relative_to(ROOT))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id):
                        yield target.id, str(file.relative_to(ROOT))


def test_no_two_types_have_one_name() -> None:
    modules = defaultdict(list)
    for name, module in types():
        modules[name].append(module)
    assert len(modules) > 100, "the types were not found"
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


@pytest.mark.parametrize("column", LISTED, ids=".".join)
def test_the_comment_of_a_column_lists_the_words_that_it_may_have(column: tuple[str, str]) -> None:
    table, name = column
    (definition,) = (text for text in column_definitions(table) if text.startswith(f"{name} "))
    assert {*WORD.findall(definition)} >= LISTED[column]


@pytest.mark.parametrize("column", LISTED_IN_VIEWS, ids=".".join)
def test_the_head_of_a_view_lists_the_words_that_a_column_may_have(column: tuple[str, str]) -> None:
    view, name = column
    comments = {found: says for found, _, says in Definition.load(view).columns}
    assert {*WORD.findall(comments[name])} >= LISTED_IN_VIEWS[column]


@pytest.mark.parametrize("view", [*VIEWS, *FUNCTIONS])
def test_views_compare_with_words_that_there_are(view: str) -> None:
    known = {*Status, *SyncOutcome, *GapKind, *UnrecordedKind, *VerificationMode, *CountStatus}
    assert {*LITERAL.findall(COMMENT.sub("", Definition.load(view).query))} <= known


def test_views_give_every_status_of_the_map() -> None:
    query = COMMENT.sub("", Definition.load("offset_map").query)
    assert {*LITERAL.findall(query)} == STATUSES_OF_THE_MAP


def expectation(suite: str, column: str, kind: str) -> dict[str, object]:
    """Returns the arguments of the only expectation of that type on that column in a suite."""
    found = json.loads((ROOT / f"expectations/{suite}.json").read_text())["expectations"]
    (arguments,) = (one["kwargs"] for one in found if one["type"] == kind and one["kwargs"].get("column") == column)
    return arguments


@pytest.mark.parametrize("suite", ["checkpoints", "failover"])
def test_suites_ask_for_the_statuses_that_have_a_place(suite: str) -> None:
    arguments = expectation(suite, "status", "expect_column_values_to_be_in_set")
    assert {*arguments["value_set"]} == {Status.EXACT, Status.CLAMPED, Status.BEFORE_MIRROR}


def test_the_suite_of_a_mirror_knows_every_kind_of_gap_that_a_task_writes() -> None:
    regex = str(expectation("offset_syncs", "gap_reasons", "expect_column_values_to_match_regex")["regex"])
    assert {*WORD.findall(regex)} == {*GapKind} - WITHOUT_A_GAP
    assert re.fullmatch(regex, "+".join({*GapKind} - WITHOUT_A_GAP))


def test_every_kind_of_gap_is_explained_or_a_loss() -> None:
    assert {*EXPLAINED} | {*LOSS} == {*GapKind}
    assert not {*EXPLAINED} & {*LOSS}


def test_columns_of_verifications_are_kinds_of_findings() -> None:
    assert {*FindingKind} <= {definition.split()[0] for definition in column_definitions("verifications")}
