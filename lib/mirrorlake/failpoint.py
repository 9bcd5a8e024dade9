"""Ends the process at a chosen step, as a crash would: for the tests that prove what survives one.

`MIRRORLAKE_FAILPOINT=<step>[:<n>][@<file>]` kills the process (SIGKILL) when it reaches that step for the n-th time;
with a file, only if the file is not there yet, which it is from then on, so that of all Spark workers just one dies,
once. Without the variable no failpoint does anything.

The steps: task.initialised, task.compared, task.producing, task.copied, task.written; driver.opening
(after each slot), driver.planned, driver.copied,
driver.gated, driver.committing (after each slot), driver.committed, driver.ledger.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

VARIABLE = "MIRRORLAKE_FAILPOINT"
SPECIFICATION = re.compile(r"(?P<step>[a-z.]+)(:(?P<count>\d+))?(@(?P<file>.+))?")

Failpoint = Callable[[str], None]


def never(_step: str) -> None:
    """The failpoint of everyday life."""


def from_specification(specification: str) -> Failpoint:
    """A function to call with the name of each step as it is reached; see above for the specification, empty for
    none."""
    match = SPECIFICATION.fullmatch(specification)
    if match is None:
        return never
    reached: Counter[str] = Counter()

    def failpoint(step: str) -> None:
        reached[step] += 1
        if step == match["step"] and reached[step] == int(match["count"] or 1) and _is_first(match["file"]):
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


def _is_first(file: str | None) -> bool:
    if file is None:
        return True
    try:
        Path(file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
