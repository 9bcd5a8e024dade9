"""The worlds of the model: the target's slots, jobs and attempts of tasks, as plain values.

A world has what decides about positions: epochs, transactions, states, and what each process knows. A record of the
model stands for all that a micro-batch copies of one partition. Of the source, a world has which log a topic has, as it
may be created anew. Batches and the ledger are left out, as they decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

KEPT_STATES = 2  # of each slot: nobody reads earlier ones
OF_A_LOG = 10  # records have numbers from this on in the second log of a partition


class Rule(StrEnum):
    """The rules that make the protocol safe. The model without one of them breaks an invariant."""

    FENCE = "the coordinator rejects requests of an earlier epoch, and ends what it has open"
    SETTLE = "InitProducerId waits until a decided transaction can be read"
    ONE_TRANSACTION = "records and positions are in one transaction"
    COMPARE = "a task continues at its slot's committed position"
    REFUSE_NEWER = "a task stops if the state of its slot is of a newer generation"
    READ_BEHIND_FENCE = "a job reads the states after it has fenced all slots"
    ALL_POSITIONS = "the opening state of each slot has the positions of all slots"
    FURTHEST = "the furthest position of a partition counts"
    WHOLE_OPENING = "a job that could not open every slot copies nothing"
    STAY_CLOSED = "a job does not continue a closed flow"
    READ_THE_LOG = "a driver whose commit is rejected reads the log"
    GATE = "a driver commits only what the gate has passed"
    BEHIND_THE_READ = "a state counts only directly behind the states that its writer has read"
    SOLE_WRITER = "a task stops if the target has the flow's own records behind the position"
    NEWEST_LOG = "a position in a topic's newest log counts before a further one in an earlier log"
    PLANNED_LOG = "a task copies only from the log that was planned"
    STAY_PROMOTED = "a job leaves out topics that were promoted by themselves"
    KEEP_SLOT = "a partition without a position is planned only for a slot that no unsettled transaction contradicts"


# The functions that keep the rules, as module:name below lib/mirrorlake. FENCE and SETTLE are kept by brokers.
KEPT_BY: dict[Rule, tuple[str, ...]] = {
    Rule.FENCE: ("protocol.transaction:begin", "protocol.batches.record_batch:Batch.sealed"),
    Rule.SETTLE: ("protocol.transaction:begin",),
    Rule.ONE_TRANSACTION: ("jobs.mirror.copy.slot_copy:SlotCopy._write_state", "state.fencing:write_state"),
    Rule.COMPARE: ("jobs.mirror.copy.continuation:_stretch",),
    Rule.REFUSE_NEWER: ("jobs.mirror.copy.continuation:committed_state", "jobs.mirror.job:MirrorJob._look_into"),
    Rule.READ_BEHIND_FENCE: ("state.generation:_open_generation",),
    Rule.ALL_POSITIONS: ("state.generation:_open_generation",),
    Rule.FURTHEST: ("model.slot:merge_positions",),
    Rule.WHOLE_OPENING: ("state.generation:begin_generation",),
    Rule.STAY_CLOSED: ("state.closure:closed_for", "state.generation:begin_generation"),
    Rule.READ_THE_LOG: ("state.offset_syncs:find_state", "jobs.mirror.micro_batch:MicroBatch._commit"),
    Rule.GATE: ("jobs.mirror.micro_batch:MicroBatch._pass_gate",),
    Rule.BEHIND_THE_READ: ("state.fencing:write_state",),
    Rule.SOLE_WRITER: ("jobs.mirror.copy.target_writer:Outlet.require_sole_writer",),
    Rule.NEWEST_LOG: ("model.slot:merge_positions",),
    Rule.PLANNED_LOG: ("jobs.mirror.copy.source_reader:Intake.require_topics",),
    Rule.STAY_PROMOTED: ("state.closure:promoted_topics", "state.generation:_open_generation"),
    Rule.KEEP_SLOT: ("jobs.mirror.planning.planner:Planner._plan", "model.copy_plan:make_plan"),
}


class Position(NamedTuple):
    """The next record of a partition, and the slot that copies it; no slot (-1) before the first transaction.

    `log` is the log of the source: 1 after the topic was created anew.
    """

    next: int
    slot: int
    log: int = 0


class State(NamedTuple):
    """A state of a slot: the positions that its transaction has written, by partition (None: not in this state).

    `promoted` has the partitions that were promoted by themselves.
    """

    epoch: int
    generation: int
    slots: int
    is_closed: bool
    positions: tuple[Position | None, ...]
    promoted: tuple[int, ...] = ()


class Transaction(NamedTuple):
    """A transaction that can't be read yet: it is open, or its commit is decided and the markers are on their way."""

    epoch: int
    writes: tuple[tuple[int, int], ...] = ()  # partition, record
    state: State | None = None
    is_decided: bool = False


