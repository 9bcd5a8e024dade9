"""The newest part of a flow's map, in memory: most groups stand near the end of a log, and their places are found here without a query.

Of each partition it holds the last runs, as far back as runs and gaps follow each other without a hole. What does not fit (a log that was reset, two accounts of one
offset) makes it forget, and it does not answer about what it does not hold: then the ledger is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from mirrorlake.gap import RESETS
from mirrorlake.run import Run
from mirrorlake.slot import SlotState
from mirrorlake.wire import Key

KEPT_RUNS = 200_000  # of all partitions, some 50 MB


@dataclass(frozen=True, slots=True)
class Nearby:
    """What a map says about an offset: the first run that ends after it, None if none does, and the last run of its partition."""

    run: Run | None
    last: Run


@dataclass
class _Window:
    """Runs of one partition in order; each offset from the first one's start to `covered_to` is in one of them, or in a gap."""

    incarnation: int
    runs: list[Run] = field(default_factory=list)
    covered_to: int = 0


class RecentRuns:
    """The last runs of all partitions of a flow.

    Attributes:
        version: another one whenever what the map has said before may not hold any more: after a reset, a rebuilt map, a new generation.
    """

    def __init__(self, kept_runs: int = KEPT_RUNS) -> None:
        self.version = 0
        self._kept_runs = kept_runs
        self._generation = 0
        self._windows: dict[Key, _Window] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._windows.clear()
        self.version += 1

    def add(self, states: Iterable[SlotState]) -> None:
        """Takes in states as they were committed."""
        for state in states:
            if state.inferred or state.generation != self._generation:
                self._generation = state.generation
                self.version += 1
            pieces: list[tuple[Key, int, int, int, Run | None]] = []
            for gap in state.gaps:
                key = (gap.topic, gap.partition)
                if gap.kind in RESETS:
                    self._windows[key] = _Window(gap.incarnation + 1)
                    self.version += 1
                else:
                    pieces.append((key, gap.incarnation, gap.from_offset, gap.to_offset, None))
            pieces += [((run.topic, run.partition), run.incarnation, run.upstream_start, run.upstream_end, run) for run in state.runs]
            for piece in sorted(pieces, key=lambda piece: piece[:4]):
                self._extend(*piece)

    def near(self, key: Key, offset: int) -> Nearby | None:
        """What the map says about an offset of a partition; None if that is not known here."""
        window = self._windows.get(key)
        if window is None or not window.runs or offset < window.runs[0].upstream_start:
            return None
        at = bisect_right(window.runs, offset, key=attrgetter("upstream_end"))
        return Nearby(window.runs[at] if at < len(window.runs) else None, window.runs[-1])

    def _extend(self, key: Key, incarnation: int, start: int, end: int, run: Run | None) -> None:
        window = self._windows.get(key)
        if window is not None and incarnation < window.incarnation:
            return  # void since
        if window is None or incarnation > window.incarnation or start > window.covered_to:
            window = self._windows[key] = _Window(incarnation)
        if window.runs and start < window.covered_to:
            if end > window.runs[0].upstream_start:  # two accounts of one offset; what lies further back is of no use here
                self._windows[key] = _Window(incarnation)
            return
        if run is not None:
            window.runs.append(run)
        window.covered_to = end
        if len(window.runs) > max(2, self._kept_runs // len(self._windows)):
            del window.runs[: len(window.runs) // 2]
