"""Makes the lines of a failover's plan: positions, their counterparts, the target's committed offsets, and blocks. Only
reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import SCATTERED, Flow
from mirrorlake.jobs.checkpoint import group_positions, target_groups
from mirrorlake.jobs.checkpoint.group_positions import Standing
from mirrorlake.jobs.failover.backlog import uncarried
from mirrorlake.jobs.failover.plan import BlockKind, Choice, Line, blocks_of
from mirrorlake.jobs.failover.snapshot import Situation
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.lag import lag
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.translation import two_way
from mirrorlake.translation.sql_join import POSITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_TOPIC = "the flow does not have this topic"
SHARED = "others write to the remote topic too (mirrorlake.topics.shared), and no flow back says what"
SHARE_GROUP = "a share group (KIP-932) has no offset for each partition"


class PlanMaker:
    """Makes the plan from one situation.

    Args:
        spark: session that translates positions.
        flow: flow to fail over.
        back: the flow back; None if there is none.
        ledger: tables with the positions, for a dead source or a time in the past.
        situation: state of the flow on both clusters.
    """

    def __init__(
        self, spark: SparkSession, flow: Flow, back: Flow | None, ledger: Ledger, situation: Situation
    ) -> None:
        self.spark, self.flow, self._back, self.ledger, self._situation = spark, flow, back, ledger, situation

    def lines(self, choice: Choice) -> list[Line]:
        """Returns the plan: one sorted line for each group and partition.

        Raises:
            TargetError, SourceError: a cluster can't be asked about the groups.
        """
        situation = self._situation
        found = self._standings(choice)
        by_key = {(one.group_id, one.topic, one.partition): one for one in found}
        placed = [one for one in found if (one.topic, one.partition) in situation.partitions]
        rows = [(one.group_id, one.topic, one.partition, one.upstream_offset, one.metadata) for one in placed]
        answers = (
            two_way.counterparts(
                self.spark.createDataFrame(rows, POSITIONS), situation.pieces, situation.known
            ).collect()
            if rows
            else []
        )
        names = group_positions.names(found)
        on_target = (
            target_groups.read_groups(
                Admin(self.flow.target_connection, "target", self.flow.name), situation.target, names, self.flow
            )
            if names
            else {}
        )
        on_source = (
            Admin(self.flow.source_connection, "source", self.flow.name).idle_groups(names)
            if names and situation.source
            else {}
        )
        members = {
            group: [
                alias
                for alias, is_idle in (
                    (self.flow.source, on_source.get(group, True)),
                    (self.flow.target, on_target[group].is_idle),
                )
                if not is_idle
            ]
            for group in names
        }
        lines = []
        for row in answers:
            one = by_key[row["group_id"], row["topic"], row["partition"]]
            line = self._line(
                one, row.asDict(), on_target[one.group_id].offsets.get((row["target_topic"], row["target_partition"]))
            )
            lines.append((line, row["reason"], row["is_complete"]))
        counted, skipped = (
            self._against_target([line for line, _, _ in lines]),
            self._skipped([line for line, _, _ in lines]),
        )
        lines = [
            (replace(line, re_reads=re_reads, skips=skips), reason, is_complete)
            for (line, reason, is_complete), (re_reads, skips) in zip(lines, counted, strict=True)
        ]
        lines += [
            (self._placeless(one), self._why_not(one), True)
            for one in found
            if (one.topic, one.partition) not in situation.partitions
        ]
        judged = []
        for line, reason, is_complete in lines:
            blocks = blocks_of(
                line,
                reason=reason,
                is_complete=is_complete,
                has_failed=(line.topic, line.partition) in situation.failed,
                members_on=members[line.group_id],
                max_lag=choice.max_lag,
                uncarried=skipped.get(_place(line), 0),
            )
            if self.flow.topics_shared and self._back is None and line.has_place:
                blocks = (*blocks, (BlockKind.NOT_COVERED, SHARED))
            judged.append(
                replace(line, blocks=blocks, accepted=tuple(sorted({kind for kind, _ in blocks} & choice.accept)))
            )
        return sorted(judged, key=lambda line: (line.group_id, line.topic or "", line.partition or 0))

    def _standings(self, choice: Choice) -> list[Standing]:
        situation = self._situation
        if situation.source is not None and choice.at is None:
            return group_positions.on_cluster(situation.source, self.flow, choice.groups)
        return group_positions.in_ledger(self.ledger, self.flow, choice.groups, choice.at)

    def _line(self, one: Standing, row: dict[str, Any], target_offset: int | None) -> Line:
        names = (
            "target_topic",
            "target_partition",
            "downstream_offset",
            "again",
            "mirrored_end",
            "piece_start",
            "piece_to_start",
            "later_start",
        )
        place = {name: row[name] for name in names}
        return replace(self._placeless(one), status=Status(row["status"]), target_offset=target_offset, **place)

    def _placeless(self, one: Standing) -> Line:
        """Builds the line of a position without its counterpart."""
        situation = self._situation
        line = Line(
            one.group_id,
            one.topic,
            one.partition,
            Status.NOT_COVERED if one.topic is None or self.flow.scatters(one.topic) else Status.NOT_MIRRORED,
            upstream_offset=one.upstream_offset,
            seen_in=one.seen_in,
            seen_at=one.seen_at,
            metadata=one.metadata,
        )
        if one.topic is None or one.partition is None or not self.flow.mirrors_topic(one.topic):
            return line
        key: PartitionKey = (one.topic, one.partition)
        position = situation.positions.get(key)
        mirrored_to = position.upstream_next if position else situation.first.get(key)
        now_ms = situation.looked_at.replace(tzinfo=UTC).timestamp() * 1000
        if situation.source is not None:
            behind = situation.lags.get(key)
            oldest_ms = behind.oldest_ms if behind else None
            age = 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000)
            return replace(
                line,
                mirrored_to=mirrored_to,
                source_end=situation.ends.get(key),
                not_mirrored=behind.records if behind else None,
                rpo_seconds=age,
            )
        seen, committed_ms = situation.seen.get(key), situation.committed_ms.get(key)
        return replace(
            line,
            mirrored_to=mirrored_to,
            source_end=seen,
            lag_seen=None if seen is None else lag(seen, mirrored_to or 0),
            rpo_seconds=None if committed_ms is None else max(0.0, (now_ms - committed_ms) / 1000),
        )

    def _why_not(self, one: Standing) -> str:
        if one.topic is None:
            return SHARE_GROUP
        return SCATTERED if self.flow.scatters(one.topic) else NO_TOPIC

    def _skipped(self, lines: list[Line]) -> dict[tuple[PartitionKey, int], int]:
        """Counts the records that were written on the target before each counterpart and that the flow back has not
        carried yet.

        Counterparts without such records are left out.
        """
        carried_to, places = self._situation.carried_to, {_place(line) for line in lines if line.has_place}
        ends: dict[PartitionKey, int] = {}
        for key, place in places:
            if key in carried_to and place > carried_to[key]:
                ends[key] = max(place, ends.get(key, 0))
        found = (
            uncarried(self._situation.target, self._back, carried_to, ends) if ends and self._back is not None else {}
        )
        sums = {
            (key, place): sum(records for first, records in found.get(key, ()) if first < place)
            for key, place in places
        }
        return {place: records for place, records in sums.items() if records}

    def _against_target(self, lines: list[Line]) -> list[tuple[int | None, int | None]]:
        """Returns re_reads and skips of each line: mapped records between its counterpart and the group's committed
        offset on the target."""
        situation = self._situation
        spans = [
            (line.group_id, line.target_topic, line.target_partition, *sorted((there, place)))
            for line in lines
            if (there := line.target_offset) is not None
            and (place := line.downstream_offset) is not None
            and there != place
        ]
        counts: dict[tuple[Any, ...], int] = {}
        if spans:
            frame = self.spark.createDataFrame(
                spans, "group_id STRING, target_topic STRING, target_partition INT, from BIGINT, to BIGINT"
            )
            counts = {
                (row["group_id"], row["target_topic"], row["target_partition"]): row["records"]
                for row in two_way.records_between(frame, situation.pieces).collect()
            }
        found: list[tuple[int | None, int | None]] = []
        for line in lines:
            if line.target_offset is None or line.downstream_offset is None:
                found.append((None, None))
                continue
            count = counts.get((line.group_id, line.target_topic, line.target_partition), 0)
            found.append((count, 0) if line.target_offset <= line.downstream_offset else (0, count))
        return found


def _place(line: Line) -> tuple[PartitionKey, int]:
    return (line.target_topic or "", line.target_partition or 0), line.downstream_offset or 0
