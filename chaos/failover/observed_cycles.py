"""Cycles of the checkpoint job whose times are kept, and which tell when each of their steps is reached.

A job may die at one of them, between moving the groups on the target and recording that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.checkpoint.cycles import CycleRun
from mirrorlake.jobs.checkpoint.offset_source import COLUMNS, GroupOffsetsReader

from chaos.failover.judge import Cycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SYNCED = "cycle.synced"  # the groups are moved, and the ledger does not know it


class MortalLedger:
    """A ledger whose job dies with the source at step SYNCED.

    Args:
        ledger: the ledger.
        reach: called with the name of the step.
        is_dead: returns True once the source is dead.
    """

    def __init__(self, ledger: Any, reach: Callable[[str], None], is_dead: Callable[[], bool]) -> None:
        self._ledger, self._reach, self._is_dead = ledger, reach, is_dead
        self._has_died = False

    def append(self, table: str, rows: Any) -> Any:
        """Appends rows; see `Ledger.append`.

        Raises:
            MirrorlakeError: the job has died.
        """
        if table == "checkpoints" and not self._is_dead():
            self._reach(SYNCED)
            self._has_died = self._is_dead()
        if self._has_died:
            raise MirrorlakeError(f"the job has died at {SYNCED}")
        return self._ledger.append(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


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
