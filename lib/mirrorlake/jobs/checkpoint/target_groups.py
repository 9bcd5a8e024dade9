"""Reads and moves consumer groups on the target.

Two rules come from problems with other tools (KAFKA-19794, redpanda-data/connect#3503). A group with members is never
changed. A group is never moved back, unless its owner reset it on the source and its target offset is unchanged since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.model.status import SyncOutcome
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import GROUP_ACTIVE, UNAUTHORIZED
from mirrorlake.protocol.group_offsets import (
    Committed,
    GroupPositions,
    commit_group_offsets,
    each_groups_offsets,
)
from mirrorlake.protocol.group_requests import Failed, each_idle_group
from mirrorlake.reasons import PositionReason

COMMITTED_AT_ONCE = 200  # groups, of those that are looked at and then moved


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A group on the target; an unknown group is idle and has no offsets. `metadata` are the texts committed with
    them."""

    is_idle: bool
    offsets: Mapping[PartitionKey, int]
    metadata: Mapping[PartitionKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one position of a group on the target: COMMITTED, IN_STEP or HELD, with its reason, and the
    offset that the group should have."""

    sync: SyncOutcome
    reason: str | None
    offset: int


def read_each_group(target: Cluster, groups: Iterable[str], timeout_ms: int) -> tuple[dict[str, TargetGroup], Failed]:
    """Reads state and offsets of groups on the target.

    Args:
        target: target cluster.
        groups: names of the groups.
        timeout_ms: the deadline for all groups, with the retries.

    Returns:
        The groups, and the error for each group that can't be read.
    """
    # The states first: a member that is gone has committed before.
    idle, undescribed = each_idle_group(target, groups, timeout_ms)
    offsets, unread = each_groups_offsets(target, idle, timeout_ms)
    return _joined(idle, offsets), unread | undescribed


def _joined(idle: Mapping[str, bool], offsets: Mapping[str, Iterable[Committed]]) -> dict[str, TargetGroup]:
    found = {}
    for group, of in offsets.items():
        there = {(one.topic, one.partition): one for one in of if one.offset >= 0}
        found[group] = TargetGroup(
            idle[group],
            {key: one.offset for key, one in there.items()},
            {key: one.metadata for key, one in there.items()},
        )
    return found


def decide(
    group: TargetGroup,
    key: PartitionKey,
    downstream_offset: int,
    upstream_offset: int,
    previous: Checkpoint | None,
    metadata: str = "",
    log_start: int = 0,
) -> Decision:
    """Decides about one position.

    No group is put before the start of a log. Its consumers would begin at their `auto.offset.reset` there, and with
    `latest` skip all that retention has left.

    Args:
        group: the group on the target.
        key: topic and partition on the target.
        downstream_offset: offset on the target that corresponds to the group's.
        upstream_offset: committed offset of the group on the source.
        previous: the position when the group was last in step; None if it never was.
        metadata: the text that the group has committed with its offset on the source.
        log_start: start of the log on the target.
    """
    current, offset = group.offsets.get(key), max(downstream_offset, log_start)
    is_untouched = previous is not None and current == max(previous.downstream_offset or 0, log_start)
    passed = PositionReason.PASSED_BY_RETENTION.value if offset > downstream_offset else None
    if current == offset:
        # Kafka Streams keeps the time of the partition in it. One that the group has committed on the target stays.
        there = group.metadata.get(key, "")
        is_behind = is_untouched and previous is not None and there == (previous.metadata or "") != metadata
        return Decision(SyncOutcome.COMMITTED if is_behind and group.is_idle else SyncOutcome.IN_STEP, passed, offset)
    if not group.is_idle:
        return Decision(SyncOutcome.HELD, PositionReason.MEMBERS, offset)
    if current is None or current < offset:
        return Decision(SyncOutcome.COMMITTED, passed, offset)
    before = previous.upstream_offset if previous is not None else None
    if is_untouched and before is not None and upstream_offset < before:
        moved_back = PositionReason.MOVED_BACK.about(before=before, offset=upstream_offset)
        return Decision(SyncOutcome.COMMITTED, "; ".join(filter(None, (passed, moved_back))), offset)
    return Decision(SyncOutcome.HELD, PositionReason.AHEAD.about(offset=current), offset)


def commit(
    target: Cluster, offsets: Mapping[str, GroupPositions], flow: Flow, timeout_ms: int = 0
) -> dict[tuple[str, PartitionKey], str]:
    """Commits (offset, metadata) for groups without members; returns the reason for each refused position.

    Args:
        target: target cluster.
        offsets: the positions by group and partition.
        flow: flow of the groups.
        timeout_ms: the time after which a group whose coordinator does not answer counts as refused; 0 for that of
            the flow.
    """
    refused = commit_group_offsets(target, offsets, timeout_ms or flow.connect_timeout_ms)
    return {(group, key): why(error) for group, errors in refused.items() for key, error in errors.items()}


def why(error: Exception) -> str:
    """Returns the reason for which the target has refused a group."""
    code = getattr(error, "code", 0)
    if code in GROUP_ACTIVE:
        return PositionReason.JOINED
    if code in UNAUTHORIZED:
        return PositionReason.NOT_AUTHORISED.about(resource=UNAUTHORIZED[code])
    return str(error)
