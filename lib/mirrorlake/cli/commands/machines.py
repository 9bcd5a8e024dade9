"""Commands that try mirrorlake on this machine: demo, clusters."""

from __future__ import annotations

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode


@click.command()
@options.common
def demo() -> int:
    """Mirror two real local clusters, and make a page about it.

    Live traffic, a mirror, consumer groups that move over and go on exactly, a proof: three minutes.
    """
    options.require(*options.NOTEBOOKS)
    from mirrorlake.demo.story import page, tell

    with output.narrated():
        problems = tell()
    if output.is_json():
        output.emit("demo", {"healthy": not problems, "problems": problems, "page": str(page())})
    return ExitCode.FINDINGS if problems else ExitCode.OK


@click.command()
@click.argument("action", type=click.Choice(["start", "stop"]))
@options.common
def clusters(action: str) -> int:
    """Start two local Kafka clusters (a and b), or stop them.

    They run on until they are stopped. .local/mirrorlake.properties has the flow between them then.
    """
    from mirrorlake import resources
    from mirrorlake.local import __main__ as local

    running.set_up_log("INFO")
    with output.narrated():
        servers = local.start(resources.home()) if action == "start" else local.stop(resources.home())
    if output.is_json():
        output.emit("clusters", {"action": action, "clusters": servers})
    return ExitCode.OK


COMMANDS = (demo, clusters)
