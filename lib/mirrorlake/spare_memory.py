"""Gives memory that a job does not need any more back to the operating system.

A job makes connections and threads anew after a broker was restarted. What the old ones had remains in two places:

- Objects that refer to each other wait for Python's full garbage collection. It is due when the number of new objects
  exceeds a quarter of the old ones. With the 300,000 objects of all modules, that is after days.
- The allocator of glibc keeps memory that was freed in each of its arenas, of which each new thread may get another
  one.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import lru_cache

EVERY_S = 60.0


class SpareMemory:
    """The memory that one process does not need and has not given back.

    What exists when the first one of a process is made, the objects of modules mostly, is left out of all collections.
    So it is made before the connections of a job.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._due = now, now() + EVERY_S
        if not gc.get_freeze_count():  # a daemon that forks workers has done it for them
            gc.collect()
            gc.freeze()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
        self._trim: Callable[[int], int] = trim or (lambda _: 0)

    def give_back_if_due(self) -> None:
        """Gives it back, if EVERY_S have passed since the last time; takes some milliseconds."""
        if self._now() >= self._due:
            self._due = self._now() + EVERY_S
            gc.collect()
            self._trim(0)


@lru_cache(maxsize=1)
def of_process() -> SpareMemory:
    """Returns the one of this process, for tasks of Spark that run in it one after the other."""
    return SpareMemory()
