"""Commands that pause a flow and resume it: an order to its jobs, wherever they run, with who and why."""

from __future__ import annotations

import getpass
import os
import time

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user name
        return f"uid {os.getuid()}"


BY = click.option(
    "--by", default=_person, show_default="this user", envvar=options.variable("by"), help="who orders it"
)


@click.command()
@options.config
@options.flow
@BY
@click.option("--reason", required=True, help="why; shown by status and in the logs of the jobs")
@options.common
def pause(config: str, flow: str, by: str, reason: str) -> int:
    """Pause a flow: its jobs copy nothing and move no group until it is resumed.

    The order is recorded on the target. Running jobs follow it within seconds, and go on by themselves after `resume`;
    new ones wait. A paused flow can be failed over.
    """
    from mirrorlake.protocol.cluster import Cluster
    from mirrorlake.state.pause import LONGEST_NAME, LONGEST_REASON, Pause, read_pause, record_pause

    running.set_up_log("ERROR")
    loaded = options.load_flow(config, flow)
    _require(by, LONGEST_NAME, "by")
    _require(reason, LONGEST_REASON, "reason")
    timeout_ms = loaded.connect_timeout_ms
    target = Cluster(loaded.target_connection, "target", f"{loaded.name}|pause", timeout_ms).connect()
    try:
        before = read_pause(target, loaded, timeout_ms)
        now = before or Pause(by.strip(), reason.strip(), time.time_ns() // 1_000_000)
        if before is None:
            record_pause(loaded, now)
    finally:
        target.close()
    if output.is_json():
        output.emit("pause", {"flow": loaded.name, "changed": before is None, "paused": now.to_json()})
    elif before is not None:
        output.say(f"flow {loaded.name} was already {before}. Nothing was changed")
    else:
        output.say(f"flow {loaded.name} is {now}\nnext: mirrorlake resume --flow '{loaded.name}' --reason ...")
    return ExitCode.OK


@click.command()
@options.config
@options.flow
@BY
@click.option("--reason", default="", help="why; recorded")
@options.common
def resume(config: str, flow: str, by: str, reason: str) -> int:
    """Resume a flow that was paused: running jobs go on within seconds."""
    from mirrorlake.protocol.cluster import Cluster
    from mirrorlake.state.pause import LONGEST_NAME, LONGEST_REASON, read_pause, record_resumption

    running.set_up_log("ERROR")
    loaded = options.load_flow(config, flow)
    _require(by, LONGEST_NAME, "by")
    _require(reason or "-", LONGEST_REASON, "reason")
    timeout_ms = loaded.connect_timeout_ms
    target = Cluster(loaded.target_connection, "target", f"{loaded.name}|pause", timeout_ms).connect()
    try:
        before = read_pause(target, loaded, timeout_ms)
        if before is not None:
            record_resumption(loaded, by.strip(), reason.strip(), time.time_ns() // 1_000_000)
    finally:
        target.close()
    if output.is_json():
        was = before.to_json() if before else None
        output.emit("resume", {"flow": loaded.name, "changed": before is not None, "was_paused": was})
    elif before is None:
        by_file = " (mirrorlake.paused in the property file is true, and holds)" if loaded.paused else ""
        output.say(f"flow {loaded.name} was not paused. Nothing was changed{by_file}")
    else:
        output.say(f"flow {loaded.name} goes on; it was {before}")
    return ExitCode.OK


def _require(text: str, longest: int, name: str) -> None:
    if not 0 < len(text.strip()) <= longest:
        raise click.BadParameter(f"allowed are 1 to {longest} characters", param_hint=f"--{name}")


COMMANDS = (pause, resume)
