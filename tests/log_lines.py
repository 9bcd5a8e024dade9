"""Log lines of this process as `LEVEL event key=value ...`, for tests that wait for a line or read it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from mirrorlake.log import ROOT, message

LOGGER = logging.getLogger(ROOT)


class LogLines(logging.Handler):
    """Keeps every line; calls `call` with each event's name, in the thread that logs it."""

    def __init__(self, call: Callable[[str], None] = lambda name: None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        said = message(record)
        self.lines.append(f"{record.levelname} {said}")
        self._call(said.name)


@contextmanager
def logged(call: Callable[[str], None] = lambda name: None) -> Iterator[list[str]]:
    """Collects the lines that are logged within a block."""
    handler, level = LogLines(call), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


def undisturbed() -> None:
    """Undoes what a command that a test has run in this process has set up: the level, and where lines go."""
    for handler in [known for known in LOGGER.handlers if known.name == ROOT]:
        LOGGER.removeHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = True


@lru_cache(maxsize=1)
def of_process() -> list[str]:
    """Returns all lines from the first call on."""
    handler = LogLines()
    LOGGER.addHandler(handler)
    return handler.lines
