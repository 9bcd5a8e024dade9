"""MirrorMaker 2's own topics, byte for byte: checkpoints, heartbeats and offset syncs.

Programs written against these topics keep working. The formats are `Checkpoint`, `Heartbeat` and `OffsetSync` of
connect-mirror-client 4.3.0. Records go to partition 0 only, and each topic is compacted. mirrorlake never writes a
tombstone, because MirrorMaker 2's readers fail on it.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.replication_policy import HEARTBEATS
from mirrorlake.errors import MirrorlakeError
from mirrorlake.log import event
from mirrorlake.protocol.admin import Admin, NewTopic
from mirrorlake.protocol.batches.messages import Message, read_messages
from mirrorlake.protocol.clients.settings import librdkafka
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch

log = logging.getLogger(__name__)

CONFIG = {"cleanup.policy": "compact"}
VERSION = 0
FLUSH_S = 5
RETRY_S = 30
FETCH_BYTES = 4 << 20

Mm2Record = tuple[bytes, bytes, int | None]  # key, value, timestamp in ms or None for now


def checkpoint(
    group: str, target_topic: str, target_partition: int, upstream_offset: int, downstream_offset: int, metadata: str
) -> tuple[bytes, bytes]:
    """Encodes key and value of a checkpoint.

    Args:
        group: the group id.
        target_topic: the remote topic.
        target_partition: the partition of the remote topic.
        upstream_offset: the next offset that the group reads on the source.
        downstream_offset: the next offset that the group reads on the target.
        metadata: the metadata of the group's commit.
    """
    key = _string(group) + _string(target_topic) + struct.pack(">i", target_partition)
    return key, struct.pack(">hqq", VERSION, upstream_offset, downstream_offset) + _string(metadata)


class GroupCheckpoint(NamedTuple):
    """A checkpoint as it is read; topic and partition are those of the target, `timestamp` is in ms."""

    group: str
    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str
    timestamp: int


def read_checkpoints(cluster: Cluster, topic: str, timeout_ms: int) -> list[GroupCheckpoint]:
    """Reads the last checkpoint of each group and partition; returns none if the topic does not exist.

    Records that are no checkpoints of a known version are left out.

    Args:
        cluster: the target, which has the topic.
        topic: the checkpoints topic.
        timeout_ms: the deadline of each request.

    Raises:
        TargetError: the topic can't be read.
    """
    found = cluster.refresh([topic], timeout_ms).get(topic)
    keys = [] if found is None else [(topic, partition) for partition in range(found.partitions)]
    last: dict[tuple[str, str, int], GroupCheckpoint] = {}
    starts, ends = (cluster.offsets(keys, at, timeout_ms) for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    for key in keys:

        async def read(key: tuple[str, int] = key) -> list[Message]:
            stretch = read_stretch(cluster, key, start=starts[key], end=ends[key], max_bytes=FETCH_BYTES)
            return [
                message
                async for batch, is_aborted in stretch
                if not is_aborted and not batch.is_control
                for message in read_messages(batch)
            ]

        for one in _checkpoints(cluster.call(f"reading {topic} (needs READ)", read, timeout_ms)):
            last[one.group, one.topic, one.partition] = one
    return sorted(last.values())


def _checkpoints(messages: Iterable[Message]) -> Iterator[GroupCheckpoint]:
    for message in messages:
        try:
            group, rest = _text(message.key or b"")
            topic, rest = _text(rest)
            (partition,) = struct.unpack(">i", rest)
            version, upstream, downstream = struct.unpack_from(">hqq", message.value or b"")
            metadata, rest = _text((message.value or b"")[18:])
        except (struct.error, UnicodeDecodeError, ValueError):
            continue
        if version == VERSION and not rest:
            yield GroupCheckpoint(group, topic, partition, upstream, downstream, metadata, message.timestamp)


def _text(data: bytes) -> tuple[str, bytes]:
    """Reads a string; returns it with what follows it."""
    (size,) = struct.unpack_from(">h", data)
    text = data[2 : 2 + size]
    if not 0 <= size == len(text):
        raise ValueError("the string is cut off")
    return text.decode(), data[2 + size :]


def heartbeat(source: str, target: str, timestamp_ms: int) -> tuple[bytes, bytes]:
    """Encodes key and value of a heartbeat."""
    return _string(source) + _string(target), struct.pack(">hq", VERSION, timestamp_ms)


def offset_sync(topic: str, partition: int, upstream_offset: int, downstream_offset: int) -> tuple[bytes, bytes]:
    """Encodes key and value of an offset sync: the offsets of one record on both sides.

    Args:
        topic: the topic on the source.
        partition: the partition of that topic.
        upstream_offset: the offset of the record on the source.
        downstream_offset: the offset of the record on the target.
    """
    return _string(topic) + struct.pack(">i", partition), struct.pack(">qq", upstream_offset, downstream_offset)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class Mm2Topic:
    """One of MirrorMaker 2's topics on one cluster.

    A failed write is logged once. It stops nothing, because no job of mirrorlake reads these topics.

    Args:
        connection: the connection to the cluster.
        topic: the name of the topic.
        replication_factor: the replication factor of a new topic. If the cluster has too few
            brokers, its default applies.
        flow: the flow whose job writes the topic.
    """

    def __init__(self, connection: Connection, topic: str, replication_factor: int, flow: str) -> None:
        self._connection, self._topic, self._flow = connection, topic, flow
        self._replication_factor = replication_factor
        self._client_id = f"{flow}|mm2"  # the producer's name in the brokers' logs
        self._producer: Producer | None = None
        self._trouble = ""
        self._not_before = 0.0

    def write(self, records: Iterable[Mm2Record]) -> bool:
        """Appends records and waits for acknowledgements; returns False if the cluster doesn't acknowledge them."""
        if time.monotonic() < self._not_before:
            return False
        try:
            producer = self._producer = self._producer or self._open()
        except MirrorlakeError as error:
            self._complain(error.message)
            return False
        refused: list[Any] = []
        for record in records:
            self._produce(producer, record, refused)
            if refused:  # the others would wait as long, each of them
                break
        left = 0 if refused else producer.flush(FLUSH_S)
        if left or refused:
            # What is still under way must not arrive behind what the next producer writes.
            producer.purge()
            self._complain(
                f"{self._topic} on cluster {self._connection.alias} can't be written: "
                f"{_said(refused[0]) if refused else 'no answer'}"
            )
            return False
        self._trouble = ""
        return True

    def _produce(self, producer: Producer, record: Mm2Record, refused: list[Any]) -> None:
        key, value, timestamp_ms = record
        while True:
            try:
                producer.produce(
                    self._topic,
                    value,
                    key,
                    partition=0,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                    timestamp=timestamp_ms or 0,  # 0: now
                )
                return
            except BufferError:
                if producer.flush(FLUSH_S):
                    refused.append("no answer")
                    return
            except KafkaException as error:
                refused.append(error)
                return

    def _open(self) -> Producer:
        admin = Admin(self._connection, "target", self._client_id)
        if self._topic not in admin.partitions():
            # MirrorMaker 2's default of three replicas is too high for a small cluster; its own default applies then.
            for factor in (self._replication_factor, -1):
                refusals = admin.create([NewTopic(self._topic, 1, factor, config=CONFIG)])
                if not refusals:
                    break
            if refusals:
                raise refusals[self._topic]
        return Producer(
            {**librdkafka(self._connection, log_level=0), "client.id": self._client_id, "enable.idempotence": True}
        )

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning(event("mm2_topic_not_written", flow=self._flow, topic=self._topic, error=trouble))
        self._trouble, self._not_before = trouble, time.monotonic() + RETRY_S
        self._producer = None  # the next one has the present password


