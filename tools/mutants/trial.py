"""A trial: tests run in a copy of the repository, and what came of it."""

from __future__ import annotations

import enum
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TEST_TIMEOUT_S = 240
DEADLINE_S, DEADLINE_OF_TEST_S, GRACE_S = 900, 30, 60  # the tests without any mutant are hundreds
PASSED, FAILED = 0, 1  # exit codes of pytest

# How the summary of pytest begins its lines, and what a change gives that does not even run.
REPORTED = re.compile(r"^(FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)
NOT_RUN = re.compile(
    r"(Name|Import|ModuleNotFound|UnboundLocal|Syntax|Indentation)Error\b|AttributeError: (?!'NoneType')"
)


class Verdict(enum.Enum):
    """What a trial says about the code it was made with."""

    PASSED = "passed"
    CAUGHT = "caught"
    INVALID = "INVALID"  # no test has failed on its own account


@dataclass(frozen=True)
class Trial:
    """The outcome of one run of pytest.

    Attributes:
        test: the first test that failed, or was to blame otherwise; empty if all passed.
        reason: why, in one line.
    """

    verdict: Verdict
    seconds: float
    test: str = ""
    reason: str = ""


def run(place: Path, tests: Sequence[str], environment: Mapping[str, str], log: Path, *, processes: int = 0) -> Trial:
    """Runs tests in a copy of the repository until one fails.

    Args:
        place: the copy.
        tests: as pytest takes them.
        environment: variables besides those of this process.
        log: where the output goes.
        processes: how many processes share the tests, file by file; 0 for this one alone.
    """
    began = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        f"-n{processes}",
        "--dist=loadfile",
        f"--timeout={TEST_TIMEOUT_S}",
        *tests,
    ]
    variables = {**os.environ, "PYTHONPATH": str(place / "lib"), "COLUMNS": "1000", **environment}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=place, env=variables, stdout=output, stderr=subprocess.STDOUT)
        code = _ended(process, DEADLINE_S + DEADLINE_OF_TEST_S * len(tests))
    return _judged(code, log.read_text(errors="replace"), time.monotonic() - began)


def _ended(process: subprocess.Popen[bytes], deadline_s: int) -> int:
    """Waits for pytest, with a deadline at which it may still clean up; returns its exit code."""
    try:
        return process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _judged(code: int, output: str, seconds: float) -> Trial:
    if code == PASSED:
        return Trial(Verdict.PASSED, seconds)
    found = REPORTED.search(output)
    if found is None:
        return Trial(Verdict.INVALID, seconds, reason=f"pytest ended with {code} and names no test")
    kind, test, reason = found.group(1), found.group(2), found.group(3) or ""
    is_sound = code == FAILED and kind == "FAILED" and not NOT_RUN.search(reason)
    return Trial(Verdict.CAUGHT if is_sound else Verdict.INVALID, seconds, test, reason)
