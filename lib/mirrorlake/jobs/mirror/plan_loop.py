"""The loop of every engine: makes a plan, has it handled, and waits until the next one is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mirrorlake.config.reload import LiveFlow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.mirror.engine import CopyTasks, JobRun
from mirrorlake.jobs.mirror.planning.plan import HandledPlan, MirrorPlan
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.timing import Stopwatch

POLL_S = 0.05
IDLE_S, SLOWER = 1.0, 1.5  # the longest wait for news of an idle source, and how it grows


class PlanLoop:
    """Plans one flow repeatedly, and handles each plan that has work or news, or that has failed the last time.

    The next micro-batch begins an interval after the last one has begun, or at once if that took longer. While the
    source has nothing new, the job asks it less often: after a second at the latest. A run whose time is up while
    attempts fail goes on until one succeeds or retries are used up, so that no run ends well that has done nothing.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._failure: MirrorlakeError | None = None  # of the last plan, if it may pass

    def stop(self) -> None:
        """Ends the run after the micro-batch under way; any thread may call it."""
        self._stopping.set()

    def run(self, run: JobRun, tasks: CopyTasks, watch: Callable[[], None] | None = None) -> None:
        """Handles plans until the run ends.

        Args:
            run: the run.
            tasks: runs the copying tasks.
            watch: called between two micro-batches, a few times a second, while the run has an interval.

        Raises:
            MirrorlakeError: the error of a plan or micro-batch that is final.
        """
        planner = Planner(LiveFlow(run.config, run.flow, run.slots, run.seen), until_now=run.interval_s is None)
        retries = Retries(run.flow.retry_timeout_ms / 1000, self._stopping.wait, run.flow.name, run.metrics)
        deadline = None if run.run_for_s is None else time.monotonic() + run.run_for_s
        seen, number, pause_s = 0, 0, run.interval_s or 0.0
        try:
            while not self._stopping.is_set() and (self._failure or deadline is None or time.monotonic() < deadline):
                began, plan = time.monotonic(), planner.latest()
                # A run that drains the source ends with the error of a plan that nothing has changed since.
                is_again = self._failure is not None and run.interval_s is not None
                is_new = plan.number != seen or is_again
                if is_new:
                    seen = plan.number
                    planner.handled(self._handle(run, plan, tasks, number, retries))
                    number += 1
                if run.interval_s is None:
                    if not is_new:
                        if self._failure is not None:  # what the plan needed has not come meanwhile
                            raise self._failure
                        return
                    if not plan.ranges:  # it waits for an election, or for a topic to be created
                        self._stopping.wait(POLL_S)
                    continue
                pause_s = run.interval_s if is_new else longer(run.interval_s, pause_s)
                self._wait_until(began + pause_s, deadline, watch)
        finally:
            planner.close()

    def _handle(self, run: JobRun, plan: MirrorPlan, tasks: CopyTasks, number: int, retries: Retries) -> HandledPlan:
        """Handles a plan; returns what has become of its slots."""
        try:
            handled = run.handle(plan, tasks, number, Stopwatch())
            retries.succeeded()
        except MirrorlakeError as error:
            if not retries.may_go_on(error):
                raise
            self._failure = error
            return HandledPlan()
        self._failure = None
        return handled

    def _wait_until(self, due: float, deadline: float | None, watch: Callable[[], None] | None) -> None:
        """Waits until the next plan is due, and watches meanwhile."""
        until = due if deadline is None else min(due, deadline)
        if watch is not None:
            watch()
        while (left_s := until - time.monotonic()) > 0 and not self._stopping.wait(
            left_s if watch is None else min(POLL_S, left_s)
        ):
            if watch is not None:
                watch()


def longer(interval_s: float, pause_s: float) -> float:
    """Returns the pause after a plan without news, from that before it; never shorter than the interval."""
    return max(interval_s, min(IDLE_S, SLOWER * max(pause_s, POLL_S)))
