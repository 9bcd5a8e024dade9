"""Partitions whose positions have no offset on the target yet, as the mirror job has not begun their present log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import PositionReason


def why_awaited(position: Position, topic_id: str | None, log_end: int, mirrored_to: int) -> str | None:
    """Compares the log on the source with the one that the flow has mirrored.

    Args:
        position: the flow's position in the partition.
        topic_id: id of the topic on the source now; empty if the broker has none.
        log_end: last stable offset of the partition, read after `mirrored_to`.
        mirrored_to: source offset up to which this log was mirrored at some earlier time.

    Returns:
        The reason to wait; None if the log is the same, as far as this shows.
    """
    if is_recreated(position, topic_id):
        return PositionReason.RECREATED
    return PositionReason.TRUNCATED if log_end < mirrored_to else None


def is_another(known_id: str, topic_id: str | None) -> bool:
    """Returns True if both ids of a topic are known, and differ: it was created anew in between."""
    return bool(known_id and topic_id) and known_id != topic_id


def is_recreated(position: Position, topic_id: str | None) -> bool:
    """Returns True if the topic of this id on the source is not the one that was mirrored, as far as ids show."""
    return is_another(position.topic_id, topic_id)


def is_replaced_there(position: Position, topic_id: str) -> bool:
    """Returns True if the remote topic of this id is not the one that the flow has written, as far as ids show.

    Offsets of the one that was written mean other records there, or none.

    Args:
        position: the flow's position in the partition.
        topic_id: id of the remote topic now; empty if the broker has none.
    """
    return is_another(position.target_topic_id, topic_id)


def former_remotes(positions: Iterable[Position], topic_ids: Mapping[str, str]) -> set[PartitionKey]:
    """Returns the remote partitions whose topic is not the one that the flow has written (`is_replaced_there`).

    Args:
        positions: the flow's positions.
        topic_ids: ids of remote topics now. A topic that is not among them is not looked at.
    """
    return {
        (one.target_topic, one.target_partition)
        for one in positions
        if is_replaced_there(one, topic_ids.get(one.target_topic, ""))
    }


def not_begun(
    flow: Flow, target: Cluster, keys: Iterable[PartitionKey], positions: Mapping[PartitionKey, Position]
) -> dict[PartitionKey, str]:
    """Returns the partitions to which a flow has mirrored nothing, and whose remote partition is not just empty, with
    the reason.

    Args:
        flow: the flow.
        target: its target.
        keys: the partitions on the source.
        positions: the flow's committed positions.
    """
    new = {
        key: (flow.policy.remote_topic(key[0]), key[1])
        for key in keys
        if key not in positions or positions[key].downstream_next == 0
    }
    there = target.existing(new.values(), flow.connect_timeout_ms, operations=True)
    bounds, unread = target.log_bounds(there)
    found: dict[PartitionKey, str] = {}
    for key, remote in new.items():
        if remote in unread:
            found[key] = PositionReason.REMOTE_UNREAD
        elif remote not in bounds:
            found[key] = PositionReason.NO_REMOTE
        elif bounds[remote][1] and not flow.topics_shared:
            found[key] = PositionReason.NOT_BEGUN
    return found
