"""All metrics, each with name, unit, type, labels and help.

The driver of a job updates them. Labels are bounded: a flow, a suite, a status, a stage, a kind, a side. Topics and
groups are never labels, because there may be many thousands of them.
"""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

NAMESPACE = "mirrorlake"
FLOW, SUITE, STATUS, STAGE, KIND, SIDE = "flow", "suite", "status", "stage", "kind", "cluster"
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
        self.stage_seconds = self._histogram("micro_batch_stage", "Time of a micro-batch in each stage.", STAGE)
        self.lag_records = self._gauge("lag", "records", "Source offsets that are stable and not mirrored yet.")
        self.generation = self._gauge("", "generation", "Generation of the job that mirrors the flow.")
        self.last_commit_seconds = self._gauge(
            "last_commit_timestamp", "seconds", "Time of the last commit on the target, in seconds since the epoch."
        )
        self.held_topics = self._gauge("held", "topics", "Topics that are held back while the others are mirrored.")
        self.held_partitions = self._gauge(
            "held", "partitions", "Partitions that do not advance while the others are mirrored."
        )
        self.throttled_seconds = self._counter(
            "throttled", "seconds", "Time for which brokers have throttled copying tasks, by side.", SIDE
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

        # All jobs
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


@lru_cache(maxsize=1)
def of_process() -> Metrics:
    """Returns the metrics of this process, which are created once."""
    return Metrics()


def _full(name: str, unit: str) -> str:
    return "_".join(part for part in (NAMESPACE, name, unit) if part)