def _said(refused: Any) -> str:
    """Describes the error of a record; names the permission that is missing."""
    error = refused.args[0] if isinstance(refused, KafkaException) else refused
    if isinstance(error, KafkaError) and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return "not authorised: the principal needs WRITE on this TOPIC"
    return str(error)


class Emitter:
    """The writer of MirrorMaker 2's heartbeats and offset syncs, as far as the flow enables them.

    Args:
        flow: the flow, as its job was started.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._due = 0.0

        def topic(connection: Connection, name: str, replication_factor: int) -> Mm2Topic:
            return Mm2Topic(connection, name, replication_factor, flow.name)

        source, target = flow.source_connection, flow.target_connection
        self._heartbeats = topic(target, HEARTBEATS, flow.heartbeats_replication_factor)
        self._heartbeats_back = topic(source, HEARTBEATS, flow.heartbeats_replication_factor)
        where, other = (source, flow.target) if flow.offset_syncs_location == "source" else (target, flow.source)
        self._offset_syncs = topic(where, flow.policy.offset_syncs_topic(other), flow.offset_syncs_replication_factor)

    def heartbeats_if_due(self) -> None:
        """Writes heartbeats to the target of each enabled direction, as MirrorMaker 2's heartbeat connectors do."""
        flow, now = self._flow, time.monotonic()
        if now < self._due:
            return
        self._due, now_ms = now + flow.emit_heartbeats_interval_s, time.time_ns() // 1_000_000
        if flow.emit_heartbeats_enabled:
            self._heartbeats.write([(*heartbeat(flow.source, flow.target, now_ms), now_ms)])
        if flow.emit_heartbeats_back:
            self._heartbeats_back.write([(*heartbeat(flow.target, flow.source, now_ms), now_ms)])

    def offset_syncs(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Writes the first and the last record of every run (the values of `Run`), in the order of partitions.

        MirrorMaker 2's offset syncs have no partition of the target. So there are none of a topic whose transform
        spreads a partition over several.
        """
        if not self._flow.emit_offset_syncs_enabled:
            return
        records: list[Mm2Record] = []
        whole = (run for run in runs if not self._flow.scatters(run["topic"]))
        for run in sorted(whole, key=lambda run: (run["topic"], run["partition"], run["upstream_start"])):
            for upstream, downstream in (
                (run["upstream_start"], run["downstream_start"]),
                (run["upstream_end"] - 1, run["downstream_end"] - 1),
            ):
                records.append((*offset_sync(run["topic"], run["partition"], upstream, downstream), None))
        self._offset_syncs.write(records)
