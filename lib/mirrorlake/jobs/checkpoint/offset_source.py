"""The streaming source `kafka_group_offsets`: the committed offsets of a flow's groups on the source, once in each
cycle.

Every micro-batch is a cycle and reads everything anew, independently of earlier ones. Rows have a kind:

- `cycle`: one row; `error` is set if the cycle failed;
- `group`: one for each matching group, in any state and with any protocol;
- `share`: one for each share group, which has no offset for each partition;
- `offset`: one for each position of a group;
- `log`: the topic id, the start offset, the last stable offset and the high watermark of each mirrored partition;
- `unread`: one for each group, and each mirrored partition, that the source does not tell about now; `metadata` has the
  error as JSON.

Tasks of Spark read groups at the same time, in any order. The logs are read by the driver afterwards (`with_logs`): a
group must not be ahead of an end that was read before its offset, or it would seem to be of a former log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mirrorlake import errors, spare_memory
from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.jobs.checkpoint.unread import PATIENCE_MS
from mirrorlake.log import quiet_kafka
from mirrorlake.printable import printable
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import each_groups_offsets
from mirrorlake.protocol.group_requests import SHARE, WITH_OFFSETS, list_groups_of_each

SCHEMA = """
  kind STRING, error STRING, group_id STRING, topic STRING, partition INT,
  upstream_offset BIGINT, metadata STRING, topic_id STRING, log_start BIGINT, log_end BIGINT,
  log_high BIGINT
"""
COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(","))
GROUPS_PER_TASK = 500
INCOMPLETE_S = 30.0  # until groups are listed again, if a broker did not tell about some

Row = tuple[
    str,
    str | None,
    str | None,
    str | None,
    int | None,
    int | None,
    str | None,
    str | None,
    int | None,
    int | None,
    int | None,
]


class Groups(InputPartition):
    """One Spark partition: the groups that one task reads, or (None) what is already known: share groups, or an
    error."""

    def __init__(self, groups: list[str] | None, *, shared: tuple[str, ...] = (), error: str | None = None) -> None:
        self.groups, self.shared, self.error = groups, shared, error


class KafkaGroupOffsets(DataSource):
    """The data source of `spark.readStream.format("kafka_group_offsets")`.

    Options are `config` (property file) and `flow`.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka_group_offsets"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> GroupOffsetsReader:  # noqa: N802 (Spark's name)
        quiet_kafka()
        return GroupOffsetsReader(Flow.load(self.options["config"], self.options["flow"]))


