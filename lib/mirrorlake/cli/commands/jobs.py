"""Commands that run the jobs of the notebooks: mirror, checkpoint, topics, verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of a verification, which is shorter without them where there are none.
COUNTED = ("missing", "duplicated", "out_of_order", "different", "unexpected", "not_comparable", "unmirrored")


@click.command()
@options.one_flow
@options.trigger
@options.run_for
@options.checkpoints
@options.common
def mirror(config: str, flow: str, trigger: str, run_for: str, **place: str) -> int:
    """Copy a flow's topics, exactly once.

    Ctrl-C and SIGTERM end it between two micro-batches. While the flow is paused, it waits; with availableNow, it ends
    at once with 9.
    """
    from mirrorlake import resources
    from mirrorlake.jobs.mirror.job import INTERVAL_S, MirrorJob
    from mirrorlake.jobs.mirror.spark_engine import SparkEngine

    given = options.parameters(config=config, trigger=trigger, run_for=run_for, **place)
    interval_s, run_for_s = given.interval_s(configured_s=INTERVAL_S), given.run_for_s()
    loaded = options.load_flow(config, flow)
    with running.session(f"mirror {loaded.name}") as spark:
        suite = resources.expectations() / "offset_syncs.json"
        job = MirrorJob(SparkEngine(spark), config, loaded, given.ledger(spark), suite)
        with running.stopped_by_signals(job):
            result = job.run(interval_s, run_for_s).to_json()
    return _told("mirror", result, ends_by_itself=interval_s is None)


@click.command()
@options.one_flow
@options.trigger
@options.run_for
@options.checkpoints
@options.common
def checkpoint(config: str, flow: str, trigger: str, run_for: str, **place: str) -> int:
    """Translate and sync a flow's consumer groups.

    Ctrl-C and SIGTERM end it between two cycles. While the flow is paused, positions are recorded and no group is
    moved; with availableNow, it ends with 9 then.
    """
    from mirrorlake import resources
    from mirrorlake.jobs.checkpoint.job import CheckpointJob

    given = options.parameters(config=config, trigger=trigger, run_for=run_for, **place)
    loaded = options.load_flow(config, flow)
    interval_s = given.interval_s(configured_s=loaded.emit_checkpoints_interval_s)
    run_for_s = given.run_for_s()
    with running.session(f"checkpoint {loaded.name}") as spark:
        suite = str(resources.expectations() / "checkpoints.json")
        job = CheckpointJob(spark, config, loaded, given.ledger(spark), suite)
        with running.stopped_by_signals(job):
            result = job.run(interval_s, run_for_s).to_json()
    return _told("checkpoint", result, ends_by_itself=interval_s is None)


@click.command()
@options.one_flow
@click.option(
    "--dry-run", is_flag=True, envvar=options.variable("dry_run"), help="show the plan, and change no cluster"
)
@options.common
def topics(config: str, flow: str, dry_run: bool, **place: str) -> int:
    """Create, grow and configure remote topics, or show the plan."""
    from mirrorlake.jobs.mirror.topics.topics_job import keep_in_step

    given = options.parameters(config=config, **place)
    loaded = options.load_flow(config, flow)
    with running.session(f"topics {loaded.name}") as spark:
        result = keep_in_step(config, loaded, given.ledger(spark), dry_run=dry_run)
    if not output.is_json():
        output.frame(result.table(), "No topic has to be changed.")
    return _told("topics", {"flow": loaded.name, **result.to_json()})


@click.command()
@options.one_flow
@options.parameter("mode", "incremental", "incremental, full, time or sample")
@options.parameter("from_time", "", "for time: ISO, UTC unless it names a zone; inclusive")
@options.parameter("to_time", "", "for time: as --from-time; exclusive")
@options.parameter("version", "", "Delta version of offset_syncs to repeat a verification by")
@options.parameter("fraction", "1", "for sample: share of the runs, above 0 and up to 1")
@options.parameter("topics", "", "source topics, as names and regexes separated by commas; empty: all")
@options.parameter("max_lateness_seconds", "3600", "age from which on an unmirrored record is a failure")
@options.common
def verify(config: str, flow: str, warehouse: str, catalog: str, schema: str, **scope: str) -> int:
    """Compare every record of both clusters.

    Independently of the code that copies. Exits with 6 if there is a difference, or nothing to compare.
    """
    from mirrorlake import resources
    from mirrorlake.jobs.verification.job import Verification
    from mirrorlake.jobs.verification.scope import VerificationScope

    given = options.parameters(config=config, warehouse=warehouse, catalog=catalog, schema=schema)
    parsed, loaded = VerificationScope.parse(**scope), options.load_flow(config, flow)
    with running.session(f"verify {loaded.name}") as spark:
        suite = resources.expectations() / "verification.json"
        result = Verification(spark, loaded, given.ledger(spark), suite).run(parsed)
    if not output.is_json():
        output.frame(result.table(), "Nothing was compared.", unless_zero=("digested", *COUNTED))
        output.say(f"\n{result.statement()}")
    else:
        output.keep("verify", result.to_json())
    result.require()
    return _told("verify", result.to_json(), is_shown=True)


def _told(command: str, result: Mapping[str, Any], *, is_shown: bool = False, ends_by_itself: bool = True) -> int:
    """Prints the result of a job; returns the exit code.

    A job that runs until it is stopped has done what it was told, also where that was to wait.
    """
    if output.is_json():
        output.emit(command, result)
    elif not is_shown:
        output.result(result)
    if pause := result.get("paused"):
        click.echo(f"flow {result['flow']} is paused by {pause['by']}: {pause['reason']}", err=True)
        return ExitCode.PAUSED if ends_by_itself else ExitCode.OK
    return ExitCode.OK


COMMANDS = (mirror, checkpoint, topics, verify)
