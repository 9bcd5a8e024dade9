"""A JVM that has run Spark before, for processes that would start a cold one: `python warm_jvm.py`.

It ends its session at each line on standard input. PySpark connects to an existing JVM if PYSPARK_GATEWAY_PORT and
PYSPARK_GATEWAY_SECRET are set. The process still has a session of its own. It only saves the half minute in which a JVM
loads and compiles Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class WarmJvm:
    """The process that keeps the JVM, and the values that others need to connect to it.

    Attributes:
        environment: the environment of a process that uses the JVM.
    """

    process: subprocess.Popen[str]
    environment: dict[str, str]

    @classmethod
    @contextmanager
    def running(cls, **environment: str) -> Iterator[WarmJvm]:
        """Runs a JVM for the length of a block; `environment` extends that of Spark's Python processes."""
        process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        try:
            yield cls(process, json.loads(_line(process)))
        finally:
            process.communicate()

    def end_session(self) -> None:
        """Stops the session that the last process has left; a JVM has one at a time."""
        assert self.process.stdin is not None
        print("end", file=self.process.stdin, flush=True)
        assert _line(self.process) == "ended"


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the JVM prints is no answer
    sys.path.insert(0, str(ROOT / "lib"))
    from mirrorlake.local.session import local_session

    session = local_session(ROOT, "warm")
    session.stop()
    gateway = session.sparkContext._gateway
    parameters = gateway.java_parameters
    print(
        json.dumps({"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}),
        file=answers,
        flush=True,
    )
    for _ in sys.stdin:
        left = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
        if left.isDefined():
            left.get().stop()
        print("ended", file=answers, flush=True)


if __name__ == "__main__":
    main()
