"""What the start of a mirror job costs with many partitions and slots, against real brokers.

The job runs in this process, without Spark. It runs four times until the source has nothing more:

- `first_start` creates the remote topics. The partitions are empty, so there is nothing to copy.
- `pass` starts again, and copies one record of each partition.
- `start` finds nothing new, and positions of all partitions. Each run prepares, opens a generation, plans twice and
  measures the lag.
- `grown` copies one record of one partition: what a start and a micro-batch cost beside idle partitions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.local.proxy.control import NetworkLine
from mirrorlake.protocol.admin import Admin, NewTopic

from bench.clusters import ROOT, Clusters
from bench.drain import configured

CASES = ("1:1", "30:100:100", "300:10000")  # slots, partitions, round trip to the target in ms
PER_TOPIC = 25  # partitions
SETTINGS = {"heartbeats.replication.enabled": "false"}


def measure(
    clusters: Clusters, slots: int, partitions: int, round_trip_ms: int = 0, per_topic: int = PER_TOPIC
) -> dict[str, Any]:
    """Measures starts of a flow: seconds, and seconds of CPU of this process.

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
        config, flow = configured(far or clusters, f"{alias}-[0-9]+", alias, **settings)
        topics = [NewTopic(f"{alias}-{number}", per_topic, 1) for number in range(partitions // per_topic)]
        refused = Admin(flow.source_connection, "source", flow.name).create(topics)
        assert not refused, next(iter(refused.values()))
        keys = [(topic.name, partition) for topic in topics for partition in range(per_topic)]
        servers = clusters.source.bootstrap_servers
        for name, written in (("first_start", []), ("pass", keys), ("start", []), ("grown", keys[:1])):
            _write_one(servers, written)
            began, cpu = time.monotonic(), time.process_time()
            job = MirrorJob(
                InProcessEngine(), str(config), flow, MemoryLedger(), ROOT / "expectations/offset_syncs.json"
            )
            result = job.run(None)
            assert result.records == len(written), f"{result.records} of {len(written)} records were mirrored"
            found[f"{name}_s"] = round(time.monotonic() - began, 1)
            found[f"{name}_cpu_s"] = round(time.process_time() - cpu, 1)
            print(found, flush=True)
    return found


def _write_one(servers: str, keys: Iterable[tuple[str, int]]) -> None:
    """Writes one record to each partition."""
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, "log_level": 0})
    for topic, partition in keys:
        producer.produce(topic, b"v", b"k", partition=partition)
    if producer.flush(120):
        raise RuntimeError("the source takes no records")
