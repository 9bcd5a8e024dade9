"""The target of the model: the transaction coordinator, and the committed states of all slots."""

from __future__ import annotations

from tools.protocol.invariant import Invariant
from tools.protocol.world import KEPT_STATES, Rule, Scope, Slot, State, Transaction, World, broken


def put(world: World, slot: int, changed: Slot) -> World:
    return world._replace(slots=(*world.slots[:slot], changed, *world.slots[slot + 1 :]))


def last(world: World, slot: int) -> State | None:
    """Returns the last committed state of a slot."""
    states = world.slots[slot].states
    return states[-1] if states else None


def all_last(world: World) -> tuple[State | None, ...]:
    return tuple(last(world, slot) for slot in range(len(world.slots)))


def begin(scope: Scope, world: World, slot: int) -> tuple[World, int] | None:
    """InitProducerId: aborts what is open, and gives a new epoch; None while it has to wait."""
    known = world.slots[slot]
    if scope.has(Rule.SETTLE) and any(one.is_decided for one in known.open):
        return None
    still_open = tuple(one for one in known.open if one.is_decided or not scope.has(Rule.FENCE))
    return put(world, slot, known._replace(epoch=known.epoch + 1, open=still_open)), known.epoch + 1


def produce(
    scope: Scope, world: World, slot: int, epoch: int, write: tuple[int, int] | None = None, state: State | None = None
) -> World | None:
    """Produce in the transaction of an epoch; None if it is rejected."""
    known = world.slots[slot]
    if scope.has(Rule.FENCE) and epoch != known.epoch:
        return None
    mine = next((one for one in known.open if one.epoch == epoch), Transaction(epoch))
    others = tuple(one for one in known.open if one.epoch != epoch)
    mine = mine._replace(writes=(*mine.writes, write) if write else mine.writes, state=state or mine.state)
    return put(world, slot, known._replace(open=(*others, mine)))


def end(scope: Scope, world: World, slot: int, epoch: int, *, commit: bool) -> tuple[World, bool]:
    """EndTxn; returns True if the coordinator answers that the transaction has ended as requested.

    It accepts a repetition by the same epoch, and rejects an earlier epoch.
    """
    known = world.slots[slot]
    if scope.has(Rule.FENCE) and epoch != known.epoch:
        return world, False
    found = next((one for one in known.open if one.epoch == epoch), None)
    if found is None:
        state = last(world, slot)
        return world, commit == (state is not None and state.epoch == epoch)
    rest = tuple(one for one in known.open if one.epoch != epoch)
    if commit:
        return put(world, slot, known._replace(open=(*rest, found._replace(is_decided=True)))), True
    return (world, False) if found.is_decided else (put(world, slot, known._replace(open=rest)), True)


def settle(world: World, slot: int, transaction: Transaction) -> World:
    """Writes the markers of a decided transaction, so that its records and its state can be read."""
    known, state = world.slots[slot], transaction.state
    rest = tuple(one for one in known.open if one is not transaction)
    visible = list(world.visible)
    for partition, record in transaction.writes:
        visible[partition] = (*visible[partition], record)
    states = (*known.states, state)[-KEPT_STATES:] if state else known.states
    return put(world, slot, known._replace(open=rest, states=states))._replace(visible=tuple(visible))


def decided(world: World, slot: int, transaction: Transaction) -> World:
    """Checks a transaction at the moment when the coordinator decides its commit."""
    before, state = last(world, slot), transaction.state
    if state is not None and before is not None and state.generation < before.generation:
        world = broken(
            world,
            Invariant.GENERATIONS,
            f"slot {slot} goes back from generation {before.generation} to {state.generation}",
        )
    generation = state.generation if state else 0
    for partition, _ in transaction.writes:
        if partition in world.promoted and not world.has_forgotten:
            return broken(world, Invariant.CLOSED, f"partition {partition} was promoted, and is copied")
    if transaction.writes and generation < world.opened[0] and not world.has_forgotten:
        return broken(
            world,
            Invariant.FENCED,
            f"generation {generation} copies records in slot {slot} after generation {world.opened[0]} was opened",
        )
    return world
