"""`make bench-barrier`: how long records take beside a slow slot, as a micro-batch ends with its slowest slot.

Three slots copy records of a steady stream, alone and beside a fourth one with a backlog. A low rate for each slot lets
the fourth take all the time of each micro-batch. The results are a line for each case and .local/bench/barrier.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from mirrorlake.jobs.mirror.job import INTERVAL_S
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.background import Background
from bench.clusters import HOME, ROOT, Clusters, two_clusters
from bench.drain import mirror_job
from bench.load import Load, create, fill
from bench.stream import Reader, Trickle

FRESH, BULK = "barrier.fresh", "barrier.bulk"  # by name, so the slots 1 to 3 and 0
PER_SECOND, WARM_S, LAST_S = 30, 10.0, 60.0
RATE = 4_000_000  # bytes a second of the flow, of which each of four slots has a quarter
BESIDE: Mapping[str, Mapping[str, str]] = {
    "alone": {"topics": FRESH},
    "beside a slow slot": {},
    "batch.max.ms = 1000": {"mirrorlake.batch.max.ms": "1000"},
    "backfill.topics": {"mirrorlake.backfill.topics": BULK},
}


class Running(Background):
    """A mirror job for the length of a block."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.job = job
        self.result: Any = None

    def work(self) -> None:
        self.result = self.job.run(INTERVAL_S)

    def stop(self) -> None:
        self.job.stop()
        super().stop()


def main() -> int:
    configure(level="ERROR")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="for which records are sent beside a slow slot")
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    with two_clusters(HOME / "barrier") as clusters:
        spark = local_session(ROOT, "bench")
        rows = [_beside(spark, clusters, name, settings, given.seconds) for name, settings in BESIDE.items()]
        spark.stop()
    (HOME / "barrier.json").write_text(json.dumps({"case": vars(given), "rows": rows}, indent=1))
    return 0


def _beside(spark: Any, clusters: Clusters, name: str, settings: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Measures how long the records of one topic take, while another one has a backlog."""
    source, alias = clusters.source.bootstrap_servers, f"b{[*BESIDE].index(name)}"
    clusters.clean()
    create(source, FRESH, 3)
    create(source, BULK, 1)
    fill(source, BULK, Load(int(2 * (seconds + WARM_S) * RATE / 4 / 512), 512, "none", 1))
    common = {
        "topics": f"{FRESH}, {BULK}",
        "mirrorlake.slots": "4",
        "mirrorlake.max.bytes.per.second": str(RATE),
        "heartbeats.replication.enabled": "false",
    }
    job = mirror_job(spark, clusters, FRESH, alias, **{**common, **settings})
    with (
        Reader(clusters.target.bootstrap_servers, f"{alias}.{FRESH}", 3) as reader,
        Running(job) as running,
        Trickle(source, FRESH, 3, PER_SECOND) as trickle,
    ):
        deadline = time.monotonic() + LAST_S
        while not reader.seen and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(WARM_S)
        first = len(trickle.sent)
        time.sleep(seconds)
        last = len(trickle.sent)
        deadline = time.monotonic() + LAST_S
        while any(number not in reader.seen for number in range(first, last)) and time.monotonic() < deadline:
            time.sleep(0.1)
    latencies = sorted(reader.seen[number] - trickle.sent[number] for number in range(first, last))
    took = [done.seconds for done in running.result.history if done.records][2:]
    return _said(
        {
            "case": name,
            "p50_s": statistics.median(latencies),
            "p99_s": latencies[int(0.99 * len(latencies))],
            "max_s": latencies[-1],
            "micro_batch_s": statistics.median(took),
        }
    )


def _said(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
