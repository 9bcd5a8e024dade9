"""Tells what the micro-batches of a mirror job have done: as rows, metrics, log lines, and in the job's result."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.mirror.ledger_keeper import LedgerKeeper
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.journal import Cycle, CycleJob
from mirrorlake.log import event
from mirrorlake.metrics import Metrics, count_age
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind
from mirrorlake.model.gap import LOSS
from mirrorlake.model.lag import lag
from mirrorlake.model.partition_lag import FlowLag
from mirrorlake.spark.timing import STAGES, MirrorResult, Progress
from mirrorlake.state.pause import Pause
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.telemetry.job_telemetry import JobTelemetry

log = logging.getLogger(__name__)

HISTORY = 300  # micro-batches kept for the result's figure, which has no room for more bars
IDLE_NOTE_S = 60.0  # interval at which an idle job records a cycle


class ProgressKeeper:
    """The progress of one mirror job.

    Args:
        flow: the flow; may be replaced while the job runs.
        metrics: the metrics to update.
        telemetry: the job's health, and its metrics of topics and partitions.
        ledger: takes the rows of cycles.
        append_anomalies: takes rows of anomalies.
        job_id: the begin of the ids of cycles.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        flow: Flow,
        metrics: Metrics,
        telemetry: JobTelemetry,
        ledger: LedgerKeeper,
        append_anomalies: Callable[[Sequence[Anomaly]], None],
        job_id: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flow, self._metrics, self._telemetry, self._ledger = flow, metrics, telemetry, ledger
        self._append_anomalies, self._job_id, self._now = append_anomalies, job_id, now
        self._noted_at, self._lag = now(), 0
        self._history: deque[Progress] = deque(maxlen=HISTORY)
        self._totals = Counter[str]()

    def cycle_id(self, number: int) -> str:
        """Returns the id of a micro-batch in the tables."""
        return f"{self._job_id}-{number}"

    def planned(self, lag_records: int) -> None:
        """Takes the lag that a plan has found."""
        self._lag = lag_records
        self._metrics.lag_records.labels(self.flow.name).set(lag_records)

    def measured(self, found: FlowLag) -> None:
        """Takes a measurement of the lag."""
        if found.is_caught_up:
            self._telemetry.health.progressed()
        if self._telemetry.details is not None:
            self._telemetry.details.lag(self.flow.name, found.partitions)

    def committed(
        self,
        number: int,
        generation: int,
        reports: list[SlotReport],
        stages_ms: dict[str, float],
        began_ms: float,
    ) -> None:
        """Tells of a micro-batch.

        Args:
            number: the number of the micro-batch.
            generation: the generation of the flow.
            reports: the reports of the slots that were committed.
            stages_ms: the time that each stage took.
            began_ms: the time at which it began, in milliseconds since 1970.
        """
        progress = self._progress(number, reports, stages_ms)
        self._note(self.cycle_id(number), progress)
        self._history.append(progress)
        self._totals.update(batches=1, records=progress.records, bytes=progress.bytes)
        log.info(event("micro_batch_committed", flow=self.flow.name, generation=generation, **progress.fields()))
        self._measure(progress)
        self._detail(began_ms, reports)
        self._tell(number, reports)

    def idle_if_due(self) -> None:
        """Records a cycle without records, if the last one was long ago."""
        if self._now() > self._noted_at + IDLE_NOTE_S:
            self._idle()

    def ended(self) -> None:
        """Records a cycle of a run that has committed nothing: it is a sign of the job, too."""
        if not self._totals["batches"]:
            self._idle()

    def _idle(self) -> None:
        self._note(f"{self._job_id}-idle", Progress(0, datetime.now(UTC), 0, 0, 0, 0, self._lag, 0.0, {}))

    def result(self, generation: int, seconds: float, paused: Pause | None) -> MirrorResult:
        """Returns the result of the job, which has opened that generation (0 if none) and run for that time."""
        return MirrorResult(
            flow=self.flow.name,
            generation=generation,
            batches=self._totals["batches"],
            records=self._totals["records"],
            bytes=self._totals["bytes"],
            lag=self._lag,
            seconds=seconds,
            history=tuple(self._history),
            paused=paused,
        )

    def _progress(self, number: int, reports: list[SlotReport], stages_ms: dict[str, float]) -> Progress:
        stretches = [stretch for report in reports for stretch in report.stretches]
        runs = [run for report in reports for run in report.runs]
        self._lag = lag(self._lag, sum(stretch["upstream_next"] - stretch["upstream_from"] for stretch in stretches))
        return Progress(
            batch=number,
            finished_at=datetime.now(UTC),
            records=sum(run["records"] for run in runs),
            bytes=sum(run["bytes"] for run in runs),
            runs=len(runs),
            partitions=len(stretches),
            lag=self._lag,
            seconds=sum(stages_ms[name] for name in STAGES) / 1000,
            stages_ms=stages_ms,
        )

    def _note(self, cycle_id: str, progress: Progress) -> None:
        self._noted_at = self._now()
        cycle = Cycle(
            source=self.flow.source,
            target=self.flow.target,
            job=CycleJob.MIRROR,
            cycle_id=cycle_id,
            duration_ms=1000 * progress.seconds,
            stages_ms=progress.stages_ms,
            records=progress.records,
            bytes=progress.bytes,
            runs=progress.runs,
            partitions=progress.partitions,
            lag=progress.lag,
        )
        self._ledger.note("cycles", [cycle])

    def _measure(self, progress: Progress) -> None:
        flow, metrics = self.flow.name, self._metrics
        metrics.micro_batches.labels(flow).inc()
        metrics.mirrored_records.labels(flow).inc(progress.records)
        metrics.mirrored_bytes.labels(flow).inc(progress.bytes)
        metrics.lag_records.labels(flow).set(progress.lag)
        metrics.last_commit_seconds.labels(flow).set(progress.finished_at.timestamp())
        count_age(metrics.last_commit_age_seconds, flow)
        metrics.micro_batch_seconds.labels(flow).observe(progress.seconds)
        self._telemetry.health.progressed()
        for stage in STAGES:
            metrics.stage_seconds.labels(flow, stage).observe(progress.stages_ms[stage] / 1000)
        self._ledger.count_runs(committed=progress.runs)

    def _detail(self, read_at_ms: float, reports: list[SlotReport]) -> None:
        """Updates the metrics of topics and partitions, if they are on."""
        if self._telemetry.details is not None:
            runs = [run for report in reports for run in report.runs]
            self._telemetry.details.mirrored(self.flow.target, runs, read_at_ms, committed_at_ms=1000 * time.time())

    def _tell(self, number: int, reports: list[SlotReport]) -> None:
        """Tells of throttling, of records of other programs, and of lost records."""
        flow = self.flow
        for side in ("source", "target"):  # slots copy side by side
            longest_ms = max((report.throttled_ms.get(side, 0) for report in reports), default=0)
            self._metrics.throttled_seconds.labels(flow.name, side).inc(longest_ms / 1000)
        for warning in (warning for report in reports for warning in report.warnings):
            log.warning(event("foreign_records", flow=flow.name, batch=number, detail=warning))
            self._append_anomalies([Anomaly.of_flow(flow, AnomalyKind.FOREIGN, AnomalyAction.CONTINUE, warning)])
        stretches = (stretch for report in reports for stretch in report.stretches)
        for lost in (found for stretch in stretches for found in stretch["gaps"] if found["kind"] in LOSS):
            where = {name: lost[name] for name in ("topic", "partition", "from_offset", "to_offset", "kind")}
            log.warning(event("records_lost", flow=flow.name, batch=number, **where, detail=LOSS[lost["kind"]]))
            self._metrics.anomalies.labels(flow.name, lost["kind"]).inc()
