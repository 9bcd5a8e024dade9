"""The pace of an attempt: it reads no more than the target takes in the time that is left.

What was read must be written before the transaction times out. On a slow line, or below a quota, 16 MiB may take
longer than that, and so would each further attempt. A task begins with 1 MiB, therefore, before it knows the rate.

What was read and is not to be copied (aborted transactions, records of another flow) is done with. It counts like what
was written: a log of which little is copied would otherwise look like a slow target, and be read in small pieces.
"""

from __future__ import annotations

from collections.abc import Callable

from mirrorlake.jobs.mirror.copy.fetcher import FETCH_BYTES, LEAST_FETCH_BYTES
from mirrorlake.protocol.limits import Limits

THROTTLED_FETCH_BYTES = 256 << 10
A_WHILE_S = 1.0  # an attempt that is quicker shows nothing about the rate


class Pace:
    """The rate of one attempt.

    Args:
        limits: keeps the rate for the next attempt.
        throttled_ms: returns the time for which the source has throttled this client.
        clock: monotonic clock, in seconds.
        deadline: the time at which the attempt should end.
        latest: the time at which it ends even if it has read nothing.
    """

    def __init__(
        self,
        limits: Limits,
        throttled_ms: Callable[[], float],
        clock: Callable[[], float],
        *,
        deadline: float,
        latest: float,
    ) -> None:
        self._limits, self._throttled_ms, self._clock = limits, throttled_ms, clock
        self._deadline, self._latest = deadline, latest
        self._began, self._throttled_before_ms = clock(), throttled_ms()

    def is_over(self, read_bytes: int) -> bool:
        """Returns True if the attempt should end, after `read_bytes` were read.

        A throttled source may return nothing until the deadline. Another attempt would begin where this one did.
        """
        waits = self._is_throttled and not read_bytes
        return self._clock() >= (self._latest if waits else self._deadline)

    def next_bytes(self, done_bytes: int, responses: int) -> int:
        """Returns the size of each of the next Fetch responses, after `done_bytes` were written or passed over."""
        left_s = max(0.0, self._deadline - self._clock())
        at_this_rate = max(LEAST_FETCH_BYTES, self._bytes_per_s(done_bytes) * left_s / responses)
        return int(min(self._share_bytes(responses), at_this_rate))

    def grow(self, responses: int) -> None:
        """Lets the next round read more, after one with so many responses; 0 if nothing was asked for."""
        if responses:
            grown_bytes = self._share_bytes(responses) * (responses + 1)
            self._limits.round_bytes = min(FETCH_BYTES * responses, grown_bytes)

    def _share_bytes(self, responses: int) -> int:
        # The source withholds a response that is above its quota, and the wait for it is shorter if it is small.
        most = THROTTLED_FETCH_BYTES if self._is_throttled else FETCH_BYTES
        return min(most, self._limits.round_bytes // responses)

    def keep(self, done_bytes: int) -> None:
        """Keeps the rate for the next attempt; to be called at the end, also of an attempt that fails."""
        self._limits.bytes_per_s = self._bytes_per_s(done_bytes)

    @property
    def _is_throttled(self) -> bool:
        """Returns True if the source has throttled this attempt."""
        return self._throttled_ms() > self._throttled_before_ms

    def _bytes_per_s(self, done_bytes: int) -> float:
        seconds = self._clock() - self._began
        return done_bytes / seconds if seconds >= A_WHILE_S else self._limits.bytes_per_s
