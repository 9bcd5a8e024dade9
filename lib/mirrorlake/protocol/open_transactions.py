"""Finds the open transactions of partitions, and who has begun them (KIP-664), and waits for their ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, WireError
from mirrorlake.protocol.requests.grouping import by

SETTLE_S = 3.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in one partition.

    Attributes:
        first_offset: its first offset there. No read_committed consumer goes beyond.
        producer_id: the id of its producer.
        transactional_id: empty if it is not known; listing it needs DESCRIBE.
        started_ms: its beginning, in ms since the epoch; -1 if it is not known.
    """

    first_offset: int
    producer_id: int
    transactional_id: str = ""
    started_ms: int = -1


@dataclass(frozen=True, slots=True)
class HiddenEnd:
    """The records of one partition that no read_committed consumer sees, as a transaction is open before them.

    Attributes:
        stable: the last stable offset, at which the transaction begins.
        end: the high watermark.
    """

    stable: int
    end: int

    def about(self, key: PartitionKey, servers: Iterable[str]) -> str:
        """Says where the transaction is, what it hides, and how to find and end it."""
        where = f"--topic {key[0]} --partition {key[1]}"
        tool = f"kafka-transactions.sh --bootstrap-server {','.join(servers)}"
        return (
            f"a transaction is open in {key[0]}-{key[1]} since offset {self.stable}, and hides the records up to "
            f"offset {self.end}, acknowledged ones among them. Look at it ({tool} describe-producers {where}). Wait "
            f"for its end, or abort it ({tool} abort {where} --start-offset {self.stable})"
        )


def hidden_ends(
    cluster: Cluster, partitions: Iterable[PartitionKey], timeout_ms: int, settle_s: float = SETTLE_S
) -> dict[PartitionKey, HiddenEnd]:
    """Returns the ends of logs that an open transaction hides, and still hides after `settle_s` seconds.

    What comes into a log meanwhile is not waited for. A last stable offset that is read afterwards is behind all that
    was acknowledged before, but for the partitions that are returned.

    Raises:
        SourceError, TargetError: a partition can't be asked within `timeout_ms`.
    """
    keys = list(partitions)

    async def look() -> dict[PartitionKey, HiddenEnd]:
        ends = await cluster.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED)
        deadline, left = time.monotonic() + settle_s, list(ends)
        while True:
            stable = await cluster.list_offsets(left, LATEST_TIMESTAMP)
            left = [key for key in left if key in stable and stable[key] < ends[key]]
            if not left or time.monotonic() > deadline:
                return {key: HiddenEnd(stable[key], ends[key]) for key in left}
            await cluster.net.sleep(LOOK_S)

    return cluster.call("looking for open transactions", look, timeout_ms) if keys else {}


async def oldest_open(cluster: Cluster, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, OpenTransaction]:
    """Returns the first open transaction of each partition that has one.

    Partitions are left out if their leaders are too old for the request, don't answer, or refuse it (needs READ).
    """
    found: dict[PartitionKey, OpenTransaction] = {}
    for leader, keys in by(lambda key: cluster.leader(*key), partitions).items():
        try:
            found.update(await _of_leader(cluster, leader, keys))
        except (ResponseError, WireError):
            continue
    try:
        return await _with_names(cluster, found) if found else {}
    except (ResponseError, WireError):
        return found


async def _of_leader(cluster: Cluster, leader: int, keys: list[PartitionKey]) -> dict[PartitionKey, OpenTransaction]:
    topics = [
        DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[index for _, index in group])
        for topic, group in by(lambda key: key[0], keys).items()
    ]
    response = await cluster.ask(DescribeProducersRequest[0](topics=topics), leader)
    found = {}
    for topic in response.topics:
        for partition in topic.partitions:
            starts = [
                (producer.current_txn_start_offset, producer.producer_id)
                for producer in partition.active_producers
                if producer.current_txn_start_offset >= 0
            ]
            if starts:
                found[topic.name, partition.partition_index] = OpenTransaction(*min(starts))
    return found


async def _with_names(
    cluster: Cluster, found: dict[PartitionKey, OpenTransaction]
) -> dict[PartitionKey, OpenTransaction]:
    """Adds transactional ids and times of beginning, which only the coordinators know.

    Raises:
        WireError: the brokers are older than these requests (Kafka 3.0), and would close the connection.
    """
    cluster.max_version(ListTransactionsRequest)
    producer_ids = sorted({one.producer_id for one in found.values()})
    known: dict[int, tuple[str, int]] = {}
    for broker in await cluster.brokers():
        request = ListTransactionsRequest[0](state_filters=[], producer_id_filters=producer_ids)
        listed = await cluster.ask(request, broker)
        names = [state.transactional_id for state in listed.transaction_states]
        if not names:
            continue
        describe = DescribeTransactionsRequest[0](transactional_ids=names)
        described = await cluster.ask(describe, broker)
        for state in described.transaction_states:
            if state.error_code == 0:
                known[state.producer_id] = state.transactional_id, state.transaction_start_time_ms
    return {
        key: replace(one, transactional_id=known[one.producer_id][0], started_ms=known[one.producer_id][1])
        if one.producer_id in known
        else one
        for key, one in found.items()
    }


def settled_ends(
    cluster: Cluster, needed: Mapping[PartitionKey, int], what: str, because: str, timeout_ms: int
) -> dict[PartitionKey, int]:
    """Returns the last stable offsets of partitions once they have reached the needed offsets, as far as the logs do.

    A commit is decided before its markers are in the logs, and until then no read_committed consumer sees the records.

    Args:
        cluster: the cluster of the partitions.
        needed: the offset of each partition below which no transaction may be open.
        what: the operation, for the error message.
        because: the likely reason of an open transaction, for the error message.
        timeout_ms: the deadline.

    Raises:
        SourceError, TargetError: a transaction is still open at the deadline.
    """
    keys = list(needed)

    async def look() -> dict[PartitionKey, int]:
        stable = await cluster.list_offsets(keys, LATEST_TIMESTAMP)
        end = await cluster.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED)
        if waits := sorted(key for key in keys if stable[key] < min(needed[key], end[key])):
            topic, partition = waits[0]
            raise ResponseError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{topic}-{partition}: a transaction is open at offset {stable[waits[0]]}. {because}",
            )
        return stable

    return cluster.call(what, look, timeout_ms) if keys else {}
