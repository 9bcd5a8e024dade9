"""One of mirrorlake's jobs as a process of its own, so that all it takes can be measured: (mirror|checkpoint) CONFIG
FLOW WAREHOUSE RESULT [INTERVAL_S].

As the notebooks run it, with the intervals that are theirs by default. It ends at SIGINT; what it has done is then in
RESULT, as JSON. With INTERVAL_S = 0 it does what there is to do, and ends.
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
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.ledger.store import Ledger
from mirrorlake.local.session import local_session
from mirrorlake.log import configure

from bench.clusters import ROOT

MIRROR_INTERVAL_S = 1.0  # that of mirror.ipynb where its trigger is empty


def main(what: str, config: str, name: str, warehouse: str, result: str, given_s: str = "") -> None:
    configure()
    flow = Flow.load(config, name)
    spark = local_session(ROOT, f"bench {what}")
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # PySpark's would cancel what runs, and with it the micro-batch that is to be finished
    ledger = Ledger(spark, "spark_catalog", "bench", warehouse)
    if what == "mirror":
        done = MirrorJob(SparkEngine(spark), config, flow, ledger, ROOT / "expectations/offset_syncs.json").run(
            _interval_s(given_s, MIRROR_INTERVAL_S)
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
