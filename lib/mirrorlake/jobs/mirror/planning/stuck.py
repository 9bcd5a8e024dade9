"""Partitions that hold back only themselves: those without a leader, and those of a slot that keeps failing.

A micro-batch ends with its slowest slot. A slot whose attempts fail, for example after the timeout of a request, would
slow all others down. While the others make progress, such a slot rests, longer each time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.reasons import PartitionHeld

SILENT_S = 5.0  # elections take less
FIRST_REST_S, LONGEST_REST_S = 1.0, 300.0
MOST_DOUBLINGS = 30  # the longest rest is reached before; 2**1024 is no float, and 1,024 attempts take days

TURN_S = 6.0  # for each partition of a slot: so many times four responses a second give each one a turn, surely

MARKERS_S, MARKER_POLL_S = 0.25, 0.003

Identity = tuple[int, int, int]
States = tuple[dict[int, SlotState], dict[int, int]]


@dataclass
class Failing:
    """A slot whose state has not changed since it was planned.

    Attributes:
        since: the time of its first plan without a result, on the monotonic clock.
        since_text: the same time, for people.
        attempts: the number of such plans.
        rests_until: the time of the next attempt.
    """

    since: float
    since_text: str
    attempts: int = 0
    rests_until: float = 0.0


class StuckPartitions:
    """What one planner knows about partitions that don't advance.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[PartitionKey, tuple[float, str]] = {}  # since when, and the first error
        self._failing: dict[int, Failing] = {}
        self._planned: dict[int, Identity] = {}
        self._starts: dict[PartitionKey, tuple[int, float, str]] = {}  # of the last plan: offset, since when
        self._committed: Set[int] = set()  # of them
        self._began: dict[PartitionKey, int] = {}  # where the last plan that had a partition began it
        self._others_advance = False

    # -- leaders ------------------------------------------------------------------------------------

    @property
    def is_electing(self) -> bool:
        """Returns True while a leader has been silent for no longer than an election takes."""
        return any(self._clock() < since + SILENT_S for since, _ in self._silent.values())

    def silent(self, failed: Mapping[PartitionKey, str]) -> dict[PartitionKey, str]:
        """Returns the reasons of the partitions whose leader has not answered for SILENT_S.

        A reason stays the same while the leader is silent, though errors differ, so that it is recorded once.

        Args:
            failed: the reasons of all partitions without an answer now.
        """
        now = self._clock()
        self._silent = {key: self._silent.get(key, (now, why)) for key, why in failed.items()}
        return {
            key: PartitionHeld.NO_LEADER.about(topic=key[0], partition=key[1], error=why)
            for key, (since, why) in self._silent.items()
            if now >= since + SILENT_S
        }

    # -- slots --------------------------------------------------------------------------------------

    def committed(self, slots: Set[int], waited: Set[int] = frozenset()) -> None:
        """Notes which of the slots that were planned last were committed, and which have waited for a rate or a quota.

        The latter have not failed: they are tried again with the next plan.
        """
        self._committed = slots
        self._planned = {slot: before for slot, before in self._planned.items() if slot not in waited}

    def read(self, read: Callable[[], States], wait: Callable[[float], object] = time.sleep) -> States:
        """Reads the states of all slots until they hold what was committed, or MARKERS_S have passed.

        A coordinator answers EndTxn before the markers are in the logs, mostly by a few milliseconds. Without them, a
        slot looks as if it had failed, and a plan names offsets that were copied already.

        Args:
            read: reads the states, and the ends up to which they were read.
            wait: waits for so many seconds.
        """
        until = self._clock() + MARKERS_S
        while self._is_behind(found := read()) and self._clock() < until:
            wait(MARKER_POLL_S)
        return found

    def _is_behind(self, found: States) -> bool:
        states, _ = found
        return any(slot in states and _identity(states[slot]) == self._planned.get(slot) for slot in self._committed)

    def observe(self, states: Mapping[int, SlotState]) -> None:
        """Compares the states of the slots that were planned last with what they were."""
        now, advanced = self._clock(), False
        has_others = bool(self._planned.keys() - self._failing.keys())
        for slot, before in self._planned.items():
            if slot not in states or _identity(states[slot]) != before:
                self._failing.pop(slot, None)
                advanced = True
                continue
            failing = self._failing.setdefault(slot, Failing(since=now, since_text=_now()))
            failing.attempts += 1
            doublings = min(failing.attempts - 1, MOST_DOUBLINGS)
            failing.rests_until = now + min(LONGEST_REST_S, FIRST_REST_S * 2**doublings)
        if advanced or has_others:  # a slot that is tried alone after its rest says nothing of the others
            self._others_advance = advanced

    def failing(
        self, ranges: Collection[Range], after_s: float, has_rate: Callable[[str], bool] = lambda topic: False
    ) -> dict[PartitionKey, str]:
        """Returns the reasons of the partitions that have not advanced for `after_s` seconds, of all that should.

        With a rate, an attempt reads from a few partitions of its slot, drawn at random: many take longer to have their
        turn.

        Args:
            ranges: what is to be copied.
            after_s: the seconds.
            has_rate: tells whether an operator has limited the rate of a topic.
        """
        now, starts, reasons = self._clock(), {}, {}
        of_slot = Counter(planned.slot for planned in ranges)
        late = {slot: one for slot, one in self._failing.items() if now >= one.since + after_s}
        for planned in ranges:
            key = planned.topic, planned.partition
            start, since, text = self._starts.get(key, (-1, now, ""))
            starts[key] = (start, since, text) if start == planned.start else (planned.start, now, _now())
            if planned.slot in late:
                reasons[key] = PartitionHeld.SLOT_FAILS.about(slot=planned.slot, since=late[planned.slot].since_text)
                continue
            turns_s = TURN_S * of_slot[planned.slot] if has_rate(planned.topic) else 0.0
            if start == planned.start and now >= since + max(after_s, turns_s):
                reasons[key] = PartitionHeld.STANDS_STILL.about(offset=start, since=text)
        self._starts = starts
        return reasons

    @property
    def failing_slots(self) -> Set[int]:
        """Returns the slots whose last plan had no result."""
        return self._failing.keys()

    @property
    def resting(self) -> set[int]:
        """Returns the slots that have failed and rest, while others advance."""
        now = self._clock()
        return {slot for slot, one in self._failing.items() if now < one.rests_until and self._others_advance}

    def planned(
        self, ranges: list[Range], states: Mapping[int, SlotState], lingering: Set[int] = frozenset()
    ) -> list[Range]:
        """Leaves out the slots that rest, while others advance; returns what is to be copied now.

        Args:
            ranges: what a plan would copy.
            states: the states of all slots.
            lingering: slots with partitions that linger. If others than those that rest have some, nobody is tried in
                their place: they would wait for the attempt, too.
        """
        resting = self.resting
        chosen = [planned for planned in ranges if planned.slot not in resting]
        if not (chosen or lingering - resting):
            chosen = ranges
        self._planned = {slot: _identity(states[slot]) for slot in {one.slot for one in chosen} if slot in states}
        self._committed = set()
        return chosen

    def begins_again(self, ranges: Iterable[Range]) -> bool:
        """Notes where a plan begins its partitions; returns True if the last plan that had one began it there, too.

        That may be some plans ago: slots rest, and a backfill takes turns with other topics.
        """
        begins = {(one.topic, one.partition): one.start for one in ranges}
        is_again = any(self._began.get(key) == start for key, start in begins.items())
        self._began |= begins
        return is_again


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _identity(state: SlotState) -> Identity:
    return state.generation, state.producer_id, state.producer_epoch
