"""Runs the cycles of the checkpoint job: a streaming query or this process reads the committed offsets of groups."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, unexpected
from mirrorlake.jobs.checkpoint.offset_source import COLUMNS, GroupOffsetsReader, KafkaGroupOffsets
from mirrorlake.metrics import Metrics
from mirrorlake.spark.query_loop import Batches
from mirrorlake.spark.retries import Retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HandleCycle = Callable[["SparkSession | None", list[dict[str, Any]], int], None]


@dataclass(frozen=True)
class CycleRun:
    """One run of a checkpoint job.

    Attributes:
        config: path of the property file, which Spark's workers read.
        flow: flow of the groups.
        name: name of the query.
        checkpoint: directory for Spark's own progress.
        interval_s: seconds between two cycles; None for one cycle.
        run_for_s: seconds after which to stop, once a cycle has succeeded; None for no limit.
        handle: called with a session, the rows of `kafka_group_offsets`, and the number of the cycle.
        metrics: counts retries.
    """

    config: str
    flow: Flow
    name: str
    checkpoint: str
    interval_s: float | None
    run_for_s: float | None
    handle: HandleCycle
    metrics: Metrics


class Cycles(Protocol):
    """Reads the committed offsets of groups, once in each cycle."""

    def run(self, run: CycleRun) -> None:
        """Handles cycles until the run ends.

        Raises:
            MirrorlakeError: the error that ended the run.
        """

    def stop(self) -> None:
        """Ends the run after the cycle under way; may be called from another thread."""


class SparkCycles:
    """Reads group offsets by a streaming query, so that the tasks of a Spark cluster share the work."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stopping = threading.Event()
        self._batches: Batches | None = None

    def run(self, run: CycleRun) -> None:
        """See `Cycles.run`."""

        logs = GroupOffsetsReader(run.flow)

        def handle(frame: DataFrame, number: int) -> None:
            run.handle(frame.sparkSession, logs.with_logs(frame.toArrow().to_pylist()), number)

        self._spark.dataSource.register(KafkaGroupOffsets)
        reader = self._spark.readStream.format("kafka_group_offsets").option("config", run.config)
        frame = reader.option("flow", run.flow.name).load()
        once = run.interval_s is None
        self._batches = Batches(handle, run.flow.retry_timeout_ms / 1000, run.flow.name, run.metrics, once=once)
        if self._stopping.is_set():  # while the job was still preparing
            return
        self._batches.run(
            frame, run.name, checkpoint=run.checkpoint, interval_s=run.interval_s or 0, run_for_s=run.run_for_s
        )

    def stop(self) -> None:
        """See `Cycles.stop`."""
        self._stopping.set()
        if self._batches is not None:
            self._batches.stop()


class InProcessCycles:
    """Reads group offsets in this process; Spark, if there is a session, translates positions that are not near the end
    of a log."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark
        self._stopping = threading.Event()

    def run(self, run: CycleRun) -> None:
        """See `Cycles.run`."""
        reader, number = GroupOffsetsReader(run.flow, groups_per_task=sys.maxsize), 0  # one deadline for all
        retries = Retries(run.flow.retry_timeout_ms / 1000, self._stopping.wait, run.flow.name, run.metrics)
        deadline = None if run.run_for_s is None else time.monotonic() + run.run_for_s
        while not self._stopping.is_set() and (not retries.is_well or deadline is None or time.monotonic() < deadline):
            due = time.monotonic() + (run.interval_s or 0)
            rows = [row for partition in reader.partitions({}, {}) for row in reader.read(partition)]
            found = reader.with_logs([dict(zip(COLUMNS, row, strict=True)) for row in rows])
            try:
                run.handle(self._spark, found, number)
                retries.succeeded()
                if run.interval_s is None:
                    return
            except MirrorlakeError as error:
                if not retries.may_go_on(error):
                    raise
            except Exception as error:
                raise unexpected("handling a cycle", error) from error
            number += 1
            self._stopping.wait(max(0.0, min(due, deadline or due) - time.monotonic()))

    def stop(self) -> None:
        """See `Cycles.stop`."""
        self._stopping.set()
