"""Spark as the engine of a mirror job: a plan is a Spark job, and one task copies each slot.

The driver copies small plans itself, by the same code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import (
    ConfigurationError,
    MirrorlakeError,
    SourceError,
    TargetError,
    unexpected,
    without_contents,
)
from mirrorlake.failpoint import never
from mirrorlake.jobs.mirror.copy.task import REPORT_SCHEMA, copy_task, packed
from mirrorlake.jobs.mirror.early_answers import EarlyAnswers
from mirrorlake.jobs.mirror.engine import ANSWER_TICK_S, CopyTasks, JobRun, TaskAnswer
from mirrorlake.jobs.mirror.in_process import InProcessTasks
from mirrorlake.jobs.mirror.plan_loop import PlanLoop
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.log import event
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.spark.kafka_frames import OVERFLOW, TOO_FAR, Damage, corrupt_batch, log_records
from mirrorlake.spark.parallelism import copying_tasks
from mirrorlake.spark.reader_group import ReaderGroup
from mirrorlake.spark.session_state import why_ended
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.evaluate import explain_failure
from mirrorlake.transforms.frame import with_records
from mirrorlake.transforms.validate import validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = logging.getLogger(__name__)

WATCH_S = 0.25
SESSION_LOOK_S = 2.0  # between two looks whether the session still works
LANES = 4  # slots that this process copies at once
SMALL_RECORDS, SMALL_SLOTS, SMALL_BYTES = 10_000, 8, 16 << 20  # of a plan that this process copies itself


class SparkEngine:
    """Runs mirror jobs on Spark.

    Args:
        spark: a classic session (not Connect) with Delta and the Kafka source; speculation must be off.
        fails_at: step at which tests let tasks die (`mirrorlake.failpoint`).
        small_records: records of a plan up to which this process copies them itself.
    """

    def __init__(self, spark: SparkSession, fails_at: str = "", small_records: int = SMALL_RECORDS) -> None:
        self.spark, self._fails_at, self._small_records = spark, fails_at, small_records
        self._loop = PlanLoop()
        self._session_due = 0.0

    @property
    def parallelism(self) -> int:
        return copying_tasks(self.spark)

    def require_usable(self, flow: Flow) -> None:
        if str(self.spark.conf.get("spark.speculation", "false")).strip().lower() == "true":
            raise ConfigurationError(
                "spark.speculation is true, so two attempts of a task would fence each other. Set spark.speculation "
                "= false for this job"
            )
        for transform in flow.transforms:
            validate(self.spark, transform)

    def run(self, run: JobRun) -> None:
        tasks = SparkTasks(self.spark, self._fails_at, self._small_records)
        running = Running(self._loop, run, tasks)
        try:
            running.watched(lambda: self._watch(run))
        except KeyboardInterrupt:
            log.info(event("interrupted", flow=run.flow.name))
            if run.raises_interrupts:
                raise
        finally:
            self._loop.stop()
            running.join()
            tasks.close()
        if running.error is not None:
            raise running.error

    def stop(self) -> None:
        self._loop.stop()

    def _watch(self, run: JobRun) -> None:
        """Does the job's work between micro-batches, and requires a session.

        Without one, this process could copy small plans for ever, and nothing would reach the ledger.
        """
        if time.monotonic() >= self._session_due:
            self._session_due = time.monotonic() + SESSION_LOOK_S
            if (error := why_ended(self.spark, run.flow.name)) is not None:
                raise error
        if run.interval_s is not None:
            run.watch()


class Running:
    """The loop of a run, in a thread of its own, so that an interrupt ends it between two micro-batches."""

    def __init__(self, loop: PlanLoop, run: JobRun, tasks: CopyTasks) -> None:
        self.error: MirrorlakeError | None = None
        self._loop, self._run, self._tasks = loop, run, tasks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop_over, name=f"mirror {run.flow.name}", daemon=True)
        self._thread.start()

    def watched(self, watch: Callable[[], None]) -> None:
        """Calls `watch` a few times a second until the loop has ended; an error that it raises ends the run."""
        while not self._ended.wait(WATCH_S):
            try:
                watch()
            except MirrorlakeError as error:
                self.error = self.error or error
                return

    def join(self) -> None:
        """Waits for the end of the micro-batch under way."""
        self._thread.join()

    def _loop_over(self) -> None:
        try:
            self._loop.run(self._run, self._tasks)
        except MirrorlakeError as error:
            self.error = self.error or error
        except Exception as error:
            self.error = self.error or unexpected("handling a micro-batch", error)
        finally:
            self._ended.set()


class SparkTasks:
    """Runs the tasks of each plan: as a Spark job with a task for each slot, or in this process if there is little.

    A Spark job takes a tenth of a second for itself. In that time, this process copies a few thousand records.

    Args:
        spark: the session.
        fails_at: step at which tests let Spark's tasks die.
        small_records: records of a plan up to which this process copies them.
    """

    def __init__(self, spark: SparkSession, fails_at: str, small_records: int) -> None:
        self._spark, self._fails_at, self._small_records = spark, fails_at, small_records
        self._here = InProcessTasks(never, lanes=LANES)
        self._early = EarlyAnswers(spark)
        self._readers = ReaderGroup()
        self._damage = Damage()

    def run(self, flow: Flow, plan: MirrorPlan) -> Generator[TaskAnswer | None]:
        """See `CopyTasks.run`."""
        return self._here.run(small(flow), plan) if self._is_small(flow, plan) else self._as_spark_job(flow, plan)

    def close(self) -> None:
        """Drops the connections of this process."""
        self._here.close()

    def _is_small(self, flow: Flow, plan: MirrorPlan) -> bool:
        return (
            sum(one.end - one.start for one in plan.ranges) <= self._small_records
            and len({one.slot for one in plan.ranges}) <= SMALL_SLOTS
            and not any(flow.transform_of(one.topic) for one in plan.ranges)
        )

    def _as_spark_job(self, flow: Flow, plan: MirrorPlan) -> Generator[TaskAnswer | None]:
        """Runs a Spark job. Its result has all answers in the end; until then, the accumulator has those that came."""
        by_slot, known, tag = plan.by_slot(), set[int](), f"mirrorlake-copy-{uuid.uuid4().hex}"
        context = self._spark.sparkContext
        read = [one for one in plan.ranges if flow.transform_of(one.topic)]
        if read:
            work = with_records(self._spark, flow, plan.ranges, plan.slots, self._readers.id_for(flow, read))
            task = copy_task(flow, plan.slots, plan.generation, plan.longest_s, self._fails_at)
        else:  # one row for each slot, in a partition of its own
            work = self._spark.range(0, len(by_slot), 1, len(by_slot))
            ranges = [*map(packed, by_slot.values())]
            task = copy_task(flow, plan.slots, plan.generation, plan.longest_s, self._fails_at, ranges)

        def collected(reports: DataFrame) -> list[Row]:
            context.addJobTag(tag)
            return reports.collect()

        try:
            with ThreadPoolExecutor(1) as pool:
                job = pool.submit(collected, work.mapInArrow(self._early.of(task), REPORT_SCHEMA))
                try:
                    while not wait([job], ANSWER_TICK_S).done:
                        early = [_answer(row) for row in self._early.take()]
                        known |= {answer.slot for answer in early}
                        yield from early
                        yield None
                finally:
                    if not job.done():
                        context.cancelJobsWithTag(tag)
            rows = job.result()
            if read:
                self._damage.none()
        except Exception as error:
            if corrupt := corrupt_batch(error):
                raise SourceError(
                    f"flow {flow.name}: Spark can't read a topic that has a transform: {corrupt}. Check the disks of "
                    f"cluster {flow.source}. To continue without this batch, remove the topic from the transform's "
                    "topics, or delete the records up to this batch",
                    retriable=not self._damage.is_of_the_log(corrupt),
                ) from None
            if OVERFLOW in str(error):
                raise SourceError(
                    f"flow {flow.name}: Spark can't read a topic that has a transform: {TOO_FAR}. Remove the topic "
                    "from the transform's topics, or delete the records up to that one"
                ) from None
            raise TargetError(
                f"flow {flow.name}: a copy task was lost: {without_contents(error)}", retriable=True
            ) from None
        yield from (_answer(row) for row in rows if row["slot"] not in known)

    def explained(self, flow: Flow, error: MirrorlakeError) -> MirrorlakeError:
        """Adds the condition of Spark's error about a record that can't be transformed, without its message."""
        what = error.anomaly
        if what.get("kind") != AnomalyKind.TRANSFORM:
            return error
        topic, partition, offset = str(what["topic"]), int(str(what["partition"])), int(str(what["from_offset"]))
        transform = flow.transform_of(topic)
        if transform is None:
            return error
        with contextlib.suppress(Exception):  # the original error must not be hidden by another one
            start, end = {(topic, partition): offset}, {(topic, partition): offset + 1}
            record = log_records(
                self._spark, flow.source_connection, start=start, end=end, isolation="read_committed", names={}
            )
            found = explain_failure(
                record, transform, topic=topic, partition=partition, offset=offset, reason=str(what["reason"])
            )
            says = "" if found == what["reason"] else f". Spark says: {found}"
            error.message += f"{says}. Notebook transform shows the records"
        return SourceError(error.message, anomaly=what)


def _answer(row: Row | Mapping[str, Any]) -> TaskAnswer:
    """Reads a row of REPORT_SCHEMA."""
    if row["report"]:
        return TaskAnswer(row["slot"], SlotReport(**json.loads(row["report"])))
    return TaskAnswer(row["slot"], errors.from_json(json.loads(row["error"])))


def small(flow: Flow) -> Flow:
    """Returns the flow with the limits of a small micro-batch: large records leave the rest to the next plan."""
    return replace(flow, batch_max_bytes=min(flow.batch_max_bytes, SMALL_BYTES))
