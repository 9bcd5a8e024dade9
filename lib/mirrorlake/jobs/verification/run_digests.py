"""Recognises runs by the digests of their batches: reads both logs as raw batches, without opening records.

The map has a CRC-32C for each run (`Batch.extend_digest`), which the mirror job computed while copying. A run counts as
equal if its batches have this digest on both sides; small ones of the source are merged for that, as copying has merged
them. A change is overlooked with a probability of 1 in 2^32. The method
is fast, but it depends on the parser of batch headers, which copying uses too; a comparison of records does not. Runs
that are not recognised are left to that comparison. Among them are runs with re-encoded batches (by the copying task, a
broker or a log cleaner), and real differences.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.log import quiet_kafka
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.codecs import CorruptBatchError, OversizedBatchError
from mirrorlake.protocol.batches.merging import headers, join
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, Batch, FetchedLog, read_log
from mirrorlake.protocol.batches.records import MOST_BYTES
from mirrorlake.protocol.cluster import Cluster, connect_both
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, check
from mirrorlake.protocol.requests.fetch import Fetched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "topic STRING, partition INT, upstream_end BIGINT, error STRING"
FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 500
NO_LIMIT_BYTES = 1 << 62


class OutOfRange(Exception):  # noqa: N818 (it is not an error, but a result)
    """Raised inside this module when a log does not reach back to an offset, or ends at it."""


class NotComparable(Exception):  # noqa: N818 (it is not an error, but a result)
    """Raised inside this module when batches can't have the digest of a run."""


class RawLog:
    """The committed data batches of one partition, read forward; adjacent ranges need no further request.

    Args:
        cluster: a connected cluster that knows the topic.
        key: topic and partition.
        what: prefix of error messages.
        timeout_ms: time limit for retries of a failed read.
    """

    def __init__(self, cluster: Cluster, key: PartitionKey, what: str, timeout_ms: int) -> None:
        self._cluster, self._key, self._what, self._timeout_ms = cluster, key, what, timeout_ms
        self._waiting: deque[Batch] = deque()
        self._at = self._read_to = -1  # `_waiting` holds all batches between these two offsets

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """Yields the batches with an offset from `start` to `end` (exclusive), in order."""
        if not self._at <= start <= self._read_to:
            self._waiting.clear()
            self._read_to = start
        self._at = start
        while self._at < end:
            while self._waiting and self._waiting[0].end_offset <= self._at:
                self._waiting.popleft()
            if self._waiting:
                if self._waiting[0].base_offset >= end:
                    return
                batch = self._waiting[0]
                self._at = min(batch.end_offset, end)
                yield batch
            elif self._read_to >= end:
                return
            else:
                self._fetch()

    def _fetch(self) -> None:
        at = self._read_to

        async def attempt() -> Fetched:
            response = await self._cluster.fetch(
                self._cluster.leader(*self._key),
                {self._key: at},
                max_bytes=FETCH_BYTES,
                partition_max_bytes=FETCH_BYTES,
                max_wait_ms=FETCH_WAIT_MS,
            )
            (found,) = self._cluster.fetched(response)
            if found.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                check(found.error_code, f"{self._key[0]}-{self._key[1]}")
                if found.last_stable_offset > at and not _reaches_beyond(found, at):
                    raise ResponseError(
                        ErrorCode.LEADER_NOT_AVAILABLE,
                        f"the leader of {self._key[0]}-{self._key[1]} returns no batch at offset {at}, below the end "
                        "offset",
                    )
            return found

        found = self._cluster.call(
            f"{self._what}: reading {self._key[0]}-{self._key[1]} (needs READ)", attempt, self._timeout_ms
        )
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or not _reaches_beyond(found, at):
            raise OutOfRange  # the map goes further: an unclean election may have cut the log
        aborted = AbortedTransactions(found.aborted)
        for batch in read_log(found.records):
            is_data = not (aborted.drops(batch) or batch.is_control)
            if batch.end_offset > at:
                self._read_to = batch.end_offset
                if is_data:
                    self._waiting.append(batch)


def _reaches_beyond(found: Fetched, offset: int) -> bool:
    return any(batch.end_offset > offset for batch in read_log(found.records))


Shape = list[int]  # the number of records of each batch of a run on the target


def has_digest(log: RawLog, begin: int, start: int, end: int, digest: int, shape: Shape | None = None) -> Shape | None:
    """Returns the shape of the batches from `start` to `end` if they have that digest, and there is no data between
    `begin` and `start`; None otherwise.

    Returns None for a batch that crosses the bounds, and for one that copying had to re-encode.

    Args:
        log: log to read.
        begin: end of the run before.
        start: first offset of the run.
        end: end of the run.
        digest: digest of the run in the map.
        shape: the shape that copying gave the batches of this log, by merging small ones; None for their own.
    """
    found, read = 0, Shape()
    try:
        batches = _contiguous(log.batches(begin, end), start, end)
        for batch in batches if shape is None else merged_as(batches, shape):
            found = batch.extend_digest(found)
            read.append(batch.records)
    except (OutOfRange, NotComparable, CorruptBatchError, OversizedBatchError):
        return None
    return read if sum(read) == end - start and found == digest else None


