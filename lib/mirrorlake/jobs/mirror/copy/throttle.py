"""The rate that the operator allows (`mirrorlake.max.bytes.per.second`), and topics that give way to others.

What is written is paid for by waiting: nothing more is read until the bytes so far fit into the rate. What an attempt
owes at its end, the next one of the same process pays, as clocks are kept in the limits of the target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.protocol.limits import Limits

AT_ONCE_S = 0.25  # the time that one response may take of the rate
LEAST_BYTES = 64 << 10
BACKFILL_S = 1.0  # a micro-batch with such topics lasts no longer, so that the records of others become visible
ALL, BACKFILL = "all", "backfill"


class Throttle:
    """The allowed rates of one attempt.

    Args:
        flow: flow to mirror, with the slot's share of its rates.
        limits: keeps what is owed.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, flow: Flow, limits: Limits, clock: Callable[[], float]) -> None:
        self._flow, self._free_at, self._clock = flow, limits.free_at, clock
        self._rates = {
            name: rate
            for name, rate in ((ALL, flow.max_bytes_per_s), (BACKFILL, flow.backfill_max_bytes_per_s))
            if rate
        }
        for name, rate in self._rates.items():  # bytes are owed, and a rate may have changed since
            before = limits.rates.get(name, rate)
            if before != rate:
                self._free_at[name] = clock() + max(0.0, self._free_at.get(name, 0.0) - clock()) * before / rate
            limits.rates[name] = rate

    def spend(self, topic: str, size: int) -> None:
        """Counts bytes that were written for a topic."""
        for name in self._of(topic):
            begins = max(self._clock(), self._free_at.get(name, 0.0))
            self._free_at[name] = begins + size / self._rates[name]

    def limits(self, topic: str) -> bool:
        """Returns True if a rate applies to a topic."""
        return bool(self._of(topic))

    def wait_s(self, topic: str) -> float:
        """Returns the seconds until more of a topic may be read."""
        return max((self._free_at.get(name, 0.0) - self._clock() for name in self._of(topic)), default=0.0)

    async def allows(self, topics: Iterable[str], sleep: Callable[[float], Awaitable[None]], deadline: float) -> bool:
        """Waits until more of some topics may be read; returns False if that is not before the deadline.

        Args:
            topics: the topics.
            sleep: waits for some seconds.
            deadline: the time until which it waits at most, by the clock.
        """
        wait_s = max((self.wait_s(topic) for topic in topics), default=0.0)
        if wait_s <= 0:
            return True
        left_s = deadline - self._clock()
        await sleep(max(0.0, min(wait_s, left_s)))
        return wait_s <= left_s

    def most_bytes(self, size: int, topics: Iterable[str]) -> int:
        """Returns the size limit of a response for topics: `size`, or less where that would be too much at once."""
        names = {name for topic in topics for name in self._of(topic)}
        return min([size, *(max(LEAST_BYTES, int(self._rates[name] * AT_ONCE_S)) for name in names)])

    def _of(self, topic: str) -> list[str]:
        """Returns the rates that apply to a topic."""
        return [name for name in self._rates if name == ALL or self._flow.is_backfill(topic)]
