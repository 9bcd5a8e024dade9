"""`make bench-growth`: the cost of starts and micro-batches when a flow grows in idle partitions and in slots.

One partition receives records, beside n idle ones. The stages of its micro-batches show the cost of the idle
partitions. 1, 2 and 4 slots copy the same backlog. States are measured by `states.py`, and starts of jobs by
`starting.py`; `--partitions --slots` without numbers measures nothing else. The results are tables and
.local/bench/growth.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mirrorlake.local.session import local_session
from mirrorlake.log import configure
from mirrorlake.spark.timing import MirrorResult

from bench import starting, states
from bench.clusters import HOME, ROOT, Clusters, two_clusters
from bench.drain import drain, mirror_job
from bench.load import Load, create, fill
from bench.stream import Trickle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = (10, 100, 1_000, 5_000)
SLOTS = (1, 2, 4)
PER_SECOND, INTERVAL_S = 10, 0.5
WITHOUT_HEARTBEATS = {"heartbeats.replication.enabled": "false"}
WARM = 4  # micro-batches that are not counted
STAGES = ("plan", "copy", "copy.begin", "copy.move", "copy.state", "gate", "commit")


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="*", default=list(PARTITIONS))
    parser.add_argument("--slots", type=int, nargs="*", default=list(SLOTS))
    parser.add_argument("--starts", nargs="*", default=list(starting.CASES), help="SLOTS:PARTITIONS[:ROUND_TRIP_MS]")
    parser.add_argument("--records", type=int, default=3_000_000, help="of the backlog that slots copy")
    parser.add_argument("--seconds", type=int, default=40, help="for which one partition is written to")
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    sizes = [states.sizes(*case) for case in states.ACTIVE]
    with two_clusters(HOME / "growth") as clusters:
        whole = [starting.measure(clusters, *map(int, case.split(":"))) for case in given.starts]
        starts = [states.start(clusters.target.bootstrap_servers, HOME, *case) for case in states.STARTS]
        spark = local_session(ROOT, "bench") if given.partitions or given.slots else None
        idle = [_idle(spark, clusters, partitions, given.seconds) for partitions in given.partitions]
        slots = _slots(spark, clusters, given.slots, given.records) if given.slots else []
        if spark is not None:
            spark.stop()
    found = {"sizes": sizes, "whole_starts": whole, "starts": starts, "idle": idle, "slots": slots}
    (HOME / "growth.json").write_text(json.dumps(found, indent=1))
    print(
        _table([*sizes[0]], sizes),
        _table([*whole[0]], whole) if whole else "",
        _table([*starts[0]], starts),
        _table(("partitions", "first_pass_s", "seconds", *STAGES), idle),
        _table(("slots", "records_per_s"), slots),
        sep="\n\n",
    )
    return 0


def _idle(spark: SparkSession, clusters: Clusters, partitions: int, seconds: int) -> dict[str, Any]:
    """Measures the stages of micro-batches (medians, ms) while one of that many partitions receives records."""
    topic = f"idle-{partitions}"
    create(clusters.source.bootstrap_servers, topic, partitions)
    fill(clusters.source.bootstrap_servers, topic, Load(partitions, 100, "none", partitions, 1))
    job = mirror_job(spark, clusters, topic, f"p{partitions}", **WITHOUT_HEARTBEATS)
    first = job.run(None)
    with Trickle(clusters.source.bootstrap_servers, topic, 1, PER_SECOND):
        history = job.run(INTERVAL_S, seconds).history[WARM:]
    medians = {name: round(statistics.median(done.stages_ms.get(name, 0.0) for done in history)) for name in STAGES}
    found = {"partitions": partitions, "batches": len(history), "first_pass_s": round(_busy_s(first), 1)}
    found |= {"seconds": round(statistics.median(done.seconds for done in history), 2), **medians}
    print(found, flush=True)
    return found


def _slots(spark: SparkSession, clusters: Clusters, slots: Sequence[int], records: int) -> list[dict[str, Any]]:
    create(clusters.source.bootstrap_servers, "backlog", 8)
    fill(clusters.source.bootstrap_servers, "backlog", Load(records))
    results = []
    for number in [slots[0], *slots]:  # the first one warms up
        done = drain(
            spark,
            clusters,
            "backlog",
            records,
            f"s{number}r{len(results)}",
            **WITHOUT_HEARTBEATS,
            **{"mirrorlake.slots": str(number)},
        )
        results.append({"slots": number, "records_per_s": round(done.records / _busy_s(done))})
        print(results[-1], flush=True)
    return results[1:]


def _busy_s(result: MirrorResult) -> float:
    """Returns the seconds of all micro-batches, without the time before and after them."""
    return sum(done.seconds for done in result.history)


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    return "\n".join(
        "| " + " | ".join(map(str, row)) + " |"
        for row in (columns, ["---"] * len(columns), *([f"{row[name]:,}" for name in columns] for row in rows))
    )


if __name__ == "__main__":
    sys.exit(main())
