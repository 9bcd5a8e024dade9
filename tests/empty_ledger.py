"""Ledgers for tests: copies of the empty tables that set-up has kept.

To create them in a JVM that has just started takes longer than most tests. `tests/spark/test_store.py`, the notebook
of the installed wheel and the demo create theirs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from mirrorlake.ledger.store import Ledger
from mirrorlake.local.class_archive import empty_ledger

ROOT = Path(__file__).resolve().parents[1]


def put_tables(warehouse: str | Path, schema: str) -> None:
    """Puts empty tables into a warehouse that does not have the schema yet.

    If set-up has not kept tables of these definitions, the code under test creates them.
    """
    if empty_ledger(ROOT).is_dir() and not (Path(warehouse) / schema).exists():
        shutil.copytree(empty_ledger(ROOT), Path(warehouse) / schema)


def ledger_in(spark: Any, schema: str, warehouse: Path) -> Ledger:
    """Returns a ledger in a new warehouse, with its tables."""
    put_tables(warehouse, schema)
    return Ledger(spark, "spark_catalog", schema, str(warehouse)).ensure_tables()
