"""The start of a failback in a process of its own, for tests that kill it (`mirrorlake.failpoint`).

Arguments: CONFIG FLOW WAREHOUSE SCHEMA DIVERGED EXPORT. It prints `ready`, and waits for a line.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lib"))


def main(config: str, flow: str, warehouse: str, schema: str, diverged: str, export: str) -> None:
    from mirrorlake.config.flow import Flow
    from mirrorlake.failpoint import VARIABLE
    from mirrorlake.jobs.failover import failback
    from mirrorlake.ledger.store import Ledger
    from mirrorlake.local.session import local_session
    from mirrorlake.log import configure
    from mirrorlake.protocol import transaction

    configure()
    spark = local_session(ROOT, "failback process")
    print("ready", flush=True)
    sys.stdin.readline()
    transaction.ENDED_AT_ONCE = 1  # else the EndTxn of both slots are under way when the first one is answered
    failback.MirrorJob = partial(failback.MirrorJob, failpoint=os.environ.get(VARIABLE, ""))
    ledger = Ledger(spark, "spark_catalog", schema, warehouse)
    job = failback.Failback(spark, config, Flow.load(config, flow), ledger, ROOT / "expectations")
    print(job.carry_out(failback.choice({"mode": "begin", "signed_by": "ann"}), diverged, export).to_json(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
