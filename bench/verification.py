"""`make bench-verification`: the rate of a verification by records (`full`) and by digests of batches (`sample`).

One backlog is mirrored once. It is then verified in several rounds of each mode, after one round to warm up, and
medians count. The time is that of the whole verification: it reads both clusters, joins, compares and stores. The
results are a table and .local/bench/verification.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time

from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.clusters import HOME, ROOT, two_clusters
from bench.drain import drain, flow_of, ledger
from bench.load import Load, create, fill

TOPIC = "backlog"


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    with two_clusters(HOME / "verification") as clusters:
        print(
            f"loading {given.records:,} records of {given.bytes} B, {given.codec}, {given.partitions} partitions",
            flush=True,
        )
        create(clusters.source.bootstrap_servers, TOPIC, given.partitions)
        fill(clusters.source.bootstrap_servers, TOPIC, Load(given.records, given.bytes, given.codec, given.partitions))
        spark = local_session(ROOT, "bench", quick_start=False)
        drain(spark, clusters, TOPIC, given.records, "s")
        job = Verification(spark, flow_of("s"), ledger(spark), ROOT / "expectations/verification.json")
        rates = {
            mode: [rate(job, mode, given.records, number) for number in range(given.rounds + 1)][1:]
            for mode in ("full", "sample")
        }
        spark.stop()
    medians = {mode: statistics.median(values) for mode, values in rates.items()}
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    (HOME / "verification.json").write_text(
        json.dumps({"case": vars(given), "machine": machine, "rounds": rates, "medians": medians}, indent=1)
    )
    print(
        f"\nmedian of {given.rounds} rounds: "
        + ", ".join(f"{mode} {value:,.0f} records/s" for mode, value in medians.items())
    )
    return 0


def rate(job: Verification, mode: str, records: int, number: int) -> float:
    """Returns the records per second of one verification, which must pass with all of them.

    Args:
        job: the verification.
        mode: `full` or `sample`.
        records: the number of records that must be verified.
        number: the number of the round; round 0 warms up.
    """
    began = time.perf_counter()
    result = job.run(VerificationScope(mode))
    seconds = time.perf_counter() - began
    result.require()
    assert result.total("records") == records, f"{result.total('records')} of {records} records were verified"
    print(
        f"round {number}{' (warming up)' if number == 0 else ''}: {mode:<6} {records / seconds:>10,.0f} records/s, "
        f"{seconds:.1f} s",
        flush=True,
    )
    return records / seconds


if __name__ == "__main__":
    sys.exit(main())
