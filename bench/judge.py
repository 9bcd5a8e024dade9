"""The verdict about a series of samples: does it grow?

A series is judged by the slope of Theil and Sen (the median of the slopes between all pairs of points), which single
outliers don't move, with Sen's 95 % confidence interval (Sen 1968). The points are medians of a minute, because
neighbouring samples depend on each other.

- *flat*: the whole interval is at or below the limit.
- *grows*: the whole interval is above the limit.
- *step*: the series is flat without its largest rise between two minutes, which is five times as large as the usual
  change at least. A cache that fills once, or a heap that is enlarged once, is no leak; several steps are.
- *undecided*: the run was too short, or too noisy, to tell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import median

MINUTE_S, HOUR_S = 60.0, 3600.0
FEWEST_POINTS = 8  # minutes after the warm-up
CONFIDENCE = 1.96  # standard deviations
STEP = 5  # times the usual change between two minutes


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
        points: the minutes that were judged.
        step: the largest rise between two minutes.
    """

    verdict: Verdict
    slope: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    points: int = 0
    step: float = 0.0


def judge(samples: Sequence[tuple[float, float]], limit: float, warm_up_s: float) -> Judgement:
    """Judges one series.

    Args:
        samples: times in seconds from the start, and values.
        limit: the growth in an hour that is allowed.
        warm_up_s: the time from the start that is left out.
    """
    points = by_minute([sample for sample in samples if sample[0] >= warm_up_s])
    if len(points) < FEWEST_POINTS:
        return Judgement(Verdict.UNDECIDED, points=len(points))
    slope, low, high = growth(points)
    rises = [(after - before, time) for (_, before), (time, after) in pairwise(points)]
    step, at = max(rises)
    verdict = _verdict(low, high, limit)
    if verdict is not Verdict.FLAT and step > STEP * median(abs(rise) for rise, _ in rises):
        without = [(time, value - step * (time >= at)) for time, value in points]
        _, _, highest = growth(without)
        verdict = Verdict.STEP if highest <= limit else verdict
    return Judgement(verdict, slope, low, high, len(points), step)


def by_minute(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the median of each minute, at the middle of the minute."""
    minutes: dict[int, list[float]] = defaultdict(list)
    for time, value in samples:
        minutes[int(time // MINUTE_S)].append(value)
    return [((minute + 0.5) * MINUTE_S, median(values)) for minute, values in sorted(minutes.items())]


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


def _verdict(low: float, high: float, limit: float) -> Verdict:
    if high <= limit:
        return Verdict.FLAT
    return Verdict.GROWS if low > limit else Verdict.UNDECIDED
