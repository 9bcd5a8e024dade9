"""Reads a range of a log on any cluster, batch by batch."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, read_log
from mirrorlake.protocol.cluster import READ_COMMITTED, Cluster, ResponseError, check
from mirrorlake.protocol.error_codes import ErrorCode

FETCH_WAIT_MS = 100


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
        check(partition.error_code, f"{key[0]}-{key[1]} at offset {at}")
        aborted, before = AbortedTransactions(partition.aborted), at
        for batch in read_log(partition.records):
            if not (batch.is_whole if even_damaged else batch.crc_is_right):
                raise ResponseError(
                    ErrorCode.CORRUPT_MESSAGE, f"{key[0]}-{key[1]} at offset {at}: the batch is damaged"
                )
            is_aborted = aborted.drops(batch)
            at = batch.end_offset
            if batch.base_offset < end and at > before:
                yield batch, is_aborted
        if at == before:
            raise NothingThereError(
                f"the leader of {key[0]}-{key[1]} returns no batch at offset {at}, below the end offset {end}"
            )
