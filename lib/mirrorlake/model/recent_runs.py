"""The newest part of a flow's map, in memory: most groups stand near the end of a log, and their places are found here
without a query.

Of each partition it holds the last runs, as far back as runs and gaps follow each other without a hole. It answers only
where they reach exactly to the flow's own position in
the partition, in the same incarnation and on both sides: then nothing is missing at their end. What does not fit (a log
that was reset, two accounts of one offset, states that come in another order) makes it forget, and about what it does
not hold the ledger is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from mirrorlake.model.gap import RESETS
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey

KEPT_RUNS = 200_000  # of all partitions together, about


class RunOffsets(NamedTuple):
    """A run, without all else that is known of it."""

    upstream_start: int
    upstream_end: int
    downstream_start: int
    downstream_end: int


@dataclass(frozen=True, slots=True)
class Nearby:
    """What a map says about an offset: the first run that ends after it, None if none does, and the last run of its
    partition."""

    run: RunOffsets | None
    last: RunOffsets


@dataclass(slots=True)
class _Window:
    """Runs of one partition in order; each offset from the first one's start to `covered_to` is in one of them, or in a
    gap."""

    incarnation: int
    runs: list[RunOffsets] = field(default_factory=list)
    covered_to: int = 0

    def reaches(self, position: Position) -> bool:
        """True if this is all of the map up to the position."""
        here = (self.incarnation, self.covered_to, self.runs[-1].downstream_end if self.runs else None)
        return here == (position.incarnation, position.upstream_next, position.downstream_next)


class RecentRuns:
    """The last runs of all partitions of a flow.

    Attributes:
        version: another one whenever what the map has said before may not hold any more: after a reset, a rebuilt map,
            a new generation.
    """

    def __init__(self, kept_runs: int = KEPT_RUNS) -> None:
        self.version = 0
        self._kept_runs = kept_runs
        self._generation = 0
        self._windows: dict[PartitionKey, _Window] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._windows.clear()
        self.version += 1

    def add(self, states: Iterable[SlotState]) -> None:
        """Takes in states, in the order of each slot."""
        for state in sorted(
            states, key=attrgetter("generation")
        ):  # a partition has one slot in a generation, so this is the order of each partition, too
            if state.inferred or state.generation != self._generation:
                self._generation = state.generation
                self.version += 1
            pieces: list[tuple[PartitionKey, int, int, int, RunOffsets | None]] = []
            for gap in state.gaps:
                key = (gap.topic, gap.partition)
                if gap.kind in RESETS:
                    self._begin(key, gap.incarnation + 1)
                else:
                    pieces.append((key, gap.incarnation, gap.from_offset, gap.to_offset, None))
            for run in state.runs:
                offsets = RunOffsets(run.upstream_start, run.upstream_end, run.downstream_start, run.downstream_end)
                pieces.append(
                    ((run.topic, run.partition), run.incarnation, run.upstream_start, run.upstream_end, offsets)
                )
            for piece in sorted(pieces, key=lambda piece: piece[:4]):
                self._extend(*piece)

    def near(self, position: Position | None, offset: int) -> Nearby | None:
        """What the map says about an offset of a partition; None if that is not known here.

        Args:
            position: how far the flow has come in the partition, by the newest states; None if it has not begun.
        """
        window = self._windows.get((position.topic, position.partition)) if position else None
        if position is None or window is None or not window.reaches(position) or offset < window.runs[0].upstream_start:
            return None
        at = bisect_right(window.runs, offset, key=attrgetter("upstream_end"))
        return Nearby(window.runs[at] if at < len(window.runs) else None, window.runs[-1])

    def _begin(self, key: PartitionKey, incarnation: int) -> _Window:
        """A log was set back or replaced: what is held of it is void, unless that is known. Returns what is held
        now."""
        self.version += 1
        window = self._windows.get(key)
        if window is None or window.incarnation < incarnation:
            window = self._windows[key] = _Window(incarnation)
        return window

    def _extend(self, key: PartitionKey, incarnation: int, start: int, end: int, run: RunOffsets | None) -> None:
        window = self._windows.setdefault(key, _Window(incarnation))
        if window.incarnation < incarnation:
            window = self._begin(key, incarnation)
        if incarnation < window.incarnation:
            return  # void since
        if window.runs and start < window.covered_to:
            if end > window.runs[0].upstream_start:
                window.runs.clear()  # two accounts of one offset, neither of which is believed
            return
        if window.runs and start > window.covered_to:
            window.runs.clear()  # a hole: what is before it is of no use
        if run is not None:
            window.runs.append(run)
        window.covered_to = end
        if len(window.runs) > max(2, self._kept_runs // len(self._windows)):
            del window.runs[: len(window.runs) // 2]
