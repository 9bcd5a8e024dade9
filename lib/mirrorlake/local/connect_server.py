"""A Spark Connect server on this machine: what notebooks meet on serverless compute, where there is no SparkContext.

As there, its Python processes do not have the package unless a client ships it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from mirrorlake.errors import ConfigurationError
from mirrorlake.local.cluster import HOST, free_port
from mirrorlake.local.session import MASTER, properties
from mirrorlake.log import private

READY_DEADLINE_S = 120
STOP_DEADLINE_S = 15
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextmanager
def connect_server(root: Path, directory: Path) -> Iterator[str]:
    """Runs a server with Delta for the length of a block; yields its address, as for SPARK_REMOTE.

    Args:
        root: the directory with .local/jars/spark.
        directory: an existing directory for its log and for tables without a location of their own.

    Raises:
        ConfigurationError: the jars are missing, or the server does not start; the message has the end of its log.
    """
    port, log = free_port(0, set()), directory / "connect.log"
    confs = {
        **{name: value for name, value in properties(root, quick_start=True).items() if "python" not in name.lower()},
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
    }
    words = [str(Path(pyspark.__path__[0]) / "bin/spark-submit"), "--class", SERVER, "--master", MASTER]
    words += ["--driver-java-options", confs.pop(JAVA_OPTIONS)]
    words += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "TZ": "UTC", "SPARK_LOCAL_IP": HOST}
    with open(log, "ab", opener=private) as file:
        process = subprocess.Popen([*words, "spark-internal"], stdout=file, stderr=file, env=environment)
    try:
        _wait_ready(port, process, log)
        yield f"sc://{HOST}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    said = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise ConfigurationError(f"the Spark Connect server does not start:\n{said}")
