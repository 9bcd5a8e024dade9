"""What commands print on standard output: tables for people, or one JSON object."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mirrorlake.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

TABLE, JSON = "table", "json"
WIDEST_WORD = 24  # a column needs no more than this: longer words are folded
COLOURS: Mapping[str, str] = {
    "problem": "bold red",
    "down": "bold red",
    "stalled": "bold red",
    "warning": "yellow",
    "paused": "yellow",
    "closed": "yellow",
    "behind": "yellow",
    "unknown": "magenta",
    "ok": "green",
}


def given(name: str) -> Any:
    """Returns the value of an option that every command has; None outside of a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(f"mirrorlake.{name}")


def is_json() -> bool:
    """Returns True if the command prints JSON."""
    return bool(given("output") == JSON)


def emit(command: str, values: Mapping[str, Any]) -> None:
    """Prints the one JSON object of a command."""
    text = json.dumps(_of_json({"command": command, **values}), default=str, allow_nan=False)
    click.echo(text)


def rows(found: Any) -> list[dict[str, Any]]:
    """Returns the rows of a pandas frame for `emit`.

    pandas makes floats of a column's whole numbers where a row has none; they become whole again.
    """
    whole = found.convert_dtypes(convert_string=False)
    records: list[dict[str, Any]] = whole.to_dict("records")
    return records


def _of_json(value: Any) -> Any:
    """Returns a value without what JSON does not have.

    NaN and NA, of pandas for nothing, NaT and infinities become null; keys become text, and bytes hexadecimal digits.
    """
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _of_json(inner) for key, inner in value.items()}
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_of_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if type(value).__name__ in ("NaTType", "NAType") else value


@contextmanager
def narrated() -> Iterator[None]:
    """Lets a block tell on standard output how it gets on, or on standard error if the command prints JSON."""
    if not is_json():
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def discard() -> None:
    """Lets nothing more reach standard output, whose reader has gone: Python would complain of the rest at its end."""
    with suppress(OSError, ValueError):  # standard output has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def keep(command: str, values: Mapping[str, Any]) -> None:
    """Keeps the result of a command that may still fail: the object about its error has it as `result`."""
    click.get_current_context().meta["mirrorlake.result"] = {"command": command, **values}


def result(values: Mapping[str, Any]) -> None:
    """Prints the numbers of a result for people, one in a line."""
    flat = [
        (name if inner is None else f"{name}: {inner}", number)
        for name, value in values.items()
        if value not in ({}, None)
        for inner, number in (value.items() if isinstance(value, dict) else [(None, value)])
    ]
    width = max((len(name) for name, _ in flat), default=0)
    for name, value in flat:
        say(f"{name.replace('_', ' '):<{width}}  {cell(value)}")


def frame(found: Any, nothing: str, *, unless_zero: Collection[str] = ()) -> None:
    """Prints a pandas frame as a table; says `nothing` if it is empty.

    Columns without a value are left out, and those of `unless_zero` in which every number is 0.
    """
    if found.empty:
        if nothing:
            say(nothing)
        return
    shown = [
        name
        for name in found.columns
        if not all(_is_nothing(value) or (name in unless_zero and value == 0) for value in found[name])
    ]
    table(shown, ([_plain(value) for value in row] for row in found[shown].to_numpy(dtype=object).tolist()))


def _is_nothing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float | datetime) and value != value)  # NaN, NaT


def _plain(value: Any) -> Any:
    if _is_nothing(value):
        return None
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return int(value) if isinstance(value, float) and value.is_integer() else value


def say(text: str) -> None:
    """Prints a line for people; escapes what names of others could tell the terminal."""
    click.echo(printable(text, len(text), keep="\n"))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Prints a table for people; words of `COLOURS` have their colours. Cells are never markup.

    In a terminal that the columns do not fit into beside each other, each row becomes some lines: a column and its
    value in each. A pipe gets as long lines as it takes.
    """
    from rich.table import Table
    from rich.text import Text

    def text(value: Any) -> Text:
        return Text(said := cell(value), style=COLOURS.get(said, ""))

    out, cells = console(), [[text(value) for value in row] for row in rows]
    shown = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    needed = _needed([columns, *([one.plain for one in row] for row in cells)])
    if not out.is_terminal:
        out.width = max(out.width, needed)
    if needed <= out.width:
        for name in columns:
            shown.add_column(name, overflow="fold")
        for row in cells:
            shown.add_row(*row)
    else:
        shown.show_header = False
        shown.add_column(style="bold")
        shown.add_column(overflow="fold")
        for number, row in enumerate(cells):
            if number:
                shown.add_row()
            for name, one in zip(columns, row, strict=True):
                if one.plain != cell(None):
                    shown.add_row(name, one)
    out.print(shown)


def _needed(rows: Iterable[Sequence[str]]) -> int:
    """Returns the width of a table whose cells are wrapped between words, and in words above WIDEST_WORD."""
    widths = [
        min(max((len(word) for one in column for word in one.split()), default=0), WIDEST_WORD)
        for column in zip(*rows, strict=True)
    ]
    return sum(widths) + 2 * (len(widths) - 1)


def cell(value: Any) -> str:
    """Formats a value for people: numbers with commas, nothing as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def console() -> Console:
    """Returns the console of standard output; a pipe gets lines of 160 characters or more, without colours."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `app.py` ends the command; rich would end it as a defect does

    return Output(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)


def ago(seconds: float) -> str:
    """Formats a time span with one unit, for people."""
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {name}"
    return f"{max(0, int(seconds))} s"


def counted(number: int, noun: str) -> str:
    """Formats a number of things for people."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(count: float) -> str:
    """Formats a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
