"""Checks that the target still has the end of what was mirrored, before a task writes behind it.

A cluster may lose records that it has acknowledged: by an unclean election, or with a disk. New records would get the
offsets of the lost ones, or those of an aborted attempt would fill the range, and the loss would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

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


def require_ends(
    flow: Flow, target: Cluster, stretches: Iterable[Stretch], known_producers: Collection[int], generation: int
) -> None:
    """Reads the batch of the last mirrored record of each partition, once in a generation of the flow.

    Retention may have deleted that record, and compaction may have removed it. Without the right to read, nothing is
    checked.

    Args:
        flow: the flow.
        target: the target cluster, with the remote topics in its metadata.
        stretches: the partitions that are copied next.
        known_producers: the producer ids of the slot.
        generation: the generation of the plan.

    Raises:
        TargetError: the target has lost the record. Retriable: it can't be read now.
    """
    checked = target.limits.ends_checked
    asked = {
        (stretch.target_topic, stretch.partition): stretch
        for stretch in stretches
        if stretch.downstream_from and not flow.scatters(stretch.topic)
    }
    asked = {key: stretch for key, stretch in asked.items() if checked.get(key) != generation}
    if not asked:
        return
    what = f"flow {flow.name}: reading the last mirrored records of {len(asked)} remote partitions"
    lost = target.call(what, lambda: _first_lost(target, asked, known_producers), flow.connect_timeout_ms)
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
    checked.update(dict.fromkeys(asked, generation))


async def _first_lost(
    target: Cluster, asked: dict[PartitionKey, Stretch], known_producers: Collection[int]
) -> PartitionKey | None:
    """Returns the first partition whose last mirrored record is gone, None if there is none."""
    first = await target.list_offsets([*asked], EARLIEST_TIMESTAMP)
    left = {
        key: stretch.downstream_from - 1
        for key, stretch in asked.items()
        if first.get(key, stretch.downstream_from) < stretch.downstream_from  # else retention has deleted it
    }
    while left:
        node = target.leader(*next(iter(left)))
        offsets = {key: offset for key, offset in left.items() if target.leader(*key) == node}
        response = await target.fetch(node, offsets, FETCH_BYTES, PARTITION_FETCH_BYTES, FETCH_WAIT_MS)
        read = 0
        for fetched in target.fetched(response):
            key = fetched.topic, fetched.partition
            is_there = _is_there(fetched, left[key], known_producers)
            if is_there is False:
                return key
            if is_there:
                del left[key]
                read += 1
        if not read:  # the response had room for at least one
            key, offset = next(iter(left.items()))
            raise NothingThereError(f"the leader of {key[0]}-{key[1]} returns no batch at offset {offset}")
    return None


def _is_there(fetched: Fetched, offset: int, known_producers: Collection[int]) -> bool | None:
    """Tells whether the record of an offset may be the one that was mirrored; None if the response does not show it."""
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
            is_own_marker = batch.is_control and batch.producer_id in known_producers
            return batch.base_offset > offset or not (is_aborted or is_own_marker)  # behind it: it was compacted
    return None
