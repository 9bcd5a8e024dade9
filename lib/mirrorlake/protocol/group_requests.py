"""Requests about consumer groups: listing, describing and deleting them, reading and committing their offsets; batched
by coordinator.

librdkafka's admin client is not used for any request to a coordinator, because it ends the process with SIGABRT:

- ListConsumerGroupOffsets, when the coordinator is loading or has moved (2.16.1: rd_kafka_handle_OffsetFetch needs a
  consumer group, which an admin client lacks);
- DescribeConsumerGroups, DeleteConsumerGroups and the like, when the connection is cut while the request is sent
  (librdkafka #4605 and #3663: `rd_kafka_enq_once_del_source_return: Assertion "eonce->refcnt > 0" failed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from mirrorlake.errors import MirrorlakeError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.printable import printable
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.network_client import IN_FLIGHT
from mirrorlake.protocol.network.response_error import ResponseError, WireError, check, may_pass
from mirrorlake.protocol.requests.grouping import by

GROUP_COORDINATOR = 0
GROUPS_PER_REQUEST = 500
DESCRIBED_PER_REQUEST = 100  # a response has all members of each group, with their assignments
WITHOUT_MEMBERS = ("Empty", "Dead", "")
UNKNOWN_STATES = ("Dead", "")  # of a group that is not there, or not of the classic protocol
CONSUMER = "consumer"
PORTION_BYTES = 256 << 10  # of one commit; a batch of __consumer_offsets has at most 1 MiB by default
POSITION_BYTES = 128  # of a position in that log, without names and metadata
SHARE = "share"
# Protocols whose groups commit an offset for each partition, unlike those of Connect's workers.
WITH_OFFSETS = ("consumer", "streams", "")
LISTS_STATES, LISTS_TYPES = 4, 5  # versions since Kafka 2.6 (KIP-518) and 3.8 (KIP-848)
NEWER_TYPES = ["consumer", "share", "streams"]
FIRST_BATCHED_LOOKUP, FIRST_BATCHED_FETCH = 4, 8  # versions since Kafka 3.0 (KIP-699, KIP-709)


@dataclass(frozen=True, slots=True)
class Group:
    """A group: its protocol type and its kind.

    `protocol_type` is `consumer` or `connect`; it is empty for a group that never had members. `kind` is `classic`,
    `consumer`, `share` or `streams`; it is empty where brokers don't return it. So is `state`, such as `Stable`.
    """

    protocol_type: str
    kind: str
    state: str = ""

    @property
    def has_members(self) -> bool:
        """Returns True if the group has members, as its state says."""
        return self.state not in WITHOUT_MEMBERS


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a group for one partition. A negative offset is a commit that was deleted."""

    topic: str
    partition: int
    offset: int
    metadata: str


def list_groups(cluster: Cluster, timeout_ms: int) -> dict[str, Group]:
    """Returns all groups of every kind that this principal may describe, by group id."""
    return cluster.call("listing groups (needs DESCRIBE)", lambda: _list_groups(cluster), timeout_ms)


async def _list_groups(cluster: Cluster) -> dict[str, Group]:
    version = min(LISTS_TYPES, cluster.max_version(ListGroupsRequest))
    request = ListGroupsRequest[version](states_filter=[], types_filter=[])
    found: dict[str, Group] = {}
    for future in [cluster.send(request, broker) for broker in await cluster.brokers()]:
        found.update(_listed(await future, version))
    return found


def _listed(response: Any, version: int) -> dict[str, Group]:
    """Reads a response to ListGroups."""
    check(response.error_code, "listing groups")
    return {
        group.group_id: Group(
            group.protocol_type,
            (group.group_type if version >= LISTS_TYPES else "").lower(),
            group.group_state if version >= LISTS_STATES else "",
        )
        for group in response.groups
    }


