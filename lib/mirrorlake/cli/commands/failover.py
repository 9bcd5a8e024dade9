"""Commands that move consumer groups between clusters: plan, promote, failover, failback."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.cli.options import Command

# Of a plan, which is shorter without them where a move costs nothing.
COSTS = ("not_mirrored", "lag_seen", "rpo_seconds", "re_reads", "skips", "lost", "again")
SIGNED_BY = options.parameter("signed_by", "", "name of the responsible operator, which is recorded")


def _choice(command: Command) -> Command:
    """Adds the options that all moves share."""
    for option in (
        options.parameter("close", "auto", "true: close the flow; auto: if all its groups were moved"),
        options.parameter("partial", "false", "true: move the groups without open blocks, even if others are blocked"),
        options.parameter("accept", "", "kinds of blocks that you accept, separated by commas; they are recorded"),
        options.parameter("max_lag", "0", "largest number of unmirrored records of a partition"),
        options.parameter("groups", "", "names and regexes; empty: all groups of the flow"),
    ):
        command = option(command)
    return command


def _of_failover(command: Command) -> Command:
    for option in (
        options.parameter("access", "list", "apply: give ACLs and quotas that the target lacks; list: show them"),
        options.parameter("max_position_age_seconds", "3600", "largest age of positions that come from the tables"),
        options.parameter("at", "", "time of the positions, YYYY-MM-DD HH:MM:SS (UTC), from the tables; empty: now"),
        options.parameter("topics", "", "fail over only these topics, and close only them; empty: the whole flow"),
    ):
        command = option(command)
    return _choice(command)


@click.command()
@options.one_flow
@options.parameter("source", "auto", "alive, dead, or auto: alive if it answers within 5 s")
@click.option(
    "--rehearse",
    is_flag=True,
    envvar=options.variable("rehearse"),
    help="check every offset by the record on the target; moves no group",
)
@_of_failover
@options.common
def plan(rehearse: bool, **given: str) -> int:
    """Show what a failover would do to each group; change nothing.

    Exits with 8 if it is a no-go.
    """
    return _failover("plan", "rehearse" if rehearse else "plan", given)


@click.command()
@options.one_flow
@SIGNED_BY
@_of_failover
@options.common
def promote(**given: str) -> int:
    """Move all groups to the target, with the source alive.

    Exits with 6 if it is a no-go: no group was moved then. A pause does not prevent it.
    """
    return _failover("promote", "promote", given)


@click.command()
@options.one_flow
@SIGNED_BY
@_of_failover
@options.common
def failover(**given: str) -> int:
    """Move all groups to the target, with the source dead.

    Exits with 6 if it is a no-go: no group was moved then. A pause does not prevent it.
    """
    return _failover("failover", "failover", given)


def _failover(command: str, mode: str, given: Mapping[str, str]) -> int:
    from mirrorlake import resources
    from mirrorlake.jobs.failover.job import Failover
    from mirrorlake.jobs.failover.plan import Choice

    place, wanted = _split(given)
    choice = Choice.parse({**wanted, "mode": mode})
    loaded, running_with = options.load_flow(given["config"], given["flow"]), options.parameters(**place)
    with running.session(f"{command} {loaded.name}") as spark:
        job = Failover(spark, given["config"], loaded, running_with.ledger(spark), resources.expectations())
        result = job.carry_out(choice)
    if output.is_json():
        lines = output.rows(result.table())
        access = output.rows(result.access_table())
        output.emit(command, {**result.to_json(), "lines": lines, "access": access})
    else:
        output.frame(result.table(), "No group has a position.", unless_zero=COSTS)
        if result.access:
            output.say("\nAccess that the target lacks:")
            output.frame(result.access_table(), "")
        output.say(f"\n{'GO' if result.go else 'NO-GO'}")
        output.result(result.to_json())
    return ExitCode.OK if result.go or mode not in ("plan", "rehearse") else ExitCode.FINDINGS


@click.command()
@options.one_flow
@options.parameter("mode", "plan", "plan, begin, rehearse or run")
@options.parameter("diverged", "", "for begin: drop or reapply the records that the old source had not handed over")
@options.parameter("export", "", "place to export them to, with their contents; empty: no export")
@options.parameter("lost", "", "for begin: refill or accept records that the old source has lost")
@SIGNED_BY
@_choice
@options.common
def failback(**given: str) -> int:
    """Return a flow that was failed over to its old source.

    --flow names the flow that was failed over.
    """
    from mirrorlake import resources
    from mirrorlake.jobs.failover.failback import Failback, choice

    place, wanted = _split(given)
    chosen = choice(wanted)
    loaded, running_with = options.load_flow(given["config"], given["flow"]), options.parameters(**place)
    with running.session(f"failback {loaded.name}") as spark:
        job = Failback(spark, given["config"], loaded, running_with.ledger(spark), resources.expectations())
        result = job.carry_out(chosen, wanted["diverged"], wanted["export"], wanted["lost"])
        diverged = result.divergence.table()
    is_looked_at = chosen.mode in ("plan", "rehearse")
    code = ExitCode.OK if result.go or not is_looked_at else ExitCode.FINDINGS
    if output.is_json():
        lines = output.rows(result.table())
        output.emit("failback", {**result.to_json(), "diverged_records": output.rows(diverged), "lines": lines})
        return code
    outside = " outside of open transactions" if result.divergence.hidden else ""
    output.frame(diverged, f"The old source has no diverged records{outside}.")
    output.frame(result.lost_table(), "The old source has lost no mirrored records.")
    output.frame(result.table(), "", unless_zero=COSTS)
    if is_looked_at:
        output.say("\n".join(("", *result.stopped_by.values(), "GO" if result.go else "NO-GO")))
    output.result(result.to_json())
    return code


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits the place of the tables from the operator's choice."""
    names = ("config", "warehouse", "catalog", "schema")
    place = {name: given[name] for name in names}
    return place, {name: value for name, value in given.items() if name not in (*names, "flow")}


COMMANDS = (plan, promote, failover, failback)
