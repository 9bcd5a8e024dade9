"""Reads both logs of a flow for a verification: their offsets, their records, and the causes of one-sided records.

Spark's Kafka source reads the records, as any read_committed consumer would get them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.start import StartSpec
from mirrorlake.jobs.verification.compare import disjoint, fingerprints, located
from mirrorlake.jobs.verification.segments import Extent
from mirrorlake.ledger.offset_sync_rows import gap_rows, offset_sync_states, run_rows
from mirrorlake.model.slot import Position, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    Cluster,
)
from mirrorlake.protocol.open_transactions import settled_ends
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.reasons import NotCompared
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.state.backlog import unmirrored
from mirrorlake.state.closure import is_closed, promoted_topics
from mirrorlake.state.offset_syncs import STATE_AND_MARKER, read_all_states
from mirrorlake.state.provenance import telling_topics
from mirrorlake.translation.awaited import former_remotes
from mirrorlake.translation.versioned_map import clipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = """
  key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>
"""
ELECTION_S, AGAIN_S = 10.0, 0.5  # how long an election may take, and the pause between two looks
RANGE = "topic STRING, partition INT, from_offset BIGINT, to_offset BIGINT"
HIDDEN = (
    "Nobody can tell whether all its records are mirrored. Nothing was compared. If the right can't be granted, verify "
    "the other topics (parameter topics)"
)
Bounds = Mapping[PartitionKey, tuple[int, int]]  # from and to (exclusive), by topic and partition


@dataclass(frozen=True)
class Late:
    """The records of a source partition from `start` to `end` (exclusive) that are not mirrored, and their number.

    `position` is that of the flow; None if it has not begun the partition.
    """

    start: int
    end: int
    records: int
    position: Position | None


@dataclass(frozen=True)
class Cleanup:
    """What the log cleaner may delete of topics on one side.

    Attributes:
        compacted: the topics that are compacted, with delete.retention.ms: the least age of tombstones that the cleaner
            deletes.
        unknown: the topics whose configuration can't be read, with what to do about it, in words.
    """

    compacted: Mapping[str, int]
    unknown: Mapping[str, str]


class FlowLogs:
    """The logs of a flow.

    Args:
        spark: session that reads the records.
        flow: flow of the logs.
        source: connected source cluster.
        target: connected target cluster.
    """

    def __init__(self, spark: SparkSession, flow: Flow, source: Cluster, target: Cluster) -> None:
        self._spark, self._flow, self._source, self._target = spark, flow, source, target
        self._timeout_ms = flow.connect_timeout_ms
        self._waited_for: dict[Cluster, set[PartitionKey]] = {source: set(), target: set()}
        self._silent: dict[PartitionKey, str] = {}

    # -- offsets ------------------------------------------------------------------------------------

    def reach(self, extents: Iterable[Extent]) -> dict[PartitionKey, str]:
        """Sets the current start and end offsets of both logs in the extents.

        A deleted topic has lost everything. On the source, this counts as retention; on the target, as a loss.

        Returns:
            The partitions whose log on either cluster has no leader that answers, with the reason; nothing is set then.

        Raises:
            TargetError: a transaction is open before the end of the map, so that readers don't get the mirrored records
                yet.
        """
        everything = list(extents)
        unread = self._unread(everything)
        found = [extent for extent in everything if extent.key not in unread]
        ends = self._settled_ends({extent.remote: extent.downstream_end for extent in found})
        starts = self._offsets(self._target, [extent.remote for extent in found], EARLIEST_TIMESTAMP)
        source_starts, source_ends = (
            self._offsets(self._source, [extent.key for extent in found], at)
            for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        for extent in found:
            extent.source_start = source_starts.get(extent.key, extent.upstream_to)
            extent.source_end = source_ends.get(extent.key, extent.upstream_to)
            extent.target_start, extent.target_end = starts.get(extent.remote, 0), ends.get(extent.remote, 0)
            extent.downstream_to = max(extent.downstream_end, extent.target_end)
        return unread

    def _unread(self, extents: Sequence[Extent]) -> dict[PartitionKey, str]:
        """Returns the partitions whose log on either cluster can't be listed now, with the reason."""
        remotes: dict[PartitionKey, list[PartitionKey]] = {}
        for extent in extents:
            remotes.setdefault(extent.remote, []).append(extent.key)
        sides = (self._source, {extent.key: [extent.key] for extent in extents}), (self._target, remotes)
        found: dict[PartitionKey, str] = {}
        for cluster, of in sides:
            _, unread = self._bounds(cluster, cluster.existing(of, self._timeout_ms))
            for log, error in unread.items():
                found.update(dict.fromkeys(of[log], _why_unread(cluster, log, error)))
        return found

    def starts(self, extents: Iterable[Extent]) -> tuple[dict[PartitionKey, int], dict[PartitionKey, int]]:
        """Returns the start offsets of the source partitions, and of the remote partitions, as far as they are told."""
        found = list(extents)
        sides = (self._source, [one.key for one in found]), (self._target, [one.remote for one in found])
        source, target = (cluster.log_starts(cluster.existing(keys, self._timeout_ms))[0] for cluster, keys in sides)
        return source, target

    def source_partitions(
        self, is_wanted: Callable[[str], bool]
    ) -> tuple[dict[PartitionKey, tuple[int, int]], dict[PartitionKey, str]]:
        """Returns start and end of every partition of the flow's wanted topics that isn't empty, and the partitions
        whose log can't be listed, now or when this was asked before, with the reason."""
        topics = {
            name: topic
            for name, topic in self._source.refresh(None, self._timeout_ms).items()
            if is_wanted(name) and self._flow.mirrors_topic(name)
        }
        keys = [(name, partition) for name, topic in topics.items() for partition in topic.leaders]
        bounds, unread = self._bounds(self._source, keys)
        there = {key: (start, end) for key, (start, end, _) in bounds.items() if start < end}
        self._silent |= {key: _why_unread(self._source, key, error) for key, error in unread.items()}
        return there, dict(self._silent)

    def _bounds(
        self, cluster: Cluster, keys: Iterable[PartitionKey]
    ) -> tuple[dict[PartitionKey, tuple[int, int, int]], dict[PartitionKey, str]]:
        """Returns `Cluster.log_bounds`, and waits for elections, once for each partition."""
        bounds, unread = cluster.log_bounds(keys)
        waited_for, deadline = self._waited_for[cluster], time.monotonic() + ELECTION_S
        while (again := unread.keys() - waited_for) and time.monotonic() < deadline:
            time.sleep(AGAIN_S)
            told, still = cluster.log_bounds(again)
            bounds |= told
            unread = {key: error for key, error in (unread | still).items() if key not in told}
        waited_for |= unread.keys()
        return bounds, unread

    def late(self, before_ms: int, is_wanted: Callable[[str], bool]) -> dict[PartitionKey, Late]:
        """Returns the partitions of wanted topics whose first record that is not mirrored is older than a time.

        Where a partition begins is only known once the flow has begun it, unless it begins at the earliest offset. A
        closed flow has no late ones: what reaches its source after the failover is not to be mirrored.

        Raises:
            SourceError: the principal may not describe a wanted topic that was mirrored, or the source can't be read.
        """
        states = self._states()
        if is_closed(states.values()):
            return {}
        positions, promoted = merge_positions(states.values()), promoted_topics(states.values())
        there, _ = self.source_partitions(is_wanted)
        unseen = {topic for topic, _ in positions if is_wanted(topic)} - promoted - {topic for topic, _ in there}
        require_visible(self._source, self._flow, unseen, HIDDEN)
        bounds = {
            key: bound
            for key, bound in there.items()
            if is_wanted(key[0])
            and key[0] not in promoted
            and (key in positions or self._flow.start.of(key[0], is_first=False) == StartSpec())
        }
        starts = {key: start for key, (start, _) in bounds.items()}
        for key in starts.keys() & positions.keys():
            position, topic_id = positions[key], self._source.topics[key[0]].topic_id
            if not position.topic_id or position.topic_id == topic_id:
                starts[key] = max(starts[key], position.upstream_next)
        found = unmirrored(self._source, self._flow, starts, {key: end for key, (_, end) in bounds.items()})
        return {
            key: Late(starts[key], bounds[key][1], one.records, positions.get(key))
            for key, one in found.items()
            if one.oldest_ms is not None and one.oldest_ms < before_ms
        }

    def still_late(self, late: Mapping[PartitionKey, Late]) -> dict[PartitionKey, Late]:
        """Returns those partitions that the flow has not mirrored any further meanwhile."""
        positions = self._positions() if late else {}
        return {key: one for key, one in late.items() if _place(positions.get(key)) == _place(one.position)}

    def is_closed(self) -> bool:
        """Tells whether the flow is closed: others write to its remote topics."""
        return is_closed(self._states().values())

    def promoted(self) -> frozenset[str]:
        """Returns the topics that were promoted: others write to the remote topics."""
        return promoted_topics(self._states().values())

    def _positions(self) -> dict[PartitionKey, Position]:
        return merge_positions(self._states().values())

    def _states(self) -> dict[int, SlotState]:
        return read_all_states(self._target, self._flow.offset_syncs_topic, self._timeout_ms)

    def cleanup(self, side: str, topics: Iterable[str]) -> Cleanup:
        """Reads from the configuration of topics what the log cleaner may delete of them on that side."""
        cluster, connection = (
            (self._source, self._flow.source_connection)
            if side == "source"
            else (self._target, self._flow.target_connection)
        )
        wanted = sorted(cluster.refresh(set(topics), self._timeout_ms))
        entries = Admin(connection, side, self._flow.name).configs(wanted)
        return Cleanup(
            {
                topic: int(entry["delete.retention.ms"].value or 0)
                for topic, entry in entries.items()
                if "compact" in (entry["cleanup.policy"].value or "")
            },
            {
                topic: f"nobody can tell which records cluster {connection.alias} deletes by itself: grant "
                f"DESCRIBE_CONFIGS on TOPIC {topic} there"
                for topic in wanted
                if topic not in entries
            },
        )

    def _offsets(self, cluster: Cluster, keys: list[PartitionKey], at: int) -> dict[PartitionKey, int]:
        known = cluster.existing(keys, self._timeout_ms)
        return cluster.offsets(known, at, self._timeout_ms) if known else {}

    def _settled_ends(self, needed: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """Returns the last stable offsets of remote partitions.

        Waits until they reach the needed offsets, as far as the logs do.
        """
        return settled_ends(
            self._target,
            {key: needed[key] for key in self._target.existing(needed, self._timeout_ms)},
            f"flow {self._flow.name}: finding the ends of the remote topics",
            "It is before the end of the map",
            self._timeout_ms,
        )

    # -- records ------------------------------------------------------------------------------------

    def source_fingerprints(self, bounds: Bounds, dropped: Sequence[tuple[str, int, int, int]] = ()) -> DataFrame:
        """Returns `compare.fingerprints` of the source, with left_out: true for records that other flows brought and
        this flow does not mirror, and for those that an operator has dropped.

        Args:
            bounds: the offsets to read.
            dropped: topic, partition, and the offsets from which and to which the records were dropped.
        """
        from pyspark.sql import functions as F

        records = fingerprints(self._records("source", bounds))
        ranges = [self._brought()] if self._flow.minds_provenance else []
        if dropped:
            ranges.append(self._spark.createDataFrame([*dropped], RANGE))
        if not ranges:
            return records.withColumn("left_out", F.lit(False))
        place: Any = {"on": ("topic", "partition"), "start": "from_offset", "end": "to_offset"}
        # Kept, as each look at the records asks for it.
        left_out = disjoint(reduce(lambda one, other: one.unionByName(other), ranges), **place).localCheckpoint()
        found = located(records, left_out, **place)
        return found.select(*records.columns, F.col("range").isNotNull().alias("left_out"))

    def target_fingerprints(self, bounds: Bounds) -> DataFrame:
        """Returns `compare.fingerprints` of the target."""
        return fingerprints(self._records("target", bounds))

    def kept_records(self, bounds: Bounds) -> DataFrame | None:
        """Reads the records of the source that its retention is to keep: columns topic, partition and offset.

        A record that is older than retention.ms is about to be deleted there, too. Of a topic with a limit in bytes,
        nobody can say that. A topic whose configuration can't be read is to keep all of its records. None if there is
        nothing to read.
        """
        from pyspark.sql import functions as F

        topics = sorted({topic for topic, _ in bounds})
        entries = Admin(self._flow.source_connection, "source", self._flow.name).configs(topics)
        now_ms = time.time_ns() // 1_000_000
        since_ms = {topic: 0 for topic in topics if topic not in entries}
        for topic, entry in entries.items():
            retention_ms = int(entry["retention.ms"].value or -1)
            if "delete" not in (entry["cleanup.policy"].value or ""):
                since_ms[topic] = 0
            elif int(entry["retention.bytes"].value or -1) < 0:
                since_ms[topic] = 0 if retention_ms < 0 else now_ms - retention_ms
        wanted = {key: bound for key, bound in bounds.items() if key[0] in since_ms}
        if not wanted:
            return None
        limits = self._spark.createDataFrame([*since_ms.items()], "topic STRING, since_ms BIGINT")
        records = self._records("source", wanted).select("topic", "partition", "offset", "timestamp")
        kept = records.join(F.broadcast(limits), "topic").filter("unix_millis(timestamp) >= since_ms")
        return kept.select("topic", "partition", "offset")

    def last_keys(self, side: str, extents: Iterable[Extent]) -> DataFrame:
        """Returns the last record of each key on that side, up to the end of its log.

        The columns are topic and partition of the source, key_hash and last_offset.
        """
        from pyspark.sql import functions as F

        chosen = list(extents)
        if side == "source":
            rows = self._records(
                "source",
                {extent.key: (max(extent.upstream_from, extent.source_start), extent.source_end) for extent in chosen},
            )
        else:
            rows = self._records(
                "target",
                {
                    extent.remote: (max(extent.downstream_from, extent.target_start), extent.target_end)
                    for extent in chosen
                },
            )
            names = self._spark.createDataFrame(
                [(*extent.remote, *extent.key) for extent in chosen],
                "topic STRING, partition INT, of STRING, of_partition INT",
            )
            rows = (
                rows.join(F.broadcast(names), ["topic", "partition"])
                .drop("topic", "partition")
                .withColumnsRenamed({"of": "topic", "of_partition": "partition"})
            )
        return fingerprints(rows).groupBy("topic", "partition", "key_hash").agg(F.max("offset").alias("last_offset"))

    def has_later_states(self, last: Mapping[int, int]) -> bool:
        """Returns False if the offset-syncs topic has no record behind those offsets, by its partitions."""
        keys = self._sync_keys()
        ends = self._target.high_watermarks(keys)
        starts = self._starts(self._target, keys)
        return any(
            key not in ends or ends[key] > max(starts[key], last.get(key[1], -1) + STATE_AND_MARKER) for key in keys
        )

    def later_runs(self, last: Mapping[int, int]) -> DataFrame:
        """Reads the runs of the target's offset-syncs topic behind the given offsets, by its partitions.

        The columns are those of the table offset_syncs. Uncommitted runs are included: a state is written before its
        transaction ends, but the data's commit markers may be written first. Aborted runs only take up offsets at which
        no reader sees a record.
        """
        starts = self._starts(self._target, self._sync_keys())
        first = {key: max(start, last.get(key[1], -1) + 1) for key, start in starts.items()}
        return run_rows(self._states_at("target", first))

    def sync_partitions(self) -> int:
        """Returns the number of partitions of the offset-syncs topic on the target; 0 if there is no such topic."""
        return len(self._sync_keys())

    def _sync_keys(self) -> list[PartitionKey]:
        topic = self._flow.offset_syncs_topic
        there = self._target.refresh([topic], self._timeout_ms)
        return [(topic, partition) for partition in there[topic].leaders] if topic in there else []

    def _brought(self) -> DataFrame:
        """Returns the source offsets that other flows brought (RANGE), from their offset-syncs topics on the source."""
        from pyspark.sql import functions as F

        found = self._source.call(
            "reading metadata", lambda: telling_topics(self._flow, self._source), self._timeout_ms
        )
        brought = self._spark.createDataFrame([], RANGE)
        for topic in found:  # each by itself: the topics of several flows to the source may have the same names
            keys = [(topic.name, partition) for partition in topic.leaders]
            states = self._states_at("source", self._starts(self._source, keys))
            runs = run_rows(states).localCheckpoint()  # read twice, and each time is a reading of the whole topic
            brought = brought.unionByName(brought_ranges(runs, gap_rows(states)))
        former = self._former_remotes(topic.name for topic in found)
        if not former:
            return brought
        of_former = self._spark.createDataFrame(sorted(former), "topic STRING, partition INT")
        return brought.join(F.broadcast(of_former), ["topic", "partition"], "left_anti")

    def _former_remotes(self, telling: Iterable[str]) -> set[PartitionKey]:
        """Returns partitions of the source whose topic is not the one that a flow to it has written."""
        positions = [
            position
            for topic in telling
            for position in merge_positions(read_all_states(self._source, topic, self._timeout_ms).values()).values()
        ]
        there = self._source.refresh({one.target_topic for one in positions}, self._timeout_ms, operations=True)
        return former_remotes(positions, {name: topic.topic_id for name, topic in there.items()})

    def _starts(self, cluster: Cluster, keys: list[PartitionKey]) -> dict[PartitionKey, int]:
        return cluster.offsets(keys, EARLIEST_TIMESTAMP, self._timeout_ms) if keys else {}

    def _states_at(self, side: str, starts: Mapping[PartitionKey, int]) -> DataFrame:
        """Reads the states of an offset-syncs topic on that side, from the start offset of each partition on."""
        cluster = self._source if side == "source" else self._target
        keys = list(starts)
        what = f"flow {self._flow.name}: finding the end of its offset syncs"
        ends = (
            cluster.call(what, lambda: cluster.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED), self._timeout_ms)
            if keys
            else {}
        )
        bounds = {key: (starts[key], ends[key]) for key in keys}
        return offset_sync_states(self._records(side, bounds, "read_uncommitted"))

    def _records(self, side: str, bounds: Bounds, isolation: str = "read_committed") -> DataFrame:
        wanted = {key: (start, end) for key, (start, end) in bounds.items() if start < end}
        if not wanted:
            return self._spark.createDataFrame([], KAFKA)
        connection = self._flow.source_connection if side == "source" else self._flow.target_connection
        start, end = ({key: of[at] for key, of in wanted.items()} for at in (0, 1))
        return log_records(
            self._spark,
            connection,
            start=start,
            end=end,
            isolation=isolation,
            names={topic: topic for topic, _ in wanted},
        )


def brought_ranges(runs: DataFrame, gaps: DataFrame) -> DataFrame:
    """Returns the target offsets of a flow's records that are still there (RANGE, with the names of the target).

    The records of a log that the flow's source has lost are; those of a remote topic that was created anew are not.
    What another mirror has copied before a take-over is left out, as it does not tell its producers.

    Args:
        runs: the flow's rows of offset_syncs, one for each run.
        gaps: the flow's rows of gaps.
    """
    from pyspark.sql import functions as F

    return (
        clipped(runs, gaps)
        .filter("NOT is_inferred")
        .select(
            F.col("target_topic").alias("topic"),
            F.col("target_partition").alias("partition"),
            F.col("downstream_start").alias("from_offset"),
            F.col("downstream_end").alias("to_offset"),
        )
    )


def _why_unread(cluster: Cluster, key: PartitionKey, error: str) -> str:
    topic, partition = key
    alias = cluster.connection.alias
    return NotCompared.UNREAD.about(cluster=alias, topic=topic, partition=partition, error=error)


def _place(position: Position | None) -> tuple[int, str, int] | None:
    """Returns the part of a position that changes when the flow gets further."""
    return None if position is None else (position.incarnation, position.topic_id, position.upstream_next)
