"""Changes: states that are written as what a transaction has moved since the state before.

A slot writes a *snapshot*, and then changes. A snapshot has all positions. Changes have the runs and gaps of their
transaction, and those positions that do not follow from them. Each of them names the offset of the snapshot, and how
many states follow it. A reader therefore notices if one is missing.

The opening state of a generation is a snapshot, so changes and their snapshot are of one generation. A slot writes a
new snapshot before a restart would have much to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mirrorlake.errors import TargetError
from mirrorlake.model.gap import RESETS, Gap
from mirrorlake.model.run import Run
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey

MOST_CHANGES = 256  # states that follow a snapshot
MOVES_PER_POSITION = 16  # moves in them for each position and each producer id of the snapshot
MOVES_PER_STATE = 20  # that a state counts for, as it takes about as many bytes beside its moves
LONGEST_MS = 3_600_000  # from a snapshot to a state that names it
KEPT = ("source_cluster_id", "promoted_topics")  # fields that changes have from their snapshot


def as_written(before: SlotState, state: SlotState) -> SlotState:
    """Returns the record to write for a state: its changes since the state before, or itself as a snapshot.

    Args:
        before: the last state of the slot, as it was read.
        state: the state that follows it, with the positions of every partition that the slot owns.
    """
    if before.snapshot < 0 or before.number >= MOST_CHANGES or before.generation != state.generation:
        return state
    if any(getattr(before, name) != getattr(state, name) for name in KEPT):
        return state
    if 0 <= before.snapshot_ms < state.created_ms - LONGEST_MS:
        return state
    known = before.owned()
    known |= moved(known, state.runs, state.gaps)
    own = {(position.topic, position.partition): position for position in state.positions}
    if known.keys() - own.keys():
        return state
    changes = replace(
        state,
        positions=tuple(position for key, position in own.items() if known.get(key) != position),
        source_cluster_id="",
        producer_ids=(),
        promoted_topics=(),
        snapshot=before.snapshot,
        number=before.number + 1,
    )
    most = MOVES_PER_POSITION * (MOVES_PER_STATE + len(state.positions) + len(state.producer_ids))
    return changes if before.moves + _moves(changes) + MOVES_PER_STATE * changes.number <= most else state


def moved(
    positions: Mapping[PartitionKey, Position], runs: Iterable[Run], gaps: Iterable[Gap]
) -> dict[PartitionKey, Position]:
    """Returns the positions that a transaction's runs and gaps lead to: their ends.

    Partitions without a position and those with a reset are left out.
    """
    upstream, downstream = dict[PartitionKey, int](), dict[PartitionKey, int]()
    resets = set[PartitionKey]()
    for gap in gaps:
        key = gap.topic, gap.partition
        if gap.kind in RESETS:
            resets.add(key)
        upstream[key] = max(gap.to_offset, upstream.get(key, 0))
    for run in runs:
        key = run.topic, run.partition
        upstream[key] = max(run.upstream_end, upstream.get(key, 0))
        downstream[key] = max(run.downstream_end, downstream.get(key, 0))
    return {
        key: replace(
            positions[key], upstream_next=offset, downstream_next=downstream.get(key, positions[key].downstream_next)
        )
        for key, offset in upstream.items()
        if key in positions and key not in resets
    }


def whole(topic: str, before: SlotState, changes: Sequence[tuple[int, SlotState]]) -> SlotState:
    """Returns the last state of a slot as it was before it was written: with all its positions.

    Args:
        topic: the offset-syncs topic, for errors.
        before: a state of the slot that is whole.
        changes: the changes that follow it, with their offsets.

    Raises:
        TargetError: a state between them is missing, or they are of another slot or generation.
    """
    if not changes:
        return before
    positions, moves, state, producer_ids = before.owned(), before.moves, before, {*before.producer_ids}
    for offset, following in changes:
        number = state.number + 1
        expected = (before.slot, before.generation, before.snapshot, number)
        found = (following.slot, following.generation, following.snapshot, following.number)
        if _transaction(following) == _transaction(state):
            continue  # another program has repeated it
        producer_ids, state = producer_ids | {state.producer_id}, following
        if found != expected:
            raise TargetError(
                f"{topic}-{before.slot}: the state at offset {offset} is number {state.number} behind the snapshot at "
                f"offset {state.snapshot} (slot {state.slot}, generation {state.generation}), but number {number} "
                f"behind the one at offset {before.snapshot} is expected (slot {before.slot}, generation "
                f"{before.generation}). Records of the topic are missing, or another program has written to it. "
                "Restore the topic, then start the job again"
            )
        positions |= moved(positions, state.runs, state.gaps)
        positions |= {(position.topic, position.partition): position for position in state.positions}
        moves += _moves(state)
    if state is before:
        return before
    return replace(
        state,
        positions=tuple(positions.values()),
        producer_ids=tuple(sorted(producer_ids)),
        moves=moves,
        snapshot_ms=before.snapshot_ms,
        **{name: getattr(before, name) for name in KEPT},
    )


def whole_states(topic: str, records: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, SlotState]]:
    """Yields every state of a slot whole, with its offset.

    Args:
        topic: the offset-syncs topic, for errors.
        records: the committed records of the slot's partition, with their offsets, from a snapshot on.

    Raises:
        TargetError: a version that this one can't read has written a record, or one is missing.
    """
    before: SlotState | None = None
    for offset, value in records:
        state = SlotState.from_json(value)
        if state.number and before is None:
            raise TargetError(
                f"{topic}-{state.slot}: the first state that is left, at offset {offset}, has changes since the "
                f"snapshot at offset {state.snapshot}, which is missing. Restore the topic"
            )
        before = whole(topic, before, [(offset, state)]) if state.number and before else as_snapshot(offset, state)
        yield offset, before


def as_snapshot(offset: int, state: SlotState) -> SlotState:
    """Returns a snapshot as it is read at an offset."""
    return replace(state, snapshot=offset, snapshot_ms=state.created_ms)


def _transaction(state: SlotState) -> tuple[int, int, int]:
    return state.number, state.producer_id, state.producer_epoch


def _moves(state: SlotState) -> int:
    return len(state.positions) + len(state.runs) + len(state.gaps)
