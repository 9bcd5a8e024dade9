"""Checks that the target still has the end of what was mirrored, before a task writes behind it.

A cluster may lose records that it has acknowledged: by an unclean election, or with a disk. New records would get the
offsets of the lost ones, or those of an aborted attempt would fill the range, and the loss would go unnoticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.model.anomaly import AnomalyKind, about
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.error_codes import UNAUTHORIZED, ErrorCode
from mirrorlake.protocol.log_reader import First, read_each
from mirrorlake.protocol.network.response_error import ResponseError, check_repeatable, is_unauthorized


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
        TargetError: the target has lost the record. Retriable: it can't be read now, or a topic may not be described
            any more, so that the next plan holds it.
    """
    if flow.topics_shared:
        return
    checked = target.limits.ends_checked
    asked = {
        key: stretch
        for stretch in stretches
        if stretch.downstream_from and not flow.scatters(stretch.topic)
        if checked.get(key := (stretch.target_topic, stretch.partition)) != generation
    }
    for topic, partition in asked:
        if target.topics[topic].leaders.get(partition, 0) < 0:  # the planner leaves it out, once a slot has failed
            raise TargetError(
                f"flow {flow.name}: partition {partition} of topic {topic} on cluster {flow.target} has no leader now",
                retriable=True,
            )

    what = f"flow {flow.name}: reading the last mirrored records of {len(asked)} remote partitions"

    async def first_lost() -> PartitionKey | None:
        left = {key: one.downstream_from - 1 for key, one in asked.items()}
        try:
            async for key, is_there in _looked_up(target, left):
                if not is_there:
                    return key
                checked[key] = generation
        except ResponseError as error:
            if is_unauthorized(error):
                raise target.explained(what, error, retriable=True) from None
            raise
        return None

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


async def _looked_up(target: Cluster, offsets: Mapping[PartitionKey, int]) -> AsyncIterator[tuple[PartitionKey, bool]]:
    """Yields for each partition whether the record of an offset may be the one that was mirrored."""
    kept = await _kept(target, offsets)
    for key in offsets.keys() - kept.keys():
        yield key, True
    async for first in read_each(target, kept):
        is_there = _is_there(first, kept[first.key])
        yield first.key, is_there or not await _kept(target, {first.key: kept[first.key]})


async def _kept(target: Cluster, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
    """Returns the offsets that retention has not deleted."""
    first = await target.list_offsets([*offsets], EARLIEST_TIMESTAMP) if offsets else {}
    return {key: offset for key, offset in offsets.items() if first.get(key, offset + 1) <= offset}


def _is_there(first: First, offset: int) -> bool:
    """Returns True if the record of an offset may be the one that was mirrored.

    A marker may stand there: after a take-over, the position is behind everything that the log had.
    """
    if first.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return False
    if first.error_code in UNAUTHORIZED:
        return True
    check_repeatable(first.error_code, f"{first.key[0]}-{first.key[1]} at offset {offset}")
    assert first.batch is not None
    return first.batch.base_offset > offset or not first.is_aborted  # a batch behind it: compaction has removed it
