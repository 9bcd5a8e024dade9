"""This process as the engine of a mirror job: planner, tasks and driver in one process, without Spark.

Planner, copying task, gate and commit are the same as on Spark. Slots are copied one after the other. The engine is for
tests of the protocol, and for small flows without transforms.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mirrorlake.config.flow import Flow
from mirrorlake.config.reload import LiveFlow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.failpoint import Failpoint, never
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.jobs.mirror.copy.task import Connections, connect
from mirrorlake.jobs.mirror.engine import JobRun, TaskAnswer
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.log import event
from mirrorlake.protocol.cluster import Limits
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.timing import Stopwatch

log = logging.getLogger(__name__)

POLL_S = 0.05


class InProcessEngine:
    """Runs mirror jobs in this process.

    Args:
        parallelism: number of slots of a flow that does not set it.
        failpoint: called by tasks with the name of each step; tests end the process there.
    """

    def __init__(self, parallelism: int = 2, failpoint: Failpoint = never) -> None:
        self.parallelism = parallelism
        self._tasks = InProcessTasks(failpoint)
        self._stopping = threading.Event()

    def require_usable(self, flow: Flow) -> None:
        if flow.transforms:
            raise ConfigurationError(
                f"flow {flow.name}: mirrorlake.transforms need Spark, but this job runs without Spark. Remove the "
                "transforms, or run the job on Spark"
            )

    def run(self, run: JobRun) -> None:
        planner = Planner(LiveFlow(run.config, run.flow), until_now=run.interval_s is None)
        retries = Retries(run.flow.retry_timeout_ms / 1000, self._stopping.wait, run.flow.name, run.metrics)
        deadline = None if run.run_for_s is None else time.monotonic() + run.run_for_s
        seen, number = 0, 0
        try:
            while not self._stopping.is_set() and (deadline is None or time.monotonic() < deadline):
                began, values = time.monotonic(), planner.latest()
                if values.get("plan", 0) == seen and run.interval_s is None:
                    return
                if values.get("plan", 0) != seen:
                    seen = values["plan"]
                    self._handle(run, MirrorPlan.from_values(values), number, retries)
                    number += 1
                if run.interval_s is not None:
                    self._wait_until(began + run.interval_s, deadline, run.watch)
        except KeyboardInterrupt:
            log.info(event("interrupted", flow=run.flow.name, query=run.name))
        finally:
            planner.close()
            self._tasks.close()

    def _handle(self, run: JobRun, plan: MirrorPlan, number: int, retries: Retries) -> None:
        try:
            clock = Stopwatch()
            clock.lap("collect")  # the plan needs no collecting
            run.handle(plan, self._tasks, number, clock)
            retries.succeeded()
        except MirrorlakeError as error:
            if not retries.may_go_on(error):
                raise

    def stop(self) -> None:
        self._stopping.set()

    def _wait_until(self, due: float, deadline: float | None, watch: Callable[[], None]) -> None:
        """Calls `watch` until the next plan is due."""
        until = due if deadline is None else min(due, deadline)
        watch()
        while (left_s := until - time.monotonic()) > 0 and not self._stopping.wait(min(POLL_S, left_s)):
            watch()


class InProcessTasks:
    """Copies the slots of a plan one after the other, over connections that are kept between plans."""

    def __init__(self, failpoint: Failpoint) -> None:
        self._failpoint = failpoint
        self._connections: Connections | None = None
        self._of: Flow | None = None
        self._limits = Limits()

    def run(self, flow: Flow, plan: MirrorPlan) -> list[TaskAnswer]:
        """See `CopyTasks.run`."""
        answers = []
        for slot in sorted({planned.slot for planned in plan.ranges}):
            ranges = [planned for planned in plan.ranges if planned.slot == slot]
            answer = copy_slot(
                flow,
                lambda: self._connected(flow),
                slot=slot,
                slots=plan.slots,
                generation=plan.generation,
                ranges=ranges,
                failpoint=self._failpoint,
            )
            if isinstance(answer, MirrorlakeError):
                self.close()
            answers.append(TaskAnswer(slot, answer))
        return answers

    def explained(self, flow: Flow, error: MirrorlakeError) -> MirrorlakeError:
        """Returns the error unchanged; see `CopyTasks.explained`."""
        return error

    def close(self) -> None:
        """Drops the connections; the next task makes new ones."""
        if self._connections is not None:
            source, target, _ = self._connections
            source.close()
            target.close()
        self._connections = None

    def _connected(self, flow: Flow) -> Connections:
        if self._connections is None or self._of != flow:
            self.close()
            self._connections, self._of = connect(flow, self._limits), flow
        return self._connections