class Slot(NamedTuple):
    """A slot on the target: the newest epoch of its transactional id, transactions, and committed states."""

    epoch: int = 0
    open: tuple[Transaction, ...] = ()  # one at most, as long as the coordinator fences
    states: tuple[State, ...] = ()


class Doing(StrEnum):
    """The next step of a job."""

    STARTING = "starting"
    FENCING = "fencing"
    READING = "reading"
    WRITING = "writing"
    OPENING = "opening"
    PLANNING = "planning"
    COPYING = "copying"
    COMMITTING = "committing"
    OVER = "over"


class Start(NamedTuple):
    """A job that is started: its number of slots, whether its generation closes the flow, and what it promotes."""

    slots: int
    closes: bool = False
    promotes: tuple[int, ...] = ()


class Range(NamedTuple):
    """What a plan has for a slot: a partition, from a record on, of a log."""

    slot: int
    partition: int
    start: int
    log: int = 0


class Report(NamedTuple):
    """The report of an attempt: its slot, and the epoch of the transaction that it has left open (-1: none)."""

    slot: int
    epoch: int


class Job(NamedTuple):
    """The driver of a mirror job.

    Attributes:
        at: the slot or report that a step of several is at.
        known: the newest generation that the job has read before it fences.
        read: the states that the job opens its generation from.
        is_stale: true if a broker that is not the leader any more has returned them.
        placed: the slots that its planner has given to partitions without a position.
        planned: the ranges of its plan.
        has_passed: true once the gate has passed the reports.
        is_repeating: true if the answer to an EndTxn was lost.
    """

    number: int
    start: Start
    doing: Doing = Doing.STARTING
    at: int = 0
    known: int = 0
    generation: int = 0
    epochs: tuple[int, ...] = ()
    read: tuple[State | None, ...] = ()
    is_stale: bool = False
    placed: tuple[tuple[int, int], ...] = ()  # partition, slot
    planned: tuple[Range, ...] = ()
    reports: tuple[Report, ...] = ()
    has_passed: bool = False
    plans: int = 0
    is_repeating: bool = False


class Attempt(NamedTuple):
    """An attempt of a copying task; it may outlive its job."""

    job: int
    range: Range
    generation: int
    doing: str = "init"  # then compare, copy, state
    epoch: int = 0
    next: int = 0
    is_stale: bool = False
    before: State | None = None  # the state that it goes on from

    @property
    def slot(self) -> int:
        return self.range.slot


