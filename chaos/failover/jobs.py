"""The jobs of a story, as threads of this process, and the death of the source at one of their steps."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.checkpoint.job import CheckpointJob
from mirrorlake.local.cluster import LocalCluster

from chaos.failover.judge import Cycle
from chaos.failover.observed_cycles import SYNCED, MortalLedger, ObservedCycles
from chaos.failover.story import COMMITTING, Story
from tests.world import ROOT, World


@dataclass
class Death:
    """Kills the source at the drawn moment, once it is armed."""

    source: LocalCluster
    moment: str
    number: int
    armed: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    how: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, step: str) -> None:
        """Takes note of a step, in the thread that has reached it; kills the source if it is the one."""
        with self._lock:
            if not self.armed.is_set() or self.done.is_set() or step != self.moment:
                return
            self.number -= 1
            if self.number <= 0:
                self._kill(step)

    def kill(self) -> None:
        """Kills the source if it still lives."""
        with self._lock:
            if not self.done.is_set():
                self._kill("deadline")

    def watch_commits(self, journals: list[Path]) -> None:
        """Reaches the step COMMITTING while a client waits for the answer to a commit, as its journal says."""
        sizes = {file: file.stat().st_size for file in journals}
        while not self.done.is_set():
            for file, size in sizes.items():
                if (now := file.stat().st_size) == size:
                    continue
                with file.open("rb") as journal:
                    journal.seek(size)
                    lines = journal.read().splitlines()
                sizes[file] = now
                if lines and (b'"committing"' in lines[-1] or b'"records_consumed"' in lines[-1]):
                    self.reach(COMMITTING)
            self.done.wait(0.002)

    def _kill(self, how: str) -> None:
        self.source.stop_broker(1, kill=True)
        self.how = how
        self.done.set()


class Jobs:
    """The mirror job and the checkpoint job of a flow, until the source is dead or they are told to end.

    A job that fails is followed by the next one.

    Attributes:
        cycles: the cycles of the checkpoint jobs.
        errors: with which errors jobs have ended.
    """

    def __init__(self, story: Story, world: World, death: Death) -> None:
        self._story, self._world, self._death = story, world, death
        self.cycles: list[Cycle] = []
        self.errors: list[str] = []
        self._jobs: list[Any] = []
        self._resting = ""

    def mirror(self) -> None:
        """Runs mirror jobs."""
        while not self._death.done.is_set() and self._resting != "mirror":
            self._run(self._world.disturbed_job(self._death.reach), self._story.mirror_s)

    def checkpoint(self) -> None:
        """Runs checkpoint jobs."""
        while not self._death.done.is_set() and self._resting != "checkpoint":
            world, suite = self._world, ROOT / "expectations/checkpoints.json"
            cycles = ObservedCycles(world.spark, self.cycles, self._death.reach)
            ledger: Any = MortalLedger(world.ledger, self._death.reach, lambda: self._death.how == SYNCED)
            job = CheckpointJob(world.spark, world.config, world.flow, ledger, str(suite), cycles=cycles)
            self._run(job, self._story.checkpoint_s)

    def rest(self, which: str) -> None:
        """Ends the jobs of one kind (`mirror` or `checkpoint`); the other kind goes on."""
        self._resting = which
        for job in self._jobs:
            if isinstance(job, CheckpointJob) == (which == "checkpoint"):
                job.stop()

    def stop(self) -> None:
        """Tells all jobs to end."""
        for job in self._jobs:
            job.stop()

    def _run(self, job: Any, interval_s: float) -> None:
        self._jobs.append(job)
        if not self._death.done.is_set():
            try:
                job.run(interval_s)
            except MirrorlakeError as error:  # the source may be dead, or dying
                self.errors.append(f"{type(error).__name__}: {error}")
