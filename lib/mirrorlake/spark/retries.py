"""Retries of micro-batches, and of the steps of a start, that failed with a retriable error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.log import event
from mirrorlake.metrics import Metrics

log = logging.getLogger(__name__)

StepResult = TypeVar("StepResult")

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.2, 5.0
MOST_DOUBLINGS = 10
LEAST_AT_START = 2


@dataclass
class Retries:
    """The failures in a row, and the growing pause after each of them.

    Args:
        timeout_s: the longest time of retriable errors in a row, without a success in between.
        wait: called with the seconds to wait; returns early, and True, when the job is being stopped.
        flow: the flow of the job.
        metrics: the metrics that count retries.
        least: the number of failures after which another attempt is made, whatever time they took.

    Attributes:
        is_well: whether an attempt has succeeded, and none has failed since.
    """

    timeout_s: float
    wait: Callable[[float], object]
    flow: str
    metrics: Metrics
    least: int = 0
    is_well: bool = field(default=False, init=False)
    _failing: tuple[float, int] | None = None
    _is_stopped: bool = False

    @classmethod
    def of_start(cls, flow: Flow, wait: Callable[[float], object], metrics: Metrics) -> Retries:
        """Returns those of a job that starts: a lost answer may take all of its time, and is followed by an attempt."""
        return cls(flow.connect_timeout_ms / 1000, wait, flow.name, metrics, LEAST_AT_START)

    def succeeded(self) -> None:
        """Resets the count of failures."""
        self._failing, self.is_well = None, True

    def repeat(self, step: Callable[[], StepResult]) -> StepResult:
        """Runs a step until it succeeds; returns its result.

        Raises:
            MirrorlakeError: it failed with a final error, its time is up, or the job is being stopped.
        """
        while True:
            try:
                result = step()
            except MirrorlakeError as error:
                if not self.may_go_on(error) or self._is_stopped:
                    raise
            else:
                self.succeeded()
                return result

    def may_go_on(self, error: MirrorlakeError) -> bool:
        """Waits before the next attempt; returns False if the error is final, or the time is up."""
        self.is_well = False
        if not error.retriable:
            return False
        since, count = self._failing or (time.monotonic(), 0)
        self._failing = (since, count + 1)
        left_s = max(0.0, since + self.timeout_s - time.monotonic())
        if not left_s and count >= self.least:
            return False
        log.warning(event("retrying", flow=self.flow, failures=count + 1, left_s=round(left_s), error=error))
        self.metrics.retries.labels(self.flow, type(error).__name__).inc()
        backoff_s = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(count, MOST_DOUBLINGS))
        self._is_stopped = bool(self.wait(min(backoff_s, left_s or FIRST_BACKOFF_S)))
        return True
