"""Shortens micro-batches in which a slow slot would hold up the records of others.

The next plan is made when all slots have answered. So records that arrive meanwhile wait for the slowest slot, which
copies a backlog for `mirrorlake.batch.max.ms`. Beside slots that need less, it copies for a shorter time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.state.slot_report import SlotReport

BESIDE_S = 1.0  # for which a slow slot copies beside others
OVERHEAD = ("plan", "copy.begin", "copy.state", "gate", "commit")  # stages that take as long for a few records
OVERHEADS = 5  # times as long a slow slot copies at least: a far cluster's backlog keeps most of its throughput
RECENT_S = 10.0  # for which others are expected again, as their records may come in the next moment


class SlowSlots:
    """The slots of one job that copied for BESIDE_S or longer the last time, and whether others have records.

    Args:
        minds: tells whether anybody waits for the records of a topic.
        now: monotonic clock, in seconds.
    """

    def __init__(self, minds: Callable[[str], bool], now: Callable[[], float] = time.monotonic) -> None:
        self._minds, self._now = minds, now
        self._slow: set[int] = set()
        self._minded: set[int] = set()  # slots with records of the last plan that somebody waits for
        self._quick_until = -math.inf  # until which the records of a slot that is not slow are expected
        self._overhead_s = 0.0

    def shortened(self, plan: MirrorPlan) -> MirrorPlan:
        """Returns the plan, with a time for its slots if some are slow and would hold up others."""
        self._minded = {one.slot for one in plan.ranges if self._minds(one.topic)}
        is_slow = not self._slow.isdisjoint(one.slot for one in plan.ranges)
        is_waited_for = bool(self._minded - self._slow) or self._now() < self._quick_until
        if not (is_slow and is_waited_for):
            return plan
        return replace(plan, longest_s=max(BESIDE_S, OVERHEADS * self._overhead_s))

    def observe(self, reports: Iterable[SlotReport], stages_ms: Mapping[str, float]) -> None:
        """Notes how long slots have copied.

        Args:
            reports: those of the slots that were committed, with `stages_ms`.
            stages_ms: the duration of each stage of the micro-batch (`timing.stages`).
        """
        moved_s = {report.slot: report.stages_ms["move"] / 1000 for report in reports if report.stages_ms}
        slow = {slot for slot, took_s in moved_s.items() if took_s >= BESIDE_S}
        if (moved_s.keys() - slow) & self._minded:
            self._quick_until = self._now() + RECENT_S
        self._slow = (self._slow - moved_s.keys()) | slow
        self._overhead_s = sum(stages_ms.get(stage, 0.0) for stage in OVERHEAD) / 1000
