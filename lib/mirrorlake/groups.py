"""Consumer groups on the target: what they have, who is there, and moving those that nobody uses.

The rules, learnt from what hurts users elsewhere (KAFKA-19794, redpanda-data/connect#3503): a group with members is never touched; a group is
never moved back, unless its owner moved it back on the source and nobody has moved it here since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from mirrorlake.admin import REQUEST_TIMEOUT_S, refused
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.flow import Flow
from mirrorlake.group_requests import commit_group_offsets, group_offsets
from mirrorlake.wire import UNAUTHORIZED, Cluster

Key = tuple[str, int]  # topic and partition on the target

IDLE = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})
AT_ONCE = 1_000  # groups described in one call

# What a coordinator answers when somebody has joined in the meantime.
# Those are, in order, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, NON_EMPTY_GROUP, FENCED_INSTANCE_ID and the two of KIP-848 epochs.
BECAME_ACTIVE = frozenset({22, 25, 27, 68, 82, 110, 113})


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A group as the target has it; one it doesn't know is idle and has no offsets."""

    is_idle: bool
    offsets: Mapping[Key, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one position of a group on the target: `sync` is committed, in_step or held, and `reason` says why."""

    sync: str
    reason: str | None


def read_groups(admin: AdminClient, target: Cluster, groups: Iterable[str], flow: Flow) -> dict[str, TargetGroup]:
    """State and offsets of groups on the target; all requests of a thousand groups are under way at once.

    Raises:
        TargetError: naming the missing permission, if it is that.
    """
    names = list(groups)
    offsets = group_offsets(target, names, flow.connect_timeout_ms)
    return {
        group: TargetGroup(is_idle, {(position.topic, position.partition): position.offset for position in offsets[group] if position.offset >= 0})
        for group, is_idle in idle(admin, names, flow, target).items()
    }


def idle(admin: AdminClient, names: list[str], flow: Flow, cluster: Cluster) -> dict[str, bool]:
    """Whether nobody consumes with each group on a cluster of the flow.

    Raises:
        SourceError, TargetError: naming the missing permission, if it is that.
    """
    found: dict[str, bool] = {}
    for at in range(0, len(names), AT_ONCE):
        for group, described in admin.describe_consumer_groups(names[at : at + AT_ONCE], request_timeout=REQUEST_TIMEOUT_S).items():
            try:
                found[group] = _is_idle(described)
            except KafkaException as error:
                kind = SourceError if cluster.side == "source" else TargetError
                raise refused(kind, f"flow {flow.name}: describing group {group} on cluster {cluster.connection.alias}", "DESCRIBE", error) from None
    return found


def decide(group: TargetGroup, key: Key, downstream_offset: int, upstream_offset: int, previous_upstream: int | None, last_synced: int | None) -> Decision:
    """What to do about one position.

    Args:
        group: as the target has it.
        key: topic and partition on the target.
        downstream_offset, upstream_offset: where the group should be, and what it has on the source.
        previous_upstream: what it had on the source when it was last in step, None if it never was.
        last_synced: what it had on the target then.
    """
    current = group.offsets.get(key)
    if current == downstream_offset:
        return Decision("in_step", None)
    if not group.is_idle:
        return Decision("held", "somebody consumes with this group on the target")
    if current is None or current < downstream_offset:
        return Decision("committed", None)
    if previous_upstream is not None and upstream_offset < previous_upstream and current == last_synced:
        return Decision("committed", f"its owner moved the group back on the source, from {previous_upstream} to {upstream_offset}")
    return Decision("held", f"the group is ahead on the target, at {current}; it is never moved back")


def commit(target: Cluster, offsets: Mapping[str, Mapping[Key, tuple[int, str]]], flow: Flow) -> dict[str, str]:
    """Commits (offset, metadata) for groups without members; returns the reason for each group that the target refused."""
    reasons = {}
    for group, error in commit_group_offsets(target, offsets, flow.connect_timeout_ms).items():
        if error.code in BECAME_ACTIVE:
            reasons[group] = "somebody has joined this group on the target"
        elif error.code in UNAUTHORIZED:
            reasons[group] = f"not authorised: the principal needs READ on this {UNAUTHORIZED[error.code]}"
        else:
            reasons[group] = str(error)
    return reasons


def _is_idle(described: object) -> bool:
    try:
        return described.result().state in IDLE  # type: ignore[attr-defined]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return True
        raise
