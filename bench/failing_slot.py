"""`make bench-failing-slot`: the throughput of a slot while another one fails for ever.

Two slots copy one topic each. Once, both can be copied; once, somebody else begins transactions of the other slot
faster than it can end one, so that each of its attempts fails. The results are a line for each round, the median share
of throughput that remains, and .local/bench/failing-slot.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.local.session import local_session
from mirrorlake.log import configure
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.transaction import begin
from mirrorlake.state.offset_syncs import read_all_states

from bench.clusters import HOME, ROOT, Clusters, two_clusters
from bench.drain import flow_of, mirror_job
from bench.load import Load, create, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD, BAD = "failing-slot.good", "failing-slot.bad"
FEW = 1_000
BAD_SLOT = 0  # the first topic by name goes to the first slot
FENCED_EACH_S = 0.02
PROPERTIES = {
    "topics": f"{GOOD}, {BAD}",
    "mirrorlake.slots": "2",
    "mirrorlake.batch.max.records": "200000",
    "heartbeats.replication.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "sync.topic.configs.enabled": "false",
}


def main() -> int:
    configure(level="ERROR")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--bytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60, help="for which a job runs, long enough for all records")
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    rows: list[dict[str, Any]] = []
    with two_clusters(HOME / "failing-slot") as clusters:
        for topic, records in ((GOOD, given.records), (BAD, FEW)):
            create(clusters.source.bootstrap_servers, topic, 1)
            fill(clusters.source.bootstrap_servers, topic, Load(records, given.bytes, partitions=1))
        spark = local_session(ROOT, "bench")
        drained(spark, clusters, "warm", given.records, given.seconds, fails=False)
        for number in range(given.rounds):
            alone, beside = (
                drained(spark, clusters, f"{name}{number}", given.records, given.seconds, fails=name == "failing")
                for name in ("healthy", "failing")
            )
            rows.append({"healthy": round(alone), "failing": round(beside), "share": round(beside / alone, 3)})
            print(f"records/s: {alone:,.0f}, beside a failing slot {beside:,.0f} ({beside / alone:.0%})", flush=True)
        spark.stop()
    print(f"median share: {statistics.median(row['share'] for row in rows):.0%}")
    (HOME / "failing-slot.json").write_text(json.dumps({"case": vars(given), "rows": rows}, indent=1))
    return 0


def drained(spark: SparkSession, clusters: Clusters, alias: str, records: int, seconds: int, *, fails: bool) -> float:
    """Mirrors both topics as a flow of its own; returns the records per second until the good one is drained."""
    job = mirror_job(spark, clusters, GOOD, alias, **PROPERTIES)
    with fenced(flow_of(alias)) if fails else nullcontext():
        result = job.run(0.1, seconds)
    wanted = records if fails else records + FEW
    assert result.records == wanted, f"{result.records} records were mirrored, not {wanted}; give --seconds"
    busy = [done for done in result.history if done.records]
    began = result.history[0].finished_at.timestamp() - result.history[0].seconds
    return records / (max(done.finished_at.timestamp() for done in busy) - began)


@contextmanager
def fenced(flow: Flow) -> Iterator[None]:
    """Begins transactions of the bad slot again and again, from the first state of the flow to the end of a block."""
    ends = threading.Event()

    def fence() -> None:
        with closing(Cluster(flow.target_connection, "target", "bench").connect()) as target:
            while not ends.is_set() and not read_all_states(target, flow.offset_syncs_topic, 10_000):
                ends.wait(FENCED_EACH_S)
            while not ends.is_set():
                begin(target, flow.transactional_id(BAD_SLOT), flow.transaction_timeout_ms, 10_000)
                ends.wait(FENCED_EACH_S)

    with ThreadPoolExecutor(1) as pool:
        fencing = pool.submit(fence)
        try:
            yield
        finally:
            ends.set()
        fencing.result()


if __name__ == "__main__":
    sys.exit(main())
