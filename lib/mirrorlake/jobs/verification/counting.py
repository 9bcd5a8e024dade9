"""Counts the records of both clusters by topic and hour, apart from the map and from the copying code.

A counting goes on where the last one of the topic ended: it reads what was written since on either side, as a
read_committed consumer does, and appends the numbers to the table counts. Records that were counted stay counted after
retention has deleted them. Uber's Chaperone compares tiers of a pipeline in the same way.

The target is looked at before the source. Every record that it has was then on the source before, so that a surplus is
never a matter of time. Records count as missing once the source has had them for longer than the allowed lateness.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.start import StartSpec
from mirrorlake.errors import MirrorlakeError
from mirrorlake.gate import Gate
from mirrorlake.jobs.verification.bookmark import Bookmark, CountRange, LogBounds
from mirrorlake.jobs.verification.completeness import (
    Completeness,
    CountScope,
    CountStatus,
    HourCount,
    TopicCount,
    UnequalWindow,
    gate_frame,
)
from mirrorlake.jobs.verification.logs import FlowLogs
from mirrorlake.jobs.verification.unreadable import unreadable_partitions
from mirrorlake.ledger import views
from mirrorlake.ledger.offset_sync_rows import YEAR_1_MS, YEAR_9999_MS
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.log import ending, event
from mirrorlake.model.slot import merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.reasons import NotCompared
from mirrorlake.spark.kafka_frames import log_records, why_unread
from mirrorlake.state.closure import promoted_topics
from mirrorlake.state.offset_syncs import read_all_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

WINDOW_MS = 3_600_000  # the same for ever: counts of windows of two sizes can't be compared
FIRST_MS, LAST_MS = YEAR_1_MS + 24 * WINDOW_MS, YEAR_9999_MS - 24 * WINDOW_MS  # a day less, for any time zone
UNEQUAL_SHOWN = 10
KEYS = ("source", "target", "topic", "counting")
HIDDEN = (
    "Its records can't be counted, and what was counted before must not stand for them. Nothing was counted. If the "
    "right can't be granted, exclude the topic (topics.exclude)"
)
SILENT = "a partition of it has no leader that answers; the next counting goes on where the last one ended"
Mark = dict[str, Any]  # the columns of the table counts that all rows of a topic have
COUNTED = "topic STRING, window_ms BIGINT, records BIGINT"


@dataclass(frozen=True)
class LastCounting:
    """The last counting of a topic: its number, its bookmarks, and since when its windows are whole (ms; None: all)."""

    counting: int
    source: Bookmark
    target: Bookmark
    comparable_from_ms: int | None


@dataclass(frozen=True)
class TopicRange:
    """The part of a topic that is counted next, on both sides."""

    topic: str
    target_topic: str
    source_id: str
    target_id: str
    source: CountRange
    target: CountRange


class Counting:
    """Counts the records of one flow.

    Args:
        spark: a session with Delta and the Kafka source, classic or of Spark Connect; its executors read both clusters.
        flow: flow to count.
        ledger: tables for the counts and results.
        suite: path of the expectations for counts.
    """

    def __init__(self, spark: SparkSession, flow: Flow, ledger: Ledger, suite: str | Path) -> None:
        self.spark, self.flow, self.ledger = spark, flow, ledger
        self._gate = Gate(suite)

    def run(self, scope: CountScope) -> Completeness:
        """Counts what was written since the last counting, and judges the windows of the last days.

        The counts are stored whether they are equal or not (`Completeness.require`).

        Raises:
            SourceError, TargetError: a cluster can't be read.
            LedgerError: the tables can't be read or written.
        """
        with ending(log, "counting", flow=self.flow.name):
            return self._run(scope)

    def _run(self, scope: CountScope) -> Completeness:
        flow, counting_id, counted_at = self.flow, uuid.uuid4().hex, datetime.now(UTC)
        self.ledger.ensure_tables()
        last = self._last()
        since = _hour_of(counted_at - timedelta(days=scope.days))
        client_id, timeout_ms = f"{flow.name}|counts", flow.connect_timeout_ms
        with (
            closing(Cluster(flow.source_connection, "source", client_id, timeout_ms).connect()) as source,
            closing(Cluster(flow.target_connection, "target", client_id, timeout_ms).connect()) as target,
        ):
            ranges = self._ranges(source, target, last, since)
            neutral, doubts = self._neutral(FlowLogs(self.spark, flow, source, target), ranges)
        log.info(event("counting_begun", flow=flow.name, topics=len(ranges), offsets=_offsets(ranges)))

        def mark(one: TopicRange, reasons: Mapping[str, str]) -> Mark:
            return self._mark(one, last, reasons, counted_at, since, scope)

        new = self._append(ranges, neutral, mark)
        result = self._judged(counting_id, counted_at, since, new, doubts)
        self.ledger.append("expectation_results", result.results)
        log.log(
            logging.INFO if result.passed or result.is_neutral else logging.WARNING,
            event(
                "counting_finished",
                flow=flow.name,
                counting_id=counting_id,
                passed=result.passed,
                missing=result.total("missing"),
                surplus=result.total("surplus"),
                statement=result.statement(),
            ),
        )
        return result

    # -- what to count ------------------------------------------------------------------------------

    def _last(self) -> dict[str, LastCounting]:
        from pyspark.sql import functions as F

        named = ["counting", "source_topic_id", "source_offsets", "target_topic_id", "target_offsets"]
        rows = self.ledger.of_flow("counts", self.flow).withColumn("from_ms", F.unix_millis("comparable_from"))
        newest = rows.groupBy("topic").agg(F.max_by(F.struct(*named, "from_ms"), "counting").alias("of")).collect()
        return {
            row["topic"]: LastCounting(
                row["of"]["counting"],
                Bookmark.of(row["of"]["source_topic_id"], row["of"]["source_offsets"]),
                Bookmark.of(row["of"]["target_topic_id"], row["of"]["target_offsets"]),
                row["of"]["from_ms"],
            )
            for row in newest
        }

    def _ranges(
        self, source: Cluster, target: Cluster, last: Mapping[str, LastCounting], since: datetime
    ) -> list[TopicRange]:
        """Returns the offsets of each topic that are counted next; those of the target are looked at first.

        A topic of which a partition has no leader that answers, on either cluster, is left to a later counting.
        """
        timeout_ms = self.flow.connect_timeout_ms
        states = read_all_states(target, self.flow.offset_syncs_topic, timeout_ms).values()
        promoted, mirrored = promoted_topics(states), {topic for topic, _ in merge_positions(states)}
        listed = source.refresh(None, timeout_ms).keys()
        require_visible(source, self.flow, mirrored - promoted - listed, HIDDEN)
        names = [name for name in listed if self.flow.mirrors_topic(name) and name not in promoted]
        remote = {name: self.flow.policy.remote_topic(name) for name in sorted(names)}
        unnamed = self.flow.unnamed(remote, mirrored)  # these have no mirror, and a broker may refuse to look for one
        there, silent_there = _bounds(
            target, {remote[name] for name in remote if name not in unnamed}, since, timeout_ms
        )
        here, silent_here = _bounds(source, {*remote}, since, timeout_ms)
        found = []
        for topic, target_topic in remote.items():
            if topic in silent_here or target_topic in silent_there:
                log.warning(event("topic_not_counted", flow=self.flow.name, topic=topic, reason=SILENT))
                continue
            if topic not in here:
                continue  # it was deleted meanwhile
            before, is_first = last.get(topic), topic not in last
            (source_id, source_bounds), (target_id, target_bounds) = here[topic], there.get(target_topic, ("", {}))
            of_source = before.source if before else Bookmark()
            of_target = before.target if before else Bookmark()
            found.append(
                TopicRange(
                    topic=topic,
                    target_topic=target_topic,
                    source_id=source_id,
                    target_id=target_id,
                    source=of_source.next_range(source_id, source_bounds, is_first=is_first),
                    target=of_target.next_range(target_id, target_bounds, is_first=is_first),
                )
            )
        return found

    def _neutral(self, logs: FlowLogs, ranges: Iterable[TopicRange]) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the topics whose counts need not be equal, each with the reason; and those of which nobody can tell
        whether they are compacted, with what to do: their counts must be equal."""
        chosen, flow, is_closed = list(ranges), self.flow, logs.is_closed()
        found: dict[str, str] = {}
        doubts: dict[str, str] = {}
        for side in ("source", "target"):
            names = {one.topic if side == "source" else one.target_topic for one in chosen}
            cleanup = logs.cleanup(side, names)
            for one in chosen:
                name = one.topic if side == "source" else one.target_topic
                if name in cleanup.compacted:
                    found[one.topic] = f"compacted on the {side}: the log cleaner deletes records"
                elif name in cleanup.unknown:
                    doubts[one.topic] = cleanup.unknown[name]
        for one in chosen:
            transform = flow.transform_of(one.topic)
            if flow.minds_provenance:
                found[one.topic] = "the flow leaves out records by their origin"
            if flow.topics_shared:
                found[one.topic] = "others write to the remote topic, too (mirrorlake.topics.shared)"
            if is_closed:
                found[one.topic] = "the flow is closed: others write to the remote topic"
            if transform is not None:
                found[one.topic] = f"transform {transform.name} changes or filters the records"
        return found, doubts

    def _mark(
        self,
        one: TopicRange,
        last: Mapping[str, LastCounting],
        neutral: Mapping[str, str],
        counted_at: datetime,
        since: datetime,
        scope: CountScope,
    ) -> Mark:
        """Returns the columns of the table counts that all rows of a topic have in this counting."""
        before = last.get(one.topic)
        limits = [] if before is None or before.comparable_from_ms is None else [_time(before.comparable_from_ms)]
        has_new = before is None or not one.source.end.keys() <= before.source.offsets.keys()  # partitions
        if one.topic in neutral or (has_new and self._begins_late(one.topic)):
            limits.append(counted_at)
        for part in (one.source, one.target):
            limits += [] if part.is_whole else [counted_at]
            limits += [since] if part.passes_old else []
        source = (before.source if before else Bookmark()).after(one.source_id, one.source)
        target = (before.target if before else Bookmark()).after(one.target_id, one.target)
        return {
            "source": self.flow.source,
            "target": self.flow.target,
            "topic": one.topic,
            "target_topic": one.target_topic,
            "counting": before.counting + 1 if before else 1,
            "counted_at": counted_at,
            "due_at": counted_at - timedelta(seconds=scope.max_lateness_s),
            "comparable_from": max(limits, default=None),
            "neutral": neutral.get(one.topic),
            "source_topic_id": source.topic_id or None,
            "target_topic_id": target.topic_id or None,
            "source_offsets": dict(source.offsets),
            "target_offsets": dict(target.offsets),
        }

    # -- counting -----------------------------------------------------------------------------------

    def _append(
        self,
        ranges: Sequence[TopicRange],
        neutral: Mapping[str, str],
        mark: Callable[[TopicRange, Mapping[str, str]], Mark],
    ) -> tuple[int, int]:
        """Counts the ranges, appends the rows in one commit, and returns the new records of source and target.

        Of two countings at the same time, the later one appends nothing. A topic with a corrupt batch that the flow has
        passed over is not counted, and is neutral.
        """
        from pyspark.sql import functions as F

        readable, reasons = list(ranges), dict(neutral)
        while ranges:
            try:
                rows = self._rows(readable, [mark(one, reasons) for one in ranges])
                new = rows.agg(F.sum("source_records"), F.sum("target_records")).first()
                self.ledger.insert_missing("counts", rows, KEYS)
                return (new[0], new[1]) if new else (0, 0)
            except MirrorlakeError:
                raise
            except Exception as error:  # from Spark: a log can't be read, or a timestamp is out of range
                broken = {topic for topic, _ in unreadable_partitions(error, self.ledger, self.flow)}
                broken &= {one.topic for one in readable}
                if not broken:
                    raise MirrorlakeError(
                        f"flow {self.flow.name}: the records can't be counted: {why_unread(error)}. Nothing was stored"
                    ) from None
                readable = [one for one in readable if one.topic not in broken]
                reasons |= dict.fromkeys(broken, NotCompared.CORRUPT.value)
        return 0, 0

    def _rows(self, ranges: Sequence[TopicRange], marks: Sequence[Mark]) -> DataFrame:
        """Counts the ranges; returns the rows to append: of each mark, one for each hour, or one without an hour."""
        from pyspark.sql import functions as F

        counted = self._counted("source", ranges).join(self._counted("target", ranges), ["topic", "window_ms"], "full")
        columns = [column for column in self.ledger.read("counts").schema if column.name in marks[0]]
        rows = self.spark.createDataFrame(
            [tuple(mark[column.name] for column in columns) for mark in marks],
            ", ".join(f"`{column.name}` {column.dataType.simpleString()}" for column in columns),
        ).join(counted, "topic", "left")
        window_end = F.col("window_ms") + WINDOW_MS
        return rows.select(
            *(column.name for column in columns),
            F.timestamp_millis("window_ms").alias("window_start"),
            F.timestamp_millis(window_end).alias("window_end"),
            F.coalesce("source_records", F.lit(0)).alias("source_records"),
            F.coalesce("target_records", F.lit(0)).alias("target_records"),
        ).localCheckpoint()

    def _counted(self, side: str, ranges: Iterable[TopicRange]) -> DataFrame:
        """Counts the records of one side: columns topic (of the source), window_ms and source_ or target_records."""
        from pyspark.sql import functions as F

        start: dict[PartitionKey, int] = {}
        end: dict[PartitionKey, int] = {}
        names: dict[str, set[str]] = {}
        for one in ranges:
            name, part = (one.topic, one.source) if side == "source" else (one.target_topic, one.target)
            for index in part.end:
                if part.start[index] < part.end[index]:
                    start[name, index], end[name, index] = part.start[index], part.end[index]
                    names.setdefault(name, set()).add(one.topic)
        count = f"{side}_records"
        if not start:
            return self.spark.createDataFrame([], COUNTED).withColumnRenamed("records", count)
        connection = self.flow.source_connection if side == "source" else self.flow.target_connection
        records = log_records(
            self.spark,
            connection,
            start=start,
            end=end,
            isolation="read_committed",
            names={name: name for name in names},
        )
        at_ms = F.least(F.greatest(F.unix_millis("timestamp"), F.lit(FIRST_MS)), F.lit(LAST_MS))
        counted = records.groupBy("topic", (at_ms - F.pmod(at_ms, F.lit(WINDOW_MS))).alias("window_ms")).agg(
            F.count("*").alias(count)
        )
        pairs = [(name, topic) for name, topics in names.items() for topic in topics]
        table = self.spark.createDataFrame(pairs, "topic STRING, of STRING")
        return counted.join(F.broadcast(table), "topic").select(F.col("of").alias("topic"), "window_ms", count)

    # -- judging ------------------------------------------------------------------------------------

    def _judged(
        self, counting_id: str, counted_at: datetime, since: datetime, new: tuple[int, int], doubts: Mapping[str, str]
    ) -> Completeness:
        from pyspark.sql import functions as F

        flow = self.flow
        windows = rows_of_pair(views.read(self.ledger, "completeness"), flow.source, flow.target).filter(
            F.col("window_start") >= F.lit(since)
        )
        pending = F.when(F.col("status") == CountStatus.PENDING.value, F.expr("source_records - target_records"))
        latest = F.timestamp_millis(F.lit(LAST_MS - LAST_MS % WINDOW_MS))
        windows = windows.withColumns(
            {
                "window_start": F.least("window_start", latest),  # earlier versions stored hours that Python can't show
                "is_judged": F.col("status") != CountStatus.NEUTRAL.value,
                "pending": F.coalesce(pending, F.lit(0)),
            }
        ).localCheckpoint()
        topics = (
            windows.groupBy("topic")
            .agg(
                F.any_value("target_topic").alias("target_topic"),
                F.count_if("is_judged").alias("windows"),
                *(
                    F.sum(name).alias(name)
                    for name in ("source_records", "target_records", "pending", "missing", "surplus")
                ),
                F.max("reason").alias("reason"),
            )
            .orderBy(F.desc(F.col("missing") + F.col("surplus")), "topic")
            .collect()
        )
        unequal = (
            windows.filter("missing + surplus > 0").orderBy(F.desc("window_start"), "topic").limit(UNEQUAL_SHOWN)
        ).select("topic", F.unix_millis("window_start"), "source_records", "target_records", "missing", "surplus")
        hours = (
            windows.filter("is_judged")
            .groupBy(F.unix_millis("window_start").alias("at"))
            .agg(*(F.sum(name) for name in ("target_records", "pending", "missing", "surplus")))
            .orderBy("at")
        )
        counts = tuple(TopicCount(**row.asDict()) for row in topics)
        is_compared = any(count.windows for count in counts)
        results = self._gate.evaluate(gate_frame(counts), flow.name, counting_id) if is_compared else []
        return Completeness(
            flow=flow.name,
            counting_id=counting_id,
            counted_at=counted_at,
            new_source_records=new[0],
            new_target_records=new[1],
            topics=counts,
            unequal=tuple(
                UnequalWindow(row[0], _time(row[1]), row[2], row[3], row[4], row[5], doubts.get(row[0], ""))
                for row in unequal.collect()
            ),
            hours=tuple(HourCount(_time(row[0]), *row[1:]) for row in hours.collect()),
            results=tuple(results),
        )

    def _begins_late(self, topic: str) -> bool:
        """Returns True if the flow may have begun behind the first record, or has gone on after another mirror."""
        starts = {self.flow.start.of(topic, is_first=is_first) for is_first in (True, False)}
        return starts != {StartSpec()} or self._is_taken_over

    @cached_property
    def _is_taken_over(self) -> bool:
        return self.ledger.of_flow("offset_syncs", self.flow).filter("inferred").first() is not None


