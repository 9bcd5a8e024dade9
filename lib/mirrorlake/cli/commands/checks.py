"""Commands that look at flows and clusters without Spark, and change nothing: doctor, status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mirrorlake.cli import options, output
from mirrorlake.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from mirrorlake.jobs.inspection.finding import DoctorFinding

SHOWN = 40  # flows or findings of one screen


@click.command()
@options.config
@options.flows
@options.parameter("deadline", "20", "longest time of each check, in seconds", type=options.SECONDS)
@options.warehouse
@options.common
def doctor(config: str, flow: str, deadline: float, warehouse: str) -> int:
    """Check all that a flow needs, before anything runs.

    Configuration, clusters, permissions, this machine. Changes nothing. Each check has a deadline, and clusters and
    flows are checked side by side. Exits with 8 if there is a problem, or a check that could not be made.
    """
    from mirrorlake.cli import machine, running
    from mirrorlake.jobs.inspection.doctor import examine, levels
    from mirrorlake.jobs.inspection.finding import ABOUT, Level, worst_first

    running.set_up_log("ERROR")
    chosen = options.choose(config, flow)
    found = worst_first([*examine(chosen.properties, chosen.names, deadline), *machine.examine(warehouse)])
    counts = levels(found)
    is_bad = bool(counts.get(Level.PROBLEM) or counts.get(Level.UNKNOWN))
    if output.is_json():
        output.emit(
            "doctor",
            {"config": config, "flows": chosen.names, "healthy": not is_bad, "levels": counts,
             "findings": [one.to_json() for one in found]},
        )  # fmt: skip
        return ExitCode.FINDINGS if is_bad else ExitCode.OK
    _show(found)
    said = ", ".join(f"{counts[level]:,} {level}" for level in Level if level in counts)
    flows = output.counted(len(chosen.names), "flow")
    output.say(f"\n{len(ABOUT)} checks of {flows}, side by side, {deadline:g} s each: {said}")
    return ExitCode.FINDINGS if is_bad else ExitCode.OK


def _show(found: Sequence[DoctorFinding]) -> None:
    output.table(
        ("", "check", "of", "found", "remedy"),
        ((one.level.value, one.check.value, one.subject, one.detail, one.remedy) for one in found),
    )


@click.command()
@options.config
@options.flows
@options.warehouse
@options.schema
@options.parameter("deadline", "15", "longest time of each look, in seconds", type=options.SECONDS)
@options.parameter(
    "stalled_after",
    "300",
    "age in seconds, of a record that waits and of its slot's last commit, from which on a flow has stalled: more than "
    "the interval of a scheduled mirror",
    type=options.Number(0, 366 * 86_400, min_open=True),
)
@options.parameter("hours", "24", "how far back to look in the tables", type=options.Number(0, 87_600, min_open=True))
@options.common
def status(
    config: str, flow: str, warehouse: str, schema: str, deadline: float, stalled_after: float, hours: float
) -> int:
    """Show all flows, worst first, with what to do next.

    It asks the clusters, and reads a local warehouse if there is one. Exits with 8 if a flow needs attention.
    """
    from mirrorlake.cli import running
    from mirrorlake.errors import LedgerError
    from mirrorlake.jobs.inspection.history import histories
    from mirrorlake.jobs.inspection.overview import ATTENTION, overview
    from mirrorlake.ledger.local_tables import LocalTables

    running.set_up_log("ERROR")
    chosen = options.choose(config, flow)
    tables, not_read, known = LocalTables(warehouse, schema), "", {}
    try:
        known = histories(tables, hours)
        if not tables.are_there():
            not_read = f"no schema {schema} in warehouse {warehouse}"
    except LedgerError as error:
        not_read = error.message
    found = overview(chosen.properties, chosen.names, known, deadline, stalled_after)
    attention = [one for one in found if one.condition in ATTENTION]
    code = ExitCode.FINDINGS if attention else ExitCode.OK
    if output.is_json():
        output.emit(
            "status",
            {"config": config, "healthy": not attention, "tables_not_read": not_read or None,
             "flows": [one.to_json() for one in found]},
        )  # fmt: skip
        return code
    shown = found[:SHOWN]
    output.table(
        ("flow", "", "lag", "oldest", "last commit", "checkpoint", "anomalies", "what", "next"),
        (
            (
                one.flow,
                one.condition.value,
                one.lag,
                one.oldest_s if one.oldest_s is None else output.ago(one.oldest_s),
                one.committed_s if one.committed_s is None else output.ago(one.committed_s),
                None
                if one.history is None or one.history.checkpointed_s is None
                else output.ago(one.history.checkpointed_s),
                None if one.history is None else sum(one.history.anomalies.values()) or None,
                one.detail,
                options.typed(one.next, config),
            )
            for one in shown
        ),
    )
    if len(found) > len(shown):
        output.say(f"... and {len(found) - len(shown):,} more flows, none worse (--output json has all)")
    if not_read:
        output.say(f"\ncheckpoints, gates and anomalies are not shown: {not_read}")
    for one in shown:
        if one.history and one.history.newest_anomaly:
            output.say(f"\n{one.flow}, newest anomaly of {hours:g} h: {one.history.newest_anomaly}")
            break
    return code


COMMANDS = (doctor, status)
