"""Writes the tables of properties in docs/configuration.md, from the table of options (`mirrorlake.config.options`).

Each table stands between `<!-- options: NAME -->` and `<!-- end of options -->`.
Usage: PYTHONPATH=lib .venv/bin/python tools/option_tables.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorlake.config.option import Option
from mirrorlake.config.options import TABLES

PAGE = Path(__file__).resolve().parents[1] / "docs/configuration.md"
PLACE = re.compile(r"(<!-- options: (.+?) -->\n).*?(?=<!-- end of options -->)", re.DOTALL)


def rewrite(page: str) -> str:
    """Replaces the table between each pair of marks of a page.

    Raises:
        KeyError: a mark names no table.
    """
    return PLACE.sub(lambda place: f"{place[1]}\n{render(TABLES[place[2]])}\n", page)


def render(options: Sequence[Option]) -> str:
    """Renders options as a table in Markdown, with a column `live` if any of them is."""
    columns = ["property", "default", "allowed", "meaning"]
    rows = [[f"`{option.name}`", _default(option), option.kind.allowed, option.description] for option in options]
    if any(option.is_live for option in options):
        columns.insert(3, "live")
        for row, option in zip(rows, options, strict=True):
            row.insert(3, "yes" if option.is_live else "")
    ruler = f"|{'---|' * len(columns)}\n"
    return _line(columns) + ruler + "".join(_line(row) for row in rows)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _default(option: Option) -> str:
    default = f"`{option.default}`" if option.default else ""
    if option.mirrormaker_default:
        return f"**{default}** (MirrorMaker 2: `{option.mirrormaker_default}`)"
    return option.default_description or default


def main() -> int:
    PAGE.write_text(rewrite(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
