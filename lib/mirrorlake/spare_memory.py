"""Gives memory that a job does not need any more back to the operating system.

A job makes connections and threads anew after a broker was restarted. What the old ones had remains in two places:

- Objects that refer to each other wait for Python's full garbage collection. It is due when the number of new objects
  exceeds a quarter of the old ones. With the 300,000 objects of all modules, that is after days.
- The allocator of glibc keeps memory that was freed in each of its arenas, of which each new thread may get another
  one. Once it has seen a large piece freed, it also takes the next ones of that size from there, and small ones that
  stay between them hold the pages of a burst.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from functools import lru_cache

EVERY_S = 60.0
LARGE_BYTES = 256 << 10  # of a JVM
DRIVER_LARGE_BYTES = 64 << 10  # such as the buffer in which a thread encodes its requests
DRIVER_ARENAS = 1  # its threads run one at a time in any case; those before, as of a kernel, have made others
DRIVER_TOP_BYTES = 4 << 10  # that an arena keeps at its end; 128 KiB otherwise, in each of up to eight for a core
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # of malloc.h


class SpareMemory:
    """The memory that one process does not need and has not given back.

    What exists when the first one of a process is made, the objects of modules mostly, is left out of all collections.
    So it is made before the connections of a job.

    Args:
        now: monotonic clock, in seconds.
        is_driver: True for a process that lives for long and copies little. Each piece of DRIVER_LARGE_BYTES or more
            comes from the system then and goes back to it at once, all later threads share the arenas that there are,
            and these keep nothing at their ends. Where batches are large, this would cost time, because the system
            clears what it hands out.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, *, is_driver: bool = False) -> None:
        self._now, self._due = now, now() + EVERY_S
        if not gc.get_freeze_count():  # a daemon that forks workers has done it for them
            gc.collect()
            gc.freeze()
        libc = ctypes.CDLL(None)
        self._trim: Callable[[int], int] = getattr(libc, "malloc_trim", lambda _: 0)  # of glibc alone
        if is_driver and hasattr(libc, "mallopt"):
            libc.mallopt(M_MMAP_THRESHOLD, DRIVER_LARGE_BYTES)
            libc.mallopt(M_TRIM_THRESHOLD, DRIVER_LARGE_BYTES)
            libc.mallopt(M_TOP_PAD, DRIVER_TOP_BYTES)
            libc.mallopt(M_ARENA_MAX, DRIVER_ARENAS)

    def give_back_if_due(self) -> None:
        """Gives it back, if EVERY_S have passed since the last time; takes some milliseconds."""
        if self._now() >= self._due:
            self._due = self._now() + EVERY_S
            gc.collect()
            self._trim(0)

    def trim_for_ever(self) -> None:
        """Gives back what was freed, every EVERY_S. Garbage stays: objects belong to the thread that has used them."""
        while True:
            time.sleep(EVERY_S)
            self._trim(0)


@lru_cache(maxsize=1)
def of_process() -> SpareMemory:
    """Returns the one of this process, for tasks of Spark that run in it one after the other.

    A thread trims it: after a burst, the next task may come much later, or never.
    """
    made = SpareMemory()
    threading.Thread(target=made.trim_for_ever, name="spare memory", daemon=True).start()
    return made
