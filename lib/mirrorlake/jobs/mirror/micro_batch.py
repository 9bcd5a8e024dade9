"""One micro-batch of the mirror job, from its plan to the commit: copying tasks, gate, EndTxn.

The transactions of all slots are checked by the gate and committed together. Those that have waited HELD_S for slower
slots are not held any longer: they are checked and committed without them. So a slow slot, or more slots than cores,
lets no transaction time out. If the gate refuses some, the tasks of slower slots are ended, and their transactions
aborted.

Readers of the target wait for an open transaction until it ends or times out. The driver ends the transactions of the
reports that tasks return. If a task is lost or a retry can't help, the driver aborts all transactions that it can, and
then raises. It never aborts a transaction of a newer job. A slot that failed with a retriable error is left to its next
attempt, which begins with InitProducerId.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

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

HELD_S = 0.3  # seconds for which a transaction waits for slower slots, so that one verdict is for all
HELD_SHARE = 0.25  # of its timeout for which it waits at most


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of a micro-batch.

    Attributes:
        committed: the reports of the committed slots.
        failures: the errors of others.
        waited: the slots that had nothing to commit, as they wait for a rate or a quota.
    """

    committed: list[SlotReport]
    failures: list[MirrorlakeError]
    waited: set[int] = field(default_factory=set)


class MicroBatch:
    """The driver's part of one micro-batch.

    Args:
        flow: flow to mirror.
        generation: generation of this job.
        target: cluster of the transactions.
        gate: expectations on offset syncs.
        failpoint: called with the name of each step as it is reached; tests end the process there.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        flow: Flow,
        generation: int,
        target: Cluster,
        gate: Gate,
        failpoint: Failpoint,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow, self._generation, self._target, self._gate = flow, generation, target, gate
        self._failpoint, self._now = failpoint, now
        self._held_s = min(HELD_S, HELD_SHARE * flow.transaction_timeout_ms / 1000)

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
                aborted. If some were committed before, the error is among the failures instead.
        """
        committed: list[SlotReport] = []
        failures: list[MirrorlakeError] = []
        waited: set[int] = set()
        refused: MirrorlakeError | None = None
        with self._aborting_if_interrupted({one.slot for one in plan.ranges}):
            try:
                with closing(self._copied(plan, tasks, failures)) as copied:
                    for reports in copied:
                        clock.lap("copy")
                        self._failpoint("driver.copied")
                        moved = [report for report in reports if report.is_open]
                        waited |= {report.slot for report in reports if not report.is_open}
                        try:
                            if moved:
                                self._pass_gate(moved, cycle_id, evaluated)
                        except MirrorlakeError as error:
                            refused = error
                            break  # nothing that other slots still copy may be committed
                        clock.lap("gate")
                        self._failpoint("driver.gated")
                        done, aborted = self._commit(moved)
                        committed += done
                        failures += aborted
                        self._failpoint("driver.committed")
                        clock.lap("commit")
                if refused is not None:
                    raise refused
            except MirrorlakeError as error:
                if not committed:
                    raise refused or error from None
                failures.append(refused or error)
        return BatchOutcome(committed, failures, waited)

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

    def _copied(
        self, plan: MirrorPlan, tasks: CopyTasks, failures: list[MirrorlakeError]
    ) -> Generator[list[SlotReport]]:
        """Runs one task for each slot; yields the reports of slots whose transactions should end, and those left last.

        If it is closed before, it ends the tasks that still run, and aborts what they have open.

        Args:
            plan: offsets to copy.
            tasks: runs the copying tasks.
            failures: takes the retriable errors of slots.
        """
        slots = {one.slot for one in plan.ranges}
        waiting, answered, final = list[SlotReport](), list[int](), list[MirrorlakeError]()
        ended: set[int] = set()
        held_since: float | None = None
        try:
            backfilling = {one.slot for one in plan.ranges if self._flow.is_backfill(one.topic)}
            with closing(tasks.run(self._flow.shared_by(len(slots), len(backfilling)), plan)) as answers:
                for answer in answers:
                    if answer is not None:
                        answered.append(answer.slot)
                        if isinstance(outcome := answer.outcome, SlotReport):
                            waiting.append(outcome)
                            if held_since is None and outcome.is_open:
                                held_since = self._now()
                        else:
                            (failures if outcome.retriable else final).append(outcome)
                    is_over = held_since is not None and self._now() >= held_since + self._held_s
                    if is_over and not final and len(answered) < len(slots):
                        ended |= {report.slot for report in waiting}
                        yield waiting
                        waiting, held_since = [], None
        except (MirrorlakeError, GeneratorExit):
            self._abort(slots - ended)
            raise
        if sorted(answered) != sorted(slots):
            self._abort(slots - ended)
            raise MirrorlakeError(
                f"flow {self._flow.name}: slots {sorted(slots)} were planned but {sorted(answered)} answered; what "
                "they copied was not committed"
            )
        if final:
            error = next((failure for failure in final if isinstance(failure, FencedError)), final[0])
            self._reject(waiting)
            if not isinstance(error, FencedError):
                self._abort(slots - ended - {report.slot for report in waiting})
            raise tasks.explained(self._flow, error)
        yield waiting

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
            with suppress(TargetError):  # what can't be aborted times out; the gate's reason is the one to be told
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
            contested=True,
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
