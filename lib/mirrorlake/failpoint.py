"""Failpoints: end the process at a chosen step, as a crash would, for tests of recovery.

`MIRRORLAKE_FAILPOINT=<step>[:<n>][@<file>]` kills the process (SIGKILL) when it reaches that step for the n-th time.
With a file, the process dies only if it can create the file. Of all Spark workers, exactly one therefore dies, once.
Without the variable, failpoints have no effect.

The steps are:

- task.initialised, task.compared, task.producing, task.copied, task.written;
- driver.stated, driver.opening (after each slot), driver.planned, driver.copied, driver.gated;
- driver.committing (after each slot), driver.committed, driver.ledger.
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
    """Does nothing: the failpoint outside of tests."""


def from_specification(specification: str) -> Failpoint:
    """Makes a function to call with the name of each step when it is reached.

    The module defines the format of the specification; an empty one never ends the process.
    """
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
