"""Gives memory that was freed back to the operating system.

The allocator of glibc keeps the memory that was freed in each of its arenas, of which each new thread may get another
one. A job that makes its threads and connections anew, after a broker was restarted, would keep the largest batch that
each arena has ever held.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

EVERY_S = 60.0


class SpareMemory:
    """The memory that one process has freed and not given back.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._due = now, now() + EVERY_S
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
        self._trim: Callable[[int], int] = trim or (lambda _: 0)

    def give_back_if_due(self) -> None:
        """Gives it back, if EVERY_S have passed since the last time; takes some milliseconds."""
        if self._now() >= self._due:
            self._due = self._now() + EVERY_S
            self._trim(0)
