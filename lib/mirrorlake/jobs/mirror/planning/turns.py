"""Lets a backfill and the other topics take turns where one micro-batch of both would hold the others up."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from mirrorlake.config.flow import Flow
from mirrorlake.model.copy_plan import Range, fair_share

BACKFILL_TRANSFORMED = 20_000  # offsets, which Spark reads in about a second


class Turns:
    """The turns of one planner."""

    def __init__(self) -> None:
        self._is_of_backfill = False

    def taken(self, flow: Flow, ranges: list[Range], resting: Set[int] = frozenset()) -> list[Range]:
        """Leaves out either the backfill or the other topics, in turns, if any of them has a transform.

        Transformed records come in the order of their topics, all behind what is copied as it is. So a backfill would
        take the time of a micro-batch first, and all would wait until Spark has read it. Without a transform, a slot
        copies its other topics first.

        Args:
            flow: flow of the topics.
            ranges: what a plan would copy.
            resting: slots that failed and rest, and have no turn while others have something to copy.
        """
        ranges = [one for one in ranges if one.slot not in resting] or ranges
        backfill = [one for one in ranges if flow.is_backfill(one.topic)]
        others = [one for one in ranges if not flow.is_backfill(one.topic)]
        if not (backfill and others and any(flow.transform_of(one.topic) for one in ranges)):
            self._is_of_backfill = False
            return ranges
        turn, self._is_of_backfill = self._is_of_backfill, not self._is_of_backfill
        return _short(flow, backfill) if turn else others


def _short(flow: Flow, ranges: list[Range]) -> list[Range]:
    """Shortens the ranges of topics with a transform, which Spark reads as a whole, to BACKFILL_TRANSFORMED."""
    most = fair_share([one.end - one.start for one in ranges if flow.transform_of(one.topic)], BACKFILL_TRANSFORMED)
    return [replace(one, end=min(one.end, one.start + most)) if flow.transform_of(one.topic) else one for one in ranges]
