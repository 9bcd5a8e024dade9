"""The command `mirrorlake`: its sub-commands, and how an error ends each of them."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import click

from mirrorlake import __version__
from mirrorlake.cli import exit_code, options, output
from mirrorlake.cli.commands import assessment, backlog, checks, control, failover, jobs, machines, tables
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.cli.running import Terminated, terminated_by_sigterm
from mirrorlake.errors import ConfigurationError, LedgerError, MirrorlakeError, unexpected
from mirrorlake.printable import printable

UNUSABLE = frozenset(
    getattr(errno, name) for name in ("EACCES", "EPERM", "EROFS", "ENOTDIR", "EISDIR", "EEXIST", "ENAMETOOLONG")
)
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class Commands(click.Group):
    """A group whose commands end with an exit code by the kind of error, and with one message instead of a trace."""

    def invoke(self, context: click.Context) -> Any:
        words = tuple(context.args)
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - it was closed before the command began
        try:
            with terminated_by_sigterm():
                code = super().invoke(context)
        except Terminated:
            click.echo("terminated", err=True)
            context.exit(ExitCode.TERMINATED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            context.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            output.discard()
            context.exit(ExitCode.CUT_OFF)
        except click.UsageError as error:  # click prints it
            if output.is_json() or _asks_for_json(words):
                about = {"kind": ConfigurationError.__name__, "message": error.format_message(), "retriable": False}
                values = {"error": about, "exit_code": int(ExitCode.CONFIGURATION)}
                output.emit(context.invoked_subcommand or "", values)
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            self._fail(context, error)
        context.exit(int(code or ExitCode.OK))

    @staticmethod
    def _fail(context: click.Context, error: Exception) -> None:
        if output.given("debug"):
            traceback.print_exception(error)
        cause, error = error, _explained(error)
        code = exit_code.of(error)
        known = error if isinstance(error, MirrorlakeError) else unexpected("mirrorlake", error)
        advice = "" if isinstance(error, MirrorlakeError) else ". This is a defect; --debug shows where"
        if output.is_json():
            about = {"kind": type(known).__name__, "message": known.message, "retriable": known.retriable}
            kept = output.given("result")
            with suppress(OSError):  # standard output may be why it fails
                output.emit(
                    context.invoked_subcommand or "",
                    {"error": about, "exit_code": int(code), **({"result": kept} if kept else {})},
                )
        click.echo(f"error: {printable(known.message, 10_000, keep=chr(10))}{advice}", err=True)
        if _is_full(cause):
            output.discard()
        context.exit(code)


def _asks_for_json(words: Sequence[str]) -> bool:
    """Returns True if a command line asks for JSON; one with an option that is not known is never parsed to its end."""
    wanted = [word for option, word in pairwise(words) if option == "--output"]
    wanted += [word.removeprefix("--output=") for word in words if word.startswith("--output=")]
    return (wanted or [os.environ.get(options.variable("output"), "")])[-1] == output.JSON


def _explained(error: Exception) -> Exception:
    """Returns the error for what this machine lacks: a package of one of the wheel's extras, or a place to write to.

    Others stay as they are. One of no kind of mirrorlake's is a defect, and its message may hold anything.
    """
    if isinstance(error, ModuleNotFoundError):
        return options.lacking((error.name or "").partition(".")[0]) or error
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
        said = f"{error.filename} can't be used: {error.strerror}. Name another place, or run in another folder"
        return ConfigurationError(said)
    if _is_full(error):  # it may pass, so it is not as a wrong option is
        where = getattr(error, "filename", None) or "Standard output, or a file,"
        return LedgerError(f"{where} can't be written: there is no space left. Free some", retriable=True)
    return error


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes and the fields of --output json: docs/cli.md.",
)
@click.version_option(__version__, prog_name="mirrorlake")
def main() -> None:
    """Mirrors Kafka topics and consumer groups from one cluster to another, exactly once."""


for command in (
    *machines.COMMANDS,
    *jobs.COMMANDS,
    *failover.COMMANDS,
    *control.COMMANDS,
    *checks.COMMANDS,
    *backlog.COMMANDS,
    *assessment.COMMANDS,
    *tables.COMMANDS,
):
    main.add_command(command)
