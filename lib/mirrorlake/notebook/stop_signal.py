"""Lets handlers of signals end a job between two micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol


class StoppableJob(Protocol):
    """A job that can be ended from another thread."""

    def stop(self) -> None:
        """Ends the run after the micro-batch under way."""


@contextmanager
def done_aside(action: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Yields a function that has an action done in another thread, for handlers of signals.

    Python runs a handler in the middle of whatever the main thread does. If that is a look at an event, the thread
    holds the event's lock, and a handler that sets the event waits for ever. Only SimpleQueue.put may interrupt itself.
    """
    orders: SimpleQueue[bool] = SimpleQueue()

    def follow() -> None:
        while orders.get():
            action()

    follower = threading.Thread(target=follow, name="stop signal", daemon=True)
    follower.start()
    try:
        yield lambda: orders.put(True)
    finally:
        orders.put(False)
        follower.join()
