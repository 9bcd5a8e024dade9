"""The committed offsets of consumer groups: reading and committing them, hundreds of groups in one request.

See `group_requests.py` about groups that fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.group_requests import Failed, all_groups, answer_of, each_coordinator, each_group
from mirrorlake.protocol.network.network_client import IN_FLIGHT
from mirrorlake.protocol.network.response_error import ResponseError, WireError, check_repeatable
from mirrorlake.protocol.requests.grouping import by

PORTION_BYTES = 256 << 10  # of one commit; a batch of __consumer_offsets has at most 1 MiB by default
POSITION_BYTES = 128  # of a position in that log, without names and metadata
FIRST_BATCHED_FETCH = 8  # version since Kafka 3.0 (KIP-709)
READING = "reading the offsets of {} (needs DESCRIBE)"
COMMITTING = "committing offsets of {} (needs READ)"

GroupPositions = Mapping[PartitionKey, tuple[int, str]]  # offset and metadata
RefusedCommits = dict[PartitionKey, Exception]


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a group for one partition. A negative offset is a commit that was deleted."""

    topic: str
    partition: int
    offset: int
    metadata: str


def group_offsets(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> dict[str, list[Committed]]:
    """Reads the committed offsets of groups for all partitions.

    Raises:
        SourceError, TargetError: the offsets of a group can't be read within `timeout_ms`.
    """
    return all_groups(cluster, READING, groups, partial(_each_groups_offsets, cluster), timeout_ms)


def each_groups_offsets(
    cluster: Cluster, groups: Iterable[str], timeout_ms: int, *, is_stable: bool = False
) -> tuple[dict[str, list[Committed]], Failed]:
    """Reads the committed offsets of each group for all partitions.

    A group whose coordinator is away, or that is hidden from this principal, holds up no other.

    Args:
        cluster: the cluster.
        groups: names of the groups.
        timeout_ms: the deadline for all groups, with the retries.
        is_stable: True to read behind all open transactions that commit offsets. A group that has one can't be read
            until that has ended.

    Returns:
        The offsets by group, and the error for each group whose offsets can't be read.
    """
    attempt = partial(_each_groups_offsets, cluster, is_stable=is_stable)
    return each_group(cluster, READING, groups, attempt, timeout_ms)


def commit_group_offsets(
    cluster: Cluster, offsets: Mapping[str, GroupPositions], timeout_ms: int
) -> dict[str, RefusedCommits]:
    """Commits (offset, metadata) for groups without members, with several requests in flight.

    Returns:
        The errors of each group with commits that were refused, or not answered within `timeout_ms`, by partition.
    """
    refused, failed = each_group(cluster, COMMITTING, offsets, partial(_each_commit, cluster, offsets), timeout_ms)
    unanswered = {group: dict.fromkeys(offsets[group], error) for group, error in failed.items()}
    return {group: errors for group, errors in refused.items() if errors} | unanswered


async def _each_commit(
    cluster: Cluster, offsets: Mapping[str, GroupPositions], groups: list[str]
) -> tuple[dict[str, RefusedCommits], Failed]:
    by_node, failed = await each_coordinator(cluster, groups)
    refused: dict[str, RefusedCommits] = {group: {} for group in groups}
    under_way: deque[tuple[str, int, Any]] = deque()

    async def settle(limit: int) -> None:
        while len(under_way) > limit:
            group, node, future = under_way.popleft()
            try:
                refused[group] |= _refused(group, await answer_of(cluster, future, node))
            except (ResponseError, WireError) as error:
                failed[group] = error

    for node, members in by_node.items():
        for group in members:
            for portion in _portions(group, offsets[group]):
                await settle(IN_FLIGHT - 1)
                under_way.append((group, node, cluster.send(offset_commit(group, portion), node)))
    await settle(0)
    return {group: errors for group, errors in refused.items() if group not in failed}, failed


def _refused(group: str, response: Any) -> RefusedCommits:
    """Reads a response to OffsetCommit.

    Raises:
        ResponseError: the group may be committed later.
    """
    found: RefusedCommits = {}
    for topic in response.topics:
        for partition in (one for one in topic.partitions if one.error_code):
            key = topic.name, partition.partition_index
            error = ResponseError(partition.error_code, f"{group}, {key[0]}-{key[1]}", key)
            # A topic that is missing stays so for longer than a request is retried.
            if error.retriable and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error
            found[key] = error
    return found


def _portions(
    group: str, offsets: Mapping[PartitionKey, tuple[int, str]]
) -> Iterator[dict[PartitionKey, tuple[int, str]]]:
    """Yields the offsets of a group in portions that fit into one batch of the coordinator's log, at least one.

    The members of a group commit their own partitions each. All of them at once may be more than a batch can have.
    The coordinator refuses that as a whole, with an unknown error.
    """
    portion, size = dict[PartitionKey, tuple[int, str]](), 0
    for key, place in offsets.items():
        needed = POSITION_BYTES + len(group.encode()) + len(key[0].encode()) + len(place[1].encode())
        if portion and size + needed > PORTION_BYTES:
            yield portion
            portion, size = {}, 0
        portion[key] = place
        size += needed
    yield portion


async def _each_groups_offsets(
    cluster: Cluster, groups: list[str], *, is_stable: bool = False
) -> tuple[dict[str, list[Committed]], Failed]:
    """Reads the offsets of groups, and returns the errors of those that can't be read.

    With `is_stable`, a group that is about to commit offsets in a transaction can't be read until that has ended.
    """
    by_node, failed = await each_coordinator(cluster, groups)
    is_batched = cluster.max_version(OffsetFetchRequest) >= FIRST_BATCHED_FETCH
    asked = []
    for node, members in by_node.items():
        for names in [members] if is_batched else [[group] for group in members]:
            request = _offset_fetch(names, is_batched=is_batched, is_stable=is_stable)
            asked.append((names, node, cluster.send(request, node)))
    found: dict[str, list[Committed]] = {}
    for names, node, future in asked:
        try:
            response = await answer_of(cluster, future, node)
        except WireError as error:
            failed.update(dict.fromkeys(names, error))
            continue
        answers = {group.group_id: group for group in response.groups} if is_batched else {names[0]: response}
        for name, answer in answers.items():
            try:
                check_repeatable(answer.error_code, name)
                found[name] = _committed(name, answer.topics)
            except ResponseError as error:
                failed[name] = error
    return found, failed


def _offset_fetch(groups: list[str], *, is_batched: bool, is_stable: bool) -> Any:
    if not is_batched:
        return OffsetFetchRequest[7](group_id=groups[0], topics=None, require_stable=is_stable)
    asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    return OffsetFetchRequest[8](groups=asked, require_stable=is_stable)


def _committed(group: str, topics: Iterable[Any]) -> list[Committed]:
    """Reads the topics of an OffsetFetch response; raises ResponseError for a partition with an error."""
    found = []
    for topic in topics:
        for partition in topic.partitions:
            check_repeatable(partition.error_code, f"{group}, {topic.name}-{partition.partition_index}")
            found.append(
                Committed(topic.name, partition.partition_index, partition.committed_offset, partition.metadata or "")
            )
    return found


def offset_commit(group: str, offsets: Mapping[PartitionKey, tuple[int, str]]) -> Any:
    """Makes the OffsetCommit request for a group without members: no generation, no member (KIP-496 and before)."""
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offsets[topic, index][0],
                    committed_leader_epoch=-1,
                    committed_metadata=offsets[topic, index][1],
                )
                for _, index in keys
            ],
        )
        for topic, keys in by(lambda key: key[0], offsets).items()
    ]
    return OffsetCommitRequest[8](
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )
