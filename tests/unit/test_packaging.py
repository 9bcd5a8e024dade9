"""The wheel's dependencies are those of requirements.txt, and its version is that of the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import mirrorlake
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIPELINE, NOTEBOOKS, TESTS = range(1, 4)  # parts of requirements.txt, after its introduction


def pins(*parts: int) -> dict[str, str]:
    """Returns the exact versions in some parts of requirements.txt; empty lines separate the parts."""
    found = (ROOT / "requirements.txt").read_text().split("\n\n")
    assert len(found) == 4
    lines = [line for part in parts for line in found[part].splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def bounds(*texts: str) -> dict[str, Requirement]:
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, texts)}


def extra(name: str) -> list[str]:
    return PROJECT["project"]["optional-dependencies"][name]


@pytest.mark.parametrize(
    ("parts", "required"),
    [
        ((PIPELINE,), bounds(*PROJECT["project"]["dependencies"], *extra("spark"))),
        ((NOTEBOOKS,), bounds(*extra("notebooks"))),
    ],
    ids=["pipeline", "notebooks"],
)
def test_what_the_wheel_depends_on_is_pinned_and_the_other_way_round(
    parts: tuple[int, ...], required: dict[str, Requirement]
) -> None:
    pinned = pins(*parts)
    assert set(required) == set(pinned)
    assert {name for name, version in pinned.items() if version not in required[name].specifier} == set()


def test_the_build_backend_is_pinned_so_that_a_wheel_is_built_without_a_network() -> None:
    pinned = pins(TESTS)
    for name, requirement in bounds(*PROJECT["build-system"]["requires"]).items():
        assert pinned[name] in requirement.specifier


def test_a_container_is_built_from_no_secrets_and_nothing_that_was_made_here() -> None:
    """Its context is sent to the builder as a whole: with .venv and .local that would be gigabytes."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    left_out = {line.removeprefix("**/").rstrip("/") for line in lines if not line.startswith("#")}
    made = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert left_out == {*made, ".git", "*.properties"}
    assert not [*ROOT.glob("*.properties")], "only the top level matches, so that files of the package stay"


def test_the_version_is_the_newest_one_of_the_changelog_or_in_development_behind_it() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.MULTILINE)
    unreleased = changes.partition("## [Unreleased]")[2].partition("\n## ")[0]
    version, _, development = mirrorlake.__version__.partition(".dev")
    assert bool(development) == ("\n- " in unreleased)
    assert (version > released[0]) if development else (version == released[0])
