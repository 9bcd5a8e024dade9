"""A mirror job as a process of its own, to be killed: CONFIG FLOW WAREHOUSE SCHEMA [INTERVAL_S RUN_FOR_S]. See
`mirrorlake.failpoint`; MIRRORLAKE_TEST_MASTER names a Spark cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lib"))


def main(config: str, flow: str, warehouse: str, schema: str, *times: str) -> None:
    from mirrorlake.config.flow import Flow
    from mirrorlake.failpoint import VARIABLE
    from mirrorlake.jobs.mirror.job import MirrorJob
    from mirrorlake.ledger.store import Ledger
    from mirrorlake.local.session import MASTER, local_session

    spark = local_session(ROOT, "mirror process", os.environ.get("MIRRORLAKE_TEST_MASTER", MASTER))
    ledger = Ledger(spark, "spark_catalog", schema, warehouse)
    suite = ROOT / "expectations/offset_syncs.json"
    job = MirrorJob(
        spark,
        config,
        Flow.load(config, flow),
        ledger,
        suite,
        lambda line: print(line, flush=True),
        os.environ.get(VARIABLE, ""),
    )
    print(job.run(*map(float, times)) if times else job.run(None), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
