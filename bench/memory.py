"""`make bench-memory`: the peak memory of a copying task, for growing backlogs and different batch settings.

Fetch responses under way and batches that the target has not answered share `mirrorlake.batch.memory.bytes`. Neither
the backlog nor `mirrorlake.batch.max.bytes` should therefore change the figure, nor should the number of connections,
each of which is read from as another leader would be. The figure is the largest resident size of any Python worker of
Spark while the mirror job runs. The results are a line for each setting and .local/bench/memory.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from typing import Any

import psutil
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.background import Background
from bench.clusters import HOME, ROOT, two_clusters
from bench.drain import drain
from bench.load import Load, create, fill
from bench.processes import MIB

TOPIC = "backlog"
POLL_S = 0.02
BATCH_MIB = (16, 64, 256)
GROWTH = (1, 2, 4, 8)


class Watch(Background):
    """The largest resident size, in bytes, of Spark's Python workers below this process, for the length of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0

    def work(self) -> None:
        while not self.stopping.wait(POLL_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "pyspark.worker" in process.cmdline():
                        self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)
                except psutil.Error:
                    continue


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=250_000, help="of the smallest backlog")
    parser.add_argument("--bytes", type=int, default=512)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--growth", type=int, nargs="+", default=GROWTH, help="backlogs, as multiples of the smallest")
    parser.add_argument("--batch-mib", type=int, nargs="+", default=BATCH_MIB)
    parser.add_argument("--connections", type=int, nargs="+", default=[1], help="to each broker")
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    rows: list[dict[str, Any]] = []
    with two_clusters(HOME / "memory") as clusters:
        create(clusters.source.bootstrap_servers, TOPIC, given.partitions)
        loaded = 0
        for factor in given.growth:
            fill(
                clusters.source.bootstrap_servers,
                TOPIC,
                Load(factor * given.records - loaded, given.bytes, given.codec, given.partitions),
            )
            loaded = factor * given.records
            for batch_mib, connections in itertools.product(given.batch_mib, given.connections):
                spark = local_session(ROOT, "bench")
                with Watch() as watch:
                    found = drain(
                        spark,
                        clusters,
                        TOPIC,
                        loaded,
                        f"s{factor}x{batch_mib}x{connections}",
                        **{
                            "mirrorlake.batch.max.bytes": str(batch_mib * MIB),
                            "mirrorlake.fetch.connections": str(connections),
                            "mirrorlake.produce.connections": str(connections),
                        },
                    )
                spark.stop()
                rows.append(
                    {
                        "backlog_mib": loaded * given.bytes // MIB,
                        "batch_max_mib": batch_mib,
                        "connections": connections,
                        "peak_mib": watch.peak_bytes // MIB,
                        "batches": found.batches,
                    }
                )
                print(
                    "{backlog_mib:>6} MiB, batch.max.bytes {batch_max_mib:>3} MiB, {connections:>2} connections: "
                    "a worker takes at most {peak_mib:>4} MiB, {batches} micro-batches".format(**rows[-1]),
                    flush=True,
                )
    (HOME / "memory.json").write_text(json.dumps({"case": vars(given), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
