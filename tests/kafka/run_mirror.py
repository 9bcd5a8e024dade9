"""A mirror job in a process of its own, for tests that kill it: CONFIG FLOW WAREHOUSE SCHEMA [INTERVAL_S RUN_FOR_S].

Without a warehouse (an empty word) it runs without Spark. See `mirrorlake.failpoint`. MIRRORLAKE_TEST_MASTER
names a Spark cluster. MIRRORLAKE_TEST_LEDGER=memory leaves the tables to a later job.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lib"))


def main(config: str, flow: str, warehouse: str, schema: str, *times: str) -> None:
    from mirrorlake.config.flow import Flow
    from mirrorlake.failpoint import VARIABLE
    from mirrorlake.jobs.mirror.job import MirrorJob
    from mirrorlake.log import configure
    from mirrorlake.notebook.runtime import ended_by_sigterm
    from mirrorlake.protocol import transaction

    configure()
    fails_at = os.environ.get(VARIABLE, "")
    if fails_at.startswith(("driver.committing", "driver.opening")):
        transaction.ENDED_AT_ONCE = 1  # else the EndTxn of other slots are under way when the first one is answered
    engine, ledger = on_spark(warehouse, schema, fails_at) if warehouse else in_process(fails_at)
    suite = ROOT / "expectations/offset_syncs.json"
    job = MirrorJob(engine, config, Flow.load(config, flow), ledger, suite, fails_at)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it
    with ended_by_sigterm(job):
        print(job.run(*map(float, times)) if times else job.run(None), flush=True)


def on_spark(warehouse: str, schema: str, fails_at: str) -> tuple[Any, Any]:
    from mirrorlake.jobs.mirror.spark_engine import SparkEngine
    from mirrorlake.ledger.memory import MemoryLedger
    from mirrorlake.ledger.store import Ledger
    from mirrorlake.local.session import local_session

    spark = local_session(ROOT, "mirror process", os.environ.get("MIRRORLAKE_TEST_MASTER", ""))
    is_memory = os.environ.get("MIRRORLAKE_TEST_LEDGER") == "memory"
    ledger = MemoryLedger() if is_memory else Ledger(spark, "spark_catalog", schema, warehouse)
    return SparkEngine(spark, fails_at, small_records=0), ledger


def in_process(fails_at: str) -> tuple[Any, Any]:
    from mirrorlake.failpoint import from_specification
    from mirrorlake.jobs.mirror.in_process import InProcessEngine
    from mirrorlake.ledger.memory import MemoryLedger

    return InProcessEngine(failpoint=from_specification(fails_at)), MemoryLedger()


if __name__ == "__main__":
    main(*sys.argv[1:])
