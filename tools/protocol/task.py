"""The steps of an attempt of a copying task."""

from __future__ import annotations

from collections.abc import Iterator

from tools.protocol.driver import rejected
from tools.protocol.target import begin, end, last, produce, settle
from tools.protocol.world import (
    OF_A_LOG,
    Attempt,
    Doing,
    Position,
    Report,
    Rule,
    Scope,
    State,
    Step,
    World,
    become,
    changed,
    removed,
)


def task_steps(scope: Scope, world: World, attempt: Attempt) -> Iterator[Step]:
    """Yields the steps that an attempt can take next."""
    match attempt.doing:
        case "init":
            if begun := begin(scope, world, attempt.slot):
                after, epoch = begun
                yield (
                    f"{name(attempt)} begins epoch {epoch}",
                    changed(after, attempt, attempt._replace(doing="compare", epoch=epoch)),
                )
        case "compare":
            yield compare(scope, world, attempt, last(world, attempt.slot))
        case "copy":
            yield copy(scope, world, attempt)
        case "state":
            yield write_state(scope, world, attempt)


def name(attempt: Attempt) -> str:
    return f"an attempt of job {attempt.job} in slot {attempt.slot}"


def compare(scope: Scope, world: World, attempt: Attempt, state: State | None, *, is_stale: bool = False) -> Step:
    """The attempt compares its plan with the slot's last committed state."""
    if state is None or state.generation < attempt.generation:
        return f"{name(attempt)} finds states lost", failed(scope, world, attempt)
    if state.generation > attempt.generation and scope.has(Rule.REFUSE_NEWER):
        return f"{name(attempt)} finds a newer generation", failed(scope, world, attempt)
    planned, position = attempt.range, state.positions[attempt.range.partition]
    log, found = planned.log, planned.start
    if position and position.slot == attempt.slot:
        log, found = (position.log, position.next) if position.log >= planned.log else (planned.log, 0)
    at = found if scope.has(Rule.COMPARE) else planned.start
    if (log, at) > (planned.log, planned.start):
        return f"{name(attempt)} finds its work done", reported(world, attempt, -1)
    if at < planned.start:
        return f"{name(attempt)} finds positions lost", failed(scope, world, attempt)
    after = attempt._replace(doing="copy", next=at, is_stale=is_stale, before=state)
    words = " by an older state, from a broker that is not the leader any more" if is_stale else ""
    return f"{name(attempt)} continues at {at}{words}", changed(world, attempt, after)


def copy(scope: Scope, world: World, attempt: Attempt) -> Step:
    """The attempt writes its record, unless the target has records of the flow behind the position."""
    planned, log = attempt.range, world.logs[attempt.range.partition]
    if planned.log != log and scope.has(Rule.PLANNED_LOG):
        return f"{name(attempt)} finds the topic created anew", lost(world, attempt)
    if scope.checks_writers and scope.has(Rule.SOLE_WRITER):
        others = any(
            partition == planned.partition
            for slot, known in enumerate(world.slots)
            for transaction in known.open
            for partition, _ in transaction.writes
            if slot != attempt.slot
        )
        if len(world.visible[planned.partition]) > attempt.next or others:
            return f"{name(attempt)} finds records behind the position", failed(scope, world, attempt)
    if not scope.has(Rule.ONE_TRANSACTION):  # the state comes first, in a transaction of its own
        world = committed_state(scope, world, attempt)
    record = log * OF_A_LOG + attempt.next
    written = produce(scope, world, attempt.slot, attempt.epoch, write=(planned.partition, record))
    if written is None:
        return f"{name(attempt)} is fenced", lost(world, attempt)
    return (
        f"{name(attempt)} writes record {record} of partition {planned.partition}",
        changed(written, attempt, attempt._replace(doing="state")),
    )


def committed_state(scope: Scope, world: World, attempt: Attempt) -> World:
    written = produce(scope, world, attempt.slot, attempt.epoch, state=new_state(attempt))
    if written is None:
        return world
    ended, _ = end(scope, written, attempt.slot, attempt.epoch, commit=True)
    return settle(ended, attempt.slot, ended.slots[attempt.slot].open[-1])


def write_state(scope: Scope, world: World, attempt: Attempt) -> Step:
    """The attempt writes its state and returns, with its transaction open."""
    state = new_state(attempt) if scope.has(Rule.ONE_TRANSACTION) else None
    if attempt.is_stale and scope.has(Rule.BEHIND_THE_READ):
        return f"{name(attempt)} finds its state behind others than it has read", lost(world, attempt)
    written = produce(scope, world, attempt.slot, attempt.epoch, state=state)
    if written is None:
        return f"{name(attempt)} is fenced", lost(world, attempt)
    return f"{name(attempt)} writes its state, and returns", reported(written, attempt, attempt.epoch)


def new_state(attempt: Attempt) -> State:
    """Returns the state behind the record of an attempt: the positions that the slot owns."""
    before = attempt.before
    assert before is not None
    positions = [one if one and one.slot == attempt.slot else None for one in before.positions]
    positions[attempt.range.partition] = Position(attempt.next + 1, attempt.slot, attempt.range.log)
    return before._replace(epoch=attempt.epoch, generation=attempt.generation, positions=tuple(positions))


# -- the end of an attempt ----------------------------------------------------------------------------


def reported(world: World, attempt: Attempt, epoch: int) -> World:
    """Ends an attempt; its driver takes the first report of each slot."""
    world = removed(world, attempt)
    job = world.jobs[attempt.job]
    is_waited_for = attempt.range in job.planned
    if job.doing is Doing.COPYING and is_waited_for and all(one.slot != attempt.slot for one in job.reports):
        return become(world, job._replace(reports=tuple(sorted((*job.reports, Report(attempt.slot, epoch))))))
    return world


def lost(world: World, attempt: Attempt) -> World:
    """Ends an attempt that reports nothing; its driver goes on without this slot if it has no other attempt."""
    rest = removed(world, attempt)
    if any((one.job, one.slot) == (attempt.job, attempt.slot) for one in rest.attempts):
        return rest
    return reported(world, attempt, -1)


def failed(scope: Scope, world: World, attempt: Attempt) -> World:
    """Ends an attempt with an error that ends its job: the driver aborts what others have reported."""
    world = removed(world, attempt)
    job = world.jobs[attempt.job]
    return rejected(scope, world, job) if job.doing is Doing.COPYING else world
