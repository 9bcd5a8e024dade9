"""MirrorMaker 2 beside a flow: whether its workers run, and the source offsets at which it would continue.

Connect stores a source offset under the key `["<connector>",{"cluster":"A","partition":0,"topic":"t"}]`. The
value is `{"offset":N}`, where N is the offset of the last record copied. Connect compares keys as bytes, so the
order of the members matters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin, NewTopic
from mirrorlake.protocol.clients.settings import librdkafka
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_requests import CONSUMER, describe_groups

CONNECTOR = "MirrorSourceConnector"
OFFSETS_CONFIG = {"cleanup.policy": "compact"}
OFFSETS_PARTITIONS = 25  # Connect's default
POLL_S = 1.0
FLUSH_S = 30


OTHER_CLUSTER = ", or set group.id if this group belongs to another Connect cluster"


class MirrorMaker:
    """MirrorMaker 2's group and offsets topic on the target of one flow; `flow.MirrorMakerSettings` has their names.

    Args:
        flow: the flow.
        target: the admin client of its target.
        connector: the name of the source connector. If empty, it is the only connector with offsets of this flow, else
            MirrorSourceConnector.

    Attributes:
        written_ms: the times at which the offsets that `positions` has returned were written.
    """

    def __init__(self, flow: Flow, target: Admin, connector: str = "") -> None:
        self._flow, self._target, self._connector = flow, target, connector
        self._names = flow.mirrormaker
        self._keys: dict[PartitionKey, bytes] = {}
        self.written_ms: dict[PartitionKey, int] = {}

    def require_stopped(self, target: Cluster) -> None:
        """Checks that no worker is a member of MirrorMaker 2's group, neither the one of the property file nor the
        default one: without Connect, it does not read a `group.id` without an alias (`MirrorMakerConfig.workerConfig`).

        Args:
            target: the target of the flow.

        Raises:
            TargetError: there is one, or the group can't be described.
        """
        groups = sorted({self._names.group_id, f"{self._flow.source}-mm2"})
        found = describe_groups(target, groups, self._flow.connect_timeout_ms)
        for group in groups:
            if found[group].has_members and found[group].protocol_type != CONSUMER:
                raise TargetError(
                    f"flow {self._flow.name}: MirrorMaker 2 runs: group {group} on cluster {self._flow.target} has "
                    f"members. Stop its workers first{OTHER_CLUSTER if group == self._names.group_id else ''}"
                )

    def positions(self) -> dict[PartitionKey, int]:
        """Returns the next source offset of MirrorMaker 2 for each partition that it has copied from.

        Raises:
            ConfigurationError: several connectors have offsets of this flow, and the operator named none.
        """
        found = self._by_connector()
        if len(found) > 1:
            raise ConfigurationError(
                f"flow {self._flow.name}: topic {self._names.offsets_topic} on cluster {self._flow.target} holds "
                f"offsets of several connectors ({', '.join(sorted(found))}). Set parameter connector to one of them"
            )
        self._connector = next(iter(found), self._connector)
        return next(iter(found.values()), {})

    def copied(self) -> set[PartitionKey]:
        """Returns the partitions from which MirrorMaker 2 has copied, by whichever connectors."""
        return {key for offsets in self._by_connector().values() for key in offsets}

    def _by_connector(self) -> dict[str, dict[PartitionKey, int]]:
        found: dict[str, dict[PartitionKey, int]] = {}
        for key, value, written_ms in self._records():
            connector, alias, partition = _parse(key)
            if partition is None or alias != self._flow.source or connector != (self._connector or connector):
                continue
            offset = json.loads(value).get("offset") if value else None
            if isinstance(offset, int):
                found.setdefault(connector, {})[partition], self._keys[partition] = offset + 1, key
                self.written_ms[partition] = written_ms
            else:
                found.get(connector, {}).pop(partition, None)  # reset
        return {connector: offsets for connector, offsets in found.items() if offsets}  # of others, all were reset

    def ensure_topic(self) -> None:
        """Creates MirrorMaker 2's offsets topic if it does not exist."""
        if self._names.offsets_topic not in self._target.partitions():
            new = NewTopic(
                self._names.offsets_topic,
                OFFSETS_PARTITIONS,
                self._names.offsets_replication_factor,
                config=OFFSETS_CONFIG,
            )
            for error in self._target.create([new]).values():
                raise error

    def write(self, positions: Mapping[PartitionKey, int]) -> None:
        """Writes the source offsets at which MirrorMaker 2 continues when it starts.

        Raises:
            TargetError: the offsets can't be written.
        """
        topic = self._names.offsets_topic
        known = self.positions()
        problems: list[KafkaError] = []
        # Connect's partitioner: the same key must go to the same partition.
        producer = Producer(
            {
                **librdkafka(self._flow.target_connection, log_level=0),
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
            }
        )
        for key, offset in positions.items():
            if offset > 0 or key in known:  # without an offset, it begins at the first record
                written = (
                    self._keys[key] if key in known else _key(self._connector or CONNECTOR, self._flow.source, *key)
                )
                producer.produce(
                    topic,
                    json.dumps({"offset": offset - 1}, separators=(",", ":")) if offset > 0 else None,
                    written,
                    on_delivery=lambda error, _: problems.append(error) if error else None,
                )
                producer.poll(0)
        left = producer.flush(FLUSH_S)
        if problems or left:
            raise TargetError(
                f"flow {self._flow.name}: topic {topic} on cluster {self._flow.target} can't be written: "
                f"{problems[0] if problems else 'no answer'}"
            )

    def _records(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Yields keys, values and times (ms) of the offsets topic, partition by partition; none if the topic doesn't
        exist."""
        topic = self._names.offsets_topic
        count = self._target.partitions().get(topic, 0)
        if not count:
            return
        consumer = Consumer(
            {
                **librdkafka(self._flow.target_connection, log_level=0),
                "group.id": f"mirrorlake.{self._flow.name}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(count)])
            left, deadline = {*range(count)}, time.monotonic() + self._flow.connect_timeout_ms / 1000
            while left:
                message = consumer.poll(POLL_S)
                if message is None:
                    if time.monotonic() > deadline:
                        raise TargetError(
                            f"flow {self._flow.name}: topic {topic} on cluster {self._flow.target} does not answer",
                            retriable=True,
                        )
                    continue
                key, error = message.key(), message.error()
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka asks for the coordinator of a group that nothing here needs
                deadline = time.monotonic() + self._flow.connect_timeout_ms / 1000
                if error is None:
                    if key is not None:
                        yield key, message.value(), message.timestamp()[1]
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())  # a log that grows has several ends
                else:
                    raise TargetError(
                        f"flow {self._flow.name}: topic {topic} on cluster {self._flow.target} can't be read: {error}"
                    )
        finally:
            consumer.close()


def _key(connector: str, source: str, topic: str, partition: int) -> bytes:
    return json.dumps(
        [connector, {"cluster": source, "partition": partition, "topic": topic}], separators=(",", ":")
    ).encode()


def _parse(key: bytes) -> tuple[str, str, PartitionKey | None]:
    """Parses the key of a source offset into connector, source alias and partition.

    The partition is None for the keys of other connectors.
    """
    try:
        connector, about = json.loads(key)
        return connector, about["cluster"], (about["topic"], int(about["partition"]))
    except (ValueError, TypeError, KeyError):
        return "", "", None
