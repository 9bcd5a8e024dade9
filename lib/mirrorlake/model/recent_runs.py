"""The newest part of a flow's offset map, in memory.

Most groups read near the end of a log. Their offsets are translated here, without a query.

For each partition, the last runs are kept, as far back as runs and gaps follow each other without a hole. A lookup
succeeds only if they reach exactly to the flow's position in the partition, in the same incarnation and on both sides.
No run is missing at the end then.

The runs of a partition are dropped when they are inconsistent: after a reset, two entries for one offset, or states in
another order. For everything that is not kept, the jobs query the ledger.
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

KEPT_RUNS = 200_000  # approximately, of all partitions together


class RunOffsets(NamedTuple):
    """The four offsets of a run."""

    upstream_start: int
    upstream_end: int
    downstream_start: int
    downstream_end: int


@dataclass(frozen=True, slots=True)
class Nearby:
    """The result of a lookup in the map.

    `run` is the first run that ends after the offset, None if there is none. `last` is the last run of the partition.
    """

    run: RunOffsets | None
    last: RunOffsets


@dataclass(slots=True)
class _Window:
    """Runs of one partition in order.

    Each offset from the start of the first run to `covered_to` is in a run or in a gap.
    """

    incarnation: int
    runs: list[RunOffsets] = field(default_factory=list)
    covered_to: int = 0

    def reaches(self, position: Position) -> bool:
        """Returns True if the window holds the end of the map, up to the position."""
        here = (self.incarnation, self.covered_to, self.runs[-1].downstream_end if self.runs else None)
        return here == (position.incarnation, position.upstream_next, position.downstream_next)


class RecentRuns:
    """The last runs of all partitions of a flow.

    Attributes:
        version: a number that changes whenever earlier answers may be invalid: after a reset, a rebuilt
            map, a new generation.
    """

    def __init__(self, kept_runs: int = KEPT_RUNS) -> None:
        self.version = 0
        self._kept_runs = kept_runs
        self._generation = 0
        self._windows: dict[PartitionKey, _Window] = {}

    def clear(self) -> None:
        """Drops all runs."""
        self._windows.clear()
        self.version += 1

    def add(self, states: Iterable[SlotState]) -> None:
        """Adds the runs and gaps of states, in the order of each slot."""
        for state in sorted(
            states, key=attrgetter("generation")
        ):  # a partition has one slot in a generation, so each partition's states are in order, too
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
        """Looks up an offset of a partition; returns None if the window does not cover it.

        Args:
            position: the flow's position in the partition, by the newest states; None if it has none.
            offset: the upstream offset.
        """
        window = self._windows.get((position.topic, position.partition)) if position else None
        if position is None or window is None or not window.reaches(position) or offset < window.runs[0].upstream_start:
            return None
        at = bisect_right(window.runs, offset, key=attrgetter("upstream_end"))
        return Nearby(window.runs[at] if at < len(window.runs) else None, window.runs[-1])

    def _begin(self, key: PartitionKey, incarnation: int) -> _Window:
        """Voids the runs of a partition after a reset, unless they are of that incarnation; returns its window."""
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
            return  # a later reset has voided it
        if window.runs and start < window.covered_to:
            if end > window.runs[0].upstream_start:
                window.runs.clear()  # two entries for one offset: neither is trustworthy
            return
        if window.runs and start > window.covered_to:
            window.runs.clear()  # a hole: runs before it are useless
        if run is not None:
            window.runs.append(run)
        window.covered_to = end
        if len(window.runs) > max(2, self._kept_runs // len(self._windows)):
            del window.runs[: len(window.runs) // 2]
