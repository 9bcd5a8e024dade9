"""Pauses of a running job whose transactions another job has ended, which may be about to take over.

A job that begins fences the transactions of all slots, reads the states, and writes its own. If the running job began
new transactions at once, it would fence the other one, again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
FORGOTTEN_S = 10.0  # a slot whose transactions time out fails less often, and does not slow the others down


@dataclass
class GivingWay:
    """How long a job leaves the transactional ids of its flow alone, longer each time.

    Args:
        wait: called with the seconds to wait; returns early when the job is being stopped.
        clock: monotonic clock, in seconds.
    """

    wait: Callable[[float], object]
    clock: Callable[[], float] = time.monotonic
    _pause_s: float = 0.0
    _ended: float = float("-inf")

    def pause(self) -> None:
        """Waits, after a transaction was ended by another job."""
        is_again = self.clock() < self._ended + FORGOTTEN_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if is_again else FIRST_PAUSE_S
        self.wait(self._pause_s)
        self._ended = self.clock()
