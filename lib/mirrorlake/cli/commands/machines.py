"""Commands that try mirrorlake on this machine: demo, clusters."""

from __future__ import annotations

import click

from mirrorlake.cli import options, running
from mirrorlake.cli.exit_code import ExitCode


@click.command()
@options.common
def demo() -> int:
    """Mirror two real local clusters, move consumer groups over, and make a page about it (three minutes)."""
    from mirrorlake.demo.story import tell

    running.interrupt_on_sigterm()
    return ExitCode.FINDINGS if tell() else ExitCode.OK


@click.command()
@click.argument("action", type=click.Choice(["start", "stop"]))
@options.common
def clusters(action: str) -> int:
    """Start two local Kafka clusters (a and b) and leave them running, or stop them."""
    from mirrorlake import resources
    from mirrorlake.local import __main__ as local

    running.set_up_log("INFO")
    local.COMMANDS[action](resources.home())
    return ExitCode.OK


COMMANDS = (demo, clusters)
