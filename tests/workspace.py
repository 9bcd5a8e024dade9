"""Runs notebooks in this process as a workspace does: with Databricks' own names, on a session of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def connect_server(spark: Any) -> Iterator[str]:
    """Lets the JVM of a classic session answer Spark Connect, too; yields the address."""
    from mirrorlake.local.ports import HOST, free_port

    port = free_port()
    configuration = spark._jvm.org.apache.spark.SparkEnv.get().conf()
    configuration.set("spark.connect.grpc.binding.address", HOST)
    configuration.set("spark.connect.grpc.binding.port", str(port))
    service = getattr(getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    try:
        yield f"sc://{HOST}:{port}"
    finally:
        nothing = getattr(getattr(spark._jvm.scala, "None$"), "MODULE$")
        service.stop(nothing, nothing)


def run_script(script: Path, *words: str) -> Any:
    """Runs a script that uses Spark Connect in a process of its own; returns the JSON of its last line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env={**kept, "PYTHONPATH": str(ROOT / "lib"), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


class Returned(Exception):  # noqa: N818
    """A notebook has returned its result."""


class DatabricksUtilities:
    """What the kernel of a workspace provides; `given` are the parameters of the task."""

    def __init__(self, given: dict[str, str]) -> None:
        self.widgets = self.secrets = self.notebook = self
        self._values, self.declared = given, dict[str, str]()

    def text(self, name: str, default: str) -> None:
        self.declared.setdefault(name, default)

    def get(self, name: str, key: str = "") -> str:
        if key:
            raise RuntimeError(f"no secret {name}/{key}")
        return self._values.get(name, self.declared[name])

    def exit(self, result: str) -> None:
        raise Returned(result)


def run_notebook(spark: Any, name: str, **given: str) -> Any:
    """Runs the cells of a notebook; returns its result."""
    cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())["cells"]
    namespace = {"spark": spark, "dbutils": DatabricksUtilities(given), "__name__": "__main__"}
    os.chdir(ROOT / "notebooks")
    with redirect_stdout(sys.stderr):
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                try:
                    exec(compile("".join(cell["source"]), f"{name}[{number}]", "exec"), namespace)
                except Returned as result:
                    return json.loads(str(result))
    raise AssertionError(f"notebook {name} has returned nothing")
