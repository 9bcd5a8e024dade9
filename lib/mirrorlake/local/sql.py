"""`make sql`: SQL on the tables and views of a local warehouse, at a prompt, from standard input, or one statement
(QUERY=...).

Spark's own spark-sql would do it, too, and starts as fast; but it can't bring tables of an earlier version up to date,
and prints neither headings nor columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake import resources
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import TABLES
from mirrorlake.ledger.views import FUNCTIONS, VIEWS, ensure_views
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "spark_catalog"
ROWS = 1_000  # shown of one result
PROMPT, CONTINUED = "sql> ", "...> "
WELCOME = """\
tables     {tables}
views      {views}
functions  {functions}
A statement ends with ; and a line end. Leave with Ctrl-D. What the views answer: docs/sql.md"""


def open_warehouse(root: Path, warehouse: str, schema: str) -> SparkSession:
    """A session that knows the tables and views of a schema by their bare names.

    Raises:
        ConfigurationError: there is no such schema.
        LedgerError: its tables can't be read.
    """
    if not (Path(warehouse) / schema).is_dir():
        raise ConfigurationError(
            f"there is no schema {schema} in warehouse {warehouse}. Name another one (make sql WAREHOUSE=... "
            "SCHEMA=...), or run a mirror first"
        )
    spark = local_session(root, "sql")
    ledger = Ledger(spark, CATALOG, schema, warehouse).ensure_tables()
    ensure_views(ledger)
    spark.sql(f"USE `{CATALOG}`.`{schema}`")
    return spark


def statements(lines: Iterable[str]) -> Iterator[str]:
    """What lines say in SQL: a statement ends with a semicolon at the end of a line, or with the last line."""
    parts: list[str] = []
    for line in lines:
        parts.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(parts).strip().rstrip(";").rstrip()
            parts = []
    yield "\n".join(parts).strip()


def answer(spark: SparkSession, statement: str) -> bool:
    """Prints the result of a statement, or what is wrong with it; returns whether there was one."""
    if not statement:
        return True
    try:
        frame = spark.sql(statement)
        if frame.columns:
            frame.show(ROWS, truncate=False)
    except Exception as error:  # of Spark, Delta or the person: the prompt goes on
        print(str(error).partition(";\n")[0].strip(), file=sys.stderr)  # behind that is a plan
        return False
    return True


def typed(history: Path) -> Iterator[str]:
    """Lines that a person types, with what was typed in earlier sessions at hand."""
    import readline

    with suppress(OSError):
        readline.read_history_file(history)
    prompt = PROMPT
    try:
        while True:
            line = input(prompt)
            prompt = PROMPT if not line.strip() or line.rstrip().endswith(";") else CONTINUED
            yield line
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.write_history_file(history)


def main(environment: Mapping[str, str] = os.environ) -> int:
    root = resources.home()
    try:
        configure(level="WARNING")
        spark = open_warehouse(
            root, environment.get("WAREHOUSE") or ".local/warehouse", environment.get("SCHEMA") or "mirrorlake"
        )
    except MirrorlakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    given = environment.get("QUERY") or ("" if sys.stdin.isatty() else sys.stdin.read())
    try:
        if given:
            return 0 if all(answer(spark, statement) for statement in statements(given.splitlines())) else 1
        print(WELCOME.format(tables=", ".join(TABLES), views=", ".join(VIEWS), functions=", ".join(FUNCTIONS)))
        for statement in statements(typed(root / ".local/sql_history")):
            answer(spark, statement)
        return 0
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
