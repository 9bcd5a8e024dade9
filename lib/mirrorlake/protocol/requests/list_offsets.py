"""ListOffsets requests, and what their responses hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.network.response_error import ResponseError, check_repeatable, is_unauthorized
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.protocol.requests.metadata import Topic, epoch_of

EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1


def list_offsets_request(topics: Mapping[str, Topic], keys: Iterable[PartitionKey], at: int, isolation: int) -> Any:
    """Returns a request for one offset of each partition.

    Args:
        topics: the metadata of the topics.
        keys: the partitions, all with one leader.
        at: a timestamp; see `Cluster.offsets`.
        isolation: READ_COMMITTED or READ_UNCOMMITTED.
    """
    asked = [
        ListOffsetsRequest.ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=epoch_of(topics, topic, index), timestamp=at
                )
                for _, index in group
            ],
        )
        for topic, group in by(lambda key: key[0], keys).items()
    ]
    return ListOffsetsRequest[5](replica_id=-1, isolation_level=isolation, topics=asked)


def listed_offsets(response: Any) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, Exception]]:
    """Returns the offset and the leader epoch of each partition, and the errors of those that have none: retriable
    ones, and missing permissions.

    Raises:
        ResponseError: any other error of a partition.
    """
    found: dict[PartitionKey, tuple[int, int]] = {}
    failed: dict[PartitionKey, Exception] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            key = topic.name, partition.partition_index
            try:
                check_repeatable(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found[key] = partition.offset, partition.leader_epoch
            except ResponseError as error:
                if not (error.retriable or is_unauthorized(error)):
                    raise
                failed[key] = error
    return found, failed
