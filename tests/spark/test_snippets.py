"""The SQL of the pages runs on the example ledger, in blocks and within sentences.

test_views.py compares the results of docs/sql.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.ledger.store import Ledger
from mirrorlake.local.sql import statements

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```sql\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SENTENCE = re.compile(r"`(SELECT\s[^`]+)`")


def sql_of(page: Path) -> list[str]:
    """Returns the blocks of a page, and the statements within its sentences."""
    text = page.read_text()
    return [*(body for _, body in BLOCK.findall(text)), *SENTENCE.findall(BLOCK.sub("", text))]


PAGES = {
    page.name: sql_of(page) for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if page.name != "sql.md"
}


@pytest.mark.parametrize("page", sorted(name for name, blocks in PAGES.items() if blocks))
def test_the_sql_of_a_page_runs(page: str, example: Ledger, spark: Any) -> None:
    spark.sql("USE spark_catalog.example")
    for block in PAGES[page]:
        for statement in filter(None, statements(block.splitlines())):
            frame = spark.sql(statement)  # unknown tables and columns are found here
            assert frame.columns or statement.startswith("INSERT ")
            frame.collect()
