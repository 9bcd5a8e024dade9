"""Generations: a job fences every slot, reads their states, and opens a new generation.

It is then the only job of its flow. The opening record of a slot is written in the slot's own transaction, which is
begun before its state is read. If another job begins a transaction in between, the commit fails. No job therefore
overwrites a position that it has not read.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from mirrorlake.config.flow import Flow
from mirrorlake.config.mirrorlake_options import LONGEST_TRANSACTION_MS
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError
from mirrorlake.failpoint import Failpoint, never
from mirrorlake.model.gap import Gap
from mirrorlake.model.run import Run
from mirrorlake.model.slot import ClosedFor, Position, SlotState, assign, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ATTEMPT_OVER, TRANSACTION_OVER, ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, WireError
from mirrorlake.protocol.open_transactions import settled_ends
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed, closed_for, is_closed, promoted_topics
from mirrorlake.state.fencing import fenced, write_state

ATTEMPTS = 5  # at least, also after the time for them
LONGEST_WAIT_S = 1.0
RUNS_AT_ONCE = 20_000  # in one record: a few MB, compressed a tenth of that
WRITTEN_AT_ONCE = 8  # slots whose opening states are under way; each may have MBs

Part = TypeVar("Part", Run, Gap)


@dataclass(frozen=True)
class Beginning:
    """Positions, runs and gaps with which a generation begins, in addition to those that the flow has.

    Attributes:
        positions: the positions of partitions that have none yet. If a closed flow is opened again,
            positions of any partitions.
        inferred: the runs that belong to these positions.
        reopens: the reason for which the flow may be closed; the generation opens it again.
        closes: the reason for which this generation closes the flow.
        gaps: the gaps between the earlier positions and `positions`.
        promotes: source topics that were failed over by themselves.
        demotes: source topics that this generation opens again. A flow that is opened again has no promoted topics.
    """

    positions: tuple[Position, ...] = ()
    inferred: tuple[Run, ...] = ()
    reopens: ClosedFor = ClosedFor.NOTHING
    closes: ClosedFor = ClosedFor.NOTHING
    gaps: tuple[Gap, ...] = ()
    promotes: frozenset[str] = frozenset()
    demotes: frozenset[str] = frozenset()


def begin_generation(
    flow: Flow,
    source_cluster_id: str,
    target: Cluster,
    slots: int,
    beginning: Callable[[Mapping[PartitionKey, Position]], Beginning] = lambda known: Beginning(),
    sleep: Callable[[float], None] = time.sleep,
    failpoint: Failpoint = never,
) -> int:
    """Opens a new generation of the flow with `slots` slots; the offset-syncs topic has at least as many partitions.

    Args:
        flow: the flow.
        source_cluster_id: the cluster id of the source.
        target: the target cluster.
        slots: the number of slots.
        beginning: returns what the generation adds to the given positions of the flow. They are
            empty at the first start.
        sleep: waits for some seconds between two attempts.
        failpoint: called with the name of each step when it is reached; tests end the process there.

    Returns:
        The generation.

    Raises:
        ConfigurationError: the flow was handed back to MirrorMaker 2, or failed over.
        FencedError: another job that started at the same time has opened a newer generation.
        SourceError: the states are of another source cluster.
        TargetError: the target can't be written.
    """
    topic = flow.offset_syncs_topic
    partitions = range(
        target.call(f"waiting for topic {topic}", lambda: _visible(target, topic, slots), flow.connect_timeout_ms)
    )
    states = offset_syncs.read_states(target, topic, partitions, flow.connect_timeout_ms)
    generation, looked_at = _newest(states), merge_positions(states.values())
    added = beginning(looked_at)
    reason = closed_for(states.values())
    if reason and not added.closes and added.reopens != reason:
        raise ConfigurationError(closed(flow, reason, generation))
    opened_by: set[tuple[int, int]] = set()
    is_plain = not _is_bound(added, states)  # else some slots have a part of it already
    deadline = time.monotonic() + flow.connect_timeout_ms / 1000
    for attempt in itertools.count():
        if attempt >= ATTEMPTS and time.monotonic() > deadline:
            break
        if _open_generation(
            flow,
            source_cluster_id,
            target=target,
            slots=slots,
            partitions=partitions,
            generation=generation + 1,
            added=added,
            looked_at=looked_at,
            beginning=beginning,
            opened_by=opened_by,
            failpoint=failpoint,
        ):
            return generation + 1
        sleep(random.uniform(0, min(0.2 * 2**attempt, LONGEST_WAIT_S)))
        states = offset_syncs.read_states(target, topic, partitions, flow.connect_timeout_ms)
        newest = _newest(states)
        is_own = all((one.producer_id, one.producer_epoch) in opened_by for one in _of(newest, states))
        if newest > generation and not (is_own and is_plain):
            raise fenced(flow, generation + 1, newest)
        generation = max(generation, newest)  # an attempt of an older job has come between two slots
    raise TargetError(
        f"flow {flow.name}: another job keeps fencing this job's transactional ids. Run only one mirror job for each "
        "flow"
    )


def begin_again(flow: Flow, target: Cluster, beginning: Beginning) -> int:
    """Begins a generation of a flow, which fences a running mirror job; needs the target only.

    Returns the generation, 0 for a flow that has no states.
    """
    states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, flow.connect_timeout_ms)
    if not states:
        return 0
    newest = max(states.values(), key=lambda state: state.generation)
    return begin_generation(
        flow,
        newest.source_cluster_id,
        target=target,
        slots=newest.slots,
        beginning=lambda known: beginning,
    )


async def _visible(target: Cluster, topic: str, slots: int) -> int:
    """Returns the number of partitions of the offset-syncs topic; raises an error until a new one can be used."""
    found = (await target.update_metadata([topic])).get(topic)
    if found is None or found.partitions < slots or -1 in found.leaders.values():
        raise ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
    return found.partitions


def _open_generation(
    flow: Flow,
    source_cluster_id: str,
    target: Cluster,
    slots: int,
    partitions: range,
    generation: int,
    added: Beginning,
    looked_at: Mapping[PartitionKey, Position],
    beginning: Callable[[Mapping[PartitionKey, Position]], Beginning],
    opened_by: set[tuple[int, int]],
    failpoint: Failpoint,
) -> bool:
    """Writes the opening state of each slot; returns False if another job has begun a transaction of a slot.

    Adds the producer ids and epochs that it writes with to `opened_by`. What is `added` belongs to the positions that
    were `looked_at`; if a job has moved them before it was fenced, the `beginning` is asked for again.
    """
    timeout_ms = LONGEST_TRANSACTION_MS if added.inferred else flow.transaction_timeout_ms  # a map may be large
    ids = [flow.transactional_id(slot) for slot in partitions]
    begun = transaction.begin_all(target, ids, timeout_ms, transaction.END_TIMEOUT_MS)
    producers = dict(zip(partitions, begun, strict=True))
    opened_by.update((producer.producer_id, producer.producer_epoch) for producer in begun)
    states, ends = offset_syncs.read_states_and_ends(
        target, flow.offset_syncs_topic, partitions, flow.connect_timeout_ms
    )
    newest = _newest(states)
    if newest >= generation:
        return False
    for state in states.values():
        if state.source_cluster_id and source_cluster_id and state.source_cluster_id != source_cluster_id:
            raise SourceError(
                f"flow {flow.name}: cluster {flow.source} has id {source_cluster_id}, but the records mirrored so "
                f"far came from cluster {state.source_cluster_id}. Correct {flow.source}.bootstrap.servers, or give "
                "the new cluster another alias"
            )
    same_slots = all(state.slots == slots for state in states.values() if state.generation == newest)
    known = merge_positions(states.values())
    reopened = is_closed(states.values())
    added = in_incarnations_of(known, added if known == looked_at else beginning(known))
    new = {
        key: position
        for position in added.positions
        if (key := (position.topic, position.partition)) not in known or reopened
    }
    positions = assign({**known, **new}, slots, keep=same_slots and bool(states))
    opens_all = reopened or added.reopens is ClosedFor.FAILOVER  # a take-over of an open flow leaves them as they are
    promoted = set() if added.reopens and opens_all else {*promoted_topics(states.values())}
    promoted = (promoted - added.demotes) | added.promotes
    producer_ids = sorted({producer_id for state in states.values() for producer_id in state.all_producer_ids})
    belonging = {(run.topic, run.partition) for run in added.inferred} | {
        (gap.topic, gap.partition) for gap in added.gaps
    }
    bound = new.keys() if reopened else new.keys() & belonging
    inferred = _by_slot(added.inferred, new, positions)
    gaps = _by_slot(added.gaps, new, positions)

    def opening(slot: int, producer: transaction.Producer) -> Iterator[SlotState]:
        # If only some slots are committed, each partition has both its new position and what belongs to it, or neither.
        # A start has nothing that belongs to it. It would be forgotten if only a slot that is not committed had it.
        mine = tuple(one for key, one in positions.items() if key not in bound or one.slot == slot)
        runs = inferred.get(slot, ())
        state = SlotState(
            source=flow.source,
            target=flow.target,
            source_cluster_id=source_cluster_id,
            slot=slot,
            slots=slots,
            generation=generation,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            closed=bool(added.closes),
            closed_for=added.closes,
            producer_ids=tuple(producer_ids),
            topics_shared=flow.topics_shared,
            promoted_topics=tuple(sorted(promoted)),
        )
        for at in range(0, len(runs), RUNS_AT_ONCE):
            yield replace(state, runs=tuple(runs[at : at + RUNS_AT_ONCE]), inferred=True)
        yield replace(state, positions=mine, gaps=tuple(gaps.get(slot, ())))

    if not _write_all(target, flow, {producer: opening(slot, producer) for slot, producer in producers.items()}, ends):
        return False
    failpoint("driver.stated")
    outcomes = transaction.end_all(
        target,
        begun,
        commit=True,
        timeout_ms=transaction.END_TIMEOUT_MS,
        ended=lambda: failpoint("driver.opening"),
    )
    for (slot, producer), outcome in zip(producers.items(), outcomes, strict=True):
        if isinstance(outcome, MirrorlakeError):
            raise outcome
        if outcome is transaction.Outcome.DEAD and not offset_syncs.find_state(
            target, flow.offset_syncs_topic, slot=slot, producer=producer, timeout_ms=flow.connect_timeout_ms
        ):
            return False
    settled_ends(
        target,
        {(flow.offset_syncs_topic, slot): ends[slot] + 1 for slot in producers},
        f"flow {flow.name}: waiting until generation {generation} can be read",
        "The cluster has decided the commit, but not written its markers",
        flow.connect_timeout_ms,
    )
    return True


def _is_bound(added: Beginning, states: Mapping[int, SlotState]) -> bool:
    """Returns True if new positions must not be known without what belongs to them: runs, gaps, or an open flow."""
    return bool(added.inferred or added.gaps or (added.positions and is_closed(states.values())))


def in_incarnations_of(known: Mapping[PartitionKey, Position], added: Beginning) -> Beginning:
    """Returns `added` with the current incarnations of its partitions, or with later ones that it brings itself.

    Earlier resets therefore void neither the new positions nor the new runs.
    """
    numbers = {key: position.incarnation for key, position in known.items()}
    positions = tuple(
        replace(position, incarnation=max(position.incarnation, numbers.get((position.topic, position.partition), 0)))
        for position in added.positions
    )
    inferred = tuple(replace(run, incarnation=numbers.get((run.topic, run.partition), 0)) for run in added.inferred)
    return replace(added, positions=positions, inferred=inferred)


def _by_slot(
    found: Iterable[Part], new: Container[PartitionKey], positions: Mapping[PartitionKey, Position]
) -> dict[int, list[Part]]:
    """Groups runs or gaps of new positions by the slots that own them."""
    by_slot: dict[int, list[Part]] = {}
    for one in found:
        key = one.topic, one.partition
        if key in new:
            by_slot.setdefault(positions[key].slot, []).append(one)
    return by_slot


def _write_all(
    target: Cluster,
    flow: Flow,
    states: Mapping[transaction.Producer, Iterator[SlotState]],
    ends: Mapping[int, int],
) -> bool:
    """Writes the states of each producer in their order, several producers at the same time.

    Returns False if another job has ended one of the transactions.
    """

    async def written(producer: transaction.Producer) -> bool:
        for sequence, state in enumerate(states[producer]):
            try:
                await write_state(target, flow, producer, state, after=ends[state.slot], sequence=sequence)
            except ResponseError as error:
                if error.code in TRANSACTION_OVER:
                    return False
                raise target.explained(
                    f"flow {flow.name}: writing topic {flow.offset_syncs_topic} (needs WRITE)",
                    error,
                    retriable=error.code in ATTEMPT_OVER,
                ) from None
            except WireError as error:
                raise target.explained(
                    f"flow {flow.name}: writing topic {flow.offset_syncs_topic}", error, retriable=True
                ) from None
        return True

    attempts = [partial(written, producer) for producer in states]
    return all(target.net.run(lambda: target.each(attempts, WRITTEN_AT_ONCE)))


def _of(generation: int, states: dict[int, SlotState]) -> list[SlotState]:
    return [state for state in states.values() if state.generation == generation]


def _newest(states: dict[int, SlotState]) -> int:
    return max((state.generation for state in states.values()), default=0)
