"""Looks at groups again right before they are moved: a group that was at work since the plan is not moved.

A group without members when the plan was made may have got some, read on and stopped again. Its line is old then.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint import target_groups
from mirrorlake.jobs.checkpoint.group_positions import SeenIn
from mirrorlake.jobs.failover.plan import BlockKind, Line
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import each_groups_offsets
from mirrorlake.protocol.group_requests import idle_groups


def changed_groups(flow: Flow, lines: Iterable[Line], source: Cluster | None, target: Cluster) -> dict[str, str]:
    """Returns the groups that are not as their lines say any more, each with what has changed.

    Groups whose members on the source the operator has accepted may go on there.

    Args:
        flow: the flow of the lines.
        lines: the lines that a run is about to carry out.
        source: source cluster; None if it is dead.
        target: target cluster.

    Raises:
        SourceError: the source can't be asked about the groups.
    """
    movable = [line for line in lines if line.go and line.has_place]
    names = sorted({line.group_id for line in movable})
    on_target, unread = target_groups.read_each_group(target, names, flow.connect_timeout_ms)
    found = {group: target_groups.why(error) for group, error in unread.items()}
    for line in (line for line in movable if line.group_id not in unread):
        key = (line.target_topic or "", line.target_partition or 0)
        there = on_target[line.group_id].offsets.get(key)
        if there != line.target_offset:
            found[line.group_id] = _said(flow.target, key, line.target_offset, there)
    from_source = [line for line in movable if line.seen_in == SeenIn.SOURCE and BlockKind.MEMBERS not in line.accepted]
    return found | _changed_on_source(flow, from_source, source) if source is not None and from_source else found


def _changed_on_source(flow: Flow, lines: list[Line], source: Cluster) -> dict[str, str]:
    names = sorted({line.group_id for line in lines})
    idle = idle_groups(source, names, flow.connect_timeout_ms)  # first: a member that is gone has committed before
    committed, failed = each_groups_offsets(source, names, flow.connect_timeout_ms, is_stable=True)
    found = {group: str(error) for group, error in failed.items()}
    here = {(group, one.topic, one.partition): one.offset for group, of in committed.items() for one in of}
    for line in (line for line in lines if line.group_id not in found):
        key = (line.topic or "", line.partition or 0)
        now = here.get((line.group_id, *key))
        if now != line.upstream_offset:
            found[line.group_id] = _said(flow.source, key, line.upstream_offset, now)
        elif not idle[line.group_id]:
            found[line.group_id] = f"a consumer has joined this group on cluster {flow.source} since the plan"
    return found


def _said(cluster: str, key: PartitionKey, before: int | None, now: int | None) -> str:
    return (
        f"the group's offset in {key[0]}-{key[1]} on cluster {cluster} was {_shown(before)} in the plan, and is "
        f"{_shown(now)} now"
    )


def _shown(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
