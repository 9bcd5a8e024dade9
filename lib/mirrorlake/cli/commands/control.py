"""Commands that pause a flow and resume it: an order to its jobs, wherever they run, with who and why."""

from __future__ import annotations

import getpass
import os
import time
from typing import TYPE_CHECKING

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.errors import TargetError

if TYPE_CHECKING:
    from mirrorlake.config.flow import Flow
    from mirrorlake.protocol.cluster import Cluster
    from mirrorlake.state.pause import Pause


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
@click.option(
    "--reason",
    required=True,
    envvar=options.variable("reason"),
    help="why; shown by status and in the logs of the jobs",
)
@options.common
def pause(config: str, flow: str, by: str, reason: str) -> int:
    """Pause a flow: its jobs wait until it is resumed.

    They copy nothing and move no group. The order is recorded on the target. Running jobs follow it within seconds, and
    go on by themselves after `resume`; new ones wait. A paused flow can be failed over.
    """
    from mirrorlake.protocol.cluster import Cluster
    from mirrorlake.state.pause import LONGEST_NAME, LONGEST_REASON, Pause, record_pause

    running.set_up_log("ERROR")
    loaded = options.load_flow(config, flow)
    _require(by, LONGEST_NAME, "by")
    _require(reason, LONGEST_REASON, "reason")
    timeout_ms = loaded.connect_timeout_ms
    target = Cluster(loaded.target_connection, "target", f"{loaded.name}|pause", timeout_ms).connect()
    try:
        before, _ = _standing(target, loaded)
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
        resume_it = options.typed(f"mirrorlake resume --flow '{loaded.name}'", config)
        output.say(f"flow {loaded.name} is {now}\nnext, when it may go on: {resume_it}")
    return ExitCode.OK


@click.command()
@options.config
@options.flow
@BY
@click.option("--reason", default="", envvar=options.variable("reason"), help="why; recorded")
@options.common
def resume(config: str, flow: str, by: str, reason: str) -> int:
    """Resume a flow that was paused.

    Running jobs go on within seconds.
    """
    from mirrorlake.protocol.cluster import Cluster
    from mirrorlake.state.pause import LONGEST_NAME, LONGEST_REASON, record_resumption

    running.set_up_log("ERROR")
    loaded = options.load_flow(config, flow)
    _require(by, LONGEST_NAME, "by")
    _require(reason or "-", LONGEST_REASON, "reason")
    timeout_ms = loaded.connect_timeout_ms
    target = Cluster(loaded.target_connection, "target", f"{loaded.name}|pause", timeout_ms).connect()
    try:
        before, is_known = _standing(target, loaded)
        if before is not None or not is_known:
            record_resumption(loaded, by.strip(), reason.strip(), time.time_ns() // 1_000_000)
    finally:
        target.close()
    if output.is_json():
        was = before.to_json() if before else None
        output.emit("resume", {"flow": loaded.name, "changed": before is not None or not is_known, "was_paused": was})
    elif not is_known:
        output.say(f"flow {loaded.name} goes on; the last record of its pause topic was none of this version")
    elif before is None:
        by_file = " (mirrorlake.paused in the property file is true, and holds)" if loaded.paused else ""
        output.say(f"flow {loaded.name} was not paused. Nothing was changed{by_file}")
    else:
        output.say(f"flow {loaded.name} goes on; it was {before}")
    return ExitCode.OK


def _standing(target: Cluster, flow: Flow) -> tuple[Pause | None, bool]:
    """Reads the pause that holds; returns it, and False if the last record is none that this version can read.

    No job goes on behind such a record, so a new order must be able to take its place.
    """
    from mirrorlake.state.pause import parse_order, read_order

    order = read_order(target, flow, flow.connect_timeout_ms)
    try:
        return (None if order is None else parse_order(order, flow)), True
    except TargetError:
        return None, False


def _require(text: str, longest: int, name: str) -> None:
    if not 0 < len(text.strip()) <= longest:
        raise click.BadParameter(f"allowed are 1 to {longest} characters", param_hint=f"--{name}")


COMMANDS = (pause, resume)
