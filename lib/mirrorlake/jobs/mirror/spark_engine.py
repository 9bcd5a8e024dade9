"""Spark as the engine of a mirror job: plans arrive as a stream, and one Spark task copies each slot."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError, without_contents
from mirrorlake.jobs.mirror.copy.task import REPORT_SCHEMA, copy_task
from mirrorlake.jobs.mirror.engine import JobRun, TaskAnswer
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.range_source import KafkaRanges
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.spark.parallelism import copying_tasks
from mirrorlake.spark.query_loop import Batches
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.evaluate import corrupt_batch, explain_failure
from mirrorlake.transforms.frame import with_records
from mirrorlake.transforms.validate import validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


class SparkEngine:
    """Runs mirror jobs on Spark.

    Args:
        spark: a classic session (not Connect) with Delta and the Kafka source; speculation must be off.
        fails_at: step at which tests let tasks die (`mirrorlake.failpoint`).
    """

    def __init__(self, spark: SparkSession, fails_at: str = "") -> None:
        self.spark, self._fails_at = spark, fails_at
        self._batches: Batches | None = None
        self._is_stopped = False

    @property
    def parallelism(self) -> int:
        return copying_tasks(self.spark)

    def require_usable(self, flow: Flow) -> None:
        if self.spark.conf.get("spark.speculation", "false") == "true":
            raise ConfigurationError(
                "spark.speculation is true, so two attempts of a task would fence each other. Set spark.speculation "
                "= false for this job"
            )
        for transform in flow.transforms:
            validate(self.spark, transform)

    def run(self, run: JobRun) -> None:
        def handle(frame: DataFrame, number: int) -> None:
            clock = Stopwatch()
            plan = MirrorPlan.from_rows(frame.collect())
            clock.lap("collect")
            run.handle(plan, SparkTasks(frame, self._fails_at), number, clock)

        self.spark.dataSource.register(KafkaRanges)
        plans = self.spark.readStream.format("kafka_ranges").option("config", run.config).option("flow", run.flow.name)
        if run.interval_s is None:
            plans = plans.option("until", "now")
        self._batches = Batches(handle, run.flow.retry_timeout_ms / 1000, run.flow.name, run.metrics)
        if self._is_stopped:
            return
        self._batches.run(
            plans.load(),
            run.name,
            checkpoint=run.checkpoint,
            interval_s=run.interval_s,
            run_for_s=run.run_for_s,
            watch=run.watch,
        )

    def stop(self) -> None:
        self._is_stopped = True
        if self._batches is not None:
            self._batches.stop()


class SparkTasks:
    """Runs the tasks of one micro-batch as a Spark job.

    Args:
        frame: the plan, as rows of `kafka_ranges`.
        fails_at: step at which tests let tasks die.
    """

    def __init__(self, frame: DataFrame, fails_at: str) -> None:
        self._frame, self._fails_at = frame, fails_at

    def run(self, flow: Flow, plan: MirrorPlan) -> list[TaskAnswer]:
        """See `CopyTasks.run`."""
        work = self._frame.filter("kind = 'range'")
        if any(flow.transform_of(one.topic) for one in plan.ranges):
            work = with_records(work, flow, plan.ranges, plan.slots)
        task = copy_task(flow, plan.slots, plan.generation, self._fails_at)
        try:
            rows = work.mapInArrow(task, REPORT_SCHEMA).collect()
        except Exception as error:
            if corrupt := corrupt_batch(error):
                raise SourceError(
                    f"flow {flow.name}: Spark can't read a topic that has a transform: {corrupt}. Check the disks of "
                    f"cluster {flow.source}. To continue without this batch, remove the topic from the transform's "
                    "topics, or delete the records up to this batch"
                ) from None
            raise TargetError(
                f"flow {flow.name}: a copy task was lost: {without_contents(error)}", retriable=True
            ) from None
        return [_answer(row) for row in rows]

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
            spark = self._frame.sparkSession
            record = log_records(
                spark, flow.source_connection, start=start, end=end, isolation="read_committed", names={}
            )
            found = explain_failure(
                record, transform, topic=topic, partition=partition, offset=offset, reason=str(what["reason"])
            )
            error.message += f". Spark says: {found}. Notebook transform shows the records"
        return SourceError(error.message, anomaly=what)


def _answer(row: Row) -> TaskAnswer:
    """Reads a row of REPORT_SCHEMA."""
    if row["report"]:
        return TaskAnswer(row["slot"], SlotReport(**json.loads(row["report"])))
    return TaskAnswer(row["slot"], errors.from_json(json.loads(row["error"])))
