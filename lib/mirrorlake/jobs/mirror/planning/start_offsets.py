"""Finds the start offsets of partitions that were never mirrored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.config.start import StartSpec, StartWord
from mirrorlake.errors import SourceError
from mirrorlake.model.slot import NO_SLOT, Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.requests.metadata import Topic


def first_positions(source: Cluster, flow: Flow, topics: Mapping[str, Topic]) -> Iterator[Position]:
    """Yields the start positions of partitions that exist when a flow starts for the first time.

    Partitions that start at their earliest offset at any time are left out.

    Args:
        source: the source of the flow.
        flow: the flow.
        topics: the topics that it mirrors.

    Raises:
        SourceError: a given offset is outside of the log.
    """
    specs = {
        (name, partition): flow.start.of(name, is_first=True)
        for name, topic in topics.items()
        for partition in topic.leaders
    }
    wanted = {key: spec for key, spec in specs.items() if spec != StartSpec() or not flow.start.is_earliest_always}
    for (name, partition), offset in find_starts(source, wanted, flow.connect_timeout_ms).items():
        yield Position(
            topic=name,
            partition=partition,
            topic_id=topics[name].topic_id,
            target_topic=flow.policy.remote_topic(name),
            target_partition=partition,
            upstream_next=offset,
            downstream_next=0,
            slot=NO_SLOT,
        )


def find_starts(source: Cluster, specs: Mapping[PartitionKey, StartSpec], timeout_ms: int) -> dict[PartitionKey, int]:
    """Returns the start offset of each partition.

    Raises:
        SourceError: a given offset is outside of the log.
    """
    starts, refused = each_start(source, specs, timeout_ms)
    for error in refused.values():
        raise error
    return starts


def each_start(
    source: Cluster, specs: Mapping[PartitionKey, StartSpec], timeout_ms: int
) -> tuple[dict[PartitionKey, int], dict[PartitionKey, SourceError]]:
    """Returns the start offset of each partition, and the errors of those whose given offset is outside of the log."""
    if not specs:
        return {}, {}
    first, stable = (
        source.offsets(specs, EARLIEST_TIMESTAMP, timeout_ms),
        source.offsets(specs, LATEST_TIMESTAMP, timeout_ms),
    )
    by_time: dict[int, list[PartitionKey]] = {}
    for key, spec in specs.items():
        if spec.timestamp_ms is not None:
            by_time.setdefault(spec.timestamp_ms, []).append(key)
    at_time: dict[PartitionKey, int] = {}
    for timestamp_ms, keys in by_time.items():
        at_time |= source.offsets(keys, timestamp_ms, timeout_ms)
    starts: dict[PartitionKey, int] = {}
    refused: dict[PartitionKey, SourceError] = {}
    for key, spec in specs.items():
        given = dict(spec.offsets).get(key[1])
        if spec.timestamp_ms is not None:
            starts[key] = stable[key] if at_time[key] < 0 else at_time[key]
        elif given is not None:
            if not first[key] <= given <= stable[key]:
                refused[key] = SourceError(
                    f"topic {key[0]}, partition {key[1]}: mirrorlake.start.topic.{key[0]} names offset {given}, but "
                    f"the log of cluster {source.connection.alias} reaches from {first[key]} to {stable[key]}. "
                    "Correct the property. Nothing was copied"
                )
            starts[key] = given
        else:
            starts[key] = stable[key] if spec.word == StartWord.LATEST else first[key]
    return {key: start for key, start in starts.items() if key not in refused}, refused
