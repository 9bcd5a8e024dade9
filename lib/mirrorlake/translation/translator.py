"""Translates positions that are kept outside Kafka, by the ledger.

The ledger is enough for this. If the source is available, it adds the start of idle partitions, and the first record at
a given time; source and target then also tell which topics were created anew since.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.ledger import views
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.model.slot import TAKEN_OVER, Position, merge_positions
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.reasons import PositionReason
from mirrorlake.state.offset_syncs import read_all_states
from mirrorlake.translation.awaited import former_remotes, is_recreated, not_begun
from mirrorlake.translation.log_starts import LogStarts, at_log_start, behind_all, place_of
from mirrorlake.translation.positions import ReaderPosition, Translated, Translation
from mirrorlake.translation.sql_join import MIRRORED, POSITIONS, RUN_START, resumptions, translate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HIDDEN = (
    "Its position at a time is not known. If the right can't be granted, translate from the ledger alone (parameter "
    "source_is_gone = true)"
)


class _Log(NamedTuple):
    """A partition of the source: its first offset, its last stable offset, and the id of its topic."""

    start: int
    end: int
    topic_id: str


class Translator:
    """Translates positions of one flow.

    Args:
        flow: flow whose source the positions belong to.
        ledger: tables that hold the flow's runs and gaps.
        ask_source: false if the source is lost. A partition without mirrored records is then assumed to begin at 0. A
            time is then translated to the start of the run that contains it, so that earlier records of that run are
            read, too.

    Raises:
        ConfigurationError: the remote topics are shared with other writers (mirrorlake.topics.shared), so that
            positions have no single offset there.
    """

    def __init__(self, flow: Flow, ledger: Ledger, *, ask_source: bool = True) -> None:
        if flow.topics_shared:
            raise ConfigurationError(
                f"flow {flow.name}: other programs write to the remote topics, too (mirrorlake.topics.shared), so no "
                "single offset there corresponds to a position"
            )
        self.flow, self.ledger, self.ask_source = flow, ledger, ask_source

    def translate(self, positions: Sequence[ReaderPosition]) -> Translation:
        """Translates positions to offsets on the target, in the given order.

        Raises:
            SourceError, TargetError: a cluster can't be read.
        """
        known = self._known()
        logs = self._logs({(position.topic, position.partition) for position in positions})  # later than the ledger
        reached, awaited = self._on_target(known, logs)
        resolved = [self._resolved(position, known, reached, logs) for position in positions]
        resumed = {key: one.resumed_at for key, one in resumptions(self.ledger.of_flow("gaps", self.flow)).items()}
        mirrored = [
            row
            for row in (
                self._mirrored(key, known.get(key), reached.get(key), log=logs.get(key), resumed_at=resumed.get(key))
                for key in {(position.topic, position.partition) for position in positions} - awaited.keys()
            )
            if row is not None
        ]
        answers: dict[int, Any] = {}
        if mirrored:
            spark = self.ledger.spark
            asked = [
                (str(number), position.topic, position.partition, position.upstream_offset, "")
                for number, position in enumerate(resolved)
            ]
            runs = self._mine(views.read(self.ledger, "current_runs")).select(
                "topic", "partition", "upstream_start", "upstream_end", "downstream_start", "downstream_end"
            )
            gaps = self.ledger.of_flow("gaps", self.flow)
            frame = translate(
                spark.createDataFrame(asked, POSITIONS), runs, gaps, spark.createDataFrame(mirrored, MIRRORED)
            )
            answers = self._at_log_starts({int(row["group_id"]): row.asDict() for row in frame.collect()})
        return Translation(
            self.flow.name,
            tuple(
                self._translated(
                    position,
                    answers.get(number),
                    awaited.get((given.topic, given.partition)) or self._ledger_behind(given, known, reached),
                )
                for number, (given, position) in enumerate(zip(positions, resolved, strict=True))
            ),
        )

    def at(self, timestamp_ms: int) -> list[ReaderPosition]:
        """Returns the position of the first record at or after a time, in each partition of the flow.

        Without the source, returns the start of the first run that holds such a record, from the ledger; an offset
        before the first run (`before_mirror`) if it is that one, and the map before it has expired.

        Raises:
            SourceError: the principal may not describe a topic that was mirrored, or the source can't be read.
        """
        return self._at_source(timestamp_ms) if self.ask_source else self._at_runs(timestamp_ms)

    # -- the ledger ---------------------------------------------------------------------------------

    def _mine(self, frame: DataFrame) -> DataFrame:
        return rows_of_pair(frame, self.flow.source, self.flow.target)

    def _known(self) -> dict[PartitionKey, Any]:
        """Reads the ledger's data of each partition.

        These are the remote topic, the start and end of its runs, and the offset up to which the flow has processed it.
        """
        from pyspark.sql import functions as F

        runs, gaps = (self._mine(views.read(self.ledger, name)) for name in ("current_runs", "current_gaps"))
        none = [
            F.lit(None).cast(kind).alias(name)
            for name, kind in (("target_topic", "string"), ("upstream_start", "bigint"), ("downstream_end", "bigint"))
        ]
        passed = runs.select(
            "topic", "partition", "target_topic", "upstream_start", "downstream_end", "upstream_end"
        ).unionByName(gaps.select("topic", "partition", *none, F.col("to_offset").alias("upstream_end")))
        rows = passed.groupBy("topic", "partition").agg(
            F.max_by("target_topic", F.when(F.col("target_topic").isNotNull(), F.col("upstream_end"))).alias(
                "target_topic"
            ),
            F.min("upstream_start").alias("upstream_start"),
            F.max("upstream_end").alias("upstream_next"),
            F.coalesce(F.max("downstream_end"), F.lit(0)).alias("downstream_next"),
        )
        return {(row["topic"], row["partition"]): row for row in rows.collect()}

    def _at_runs(self, timestamp_ms: int) -> list[ReaderPosition]:
        from pyspark.sql import functions as F

        runs = self._mine(views.read(self.ledger, "current_runs"))
        holds = F.coalesce(
            F.col("last_timestamp") >= F.timestamp_millis(F.lit(timestamp_ms)), F.lit(True)
        )  # null: the timestamp is outside the range of a Spark timestamp
        rows = runs.groupBy("topic", "partition").agg(
            F.min(F.when(holds, F.col("upstream_start"))).alias("start"),
            F.min("upstream_start").alias("first"),
            F.max("upstream_end").alias("end"),
        )
        of_expired = self._mine(views.read(self.ledger, "expired")).collect()
        expired = {(row["topic"], row["partition"]): row["to_offset"] for row in of_expired}
        found = []
        for row in rows.orderBy("topic", "partition").collect():
            key, start = (row["topic"], row["partition"]), row["end"] if row["start"] is None else row["start"]
            # Records at or after the time may be before what is left of the map: the position is there, and not exact.
            is_before = row["start"] == row["first"] and expired.get(key, math.inf) <= row["first"]
            found.append(ReaderPosition(*key, start - 1 if is_before else start))
        return found

    # -- the source ---------------------------------------------------------------------------------

    def _source(self) -> Cluster:
        return Cluster(
            self.flow.source_connection, "source", f"{self.flow.name}|translate", self.flow.connect_timeout_ms
        ).connect()

    def _target(self) -> Cluster:
        return Cluster(
            self.flow.target_connection, "target", f"{self.flow.name}|translate", self.flow.connect_timeout_ms
        ).connect()

    def _at_log_starts(self, answers: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Puts places behind all that is mirrored at the start of a log that retention has emptied, as groups are."""
        behind = {place_of(row) for row in answers.values() if behind_all(row, RUN_START)}
        if not behind or not self.ask_source:
            return answers
        with closing(self._target()) as target:
            starts = LogStarts(target, self.flow.connect_timeout_ms).of(behind)
        return {number: at_log_start(row, starts, RUN_START) for number, row in answers.items()}

    def _logs(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, _Log]:
        """Reads the bounds of the source's logs, for partitions that exist and are mirrored."""
        wanted = {key for key in keys if self.flow.mirrors_topic(key[0])}
        if not self.ask_source or not wanted:
            return {}
        source, timeout_ms = self._source(), self.flow.connect_timeout_ms
        try:
            found = source.existing(sorted(wanted), timeout_ms)
            first, stable = (
                source.offsets(found, at, timeout_ms) if found else {} for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
            )
            ids = {name: topic.topic_id for name, topic in source.topics.items()}
        finally:
            source.close()
        return {
            key: _Log(first[key], stable[key], ids.get(key[0], "")) for key in found if key in first and key in stable
        }

    def _on_target(
        self, known: Mapping[PartitionKey, Any], logs: Mapping[PartitionKey, _Log]
    ) -> tuple[Mapping[PartitionKey, Position], dict[PartitionKey, str]]:
        """Returns the flow's positions, and the partitions that have no place on the target now, with the reason.

        Of these, the log on either cluster is not the one of the map any more, which the mirror job has not noticed
        yet, or has stopped for. Or the flow has mirrored nothing to a remote partition that holds records of others.
        The flow's states have positions before the first run, and the ids of topics; the ledger has neither.
        """
        if not logs:
            return {}, {}
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        with closing(self._target()) as target:
            states = read_all_states(target, flow.offset_syncs_topic, timeout_ms)
            positions = {key: one for key, one in merge_positions(states.values()).items() if key in logs}
            there = target.refresh({one.target_topic for one in positions.values()}, timeout_ms, operations=True)
            new = not_begun(flow, target, logs.keys() - known.keys(), positions)
        remotes = former_remotes(positions.values(), {name: topic.topic_id for name, topic in there.items()})
        # A remote partition that does not exist yet will begin at 0.
        found = {key: why for key, why in new.items() if why != PositionReason.NO_REMOTE}
        for key, log in logs.items():
            mirrored_to, position = known[key]["upstream_next"] if key in known else 0, positions.get(key)
            if position is not None and is_recreated(position, log.topic_id):
                found[key] = PositionReason.RECREATED
            elif log.end < mirrored_to:
                found[key] = PositionReason.TRUNCATED
            elif position is not None and (position.target_topic, position.target_partition) in remotes:
                found[key] = PositionReason.REMOTE_REPLACED
        return positions, found

    def _at_source(self, timestamp_ms: int) -> list[ReaderPosition]:
        source, timeout_ms, known = self._source(), self.flow.connect_timeout_ms, self._known()
        try:
            topics = {
                name: topic for name, topic in source.refresh(None, timeout_ms).items() if self.flow.mirrors_topic(name)
            }
            require_visible(source, self.flow, {topic for topic, _ in known} - topics.keys(), HIDDEN)
            keys = [
                (name, partition) for name, topic in sorted(topics.items()) for partition in range(topic.partitions)
            ]
            at, stable = (
                source.offsets(keys, when, timeout_ms) if keys else {} for when in (timestamp_ms, LATEST_TIMESTAMP)
            )
        finally:
            source.close()
        return [
            ReaderPosition(*key, stable[key] if at[key] < 0 else at[key]) for key in keys if key in at and key in stable
        ]

    # -- one position -------------------------------------------------------------------------------

    def _mirrored(
        self, key: PartitionKey, row: Any, reached: Position | None, log: _Log | None, resumed_at: int | None
    ) -> tuple[Any, ...] | None:
        """Builds the row of MIRRORED of a partition; None if it isn't mirrored."""
        if self.flow.scatters(key[0]):
            return None
        if row is None and (log is None if self.ask_source else not self.flow.mirrors_topic(key[0])):
            return None
        start, end = (log.start, log.end) if log else (0, None)
        upstream_next, downstream_next = _passed(row, reached, log)
        target_topic = (row and row["target_topic"]) or self.flow.policy.remote_topic(key[0])
        return *key, target_topic, start, end, upstream_next, max(downstream_next, resumed_at or 0), resumed_at, None

    def _resolved(
        self,
        position: ReaderPosition,
        known: Mapping[PartitionKey, Any],
        reached: Mapping[PartitionKey, Position],
        logs: Mapping[PartitionKey, _Log],
    ) -> ReaderPosition:
        key = (position.topic, position.partition)
        row = known.get(key)
        if position.upstream_offset >= 0:
            return position
        if row is None or row["upstream_start"] is None:  # nothing is mirrored: before what comes is behind all
            upstream_next, _ = _passed(row, reached.get(key), logs.get(key))
            return ReaderPosition(*key, upstream_next, position.label)
        return ReaderPosition(
            position.topic,
            position.partition,
            row["upstream_start" if position.upstream_offset == EARLIEST_TIMESTAMP else "upstream_next"],
            position.label,
        )

    @staticmethod
    def _ledger_behind(
        position: ReaderPosition, known: Mapping[PartitionKey, Any], reached: Mapping[PartitionKey, Position]
    ) -> str | None:
        """Returns the reason to wait, where the flow has copied records from a position on that the ledger lacks."""
        key = (position.topic, position.partition)
        if key in known or key not in reached or reached[key].epoch_from == TAKEN_OVER:
            return None
        is_before = (
            position.upstream_offset == EARLIEST_TIMESTAMP or 0 <= position.upstream_offset < reached[key].upstream_next
        )
        return PositionReason.LEDGER_BEHIND if is_before and reached[key].downstream_next else None

    def _translated(self, position: ReaderPosition, row: Any, why: str | None) -> Translated:
        key = (position.label, position.topic, position.partition, position.upstream_offset)
        if row is None or row["status"] is None or why:
            status, reason = (Status.NOT_MIRRORED_YET, why) if why else self._why_not(position.topic)
            return Translated(
                *key, target_topic=None, target_partition=None, downstream_offset=None, status=status, reason=reason
            )
        names = ("target_topic", "target_partition", "downstream_offset", "reason")
        return Translated(*key, status=Status(row["status"]), **{name: row[name] for name in names})

    def _why_not(self, topic: str) -> tuple[Status, str]:
        if not self.flow.mirrors_topic(topic):
            return Status.NOT_MIRRORED, "the topic does not belong to the flow"
        if self.flow.scatters(topic):
            return Status.NOT_COVERED, "the topic's transform sets the partition"
        return Status.NOT_MIRRORED, "the partition does not exist on the source"


def _passed(row: Any, reached: Position | None, log: _Log | None) -> tuple[int, int]:
    """Returns up to where the flow has processed a partition, on both sides: by the ledger, else by its states."""
    if row is not None:
        return row["upstream_next"], row["downstream_next"]
    if reached is not None:
        return reached.upstream_next, reached.downstream_next
    return (log.start if log else 0), 0
