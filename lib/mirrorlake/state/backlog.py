"""Measures a flow's backlog from batch headers: unmirrored records, the age of the oldest, and what the flow back has
not carried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import Batch
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.state.provenance import Provenance

EXACT_OFFSETS = 100_000  # per partition; in a larger range, offsets are counted instead of records
FETCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Unmirrored:
    """Records of a source partition at or after the flow's position.

    `oldest_ms` is the timestamp of the first one, None if there is none.
    """

    records: int
    oldest_ms: int | None


def unmirrored(
    source: Cluster, flow: Flow, positions: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
) -> dict[PartitionKey, Unmirrored]:
    """Counts the records between the flow's position and the end of each partition's log.

    Markers, aborted records and records that the flow leaves out by their origin are not counted. In a partition with
    more than EXACT_OFFSETS offsets to read, all offsets are counted.

    Args:
        source: source cluster.
        flow: flow of the positions.
        positions: next upstream offset, by topic and partition.
        ends: last stable offsets, by topic and partition.
    """
    provenance = Provenance(flow, source) if flow.minds_provenance else None
    found = {}
    for key, end in ends.items():
        start = positions.get(key, end)
        if start >= end:
            found[key] = Unmirrored(0, None)
        else:
            is_exact = end - start <= EXACT_OFFSETS
            what = f"flow {flow.name}: reading {key[0]}-{key[1]} from offset {start} (needs READ)"
            counting = partial(_count, source, provenance, key, start, end, is_exact=is_exact)
            counted = source.call(what, counting, flow.connect_timeout_ms)
            found[key] = counted if is_exact else Unmirrored(end - start, counted.oldest_ms)
    return found


def uncarried(
    target: Cluster, back: Flow, stretches: Mapping[PartitionKey, Iterable[tuple[int, int]]]
) -> dict[PartitionKey, tuple[tuple[int, int], ...]]:
    """Finds records that were written on the target by others than the flow, and that the flow back has not carried.

    In each partition, at most EXACT_OFFSETS offsets are read.

    Args:
        target: target cluster.
        back: the flow back.
        stretches: ranges of offsets that neither flow accounts for, by topic and partition of the target.

    Returns:
        First offset and number of records of each batch, by topic and partition of the target.
    """
    timeout_ms = back.connect_timeout_ms
    target.refresh({topic for topic, _ in stretches}, timeout_ms)
    first = target.offsets(list(stretches), EARLIEST_TIMESTAMP, timeout_ms)
    provenance = Provenance(back, target) if back.minds_provenance else None
    found: dict[PartitionKey, tuple[tuple[int, int], ...]] = {}
    for key, ranges in stretches.items():
        found[key], left = (), EXACT_OFFSETS
        for start, end in ((max(first[key], start), end) for start, end in ranges):
            limit = min(end, start + left)
            if start >= limit:
                continue
            left -= limit - start
            what = f"flow {back.name}: reading {key[0]}-{key[1]} from offset {start} (needs READ)"
            found[key] += target.call(what, partial(_written_there, target, provenance, key, start, limit), timeout_ms)
    return found


def between(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the parts of a range that sorted ranges leave out."""
    for first, behind in ranges:
        if first >= end:
            break
        if first > start:
            yield start, first
        start = max(start, behind)
    if start < end:
        yield start, end


async def _written_there(
    target: Cluster, provenance: Provenance | None, key: PartitionKey, start: int, end: int
) -> tuple[tuple[int, int], ...]:
    return tuple(
        [
            (max(start, batch.base_offset), min(batch.records, batch.end_offset - start))
            async for batch, is_aborted in read_stretch(target, key, start=start, end=end, max_bytes=FETCH_BYTES)
            if not (is_aborted or batch.is_control or await _is_brought(provenance, batch))
        ]
    )


async def _count(
    source: Cluster, provenance: Provenance | None, key: PartitionKey, start: int, end: int, *, is_exact: bool
) -> Unmirrored:
    """Counts the records of a range; only up to its first one, unless `is_exact`."""
    records, oldest = 0, None
    async for batch, is_aborted in read_stretch(
        source, key, start=start, end=end, max_bytes=FETCH_BYTES, even_damaged=True
    ):
        if is_aborted or batch.is_control or await _is_brought(provenance, batch):
            continue
        inside = min(batch.end_offset, end) - max(batch.base_offset, start)  # of the first batch, and of the last one
        records += min(batch.records, inside)
        oldest = batch.first_timestamp if oldest is None else oldest
        if not is_exact:
            break
    return Unmirrored(records, oldest)


async def _is_brought(provenance: Provenance | None, batch: Batch) -> bool:
    if provenance is None:
        return False
    await provenance.learn([batch])
    return provenance.excludes(batch)
