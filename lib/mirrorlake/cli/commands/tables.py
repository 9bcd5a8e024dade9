"""Commands about the tables: maintain, report, sql."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.cli.options import Command
from mirrorlake.errors import ConfigurationError

# As the parameters of the notebook: importing the ledger for them would make each `--help` slow.
DAYS = {
    "offset_syncs": "90",
    "checkpoints": "365",
    "expectation_results": "90",
    "cycles": "90",
    "counts": "90",
    "lag_samples": "7",
    "anomalies": "",
    "topology_changes": "",
    "verifications": "",
}


def _ages(command: Command) -> Command:
    """Adds an option for the retention of each table's rows."""
    for table, days in reversed(DAYS.items()):
        about = "runs and gaps that no live group needs" if table == "offset_syncs" else f"rows of {table}"
        command = options.parameter(f"{table}_days", days, f"age of {about} that expire; empty: never")(command)
    return command


@click.command()
@options.config
@options.tables
@_ages
@options.parameter("vacuum_hours", "168", "age of files that no table uses any more, at least 168; empty: they stay")
@click.option(
    "--dry-run", is_flag=True, envvar=options.variable("dry_run"), help="count what would expire, and expire nothing"
)
@click.option(
    "--upgrade",
    is_flag=True,
    envvar=options.variable("upgrade"),
    help="first add the columns that tables of an earlier version lack; pause the jobs before",
)
@options.common
def maintain(config: str, warehouse: str, catalog: str, schema: str, dry_run: bool, upgrade: bool, **ages: str) -> int:
    """Expire rows that nobody needs, and compact the tables.

    Once a day, and once after an upgrade that changes tables (--upgrade). Exits with 2 where there are no tables.
    """
    from mirrorlake.ledger.maintenance import Maintenance, Retention

    if dry_run and upgrade:
        raise ConfigurationError("--dry-run changes no table, so it excludes --upgrade. Leave out one of them")
    given, retention = options.parameters(warehouse=warehouse, catalog=catalog, schema=schema), Retention.parse(ages)
    _require_schema(warehouse, catalog, schema)
    with running.session("maintain") as spark:
        ledger = given.ledger(spark).ensure_tables(upgrade=upgrade)
        now = datetime.now(UTC).replace(tzinfo=None)
        result = Maintenance(ledger, retention, now, config).run(dry_run=dry_run)
    if output.is_json():
        output.emit("maintain", result.to_json())
    else:
        output.frame(result.table(), "", unless_zero=("expired",))
        for note in result.notes:
            output.say(note)
    return ExitCode.OK


@click.command()
@options.tables
@options.parameter("flows", "", "source->target, several separated by commas; empty: all flows in the tables")
@options.parameter("hours", "24", "length of the period in hours")
@options.parameter("until", "", "end of the period: ISO, UTC unless it names a zone; empty: now")
@options.parameter("quiet_minutes", "15", "minutes without activity after which a job counts as a problem")
@click.option(
    "--page",
    default=".local/report.html",
    show_default=True,
    type=click.Path(),
    envvar=options.variable("page"),
    help="the web page, one file",
)
@options.common
def report(warehouse: str, catalog: str, schema: str, page: str, **given: str) -> int:
    """Make a web page about all flows from the tables.

    Lag, throughput, checkpoints, gates, verification, anomalies.
    """
    from mirrorlake import resources
    from mirrorlake.notebook.page import make_page

    options.require(*options.NOTEBOOKS)
    _require_schema(warehouse, catalog, schema)
    given |= {"warehouse": warehouse, "catalog": catalog, "schema": schema}
    for name in given:  # as it was given or taken from there; a kernel would not tell a default from what was given
        os.environ.pop(options.variable(name), None)
    result = make_page(resources.notebooks() / "report.ipynb", Path(page), given)
    if output.is_json():
        output.emit("report", {"page": page, "bytes": Path(page).stat().st_size, **result})
    else:
        output.say(f"made {page} ({output.size(Path(page).stat().st_size)})")
    return ExitCode.OK


@click.command()
@options.warehouse
@options.schema
@click.argument("statement", required=False, default="")
@options.common
def sql(warehouse: str, schema: str, statement: str) -> int:
    """Run SQL on the tables and views, or open a prompt.

    One statement, or those of standard input; a prompt if that is a terminal. With --output json, the object has the
    columns and the rows of the one statement. Exits with 2 if a statement fails.
    """
    from mirrorlake import resources
    from mirrorlake.local import sql as prompt

    running.set_up_log("WARNING")
    if not output.is_json():
        is_done = prompt.run(resources.home(), warehouse, schema, statement)
        return ExitCode.OK if is_done else ExitCode.CONFIGURATION
    if not statement:
        raise click.UsageError("--output json needs a statement")
    spark = prompt.open_warehouse(resources.home(), warehouse, schema)
    try:
        frame = spark.sql(statement)
        _require_own_names(frame.columns)
        rows = [row.asDict(recursive=True) for row in frame.limit(prompt.ROWS + 1).collect()]
    except ConfigurationError:
        raise
    except Exception as error:  # of Spark, about the statement
        raise ConfigurationError(str(error).partition(";\n")[0].strip()) from None
    finally:
        spark.stop()
    is_cut = len(rows) > prompt.ROWS
    output.emit("sql", {"columns": frame.columns, "rows": rows[: prompt.ROWS], "truncated": is_cut})
    return ExitCode.OK


def _require_own_names(columns: Sequence[str]) -> None:
    """Raises ConfigurationError if two columns have the same name: an object of JSON would have the last one only."""
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:
        raise ConfigurationError(f"several columns have the name {doubled[0]}. Give each a name of its own (AS)")


def _require_schema(warehouse: str, catalog: str, schema: str) -> None:
    """Raises ConfigurationError if a local warehouse has no tables: they would be made where nobody looks for them."""
    if catalog == options.CATALOG and not (Path(warehouse) / schema).is_dir():
        raise ConfigurationError(f"there is no schema {schema} in warehouse {warehouse}. Run a mirror first")


COMMANDS = (maintain, report, sql)
