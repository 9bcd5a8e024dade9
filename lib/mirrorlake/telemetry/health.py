"""The health of one job: whether it makes progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime


class Health:
    """The progress of one job. Several threads may use it.

    A job makes progress when it commits something, or sees that there is nothing to do.

    Args:
        flow: the flow of the job.
        job: mirror or checkpoint.
        bound_s: the longest time without progress of a healthy job.
        clock: returns the time in seconds, monotonic.
    """

    def __init__(self, flow: str, job: str, bound_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._flow, self._job, self._bound_s, self._clock = flow, job, bound_s, clock
        self._since = clock()
        self._last: datetime | None = None
        self._is_ready = False
        self._error = ""

    def ready(self) -> None:
        """Notes that the job has begun its work."""
        self._is_ready = True

    def progressed(self) -> None:
        """Notes that the job has committed something, or has seen that there is nothing to do."""
        self._since, self._last, self._error = self._clock(), datetime.now(UTC), ""

    def failed(self, error: BaseException) -> None:
        """Notes the error that keeps the job from its work; its class alone is shown."""
        self._error = type(error).__name__

    @property
    def age_s(self) -> float:
        """The time since the last progress, or since the job began."""
        return self._clock() - self._since

    @property
    def is_alive(self) -> bool:
        """Whether the last progress is not too long ago."""
        return self.age_s <= self._bound_s

    def report(self) -> Mapping[str, object]:
        """Returns what /health answers, as plain values."""
        return {
            "flow": self._flow,
            "job": self._job,
            "alive": self.is_alive,
            "ready": self._is_ready and self.is_alive,
            "last_progress": None if self._last is None else self._last.isoformat(timespec="milliseconds"),
            "seconds_since_progress": round(self.age_s, 3),
            "bound_seconds": self._bound_s,
            "error": self._error or None,
        }
