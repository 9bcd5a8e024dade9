"""One of mirrorlake's jobs in a process of its own, so that its resources can be measured.

Arguments: (mirror|checkpoint) CONFIG FLOW WAREHOUSE RESULT [INTERVAL_S].

The job runs as in the notebooks, with their default intervals. It ends at SIGINT, and writes its result to RESULT as
JSON. With INTERVAL_S = 0 it processes what exists, and ends.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint.job import CheckpointJob
from mirrorlake.jobs.mirror.job import INTERVAL_S, MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.ledger.store import Ledger
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.clusters import ROOT


def main(what: str, config: str, name: str, warehouse: str, result: str, given_s: str = "") -> None:
    """Runs one job, and writes its result.

    Args:
        what: `mirror` or `checkpoint`.
        config: the property file.
        name: the name of the flow.
        warehouse: the directory of the tables.
        result: the file of the result.
        given_s: the interval in seconds; the default if empty.
    """
    configure()
    flow = Flow.load(config, name)
    spark = local_session(ROOT, f"bench {what}")
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # PySpark's handler would cancel the current micro-batch instead of finishing it
    ledger = Ledger(spark, "spark_catalog", "bench", warehouse)
    if what == "mirror":
        done = MirrorJob(SparkEngine(spark), config, flow, ledger, ROOT / "expectations/offset_syncs.json").run(
            _interval_s(given_s, INTERVAL_S)
        )
        found: dict[str, Any] = {
            **done.to_json(),
            "history": [
                {**asdict(progress), "finished_at": progress.finished_at.timestamp()} for progress in done.history
            ],
        }
    else:
        interval_s = _interval_s(given_s, flow.emit_checkpoints_interval_s)
        suite = str(ROOT / "expectations/checkpoints.json")
        found = CheckpointJob(spark, config, flow, ledger, suite).run(interval_s).to_json()
    Path(result).write_text(json.dumps(found))
    spark.stop()


def _interval_s(given: str, default_s: float) -> float | None:
    return (float(given) or None) if given else default_s


if __name__ == "__main__":
    main(*sys.argv[1:])
