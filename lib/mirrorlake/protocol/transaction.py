"""A transaction that two processes share: a task writes it, the driver ends it.

A transaction belongs to (transactional id, producer id, epoch), not to a connection or process, by the public
protocol (KIP-98, KIP-890). In mirrorlake each epoch carries one transaction. A delayed request of an earlier
transaction therefore always meets a newer epoch. The response NONE to EndTxn(commit) always means that this very
transaction is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorlake.errors import MirrorlakeError, TargetError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.error_codes import TRANSACTION_OVER, ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, check_repeatable, is_unauthorized

PRODUCE_TIMEOUT_MS, END_TIMEOUT_MS = 30_000, 30_000
TRANSACTION_LOG = "__transaction_state"
BEGUN_AT_ONCE = ENDED_AT_ONCE = 32


class Outcome(enum.Enum):
    """Results of EndTxn. After DEAD, only the log shows whether the transaction was committed."""

    DECIDED = "decided"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Producer:
    """The three values that a transaction belongs to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def begin(target: Cluster, transactional_id: str, transaction_timeout_ms: int, timeout_ms: int) -> Producer:
    """Fences earlier producers of a transactional id, aborts their open transaction, and returns a new producer.

    On return, every earlier transaction of the id is decided, and its markers are written.

    Args:
        target: the target cluster.
        transactional_id: the transactional id.
        transaction_timeout_ms: the time after which the broker aborts the new producer's transaction.
        timeout_ms: the deadline of the request and its retries.

    Raises:
        TargetError: a permission or the coordinator is missing, or the cluster does not support transactions.
    """
    producer: Producer = target.net.run(
        lambda: begin_async(target, transactional_id, transaction_timeout_ms, timeout_ms)
    )
    return producer


def begin_all(
    target: Cluster, transactional_ids: Iterable[str], transaction_timeout_ms: int, timeout_ms: int
) -> list[Producer]:
    """Does the same as `begin` for several transactional ids, which are asked for at the same time.

    Returns:
        A producer for each of them, in their order.
    """
    attempts = [
        partial(begin_async, target, transactional_id, transaction_timeout_ms, timeout_ms)
        for transactional_id in transactional_ids
    ]
    producers: list[Producer] = target.net.run(lambda: target.each(attempts, BEGUN_AT_ONCE))
    return producers


async def begin_async(target: Cluster, transactional_id: str, transaction_timeout_ms: int, timeout_ms: int) -> Producer:
    """Does the same as `begin`, for use inside the event loop."""

    async def attempt() -> Producer:
        node = await target.coordinator(transactional_id)
        version = 5 if target.transaction_version >= 2 else 4
        response = await target.ask(
            InitProducerIdRequest[version](
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            ),
            node,
        )
        check_repeatable(response.error_code)
        return Producer(transactional_id, response.producer_id, response.producer_epoch)

    return await target.retry(
        f"InitProducerId for TRANSACTIONAL_ID {transactional_id} (needs WRITE and DESCRIBE)", attempt, timeout_ms
    )


