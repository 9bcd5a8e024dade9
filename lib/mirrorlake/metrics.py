"""All metrics with bounded labels, each with name, unit, type, labels and help.

The driver of a job updates them. Labels are a flow, a suite, a status, a stage, a kind, a side, a path or a quantile.
Topics and groups are never labels here, because there may be many thousands of them; `telemetry/details.py` has those.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from functools import lru_cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

NAMESPACE = "mirrorlake"
FLOW, SUITE, STATUS, STAGE, KIND, SIDE = "flow", "suite", "status", "stage", "kind", "cluster"
PATH, QUANTILE = "path", "quantile"
STAGE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one process.

    Args:
        registry: the registry of the metrics; a new one if None.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()

        # The mirror job
        self.mirrored_records = self._counter("mirrored", "records", "Records committed on the target.")
        self.mirrored_bytes = self._counter("mirrored", "bytes", "Bytes of record batches committed on the target.")
        self.micro_batches = self._counter("micro", "batches", "Micro-batches that have committed something.")
        self.micro_batch_seconds = self._histogram(
            "micro_batch", "Time of a micro-batch, from the beginning of its plan to its last commit."
        )
        self.stage_seconds = self._histogram("micro_batch_stage", "Time of a micro-batch in each stage.", STAGE)
        self.lag_records = self._gauge("lag", "records", "Source offsets that are stable and not mirrored yet.")
        self.lag_seconds = self._gauge(
            "lag",
            "seconds",
            "Age of the oldest record that was not mirrored when the lag was last measured; backfills do not count.",
        )
        self.lag_measured_seconds = self._gauge(
            "lag_measured_timestamp",
            "seconds",
            "Time of the last measurement of the lag, or of the job's beginning before the first one, in seconds since "
            "the epoch.",
        )
        self.generation = self._gauge("", "generation", "Generation of the job that mirrors the flow.")
        self.last_commit_seconds = self._gauge(
            "last_commit_timestamp", "seconds", "Time of the last commit on the target, in seconds since the epoch."
        )
        self.last_commit_age_seconds = self._gauge(
            "last_commit_age", "seconds", "Time since the last commit on the target, or since the job began."
        )
        self.progress_age_seconds = self._gauge(
            "progress_age",
            "seconds",
            "Time since the job has last committed something, or seen that there is nothing to do; as /health says.",
        )
        self.held_topics = self._gauge("held", "topics", "Topics that are held back while the others are mirrored.")
        self.held_partitions = self._gauge(
            "held", "partitions", "Partitions that do not advance while the others are mirrored."
        )
        self.paused_partitions = self._gauge(
            "paused",
            "partitions",
            "Partitions that an operator or a property has paused, when the lag was last measured.",
        )
        self.throttled_seconds = self._counter(
            "throttled",
            "seconds",
            "Time for which brokers have throttled the copying task that they throttle most, by side.",
            SIDE,
        )
        self.open_transaction_seconds = self._gauge(
            "open_transaction_age", "seconds", "Age of the oldest transaction on the source that the mirror waits for."
        )
        self.uncommitted_records = self._gauge(
            "uncommitted", "records", "Source offsets between the last stable offsets and the high watermarks."
        )

        # The ledger
        self.ledger_appends = self._counter("ledger", "appends", "Appends of runs to the ledger.")
        self.ledger_runs = self._counter("ledger", "runs", "Runs that were appended to the ledger.")
        self.ledger_lag_runs = self._gauge(
            "ledger_lag", "runs", "Runs that this job has committed and that the ledger does not have yet."
        )
        self.ledger_away_seconds = self._gauge(
            "ledger_away", "seconds", "Time for which the ledger can't be written, as of the last attempt; 0 if it can."
        )

        # The checkpoint job
        self.checkpoint_cycles = self._counter("checkpoint", "cycles", "Cycles of the checkpoint job that succeeded.")
        self.checkpoint_stage_seconds = self._histogram(
            "checkpoint_stage", "Time of a cycle of the checkpoint job in each stage.", STAGE
        )
        self.checkpoint_positions = self._gauge(
            "checkpoint", "positions", "Positions of groups in the last cycle, by how well they are translated.", STATUS
        )
        self.synced_positions = self._gauge(
            "checkpoint_synced",
            "positions",
            "Positions of groups in the last cycle, by what was done about them on the target.",
            STATUS,
        )

        self.checkpoint_age_seconds = self._gauge(
            "checkpoint_age", "seconds", "Time since the last cycle of the checkpoint job that succeeded."
        )
        self.worst_group_seconds = self._gauge(
            "checkpoint_worst_group",
            "seconds",
            "Time for which a position of a group has been clamped, not mirrored yet, refused, waiting or not told by "
            "a cluster, of the worst one.",
        )

        # Verification
        self.verified_seconds = self._gauge(
            "verified_timestamp",
            "seconds",
            "Time of the newest full or incremental verification without a difference, in seconds since the epoch.",
        )

        # The canary
        self.canaries = self._counter("canary", "probes", "Canaries that were sent, by what travels.", PATH)
        self.late_canaries = self._counter(
            "canary_late", "probes", "Canaries that did not arrive within their time, by what travels.", PATH
        )
        self.canary_seconds = self._histogram("canary", "Time of a canary from end to end, by what travels.", PATH)
        self.canary_quantile_seconds = self._gauge(
            "canary_quantile",
            "seconds",
            "Median and 99th percentile of the time of the newest canaries, by what travels.",
            PATH,
            QUANTILE,
        )
        self.canary_burn_ratio = self._gauge(
            "canary_burn",
            "ratio",
            "Late share of the newest canaries, divided by the share that may be late: 1 uses up what the objective "
            "allows.",
            PATH,
        )

        # All jobs
        self.memory_bytes = self._gauge(
            "memory", "bytes", "Resident memory of the job's Python process on the driver, without Spark's JVM."
        )
        self.gate_evaluations = self._counter("gate", "evaluations", "Evaluations of a suite of expectations.", SUITE)
        self.gate_failures = self._counter(
            "gate", "failures", "Evaluations in which an expectation failed or was not evaluated.", SUITE
        )
        self.anomalies = self._counter("", "anomalies", "Rows that the job has added to the table anomalies.", KIND)
        self.retries = self._counter("", "retries", "Errors after which something was tried again.", KIND)

    def _counter(self, name: str, unit: str, documentation: str, *labels: str) -> Counter:
        return Counter(_full(name, unit), documentation, (FLOW, *labels), unit=unit, registry=self.registry)

    def _gauge(self, name: str, unit: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(_full(name, unit), documentation, (FLOW, *labels), unit=unit, registry=self.registry)

    def _histogram(self, name: str, documentation: str, *labels: str) -> Histogram:
        return Histogram(
            _full(name, "seconds"),
            documentation,
            (FLOW, *labels),
            unit="seconds",
            buckets=STAGE_BUCKETS_S,
            registry=self.registry,
        )


def count_age(gauge: Gauge, *labels: str) -> None:
    """Sets a gauge to the seconds since now, as of each time at which it is read."""
    since = time.monotonic()
    gauge.labels(*labels).set_function(lambda: time.monotonic() - since)


def resident_bytes() -> int:
    """Returns the resident memory of this process; where the system does not say, its maximum."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@lru_cache(maxsize=1)
def of_process() -> Metrics:
    """Returns the metrics of this process, which are created once."""
    return Metrics()


def _full(name: str, unit: str) -> str:
    return "_".join(part for part in (NAMESPACE, name, unit) if part)
