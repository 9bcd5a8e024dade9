"""Reads a range of a log on any cluster, batch by batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, FetchedLog
from mirrorlake.protocol.cluster import READ_COMMITTED, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, check_repeatable
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.protocol.requests.grouping import by

FETCH_WAIT_MS = 100
EACH_BYTES, EACH_PARTITION_BYTES, EACH_PARTITIONS = 8 << 20, 1 << 20, 1_000  # of a request of `read_each`


class NothingThereError(ResponseError):
    """Raised when a log returns no batch below the requested end, because it can't be read that far yet."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.LEADER_NOT_AVAILABLE, detail)


async def read_stretch(
    cluster: Cluster,
    key: PartitionKey,
    start: int,
    end: int,
    max_bytes: int,
    isolation: int = READ_COMMITTED,
    *,
    even_damaged: bool = False,
) -> AsyncIterator[tuple[Batch, bool]]:
    """Yields the batches of `[start, end)` of one partition in order, each with True if its transaction was aborted.

    With READ_UNCOMMITTED, that flag is always False.

    Args:
        cluster: the cluster that has the log.
        key: topic and partition.
        start: the first offset.
        end: the offset after the last one.
        max_bytes: the size limit of each Fetch response.
        isolation: READ_COMMITTED or READ_UNCOMMITTED.
        even_damaged: True to yield batches whose CRC is wrong, too, for readers that only count.

    Raises:
        ResponseError: the leader returns an error, a damaged batch, or no batch below `end`. Another attempt may
            succeed.
    """
    at = start
    while at < end:
        response = await cluster.fetch(
            cluster.leader(*key),
            {key: at},
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            max_wait_ms=FETCH_WAIT_MS,
            isolation=isolation,
        )
        (partition,) = cluster.fetched(response)
        check_repeatable(partition.error_code, f"{key[0]}-{key[1]} at offset {at}")
        before, stable_end = at, partition.last_stable_offset if isolation == READ_COMMITTED else -1
        for batch, is_aborted in _batches(partition, before, stable_end, even_damaged=even_damaged):
            at = batch.end_offset
            if batch.base_offset < end:
                yield batch, is_aborted
            if at >= end:
                break
        if at == before:
            raise NothingThereError(
                f"the leader of {key[0]}-{key[1]} returns no batch at offset {at}, below the end offset {end}"
            )


UNKNOWN_LOG = ("", -1)


def log_identity(cluster: Cluster, key: PartitionKey) -> tuple[str, int]:
    """Returns what identifies a log that only grows: topic id and leader epoch; UNKNOWN_LOG if they are not known."""
    topic = cluster.topics.get(key[0])
    if topic is None or not topic.topic_id or cluster.leader_epoch(*key) < 0:
        return UNKNOWN_LOG
    return topic.topic_id, cluster.leader_epoch(*key)


@dataclass(frozen=True, slots=True)
class First:
    """The first batch of a partition that has an offset or a later one.

    Attributes:
        key: topic and partition.
        error_code: the error of the partition; else 0.
        batch: the batch; None after an error.
        is_aborted: True if its transaction was aborted.
    """

    key: PartitionKey
    error_code: int
    batch: Batch | None = None
    is_aborted: bool = False


async def read_each(cluster: Cluster, offsets: Mapping[PartitionKey, int]) -> AsyncIterator[First]:
    """Yields the first committed or aborted batch of many partitions from an offset on, in any order.

    All leaders are asked at the same time, each for at most EACH_PARTITIONS.

    Args:
        cluster: the cluster that has the logs.
        offsets: the offset of each partition.

    Raises:
        ResponseError: a batch is damaged, or leaders return no batch. Another attempt may succeed.
    """
    left = dict(offsets)
    while left:
        by_leader = by(lambda key: cluster.leader(*key), left)
        asked = [
            cluster.fetch(
                node,
                {key: left[key] for key in keys[:EACH_PARTITIONS]},
                EACH_BYTES,
                EACH_PARTITION_BYTES,
                FETCH_WAIT_MS,
            )
            for node, keys in by_leader.items()
        ]
        before = len(left)
        for future in asked:
            for fetched in cluster.fetched(await future):
                if (found := _first(fetched, left[fetched.topic, fetched.partition])) is not None:
                    del left[found.key]
                    yield found
        if len(left) == before:
            key, offset = next(iter(left.items()))
            raise NothingThereError(f"the leader of {key[0]}-{key[1]} returns no batch at offset {offset}")


def _first(fetched: Fetched, offset: int) -> First | None:
    key = fetched.topic, fetched.partition
    if fetched.error_code:
        return First(key, fetched.error_code)
    batches = _batches(fetched, offset, fetched.last_stable_offset)
    return next((First(key, 0, batch, is_aborted) for batch, is_aborted in batches), None)


def _batches(
    fetched: Fetched, offset: int, stable_end: int, *, even_damaged: bool = False
) -> Iterator[tuple[Batch, bool]]:
    """Yields the batches of a Fetch response from an offset on, each with True if its transaction was aborted.

    A batch whose offsets do not fit ends them: it is fetched again.
    """
    log, aborted, at = FetchedLog(fetched.records, stable_end), AbortedTransactions(fetched.aborted), offset
    for number, batch in enumerate(log):
        if not (batch.is_whole if even_damaged else batch.crc_is_right):
            raise ResponseError(
                ErrorCode.CORRUPT_MESSAGE, f"{fetched.topic}-{fetched.partition} at offset {at}: the batch is damaged"
            )
        if not log.fits(batch, number, at):
            return
        is_aborted = aborted.drops(batch)
        if batch.end_offset > at:
            at = batch.end_offset
            yield batch, is_aborted
