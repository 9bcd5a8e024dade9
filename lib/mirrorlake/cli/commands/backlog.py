"""The command `lag`: topic-partitions, worst first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.errors import LedgerError, MirrorlakeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = ("flow", "topic", "partition", "state", "lag", "lag_seconds", "uncommitted", "upstream_next", "reason")


@click.command()
@options.config
@options.flows
@options.warehouse
@options.schema
@click.option(
    "--live/--stored",
    default=True,
    show_default=True,
    envvar=options.variable("live"),
    help="measure on the brokers now, or read the last measurement",
)
@click.option("--all", "shows_all", is_flag=True, envvar=options.variable("all"), help="partitions without lag, too")
@options.parameter("top", "30", "number of partitions to show; --output json has all that wait", type=click.IntRange(1))
@options.parameter("deadline", "15", "longest time of each flow, in seconds", type=options.SECONDS)
@options.common
def lag(
    config: str, flow: str, warehouse: str, schema: str, live: bool, shows_all: bool, top: int, deadline: float
) -> int:
    """Show the lag of each topic-partition, worst first.

    In records and seconds, as the brokers tell it now. Of a flow that can't be measured, it shows the last measurement
    of the mirror job (table lag_samples), and exits with 8.
    """
    running.set_up_log("ERROR")
    chosen = options.choose(config, flow)
    rows, failures = _measured(chosen, deadline) if live else ([], {})
    missing = [name for name in chosen.names if name not in {row["flow"] for row in rows}]
    wanted = [name for name in missing if not live or name in failures]
    stored, trouble = _stored(warehouse, schema, wanted)
    rows += stored
    if not live:
        known = {row["flow"] for row in stored}
        failures = {
            name: trouble or f"warehouse {warehouse} has no measurement" for name in missing if name not in known
        }
    waiting = [
        row
        for row in rows
        if shows_all or row["lag"] or row["uncommitted"] or row["state"] not in ("mirroring", "promoted")
    ]
    waiting.sort(key=_badness)
    code = ExitCode.FINDINGS if failures else ExitCode.OK
    if output.is_json():
        output.emit("lag", {"partitions": rows if shows_all else waiting, "not_measured": failures})
        return code
    if waiting:
        output.table(COLUMNS, (tuple(_shown(row, name) for name in COLUMNS) for row in waiting[:top]))
        if len(waiting) > top:
            output.say(f"... and {len(waiting) - top:,} more partitions, none worse (--top, --output json)")
    elif rows:  # of flows that were not measured, nothing is known
        output.say("nothing is waiting")
    flows = len({row["flow"] for row in rows})
    output.say(f"\n{output.counted(len(rows), 'partition')} of {output.counted(flows, 'flow')}, {_when(rows)}")
    for name, why in failures.items():
        output.say(f"not measured: {name}: {options.typed(why, config)}")
    return code


def _badness(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sorts unknown lag first, then the oldest record, then the most records."""
    return row["lag"] is not None, -(row["lag_seconds"] or 0), -(row["lag"] or 0), row["flow"], row["topic"]


def _shown(row: Mapping[str, Any], name: str) -> Any:
    value = row[name]
    return output.ago(value) if name == "lag_seconds" and value is not None else value


def _when(rows: Sequence[Mapping[str, Any]]) -> str:
    times = sorted(str(row["measured_at"])[:19] for row in rows)
    return f"measured {times[0]} to {times[-1]} UTC" if times else "none measured"


def _stored(warehouse: str, schema: str, names: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Reads the newest measurement of flows from a local warehouse; returns its rows, and why it can't be read."""
    from mirrorlake.jobs.inspection.stored_lag import newest
    from mirrorlake.ledger.local_tables import LocalTables

    if not names:
        return [], ""
    try:
        return newest(LocalTables(warehouse, schema), names), ""
    except LedgerError as error:
        return [], error.message


def _measured(chosen: options.ChosenFlows, deadline_s: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measures flows side by side; returns their rows, and why others can't be measured."""
    from mirrorlake.jobs.inspection.bounded import bounded
    from mirrorlake.jobs.inspection.live_lag import rows_of

    answers = bounded(
        {name: partial(rows_of, chosen.properties, name, deadline_s) for name in chosen.names}, deadline_s
    )
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for name, answer in answers.items():
        if answer.value is not None:
            rows += answer.value
        else:
            error = answer.error or MirrorlakeError(f"it has not answered within {deadline_s:g} s")
            failures[name] = f"{error.message}. Look: mirrorlake doctor --flow '{name}'"
    return rows, failures


COMMANDS = (lag,)
