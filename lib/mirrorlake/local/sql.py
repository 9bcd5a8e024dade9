"""`make sql`: SQL on the tables and views of a local warehouse.

Statements come from a prompt, from standard input, or from QUERY=... (one statement). Spark's own spark-sql starts as
fast. It can't update tables of an earlier version, and it prints neither headings nor columns.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake import resources
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import TABLES
from mirrorlake.ledger.views import FUNCTIONS, VIEWS, ensure_views
from mirrorlake.local.session import local_session
from mirrorlake.log import configure
from mirrorlake.printable import printable

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
    """Opens a session that resolves the tables and views of a schema by their bare names.

    Raises:
        ConfigurationError: the schema does not exist.
        LedgerError: its tables can't be read.
    """
    if not (Path(warehouse) / schema).is_dir():
        raise ConfigurationError(
            f"there is no schema {schema} in warehouse {warehouse}. Name another one (--warehouse, --schema; make sql "
            "WAREHOUSE=... SCHEMA=...), or run a mirror first"
        )
    spark = local_session(root, "sql")
    ledger = Ledger(spark, CATALOG, schema, warehouse).open()
    ensure_views(ledger)
    spark.sql(f"USE {ledger.full_schema}")
    return spark


def statements(lines: Iterable[str]) -> Iterator[str]:
    """Splits lines into SQL statements; a statement ends with a semicolon at a line's end, or with the last line."""
    parts: list[str] = []
    for line in lines:
        parts.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(parts).strip().rstrip(";").rstrip()
            parts = []
    yield "\n".join(parts).strip()


def answer(spark: SparkSession, statement: str) -> bool:
    """Runs a statement and prints its result or its error; returns False after an error."""
    if not statement:
        return True
    try:
        frame = spark.sql(statement)
        if frame.columns:
            shown = io.StringIO()
            with redirect_stdout(shown):
                frame.show(ROWS, truncate=False)
            print(_for_terminal(shown.getvalue()), end="")
    except OSError:  # standard output can't be written
        raise
    except Exception as error:  # an error of Spark, Delta or the user must not end the prompt
        print(_for_terminal(str(error).partition(";\n")[0].strip()), file=sys.stderr)  # a plan follows
        return False
    return True


def _for_terminal(text: str) -> str:
    """Escapes what names of others could tell the terminal."""
    return printable(text, len(text), keep="\n")


def typed(history: Path) -> Iterator[str]:
    """Yields the lines that a user types at the prompt, with the history of earlier sessions."""
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


def run(root: Path, warehouse: str, schema: str, text: str) -> bool:
    """Runs statements on a warehouse: those of a text, else of standard input, else of a prompt if that is a terminal.

    Returns:
        False if a statement of a text or of standard input has failed; the ones after it were not run.

    Raises:
        ConfigurationError: the schema does not exist.
        LedgerError: its tables can't be read.
    """
    is_prompt = not text and sys.stdin.isatty()
    given = text or ("" if is_prompt else sys.stdin.read())
    spark = open_warehouse(root, warehouse, schema)
    try:
        if not is_prompt:
            return all(answer(spark, statement) for statement in statements(given.splitlines()))
        print(WELCOME.format(tables=", ".join(TABLES), views=", ".join(VIEWS), functions=", ".join(FUNCTIONS)))
        for statement in statements(typed(root / ".local/sql_history")):
            answer(spark, statement)
        return True
    finally:
        spark.stop()


def main(environment: Mapping[str, str] = os.environ) -> int:
    configure(level="WARNING")
    warehouse, schema = environment.get("WAREHOUSE") or ".local/warehouse", environment.get("SCHEMA") or "mirrorlake"
    try:
        return 0 if run(resources.home(), warehouse, schema, environment.get("QUERY") or "") else 1
    except MirrorlakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
