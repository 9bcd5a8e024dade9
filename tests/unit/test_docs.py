"""All names in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mirrorlake.ledger.views import CAUSES, FUNCTIONS, VIEWS, Definition
from mirrorlake.model.gap import EXPLAINED, LOSS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_test_that_a_document_names_exists() -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 50
    assert named - there == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    assert [link for link in links if link and "://" not in link and not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as forges make them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"\]\([^)]*\)", "", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anchor_of_a_link_exists(page: Path) -> None:
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    there = {(path, anchor): (page.parent / path).resolve() if path else page for path, _, anchor in links if anchor}
    assert {link for link, file in there.items() if file.suffix == ".md" and link[1] not in anchors(file)} == set()


def test_the_sizes_on_the_page_for_operators_are_those_of_the_benchmark() -> None:
    measured = (ROOT / "docs/performance.md").read_text()
    table = (ROOT / "docs/operations.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\w-]+) \| ([\d.]+) \| ([\d.]+) cores \| [\d,]+ \|$", table, re.MULTILINE)
    assert len(rows) >= 5
    for case, seconds, cores in rows:
        section = measured.partition(f"**{case}**")[2]
        (found,) = re.findall(r"^\| mirrorlake, exactly-once \| [\d,]+ \| ([\d.]+) \|", section, re.MULTILINE)[:1]
        assert (case, seconds, cores) == (case, found, f"{float(found) / 10:.3f}")


def test_the_page_for_operators_lists_each_alert_once() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "monitoring/alerts.yml").read_text())
    table = (ROOT / "docs/operations.md").read_text().partition("## What to monitor")[2].partition("\n## ")[0]
    assert len(alerts) > 10
    assert sorted(re.findall(r"\[(\w+)\]\(troubleshooting\.md#mirrorlake", table)) == sorted(
        name.removeprefix("Mirrorlake") for name in alerts
    )


def test_each_page_can_be_reached_from_the_index_of_tasks() -> None:
    docs = ROOT / "docs"
    starts = [docs / "index.md", docs / "recipes/README.md"]
    linked = {
        (start.parent / link.partition("#")[0]).resolve()
        for start in starts
        for link in re.findall(r"\]\(([^)]+)\)", start.read_text())
    }
    assert {page for page in PAGES if page.is_relative_to(docs)} - linked - {starts[0]} == set()


def test_every_file_and_make_target_that_the_page_for_contributors_names_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    lines = [line.partition("#")[0].split() for code in re.findall(r"`+([^`]+)`+", page) for line in code.splitlines()]
    words = {word for line in lines for word in line if not word.startswith((".", "PYTHONPATH="))}
    files = {word for word in words if re.fullmatch(r"[\w./-]+/[\w.-]*|[\w-]+\.(md|toml|txt)", word)}
    assert len(files) > 40
    assert {file for file in files if not (ROOT / file).exists()} == set()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for line in lines if line[:1] == ["make"] for word in line[1:] if "=" not in word}
    assert len(named) > 8
    assert named - targets == set()


def test_the_design_has_a_row_for_every_package() -> None:
    root = ROOT / "lib/mirrorlake"
    packages = {str(file.parent.relative_to(root)) for file in root.rglob("__init__.py")} - {"."}
    assert len(packages) > 10
    table = (ROOT / "docs/design.md").read_text().partition("## The mirror job")[0]
    assert {package for package in packages if f"`{package.removeprefix('jobs/')}/`" not in table} == set()
    modules = {file.stem for file in root.glob("*.py")} - {"__init__"}
    assert {module for module in modules if f"`{module}`" not in table} == set()


def test_no_request_to_a_coordinator_goes_through_librdkafka_which_ends_the_process_when_one_is_cut_off() -> None:
    asks = re.compile(r"\w+_consumer_group\w*\(|client\.list_groups\(")
    code = {str(path): asks.findall(path.read_text()) for path in (ROOT / "lib/mirrorlake").rglob("*.py")}
    assert {path: found for path, found in code.items() if found} == {}


def test_a_package_holds_about_a_dozen_modules_at_most() -> None:
    sizes = {
        folder: len(list(folder.glob("*.py"))) for folder in (ROOT / "lib/mirrorlake").rglob("*/") if folder.is_dir()
    }
    assert {str(folder): size for folder, size in sizes.items() if size > 15} == {}


def test_the_page_on_sql_says_of_every_view_what_the_catalog_says() -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / "docs/sql.md").read_text(), re.MULTILINE | re.DOTALL)
    )
    for name in (*VIEWS, *FUNCTIONS):
        definition, section = Definition.load(name), sections[name]
        assert definition.comment in section
        assert re.findall(r"^\| `(\w+)`(?: ([A-Z]+))? \| (.*) \|$", section, re.MULTILINE) == [
            *definition.parameters,
            *((column, "", says) for column, _, says in definition.columns),
        ]


def test_the_page_on_sql_lists_every_kind_of_gap_with_its_cause() -> None:
    section = (ROOT / "docs/sql.md").read_text().partition("## unmirrored")[2].partition("\n## ")[0]
    losses = {**dict.fromkeys(EXPLAINED, "false"), **dict.fromkeys(LOSS, "true")}
    assert re.findall(r"^\| (\w+) \| (true|false|null) \| (.*) \|$", section, re.MULTILINE) == [
        (kind, losses.get(kind, "null"), cause) for kind, cause in CAUSES.items()
    ]


def test_every_import_of_a_document_works() -> None:
    lines = [
        line for page in PAGES for line in re.findall(r"^from mirrorlake\S* import .+$", page.read_text(), re.MULTILINE)
    ]
    assert len(lines) >= 3
    for line in lines:
        exec(line, {})