class GroupOffsetsReader(DataSourceStreamReader):
    """Lists groups on the driver's machine, and reads their offsets in tasks."""

    def __init__(self, flow: Flow, groups_per_task: int = GROUPS_PER_TASK) -> None:
        self.flow, self._groups_per_task = flow, groups_per_task
        self._cycle = 0
        self._groups: list[str] = []
        self._listed: set[str] = set()
        self._groups_due = 0.0
        self._shared: tuple[str, ...] = ()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"cycle": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        self._cycle += 1
        return {"cycle": self._cycle}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Groups]:
        spare_memory.of_process().give_back_if_due()
        try:
            self._find_groups()
        except MirrorlakeError as error:
            return [Groups(None, error=json.dumps(errors.to_json(error)))]
        size = self._groups_per_task
        chunks = [self._groups[at : at + size] for at in range(0, len(self._groups), size)]
        return [*map(Groups, chunks), Groups(None, shared=self._shared)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        quiet_kafka()
        assert isinstance(partition, Groups)  # only `partitions` makes them
        if partition.error is not None:
            return iter([_row("cycle", error=partition.error)])
        if (groups := partition.groups) is None:
            return iter([_row("cycle"), *(_row("share", group_id=group) for group in partition.shared)])
        return iter(self._rows(lambda: self._read_offsets(groups), "reading group offsets"))

    def with_logs(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows of a cycle's groups with those of the logs, which are read now, unless it has failed."""
        if any(row["kind"] == "cycle" and row["error"] for row in rows):
            return [dict(row) for row in rows]
        logs = self._rows(self._read_logs, "reading the ends of logs")
        return [*map(dict, rows), *(dict(zip(COLUMNS, row, strict=True)) for row in logs)]

    def _rows(self, read: Callable[[], list[Row]], what: str) -> list[Row]:
        """Returns what is read; an error as the row of a cycle that has failed."""
        try:
            return read()
        except MirrorlakeError as error:
            return [_row("cycle", error=json.dumps(errors.to_json(error)))]
        except Exception as error:
            known = errors.unexpected(f"flow {self.flow.name}: {what}", error)
            return [_row("cycle", error=json.dumps(errors.to_json(known)))]

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def _find_groups(self) -> None:
        """Lists the groups, at the refresh interval, or sooner if a broker does not tell about its groups.

        Groups of the listing before are asked for, too. A coordinator that has just moved lists none of them.
        """
        if self._groups and time.monotonic() < self._groups_due:
            return
        source = self._connect()
        try:
            listed, is_complete = list_groups_of_each(source, self.flow.connect_timeout_ms)
            found = {name: group for name, group in listed.items() if self.flow.checkpoints_group(name)}
        finally:
            source.close()
        shared = {name for name, group in found.items() if group.kind == SHARE}
        self._shared = tuple(sorted(shared if is_complete else shared | {*self._shared}))
        named = {name for name, group in found.items() if group.kind != SHARE and group.protocol_type in WITH_OFFSETS}
        if self.flow.canary_enabled:  # it may come and go between two looks
            named.add(self.flow.canary_group)
        self._groups = sorted(named | self._listed)
        self._listed = named if is_complete else named | self._listed
        interval_s = self.flow.refresh_groups_interval_s or float("inf")
        self._groups_due = time.monotonic() + (interval_s if is_complete else min(interval_s, INCOMPLETE_S))

    def _read_offsets(self, groups: list[str]) -> list[Row]:
        source = self._connect()
        try:
            committed, unread = each_groups_offsets(source, groups, PATIENCE_MS)
        finally:
            source.close()
        rows = [
            _row("unread", group_id=group, metadata=json.dumps(errors.to_json(_explained(source, group, error))))
            for group, error in unread.items()
        ]
        for group, positions in committed.items():
            rows.append(_row("group", group_id=group))
            rows += [
                _row(
                    "offset",
                    group_id=group,
                    topic=position.topic,
                    partition=position.partition,
                    upstream_offset=position.offset,
                    metadata=position.metadata,
                )
                for position in positions
                if position.offset >= 0
            ]
        return rows

    def _read_logs(self) -> list[Row]:
        timeout_ms = self.flow.connect_timeout_ms
        source = self._connect()
        try:
            topics = {
                name: topic for name, topic in source.refresh(None, timeout_ms).items() if self.flow.mirrors_topic(name)
            }
            keys = [(name, partition) for name, topic in topics.items() for partition in range(topic.partitions)]
            bounds, unread = source.log_bounds(keys)
        finally:
            source.close()
        return [
            *(
                _row("unread", topic=topic, partition=partition, metadata=json.dumps(errors.to_json(_silent(error))))
                for (topic, partition), error in unread.items()
            ),
            *(
                _row(
                    "log",
                    topic=topic,
                    partition=partition,
                    topic_id=topics[topic].topic_id,
                    log_start=log_start,
                    log_end=log_end,
                    log_high=log_high,
                )
                for (topic, partition), (log_start, log_end, log_high) in bounds.items()
            ),
        ]

    def _connect(self) -> Cluster:
        """Connects to the source, which has answered this job before: that it can't be reached may pass."""
        return Cluster(
            self.flow.source_connection, "source", f"{self.flow.name}|groups", self.flow.connect_timeout_ms
        ).connect(again=True)


def _explained(source: Cluster, group: str, error: Exception) -> MirrorlakeError:
    if isinstance(error, MirrorlakeError):
        return error
    return source.explained(f"reading the offsets of GROUP {printable(group)} (needs DESCRIBE)", error)


def _silent(error: str) -> MirrorlakeError:
    return SourceError(f"listing offsets: {error}", retriable=True)


def _row(
    kind: str,
    *,
    error: str | None = None,
    group_id: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    upstream_offset: int | None = None,
    metadata: str | None = None,
    topic_id: str | None = None,
    log_start: int | None = None,
    log_end: int | None = None,
    log_high: int | None = None,
) -> Row:
    return kind, error, group_id, topic, partition, upstream_offset, metadata, topic_id, log_start, log_end, log_high
