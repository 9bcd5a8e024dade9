"""Cycles of the checkpoint job whose times are kept, and which tell when each of their steps is reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mirrorlake.jobs.checkpoint.cycles import CycleRun
from mirrorlake.jobs.checkpoint.offset_source import COLUMNS, GroupOffsetsReader

from chaos.journal_judge import Cycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ObservedCycles:
    """Runs the cycles of a checkpoint job in this process, without retries; see `Cycles`.

    A reader is made for each cycle, so that it lists the groups anew: what was committed before is seen.

    Args:
        spark: session of the job.
        cycles: takes the times of each cycle in which groups were read.
        reach: called with the name of each step.
    """

    def __init__(self, spark: SparkSession, cycles: list[Cycle], reach: Callable[[str], None]) -> None:
        self._spark, self._cycles, self._reach = spark, cycles, reach
        self._stopping = threading.Event()

    def run(self, run: CycleRun) -> None:
        """Handles cycles until the run is stopped, or one fails."""
        number = 0
        while not self._stopping.is_set():
            began_ms = time.time() * 1_000
            self._reach("cycle.begun")
            reader = GroupOffsetsReader(run.flow)
            rows = [row for partition in reader.partitions({}, {}) for row in reader.read(partition)]
            self._cycles.append(Cycle(began_ms, time.time() * 1_000, is_complete=False))
            self._reach("cycle.read")
            run.handle(self._spark, [dict(zip(COLUMNS, row, strict=True)) for row in rows], number)
            self._cycles[-1] = replace(self._cycles[-1], is_complete=True)
            self._reach("cycle.recorded")
            number += 1
            self._stopping.wait(run.interval_s)

    def stop(self) -> None:
        """Ends the run after the cycle under way."""
        self._stopping.set()
