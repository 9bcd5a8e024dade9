"""`make bench-quota`: the share of a client quota that a mirror job uses while one of the clusters throttles it.

The quota of the target limits Produce (`producer_byte_rate`), that of the source limits Fetch (`consumer_byte_rate`).
Brokers count bytes in a window of 10 s, so a job may send 10 s of its quota at once; the backlog is many times that.
The results are a line for each side and .local/bench/quota.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from mirrorlake.local.quota import quota
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.clusters import HOME, ROOT, connected, two_clusters
from bench.drain import drain
from bench.load import Load, create, fill

TOPIC = "backlog"
QUOTAS = {"target": "producer_byte_rate", "source": "consumer_byte_rate"}


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=512)
    parser.add_argument("--quota", type=float, default=4_000_000.0, help="bytes per second")
    parser.add_argument("--sides", nargs="*", default=list(QUOTAS), choices=list(QUOTAS))
    given = parser.parse_args()
    shutil.rmtree(HOME / "warehouse", ignore_errors=True)
    rows: list[dict[str, Any]] = []
    with two_clusters(HOME / "quota") as clusters:
        servers = {"source": clusters.source.bootstrap_servers, "target": clusters.target.bootstrap_servers}
        create(servers["source"], TOPIC, 4)
        fill(servers["source"], TOPIC, Load(given.records, given.bytes, "none", 4))
        spark = local_session(ROOT, "bench")
        for side in given.sides:
            name = QUOTAS[side]
            alias = f"by-{side}"
            with connected(servers[side], side) as cluster, quota(cluster, f"{alias}->t|copy", name, given.quota):
                found = drain(spark, clusters, TOPIC, given.records, alias)
            seconds = sum(done.seconds for done in found.history)  # without opening and closing the job
            share = found.bytes / seconds / given.quota
            rows.append({"side": side, "bytes": found.bytes, "seconds": round(seconds, 1), "share": round(share, 3)})
            print(f"{name} of the {side}: {found.bytes:,} bytes in {seconds:.1f} s, {share:.0%} of the quota")
        spark.stop()
    (HOME / "quota.json").write_text(json.dumps({"case": vars(given), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
