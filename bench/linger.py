"""`make bench-linger`: what commits cost where many partitions get few records, by `mirrorlake.linger.ms`.

A job without Spark mirrors a topic whose partitions get a record every few seconds, once for each time to wait, each as
a flow of its own. The results are a line for each and .local/bench/linger.json: rows of the map and bytes on the target
as in a day, how long records take, and CPU. CPU is that of this process, with the producer and the consumer that
measure, and of the target's broker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from mirrorlake.config.flow import Flow
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import INTERVAL_S, MirrorJob
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.log import configure
from mirrorlake.protocol.probes.facts import log_dirs

from bench.clusters import HOME, ROOT, Clusters, connected, two_clusters
from bench.drain import configured
from bench.load import Load, create, fill
from bench.stream import Reader, Trickle

LINGER_MS = (0, 1_000, 5_000, 10_000)
PARTITIONS, PER_SECOND, SIZE = 200, 100, 100
DAY_S, DEADLINE_S = 86_400, 120


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--linger-ms", type=int, nargs="+", default=list(LINGER_MS))
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--per-second", type=int, default=PER_SECOND, help="records of all partitions")
    parser.add_argument("--seconds", type=int, default=60, help="for which each case is measured")
    given = parser.parse_args()
    with two_clusters(HOME / "linger") as clusters:
        rows = [
            _measured(clusters, linger_ms, given.partitions, given.per_second, given.seconds)
            for linger_ms in given.linger_ms
        ]
    (HOME / "linger.json").write_text(json.dumps({"case": vars(given), "rows": rows}, indent=1))
    return 0


def _measured(clusters: Clusters, linger_ms: int, partitions: int, per_second: int, seconds: int) -> dict[str, Any]:
    """Mirrors a topic for some seconds, with one time to wait."""
    topic, alias = f"linger-{linger_ms}", f"l{linger_ms}"
    create(clusters.source.bootstrap_servers, topic, partitions)
    fill(clusters.source.bootstrap_servers, topic, Load(partitions, 16, "none", partitions, 1))
    settings = {"heartbeats.replication.enabled": "false", "mirrorlake.linger.ms": str(linger_ms)}
    config, flow = configured(clusters, topic, alias, **settings)
    _job(config, flow).run(None)  # creates the remote topic, and begins each partition
    remote, job = flow.policy.remote_topic(topic), _job(config, flow)
    broker = psutil.Process(clusters.target.brokers[0].pid)
    with (
        connected(clusters.target.bootstrap_servers, "target") as target,
        Reader(clusters.target.bootstrap_servers, remote, partitions, first=1) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(job.run, INTERVAL_S)
        try:
            with Trickle(clusters.source.bootstrap_servers, topic, partitions, per_second, SIZE) as trickle:
                _await(lambda: reader.seen)
                time.sleep(2 * linger_ms / 1000)
                first, began = len(trickle.sent), datetime.now(UTC)
                before, cpu_s, broker_s = _sizes(target), time.process_time(), _cpu_s(broker)
                time.sleep(seconds)
                last, ended = len(trickle.sent), datetime.now(UTC)
                after, cpu_s, broker_s = _sizes(target), time.process_time() - cpu_s, _cpu_s(broker) - broker_s
            _await(lambda: len(reader.seen) >= len(trickle.sent))
        finally:
            job.stop()
        result = running.result()
    assert len(reader.seen) == len(trickle.sent) == result.records, (len(reader.seen), len(trickle.sent), result)
    done = [one for one in result.history if began <= one.finished_at < ended]
    runs, latencies = sum(one.runs for one in done), [reader.seen[n] - trickle.sent[n] for n in range(first, last)]
    copied, states = (after[name] - before[name] for name in (remote, flow.offset_syncs_topic))
    size = sum(one.bytes for one in done)
    written = {"records": size, "markers": copied - size, "states": states}
    found = {
        "linger_ms": linger_ms,
        "micro_batches_per_s": round(len(done) / seconds, 2),
        "records_per_run": round(sum(one.records for one in done) / runs, 1),
        "million_rows_a_day": round(runs / seconds * DAY_S / 1e6, 2),
        "gb_a_day": {name: round(size / seconds * DAY_S / 1e9, 2) for name, size in written.items()},
        "p50_s": round(statistics.median(latencies), 2),
        "p99_s": round(sorted(latencies)[int(0.99 * len(latencies))], 2),
        "max_s": round(max(latencies), 2),
        "cpu_s_per_s": round(cpu_s / seconds, 2),
        "broker_cpu_s_per_s": round(broker_s / seconds, 2),
    }
    print(found, flush=True)
    return found


def _job(config: Path, flow: Flow) -> MirrorJob:
    suite = ROOT / "expectations/offset_syncs.json"
    return MirrorJob(InProcessEngine(), str(config), flow, MemoryLedger(), suite)


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _sizes(target: Any) -> dict[str, int]:
    """Returns the bytes of each topic of the target."""
    (found,) = log_dirs(target, 30_000)
    return found.topics


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
