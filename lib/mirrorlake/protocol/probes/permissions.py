"""Asks a cluster whether the principal may do something, by requests that a broker can't carry out.

A broker checks permissions before it looks at the contents of a request. A commit for a partition that does not exist,
and the end of a transaction of a producer id that was never assigned, change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from kafka.protocol.producer import EndTxnRequest

from mirrorlake.partition_key import PartitionKey
from mirrorlake.printable import named
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import UNAUTHORIZED
from mirrorlake.protocol.group_offsets import offset_commit
from mirrorlake.protocol.group_requests import group_coordinators
from mirrorlake.protocol.network.network_client import IN_FLIGHT
from mirrorlake.protocol.network.response_error import ResponseError, check

NO_PARTITION, NO_PRODUCER_ID = 2**31 - 1, 2**62
GROUPS_PER_CALL = 500
NEEDED = "the principal needs READ on {}"


def denied_commits(cluster: Cluster, topics: Mapping[str, Iterable[str]], timeout_ms: int) -> dict[str, str]:
    """Returns the groups whose offsets the principal may not commit for some of these topics, with the reason.

    Args:
        cluster: the cluster.
        topics: the topics of each group.
        timeout_ms: the deadline of the requests and their retries.
    """
    names, found = list(topics), {}
    for at in range(0, len(names), GROUPS_PER_CALL):
        chunk = {group: sorted(topics[group]) for group in names[at : at + GROUPS_PER_CALL]}
        found.update(cluster.call("testing permissions of groups", partial(_denied, cluster, chunk), timeout_ms))
    return found


async def _denied(cluster: Cluster, topics: Mapping[str, list[str]]) -> dict[str, str]:
    try:
        nodes = await group_coordinators(cluster, list(topics))
    except ResponseError as error:
        if error.code not in UNAUTHORIZED:
            raise
        if len(topics) == 1:
            return {group: NEEDED.format(f"GROUP {named(group)}") for group in topics}
        parts = [await _denied(cluster, {group: of}) for group, of in topics.items()]
        return {group: reason for part in parts for group, reason in part.items()}
    found: dict[str, str] = {}
    under_way: deque[tuple[str, Any]] = deque()

    async def settle(limit: int) -> None:
        while len(under_way) > limit:
            group, future = under_way.popleft()
            found.update((group, reason) for reason in _reasons(group, await future))

    for group, node in ((group, node) for node, members in nodes.items() for group in members):
        await settle(IN_FLIGHT - 1)
        offsets: dict[PartitionKey, tuple[int, str]] = {(topic, NO_PARTITION): (0, "") for topic in topics[group]}
        under_way.append((group, cluster.send(offset_commit(group, offsets), node)))
    await settle(0)
    return found


def _reasons(group: str, response: Any) -> Iterator[str]:
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code in UNAUTHORIZED:
                kind = UNAUTHORIZED[partition.error_code]
                yield NEEDED.format(f"{kind} {named(group if kind == 'GROUP' else topic.name)}")


def denied_transactions(cluster: Cluster, transactional_ids: Iterable[str], timeout_ms: int) -> list[str]:
    """Returns those of the transactional ids that the principal may not use (WRITE)."""

    async def attempt(transactional_id: str) -> bool:
        try:
            node = await cluster.coordinator(transactional_id)
            response = await cluster.ask(
                EndTxnRequest[1](
                    transactional_id=transactional_id, producer_id=NO_PRODUCER_ID, producer_epoch=0, committed=False
                ),
                node,
            )
            check(response.error_code)
        except ResponseError as error:
            if error.retriable:
                raise
            return error.code in UNAUTHORIZED
        return False

    what = "testing the permission to use transactional ids"
    return [one for one in transactional_ids if cluster.call(what, partial(attempt, one), timeout_ms)]
