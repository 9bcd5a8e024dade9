"""Shows log lines below the running cell, in bounded space: a job that runs for weeks does not grow its notebook.

The first lines of each event are shown as they arrive. After that, one block shows the latest line of each event, and
the number of lines that were left out. The block is replaced in place once a minute. Every line is shown or counted,
warnings too.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mirrorlake.log import FILE_VARIABLE, TextFormatter, configure, message

FIRST = 30  # lines of each event that are shown as they arrive
EVERY_S = 60.0  # interval at which the block is replaced
HEADING = f"Replaced in place once a minute; every line goes to a file that {FILE_VARIABLE} names."


class Page(Protocol):
    """The output that lines are shown on."""

    def append(self, line: str) -> None:
        """Adds a line at the end."""

    def replace(self, text: str) -> None:
        """Replaces the previous text, or adds the text at the end if there is none."""


class NotebookOutput(logging.Handler):
    """Shows log records on a page of bounded size.

    Args:
        page: output for the lines.
        clock: monotonic clock, in seconds.
        later: called with seconds and a function to call after them, so that the last lines are counted even if no more
            follow.
    """

    def __init__(
        self,
        page: Page,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__()
        self.setFormatter(TextFormatter(is_brief=True))
        self._page, self._clock, self._later = page, clock, later or _later
        self.begin()

    def begin(self, *_: object) -> None:
        """Resets the counts for another cell."""
        with self._exclusive():
            self._shown = Counter[str]()
            self._left_out = Counter[str]()
            self._latest: dict[str, logging.LogRecord] = {}
            self._replaced_at: float | None = None
            self._is_stale = False

    def flush(self, *_: object) -> None:
        """Updates the block."""
        with self._exclusive():
            if not self._is_stale:
                return
            try:
                self._replace()
            except Exception:
                self.handleError(next(iter(self._latest.values())))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(record)
        except Exception:
            self.handleError(record)

    def _show(self, record: logging.LogRecord) -> None:
        name = message(record).name
        if self._shown[name] < FIRST:
            self._shown[name] += 1
            self._page.append(self.format(record))
            return
        self._left_out[name] += 1
        self._latest[name] = record
        wait_s = 0.0 if self._replaced_at is None else self._replaced_at + EVERY_S - self._clock()
        if wait_s <= 0:
            self._replace()
        elif not self._is_stale:
            self._is_stale = True
            self._later(wait_s, self.flush)

    def _replace(self) -> None:
        self._replaced_at, self._is_stale = self._clock(), False
        lines = [f"{self._left_out[name]:,} more: {self.format(record)}" for name, record in self._latest.items()]
        self._page.replace("\n".join([HEADING, *lines]))

    def _exclusive(self) -> Any:
        assert self.lock is not None
        return self.lock


class CellPage:
    """The output of the running cell."""

    def __init__(self) -> None:
        self._block: Any = None

    def begin(self, *_: object) -> None:
        """Starts a new block for another cell."""
        self._block = None

    def append(self, line: str) -> None:
        print(line, flush=True)

    def replace(self, text: str) -> None:
        from IPython.display import display

        if self._block is None:
            self._block = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._block.update({"text/plain": text}, raw=True)


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Shows log lines from now on: below the running cell, or on standard error outside of a notebook.

    Raises:
        ConfigurationError: see `configure`.
    """
    shell = _shell()
    if shell is None:
        configure(environment=environment)
        return
    page = CellPage()
    output = NotebookOutput(page)
    configure(output, environment)
    shell.events.register("pre_run_cell", page.begin)
    shell.events.register("pre_run_cell", output.begin)
    shell.events.register("post_run_cell", output.flush)


def _shell() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
