"""Finds the timestamps of the oldest records that a flow has not mirrored, from the headers of a few batches."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, read_log
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network.response_error import ResponseError, WireError
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.state.provenance import Provenance

AT_ONCE = 50  # partitions in one request
SMALL_BYTES, LARGE_BYTES = 64 << 10, 1 << 20  # of a partition in a response; a batch that is larger arrives alone


def oldest_timestamps(
    source: Cluster, flow: Flow, ranges: Mapping[PartitionKey, tuple[int, int]], within_s: float, most_bytes: int
) -> dict[PartitionKey, int | None]:
    """Returns the timestamp of the first record of each range, in ms; None for a range that has no record.

    Markers, aborted records and records that the flow leaves out by their origin are passed over. Ranges that could not
    be read in time, or within the bytes, are left out.

    Args:
        source: the source cluster, whose metadata have the topics.
        flow: the flow.
        ranges: the offsets `[start, end)` of each partition; the most important ones first.
        within_s: the time for all requests.
        most_bytes: the bytes of all responses; one response may go beyond.
    """
    provenance = Provenance(flow, source) if flow.minds_provenance else None
    search = _Search(source, provenance, dict(ranges), time.monotonic() + within_s, most_bytes)
    if ranges:
        source.net.run(search.run)
    return search.found


class _Search:
    """The state of one search."""

    def __init__(
        self,
        source: Cluster,
        provenance: Provenance | None,
        left: dict[PartitionKey, tuple[int, int]],
        deadline: float,
        left_bytes: int,
    ) -> None:
        self._source, self._provenance, self._left = source, provenance, left
        self._deadline, self._left_bytes = deadline, left_bytes
        self._large: set[PartitionKey] = set()
        self.found: dict[PartitionKey, int | None] = {}

    async def run(self) -> None:
        for leader, keys in by(lambda key: self._source.leader(*key), self._left).items():
            if leader >= 0:
                await self._ask(leader, keys)

    async def _ask(self, leader: int, keys: list[PartitionKey]) -> None:
        """Asks one broker, until it has answered about all partitions or a limit is reached."""
        while keys and self._left_bytes > 0 and time.monotonic() < self._deadline:
            large = next((key for key in keys if key in self._large), None)
            asked = keys[:AT_ONCE] if large is None else [large]
            size = SMALL_BYTES if large is None else LARGE_BYTES
            try:
                future = self._source.fetch(
                    leader,
                    {key: self._left[key][0] for key in asked},
                    max_bytes=min(LARGE_BYTES, self._left_bytes),
                    partition_max_bytes=size,
                    max_wait_ms=0,
                )
                answers = list(self._source.fetched(await self._source.answer(future, leader)))
            except (ResponseError, WireError):
                return
            advanced = False
            for answer in answers:
                advanced = await self._take(answer) or advanced
            if not advanced and large is not None:
                return  # even one whole batch is not there
            keys = [key for key in keys if key in self._left]

    async def _take(self, answer: Fetched) -> bool:
        """Takes what one partition has answered; returns False if there was nothing."""
        key = answer.topic, answer.partition
        if answer.error_code:
            del self._left[key]
            return True
        self._left_bytes -= len(answer.records)
        start, end = self._left[key]
        aborted = AbortedTransactions(answer.aborted)
        at = start
        for batch in read_log(answer.records):
            is_left_out = aborted.drops(batch) or batch.is_control or await self._is_brought(batch)
            at = max(at, batch.end_offset)
            if batch.end_offset > start and not is_left_out:
                self.found[key] = batch.first_timestamp
                del self._left[key]
                return True
            if at >= end:
                break
        if at >= end:
            self.found[key] = None
            del self._left[key]
            return True
        if at == start:
            self._large.add(key)
        self._left[key] = (at, end)
        return at > start

    async def _is_brought(self, batch: Batch) -> bool:
        if self._provenance is None:
            return False
        await self._provenance.learn([batch])
        return self._provenance.excludes(batch)
