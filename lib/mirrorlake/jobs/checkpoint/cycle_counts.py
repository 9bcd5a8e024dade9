"""What a run has counted, and its metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.log import event
from mirrorlake.metrics import Metrics, count_age
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.reasons import PositionReason
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.telemetry.job_telemetry import JobTelemetry

log = logging.getLogger(__name__)

UNFINISHED = frozenset((Status.CLAMPED, Status.NOT_MIRRORED_YET, SyncOutcome.REFUSED, SyncOutcome.WAITING))

UNREAD = frozenset(
    (PositionReason.UNREAD, PositionReason.LOG_UNREAD, PositionReason.TARGET_UNREAD, PositionReason.REMOTE_UNREAD)
)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A position that is not exact, or not on the target, since a time, with its offset on the target then."""

    since_s: float
    downstream_offset: int | None


class CycleCounts:
    """Counts the cycles of one run.

    Args:
        flow: the flow.
        telemetry: serves the metrics, and the health of the job.
        metrics: the metrics to update.

    Attributes:
        cycles: the number of cycles.
        rows: the number of rows that were appended.
        groups: the number of groups on the source, in the last cycle.
        statuses: the number of positions of each status, in the last cycle.
        syncs: the number of positions of each outcome, in the last cycle.
    """

    def __init__(self, flow: Flow, telemetry: JobTelemetry, metrics: Metrics) -> None:
        self._flow, self._telemetry, self._metrics = flow, telemetry, metrics
        self.cycles = self.groups = self.rows = 0
        self.statuses: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self._unfinished: dict[GroupKey, Unfinished] = {}

    def count(self, groups: int, synced: list[Checkpoint], rows: int, batch_id: int, seconds: float) -> None:
        """Counts a cycle, and logs it.

        Args:
            groups: the number of groups on the source.
            synced: the rows of positions.
            rows: the number of rows that were appended.
            batch_id: the number of the cycle.
            seconds: the time that it took.
        """
        self.cycles, self.groups, self.rows = self.cycles + 1, groups, self.rows + rows
        self.statuses, self.syncs = (
            Counter(row.status for row in synced),
            Counter(row.sync for row in synced if row.sync),
        )
        log.info(
            event(
                "checkpoint_cycle",
                flow=self._flow.name,
                cycle=batch_id,
                groups=groups,
                positions=len(synced),
                **{f"status_{name}": count for name, count in sorted(self.statuses.items())},
                **{f"sync_{name}": count for name, count in sorted(self.syncs.items())},
                rows=rows,
                seconds=round(seconds, 2),
            )
        )

    def measure(
        self,
        clock: Stopwatch,
        synced: list[Checkpoint],
        earlier: Mapping[GroupKey, Checkpoint] = MappingProxyType({}),
        *,
        is_paused: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """Updates the metrics.

        Args:
            clock: the times of the stages of a cycle.
            synced: the rows of positions.
            earlier: rows that an earlier job has appended; one that says the same tells since when that holds.
            is_paused: tells whether a topic is paused, so that no position in it is finished.
        """
        flow, metrics = self._flow.name, self._metrics
        metrics.checkpoint_cycles.labels(flow).inc()
        count_age(metrics.checkpoint_age_seconds, flow)
        self._telemetry.health.progressed()
        now = time.monotonic()
        self._unfinished = {
            row.key: self._since(row, now, earlier.get(row.key))
            for row in synced
            if not is_paused(row.topic or "")
            and (row.status in UNFINISHED or row.sync in UNFINISHED or row.reason in UNREAD)
        }
        oldest = min((one.since_s for one in self._unfinished.values()), default=now)
        metrics.worst_group_seconds.labels(flow).set(now - oldest)
        self._detail(synced, clock.total_ms)
        for stage, stage_ms in clock.laps_ms.items():
            metrics.checkpoint_stage_seconds.labels(flow, stage).observe(stage_ms / 1000)
        for status in Status:
            metrics.checkpoint_positions.labels(flow, status).set(self.statuses[status])
        for outcome in SyncOutcome:
            metrics.synced_positions.labels(flow, outcome).set(self.syncs[outcome])

    def _since(self, row: Checkpoint, now: float, earlier: Checkpoint | None) -> Unfinished:
        """Returns since when a position is unfinished. An earlier job may have found it so.

        A group that reads at the end of what is mirrored is ahead of it in each cycle, with another offset. It waits
        for nothing for long while the mirror advances.
        """
        before = self._unfinished.get(row.key)
        follows = row.status is Status.CLAMPED and row.sync not in UNFINISHED and row.reason not in UNREAD
        if before is None and earlier is not None and row.says_the_same_as(earlier):
            age_s = max(0.0, (row.created_at - earlier.created_at).total_seconds())
            return Unfinished(now - age_s, row.downstream_offset)
        if before is None or (follows and row.downstream_offset != before.downstream_offset):
            return Unfinished(now, row.downstream_offset)
        return before

    def _detail(self, synced: Iterable[Checkpoint], latency_ms: float) -> None:
        """Updates the metrics of groups, if they are on."""
        details, flow = self._telemetry.details, self._flow
        if details is None:
            return
        places = [(row, row.topic, row.partition) for row in synced]
        details.groups(
            flow.name,
            {
                (row.group_id, topic, partition): row.source_lag
                for row, topic, partition in places
                if topic is not None and partition is not None and row.source_lag is not None
            },
        )
        details.checkpointed(
            (
                (flow.source, flow.target, row.group_id, row.target_topic, str(row.target_partition))
                for row in synced
                if row.sync is SyncOutcome.COMMITTED and row.target_topic is not None
            ),
            latency_ms,
        )
