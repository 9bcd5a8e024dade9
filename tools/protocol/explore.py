"""The exploration of the model: every world that can be reached, breadth first, and what must hold in each.

Where the target has lost a state that it had committed, a job may stop, and positions are not true. No record is
doubled even then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tools.protocol.driver import driver_steps
from tools.protocol.faults import fault_steps
from tools.protocol.invariant import Invariant
from tools.protocol.target import all_last, settle
from tools.protocol.task import task_steps
from tools.protocol.world import OF_A_LOG, Doing, Job, Scope, Start, Step, World, merged, promoted_in


class Finding(NamedTuple):
    """The invariant that is broken, how, and the steps of a new job before."""

    invariant: str
    how: str
    resumed: tuple[str, ...] = ()


class ViolationError(AssertionError):
    """Raised for a broken invariant, with the shortest history that leads there.

    Attributes:
        invariant: the invariant.
        history: the steps, in order.
    """

    def __init__(self, invariant: str, how: str, history: list[str]) -> None:
        super().__init__("\n  ".join([f"{invariant}, but {how}:", *history]))
        self.invariant, self.history = invariant, history


@dataclass(frozen=True)
class Explored:
    """The size of an exploration that has found nothing."""

    worlds: int
    steps: int


def explore(scope: Scope) -> Explored:
    """Explores every history of a model.

    Raises:
        ViolationError: an invariant does not hold.
    """
    first = scope.first()
    cause: dict[World, tuple[World, str] | None] = {first: None}
    waiting, taken, resting = deque([first]), 0, dict[World, Finding | None]()
    while waiting:
        world = waiting.popleft()
        found = broken_in(scope, world)
        if found is None:
            rest = at_rest(world)
            if rest not in resting:
                resting[rest] = resumed(scope, rest)
            found = resting[rest]
        if found:
            raise ViolationError(found.invariant, found.how, [*history(cause, world), *found.resumed])
        for words, following in steps(scope, world):
            taken += 1
            if following not in cause:
                cause[following] = (world, words)
                waiting.append(following)
    return Explored(len(cause), taken)


def steps(scope: Scope, world: World) -> Iterator[Step]:
    """Yields each possible step, in words, with the world behind it."""
    if len(world.jobs) < len(scope.jobs):
        number = len(world.jobs)
        job = Job(number, scope.jobs[number])
        yield f"job {number} is started", world._replace(jobs=(*world.jobs, job))
    for slot, known in enumerate(world.slots):
        for transaction in known.open:
            if transaction.is_decided:
                yield f"the commit of slot {slot} can be read", settle(world, slot, transaction)
    for job in world.jobs:
        yield from driver_steps(scope, world, job)
    for attempt in world.attempts:
        yield from task_steps(scope, world, attempt)
    if world.faults:
        yield from fault_steps(scope, world._replace(faults=world.faults - 1))


def history(cause: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    """Returns the steps that lead to a world."""
    found = []
    while (before := cause[world]) is not None:
        world, words = before
        found.append(words)
    return found[::-1]


def broken_in(scope: Scope, world: World) -> Finding | None:
    """Returns an invariant that a world breaks."""
    if world.wrong:
        return Finding(*world.wrong)
    for partition, records in enumerate(world.visible):
        if not are_in_order(records):
            return Finding(Invariant.ONCE, f"a reader gets the records {records} of partition {partition}")
    if world.has_forgotten:
        return None
    for partition, position in enumerate(merged(all_last(world), scope.partitions)):
        there = records_of(world.visible[partition], position.log)
        if position.next != there or records_of(world.visible[partition], position.log + 1):
            how = f"partition {partition} is at {position.next}, and a reader gets {there} records"
            return Finding(Invariant.TRUE, how)
    return None


def are_in_order(records: tuple[int, ...]) -> bool:
    """Returns True for the first records of each log, log by log."""
    return all(
        record == before + 1 or (record % OF_A_LOG == 0 and record > before)
        for before, record in pairwise((-1, *records))
    )


def records_of(records: tuple[int, ...], log: int) -> int:
    """Returns how many of the records are of a log."""
    return sum(record // OF_A_LOG == log for record in records)


def at_rest(world: World) -> World:
    """Returns a world in which every process has died."""
    kept = {name: getattr(world, name) for name in ("has_forgotten", "logs", "promoted")}
    return World(world.slots, world.visible, world.opened, **kept)


def resumed(scope: Scope, world: World) -> Finding | None:
    """Returns how one job alone, without a fault, fails to copy the rest; with the steps that it takes."""
    alone = scope._replace(plans=scope.records * scope.partitions + 1, jobs=())
    was_closed, before, taken = world.opened[1], world.visible, ["a new job is started alone"]
    world = world._replace(jobs=(Job(0, Start(len(world.slots))),))
    while possible := list(steps(alone, world)):
        words, world = possible[0]
        taken.append(words)
        if found := broken_in(scope, world):
            return Finding(found.invariant, found.how, (*taken,))
    is_closed = any(state is not None and state.is_closed for state in all_last(world))
    if was_closed and world.visible != before and not world.has_forgotten:
        return Finding(Invariant.CLOSED, f"a new job copies {world.visible}", (*taken,))
    if is_closed:
        return None
    if world.jobs[0].doing is not Doing.OVER or any(slot.open for slot in world.slots):
        return Finding(Invariant.RESUMES, "a new job ends with a transaction open, or not at all", (*taken,))
    there = [records_of(records, log) for records, log in zip(world.visible, world.logs, strict=True)]
    promoted = promoted_in(all_last(world))  # also by a generation that was not opened in every slot
    wanted = [there[partition] for partition in range(scope.partitions) if partition not in promoted]
    if not world.has_forgotten and any(count < scope.records for count in wanted):
        return Finding(Invariant.RESUMES, f"a new job copies no further than {world.visible}", (*taken,))
    return None
