"""The event loop of one or more clusters: the last one that leaves closes it."""

from __future__ import annotations

from kafka.net.selector import NetworkSelector


class EventLoop(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's event loop, with a count of the clusters that use it.

    A loop that is not closed keeps three descriptors and its tasks. The tasks would end when garbage is collected: in
    any order, with errors about sockets that are closed already.
    """

    def __init__(self) -> None:
        super().__init__(slow_task_threshold_secs=0)
        self._users = 0

    def enter(self) -> None:
        """Counts a cluster that uses the loop."""
        self._users += 1

    def leave(self) -> None:
        """Ends the use by a cluster whose connections are closed; the last one ends all tasks and closes the loop."""
        self._users -= 1
        if self._users == 0:
            self.close()
