"""Keeps the jobs of a flow running, as a scheduler does, and notes with which errors they have ended."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.jobs import Job

PAUSE_S = 0.5  # before a job that has ended is started again


class Supervisor:
    """The mirror job (sometimes two of them) and the checkpoint job of a flow.

    A job that ends is started again. No job may end by itself, but the older one of two mirror jobs: all faults pass
    before the time is up for which a job retries, or repeats the steps of its start.

    Attributes:
        restarts: how often a job that had ended by itself was started again.
    """

    def __init__(self, config: Path, flow: str, directory: Path) -> None:
        self._config, self._flow, self._directory = config, flow, directory
        self._jobs: list[Job] = []
        self._number = 0
        self._due: dict[str, float] = {}
        self._stopped: list[str] = []
        self._is_fencing = False
        self.restarts = 0

    def start(self) -> None:
        """Starts both jobs."""
        self.begin("mirror")
        self.begin("checkpoint")

    def begin(self, what: str) -> None:
        """Starts a job, beside those that run."""
        self._number += 1
        log = self._directory / f"{what}-{self._number}.log"
        self._is_fencing |= what == "mirror" and any(job.what == what for job in self._jobs)
        self._jobs.append(Job(what, self._config, self._flow, log))

    def has_said(self, what: str, word: str) -> bool:
        """Returns True if a job of a kind has logged a word."""
        return any(word in log.read_text() for log in self._directory.glob(f"{what}-*.log"))

    def kill_one(self, what: str) -> None:
        """Kills the newest job of a kind; it is started again."""
        for job in [job for job in self._jobs if job.what == what][-1:]:
            self._jobs.remove(job)
            job.kill()
        self._due[what] = time.monotonic() + PAUSE_S

    @property
    def have_begun(self) -> bool:
        """Whether no job is about to be started again, and the newest mirror job has ended what others had open."""
        newest = [job for job in self._jobs if job.what == "mirror"][-1:]
        return not self._due and all(job.log.exists() and "generation_opened" in job.log.read_text() for job in newest)

    def look(self) -> None:
        """Notes which jobs have ended, and starts them again if no other of their kind runs."""
        for job in [job for job in self._jobs if not job.is_running]:
            self._jobs.remove(job)
            self._note(job)
            self._due.setdefault(job.what, time.monotonic() + PAUSE_S)
        for what in [what for what, due in self._due.items() if due < time.monotonic()]:
            del self._due[what]
            if not any(job.what == what for job in self._jobs):
                self.begin(what)

    def _note(self, job: Job) -> None:
        ending = job.ending
        self.restarts += 1
        if ending is None:
            self._stopped.append(f"the {job.what} job has died ({job.log})")
        elif ending.is_fenced and self._is_fencing:
            self.restarts -= 1
        else:
            self._stopped.append(f"the {job.what} job has ended with {ending.kind}: {ending.message} ({job.log})")

    def stop(self) -> list[str]:
        """Ends the jobs between two micro-batches; returns what is wrong with how jobs have ended."""
        self.look()
        for job in self._jobs:
            if not job.stop():
                self._stopped.append(f"the {job.what} job did not end when it was told to ({job.log})")
            elif (ending := job.ending) is None or (ending.kind and not ending.is_retriable):
                self._note(job)
        self._jobs.clear()
        return self._stopped

    def kill(self) -> None:
        """Kills what runs still."""
        for job in self._jobs:
            job.kill()
        self._jobs.clear()
