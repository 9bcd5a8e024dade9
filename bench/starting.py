"""What the start of a mirror job costs with many partitions and slots, against real brokers.

The partitions are empty, so nothing is copied: a run prepares, opens a generation, plans twice, measures the lag and
ends. The first one also creates the remote topics. The job runs in this process, without Spark.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.local.proxy.control import NetworkLine
from mirrorlake.protocol.admin import Admin, NewTopic

from bench.clusters import ROOT, Clusters
from bench.drain import configured

CASES = ("1:1", "300:10000", "300:1000:100")  # slots, partitions, round trip to the target in ms
PER_TOPIC = 25  # partitions
SETTINGS = {"heartbeats.replication.enabled": "false", "mirrorlake.canary.enabled": "false"}


def measure(
    clusters: Clusters, slots: int, partitions: int, per_topic: int, round_trip_ms: float = 0
) -> dict[str, Any]:
    """Measures the first start of a flow, and the next one.

    Args:
        clusters: both clusters.
        slots: slots of the flow.
        partitions: partitions of its topics.
        round_trip_ms: length of the line to the target.
        per_topic: partitions of each topic.
    """
    per_topic = min(per_topic, partitions)
    alias = f"start{slots}x{partitions}r{round_trip_ms}"
    line = clusters.with_line("target", NetworkLine(round_trip_ms / 2)) if round_trip_ms else contextlib.nullcontext()
    found: dict[str, Any] = {"slots": slots, "partitions": partitions, "round_trip_ms": round_trip_ms}
    with line as far:
        settings = {**SETTINGS, "mirrorlake.slots": str(slots)}
        config, flow = configured(far or clusters, rf"{alias}-\d+", alias, **settings)
        topics = [NewTopic(f"{alias}-{number}", per_topic, 1) for number in range(partitions // per_topic)]
        refused = Admin(flow.source_connection, "source", flow.name).create(topics)
        assert not refused, next(iter(refused.values()))
        for name in ("first_start", "start"):
            began, cpu = time.monotonic(), time.process_time()
            job = MirrorJob(
                InProcessEngine(), str(config), flow, MemoryLedger(), ROOT / "expectations/offset_syncs.json"
            )
            job.run(None)
            found |= {
                f"{name}_s": round(time.monotonic() - began, 2),
                f"{name}_cpu_s": round(time.process_time() - cpu, 2),
            }
    print(found, flush=True)
    return found
