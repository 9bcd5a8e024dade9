"""Shortens micro-batches in which a slow slot would hold up the records of others.

The next plan is made when all slots have answered. So records that arrive meanwhile wait for the slowest slot, which
copies a backlog for `mirrorlake.batch.max.ms`. Beside slots that need less, it copies for a shorter time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.state.slot_report import SlotReport

BESIDE_S = 1.0  # for which a slow slot copies beside others
OVERHEADS = 5  # times what a micro-batch takes besides copying: a far cluster's backlog keeps its throughput
RECENT_S = 10.0  # for which others are expected again, as their records may come in the next moment


class SlowSlots:
    """The slots of one job that copied for BESIDE_S or longer the last time, and whether others have records.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._slow: set[int] = set()
        self._quick_until = -math.inf  # until which the records of a slot that is not slow are expected
        self._overhead_s = 0.0

    def shortened(self, plan: MirrorPlan) -> MirrorPlan:
        """Returns the plan, with a time for its slots if some are slow and would hold up others."""
        slots = {one.slot for one in plan.ranges}
        slow = slots & self._slow
        if not slow or (slow == slots and self._now() >= self._quick_until):
            return plan
        return replace(plan, longest_s=max(BESIDE_S, OVERHEADS * self._overhead_s))

    def observe(self, reports: Iterable[SlotReport], seconds: float) -> None:
        """Notes how long slots have copied.

        Args:
            reports: those of the slots that were committed.
            seconds: the duration of the micro-batch.
        """
        moved_s = {report.slot: report.stages_ms.get("move", 0.0) / 1000 for report in reports}
        slow = {slot for slot, took_s in moved_s.items() if took_s >= BESIDE_S}
        if moved_s.keys() - slow:
            self._quick_until = self._now() + RECENT_S
        self._slow = (self._slow - moved_s.keys()) | slow
        self._overhead_s = max(0.0, seconds - max(moved_s.values(), default=seconds))
