"""The engine of a mirror job: Spark (`spark_engine.py`) or this process (`in_process.py`) runs its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.config.reload import Stamp
from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.mirror.planning.plan import HandledPlan, MirrorPlan
from mirrorlake.metrics import Metrics
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state.slot_report import SlotReport


@dataclass(frozen=True)
class TaskAnswer:
    """The answer of one slot's copying task: its report, or the error that ended it."""

    slot: int
    outcome: SlotReport | MirrorlakeError


ANSWER_TICK_S = 0.1  # seconds without an answer, after which None is yielded


class CopyTasks(Protocol):
    """Runs the copying tasks of one micro-batch."""

    def run(self, flow: Flow, plan: MirrorPlan) -> Generator[TaskAnswer | None]:
        """Runs one task for each slot of the plan; yields each answer as it comes, and None while none has come.

        If it is closed before, it starts no more tasks. It waits for those that run only where it can't end them: until
        their time, `mirrorlake.batch.max.ms`, is up.

        Raises:
            MirrorlakeError: a task was lost, so that its open transaction is unknown.
        """

    def explained(self, flow: Flow, error: MirrorlakeError) -> MirrorlakeError:
        """Adds details to an error that only the engine can find."""


HandlePlan = Callable[[MirrorPlan, CopyTasks, int, Stopwatch], HandledPlan]


@dataclass(frozen=True)
class JobRun:
    """One run of a mirror job.

    Attributes:
        config: path of the property file, which the planner reads.
        flow: the flow at the start of the run.
        slots: the number of slots that can have work, as the start has counted them.
        interval_s: least seconds from the begin of a micro-batch to the next one; None to mirror what the source has
            now, and end.
        run_for_s: seconds after which to stop; None for no limit.
        handle: called with each plan; returns what has become of its slots. Its errors are retried or end the run.
        watch: called a few times a second while an interval is set; its errors end the run.
        metrics: counts retries.
        seen: the version of the property file that the flow is of; see `LiveFlow`.
        raises_interrupts: whether an interrupt is raised once nothing is open any more; else it ends the run well.
    """

    config: str
    flow: Flow
    slots: int
    interval_s: float | None
    run_for_s: float | None
    handle: HandlePlan
    watch: Callable[[], None]
    metrics: Metrics
    seen: Stamp | None = None
    raises_interrupts: bool = False


class Engine(Protocol):
    """Runs the micro-batches of mirror jobs."""

    @property
    def parallelism(self) -> int:
        """Number of tasks that run in parallel."""

    def require_usable(self, flow: Flow) -> None:
        """Checks, before the job creates anything, that this engine can mirror the flow.

        Raises:
            ConfigurationError: the engine can't mirror the flow.
        """

    def run(self, run: JobRun) -> None:
        """Plans and handles micro-batches until the run ends; never stops inside one.

        Raises:
            MirrorlakeError: the error that ended the run.
        """

    def stop(self) -> None:
        """Ends the run after the micro-batch under way; may be called from another thread."""
