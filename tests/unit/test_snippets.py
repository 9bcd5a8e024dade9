"""The snippets of the pages work: property files, commands and Python. tests/spark/test_snippets.py runs the SQL."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LANGUAGES = {"", "json", "properties", "python", "sql", "text", "yaml"}
AROUND = """clusters = a, b
a.bootstrap.servers = a:9092
b.bootstrap.servers = b:9092
a->b.enabled = true
"""
MAKEFILE = (ROOT / "Makefile").read_text()
NO_COMMAND_OF_OURS = ("pip", "databricks", "eval")


def blocks(*languages: str) -> list[str]:
    """Returns the blocks of some languages."""
    return [body for page in PAGES for _, language, body in BLOCK.findall(page.read_text()) if language in languages]


def snippets(language: str) -> list[object]:
    """Returns the blocks of a language, each with an id that has its page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if block[2] == language:
                body = re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE)
                name = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}"
                found.append(pytest.param(body, id=name))
    return found


def commands() -> Iterator[str]:
    """Yields the command lines of all pages: those of blocks without a language, and `make ...` in the text."""
    for page in PAGES:
        text = page.read_text()
        yield from (line for *_, language, body in BLOCK.findall(text) if not language for line in body.splitlines())
        yield from re.findall(r"`((?:make|mirrorlake) [a-z][^`]*)`", BLOCK.sub("", text))


def test_each_block_is_of_a_language_whose_snippets_are_tried() -> None:
    assert {language for page in PAGES for _, language, _ in BLOCK.findall(page.read_text())} <= LANGUAGES


def test_data_can_be_read() -> None:
    for text in blocks("json", "yaml"):
        assert yaml.safe_load(textwrap.dedent(text))  # JSON is YAML, too


@pytest.mark.parametrize("text", snippets("properties"))
def test_a_property_file_is_understood_and_each_property_has_an_effect(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mirrorlake.properties"
    file.touch(0o600)  # others may not read what may be a secret
    file.write_text(text if "clusters = " in text else AROUND + text)
    flows = [name for name in Properties.load(file).values if re.fullmatch(r"[\w-]+->[\w-]+\.enabled", name)]
    assert flows
    for name in flows:
        assert Flow.load(file, name.removesuffix(".enabled")).warnings == ()


@pytest.mark.parametrize("text", snippets("python"))
def test_python_compiles_and_what_it_imports_exists(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("mirrorlake"):
            exec(ast.unparse(node), {})
        elif isinstance(node, ast.Import):
            assert all(find_spec(one.name) for one in node.names)


@pytest.mark.parametrize("line", sorted({line for line in commands() if line.strip()}))
def test_a_command_exists_with_the_options_that_it_is_given(line: str) -> None:
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z]+=", word) or "make" in line]
    program, *rest = words[0].rpartition("/")[2], *words[1:]
    if program == "make":
        known_to_make(rest)
    elif program == "papermill":
        known_to_the_notebook(rest)
    elif program == "python":
        assert find_spec(rest[1]) if rest[0] == "-m" else (ROOT / rest[0]).is_file()
    elif program == "mirrorlake":
        known_to_the_command_line(rest)
    elif program in ("pytest", "lint-imports"):
        assert all((ROOT / word).exists() for word in rest if "/" in word)
    else:
        assert program in NO_COMMAND_OF_OURS


def known_to_make(words: list[str]) -> None:
    variables = [word.partition("=")[0] for word in words if "=" in word]
    targets = [word for word in words if "=" not in word]
    assert targets
    assert {target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)} == set()
    assert {name for name in variables if not re.search(rf"\$\({name}\)|\b{name} \?=", MAKEFILE)} == set()


def known_to_the_notebook(words: list[str]) -> None:
    (name,) = {word.rpartition("/")[2] for word in words[:1]}
    cells = json.loads((ROOT / "notebooks" / name).read_text())["cells"]
    (parameters,) = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    known = {name.id for node in ast.parse(parameters).body for name in ast.walk(node) if isinstance(name, ast.Name)}
    given = [words[at + 1] for at, word in enumerate(words) if word == "-p"]
    assert set(given) - known == set()


def known_to_the_command_line(words: list[str]) -> None:
    from mirrorlake.cli.app import main

    command = main.commands[words[0]]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} - known == set()


def test_each_page_has_a_place_in_the_navigation_of_the_site() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(?<=[ :])([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert pages - set(listed) == set()
