"""Commands about the tables: report, sql."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.errors import ConfigurationError


@click.command()
@options.tables
@options.parameter("flows", "", "source->target, several separated by commas; empty: all flows in the tables")
@options.parameter("hours", "24", "length of the period in hours")
@options.parameter("until", "", "end of the period: ISO, UTC unless it names a zone; empty: now")
@options.parameter("quiet_minutes", "15", "minutes without activity after which a job counts as a problem")
@click.option(
    "--page", default=".local/report.html", show_default=True, type=click.Path(), help="the web page, one file"
)
@options.common
def report(warehouse: str, catalog: str, schema: str, page: str, **given: str) -> int:
    """Make a web page about all flows from the tables.

    Lag, throughput, checkpoints, gates, verification, anomalies.
    """
    from mirrorlake import resources
    from mirrorlake.notebook.page import make_page

    options.require(*options.NOTEBOOKS)
    if catalog == options.CATALOG and not (Path(warehouse) / schema).is_dir():
        raise ConfigurationError(f"there is no schema {schema} in warehouse {warehouse}. Run a mirror first")
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
        rows = [row.asDict(recursive=True) for row in frame.limit(prompt.ROWS + 1).collect()]
    except Exception as error:  # of Spark, about the statement
        raise ConfigurationError(str(error).partition(";\n")[0].strip()) from None
    finally:
        spark.stop()
    is_cut = len(rows) > prompt.ROWS
    output.emit("sql", {"columns": frame.columns, "rows": rows[: prompt.ROWS], "truncated": is_cut})
    return ExitCode.OK


COMMANDS = (report, sql)
