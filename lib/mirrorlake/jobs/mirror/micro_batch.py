"""One micro-batch of the mirror job, from its plan to the commit: copying tasks, gate, EndTxn.

Readers of the target wait for an open transaction until it ends or times out. The driver ends the transactions of the
reports that tasks return. If a task is lost or a retry can't help, the driver aborts all transactions that it can, and
then raises. It never aborts a transaction of a newer job. A slot that failed with a retriable error is left to its next
attempt, which begins with InitProducerId.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError, GateError, MirrorlakeError, TargetError, first_line
from mirrorlake.failpoint import Failpoint
from mirrorlake.gate import ExpectationResult, Gate, require
from mirrorlake.jobs.mirror import gate_frame
from mirrorlake.jobs.mirror.engine import CopyTasks
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.log import event
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state import offset_syncs
from mirrorlake.state.fencing import require_newest
from mirrorlake.state.slot_report import SlotReport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of a micro-batch: the reports of the committed slots, and the errors of the others."""

    committed: list[SlotReport]
    failures: list[MirrorlakeError]


class MicroBatch:
    """The driver's part of one micro-batch.

    Args:
        flow: flow to mirror.
        generation: generation of this job.
        target: cluster of the transactions.
        gate: expectations on offset syncs.
        failpoint: called with the name of each step as it is reached; tests end the process there.
    """

    def __init__(
        self,
        flow: Flow,
        generation: int,
        target: Cluster,
        gate: Gate,
        failpoint: Failpoint,
    ) -> None:
        self._flow, self._generation, self._target, self._gate = flow, generation, target, gate
        self._failpoint = failpoint

    def run(
        self,
        plan: MirrorPlan,
        tasks: CopyTasks,
        cycle_id: str,
        clock: Stopwatch,
        evaluated: Callable[[list[ExpectationResult]], None],
    ) -> BatchOutcome:
        """Copies, evaluates the gate and commits.

        Args:
            plan: offsets to copy.
            tasks: runs the copying tasks.
            cycle_id: id of this micro-batch in the ledger and in messages.
            clock: measures the time of each step.
            evaluated: called with the results of the gate, whether it passed or not.

        Raises:
            GateError: an expectation failed or could not be evaluated; the transactions are aborted.
            MirrorlakeError: a task was lost, or failed with an error that is not retriable; open transactions are
                aborted.
        """
        with self._aborting_if_interrupted({one.slot for one in plan.ranges}):
            reports, failures = self._copy(plan, tasks)
            clock.lap("copy")
            self._failpoint("driver.copied")
            moved = [report for report in reports if report.is_open]
            if moved:
                self._pass_gate(moved, cycle_id, evaluated)
            clock.lap("gate")
            self._failpoint("driver.gated")
            committed, aborted = self._commit(moved)
            self._failpoint("driver.committed")
            clock.lap("commit")
            return BatchOutcome(committed, failures + aborted)

    @contextmanager
    def _aborting_if_interrupted(self, slots: set[int]) -> Iterator[None]:
        """Aborts the open transactions of these slots if the block is interrupted.

        Otherwise readers would wait for the timeout of the transactions.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._abort(slots)
            raise

    # -- copy ---------------------------------------------------------------------------------------

    def _copy(self, plan: MirrorPlan, tasks: CopyTasks) -> tuple[list[SlotReport], list[MirrorlakeError]]:
        """Runs one task for each slot; returns the reports, and the retriable errors."""
        slots = {one.slot for one in plan.ranges}
        try:
            answers = tasks.run(self._flow.shared_by(len(slots)), plan)
        except MirrorlakeError:
            self._abort(slots)
            raise
        if sorted(answer.slot for answer in answers) != sorted(slots):
            self._abort(slots)
            raise MirrorlakeError(
                f"flow {self._flow.name}: slots {sorted(slots)} were planned but "
                f"{sorted(answer.slot for answer in answers)} answered; nothing was committed"
            )
        reports = [answer.outcome for answer in answers if isinstance(answer.outcome, SlotReport)]
        failures = [answer.outcome for answer in answers if isinstance(answer.outcome, MirrorlakeError)]
        final = [failure for failure in failures if not failure.retriable]
        if final:
            error = next((failure for failure in final if isinstance(failure, FencedError)), final[0])
            self._reject(reports)
            if not isinstance(error, FencedError):
                self._abort(slots - {report.slot for report in reports})
            raise tasks.explained(self._flow, error)
        return reports, failures

    # -- gate ---------------------------------------------------------------------------------------

    def _pass_gate(
        self, reports: list[SlotReport], cycle_id: str, evaluated: Callable[[list[ExpectationResult]], None]
    ) -> None:
        flow, consequence = self._flow, "the transactions were aborted, nothing became visible and no position moved"
        try:
            frame = gate_frame.frame(reports, passes_over_losses=flow.passes_over_losses)
            results = self._gate.evaluate(frame, flow.name, cycle_id)
            evaluated(results)
            require(results, f"flow {flow.name}, micro-batch {cycle_id}", consequence)
        except Exception as error:
            self._reject(reports)
            if isinstance(error, MirrorlakeError):
                raise
            raise GateError(
                f"flow {flow.name}, micro-batch {cycle_id}: the gate could not be evaluated ({first_line(error)}); "
                "the transactions were aborted"
            ) from error

    # -- commit -------------------------------------------------------------------------------------

    def _commit(self, reports: list[SlotReport]) -> tuple[list[SlotReport], list[MirrorlakeError]]:
        """Commits the transactions of all slots at once; returns the reports, and the errors of those that are not
        committed.
        """
        outcomes = transaction.end_all(
            self._target,
            [report.producer for report in reports],
            commit=True,
            timeout_ms=transaction.END_TIMEOUT_MS,
            ended=lambda: self._failpoint("driver.committing"),
        )
        committed, failures = [], []
        for report, outcome in zip(reports, outcomes, strict=True):
            failure = self._failure(report, outcome)
            if failure is None:
                committed.append(report)
            else:
                failures.append(failure)
        return committed, failures

    def _failure(self, report: SlotReport, outcome: transaction.Outcome | MirrorlakeError) -> MirrorlakeError | None:
        """Returns the error of a slot that is not known to be committed; the next plan reads what it has committed."""
        if isinstance(outcome, MirrorlakeError):
            return outcome
        try:
            return None if outcome is transaction.Outcome.DECIDED else self._read_outcome(report)
        except MirrorlakeError as error:
            return error

    def _read_outcome(self, report: SlotReport) -> MirrorlakeError | None:
        """Reads the log where the response to EndTxn does not show it; returns an error if a slot is not committed."""
        if offset_syncs.find_state(
            self._target,
            self._flow.offset_syncs_topic,
            slot=report.slot,
            producer=report.producer,
            timeout_ms=self._flow.connect_timeout_ms,
        ):
            return None
        return TargetError(
            f"flow {self._flow.name}, slot {report.slot}: the transaction was aborted before it could be committed (it "
            "took longer than "
            f"mirrorlake.transaction.timeout.ms={self._flow.transaction_timeout_ms}, or another job began one); its "
            "records are copied again",
            retriable=True,
        )

    def _reject(self, reports: Iterable[SlotReport]) -> None:
        """Aborts the open transactions of these reports.

        Raises:
            TargetError: one could not be aborted; all others are.
        """
        producers = [report.producer for report in reports if report.is_open]
        for outcome in transaction.end_all(
            self._target, producers, commit=False, timeout_ms=transaction.END_TIMEOUT_MS
        ):
            if isinstance(outcome, MirrorlakeError):
                raise outcome

    def _abort(self, slots: set[int]) -> None:
        """Aborts open transactions of these slots, so that they don't block readers.

        If the cluster is unreachable, its timeout aborts them.

        Raises:
            FencedError: the slots belong to a newer job, whose transactions must stay open.
        """
        for slot in slots:
            try:
                require_newest(self._target, self._flow, slot, self._generation)
                transaction.begin(
                    self._target,
                    self._flow.transactional_id(slot),
                    self._flow.transaction_timeout_ms,
                    transaction.END_TIMEOUT_MS,
                )
            except FencedError:
                raise
            except MirrorlakeError as error:
                log.warning(
                    event(
                        "transaction_not_aborted",
                        flow=self._flow.name,
                        generation=self._generation,
                        slot=slot,
                        error=error,
                    )
                )
