"""What a flow has not mirrored yet: how many records, and how old the oldest one is, and what the flow back has yet to
carry; read from the headers of their batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.record_batch import Batch
from mirrorlake.state.provenance import Provenance

EXACT_OFFSETS = 100_000  # of a partition: beyond, its offsets are counted instead of its records
FETCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Unmirrored:
    """Records of a source partition at or behind the flow's position; `oldest_ms` is the timestamp of the first, None
    if there is none."""

    records: int
    oldest_ms: int | None


def unmirrored(
    source: Cluster, flow: Flow, positions: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
) -> dict[PartitionKey, Unmirrored]:
    """What lies between the flow's position and the end of the log of each partition.

    Markers, aborted records and what the flow would leave out because it came from elsewhere are not counted. Of a
    partition with more than EXACT_OFFSETS offsets to look at, all are counted.
    """
    provenance = Provenance(flow, source) if flow.minds_provenance else None
    found = {}
    for key, end in ends.items():
        start = positions.get(key, end)
        if start >= end:
            found[key] = Unmirrored(0, None)
        else:
            limit = min(end, start + 1) if end - start > EXACT_OFFSETS else end
            what = f"flow {flow.name}: reading {key[0]}-{key[1]} from offset {start} (needs READ)"
            counted = source.call(what, partial(_count, source, provenance, key, start, limit), flow.connect_timeout_ms)
            found[key] = counted if limit == end else Unmirrored(end - start, counted.oldest_ms)
    return found


def uncarried(
    target: Cluster, back: Flow, carried_to: Mapping[PartitionKey, int], places: Mapping[PartitionKey, int]
) -> dict[PartitionKey, tuple[tuple[int, int], ...]]:
    """What was written on the target before places there and the flow back has not carried: first offset and records of
    each batch.

    Of each partition at most EXACT_OFFSETS offsets behind `carried_to` are looked at.

    Args:
        carried_to: the positions of the flow back, by topic and partition of the target.
        places: up to where to look.
    """
    timeout_ms = back.connect_timeout_ms
    target.refresh({topic for topic, _ in places}, timeout_ms)
    first = target.offsets(list(places), EARLIEST_TIMESTAMP, timeout_ms)
    provenance = Provenance(back, target) if back.minds_provenance else None
    found = {}
    for key, place in places.items():
        start = max(first[key], carried_to[key])
        what = f"flow {back.name}: reading {key[0]}-{key[1]} from offset {start} (needs READ)"
        limit = min(place, start + EXACT_OFFSETS)
        found[key] = (
            target.call(what, partial(_written_there, target, provenance, key, start, limit), timeout_ms)
            if start < limit
            else ()
        )
    return found


async def _written_there(
    target: Cluster, provenance: Provenance | None, key: PartitionKey, start: int, end: int
) -> tuple[tuple[int, int], ...]:
    return tuple(
        [
            (max(start, batch.base_offset), min(batch.records, batch.end_offset - start))
            async for batch, is_aborted in read_stretch(target, key, start, end, FETCH_BYTES)
            if not (is_aborted or batch.is_control or await _is_brought(provenance, batch))
        ]
    )


async def _count(source: Cluster, provenance: Provenance | None, key: PartitionKey, start: int, end: int) -> Unmirrored:
    records, oldest = 0, None
    async for batch, is_aborted in read_stretch(source, key, start, end, FETCH_BYTES):
        if is_aborted or batch.is_control or await _is_brought(provenance, batch):
            continue
        records += min(batch.records, batch.end_offset - start)  # the position may be inside the first batch
        oldest = batch.base_timestamp if oldest is None else oldest
    return Unmirrored(records, oldest)


async def _is_brought(provenance: Provenance | None, batch: Batch) -> bool:
    if provenance is None:
        return False
    await provenance.learn([batch])
    return provenance.excludes(batch)
