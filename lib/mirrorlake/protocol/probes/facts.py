"""What a cluster says of itself: the operations that a principal may perform, its disks, its newest timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DescribeClusterRequest, DescribeLogDirsRequest
from kafka.protocol.consumer import ListOffsetsRequest

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import READ_COMMITTED, Cluster
from mirrorlake.protocol.network.response_error import ResponseError, WireError, check
from mirrorlake.protocol.requests.grouping import by

CREATE, DESCRIBE_CONFIGS = 5, 10  # AclOperation, beside those of `cluster`
MAX_TIMESTAMP, FIRST_WITH_MAX_TIMESTAMP = -3, 7  # KIP-734, Kafka 3.0
FIRST_WITH_SPACE = 4  # KIP-827, Kafka 3.3


@dataclass(frozen=True, slots=True)
class LogDir:
    """One directory of logs of a broker.

    Attributes:
        broker: the node id.
        path: the directory.
        total_bytes, usable_bytes: the size of its disk, and what is free; -1 if the broker does not say it.
        sizes: the bytes of each partition's replica there.
    """

    broker: int
    path: str
    total_bytes: int
    usable_bytes: int
    sizes: Mapping[PartitionKey, int] = field(default_factory=dict)

    @property
    def topics(self) -> dict[str, int]:
        """Returns the bytes of each topic's replicas there."""
        found: dict[str, int] = {}
        for (topic, _), size in self.sizes.items():
            found[topic] = found.get(topic, 0) + size
        return found


def cluster_operations(cluster: Cluster, timeout_ms: int) -> frozenset[int] | None:
    """Returns the operations that this principal may perform on the cluster; None if the brokers do not say it."""

    async def attempt() -> frozenset[int] | None:
        try:
            response = await cluster.send_any(DescribeClusterRequest[0](include_cluster_authorized_operations=True))
            check(response.error_code, response.error_message or "")
        except ResponseError as error:
            if error.retriable:
                raise
            return None
        return frozenset(response.authorized_operations) or None

    if not cluster.max_version(DescribeClusterRequest) and cluster.version < "2.8":
        return None
    return cluster.call("reading the permissions on CLUSTER", attempt, timeout_ms)


def log_dirs(cluster: Cluster, timeout_ms: int) -> list[LogDir]:
    """Lists the directories of logs of all brokers.

    Raises:
        SourceError, TargetError: the cluster does not return them (needs DESCRIBE on CLUSTER).
    """

    async def attempt() -> list[LogDir]:
        version = min(4, cluster.max_version(DescribeLogDirsRequest))
        asked = [
            (broker, cluster.send(DescribeLogDirsRequest[version](topics=None), broker))
            for broker in await cluster.brokers()
        ]
        found = []
        for broker, future in asked:
            response = await future
            if version >= 3:
                check(response.error_code, "log directories (needs DESCRIBE)")
            found += [_log_dir(broker, one, version) for one in response.results if not one.error_code]
        return found

    return cluster.call("listing the directories of logs (needs DESCRIBE on CLUSTER)", attempt, timeout_ms)


def _log_dir(broker: int, found: Any, version: int) -> LogDir:
    known = version >= FIRST_WITH_SPACE
    return LogDir(
        broker,
        found.log_dir,
        found.total_bytes if known else -1,
        found.usable_bytes if known else -1,
        {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in found.topics
            for partition in topic.partitions
        },
    )


def newest_timestamps(
    cluster: Cluster, partitions: Iterable[PartitionKey], timeout_ms: int
) -> dict[PartitionKey, int] | None:
    """Returns the largest timestamp in each partition, in ms; leaves out empty ones, and those that do not answer.

    Returns None if the brokers are too old for the request.
    """
    keys = list(partitions)
    if cluster.max_version(ListOffsetsRequest) < FIRST_WITH_MAX_TIMESTAMP:
        return None
    if not keys:
        return {}

    async def attempt() -> dict[PartitionKey, int]:
        asked = []
        for node, group in by(lambda key: cluster.leader(*key), keys).items():
            topics = [
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=-1, timestamp=MAX_TIMESTAMP
                        )
                        for _, index in of_topic
                    ],
                )
                for topic, of_topic in by(lambda key: key[0], group).items()
            ]
            request = ListOffsetsRequest[7](replica_id=-1, isolation_level=READ_COMMITTED, topics=topics)
            asked.append(cluster.send(request, node))
        found = {}
        for future in asked:
            try:
                response = await future
            except WireError:
                continue
            for topic in response.topics:
                for partition in topic.partitions:
                    if not partition.error_code and partition.timestamp >= 0:
                        found[topic.name, partition.partition_index] = partition.timestamp
        return found

    return cluster.call("reading the newest timestamps", attempt, timeout_ms)
