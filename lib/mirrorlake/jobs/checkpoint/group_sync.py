"""The sync of groups: commits offsets for those that may be moved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint import target_groups
from mirrorlake.jobs.checkpoint.history import History
from mirrorlake.jobs.checkpoint.target_groups import COMMITTED_AT_ONCE, TargetGroup
from mirrorlake.jobs.checkpoint.unread import PATIENCE_MS, log_unread_groups
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.model.status import SyncOutcome
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import GroupPositions
from mirrorlake.protocol.network.response_error import is_denied
from mirrorlake.reasons import KEPT, PositionReason
from mirrorlake.state.closure import require_open_to_groups
from mirrorlake.translation.log_starts import LogStarts

FRESH_S = 1.0  # for how long what was read of the groups on the target may be acted on


class GroupSync:
    """Moves the groups of one flow on its target, at most once in each interval of `sync.group.offsets`.

    Args:
        flow: the flow.
        target: the target.
        log_starts: the log start offsets of the target's partitions.
    """

    def __init__(self, flow: Flow, target: Cluster, log_starts: LogStarts) -> None:
        self._flow, self._target, self._log_starts = flow, target, log_starts
        self._due = 0.0
        self._unread: frozenset[str] = frozenset()

    def again(self) -> None:
        """Lets the next cycle move groups, because the outcomes of the last one were not written."""
        self._due = 0.0

    def sync(self, checkpoints: list[Checkpoint], history: History, *, is_paused: bool) -> list[Checkpoint]:
        """Decides about every position, commits those that may be moved, and returns the rows with their outcomes.

        Args:
            checkpoints: the rows of one cycle.
            history: what earlier cycles have found and done.
            is_paused: True to move no group.
        """
        movable = [row for row in checkpoints if row.downstream_offset is not None]
        if not self._flow.sync_group_offsets_enabled or not movable:
            return [
                replace(row, sync=SyncOutcome.OFF) if row.downstream_offset is not None else row for row in checkpoints
            ]
        if time.monotonic() < self._due or is_paused:
            return [row if row.downstream_offset is None else _waiting(row, history) for row in checkpoints]
        if self._flow.topics_shared:
            return [
                replace(
                    row,
                    sync=SyncOutcome.HELD,
                    reason="; ".join(part for part in (row.reason, PositionReason.SHARED) if part),
                )
                if row.downstream_offset is not None
                else row
                for row in checkpoints
            ]
        groups = sorted({row.group_id for row in movable})
        read_at = time.monotonic()
        on_target, unread = target_groups.read_each_group(self._target, groups, PATIENCE_MS)
        self._say(unread)
        starts, silent = self._log_starts.of(_place(row)[1] for row in movable), self._log_starts.unread
        decided: list[Checkpoint] = []
        commits: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
        for row in checkpoints:
            if (
                row.downstream_offset is None
                or row.upstream_offset is None
                or row.target_topic is None
                or row.target_partition is None
            ):
                decided.append(row)
                continue
            if row.group_id in unread or (_place(row)[1] in silent and on_target[row.group_id].is_idle):
                decided.append(_unread_there(row, unread.get(row.group_id)))
                continue
            target_key, before = (row.target_topic, row.target_partition), history.settled.get(row.key)
            decision = target_groups.decide(
                on_target[row.group_id],
                target_key,
                downstream_offset=row.downstream_offset,
                upstream_offset=row.upstream_offset,
                previous=before,
                metadata=row.metadata or "",
                log_start=starts.get(target_key, 0),
            )
            reason = "; ".join(part for part in (row.reason, decision.reason) if part) or None
            decided.append(
                replace(
                    row,
                    sync=decision.sync,
                    reason=reason,
                    target_offset=on_target[row.group_id].offsets.get(target_key),
                )
            )
            if decision.sync is SyncOutcome.COMMITTED:
                commits.setdefault(row.group_id, {})[target_key] = (decision.offset, row.metadata or "")
        if commits:  # a failover may have moved the groups since they were read
            promoted = require_open_to_groups(self._flow, self._target)
            held = {row.key for row in decided if row.sync is SyncOutcome.COMMITTED and row.topic in promoted}
            for group, topic, partition in held:
                remote = (self._flow.policy.remote_topic(topic or ""), partition or 0)
                del commits[group][remote]
            commits = {group: offsets for group, offsets in commits.items() if offsets}
            decided = [
                replace(row, sync=SyncOutcome.HELD, reason=PositionReason.PROMOTED) if row.key in held else row
                for row in decided
            ]
        refusals, changed = self._commit(commits, on_target, read_at)
        self._due = time.monotonic() + self._flow.sync_group_offsets_interval_s
        return [
            row
            if row.sync is not SyncOutcome.COMMITTED
            else replace(row, sync=SyncOutcome.WAITING)
            if row.group_id in changed
            else replace(row, sync=SyncOutcome.REFUSED, reason=refusals[_place(row)])
            if _place(row) in refusals
            else row
            for row in decided
        ]

    def _commit(
        self, commits: Mapping[str, GroupPositions], on_target: Mapping[str, TargetGroup], read_at: float
    ) -> tuple[dict[tuple[str, PartitionKey], str], set[str]]:
        """Commits some groups at a time; returns the reasons of refused positions, and the groups that were left out.

        Many groups on a far target take minutes. One that somebody has used since it was read must not be moved back,
        so that a group that is not as it was is left to the next sync.
        """
        refusals: dict[tuple[str, PartitionKey], str] = {}
        changed: set[str] = set()
        names = sorted(commits)
        for at in range(0, len(names), COMMITTED_AT_ONCE):
            some = names[at : at + COMMITTED_AT_ONCE]
            if time.monotonic() > read_at + FRESH_S:
                now, _ = target_groups.read_each_group(self._target, some, PATIENCE_MS)
                changed |= {
                    group for group in some if not _is_as_before(now.get(group), on_target[group], commits[group])
                }
            due = {group: commits[group] for group in some if group not in changed}
            refusals |= target_groups.commit(self._target, due, self._flow, PATIENCE_MS) if due else {}
        return refusals, changed

    def _say(self, unread: Mapping[str, Exception]) -> None:
        """Logs groups that the target does not tell about, when others are concerned than before."""
        if unread.keys() != self._unread:
            self._unread = frozenset(unread)
            reasons = {group: str(error) for group, error in unread.items()}
            log_unread_groups(self._flow.name, self._flow.target, reasons)


def _is_as_before(now: TargetGroup | None, before: TargetGroup, places: Iterable[PartitionKey]) -> bool:
    """Returns True if nobody has used a group's positions since; others of the group may be those of another flow."""
    if now is None or now.is_idle != before.is_idle:
        return False
    return all(now.offsets.get(place) == before.offsets.get(place) for place in places)