def _bounds(
    cluster: Cluster, topics: Iterable[str], since: datetime, timeout_ms: int
) -> tuple[dict[str, tuple[str, dict[int, LogBounds]]], set[str]]:
    """Returns the id of each topic that exists, and the offsets of its partitions; and the topics of which a partition
    can't be listed now."""
    wanted = sorted(topics)
    there = cluster.refresh(wanted, timeout_ms) if wanted else {}
    told, unread = cluster.log_bounds((name, partition) for name, topic in there.items() for partition in topic.leaders)
    silent = {topic for topic, _ in unread}
    keys = [key for key in told if key[0] not in silent]
    young = cluster.offsets(keys, round(since.timestamp() * 1000), timeout_ms) if keys else {}
    found: dict[str, tuple[str, dict[int, LogBounds]]] = {}
    for key in keys:
        start, end, _ = told[key]
        bounds = LogBounds(start, max(start, end), min(young.get(key, -1), end))
        found.setdefault(key[0], (there[key[0]].topic_id, {}))[1][key[1]] = bounds
    return found, silent


def _offsets(ranges: Iterable[TopicRange]) -> int:
    return sum(
        side.end[index] - side.start[index] for one in ranges for side in (one.source, one.target) for index in side.end
    )


def _hour_of(when: datetime) -> datetime:
    return when.replace(minute=0, second=0, microsecond=0)


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
