"""The event loop of one or more clusters: the last one that leaves closes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.net.selector import NetworkSelector

from mirrorlake.protocol.network.deferred_signals import deferred_signals


class EventLoop(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's event loop, with a count of the clusters that use it. Signals interrupt it between two steps.

    A loop that is not closed keeps three descriptors and its tasks. The tasks would end when garbage is collected: in
    any order, with errors about sockets that are closed already.
    """

    def __init__(self) -> None:
        super().__init__(slow_task_threshold_secs=0)
        self._users = 0
        self._end_of_step: Callable[[], None] = lambda: None

    def poll(self, timeout_ms: float | None = None, future: Any = None) -> None:
        """Runs tasks until a future is done, for some time, or for one step; see `NetworkSelector.poll`.

        An interrupt leaves the tasks as they are: they go on with the next call.
        """
        with deferred_signals(self.wakeup) as self._end_of_step:
            super().poll(timeout_ms, future)

    def _poll_once(self, timeout: float | None = None) -> None:
        super()._poll_once(timeout)
        self._end_of_step()

    def close(self) -> None:
        """Ends all tasks and closes the loop; an interrupt is raised after that."""
        with deferred_signals(self.wakeup):
            super().close()

    def enter(self) -> None:
        """Counts a cluster that uses the loop."""
        self._users += 1

    def leave(self) -> None:
        """Ends the use by a cluster whose connections are closed; the last one ends all tasks and closes the loop."""
        self._users -= 1
        if self._users == 0:
            self.close()
