"""Requests about consumer groups: listing, describing and deleting them; batched by coordinator.

A coordinator that is away, and a group that is hidden, concern some groups only. Functions with `each` in their names
return what they have found, and the errors of the groups that have failed. The others raise the first of these errors.

librdkafka's admin client is not used for any request to a coordinator, because it ends the process with SIGABRT:

- ListConsumerGroupOffsets, when the coordinator is loading or has moved (2.16.1: rd_kafka_handle_OffsetFetch needs a
  consumer group, which an admin client lacks);
- DescribeConsumerGroups, DeleteConsumerGroups and the like, when the connection is cut while the request is sent
  (librdkafka #4605 and #3663: `rd_kafka_enq_once_del_source_return: Assertion "eonce->refcnt > 0" failed`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from mirrorlake.errors import MirrorlakeError
from mirrorlake.printable import printable
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.network_client import IN_FLIGHT
from mirrorlake.protocol.network.response_error import (
    ResponseError,
    SilentBrokerError,
    WireError,
    check,
    check_repeatable,
    may_pass,
    repeatable,
)
from mirrorlake.protocol.requests.grouping import by, portions

GROUP_COORDINATOR = 0
GROUPS_PER_REQUEST = 500
DESCRIBED_PER_REQUEST = 100  # a response has all members of each group, with their assignments
WITHOUT_MEMBERS = ("Empty", "Dead", "")
UNKNOWN_STATES = ("Dead", "")  # of a group that is not there, or not of the classic protocol
CONSUMER = "consumer"
SHARE = "share"
# Protocols whose groups commit an offset for each partition, unlike those of Connect's workers.
WITH_OFFSETS = ("consumer", "streams", "")
LISTS_STATES, LISTS_TYPES = 4, 5  # versions since Kafka 2.6 (KIP-518) and 3.8 (KIP-848)
NEWER_TYPES = ["consumer", "share", "streams"]
FIRST_BATCHED_LOOKUP = 4  # version since Kafka 3.0 (KIP-699)

LISTING = "listing groups (needs DESCRIBE)"
DESCRIBING = "describing {} (needs DESCRIBE)"

Found = TypeVar("Found")
Failed = dict[str, Exception]  # by group
Attempt = Callable[[list[str]], Awaitable[tuple[dict[str, Found], Failed]]]


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


def list_groups(cluster: Cluster, timeout_ms: int) -> dict[str, Group]:
    """Returns all groups of every kind that this principal may describe, by group id."""

    async def listed() -> dict[str, Group]:
        found, failed = await _list_groups(cluster)
        for error in failed:
            raise error
        return found

    return cluster.call(LISTING, listed, timeout_ms)


def list_groups_of_each(cluster: Cluster, timeout_ms: int) -> tuple[dict[str, Group], bool]:
    """Returns the groups that brokers tell of now, and whether all of these brokers have answered.

    Raises:
        SourceError, TargetError: no broker tells of its groups.
    """

    async def listed() -> tuple[dict[str, Group], bool]:
        found, failed = await _list_groups(cluster)
        for error in failed:
            if not found or not may_pass(error):
                raise error
        return found, not failed

    return cluster.call(LISTING, listed, timeout_ms)


async def _list_groups(cluster: Cluster) -> tuple[dict[str, Group], list[Exception]]:
    version = min(LISTS_TYPES, cluster.max_version(ListGroupsRequest))
    request = ListGroupsRequest[version](states_filter=[], types_filter=[])
    found: dict[str, Group] = {}
    failed: list[Exception] = []
    for broker, future in [(broker, cluster.send(request, broker)) for broker in await cluster.brokers()]:
        try:
            found.update(_listed(await cluster.answer(future, broker), version))
        except (ResponseError, WireError) as error:
            failed.append(error)
    return found, failed


def _listed(response: Any, version: int) -> dict[str, Group]:
    """Reads a response to ListGroups."""
    check_repeatable(response.error_code, "listing groups")
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
    return all_groups(cluster, DESCRIBING, groups, partial(_each_described, cluster), timeout_ms, DESCRIBED_PER_REQUEST)


def idle_groups(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> dict[str, bool]:
    """Returns, for each group, whether it has no members; a group that the cluster doesn't know has none."""
    return {name: not group.has_members for name, group in describe_groups(cluster, groups, timeout_ms).items()}


def each_idle_group(cluster: Cluster, groups: Iterable[str], timeout_ms: int) -> tuple[dict[str, bool], Failed]:
    """Does the same as `idle_groups` for each group."""
    found, failed = each_group(
        cluster, DESCRIBING, groups, partial(_each_described, cluster), timeout_ms, DESCRIBED_PER_REQUEST
    )
    return {name: not group.has_members for name, group in found.items()}, failed


async def answer_of(cluster: Cluster, future: Any, node: int) -> Any:
    """Awaits the response of a broker; does not wait for one that is silent already.

    Raises:
        SilentBrokerError: the broker is silent. Many requests to it must not wait one after the other.
    """
    if cluster.is_silent(node):
        raise SilentBrokerError("no answer in time")
    return await cluster.answer(future, node)


