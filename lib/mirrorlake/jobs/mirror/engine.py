"""The engine of a mirror job: Spark (`spark_engine.py`) or this process (`in_process.py`) runs its micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.mirror.plan import MirrorPlan
from mirrorlake.metrics import Metrics
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state.slot_report import SlotReport


@dataclass(frozen=True)
class TaskAnswer:
    """The answer of one slot's copying task: its report, or the error that ended it."""

    slot: int
    outcome: SlotReport | MirrorlakeError


class CopyTasks(Protocol):
    """Runs the copying tasks of one micro-batch."""

    def run(self, flow: Flow, plan: MirrorPlan) -> list[TaskAnswer]:
        """Runs one task for each slot of the plan.

        Raises:
            MirrorlakeError: a task was lost, so that nobody knows what it has left open.
        """

    def explained(self, flow: Flow, error: MirrorlakeError) -> MirrorlakeError:
        """Adds to an error what only the engine can find out."""


Handle = Callable[[MirrorPlan, CopyTasks, int, Stopwatch], None]


@dataclass(frozen=True)
class JobRun:
    """One run of a mirror job.

    Attributes:
        config: the property file, which the planner reads.
        flow: the flow at the start of the run.
        name: of the query.
        checkpoint: directory for Spark's own progress.
        interval_s: seconds between two micro-batches; None to mirror what the source has now, and end.
        run_for_s: seconds after which to stop; None for no limit.
        handle: called with each plan; what it raises is retried or ends the run.
        watch: called a few times a second while an interval is set; what it raises ends the run.
        metrics: where retries are counted.
    """

    config: str
    flow: Flow
    name: str
    checkpoint: str
    interval_s: float | None
    run_for_s: float | None
    handle: Handle
    watch: Callable[[], None]
    metrics: Metrics


class Engine(Protocol):
    """Runs the micro-batches of mirror jobs."""

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""

    def require_usable(self, flow: Flow) -> None:
        """Checks, before anything is created, that this engine can mirror the flow.

        Raises:
            ConfigurationError: it can't.
        """

    def run(self, run: JobRun) -> None:
        """Plans and handles micro-batches until the run ends; never stops inside one.

        Raises:
            MirrorlakeError: what ended the run.
        """

    def stop(self) -> None:
        """Ends the run after the micro-batch under way; may be called from another thread."""
