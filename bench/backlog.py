"""A backlog: the rate at which one contestant mirrors it, and the CPU and memory of the contestant and both brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from mirrorlake.protocol.cluster import LATEST_TIMESTAMP

from bench.arrivals import TIMEOUT_MS, Arrivals, Window
from bench.clusters import ROOT, connected
from bench.contestants import CEILING, MIRRORLAKE, Task, at_work, result_of
from bench.load import create
from bench.machine import busy_s
from bench.processes import MIB, ProcessTree
from bench.warm_up import warmed_up

CONNECTIONS = (2, 4)  # of the bare loop, over a long line; a partition stays on one of them
CEILING_RECORDS = 8_000_000  # for which it takes some ten seconds


def measure(contestant: str, task: Task, records: int, partitions: int) -> dict[str, Any]:
    """Measures one contestant on the backlog in the task's topic.

    Args:
        contestant: the name of the contestant.
        task: its task.
        records: the number of records of the backlog.
        partitions: the number of partitions of the topic.
    """
    if contestant != CEILING:
        return _window(contestant, task, records, partitions)
    # Over a long line, the bare loop has as many connections as make it fastest.
    is_far = task.clusters.far
    some = min(records, CEILING_RECORDS) if is_far else records
    tries = [_ceiling(task, partitions, count, some) for count in (CONNECTIONS if is_far else (1,))]
    return max(tries, key=lambda found: found["records_per_s"])


def _window(contestant: str, task: Task, records: int, partitions: int) -> dict[str, Any]:
    with ExitStack() as stack:
        at_it = warmed_up(task) if contestant == MIRRORLAKE else at_work(contestant, task)
        running = stack.enter_context(at_it)
        began = time.monotonic()
        trees = [stack.enter_context(ProcessTree(pid)) for pid in (running.processes[0].pid, *_brokers(task))]
        target = stack.enter_context(connected(task.clusters.target.bootstrap_servers, "target"))
        arrivals = Arrivals(
            target,
            task.remote_topic,
            partitions,
            lambda: (*(tree.cpu_s() for tree in trees), trees[0].cpu_s(java_only=True), busy_s()),
            lambda: running.is_alive,
        )
        try:
            window = arrivals.window(records)
        except Exception as error:
            raise RuntimeError(f"{error}\n{running.end_of_log()}") from error
        peak_bytes = trees[0].peak_bytes
    found = _figures(window, peak_bytes) | {"first_record_s": window.first.at - began}
    return found | ({"job": result_of("mirror", task)} if contestant == MIRRORLAKE else {})


def _figures(window: Window, peak_bytes: int) -> dict[str, Any]:
    own, source, target, java, busy = (used * 1e6 / window.records for used in window.usage)
    return {
        "records_per_s": window.records / window.seconds,
        "cpu_s_per_million": own,
        "java_cpu_s_per_million": java,
        "source_broker_cpu_s_per_million": source,
        "target_broker_cpu_s_per_million": target,
        "peak_mib": peak_bytes / MIB,
        "window_s": window.seconds,
        "window_records": round(window.records),
        "share_of_records": window.share,
        "others_cpu_share": (busy - own - source - target) * window.records / 1e6 / window.seconds,
    }


def _ceiling(task: Task, partitions: int, connections: int, records: int) -> dict[str, Any]:
    """Runs the bare loop, which measures itself, because its records become visible all at once.

    The CPU time of the brokers covers the whole process.
    """
    clusters, remote_topic = task.clusters, f"{task.remote_topic}-{connections}"
    create(clusters.target.bootstrap_servers, remote_topic, partitions)
    words = [
        sys.executable,
        "-m",
        "bench.ceiling",
        clusters.servers("source"),
        clusters.servers("target"),
        task.topic,
        remote_topic,
        str(connections),
        str(records),
    ]
    path = os.pathsep.join((str(ROOT / "lib"), str(ROOT)))
    brokers = [ProcessTree(pid) for pid in _brokers(task)]
    with brokers[0], brokers[1]:
        before, busy, began = [tree.cpu_s() for tree in brokers], busy_s(), time.monotonic()
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True
        )
        with ProcessTree(process.pid) as tree:
            output, _ = process.communicate(timeout=600)
        source, target = (one.cpu_s() - used for one, used in zip(brokers, before, strict=True))
        others = (busy_s() - busy - source - target - tree.cpu_s()) / (time.monotonic() - began)
    done = json.loads(output)
    with connected(clusters.target.bootstrap_servers, "target") as seen:
        seen.refresh([remote_topic], TIMEOUT_MS)
        visible = sum(
            seen.offsets(
                [(remote_topic, partition) for partition in range(partitions)], LATEST_TIMESTAMP, TIMEOUT_MS
            ).values()
        )
    assert visible >= done["records"], f"{visible:,} of {done['records']:,} records are visible behind the bare loop"
    millions = done["records"] / 1e6
    return {
        "records_per_s": done["records"] / done["seconds"],
        "cpu_s_per_million": done["cpu_s"] / millions,
        "source_broker_cpu_s_per_million": source / millions,
        "target_broker_cpu_s_per_million": target / millions,
        "peak_mib": tree.peak_bytes / MIB,
        "window_s": done["seconds"],
        "window_records": done["records"],
        "batches": done["batches"],
        "connections": connections,
        "others_cpu_share": others,
    }


def _brokers(task: Task) -> tuple[int, int]:
    return task.clusters.source.brokers[0].pid, task.clusters.target.brokers[0].pid
