"""Measures the lag of a flow while its mirror job runs, in a thread of its own: no copy waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, unexpected
from mirrorlake.jobs.mirror.lag_meter import LagMeter
from mirrorlake.log import event
from mirrorlake.metrics import Metrics
from mirrorlake.model.partition_lag import FlowLag, is_same

log = logging.getLogger(__name__)

IDLE_INTERVALS = 5  # an idle flow gets a row as seldom as this
WRITTEN_WITHIN_S = 60.0  # rows wait for others, and a commit takes time
ENDS_WITHIN_S = 5.0


@dataclass(frozen=True)
class LagSample:
    """One row of the table lag_samples."""

    source: str
    target: str
    measured_at: datetime
    due_at: datetime
    records: int
    seconds: float
    uncommitted: int
    partitions: tuple[dict[str, Any], ...] = field(repr=False)


class LagKeeper:
    """Measures a flow's lag at an interval, and once when its job ends.

    A measurement that fails stops nothing. It is logged once, and the last row becomes stale.

    Args:
        flow: the flow; may be replaced while the job runs.
        metrics: the metrics to update.
        note: takes a row of lag_samples, which may reach the table later.
        measured: called after each measurement.
        held: returns the topics that the job holds, with the reasons: some show only in its own attempts.
        meter: measures the lag; None for one with connections of its own.
    """

    def __init__(
        self,
        flow: Flow,
        metrics: Metrics,
        note: Callable[[LagSample], None],
        measured: Callable[[FlowLag], None] = lambda _found: None,
        held: Callable[[], Mapping[str, str]] = dict,
        meter: LagMeter | None = None,
    ) -> None:
        self.flow, self._metrics, self._note, self._measured = flow, metrics, note, measured
        self._held = held
        self._meter = meter or LagMeter(flow)
        self._last: FlowLag | None = None  # of which there is a row
        self._trouble, self._measures_last = "", False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lag {flow.name}", daemon=True)

    def start(self) -> None:
        """Starts to measure, unless the flow's interval is 0. The first measurement is due after one interval."""
        if self.flow.lag_interval_s:
            self._thread.start()

    def finish(self, *, measures: bool) -> None:
        """Ends; waits for ENDS_WITHIN_S at most.

        Args:
            measures: True to measure a last time. That row is stale at once, as none follows.
        """
        self._measures_last = measures
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(ENDS_WITHIN_S)

    def _keep(self) -> None:
        while not self._ending.wait(self.flow.lag_interval_s or None):
            self.measure(is_last=False)
        if self._measures_last:
            self.measure(is_last=True)
        self._meter.close()

    def measure(self, *, is_last: bool) -> None:
        """Measures once; updates metrics, and notes a row if the last one no longer says the same.

        Args:
            is_last: True if no measurement follows.
        """
        self._meter.flow = self.flow
        try:
            found = self._meter.measure().with_held(self._held())
        except Exception as error:  # whatever it is, the job goes on
            known = error if isinstance(error, MirrorlakeError) else unexpected("measuring the lag", error)
            if str(known) != self._trouble:
                log.warning(event("lag_not_measured", flow=self.flow.name, error=known))
            self._trouble = str(known)
            return
        self._trouble = ""
        self._metrics.lag_seconds.labels(self.flow.name).set(found.seconds)
        self._metrics.paused_partitions.labels(self.flow.name).set(found.paused)
        self._metrics.lag_measured_seconds.labels(self.flow.name).set(found.measured_at.replace(tzinfo=UTC).timestamp())
        self._measured(found)
        interval = timedelta(seconds=self.flow.lag_interval_s)
        if (
            not is_last
            and self._last is not None
            and timedelta() <= found.measured_at - self._last.measured_at < (IDLE_INTERVALS - 0.5) * interval
            and len(self._last.partitions) == len(found.partitions)
            and is_same(self._last.partitions, found.partitions)
        ):
            return
        self._last = found
        within = (IDLE_INTERVALS + 1) * interval + timedelta(seconds=WRITTEN_WITHIN_S)
        self._note(
            LagSample(
                source=found.source,
                target=found.target,
                measured_at=found.measured_at,
                due_at=found.measured_at + (timedelta() if is_last else within),
                records=found.records,
                seconds=found.seconds,
                uncommitted=found.uncommitted,
                partitions=tuple({**asdict(one), "state": one.state.value} for one in found.partitions),
            )
        )