def _contiguous(batches: Iterable[Batch], start: int, end: int) -> Iterator[Batch]:
    at = start
    for batch in batches:
        if batch.base_offset != at or batch.end_offset > end or not batch.passes_unopened:
            raise NotComparable
        at = batch.end_offset
        yield batch


def merged_as(batches: Iterator[Batch], shape: Shape) -> Iterator[Batch]:
    """Yields batches as copying passed them on or merged them.

    Args:
        batches: the batches of the source.
        shape: the number of records of each batch of the target.

    Raises:
        NotComparable: they can't be brought into that shape.
        CorruptBatchError, OversizedBatchError: a batch can't be opened.
    """
    for records in shape:
        some, found = list[Batch](), 0
        while found < records:
            if (batch := next(batches, None)) is None:
                raise NotComparable
            some.append(batch)
            found += batch.records
        yield some[0] if len(some) == 1 else _merged(some, records)


def _merged(batches: list[Batch], records: int) -> Batch:
    log = FetchedLog(b"".join(batch.raw for batch in batches))
    rows = headers(log)
    if rows is None:
        raise NotComparable
    (merged,) = join(log, rows, range(len(log)), MOST_BYTES, NO_LIMIT_BYTES).packed(NO_LIMIT_BYTES)
    if merged.records != records:
        raise NotComparable
    return merged


def recognised(segments: DataFrame, flow: Flow) -> DataFrame:
    """Returns the runs whose digest both logs have, of those that are judged and complete.

    The columns are topic, partition and upstream_end, and error for the errors of tasks.
    """
    from pyspark.sql import functions as F

    wanted = segments.filter("is_judged AND mapped > 0 AND expired = 0 AND overlap = 0 AND digest IS NOT NULL")
    spread = wanted.repartition(
        2 * segments.sparkSession.sparkContext.defaultParallelism,
        "topic",
        "partition",
        F.shiftright("upstream_start", 20),
    )
    return spread.sortWithinPartitions("topic", "partition", "upstream_start").mapInArrow(digest_task(flow), SCHEMA)


def digest_task(flow: Flow) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the function of a Spark task, which turns sorted segments into rows of the recognised ones (SCHEMA).

    An error becomes a row, so that the driver receives it with its type.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        quiet_kafka()
        schema = pa.schema(
            {"topic": pa.string(), "partition": pa.int32(), "upstream_end": pa.int64(), "error": pa.string()}
        )
        logs: dict[tuple[str, str, int], RawLog] = {}
        for batch in batches:
            try:
                rows = [_row(segment) for segment in batch.to_pylist() if _is_recognised(flow, segment, logs)]
            except Exception as error:
                clusters.cache_clear()
                known = (
                    error
                    if isinstance(error, MirrorlakeError)
                    else errors.unexpected(f"flow {flow.name}: reading batches", error)
                )
                rows = [
                    {"topic": None, "partition": None, "upstream_end": None, "error": json.dumps(errors.to_json(known))}
                ]
            yield pa.RecordBatch.from_pylist(rows, schema)

    return task


def _row(segment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: segment[name] for name in ("topic", "partition", "upstream_end")} | {"error": None}


def _is_recognised(flow: Flow, segment: Mapping[str, Any], logs: dict[tuple[str, str, int], RawLog]) -> bool:
    """Returns true if both sides have the digest of the segment's run.

    `logs` keeps one reader for each side, as segments arrive in order.
    """
    digest, shape = int(segment["digest"], 16), None
    sides = ("target_topic", "target_partition", "downstream"), ("topic", "partition", "upstream")
    for cluster, (topic, partition, side) in zip(clusters(flow)[::-1], sides, strict=True):
        key = (segment[topic], segment[partition])
        if (cluster.side, *key) not in logs:
            for old in [old for old in logs if old[0] == cluster.side]:
                del logs[old]
            if cluster.leader(*key) < 0 and key[0] not in cluster.refresh([key[0]], flow.connect_timeout_ms):
                return False
            logs[cluster.side, *key] = RawLog(cluster, key, f"flow {flow.name}", flow.connect_timeout_ms)
        shape = has_digest(
            logs[cluster.side, *key],
            begin=segment[f"{side}_from"],
            start=segment[f"{side}_start"],
            end=segment[f"{side}_end"],
            digest=digest,
            shape=shape,
        )
        if shape is None:
            return False
    return True


@lru_cache(maxsize=1)
def clusters(flow: Flow) -> tuple[Cluster, Cluster]:
    """Returns source and target, which this Spark worker keeps between tasks."""
    return connect_both(flow, "verify")
