"""A transaction that two processes share: a task writes it, the driver ends it.

A transaction belongs to (transactional id, producer id, epoch), not to a connection or process; that is in the public
protocol (KIP-98, KIP-890). One epoch carries one transaction here, so a delayed request of an earlier one always meets
a newer epoch, and an answer NONE to EndTxn(commit) always means that this very transaction is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorlake.errors import TargetError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster, ResponseError, check

# INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED: these ids are used up.
DEAD = frozenset({47, 48, 49, 90})

PRODUCE_TIMEOUT_MS, END_TIMEOUT_MS = 30_000, 30_000


class Outcome(enum.Enum):
    """What became of a transaction as far as EndTxn says. After DEAD only the log tells."""

    DECIDED = "decided"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Producer:
    """The three values a transaction belongs to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def begin(target: Cluster, transactional_id: str, transaction_timeout_ms: int, timeout_ms: int) -> Producer:
    """Fences whoever had this transactional id, aborts what it left open, and returns a new producer.

    When this returns, every earlier transaction of the id is decided and its markers are written.

    Raises:
        TargetError: no permission, no coordinator, transactions are not to be had on this cluster.
    """

    async def attempt() -> Producer:
        node = await target.coordinator(transactional_id)
        version = 5 if target.transaction_version >= 2 else 4
        response = await target.send(
            InitProducerIdRequest[version](
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            ),
            node,
        )
        check(response.error_code)
        return Producer(transactional_id, response.producer_id, response.producer_epoch)

    return target.call(
        f"InitProducerId for TRANSACTIONAL_ID {transactional_id} (needs WRITE and DESCRIBE)", attempt, timeout_ms
    )


async def add_partitions(
    target: Cluster, producer: Producer, partitions: Iterable[PartitionKey], timeout_ms: int
) -> None:
    """Adds partitions to the open transaction, which clusters without `transaction.version=2` want to be told
    beforehand."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)

    async def attempt() -> None:
        node = await target.coordinator(producer.transactional_id)
        response = await target.send(
            AddPartitionsToTxnRequest[3](
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in topics.items()
                ],
            ),
            node,
        )
        for topic in response.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                check(partition.partition_error_code, f"{topic.name}-{partition.partition_index}")

    await target.retry(
        f"AddPartitionsToTxn for {producer.transactional_id} (needs WRITE on the topics)", attempt, timeout_ms
    )


def end(target: Cluster, producer: Producer, *, commit: bool, timeout_ms: int) -> Outcome:
    """Asks the coordinator to commit or abort, until it answers; repeating the question is safe.

    Returns:
        DECIDED: it is decided as asked. DEAD: the ids are used up (a newer producer, a timeout, an answer that got lost
            long ago), and
        what became of the transaction must be read from the log.
    """

    async def attempt() -> Outcome:
        node = await target.coordinator(producer.transactional_id)
        version = 5 if target.transaction_version >= 2 else 3
        response = await target.send(
            EndTxnRequest[version](
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=commit,
            ),
            node,
        )
        try:
            check(response.error_code)
        except ResponseError as error:
            if error.code in DEAD:
                return Outcome.DEAD
            raise
        return Outcome.DECIDED

    return target.call(
        f"EndTxn({'commit' if commit else 'abort'}) for {producer.transactional_id}", attempt, timeout_ms
    )


def require_transactions(target: Cluster, timeout_ms: int, transactional_id: str) -> None:
    """Refuses a cluster on which no transaction can be started.

    Raises:
        TargetError: with the cause, before anything was created.
    """

    async def attempt() -> int:
        return await target.coordinator(transactional_id)

    try:
        target.call(
            f"finding the transaction coordinator of TRANSACTIONAL_ID {transactional_id} (needs DESCRIBE)",
            attempt,
            timeout_ms,
        )
    except TargetError as error:
        raise TargetError(
            f"{error.message}. Mirroring needs transactions on the target: brokers must be able to create "
            "__transaction_state "
            "(transaction.state.log.replication.factor not above the number of brokers)"
        ) from None
