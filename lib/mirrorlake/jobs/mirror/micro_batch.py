"""One micro-batch of the mirror job: the copying tasks, and what becomes of the transactions that they leave open.

Readers of the target wait for a transaction until it is ended or expires. Those of returned reports are the driver's to
end; where a task is lost or another micro-batch won't help, `copy` aborts all it can before it raises (not those of a
newer job); and a slot that has failed with something that passes is ended by its next attempt, which begins with
InitProducerId.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError, MirrorlakeError, SourceError, TargetError
from mirrorlake.jobs.mirror.copy.task import REPORT_SCHEMA, copy_task
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.state import offset_syncs
from mirrorlake.state.fencing import require_newest
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.evaluate import corrupt_batch, explain_failure, root_cause
from mirrorlake.transforms.frame import planned_ranges, with_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class MicroBatch:
    """What the driver does to the slots of one plan.

    Args:
        flow, generation: what is mirrored, and which of its jobs this is.
        target: where the transactions are.
        say: called with a warning.
    """

    def __init__(self, flow: Flow, generation: int, target: Cluster, say: Callable[[str], None]) -> None:
        self.flow, self.generation, self.target, self._say = flow, generation, target, say

    def copy(
        self, frame: DataFrame, rows: Sequence[Any], fails_at: str = ""
    ) -> tuple[list[SlotReport], list[MirrorlakeError]]:
        """Runs one task for each slot; returns what they report, and why others could not.

        Args:
            frame: the plan, and `rows`, what was collected of it.
            fails_at: where tasks die, in tests (`mirrorlake.failpoint`).

        Raises:
            MirrorlakeError: a task was lost, or says what trying again won't help against. What was open is aborted
                then.
        """
        planned = planned_ranges(rows)
        slots = {one.slot for one in planned}
        task = copy_task(self.flow, rows[0]["slots"], self.generation, fails_at)
        work = frame.filter("kind = 'range'")
        if any(self.flow.transform_of(one.topic) for one in planned):
            work = with_records(work, self.flow, planned, rows[0]["slots"])
        try:
            answers = work.mapInArrow(task, REPORT_SCHEMA).collect()
        except Exception as error:
            self._abort(slots)
            if corrupt := corrupt_batch(error):
                raise SourceError(
                    f"flow {self.flow.name}: Spark can't read a topic that has a transform: {corrupt}. Check the disks "
                    f"of cluster {self.flow.source}; to go on without that batch, take the topic out "
                    "of the transform's topics, or delete its records up to there"
                ) from None
            raise TargetError(
                f"flow {self.flow.name}: a copy task was lost: {root_cause(error)}", retriable=True
            ) from None
        reports = [SlotReport(**json.loads(answer["report"])) for answer in answers if answer["report"]]
        failures = [errors.from_json(json.loads(answer["error"])) for answer in answers if answer["error"]]
        if sorted(answer["slot"] for answer in answers) != sorted(slots):
            self._abort(slots)
            raise MirrorlakeError(
                f"flow {self.flow.name}: slots {sorted(slots)} were planned but "
                f"{sorted(answer['slot'] for answer in answers)} answered; nothing was committed"
            )
        fatal = next(
            (failure for failure in failures if isinstance(failure, FencedError)),
            next((failure for failure in failures if not failure.retriable), None),
        )
        if fatal is not None:
            self.reject(reports)
            if not isinstance(fatal, FencedError):
                self._abort(slots - {report.slot for report in reports})
            raise self._explained(fatal, frame.sparkSession)
        return reports, failures

    def commit(self, report: SlotReport) -> MirrorlakeError | None:
        """Ends one slot's transaction; returns why it is not committed, if it isn't. What EndTxn leaves open is read
        from the log."""
        outcome = transaction.end(self.target, report.producer, commit=True, timeout_ms=transaction.END_TIMEOUT_MS)
        if outcome is transaction.Outcome.DECIDED:
            return None
        if offset_syncs.find_state(
            self.target, self.flow.offset_syncs_topic, report.slot, report.producer, self.flow.connect_timeout_ms
        ):
            return None
        return TargetError(
            f"flow {self.flow.name}, slot {report.slot}: the transaction was aborted before it could be committed (it "
            "took longer than "
            f"mirrorlake.transaction.timeout.ms={self.flow.transaction_timeout_ms}, or another job began one); its "
            "records are copied again",
            retriable=True,
        )

    def reject(self, reports: Iterable[SlotReport]) -> None:
        """Aborts the transactions that these reports have left open."""
        for report in reports:
            if report.is_open:
                transaction.end(self.target, report.producer, commit=False, timeout_ms=transaction.END_TIMEOUT_MS)

    def _abort(self, slots: set[int]) -> None:
        """Aborts whatever is open in these slots, so that nothing holds back readers; a cluster that is away does it by
        timeout.

        Raises:
            FencedError: the slots belong to a newer job, whose transactions are none of our business.
        """
        for slot in slots:
            try:
                require_newest(self.target, self.flow, slot, self.generation)
                transaction.begin(
                    self.target,
                    self.flow.transactional_id(slot),
                    self.flow.transaction_timeout_ms,
                    transaction.END_TIMEOUT_MS,
                )
            except FencedError:
                raise
            except MirrorlakeError as error:
                self._say(f"warning: {error.message}")

    def _explained(self, error: MirrorlakeError, spark: SparkSession) -> MirrorlakeError:
        """An error about a record that can't be transformed says what Spark finds wrong with it."""
        what = error.anomaly
        if what.get("kind") != AnomalyKind.TRANSFORM:
            return error
        key, offset, transform = (
            (what["topic"], what["partition"]),
            what["from_offset"],
            self.flow.transform_of(str(what["topic"])),
        )
        with contextlib.suppress(Exception):  # the error itself must arrive, whatever else goes wrong
            record = log_records(
                spark, self.flow.source_connection, {key: offset}, {key: offset + 1}, "read_committed", {}
            )
            error.message += f". Spark says: {explain_failure(record, transform, *key, offset, what['reason'])}"
        return SourceError(error.message, anomaly=what)
