"""The positions of a flow, merged from the states of its slots, and kept in step with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mirrorlake.model.slot import Position, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey


class MergedPositions:
    """What `merge_positions` returns for the last states of all slots, with little work where little has changed.

    In a generation that every slot has opened, each slot's state has the furthest positions of the slot's own
    partitions. If a new state still has all of them, and none is behind, the other states need no look. All states are
    merged anew in every other case: another generation, a slot that went back, a position that is missing or has moved.
    """

    def __init__(self) -> None:
        self._states: dict[int, SlotState] = {}
        self._positions: dict[PartitionKey, Position] = {}
        self._owned = Counter[int]()  # partitions of each slot; empty if states have to be merged anew

    def of(self, states: Mapping[int, SlotState]) -> Mapping[PartitionKey, Position]:
        """Returns the merged positions of states, by topic and partition; a later call changes the same mapping.

        Args:
            states: the last state of each slot; the same object for a state that has not changed.
        """
        known = self._states
        changed = [state for slot, state in states.items() if known.get(slot) is not state]
        if changed or len(states) != len(known):
            if not (states.keys() == known.keys() and self._owned and all(map(self._follows, changed))):
                self._positions = merge_positions(states.values())
                self._owned = self._count_owned(states)
            self._states = dict(states)
        return self._positions

    def _follows(self, state: SlotState) -> bool:
        """Takes over the positions of a slot's new state; returns False if all states have to be merged."""
        slot, merged = state.slot, self._positions
        if state.generation != self._states[slot].generation:
            return False
        moved, before = dict[PartitionKey, Position](), 0
        for position in state.positions:
            key = position.topic, position.partition
            known = merged.get(key)
            before += known is not None
            if known is position:
                continue
            if position.slot != slot or (known is not None and (known.slot != slot or position.order < known.order)):
                return False
            moved[key] = position
        if before != self._owned[slot]:
            return False
        merged.update(moved)
        self._owned[slot] = len(state.positions)
        return True

    def _count_owned(self, states: Mapping[int, SlotState]) -> Counter[int]:
        """Counts the partitions of each slot, if the slot's own state has the furthest position of each of them."""
        if len({state.generation for state in states.values()}) > 1:
            return Counter()
        owned = Counter(position.slot for position in self._positions.values())
        for slot, state in states.items():
            own = state.owned()
            if len(own) != owned[slot] or any(self._positions[key].order != one.order for key, one in own.items()):
                return Counter()
            owned[slot] += 0  # a slot without partitions is known, too
        return owned if owned.keys() == states.keys() else Counter()
