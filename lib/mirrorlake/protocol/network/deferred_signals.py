"""Handlers of signals, called between two steps of an event loop only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

DEFERRED = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def deferred_signals(wake: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Defers the handlers of SIGINT and SIGTERM for the length of a block, which runs steps of an event loop.

    Python calls a handler in the middle of whatever the main thread does, and the handler may raise KeyboardInterrupt.
    Within a task, kafka-python's loop takes that for the end of the task (`NetworkSelector._poll_once`): nobody is
    interrupted, and whoever waits for the task, such as for the next response of a connection, waits for ever.

    Where nobody handles a signal in Python, and in threads other than the main one, nothing changes.

    Args:
        wake: ends the wait for the network, so that the step under way ends soon.

    Yields:
        A function for the end of each step: it calls the handlers of the signals that have come, and raises what they
        raise. The end of the block calls those of the last ones.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _nothing
        return
    handlers, come, defers = dict[int, Handler](), list[int](), True

    def note(number: int, frame: FrameType | None) -> None:
        if not defers:  # an interrupt has kept the block from putting the handler back
            handlers[number](number, frame)
            return
        come.append(number)
        wake()

    def deliver() -> None:
        while come:
            number = come.pop(0)
            handlers[number](number, None)

    try:
        for one in DEFERRED:
            if callable(handler := signal.getsignal(one)):
                handlers[one] = handler
                signal.signal(one, note)
        yield deliver
    finally:
        defers = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        deliver()


def _nothing() -> None:
    pass