class World(NamedTuple):
    """The target, and all processes.

    Attributes:
        slots: the slots on the target.
        visible: the records that a read_committed reader gets, by partition.
        opened: the newest generation that was opened in every slot, and whether it closes the flow.
        jobs: the jobs that were started.
        attempts: the attempts that run.
        faults: the number of faults that may still happen.
        has_forgotten: true once the target has lost a committed state.
        logs: the newest log of each partition on the source.
        promoted: the partitions that a generation has promoted by themselves.
        wrong: the invariant that the last step has broken by itself, and how.
    """

    slots: tuple[Slot, ...]
    visible: tuple[tuple[int, ...], ...]
    opened: tuple[int, bool] = (0, False)
    jobs: tuple[Job, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    faults: int = 0
    has_forgotten: bool = False
    logs: tuple[int, ...] = ()
    promoted: tuple[int, ...] = ()
    wrong: tuple[str, str] | None = None


class Scope(NamedTuple):
    """The size of the model.

    Attributes:
        partitions: the number of source partitions.
        records: the number of records of each.
        jobs: the jobs that are started, at any time and in this order.
        plans: the most plans of a job.
        attempts: the most attempts of a task that run at once.
        faults: the most faults in one history.
        forgets: true if the target may lose the last committed state of a slot, once; a fault.
        goes_stale: true if a broker that is not the leader any more may answer reads of states; a fault.
        is_new: true if the partitions have no position before their first transaction.
        checks_writers: true if tasks look for records behind the position. They don't where a transform sets
            partitions. No rule but SOLE_WRITER may depend on it.
        renews: true if a topic of the source may be deleted and created anew, once; a fault.
        without: the rules that this model lacks.
    """

    partitions: int = 2
    records: int = 1
    jobs: tuple[Start, ...] = (Start(2), Start(2))
    plans: int = 1
    attempts: int = 1
    faults: int = 1
    forgets: bool = False
    goes_stale: bool = False
    is_new: bool = False
    checks_writers: bool = False
    renews: bool = False
    without: frozenset[Rule] = frozenset()

    def has(self, rule: Rule) -> bool:
        return rule not in self.without

    def first(self) -> World:
        """Returns the world before the first job."""
        slots = max(start.slots for start in self.jobs)
        return World((Slot(),) * slots, ((),) * self.partitions, faults=self.faults, logs=(0,) * self.partitions)


Step = tuple[str, World]


def merged(
    states: Iterable[State | None], partitions: int, *, furthest: bool = True, newest_log: bool = True
) -> tuple[Position, ...]:
    """Merges the positions of all slots as `model.slot.merge_positions` does.

    The furthest position in the newest log of each partition counts, with the owner of the newest generation.
    """
    found, owners = [(0, 0)] * partitions, [(-1, -1)] * partitions  # log and next, generation and slot
    for state in sorted((one for one in states if one is not None), key=lambda one: one.generation):
        for partition, position in enumerate(state.positions):
            if position is None:
                continue
            is_newer = state.generation > owners[partition][0]
            here = position.log, position.next
            is_behind = found[partition] > here if newest_log else found[partition][1] > here[1]
            if not is_behind or (is_newer and not furthest):
                found[partition] = here
            owners[partition] = max(owners[partition], (state.generation, position.slot))
    return tuple(Position(place, slot, log) for (log, place), (_, slot) in zip(found, owners, strict=True))


def promoted_in(states: Iterable[State | None]) -> tuple[int, ...]:
    """Returns the partitions that were promoted by themselves."""
    return tuple(sorted({partition for state in states if state for partition in state.promoted}))


# -- changes of processes -----------------------------------------------------------------------------


def become(world: World, job: Job) -> World:
    """Puts a job in the place of its earlier self."""
    return world._replace(jobs=(*world.jobs[: job.number], job, *world.jobs[job.number + 1 :]))


def over(world: World, job: Job) -> World:
    """Ends a job; its attempts go on."""
    return become(world, Job(job.number, job.start, Doing.OVER))


def added(world: World, attempt: Attempt) -> World:
    return world._replace(attempts=tuple(sorted((*world.attempts, attempt), key=repr)))


def changed(world: World, attempt: Attempt, after: Attempt) -> World:
    return added(removed(world, attempt), after)


def removed(world: World, attempt: Attempt) -> World:
    rest = list(world.attempts)
    rest.remove(attempt)
    return world._replace(attempts=tuple(rest))


def broken(world: World, invariant: str, how: str) -> World:
    """Notes that a step has broken an invariant."""
    return world if world.wrong else world._replace(wrong=(invariant, how))