async def _each_described(cluster: Cluster, groups: list[str]) -> tuple[dict[str, Group], Failed]:
    request = DescribeGroupsRequest[min(5, cluster.max_version(DescribeGroupsRequest))]
    by_node, failed = await each_coordinator(cluster, groups)
    futures = {
        node: cluster.send(request(groups=members, include_authorized_operations=False), node)
        for node, members in by_node.items()
    }
    found: dict[str, Group] = {}
    for node, future in futures.items():
        unknown: set[str] = set()
        try:
            for group in (await answer_of(cluster, future, node)).groups:
                if group.error_code:
                    failed[group.group_id] = repeatable(group.error_code, printable(group.group_id))
                    continue
                found[group.group_id] = Group(group.protocol_type, "classic", group.group_state)
                if group.group_state in UNKNOWN_STATES:
                    unknown.add(group.group_id)
            if unknown and cluster.max_version(ListGroupsRequest) >= LISTS_TYPES:
                newer = ListGroupsRequest[LISTS_TYPES](states_filter=[], types_filter=NEWER_TYPES)
                listed = _listed(await cluster.ask(newer, node), LISTS_TYPES)
                found.update({name: listed.get(name, Group("", "")) for name in unknown})
        except (ResponseError, WireError) as error:
            failed.update(dict.fromkeys(by_node[node], error))
    return {name: group for name, group in found.items() if name not in failed}, failed


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


async def group_coordinators(cluster: Cluster, groups: list[str]) -> dict[int, list[str]]:
    """Finds the coordinators of groups; returns the groups of each node. For use inside the event loop.

    Raises:
        ResponseError: a group has no coordinator now, or is hidden from this principal.
    """
    by_node, failed = await each_coordinator(cluster, groups)
    for error in failed.values():
        raise error
    return by_node


async def each_coordinator(cluster: Cluster, groups: list[str]) -> tuple[dict[int, list[str]], Failed]:
    """Finds the coordinators of groups; returns the groups of each node, and the errors of groups that have none.

    For use inside the event loop.
    """
    if cluster.max_version(FindCoordinatorRequest) < FIRST_BATCHED_LOOKUP:
        found = await _looked_up_one_by_one(cluster, groups)
    else:
        response = await cluster.send_any(
            FindCoordinatorRequest[4](key_type=GROUP_COORDINATOR, coordinator_keys=groups)
        )
        found = [(one.key, one.node_id, one.error_code) for one in response.coordinators]
    failed: Failed = {group: repeatable(code, printable(group)) for group, _, code in found if code}
    nodes = {group: node for group, node, code in found if not code}
    return by(nodes.__getitem__, nodes), failed


async def _looked_up_one_by_one(cluster: Cluster, groups: list[str]) -> list[tuple[str, int, int]]:
    """Returns each group with its coordinator and the error code."""

    async def looked_up(group: str) -> tuple[str, int, int]:
        response = await cluster.send_any(FindCoordinatorRequest[3](key=group, key_type=GROUP_COORDINATOR))
        return group, int(response.node_id), int(response.error_code)

    return await cluster.each([partial(looked_up, group) for group in groups], IN_FLIGHT)


def all_groups(
    cluster: Cluster,
    what: str,
    groups: Iterable[str],
    attempt: Attempt[Found],
    timeout_ms: int,
    at_once: int = GROUPS_PER_REQUEST,
) -> dict[str, Found]:
    """Runs an attempt for groups, some at a time; returns what it has found, by group.

    Args:
        cluster: the cluster.
        what: the operation, for the error message, with braces in the place of the groups.
        groups: names of the groups.
        attempt: the coroutine function to run with the names of some groups.
        timeout_ms: the deadline for `at_once` groups, with the retries.
        at_once: the number of groups of one attempt.

    Raises:
        SourceError, TargetError: a group has failed until the deadline.
    """
    found: dict[str, Found] = {}
    for some in portions(groups, lambda _: 1, at_once):

        async def run(some: list[str] = some) -> dict[str, Found]:
            successes, failed = await attempt(some)
            for error in failed.values():
                raise error
            return successes

        found.update(cluster.call(what.format(_several(some)), run, timeout_ms))
    return found


def each_group(
    cluster: Cluster,
    what: str,
    groups: Iterable[str],
    attempt: Attempt[Found],
    timeout_ms: int,
    at_once: int = GROUPS_PER_REQUEST,
) -> tuple[dict[str, Found], Failed]:
    """Does the same as `all_groups`, and returns the errors of groups that have failed until the deadline, too.

    The deadline is for all groups. Each of them is tried once, at least.
    """
    found: dict[str, Found] = {}
    failed: Failed = {}
    deadline = time.monotonic() + timeout_ms / 1000
    for some in portions(groups, lambda _: 1, at_once):

        async def run(some: list[str] = some) -> None:
            left = [one for one in some if one not in found and (one not in failed or may_pass(failed[one]))]
            successes, errors = await attempt(left)
            found.update(successes)
            failed.update(errors)
            for error in errors.values():
                if may_pass(error):
                    raise error

        try:
            cluster.call(what.format(_several(some)), run, max(0, int(1000 * (deadline - time.monotonic()))))
        except MirrorlakeError as error:
            if not error.retriable:
                raise
            for one in some:
                failed.setdefault(one, error)
    return found, {group: error for group, error in failed.items() if group not in found}


def _several(groups: list[str]) -> str:
    """Names groups in a message."""
    return f"GROUP {printable(groups[0])}" + (f" and {len(groups) - 1} more" if len(groups) > 1 else "")