def describe_groups(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> dict[str, Group]:
    """Returns type and state of groups; those of a group that the cluster doesn't know are empty.

    DescribeGroups knows the groups of the classic protocol. For the others (KIP-848 and later), ListGroups returns the
    state at their coordinators.
    """
    names = list(groups)
    found: dict[str, Group] = {}
    for at in range(0, len(names), DESCRIBED_PER_REQUEST):
        chunk = names[at : at + DESCRIBED_PER_REQUEST]
        what = f"describing {_several(chunk)} (needs DESCRIBE)"
        found.update(cluster.call(what, partial(_described, cluster, chunk), timeout_ms))
    return found


def idle_groups(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> dict[str, bool]:
    """Returns, for each group, whether it has no members; a group that the cluster doesn't know has none."""
    return {name: not group.has_members for name, group in describe_groups(cluster, groups, timeout_ms).items()}


async def _described(cluster: Cluster, groups: list[str]) -> dict[str, Group]:
    request = DescribeGroupsRequest[min(5, cluster.max_version(DescribeGroupsRequest))]
    futures = {
        node: cluster.send(request(groups=members, include_authorized_operations=False), node)
        for node, members in (await group_coordinators(cluster, groups)).items()
    }
    found: dict[str, Group] = {}
    for node, future in futures.items():
        unknown: set[str] = set()
        for group in (await cluster.answer(future, node)).groups:
            check(group.error_code, printable(group.group_id))
            found[group.group_id] = Group(group.protocol_type, "classic", group.group_state)
            if group.group_state in UNKNOWN_STATES:
                unknown.add(group.group_id)
        if unknown and cluster.max_version(ListGroupsRequest) >= LISTS_TYPES:
            newer = ListGroupsRequest[LISTS_TYPES](states_filter=[], types_filter=NEWER_TYPES)
            listed = _listed(await cluster.ask(newer, node), LISTS_TYPES)
            found.update({name: listed.get(name, Group("", "")) for name in unknown})
    return found


def delete_group(cluster: Cluster, group: str, timeout_ms: int) -> None:
    """Deletes a group without members, with its offsets; one that is not there is no error."""
    cluster.call(
        f"deleting GROUP {printable(group)} (needs DELETE)", partial(_delete_group, cluster, group), timeout_ms
    )


async def _delete_group(cluster: Cluster, group: str) -> None:
    (node,) = await group_coordinators(cluster, [group])
    request = DeleteGroupsRequest[min(2, cluster.max_version(DeleteGroupsRequest))]
    for result in (await cluster.ask(request(groups_names=[group]), node)).results:
        if result.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(result.error_code, printable(group))


def group_offsets(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> dict[str, list[Committed]]:
    """Reads the committed offsets of groups for all partitions.

    One request covers hundreds of groups of a coordinator.

    Raises:
        SourceError, TargetError: the offsets of a group can't be read within `timeout_ms`.
    """
    found: dict[str, list[Committed]] = {}
    for chunk in _chunks(groups):
        found.update(cluster.call(_reading(chunk), partial(_group_offsets, cluster, chunk), timeout_ms))
    return found


def stable_offsets(
    cluster: Cluster, groups: Iterable[str], timeout_ms: int
) -> tuple[dict[str, list[Committed]], dict[str, str]]:
    """Reads the committed offsets of each group for all partitions, behind all open transactions that commit some.

    A group whose coordinator is away, or that is hidden from this principal, holds up no other.

    Args:
        cluster: the cluster.
        groups: names of the groups.
        timeout_ms: the deadline for hundreds of groups, with its retries.

    Returns:
        The offsets by group, and the reason for each group whose offsets can't be read.
    """
    found: dict[str, list[Committed]] = {}
    unread: dict[str, str] = {}
    for chunk in _chunks(groups):
        offsets, reasons = _stable_offsets(cluster, chunk, timeout_ms)
        found.update(offsets)
        unread.update(reasons)
    return found, unread


def _stable_offsets(
    cluster: Cluster, groups: list[str], timeout_ms: int
) -> tuple[dict[str, list[Committed]], dict[str, str]]:
    found: dict[str, list[Committed]] = {}
    failed: dict[str, Exception] = {}

    async def read() -> None:
        left = [group for group in groups if group not in found and (group not in failed or may_pass(failed[group]))]
        offsets, errors = await _each_groups_offsets(cluster, left, is_stable=True)
        found.update(offsets)
        failed.update(errors)
        for error in errors.values():
            if may_pass(error):
                raise error

    try:
        cluster.call(_reading(groups), read, timeout_ms)
    except MirrorlakeError as error:
        if not error.retriable:
            raise
        failed = dict.fromkeys(groups, error) | failed
    return found, {group: str(error) for group, error in failed.items() if group not in found}


def commit_group_offsets(
    cluster: Cluster, offsets: Mapping[str, Mapping[PartitionKey, tuple[int, str]]], timeout_ms: int
) -> dict[str, ResponseError]:
    """Commits (offset, metadata) for groups without members, with several requests in flight.

    Returns:
        The error of each group whose commit was rejected.
    """
    names = list(offsets)
    refused: dict[str, ResponseError] = {}
    for at in range(0, len(names), GROUPS_PER_REQUEST):
        chunk = {group: offsets[group] for group in names[at : at + GROUPS_PER_REQUEST]}
        what = f"committing offsets of {_several(list(chunk))} (needs READ)"
        refused.update(cluster.call(what, partial(_commit_group_offsets, cluster, chunk), timeout_ms))
    return refused


async def _commit_group_offsets(
    cluster: Cluster, offsets: Mapping[str, Mapping[PartitionKey, tuple[int, str]]]
) -> dict[str, ResponseError]:
    refused: dict[str, ResponseError] = {}
    under_way: deque[tuple[str, Any]] = deque()

    async def settle(limit: int) -> None:
        while len(under_way) > limit:
            group, future = under_way.popleft()
            errors = [
                ResponseError(partition.error_code, f"{group}, {topic.name}-{partition.partition_index}")
                for topic in (await future).topics
                for partition in topic.partitions
                if partition.error_code
            ]
            for error in errors:
                # A topic that is missing stays so for longer than a request is retried, and concerns its groups only.
                if error.retriable and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise error
                refused.setdefault(group, error)

    for node, members in (await group_coordinators(cluster, list(offsets))).items():
        for group in members:
            for portion in _portions(group, offsets[group]):
                await settle(IN_FLIGHT - 1)
                under_way.append((group, cluster.send(offset_commit(group, portion), node)))
    await settle(0)
    return refused


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


async def group_coordinators(cluster: Cluster, groups: list[str]) -> dict[int, list[str]]:
    """Finds the coordinators of groups; returns the groups of each node. For use inside the event loop.

    Raises:
        ResponseError: a group has no coordinator now, or is hidden from this principal.
    """
    by_node, failed = await _each_coordinator(cluster, groups)
    for error in failed.values():
        raise error
    return by_node


async def _each_coordinator(cluster: Cluster, groups: list[str]) -> tuple[dict[int, list[str]], dict[str, Exception]]:
    """Finds the coordinators of groups; returns the groups of each node, and the errors of groups that have none."""
    if cluster.max_version(FindCoordinatorRequest) < FIRST_BATCHED_LOOKUP:
        found = await _looked_up_one_by_one(cluster, groups)
    else:
        response = await cluster.send_any(
            FindCoordinatorRequest[4](key_type=GROUP_COORDINATOR, coordinator_keys=groups)
        )
        found = [(one.key, one.node_id, one.error_code) for one in response.coordinators]
    failed: dict[str, Exception] = {group: ResponseError(code, printable(group)) for group, _, code in found if code}
    nodes = {group: node for group, node, code in found if not code}
    return by(nodes.__getitem__, nodes), failed


async def _looked_up_one_by_one(cluster: Cluster, groups: list[str]) -> list[tuple[str, int, int]]:
    """Returns each group with its coordinator and the error code."""

    async def looked_up(group: str) -> tuple[str, int, int]:
        response = await cluster.send_any(FindCoordinatorRequest[3](key=group, key_type=GROUP_COORDINATOR))
        return group, int(response.node_id), int(response.error_code)

    return await cluster.each([partial(looked_up, group) for group in groups], IN_FLIGHT)


async def _group_offsets(cluster: Cluster, groups: list[str]) -> dict[str, list[Committed]]:
    found, failed = await _each_groups_offsets(cluster, groups, is_stable=False)
    for error in failed.values():
        raise error
    return found


async def _each_groups_offsets(
    cluster: Cluster, groups: list[str], *, is_stable: bool
) -> tuple[dict[str, list[Committed]], dict[str, Exception]]:
    """Reads the offsets of groups, and returns the errors of those that can't be read.

    With `is_stable`, a group that is about to commit offsets in a transaction can't be read until that has ended.
    """
    by_node, failed = await _each_coordinator(cluster, groups)
    is_batched = cluster.max_version(OffsetFetchRequest) >= FIRST_BATCHED_FETCH
    asked = []
    for node, members in by_node.items():
        for names in [members] if is_batched else [[group] for group in members]:
            request = _offset_fetch(names, is_batched=is_batched, is_stable=is_stable)
            asked.append((names, node, cluster.send(request, node)))
    found: dict[str, list[Committed]] = {}
    for names, node, future in asked:
        try:
            response = await cluster.answer(future, node)
        except WireError as error:
            failed.update(dict.fromkeys(names, error))
            continue
        answers = {group.group_id: group for group in response.groups} if is_batched else {names[0]: response}
        for name, answer in answers.items():
            try:
                check(answer.error_code, name)
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
            check(partition.error_code, f"{group}, {topic.name}-{partition.partition_index}")
            found.append(
                Committed(topic.name, partition.partition_index, partition.committed_offset, partition.metadata or "")
            )
    return found


def _chunks(groups: Iterable[str]) -> list[list[str]]:
    names = list(groups)
    return [names[at : at + GROUPS_PER_REQUEST] for at in range(0, len(names), GROUPS_PER_REQUEST)]


def _reading(groups: list[str]) -> str:
    return f"reading the offsets of {_several(groups)} (needs DESCRIBE)"


def _several(groups: list[str]) -> str:
    """Names groups in a message."""
    return f"GROUP {printable(groups[0])}" + (f" and {len(groups) - 1} more" if len(groups) > 1 else "")


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
