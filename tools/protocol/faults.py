"""The faults of the model: deaths, repetitions, timeouts, brokers that are behind or forget."""

from __future__ import annotations

from collections.abc import Iterator

from tools.protocol.driver import read, rejected
from tools.protocol.target import all_last, put
from tools.protocol.task import compare, lost, name
from tools.protocol.world import Attempt, Doing, Job, Scope, Step, World, added, become, over


def fault_steps(scope: Scope, world: World) -> Iterator[Step]:
    """Yields what may go wrong next. Lost answers are among the steps of drivers."""
    for job in world.jobs:
        if job.doing is not Doing.OVER:
            yield f"job {job.number} dies", over(world, job)
            yield from faults_of(scope, world, job)
    for attempt in world.attempts:
        yield f"{name(attempt)} dies", lost(world, attempt)
        if scope.goes_stale and attempt.doing == "compare" and len(world.slots[attempt.slot].states) > 1:
            yield compare(scope, world, attempt, world.slots[attempt.slot].states[-2], is_stale=True)
    yield from faults_of_clusters(scope, world)


def faults_of_clusters(scope: Scope, world: World) -> Iterator[Step]:
    """Yields what may go wrong on the source and on the target."""
    for partition, log in enumerate(world.logs):
        if scope.renews and not log:
            logs = (*world.logs[:partition], 1, *world.logs[partition + 1 :])
            yield f"the topic of partition {partition} is created anew", world._replace(logs=logs)
    for slot, known in enumerate(world.slots):
        for transaction in known.open:
            if not transaction.is_decided:
                rest = tuple(one for one in known.open if one is not transaction)
                ended = put(world, slot, known._replace(open=rest, epoch=known.epoch + 1))
                yield f"the transaction of epoch {transaction.epoch} in slot {slot} times out", ended
        if scope.forgets and not world.has_forgotten and len(known.states) > 1:
            shorter = put(world, slot, known._replace(states=known.states[:-1]))
            yield f"the target loses the last state of slot {slot}", shorter._replace(has_forgotten=True)


def faults_of(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    """Yields the faults of one job."""
    if job.doing is Doing.COPYING:
        for planned in job.planned:
            running = sum((one.job, one.slot) == (job.number, planned.slot) for one in world.attempts)
            if 0 < running < scope.attempts:
                again = Attempt(job.number, planned, job.generation)
                yield f"job {job.number} repeats its task in slot {planned.slot}", added(world, again)
        if len(job.reports) == len(job.planned):
            yield f"the gate of job {job.number} fails", rejected(scope, world, job)
    if job.doing is Doing.READING and scope.goes_stale:
        states = all_last(world)
        for slot, known in enumerate(world.slots):
            if len(known.states) > 1:
                older = (*states[:slot], known.states[-2], *states[slot + 1 :])
                yield from read(world, job, older, is_stale=True)
    if job.doing is Doing.PLANNING and job.placed:
        yield f"job {job.number} starts its planner anew", become(world, job._replace(placed=()))
