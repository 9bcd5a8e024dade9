"""The mirror job on a Spark cluster of several workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mirrorlake.local.spark_cluster import SparkCluster, spark_cluster

from tests.world import World

SCRIPT = Path(__file__).with_name("run_mirror.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def start(world: World, cluster: SparkCluster, *times: float) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        str(SCRIPT),
        world.config,
        world.flow_name,
        world.warehouse,
        Path(world.warehouse).name,
        *map(str, times),
    ]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MIRRORLAKE_TEST_MASTER": cluster.master},
    )


def executors(cluster: SparkCluster) -> list[psutil.Process]:
    """Returns the processes of the workers' executors; a worker may start an executor through a shell."""
    found = [child for pid in cluster.pids[1:] for child in psutil.Process(pid).children(recursive=True)]
    return [process for process in found if _is_executor(process)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:  # of an earlier test: it has ended, or is about to
        return False


def test_executors_on_every_worker_copy_slots_and_one_that_is_killed_in_the_midst_costs_nothing(
    world: World, cluster: SparkCluster
) -> None:
    plain, transactional = world.topic("plain", 4), world.topic("transactional", 2)
    world.produce(plain, 1_500, 4)
    world.produce_transactions(transactional, 20, 20, seed=2)
    world.write_config(**{"mirrorlake.batch.max.records": "400"})
    process = start(world, cluster)
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if "micro_batch_committed" in line:  # the first of many
            os.kill(executors(cluster)[0].pid, signal.SIGKILL)
            break
    lines += process.stdout.readlines()
    assert process.wait(240) == 0, "".join(lines)
    assert any("slots=2 " in line for line in lines)
    deadline = time.monotonic() + 30
    while executors(cluster) and time.monotonic() < deadline:
        time.sleep(0.1)
    world.assert_equal(plain, transactional)
    world.assert_nothing_open()
    copied = len({row["transactional_id"] for row in world.rows("offset_syncs")})
    assert copied == 2
    workers = [path for path in cluster.directory.glob("worker-*") if path.is_dir()]
    assert len(workers) == 2
    for worker in workers:
        logs = [path.read_text(errors="replace") for path in worker.glob("app-*/*/stderr")]
        assert any("Finished task" in log for log in logs), f"{worker.name} has worked"
