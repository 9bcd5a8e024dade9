"""This process as the engine of a mirror job: planner, tasks and driver in one process, without Spark.

Planner, copying task, gate and commit are the same as on Spark. Slots are copied one after the other. The engine is for
tests of the protocol, and for small flows without transforms.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.failpoint import Failpoint, never
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.jobs.mirror.copy.task import Connections, connect
from mirrorlake.jobs.mirror.engine import ANSWER_TICK_S, JobRun, TaskAnswer
from mirrorlake.jobs.mirror.plan_loop import PlanLoop
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.log import event
from mirrorlake.model.copy_plan import Range
from mirrorlake.protocol.limits import Limits

log = logging.getLogger(__name__)


class InProcessEngine:
    """Runs mirror jobs in this process.

    Args:
        parallelism: number of slots of a flow that does not set it.
        failpoint: called by tasks with the name of each step; tests end the process there.
    """

    def __init__(self, parallelism: int = 2, failpoint: Failpoint = never) -> None:
        self.parallelism = parallelism
        self._tasks = InProcessTasks(failpoint)
        self._loop = PlanLoop()

    def require_usable(self, flow: Flow) -> None:
        if flow.transforms:
            raise ConfigurationError(
                f"flow {flow.name}: mirrorlake.transforms need Spark, but this job runs without Spark. Remove the "
                "transforms, or run the job on Spark"
            )

    def run(self, run: JobRun) -> None:
        try:
            self._loop.run(run, self._tasks, run.watch)
        except KeyboardInterrupt:
            log.info(event("interrupted", flow=run.flow.name))
            if run.raises_interrupts:
                raise
        finally:
            self._tasks.close()

    def stop(self) -> None:
        self._loop.stop()


class InProcessTasks:
    """Copies the slots of a plan in this process, over connections that are kept between plans.

    Args:
        failpoint: called with the name of each step.
        lanes: slots that are copied at once. Slots that share a lane are copied one after the other, so they
            are shared out evenly.
    """

    def __init__(self, failpoint: Failpoint, lanes: int = 1) -> None:
        self._failpoint = failpoint
        self._copiers = [Copier() for _ in range(lanes)]

    def run(self, flow: Flow, plan: MirrorPlan) -> Generator[TaskAnswer | None]:
        """See `CopyTasks.run`."""
        by_lane: dict[int, list[tuple[int, list[Range]]]] = {}
        is_over = Event()
        for slot, ranges in plan.by_slot().items():
            by_lane.setdefault(self._lane(slot, by_lane), []).append((slot, ranges))

        def copied(lane: int) -> Iterator[TaskAnswer]:
            for slot, ranges in by_lane[lane]:
                if is_over.is_set():
                    return
                yield self._copiers[lane].copy(flow, plan, slot, ranges, self._failpoint)

        if len(by_lane) < 2:  # in this thread, which an interrupt reaches
            for lane in by_lane:
                yield from copied(lane)
            return
        answers: SimpleQueue[TaskAnswer] = SimpleQueue()

        def answered(lane: int) -> None:
            for answer in copied(lane):
                answers.put(answer)

        with ThreadPoolExecutor(len(by_lane)) as pool:
            try:
                yield from _as_they_come([pool.submit(answered, lane) for lane in by_lane], answers)
            finally:
                is_over.set()

    def _lane(self, slot: int, taken: Mapping[int, Sequence[object]]) -> int:
        """Returns the lane of a slot: its usual one, whose connections know it, unless others have fewer slots."""
        count = len(self._copiers)
        return min(range(count), key=lambda lane: (len(taken.get(lane, ())), (lane - slot) % count))

    def explained(self, flow: Flow, error: MirrorlakeError) -> MirrorlakeError:
        """Returns the error unchanged; see `CopyTasks.explained`."""
        return error

    def close(self) -> None:
        """Drops the connections; the next task makes new ones."""
        for copier in self._copiers:
            copier.close()


def _as_they_come(lanes: Sequence[Future[Any]], answers: SimpleQueue[TaskAnswer]) -> Iterator[TaskAnswer | None]:
    """Yields the answers of lanes until all have ended, and None while none has come."""
    while not (is_over := all(lane.done() for lane in lanes)) or not answers.empty():
        try:
            yield answers.get(timeout=0 if is_over else ANSWER_TICK_S)
        except Empty:
            yield None
    for lane in lanes:
        lane.result()  # raises what ended it


class Copier:
    """Copies one slot after the other, over connections of its own."""

    def __init__(self) -> None:
        self._connections: Connections | None = None
        self._of: Flow | None = None
        self._limits = Limits()

    def copy(
        self, flow: Flow, plan: MirrorPlan, slot: int, ranges: Sequence[Range], failpoint: Failpoint
    ) -> TaskAnswer:
        """Copies one slot of a plan; its connections are dropped after an error."""
        answer = copy_slot(
            flow,
            lambda: self._connected(flow),
            slot=slot,
            slots=plan.slots,
            generation=plan.generation,
            longest_s=plan.longest_s,
            ranges=ranges,
            failpoint=failpoint,
        )
        if isinstance(answer, MirrorlakeError):
            self.close()
        return TaskAnswer(slot, answer)

    def close(self) -> None:
        """Drops the connections; the next copy makes new ones."""
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
