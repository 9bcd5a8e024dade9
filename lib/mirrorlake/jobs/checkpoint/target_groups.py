"""Reads and moves consumer groups on the target.

Two rules come from problems with other tools (KAFKA-19794, redpanda-data/connect#3503). A group with members is never
changed. A group is never moved back, unless its owner reset it on the source and its target offset is unchanged since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorlake.config.flow import Flow
from mirrorlake.model.status import SyncOutcome
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import GROUP_ACTIVE, UNAUTHORIZED
from mirrorlake.protocol.group_requests import commit_group_offsets, group_offsets, idle_groups
from mirrorlake.reasons import PositionReason


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A group on the target; an unknown group is idle and has no offsets."""

    is_idle: bool
    offsets: Mapping[PartitionKey, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one position of a group on the target, with its reason: COMMITTED, IN_STEP or HELD."""

    sync: SyncOutcome
    reason: str | None


def read_groups(target: Cluster, groups: Iterable[str], flow: Flow) -> dict[str, TargetGroup]:
    """Reads state and offsets of groups on the target.

    Args:
        target: target cluster.
        groups: names of the groups.
        flow: flow of the groups.

    Raises:
        TargetError: the groups can't be read; names the missing permission, if any.
    """
    names = list(groups)
    idle = idle_groups(target, names, flow.connect_timeout_ms)  # first: a member that is gone has committed before
    offsets = group_offsets(target, names, flow.connect_timeout_ms)
    return {
        group: TargetGroup(
            is_idle,
            {
                (position.topic, position.partition): position.offset
                for position in offsets[group]
                if position.offset >= 0
            },
        )
        for group, is_idle in idle.items()
    }


def decide(
    group: TargetGroup,
    key: PartitionKey,
    downstream_offset: int,
    upstream_offset: int,
    previous_upstream: int | None,
    last_synced: int | None,
) -> Decision:
    """Decides about one position.

    Args:
        group: the group on the target.
        key: topic and partition on the target.
        downstream_offset: offset that the group should have on the target.
        upstream_offset: committed offset of the group on the source.
        previous_upstream: its source offset when it was last in step; None if it never was.
        last_synced: its target offset at that time.
    """
    current = group.offsets.get(key)
    if current == downstream_offset:
        return Decision(SyncOutcome.IN_STEP, None)
    if not group.is_idle:
        return Decision(SyncOutcome.HELD, PositionReason.MEMBERS)
    if current is None or current < downstream_offset:
        return Decision(SyncOutcome.COMMITTED, None)
    if previous_upstream is not None and upstream_offset < previous_upstream and current == last_synced:
        return Decision(
            SyncOutcome.COMMITTED,
            PositionReason.MOVED_BACK.about(before=previous_upstream, offset=upstream_offset),
        )
    return Decision(SyncOutcome.HELD, PositionReason.AHEAD.about(offset=current))


def commit(
    target: Cluster, offsets: Mapping[str, Mapping[PartitionKey, tuple[int, str]]], flow: Flow
) -> dict[str, str]:
    """Commits (offset, metadata) for groups without members; returns the reason for each refused group."""
    reasons: dict[str, str] = {}
    for group, error in commit_group_offsets(target, offsets, flow.connect_timeout_ms).items():
        if error.code in GROUP_ACTIVE:
            reasons[group] = PositionReason.JOINED
        elif error.code in UNAUTHORIZED:
            reasons[group] = PositionReason.NOT_AUTHORISED.about(resource=UNAUTHORIZED[error.code])
        else:
            reasons[group] = str(error)
    return reasons