async def add_partitions(
    target: Cluster, producer: Producer, partitions: Iterable[PartitionKey], timeout_ms: int
) -> None:
    """Adds partitions to the open transaction; clusters without `transaction.version=2` require it before a Produce.

    Args:
        target: the target cluster.
        producer: the producer of the transaction.
        partitions: topics and partitions.
        timeout_ms: the deadline of the request and its retries.

    Raises:
        ResponseError: the transaction is over: fenced by a newer producer, or aborted after its timeout; or the
            principal may not write to a topic.
        TargetError: any other error.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)

    async def attempt() -> None:
        node = await target.coordinator(producer.transactional_id)
        response = await target.ask(
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
        errors = [
            ResponseError(partition.partition_error_code, f"{topic.name}-{partition.partition_index}")
            for topic in response.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
            if partition.partition_error_code
        ]
        # A broker adds all partitions or none: those that it would have added have OPERATION_NOT_ATTEMPTED.
        causes = [error for error in errors if error.code != ErrorCode.OPERATION_NOT_ATTEMPTED]
        if not errors:
            return
        worst = max(causes or errors, key=lambda error: not error.retriable)
        if worst.code in TRANSACTION_OVER or is_unauthorized(worst):
            over.append(worst)
            return
        worst.retriable = worst.retriable or not causes or worst.code == ErrorCode.UNKNOWN
        raise worst

    over: list[ResponseError] = []
    await target.retry(
        f"AddPartitionsToTxn for {producer.transactional_id} (needs WRITE on the topics)", attempt, timeout_ms
    )
    if over:  # not a failure of the request: the caller finds out who has ended the transaction
        raise over[0]


def end(target: Cluster, producer: Producer, *, commit: bool, timeout_ms: int) -> Outcome:
    """Asks the coordinator to commit or abort, until it answers; it is safe to repeat the request.

    Args:
        target: the target cluster.
        producer: the producer of the transaction.
        commit: True to commit, False to abort.
        timeout_ms: the deadline of the request and its retries.

    Returns:
        DECIDED if the transaction is committed or aborted as requested. DEAD if the coordinator rejects the producer id
        and epoch, after a newer producer, a timeout, or a response that was lost long ago. Only the log then shows
        whether the transaction was committed.
    """
    outcome: Outcome = target.net.run(lambda: end_async(target, producer, commit=commit, timeout_ms=timeout_ms))
    return outcome


def end_all(
    target: Cluster,
    producers: Iterable[Producer],
    *,
    commit: bool,
    timeout_ms: int,
    ended: Callable[[], None] = lambda: None,
) -> list[Outcome | MirrorlakeError]:
    """Does the same as `end` for the transactions of several producers, which are under way at the same time.

    Args:
        target: the target cluster.
        producers: the producers.
        commit: True to commit, False to abort.
        timeout_ms: the deadline of each request and its retries.
        ended: called after the response to each request.

    Returns:
        The outcome of each transaction, or the error of its request, after which the outcome is unknown.
    """

    async def one(producer: Producer) -> Outcome | MirrorlakeError:
        try:
            outcome = await end_async(target, producer, commit=commit, timeout_ms=timeout_ms)
        except MirrorlakeError as error:
            return error
        ended()
        return outcome

    outcomes: list[Outcome | MirrorlakeError] = target.net.run(
        lambda: target.each([partial(one, producer) for producer in producers], ENDED_AT_ONCE)
    )
    return outcomes


async def end_async(target: Cluster, producer: Producer, *, commit: bool, timeout_ms: int) -> Outcome:
    """Does the same as `end`, for use inside the event loop."""

    async def attempt() -> Outcome:
        node = await target.coordinator(producer.transactional_id)
        version = 5 if target.transaction_version >= 2 else 3
        response = await target.ask(
            EndTxnRequest[version](
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=commit,
            ),
            node,
        )
        try:
            check_repeatable(response.error_code)
        except ResponseError as error:
            if error.code in TRANSACTION_OVER:
                return Outcome.DEAD
            raise
        return Outcome.DECIDED

    return await target.retry(
        f"EndTxn({'commit' if commit else 'abort'}) for {producer.transactional_id}", attempt, timeout_ms
    )


def require_transactions(target: Cluster, timeout_ms: int, transactional_id: str) -> None:
    """Refuses a cluster on which no transaction can be started.

    Raises:
        TargetError: with the cause, before anything is created. It may pass where no answer came, or where the
            transaction log exists.
    """
    refused: list[ResponseError] = []  # by the last answer

    async def attempt() -> int:
        refused.clear()
        try:
            return await target.coordinator(transactional_id)
        except ResponseError as error:
            refused.append(error)
            raise

    try:
        target.call(
            f"finding the transaction coordinator of TRANSACTIONAL_ID {transactional_id} (needs DESCRIBE)",
            attempt,
            timeout_ms,
        )
    except TargetError as error:
        if error.retriable and (not refused or target.refresh([TRANSACTION_LOG], timeout_ms).get(TRANSACTION_LOG)):
            raise
        raise TargetError(
            f"{error.message}. Mirroring needs transactions on the target: brokers must be able to create "
            f"{TRANSACTION_LOG} (transaction.state.log.replication.factor not above the number of brokers)"
        ) from None
