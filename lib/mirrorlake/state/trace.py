"""Reads the trace of a flow: every committed state of its offset-syncs topic, with its offset."""

from __future__ import annotations

from collections.abc import Iterator

from mirrorlake.errors import TargetError
from mirrorlake.model.changes import whole_states
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.state.offset_syncs import committed_values

OFFSETS_AT_ONCE = 2_000


def read_trace(target: Cluster, topic: str, timeout_ms: int) -> dict[int, Iterator[tuple[int, SlotState]]]:
    """Reads the committed states of each slot, as they are asked for, up to the ends that the logs have now.

    Args:
        target: the cluster that has the topic.
        topic: the offset-syncs topic.
        timeout_ms: the deadline of each request.

    Raises:
        TargetError: the topic does not exist or can't be read.
    """
    found = target.refresh([topic], timeout_ms).get(topic)
    if found is None:
        raise TargetError(
            f"topic {topic} does not exist on cluster {target.connection.alias}, so there is no trace of the flow"
        )
    keys = [(topic, slot) for slot in range(found.partitions)]
    first = target.offsets(keys, EARLIEST_TIMESTAMP, timeout_ms)
    end = target.offsets(keys, LATEST_TIMESTAMP, timeout_ms)
    return {key[1]: whole_states(topic, _records(target, key, first[key], end[key], timeout_ms)) for key in keys}


def _records(
    target: Cluster, key: tuple[str, int], first: int, end: int, timeout_ms: int
) -> Iterator[tuple[int, bytes]]:
    for start in range(first, end, OFFSETS_AT_ONCE):
        stop = min(end, start + OFFSETS_AT_ONCE)
        yield from committed_values(target, key, start=start, end=stop, timeout_ms=timeout_ms)
