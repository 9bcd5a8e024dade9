"""Fetch requests, and what their responses hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchRequest

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.network.response_error import check_repeatable
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.protocol.requests.metadata import Topic, epoch_of


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition of a Fetch response. Many records are a view of the whole response.

    If the log differs from the one that was read before (KIP-595), `diverges_at` is the end of the newest leader epoch
    that it has up to the one asked for, and `diverging_epoch` is that epoch; else None and -1.
    """

    topic: str
    partition: int
    error_code: int
    log_start_offset: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    records: bytes | memoryview
    diverges_at: int | None = None
    diverging_epoch: int = -1

    def differs_from(self, leader_epoch: int, epoch_from: int) -> int | None:
        """Returns the offset from which the log differs from the one that was read before, None if it does not.

        Args:
            leader_epoch: the epoch of the batch read last.
            epoch_from: the offset at which that epoch began; -1 if it is unknown.
        """
        if self.diverges_at is None or self.diverging_epoch >= leader_epoch or epoch_from < 0:
            return self.diverges_at
        return min(self.diverges_at, epoch_from)  # the log never had that epoch, nor anything that was read with it


def fetch_request(
    topics: Mapping[str, Topic],
    offsets: Mapping[PartitionKey, int],
    newest: int,
    max_bytes: int,
    partition_max_bytes: Mapping[PartitionKey, int],
    max_wait_ms: int,
    isolation: int,
    epochs: Mapping[PartitionKey, int],
) -> Any:
    """Returns a Fetch request without a session; see `Cluster.fetch` for the arguments.

    Args:
        topics: the metadata of the topics.
        newest: the newest version that broker and kafka-python support.
    """
    by_id = newest >= 13 and all(topic in topics and topics[topic].topic_id for topic, _ in offsets)
    asked = [
        FetchRequest.FetchTopic(
            **({"topic_id": uuid.UUID(topics[topic].topic_id)} if by_id else {"topic": topic}),
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=index,
                    current_leader_epoch=epoch_of(topics, topic, index),
                    fetch_offset=offsets[topic, index],
                    log_start_offset=-1,
                    partition_max_bytes=partition_max_bytes[topic, index],
                    last_fetched_epoch=epochs.get((topic, index), -1) if newest >= 12 else -1,
                )
                for _, index in group
            ],
        )
        for topic, group in by(lambda key: key[0], offsets).items()
    ]
    return FetchRequest[13 if by_id else min(newest, 12)](
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=asked,
        forgotten_topics_data=[],
        rack_id="",
    )


def fetched_partitions(response: Any, names: Mapping[str, str]) -> Iterator[Fetched]:
    """Yields the partitions of a Fetch response.

    Args:
        response: the response.
        names: the names of topics, by topic id.
    """
    check_repeatable(response.error_code)
    for topic in response.responses:
        name = topic.topic or names[str(topic.topic_id)]
        for partition in topic.partitions:
            yield Fetched(
                topic=name,
                partition=partition.partition_index,
                error_code=partition.error_code,
                log_start_offset=partition.log_start_offset,
                last_stable_offset=partition.last_stable_offset,
                aborted=[
                    (aborted.producer_id, aborted.first_offset) for aborted in partition.aborted_transactions or ()
                ],
                records=partition.records or b"",
                diverges_at=None
                if partition.diverging_epoch is None or partition.diverging_epoch.end_offset < 0
                else partition.diverging_epoch.end_offset,
                diverging_epoch=-1 if partition.diverging_epoch is None else partition.diverging_epoch.epoch,
            )
