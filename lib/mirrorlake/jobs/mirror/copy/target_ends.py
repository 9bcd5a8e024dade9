"""Checks that the target still has the end of what was mirrored, before a task writes behind it.

A cluster may lose records that it has acknowledged: by an unclean election, or with a disk. New records would get the
offsets of the lost ones, or those of an aborted attempt would fill the range, and the loss would go unnoticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.model.anomaly import AnomalyKind, about
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import AbortedTransactions, FetchedLog
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster, Fetched, ResponseError, check
from mirrorlake.protocol.error_codes import UNAUTHORIZED, ErrorCode
from mirrorlake.protocol.log_reader import NothingThereError

FETCH_BYTES, PARTITION_FETCH_BYTES = 16 << 20, 1 << 20
FETCH_WAIT_MS = 100


def require_ends(flow: Flow, target: Cluster, stretches: Iterable[Stretch], generation: int) -> None:
    """Reads the batch of the last mirrored record of each partition, once in a generation of the flow.

    Retention may have deleted that record, and compaction may have removed it. Without the right to read, nothing is
    checked. Neither are topics that others write, too: their open transactions may hold back the record.

    Args:
        flow: the flow.
        target: the target cluster, with the remote topics in its metadata.
        stretches: the partitions that are copied next.
        generation: the generation of the plan.

    Raises:
        TargetError: the target has lost the record. Retriable: it can't be read now.
    """
    if flow.topics_shared:
        return
    checked = target.limits.ends_checked
    asked = {
        (stretch.target_topic, stretch.partition): stretch
        for stretch in stretches
        if stretch.downstream_from and not flow.scatters(stretch.topic)
    }

    async def first_lost() -> PartitionKey | None:
        left = {key: one.downstream_from - 1 for key, one in asked.items() if checked.get(key) != generation}
        async for key, is_there in _looked_up(target, left):
            if not is_there:
                return key
            checked[key] = generation
        return None

    what = f"flow {flow.name}: reading the last mirrored records of {len(asked)} remote partitions"
    lost = target.call(what, first_lost, flow.connect_timeout_ms) if asked else None
    if lost is not None:
        stretch = asked[lost]
        raise TargetError(
            f"flow {flow.name}, topic {stretch.topic}, partition {stretch.partition}: cluster {flow.target} has lost "
            f"records that were mirrored. The flow has mirrored up to upstream offset {stretch.upstream_from}, and "
            f"offset {stretch.downstream_from - 1} of {lost[0]}-{lost[1]} does not hold the last of these records any "
            "more. Nothing was copied. A verification names the missing records. Restore them. Or delete the remote "
            "topic and set mirrorlake.on.loss = continue, so that it is filled again",
            anomaly=about(AnomalyKind.STOPPED, stretch.key, stretch.upstream_from, stretch.upstream_from),
        )


async def _looked_up(target: Cluster, offsets: dict[PartitionKey, int]) -> AsyncIterator[tuple[PartitionKey, bool]]:
    """Yields for each partition whether the record of an offset may be the one that was mirrored."""
    left = await _kept(target, offsets)
    for key in offsets.keys() - left.keys():
        yield key, True
    while left:
        node = target.leader(*next(iter(left)))
        asked = {key: offset for key, offset in left.items() if target.leader(*key) == node}
        response = await target.fetch(node, asked, FETCH_BYTES, PARTITION_FETCH_BYTES, FETCH_WAIT_MS)
        found = {
            key: is_there
            for fetched in target.fetched(response)
            if (is_there := _is_there(fetched, left[key := (fetched.topic, fetched.partition)])) is not None
        }
        if not found:  # the response had room for at least one
            key, offset = next(iter(left.items()))
            raise NothingThereError(f"the leader of {key[0]}-{key[1]} returns no batch at offset {offset}")
        gone = [key for key, is_there in found.items() if not is_there]
        expired = {*gone} - (await _kept(target, {key: left[key] for key in gone})).keys() if gone else set()
        for key, is_there in found.items():
            del left[key]
            yield key, is_there or key in expired


async def _kept(target: Cluster, offsets: dict[PartitionKey, int]) -> dict[PartitionKey, int]:
    """Returns the offsets that retention has not deleted."""
    first = await target.list_offsets([*offsets], EARLIEST_TIMESTAMP) if offsets else {}
    return {key: offset for key, offset in offsets.items() if first.get(key, offset + 1) <= offset}


def _is_there(fetched: Fetched, offset: int) -> bool | None:
    """Tells whether the record of an offset may be the one that was mirrored; None if the response does not show it.

    A marker may stand there: after a take-over, the position is behind everything that the log had.
    """
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return False
    if fetched.error_code in UNAUTHORIZED:
        return True
    check(fetched.error_code, f"{fetched.topic}-{fetched.partition} at offset {offset}")
    aborted = AbortedTransactions(fetched.aborted)
    for batch in FetchedLog(fetched.records):
        if not batch.crc_is_right:
            raise ResponseError(
                ErrorCode.CORRUPT_MESSAGE, f"{fetched.topic}-{fetched.partition} at offset {offset}: it is damaged"
            )
        is_aborted = aborted.drops(batch)
        if batch.end_offset > offset:
            return batch.base_offset > offset or not is_aborted  # a batch behind it: compaction has removed it
    return None
