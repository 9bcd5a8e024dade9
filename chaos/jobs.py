"""The real jobs, each in a process of its own that can be killed at any time.

A server process imports everything once and forks a child for each job, so that a job starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError, MirrorlakeError
from mirrorlake.jobs.checkpoint.cycles import InProcessCycles
from mirrorlake.jobs.checkpoint.job import CheckpointJob
from mirrorlake.jobs.mirror.copy import fetcher, pace
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.log import configure
from mirrorlake.notebook.runtime import ended_by_sigterm

ROOT = Path(__file__).resolve().parents[1]
STOP_S, STACKS_S = 40.0, 5.0
SMALL_BYTES = 4 << 10  # of a response, where a partition is read over several connections
MIRROR_INTERVAL_S, CHECKPOINT_INTERVAL_S = 0.1, 0.5
SUITES = OFFSET_SYNCS, CHECKPOINTS = tuple(
    str(ROOT / f"expectations/{name}.json") for name in ("offset_syncs", "checkpoints")
)
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Ending:
    """How a job has ended: the kind and message of its error, both empty if there is none."""

    kind: str
    message: str
    is_retriable: bool

    @property
    def is_fenced(self) -> bool:
        """True if a newer job has taken over."""
        return self.kind == FencedError.__name__


class Job:
    """A job that runs.

    Args:
        what: `mirror` or `checkpoint`.
        config: the property file.
        flow: the name of the flow.
        log: the file of its output; its ending is beside it.
    """

    def __init__(self, what: str, config: Path, flow: str, log: Path) -> None:
        self.what, self.log = what, log
        work = {"mirror": _mirror, "checkpoint": _checkpoint}[what]
        self._can_stop = _context().Event()
        arguments = (work, str(config), flow, str(log), self._can_stop)
        self._process = _context().Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process.is_alive()

    @property
    def ending(self) -> Ending | None:
        """Returns how the job has ended; None if it was killed."""
        written = self.log.with_suffix(".json")
        return Ending(**json.loads(written.read_text())) if written.exists() else None

    def kill(self) -> None:
        """Kills the process (SIGKILL)."""
        self._process.kill()
        self._process.join()

    def stop(self) -> bool:
        """Ends the job between two micro-batches; returns False if it had to be killed.

        A job that was started just now does not follow SIGTERM yet, and would die of it. One that does not end leaves
        the stacks of its threads in its log.
        """
        while self.is_running and not self._can_stop.wait(0.1):
            pass
        self._process.terminate()
        self._process.join(STOP_S)
        is_gone = not self._process.is_alive()
        if not is_gone and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGABRT)
            self._process.join(STACKS_S)
        self.kill()
        return is_gone


def _context() -> ForkServerContext:
    CONTEXT.set_forkserver_preload(["__main__", "chaos.preloaded"])
    return CONTEXT


def warm_up() -> None:
    """Starts the server process, which imports everything, before anything is timed."""
    process = _context().Process(target=os.getpid)
    process.start()
    process.join()


def _run(work: Callable[[str, Flow, Event], None], config: str, flow: str, log: str, can_stop: Event) -> None:
    """Runs a job in a child; writes its ending."""
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure()
    ending: dict[str, Any] = {"kind": "", "message": "", "is_retriable": False}
    try:
        work(config, Flow.load(config, flow), can_stop)
    except MirrorlakeError as error:
        ending = {"kind": type(error).__name__, "message": error.message, "is_retriable": error.retriable}
    except BaseException as error:
        traceback.print_exc()
        ending = {"kind": type(error).__name__, "message": f"{error} (see {log})", "is_retriable": False}
    Path(log).with_suffix(".json").write_text(json.dumps(ending))
    sys.stdout.flush()
    os._exit(0)


def _mirror(config: str, flow: Flow, can_stop: Event) -> None:
    if flow.fetch_connections > 1:  # else one response would have all that is new
        pace.FETCH_BYTES = pace.LEAST_FETCH_BYTES = fetcher.LEAST_FETCH_BYTES = SMALL_BYTES
        fetcher.LEAST_AHEAD_BYTES = fetcher.LEAST_AHEAD_BATCHES = 1
    job = MirrorJob(InProcessEngine(), config, flow, MemoryLedger(), OFFSET_SYNCS)
    with ended_by_sigterm(job):
        can_stop.set()
        job.run(MIRROR_INTERVAL_S)


def _checkpoint(config: str, flow: Flow, can_stop: Event) -> None:
    job = CheckpointJob(None, config, flow, MemoryLedger(), CHECKPOINTS, cycles=InProcessCycles(None))
    with ended_by_sigterm(job):
        can_stop.set()
        job.run(CHECKPOINT_INTERVAL_S)
