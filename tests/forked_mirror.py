"""Mirror jobs without Spark in processes of their own, forked from one that has imported Great Expectations.

To import it anew takes three seconds of CPU, more than such a job has to do. The process that they are forked from has
one thread and no connections.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from mirrorlake.failpoint import VARIABLE

from tests.kafka import run_mirror

# Packages of others only, so that each process imports mirrorlake from where the tests do.
PRELOADED = ["great_expectations.validator.validation_graph", "great_expectations.execution_engine"]
PRELOADED += ["confluent_kafka.admin", "kafka", "pandas"]


def run(words: list[str], failpoint: str, output: Path, deadline_s: float) -> int | None:
    """Runs `run_mirror.py` with these arguments to its end; returns its exit code.

    Args:
        words: the arguments.
        failpoint: the value of MIRRORLAKE_FAILPOINT.
        output: a file for what the process prints.
        deadline_s: seconds after which it is killed; the exit code is None then.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # as in mirrorlake/gate.py, before the import
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)
    process = forks.Process(target=_main, args=(words, {**os.environ, VARIABLE: failpoint}, str(output)))
    process.start()
    process.join(deadline_s)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    return code


def _main(words: list[str], environment: dict[str, str], output: str) -> None:
    with open(output, "wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    run_mirror.main(*words)
