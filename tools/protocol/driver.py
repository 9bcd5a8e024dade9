"""The steps of a driver: it opens a generation, plans, asks the gate, and ends transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tools.protocol.invariant import Invariant
from tools.protocol.target import all_last, begin, decided, end, last, produce
from tools.protocol.world import (
    Attempt,
    Doing,
    Job,
    Position,
    Range,
    Report,
    Rule,
    Scope,
    State,
    Step,
    World,
    added,
    become,
    broken,
    merged,
    over,
    promoted_in,
)

DONE = -1  # in place of a slot's epoch: it has none yet, or its opening state is committed


def driver_steps(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    """Yields the steps that a job can take next."""
    match job.doing:
        case Doing.STARTING:
            yield from start(scope, world, job)
        case Doing.FENCING:
            yield from fence(scope, world, job)
        case Doing.READING:
            yield from read(world, job, all_last(world))
        case Doing.WRITING:
            yield write_opening(scope, world, job)
        case Doing.OPENING:
            for slot in (job.at,) if job.is_repeating else left(job):  # all at once, so they end in any order
                yield from commit(scope, world, job._replace(at=slot), Report(slot, job.epochs[slot]))
        case Doing.PLANNING:
            yield from plan(scope, world, job)
        case Doing.COPYING:
            yield from ask_gate(scope, world, job)
        case Doing.COMMITTING:
            yield from commit(scope, world, job, job.reports[job.at])


def next_slot(world: World, job: Job, then: Doing) -> Job:
    """Returns a job that has done its step for one slot, and goes on with the next one or the next step."""
    is_last = job.at + 1 == len(world.slots)
    return job._replace(at=0, doing=then) if is_last else job._replace(at=job.at + 1)


def left(job: Job) -> list[int]:
    """Returns the slots whose opening states are still to be committed."""
    return [slot for slot, epoch in enumerate(job.epochs) if epoch != DONE]


# -- opening a generation -----------------------------------------------------------------------------


def start(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    states = all_last(world)
    if is_closed(states) and not job.start.closes and scope.has(Rule.STAY_CLOSED):
        yield f"job {job.number} finds the flow closed, and stops", over(world, job)
        return
    known = max((state.generation for state in states if state), default=0)
    begun = job._replace(doing=Doing.FENCING, known=known, epochs=(DONE,) * len(world.slots))
    if not scope.has(Rule.READ_BEHIND_FENCE):
        begun = begun._replace(read=states)
    yield f"job {job.number} reads generation {known}", become(world, begun)


def fence(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    """InitProducerId for each slot, in any order."""
    for slot, epoch in enumerate(job.epochs):
        if epoch == DONE and (begun := begin(scope, world, slot)):
            fenced, new = begun
            after = with_epoch(job, slot, new)
            if DONE not in after.epochs:
                after = after._replace(doing=Doing.READING)
            yield f"job {job.number} fences slot {slot}", become(fenced, after)


def with_epoch(job: Job, slot: int, epoch: int) -> Job:
    return job._replace(epochs=(*job.epochs[:slot], epoch, *job.epochs[slot + 1 :]))


def read(world: World, job: Job, states: tuple[State | None, ...], *, is_stale: bool = False) -> Iterator[Step]:
    """The job reads all states behind its fences; it stops if another job has opened a generation meanwhile."""
    if job.read:
        states = job.read
    elif max((state.generation for state in states if state), default=0) > job.known:
        yield f"job {job.number} finds a newer generation, and stops", over(world, job)
        return
    behind = job._replace(doing=Doing.WRITING, generation=job.known + 1, read=states, is_stale=is_stale)
    words = "an older state from a broker that is not the leader any more" if is_stale else "all states"
    yield f"job {job.number} reads {words}", become(world, behind)


def write_opening(scope: Scope, world: World, job: Job) -> Step:
    state = opening_state(scope, job)
    is_behind = job.is_stale and scope.has(Rule.BEHIND_THE_READ)
    written = None if is_behind else produce(scope, world, job.at, job.epochs[job.at], state=state)
    if written is None:
        return f"job {job.number} can't write the opening state of slot {job.at}, and stops", over(world, job)
    return (
        f"job {job.number} writes the opening state of slot {job.at}",
        become(written, next_slot(world, job, Doing.OPENING)),
    )


def opening_state(scope: Scope, job: Job) -> State:
    """Returns the opening state of the slot that the job is at."""
    rules = {"furthest": scope.has(Rule.FURTHEST), "newest_log": scope.has(Rule.NEWEST_LOG)}
    known = merged(job.read, scope.partitions, **rules)
    newest = [state for state in job.read if state and state.generation == job.known]
    keeps = bool(newest) and all(state.slots == job.start.slots for state in newest)
    positions = [
        Position(one.next, one.slot if keeps and one.slot >= 0 else partition % job.start.slots, one.log)
        if one.slot >= 0 or not scope.is_new
        else None
        for partition, one in enumerate(known)
    ]
    if not scope.has(Rule.ALL_POSITIONS):
        positions = [one if one and one.slot == job.at else None for one in positions]
    is_closing = job.start.closes or (is_closed(job.read) and scope.has(Rule.STAY_CLOSED))
    promoted = {*(promoted_in(job.read) if scope.has(Rule.STAY_PROMOTED) else ()), *job.start.promotes}
    slots, ordered = job.start.slots, tuple(sorted(promoted))
    return State(job.epochs[job.at], job.generation, slots, is_closing, tuple(positions), ordered)


def is_closed(states: tuple[State | None, ...]) -> bool:
    return any(state is not None and state.is_closed for state in states)


# -- a micro-batch ------------------------------------------------------------------------------------


def plan(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    """Starts a task for each slot that has something to copy; ends a job that has no work, or is an older one."""
    states = all_last(world)
    newest = max((state.generation for state in states if state), default=0)
    if newest > job.generation or job.plans == scope.plans or job.start.closes or job.start.promotes:
        yield f"job {job.number} stops", over(world, job)
        return
    if newest < job.generation:
        return  # its opening states can't be read yet
    waiting = [
        (partition, position)
        for partition, position in enumerate(merged(states, scope.partitions))
        if (position.next < scope.records or position.log < world.logs[partition])
        and partition not in promoted_in(states)
    ]
    if not waiting:
        yield f"job {job.number} finds nothing to copy, and stops", over(world, job)
        return
    placed = dict(job.placed)
    is_settled = not any(slot.open for slot in world.slots)
    choices = [
        (position.slot,)
        if position.slot >= 0
        else (placed[partition],)
        if partition in placed
        else range(job.start.slots)
        if is_settled or not scope.has(Rule.KEEP_SLOT)
        else (-1,)
        for partition, position in waiting
    ]
    for slots in product(*choices):
        ranges = [
            Range(slot, partition, position.next if position.log == world.logs[partition] else 0, world.logs[partition])
            for slot, (partition, position) in zip(slots, waiting, strict=True)
            if slot >= 0
        ]
        if not ranges:
            continue
        planned = tuple(next(one for one in ranges if one[0] == slot) for slot in sorted({one[0] for one in ranges}))
        new = {one.partition: one.slot for one in planned if merged(states, scope.partitions)[one.partition].slot < 0}
        copying = job._replace(
            doing=Doing.COPYING,
            planned=planned,
            placed=tuple(sorted({**placed, **new}.items())),
            reports=(),
            has_passed=False,
            plans=job.plans + 1,
        )
        started = become(world, copying)
        for one in planned:
            started = added(started, Attempt(job.number, one, job.generation))
        words = ", ".join(f"partition {one.partition} in slot {one.slot} from {one.start}" for one in planned)
        yield f"job {job.number} plans {words}", started


def ask_gate(scope: Scope, world: World, job: Job) -> Iterator[Step]:
    if len(job.reports) == len(job.planned):
        passed = job._replace(doing=Doing.COMMITTING, at=0, has_passed=True)
        yield f"the gate of job {job.number} passes", become(world, passed)
    elif not scope.has(Rule.GATE) and job.reports:
        yield f"job {job.number} does not wait for the gate", become(world, job._replace(doing=Doing.COMMITTING, at=0))


def commit(scope: Scope, world: World, job: Job, report: Report) -> Iterator[Step]:
    """The driver's EndTxn(commit) for one slot; its answer may be lost, and it is then repeated."""
    is_opening = job.doing is Doing.OPENING
    what = f"the opening state of slot {report.slot}" if is_opening else f"slot {report.slot}"
    if report.epoch < 0:
        yield f"job {job.number} has nothing to commit in slot {report.slot}", become(world, behind(job))
        return
    transaction = next((one for one in world.slots[report.slot].open if one.epoch == report.epoch), None)
    ended, is_decided = end(scope, world, report.slot, report.epoch, commit=True)
    if is_decided and transaction and not transaction.is_decided:
        ended = decided(ended, report.slot, transaction)
        if transaction.writes and not job.has_passed:
            ended = broken(ended, Invariant.GATED, f"job {job.number} commits slot {report.slot} without the gate")
    if world.faults and not job.is_repeating and transaction:
        lost = become(ended, job._replace(is_repeating=True))._replace(faults=world.faults - 1)
        yield f"job {job.number} commits {what}, and the answer is lost", lost
    if is_decided:
        yield f"job {job.number} commits {what}", become(opened(ended, job, report), behind(job))
        return
    state = last(world, report.slot)
    if (state is not None and state.epoch == report.epoch) or not scope.has(Rule.READ_THE_LOG):
        believed = world
        if state is None or state.epoch != report.epoch:
            believed = broken(world, Invariant.KNOWN, f"job {job.number} counts {what} as committed")
        yield f"job {job.number} counts {what} as committed", become(opened(believed, job, report), behind(job))
    elif is_opening and scope.has(Rule.WHOLE_OPENING):
        yield f"job {job.number} finds {what} not committed, and stops", over(world, job)
    else:
        yield f"job {job.number} finds {what} not committed", become(world, behind(job))


