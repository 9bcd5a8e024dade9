"""A steady stream: the time from a producer's send on the source to a read_committed consumer on the target."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from bench.arrivals import FIRST_S, StalledError
from bench.clusters import connected
from bench.contestants import MIRRORLAKE, Task, at_work, result_of
from bench.load import create
from bench.machine import busy_s
from bench.processes import MIB, ProcessTree
from bench.stream import Reader, Trickle

PER_SECOND = 500
WARM_S, LAST_S = 20, 30


def measure(contestant: str, task: Task, partitions: int, seconds: float) -> dict[str, Any]:
    """Measures the latencies of the records that are sent in that many seconds, after a warm-up.

    Args:
        contestant: the name of the contestant.
        task: its task.
        partitions: the number of partitions of the topic.
        seconds: the length of the measurement.
    """
    clusters = task.clusters
    create(clusters.source.bootstrap_servers, task.topic, partitions)
    with ExitStack() as stack:
        running = stack.enter_context(at_work(contestant, task))
        brokers = (cluster.brokers[0].pid for cluster in (clusters.source, clusters.target))
        tree, *others = (stack.enter_context(ProcessTree(pid)) for pid in (running.processes[0].pid, *brokers))
        with connected(clusters.target.bootstrap_servers, "target") as target:
            await_topic(target, task.remote_topic, running.end_of_log)
        reader = stack.enter_context(Reader(clusters.target.bootstrap_servers, task.remote_topic, partitions))
        trickle = stack.enter_context(Trickle(clusters.source.bootstrap_servers, task.topic, partitions, PER_SECOND))
        await_first(reader, running.end_of_log)
        time.sleep(WARM_S)
        first, cpu, rest = len(trickle.sent), tree.cpu_s(), busy_s() - sum(other.cpu_s() for other in (tree, *others))
        time.sleep(seconds)
        last, cpu, rest = (
            len(trickle.sent),
            tree.cpu_s() - cpu,
            busy_s() - sum(other.cpu_s() for other in (tree, *others)) - rest,
        )
        deadline = time.monotonic() + LAST_S
        while any(number not in reader.seen for number in range(first, last)):
            if time.monotonic() > deadline:
                raise StalledError(
                    f"{sum(number not in reader.seen for number in range(first, last))} records have not "
                    f"arrived\n{running.end_of_log()}"
                )
            time.sleep(0.2)
        trickle.stop()
        peak_bytes = tree.peak_bytes
    latencies = sorted(reader.seen[number] - trickle.sent[number] for number in range(first, last))
    found = {
        "latency_p50_s": statistics.median(latencies),
        "latency_p99_s": latencies[int(0.99 * len(latencies))],
        "latency_max_s": latencies[-1],
        "records": last - first,
        "repeated": reader.repeated,
        "cpu_share": cpu / seconds,
        "others_cpu_share": rest / seconds,
        "peak_mib": peak_bytes / MIB,
    }
    return found | ({"job": result_of("mirror", task)} if contestant == MIRRORLAKE else {})


def await_topic(target: Any, topic: str, why: Any) -> None:
    """Waits until the contestant has created the remote topic."""
    deadline = time.monotonic() + FIRST_S
    while topic not in target.refresh([topic], 30_000):
        if time.monotonic() > deadline:
            raise StalledError(f"topic {topic} was not created\n{why()}")
        time.sleep(0.2)


def await_first(reader: Reader, why: Any) -> None:
    """Waits until the first record has arrived."""
    deadline = time.monotonic() + FIRST_S
    while not reader.seen:
        if time.monotonic() > deadline:
            raise StalledError(f"no record has arrived\n{why()}")
        time.sleep(0.2)
