"""Jobs with a ledger, in a process of their own: ROOT CONFIG FLOW WAREHOUSE SCHEMA JOB...

A job is `mirror`, `checkpoint` (one cycle), or `checkpointing` (cycles until it is terminated). PYTHONPATH decides
which version of mirrorlake runs them, so this uses what every version has. Each job prints its result.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def main(root: Path, config: str, flow_name: str, warehouse: str, schema: str, *jobs: str) -> None:
    from mirrorlake.config.flow import Flow
    from mirrorlake.jobs.checkpoint.cycles import InProcessCycles
    from mirrorlake.jobs.checkpoint.job import CheckpointJob
    from mirrorlake.jobs.mirror.in_process import InProcessEngine
    from mirrorlake.jobs.mirror.job import MirrorJob
    from mirrorlake.ledger.store import Ledger
    from mirrorlake.local.session import local_session
    from mirrorlake.log import configure
    from mirrorlake.notebook.runtime import ended_by_sigterm

    configure()
    spark = local_session(root, "jobs of a version")
    ledger, flow = Ledger(spark, "spark_catalog", schema, warehouse), Flow.load(config, flow_name)
    suites = root / "expectations"
    for name in jobs:
        job: Any
        if name == "mirror":
            job = MirrorJob(InProcessEngine(), config, flow, ledger, suites / "offset_syncs.json")
        else:
            suite = str(suites / "checkpoints.json")
            job = CheckpointJob(spark, config, flow, ledger, suite, cycles=InProcessCycles(spark))
        print(f"{name} begins", flush=True)
        with ended_by_sigterm(job):
            print(job.run(0.5 if name == "checkpointing" else None), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the JVM takes seconds to end by itself


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
