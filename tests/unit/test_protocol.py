"""The model of the protocol: its invariants hold in every world, and each rule is needed for one of them."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest
from mirrorlake import failpoint

from tools.protocol.explore import ViolationError, explore
from tools.protocol.invariant import Invariant
from tools.protocol.scopes import BREAKS, SCOPES, without
from tools.protocol.world import KEPT_BY, Rule

PAGE = (Path(__file__).resolve().parents[2] / "docs/protocol.md").read_text()


@pytest.mark.parametrize("name", SCOPES)
def test_the_invariants_hold_in_every_world_that_can_be_reached(name: str) -> None:
    assert explore(SCOPES[name]).worlds > 2_000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_the_model_without_a_rule_breaks_an_invariant(rule: Rule) -> None:
    with pytest.raises(ViolationError) as found:
        explore(without(rule))
    assert found.value.invariant == BREAKS[rule][1], found.value
    assert found.value.history


def test_each_invariant_is_broken_by_the_lack_of_a_rule() -> None:
    assert {invariant for _, invariant in BREAKS.values()} == set(Invariant)


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_the_functions_that_keep_a_rule_exist(rule: Rule) -> None:
    for place in KEPT_BY[rule]:
        module, _, name = place.partition(":")
        assert callable(attrgetter(name)(importlib.import_module(f"mirrorlake.{module}")))


def test_the_page_has_every_rule_with_its_functions_and_every_invariant_in_the_words_of_the_model() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    said = {name: (words, re.findall(r"`([\w.]+:[\w.]+)`", places)) for name, words, places in rows}
    assert {rule.name: (rule.value, list(KEPT_BY[rule])) for rule in Rule}.items() <= said.items()
    assert {invariant.name: invariant.value for invariant in Invariant}.items() <= {
        name: words for name, (words, _) in said.items()
    }.items()


def test_the_page_says_what_a_crash_at_each_failpoint_leaves() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(("| driver", "| task", "| coordinator"))]
    steps = set(re.findall(r"\b(?:driver|task)\.[a-z]+\b", failpoint.__doc__ or ""))
    assert len(steps) == 13
    assert (
        steps - {step for row in rows for step in re.findall(r"`((?:driver|task)\.[a-z]+)`", row.split("|")[1])}
        == set()
    )
