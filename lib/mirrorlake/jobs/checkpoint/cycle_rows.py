"""The rows of `checkpoints` that one cycle finds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.reasons import PositionReason


@dataclass(frozen=True)
class CycleRows:
    """Builds the rows of one cycle.

    Args:
        flow: the flow.
        cycle_id: the id of the cycle.
        now: the time of the cycle, in UTC without a zone.
        brought: the topics of the source that the flow back may have written.
    """

    flow: Flow
    cycle_id: str
    now: datetime
    brought: Container[str]

    def translated(self, rows: Iterable[Mapping[str, Any]]) -> list[Checkpoint]:
        """Builds the rows of positions that have an offset on the target."""
        names = (
            "target_topic",
            "target_partition",
            "upstream_offset",
            "downstream_offset",
            "metadata",
            "source_lag",
            "reason",
        )
        return [
            Checkpoint(
                source=self.flow.source,
                target=self.flow.target,
                group_id=row["group_id"],
                topic=row["topic"],
                partition=row["partition"],
                status=Status(row["status"]),
                cycle_id=self.cycle_id,
                created_at=self.now,
                **{name: row[name] for name in names},
            )
            for row in rows
        ]

    def without_place(self, found: Iterable[Mapping[str, Any]]) -> list[Checkpoint]:
        """Builds the rows of positions that have none, with the reasons."""
        rows = []
        for row in found:
            status, reason = (row["status"], row["reason"]) if row["status"] else self._why_not(row["topic"])
            names = ("group_id", "topic", "partition", "upstream_offset", "metadata")
            rows.append(
                Checkpoint(
                    source=self.flow.source,
                    target=self.flow.target,
                    status=status,
                    reason=reason,
                    cycle_id=self.cycle_id,
                    created_at=self.now,
                    sync=SyncOutcome.WAITING if status == Status.NOT_MIRRORED_YET else None,
                    **{name: row[name] for name in names},
                )
            )
        return rows

    def about(self, keys: Iterable[GroupKey], status: Status, reason: str) -> list[Checkpoint]:
        """Builds rows about whole groups or ended positions, which the job does not change on the target."""
        return [
            Checkpoint(
                source=self.flow.source,
                target=self.flow.target,
                group_id=group,
                topic=topic,
                partition=partition,
                status=status,
                cycle_id=self.cycle_id,
                created_at=self.now,
                sync=SyncOutcome.HELD,
                reason=reason,
            )
            for group, topic, partition in keys
        ]

    def _why_not(self, topic: str) -> tuple[Status, str]:
        """Returns status and reason of positions in a topic that can't be translated."""
        if not self.flow.mirrors_topic(topic):
            is_back = topic in self.brought
            return Status.NOT_MIRRORED, PositionReason.OF_FLOW_BACK if is_back else PositionReason.NOT_OF_FLOW
        if self.flow.scatters(topic):
            return Status.NOT_COVERED, PositionReason.SCATTERED
        return Status.NOT_MIRRORED, PositionReason.NO_TOPIC