def opened(world: World, job: Job, report: Report) -> World:
    """Notes that a generation is open in every slot."""
    if job.doing is not Doing.OPENING or left(job) != [report.slot]:
        return world
    if world.opened[0] == job.generation and not world.has_forgotten:
        world = broken(world, Invariant.GENERATIONS, f"two jobs have opened generation {job.generation}")
    promoted = tuple(sorted({*world.promoted, *job.start.promotes}))
    return world._replace(opened=max(world.opened, (job.generation, job.start.closes)), promoted=promoted)


def behind(job: Job) -> Job:
    """Returns the job behind the end of one transaction."""
    after = job._replace(is_repeating=False)
    if job.doing is Doing.OPENING:
        after = with_epoch(after, job.at, DONE)._replace(at=0)
        return after if left(after) else after._replace(doing=Doing.PLANNING, read=(), epochs=())
    is_last = job.at + 1 >= len(job.reports)
    return (
        after._replace(at=0, doing=Doing.PLANNING, planned=(), reports=()) if is_last else after._replace(at=job.at + 1)
    )


def rejected(scope: Scope, world: World, job: Job) -> World:
    """EndTxn(abort) for each report, and the end of the job."""
    for report in job.reports:
        if report.epoch >= 0:
            world, _ = end(scope, world, report.slot, report.epoch, commit=False)
    return over(world, job)
