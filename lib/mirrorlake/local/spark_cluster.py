"""A Spark standalone cluster on this machine: a master and workers, each as a process.

It is for flows that outgrow one process, and for tests of such flows.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from mirrorlake.errors import ConfigurationError
from mirrorlake.local.ports import HOST, free_port
from mirrorlake.local.session import worker_environment
from mirrorlake.log import private

READY_DEADLINE_S = 60
STOP_DEADLINE_S = 15


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster.

    Attributes:
        master: the master URL, for `local_session`.
        directory: the logs of master and workers, and of executors below `worker-<n>/<application>/<executor>`.
        pids: the process ids of the master and of the workers.
    """

    master: str
    directory: Path
    pids: tuple[int, ...]


@contextmanager
def spark_cluster(directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[SparkCluster]:
    """Runs a cluster for the length of a block.

    Args:
        directory: the directory for logs and work files; created if it is missing.
        workers: the number of workers.
        cores: the number of cores of each worker.
        memory: the memory of each worker.

    Raises:
        ConfigurationError: the cluster does not start; the message has the end of the log.
    """
    directory.mkdir(0o700, parents=True, exist_ok=True)  # executors write their logs there
    port, web_port = free_port(), free_port()
    master = f"spark://{HOST}:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        at = ("--host", HOST)
        given: tuple[str, ...] = ("--port", str(port), "--webui-port", str(web_port))
        processes.append(_launch(directory / "master.log", "master.Master", *at, *given))
        for number in range(workers):
            place = directory / f"worker-{number}"
            given = (
                "--cores",
                str(cores),
                "--memory",
                memory,
                "--work-dir",
                str(place),
                "--webui-port",
                str(free_port()),
            )
            processes.append(_launch(directory / f"worker-{number}.log", "worker.Worker", *at, *given, master))
        _wait_ready(f"http://{HOST}:{web_port}/json/", workers, processes, directory / "master.log")
        yield SparkCluster(master, directory, tuple(process.pid for process in processes))
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _launch(log: Path, what: str, *arguments: str) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        **worker_environment(),
        "TZ": "UTC",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with open(log, "ab", opener=private) as output:
        return subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{what}", *arguments],
            stdout=output,
            stderr=output,
            env=environment,
        )


def _wait_ready(address: str, workers: int, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            if requests.get(address, timeout=5).json()["aliveworkers"] == workers:
                return
        except (requests.RequestException, ValueError):
            pass
        time.sleep(0.2)
    raise ConfigurationError(
        f"the Spark cluster does not start; the end of {log}:\n"
        + "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    )