def _unread_there(row: Checkpoint, error: Exception | None) -> Checkpoint:
    """Returns the row of a position whose group can't be read on the target or, without an error, whose log can't."""
    if error is None:
        return replace(row, sync=SyncOutcome.HELD, reason=PositionReason.REMOTE_UNREAD)
    if is_denied(error):
        return replace(row, sync=SyncOutcome.REFUSED, reason=target_groups.why(error))
    return replace(row, sync=SyncOutcome.HELD, reason=PositionReason.TARGET_UNREAD)


def _place(row: Checkpoint) -> tuple[str, PartitionKey]:
    return row.group_id, (row.target_topic or "", row.target_partition or 0)


def _waiting(row: Checkpoint, history: History) -> Checkpoint:
    """Returns the row of a position between two syncs.

    Its last outcome on the target holds until the group's position changes.
    """
    before = history.known.get(row.key)
    if before is not None and before.reason in KEPT:
        return replace(row, sync=SyncOutcome.WAITING)
    names = ("status", "upstream_offset", "downstream_offset", "metadata")
    if before is not None and before.sync and all(getattr(before, name) == getattr(row, name) for name in names):
        return replace(row, sync=before.sync, reason=before.reason, target_offset=before.target_offset)
    return replace(row, sync=SyncOutcome.WAITING)
