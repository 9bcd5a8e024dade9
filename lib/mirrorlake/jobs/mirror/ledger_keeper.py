"""The ledger's part of a mirror job, in a thread of its own: the copy waits for no table."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError, LedgerError, MirrorlakeError, root_cause
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.journal import Cycle, CycleJob, Journal
from mirrorlake.ledger.memory import MemoryLedger, NoStream
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import event
from mirrorlake.metrics import Metrics
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind
from mirrorlake.spare_memory import SpareMemory

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

TICK_S = 0.5
STEADY_S = 3.0  # for which a stream that was started anew must run before the ledger counts as back
VERIFIED_EVERY_S = 600.0  # between two looks whether the flow was verified
LONGEST_WAIT_S = 60.0  # between two attempts to write a ledger that is away


class LedgerKeeper:
    """Brings the runs of a flow, and the rows that its mirror job notes, to the ledger.

    A write that fails does not stop the job. It is tried again after 1, 2, 4, … 60 seconds: first the runs that the
    table lacks are read from the offset-syncs topic, which keeps them; then the rows that wait are written, of which a
    limited number is kept. What happened is logged at each attempt, shown by the metric `ledger_away_seconds`, and
    recorded in the table anomalies once it can be written.

    Args:
        flow: the flow; may be replaced while the job runs, as its connections may change.
        ledger: the tables.
        metrics: the metrics to update.
        job_id: the first part of the identifiers of cycles.
        clock: returns the time in seconds, monotonic.
    """

    def __init__(
        self,
        flow: Flow,
        ledger: Ledger | MemoryLedger,
        metrics: Metrics,
        job_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flow, self._ledger, self._metrics, self._job_id, self._clock = flow, ledger, metrics, job_id, clock
        self._journal = Journal(ledger)
        self._spare_memory = SpareMemory(clock, is_driver=True)
        self._runs = Counter[str]()
        self._has_appended = False
        self._sync_partitions, self._stream_due_at, self._verified_due_at = 0, 0.0, 0.0
        self._query: StreamingQuery | NoStream | None = None
        self._place = contextlib.ExitStack()
        self._away: _Away | None = None
        self._is_urgent = False
        self._ending, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"ledger {flow.name}", daemon=True)

    # -- the job's side -----------------------------------------------------------------------------

    def start(self, sync_partitions: int) -> None:
        """Starts to append the records of the offset-syncs topic, which has that many partitions.

        The first append is due after one interval. A job that ends sooner appends once, at its end.
        """
        self._sync_partitions = sync_partitions
        self._stream_due_at = self._verified_due_at = self._clock() + self.flow.ledger_interval_s
        self._thread.start()

    def note(self, table: str, rows: Iterable[Any]) -> None:
        """Takes rows of a table, to be written within half a minute."""
        self._journal.note(table, rows)

    def append(self, table: str, rows: Iterable[Any]) -> None:
        """Takes rows of a table, to be written at once, or as soon as the ledger can be written."""
        taken = list(rows)
        if taken:
            self._journal.note(table, taken)
            self._is_urgent = True
            self._woken.set()

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text.

        Raises:
            LedgerError: the ledger can't be read.
        """
        return self._ledger.granted_acls(flow)

    def set_configs(self, flow: Flow) -> dict[tuple[str, str], str]:
        """Returns the value of each property of a remote topic that mirrorlake has set, and not reset.

        Raises:
            LedgerError: the ledger can't be read.
        """
        return self._ledger.set_configs(flow)

    def count_runs(self, **counts: int) -> None:
        """Counts runs that were committed, or appended to the ledger. The first append may include runs of an earlier
        job, which do not count."""
        if "appended" in counts and not self._has_appended:
            counts["appended"] = min(counts["appended"], self._runs["committed"])
            self._has_appended = True
        self._runs.update(counts)
        behind = max(0, self._runs["committed"] - self._runs["appended"])
        self._metrics.ledger_lag_runs.labels(self.flow.name).set(behind)

    def finish(self, failure: BaseException | None) -> None:
        """Appends what the ledger lacks, unless a newer job has taken over; that job appends the runs.

        Args:
            failure: the error that ended the job, which an error of the ledger must not hide: that is only logged then.

        Raises:
            LedgerError: the ledger can't be written; the next job appends the runs.
        """
        self._ending.set()
        self._woken.set()
        if self._sync_partitions:
            self._thread.join()
        appends_runs = self._sync_partitions and not isinstance(failure, FencedError)
        errors: list[LedgerError] = []
        for step in (self._stop_query, self._finish_runs if appends_runs else lambda: None, self._journal.write):
            try:
                step()
            except Exception as error:  # Spark's as well: none may hide the failure of the job
                known = error if isinstance(error, LedgerError) else LedgerError(f"the ledger: {root_cause(error)}")
                errors.append(known)
                log.warning(event("ledger_behind", flow=self.flow.name, error=known))
        if waiting := self._journal.waiting():
            log.warning(event("ledger_rows_missing", flow=self.flow.name, rows=waiting))
        if errors and failure is None:
            raise errors[0]

    def _stop_query(self) -> None:
        try:
            if self._query is not None:
                self._query.stop()
        finally:
            self._place.close()

    def _finish_runs(self) -> None:
        self._ledger.catch_up(self.flow, self._sync_partitions, self._note_append)
        self._back()

    # -- the thread's side --------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._ending.is_set():
            if self._away is None or self._clock() >= self._away.not_before:
                try:
                    self._tend()
                except Exception as error:  # Spark's as well: nothing that the ledger does may end the copy
                    self._failed(error)
            self._spare_memory.give_back_if_due()
            self._woken.wait(TICK_S)
            self._woken.clear()

    def _tend(self) -> None:
        """Starts the stream if it does not run, and writes the rows that are due."""
        if self._query is not None and not self._query.isActive:
            ended, self._query = self._query, None
            raise LedgerError(f"the ledger stream has ended: {root_cause(ended.exception())}")
        if self._away is not None and self._away.restored_at is None:
            self._ledger.catch_up(self.flow, self._sync_partitions, self._note_append)
            self._journal.write()
            self._away.restored_at = self._clock()
        elif self._is_urgent:
            self._is_urgent = False
            self._journal.write()
        self._journal.write_if_due()
        if self._away is None:
            self._report_dropped(self._journal.take_dropped())
        if self._query is None and self.flow.ledger_interval_s and self._clock() >= self._stream_due_at:
            self._place.close()
            self._query = self._ledger.stream_offset_syncs(
                self.flow,
                self._sync_partitions,
                interval_s=self.flow.ledger_interval_s,
                checkpoint=self._place.enter_context(self._ledger.checkpoint("ledger")),
                appended=self._note_append,
            )
        if self._clock() >= self._verified_due_at:
            self._verified_due_at = self._clock() + VERIFIED_EVERY_S
            if (at := self._ledger.verified_at(self.flow)) is not None:
                self._metrics.verified_seconds.labels(self.flow.name).set(at.timestamp())
        if self._away is not None and self._clock() >= (self._away.restored_at or 0) + STEADY_S:
            self._back()

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        self._away = away = self._away or _Away(now)
        wait_s = away.failed(now, error)
        name = type(error).__name__
        log.warning(
            event(
                "ledger_away",
                flow=self.flow.name,
                away_s=round(now - away.since),
                next_attempt_s=wait_s,
                error=error if isinstance(error, MirrorlakeError) else f"{name}: {root_cause(error)}",
            )
        )
        self._metrics.retries.labels(self.flow.name, name).inc()
        self._metrics.ledger_away_seconds.labels(self.flow.name).set(max(TICK_S, now - away.since))

    def _back(self) -> None:
        """Records that the ledger can be written again, if it could not."""
        away, self._away = self._away, None
        if away is None:
            return
        seconds, dropped = round(self._clock() - away.since), self._journal.take_dropped()
        detail = (
            f"flow {self.flow.name}: the ledger was not kept for {seconds} s ({away.attempts} attempts failed), while "
            f"the flow was mirrored on: {away.first}. It has all runs again"
        )
        if dropped:
            detail += f". Rows that were too many to be kept are missing: {_listed(dropped)}"
        log.info(event("ledger_back", flow=self.flow.name, away_s=seconds, attempts=away.attempts, dropped=dropped))
        self._metrics.ledger_away_seconds.labels(self.flow.name).set(0)
        self._note_away(detail)

    def _report_dropped(self, dropped: Mapping[str, int]) -> None:
        """Records which rows have made room for newer ones while a table could not be written to for long."""
        if not dropped:
            return
        log.warning(event("ledger_rows_missing", flow=self.flow.name, rows=dict(dropped)))
        self._note_away(
            f"flow {self.flow.name}: another writer, such as maintenance, has held tables of the ledger for so long "
            f"that rows were too many to be kept: {_listed(dropped)}. The ledger has all runs"
        )

    def _note_away(self, detail: str) -> None:
        self._metrics.anomalies.labels(self.flow.name, AnomalyKind.LEDGER_AWAY).inc()
        self.append(
            "anomalies", [Anomaly.of_flow(self.flow, AnomalyKind.LEDGER_AWAY, AnomalyAction.OTHERS_GO_ON, detail)]
        )

    def _note_append(self, runs: int, seconds: float) -> None:
        """Records the duration of an append to the ledger."""
        cycle = Cycle(
            source=self.flow.source,
            target=self.flow.target,
            job=CycleJob.LEDGER,
            cycle_id=f"{self._job_id}-ledger",
            duration_ms=1000 * seconds,
            stages_ms={"merge": 1000 * seconds},
            runs=runs,
        )
        self._journal.note("cycles", [cycle])
        self._metrics.ledger_appends.labels(self.flow.name).inc()
        self._metrics.ledger_runs.labels(self.flow.name).inc(runs)
        self.count_runs(appended=runs)


def _listed(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {table}" for table, count in sorted(rows.items()))


class _Away:
    """A time in which the ledger can't be written.

    Attributes:
        since: its begin, by the clock.
        attempts: the number of attempts that failed.
        first: the first error, in one line.
        not_before: the time of the next attempt.
        restored_at: the time at which the tables were whole again; None before.
    """

    def __init__(self, since: float) -> None:
        self.since, self.attempts, self.first, self.not_before = since, 0, "", since
        self.restored_at: float | None = None

    def failed(self, now: float, error: Exception) -> float:
        """Notes a failed attempt; returns the seconds until the next one."""
        wait_s = min(LONGEST_WAIT_S, 2.0**self.attempts)
        self.attempts += 1
        self.restored_at = None
        self.first = self.first or root_cause(error)
        self.not_before = now + wait_s
        return wait_s
