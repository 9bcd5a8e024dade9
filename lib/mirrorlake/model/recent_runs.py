"""The newest part of a flow's offset map, in memory.

Most groups read near the end of a log. Their offsets are translated here, without a query.

For each partition, the last runs are kept, as far back as runs and gaps follow each other without a hole. A lookup
succeeds only if they reach exactly to the flow's position in the partition, in the same incarnation and on both sides.
No run is missing at the end then.

The runs of a partition are dropped when they are inconsistent: after a reset, two entries for one offset, or states in
another order. For everything that is not kept, the jobs query the ledger.
"""

from __future__ import annotations

from array import array
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


def _offsets() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class Nearby:
    """The result of a lookup in the map.

    `run` is the first run that ends after the offset, None if there is none. `last` is the last run of the partition.
    """

    run: RunOffsets | None
    last: RunOffsets


@dataclass(slots=True)
class _Window:
    """Runs of one partition in order: their offsets, in arrays of 32 bytes for a run.

    Each offset from the start of the first run to `covered_to` is in a run or in a gap.
    """

    incarnation: int
    covered_to: int = 0
    upstream_start: array[int] = field(default_factory=_offsets)
    upstream_end: array[int] = field(default_factory=_offsets)
    downstream_start: array[int] = field(default_factory=_offsets)
    downstream_end: array[int] = field(default_factory=_offsets)

    def __len__(self) -> int:
        return len(self.upstream_end)

    def __getitem__(self, number: int) -> RunOffsets:
        return RunOffsets(*(column[number] for column in self._columns))

    def append(self, run: RunOffsets) -> None:
        for column, offset in zip(self._columns, run, strict=True):
            column.append(offset)

    def drop(self, count: int) -> None:
        """Drops the first runs."""
        for column in self._columns:
            del column[:count]

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self.upstream_start, self.upstream_end, self.downstream_start, self.downstream_end

    def reaches(self, position: Position) -> bool:
        """Returns True if the window holds the end of the map, up to the position."""
        here = (self.incarnation, self.covered_to, self.downstream_end[-1] if self else None)
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
        if position is None or window is None or not window.reaches(position) or offset < window.upstream_start[0]:
            return None
        at = bisect_right(window.upstream_end, offset)
        return Nearby(window[at] if at < len(window) else None, window[-1])

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
        if window and start < window.covered_to:
            if end > window.upstream_start[0]:
                window.drop(len(window))  # two entries for one offset: neither is trustworthy
            return
        if window and start > window.covered_to:
            window.drop(len(window))  # a hole: runs before it are useless
        if run is not None:
            window.append(run)
        window.covered_to = end
        if len(window) > max(2, self._kept_runs // len(self._windows)):
            window.drop(len(window) // 2)
