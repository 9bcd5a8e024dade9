"""The verdict about a series of samples: does it grow?

A series is judged by the slope of Theil and Sen (the median of the slopes between all pairs of points), which single
outliers don't move, with Sen's 95 % confidence interval (Sen 1968). Neighbouring samples depend on each other. So a
point stands for a window of time: its median, or its floor where work and garbage come and go above one. A leak raises
the floor.

- *flat*: the whole interval is at or below the limit.
- *grows*: the whole interval is above the limit.
- *step*: the series is flat without its largest lasting rise between two points, which is five times as large as the
  usual change at least. A cache that fills once, or a heap that is enlarged once, is no leak; several steps are. A rise
  lasts as far as the points after it are above those before it; a peak does not, nor does the way out of a dip.
- *undecided*: the run was too short, or too noisy, to tell, or the series ends before the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import median

MINUTE_S, HOUR_S = 60.0, 3600.0
FEWEST_POINTS = 8  # windows after the warm-up
NEARLY_NOTHING = 0.1  # of a window, which may be missing at the end of the run
LATEST_WINDOWS = 3  # before the end of the run, in which a series must have a value
BELOW_FLOOR = 0.1  # of the values of a window: a process may be missed, and a broker's restart ends connections
CONFIDENCE = 1.96  # standard deviations
STEP = 5  # times the usual change between two points
LASTING = 3  # points on either side of a rise, whose medians say how far it lasts


class Verdict(StrEnum):
    """Whether a series grows."""

    FLAT = "flat"
    STEP = "step"
    GROWS = "grows"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """The verdict about a series.

    Attributes:
        slope: growth in an hour.
        low: the lower end of its confidence interval.
        high: the upper end.
        judged: the points, as times in seconds and values.
        step: the largest lasting rise between two points.
    """

    verdict: Verdict
    slope: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    judged: tuple[tuple[float, float], ...] = ()
    step: float = 0.0

    @property
    def points(self) -> int:
        """The number of points."""
        return len(self.judged)


Point = Callable[[Sequence[float]], float]  # of the values of a window


def judge(
    samples: Sequence[tuple[float, float]],
    limit: float,
    warm_up_s: float,
    window_s: float = MINUTE_S,
    point: Point = median,
    end_s: float = 0.0,
) -> Judgement:
    """Judges one series.

    Args:
        samples: times in seconds from the start, and values.
        limit: the growth in an hour that is allowed.
        warm_up_s: the time from the start that is left out.
        window_s: the length of a window.
        point: makes the point of a window of its values.
        end_s: the end of the run; 0 for that of the samples.
    """
    points = by_window([sample for sample in samples if sample[0] >= warm_up_s], window_s, point, warm_up_s)
    last_s = samples[-1][0] if samples else 0.0
    if points and (end_s or last_s) < points[-1][0] + (0.5 - NEARLY_NOTHING) * window_s:
        points.pop()  # a part of a window has no floor
    if len(points) < FEWEST_POINTS or last_s < end_s - LATEST_WINDOWS * window_s:
        return Judgement(Verdict.UNDECIDED, judged=tuple(points))
    slope, low, high = growth(points)
    values = [value for _, value in points]
    usual = median(abs(after - before) for before, after in pairwise(values))
    step, first = max((_lasting(values, number), number) for number in range(1, len(values)))
    verdict = _verdict(low, high, limit)
    if verdict is not Verdict.FLAT and step > STEP * usual:
        _, _, highest = growth(
            [(time, value - step * (number >= first)) for number, (time, value) in enumerate(points)]
        )
        verdict = Verdict.STEP if highest <= limit else verdict
    return Judgement(verdict, slope, low, high, tuple(points), step)


def floor(values: Sequence[float]) -> float:
    """Returns the lower decile."""
    return sorted(values)[int(BELOW_FLOOR * len(values))]


def by_window(
    samples: Sequence[tuple[float, float]], window_s: float = MINUTE_S, point: Point = median, from_s: float = 0.0
) -> list[tuple[float, float]]:
    """Returns the point of each window, at the middle of the window; the first one begins at `from_s`."""
    windows: dict[int, list[float]] = defaultdict(list)
    for time, value in samples:
        windows[int((time - from_s) // window_s)].append(value)
    return [(from_s + (number + 0.5) * window_s, point(values)) for number, values in sorted(windows.items())]


def growth(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Returns the slope in an hour, and the ends of its confidence interval."""
    slopes = sorted(
        HOUR_S * (after - before) / (later - earlier)
        for (earlier, before), (later, after) in combinations(sorted(points), 2)
    )
    count = len(points)
    deviation = CONFIDENCE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low, high = math.floor((len(slopes) - deviation) / 2), math.ceil((len(slopes) + deviation) / 2)
    return median(slopes), slopes[max(0, low)], slopes[min(len(slopes) - 1, high)]


def _lasting(values: Sequence[float], number: int) -> float:
    """Returns the rise from the value before to the one of that number, as far as it lasts."""
    before, after = values[max(0, number - LASTING) : number], values[number : number + LASTING]
    return min(after[0] - before[-1], median(after) - median(before))


def _verdict(low: float, high: float, limit: float) -> Verdict:
    if high <= limit:
        return Verdict.FLAT
    return Verdict.GROWS if low > limit else Verdict.UNDECIDED
