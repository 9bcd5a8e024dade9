"""Makes the lines of a failover's plan: positions, their counterparts, the target's committed offsets, and blocks. Only
reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint import group_positions, target_groups
from mirrorlake.jobs.checkpoint.group_positions import SeenIn, Standing
from mirrorlake.jobs.checkpoint.target_groups import TargetGroup
from mirrorlake.jobs.failover.losses import Losses, Span, SpanKey, losses_ahead
from mirrorlake.jobs.failover.plan import BLOCKS, BlockKind, Choice, Line, blocks_of, not_mirrored_text
from mirrorlake.jobs.failover.snapshot import Situation
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.lag import lag
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.group_requests import idle_groups
from mirrorlake.protocol.network.response_error import is_denied
from mirrorlake.protocol.probes.permissions import denied_commits
from mirrorlake.reasons import PositionReason
from mirrorlake.state.backlog import EXACT_OFFSETS, between, uncarried, unmirrored
from mirrorlake.translation import two_way
from mirrorlake.translation.log_starts import at_log_start, place_of
from mirrorlake.translation.sql_join import POSITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_TOPIC = "the flow does not have this topic"
NOT_YET = BLOCKS[BlockKind.NOT_MIRRORED_YET]
MERGED = (
    "several topics are merged into the remote topic, and the group's positions in them are different places there; it "
    "would read again what is behind the first of these places"
)
SHARED = "other programs write to the remote topic too (mirrorlake.topics.shared), and no flow back is enabled"
CLOCKS_DIFFER_S = 300  # as clocks of machines do
NO_LOSSES = Losses()
GROUPS = "__consumer_offsets"
NOT_RECORDED = (
    "the checkpoint job has recorded no offsets in the topic, as the property file had no flow back that writes it"
)
NOT_THEN = "no position of the group is recorded for that time, so that it would stay where it is"
OF_FORMER_LOG = frozenset({PositionReason.RECREATED, PositionReason.TRUNCATED, PositionReason.FORMER_LOG})
SILENT = "a broker does not tell of its groups, so that groups which the ledger does not know are missing in this plan"
LEADERLESS = "the partition has no leader, so that groups of it which the ledger does not know are missing in this plan"
UNKNOWN = "the ledger has no offset of the group either"
SHARE_GROUP = "a share group (KIP-932) has no offset for each partition"


@dataclass(frozen=True)
class Draft:
    """A line before it is judged, with the reason of its status, and whether the ledger has all of its partition."""

    line: Line
    reason: str | None
    is_complete: bool
    own_start: int | None = None  # first source offset that the flow has mirrored to the line's place
    losses: Losses = NO_LOSSES


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
        self._confirmed_at: datetime | None = None
        self._unread: dict[str, str] = {}
        self._tells_all = True
        self._unread_there: dict[str, Exception] = {}
        self._unread_logs: dict[PartitionKey, str] = {}

    def lines(self, choice: Choice) -> list[Line]:
        """Returns the plan: one sorted line for each group and partition.

        A partition that no group reads has a line if more records of it than allowed are not mirrored, or if an open
        transaction hides some, and one of the groups' own topic if it has no leader: closing the flow would leave
        behind what is in them.

        Raises:
            TargetError, SourceError: a cluster can't be asked about the groups.
        """
        found = [one for one in self._standings(choice) if self._is_meant(one, choice)]
        names = group_positions.names(found)
        on_target = self._on_target(names)
        members = self._members(names, on_target)
        placed = self._placed(found, on_target)
        skipped = self._skipped([draft.line for draft in placed])
        placeless = [
            Draft(self._placeless(one), self._without_place(one)[1], is_complete=True)
            for one in found
            if not self._has_place(one)
        ]
        denied = self._denied([draft.line for draft in placed])
        rewound = self._rewound([draft.line for draft in placed], choice)
        uneven = _unevenly_read([draft.line for draft in placed])
        lines = [
            self._judged(
                draft,
                choice,
                members_on=members[draft.line.group_id],
                uncarried=skipped.get(_place(draft.line), 0),
                denied=denied.get(draft.line.group_id, ""),
                is_rewound=(draft.line.group_id, draft.line.topic, draft.line.partition) in rewound,
                is_uneven=_group_place(draft.line) in uneven,
            )
            for draft in (*placed, *placeless)
        ]
        lines = _one_for_each_place(lines)
        lines += self._without_groups({(line.topic, line.partition) for line in lines}, choice)
        return sorted(lines, key=lambda line: (line.group_id, line.topic or "", line.partition or 0))

    def _without_groups(self, have: Set[tuple[str | None, int | None]], choice: Choice) -> list[Line]:
        """Returns lines for what concerns no known group: partitions with an open transaction, or with too many records
        that are not mirrored, or without a leader, that have no other line; and partitions of the groups' own topic
        without a leader, and brokers that do not answer, of which nobody knows the groups. If the operator has chosen
        groups or topics, only the last of these: a chosen group may be missing."""
        found = self._of_partitions(have, choice) if choice.is_of_all else []
        if choice.at is None:
            leaderless: list[int | None] = [*self._leaderless()] if choice.is_of_all else []
            unheard = leaderless if self._tells_all else [*leaderless, None]
            now = self._situation.looked_at
            of_groups = (Standing("", GROUPS, index, None, "", SeenIn.SOURCE, now) for index in unheard)
            found += [(self._placeless(one), [BlockKind.UNREADABLE]) for one in of_groups]
        return [
            replace(
                line,
                status=Status.NO_GROUPS,
                blocks=tuple((kind, self._said_of_all(line, kind, choice)) for kind in of),
                accepted=tuple(kind for kind in of if kind in choice.accept),
            )
            for line, of in found
        ]

    def _of_partitions(
        self, have: Set[tuple[str | None, int | None]], choice: Choice
    ) -> list[tuple[Line, list[BlockKind]]]:
        """Returns the lines of partitions that have no other line, each with its blocks."""
        situation, now = self._situation, self._situation.looked_at
        behind = {
            key
            for key, lag_there in situation.lags.items()
            if lag_there.records > choice.max_lag and not self.flow.policy.is_heartbeats_topic(key[0])
        }
        unread = {key for key in situation.unread if self.flow.mirrors_topic(key[0])}
        of_kinds = (
            (behind, BlockKind.LAG),
            (situation.hidden.keys(), BlockKind.OPEN_TRANSACTION),
            (unread, BlockKind.UNREADABLE),
        )
        concerned = behind | situation.hidden.keys() | unread
        kinds = {key: [kind for keys, kind in of_kinds if key in keys] for key in concerned}
        standings = {
            Standing("", *key, None, "", SeenIn.SOURCE, now): of for key, of in kinds.items() if key not in have
        }
        return [(self._placeless(one), of) for one, of in standings.items() if self._is_meant(one, choice)]

    def _said_of_all(self, line: Line, kind: BlockKind, choice: Choice) -> str:
        if kind is BlockKind.LAG:
            return not_mirrored_text(line.not_mirrored or 0, choice.max_lag)
        if kind is BlockKind.UNREADABLE:
            if line.topic != GROUPS:
                return self._unreadable(line)
            return SILENT if line.partition is None else LEADERLESS
        return self._hidden(line)

    def _leaderless(self) -> list[int]:
        """Returns the partitions of the source's groups topic that have no leader, as far as it may be described."""
        source = self._situation.source
        if source is None:
            return []
        topic = source.refresh([GROUPS], self.flow.connect_timeout_ms, operations=True).get(GROUPS)
        return sorted(index for index, leader in topic.leaders.items() if leader < 0) if topic else []

    def _hidden(self, line: Line) -> str:
        """Says what an open transaction hides in the line's partition; returns an empty text if there is none."""
        key = (line.topic or "", line.partition or 0)
        hidden = self._situation.hidden.get(key)
        return hidden.about(key, self.flow.source_connection.bootstrap_servers) if hidden else ""

    def _is_meant(self, one: Standing, choice: Choice) -> bool:
        """Returns True for a position in a topic that the operator has named; if none was named, in one that was not
        promoted before."""
        if choice.topics is not None:
            is_unknown = one.topic is None and one.group_id in self._unread  # it may have read any topic
            return is_unknown or (one.topic is not None and one.topic in choice.topics)
        return one.topic not in self._situation.promoted

    def _placed(self, found: Iterable[Standing], on_target: Mapping[str, TargetGroup]) -> list[Draft]:
        """Translates the positions in partitions that have a place on the target."""
        situation = self._situation
        by_key = {(one.group_id, one.topic, one.partition): one for one in found if self._has_place(one)}
        if not by_key:
            return []
        rows = [(*key, one.upstream_offset, one.metadata) for key, one in by_key.items()]
        asked = self.spark.createDataFrame(rows, POSITIONS)
        counterparts = two_way.counterparts(asked, situation.pieces, situation.known).collect()
        found_rows = [row.asDict() for row in counterparts]
        starts = self._log_starts({place_of(row) for row in found_rows if row["downstream_offset"] is not None})
        drafts = []
        for row in (at_log_start(row, starts, "piece_start") for row in found_rows):
            one = by_key[row["group_id"], row["topic"], row["partition"]]
            target_offset = on_target[one.group_id].offsets.get(place_of(row))
            line = replace(self._line(one, row, target_offset), target_start=starts.get(place_of(row), 0))
            drafts.append(Draft(line, row["reason"], row["is_complete"], row["own_start"]))
        losses, counted = self._losses(drafts, starts), self._against_target([draft.line for draft in drafts])
        return [
            replace(draft, line=replace(draft.line, re_reads=re_reads, skips=skips, lost=lost.offsets), losses=lost)
            for draft, lost, (re_reads, skips) in zip(drafts, losses, counted, strict=True)
        ]

    def _has_place(self, one: Standing) -> bool:
        """Returns True if the flow has a place for the position, or may have."""
        key = (one.topic, one.partition)
        if key not in self._situation.partitions or key in self._situation.awaited:
            return False
        return one.upstream_offset is not None and not self._former(one) and not _is_of_no_flow(one)

    def _former(self, one: Standing) -> str:
        """Returns the reason if a position from the ledger is of a log that was replaced since; else an empty text."""
        if one.seen_in is not SeenIn.LEDGER or one.topic is None or one.upstream_offset is None:
            return ""
        if one.reason in OF_FORMER_LOG:
            return one.reason
        reset = self._situation.resets.get((one.topic, one.partition or 0))
        is_older = reset and (one.seen_at < reset.committed_at or one.unread_since is not None)  # kept ones say no time
        is_former = reset and is_older and one.upstream_offset > reset.from_offset
        return PositionReason.FORMER_LOG if is_former else ""

    def _log_starts(self, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Returns the log start offsets of remote partitions, and notes those that the target does not tell."""
        target = self._situation.target
        there = target.existing(sorted(places), self.flow.connect_timeout_ms)
        bounds, self._unread_logs = target.log_bounds(there)
        return {place: start for place, (start, _, _) in bounds.items()}

    def _losses(self, drafts: list[Draft], starts: Mapping[PartitionKey, int]) -> list[Losses]:
        """Counts the records ahead of each line's group that it will never see on the target, by the starts of logs."""
        situation, flow = self._situation, self.flow
        spans: list[Span] = []
        for line, own_start in ((draft.line, draft.own_start) for draft in drafts):
            if not line.has_place or line.upstream_offset is None:
                continue
            _, key, place = _span_key(line)
            is_mine = flow.mirrors_topic(key[0]) and place[0] == flow.policy.remote_topic(key[0])
            position = situation.positions.get(key)
            begins = position.upstream_next if own_start is None and position else own_start
            spans.append(
                Span(
                    line.group_id,
                    *key,
                    *place,
                    upstream_offset=line.upstream_offset,
                    log_start=situation.first.get(key),
                    first_start=begins if is_mine else None,
                    target_start=starts.get(place),
                )
            )
        found = losses_ahead(self.spark, spans, situation.gaps, situation.pieces)
        found |= self._without_brought(spans, found)
        return [found.get(_span_key(draft.line), NO_LOSSES) for draft in drafts]

    def _without_brought(
        self, spans: Iterable[Span], found: Mapping[SpanKey, Losses]
    ) -> Iterator[tuple[SpanKey, Losses]]:
        """Counts anew what is before the flow's first run, without the records that the flow back has brought there.

        Yields:
            The losses of the spans that this changes.
        """
        late = {span: of for span in spans if (of := found.get(span.key, NO_LOSSES)).before_mirror}
        keys = {span.key[1] for span in late}
        brought = two_way.ranges_brought(self._situation.pieces, keys) if keys and self._back is not None else {}
        counts: dict[tuple[PartitionKey, int], int] = {}
        for span, losses in late.items():
            key, start, end = span.key[1], max(span.upstream_offset, span.log_start or 0), span.first_start or 0
            if key not in brought:
                continue
            if (key, start) not in counts:
                counts[key, start] = self._not_brought(key, start, end, brought[key])
            yield span.key, replace(losses, before_mirror=min(losses.before_mirror, counts[key, start]))

    def _not_brought(self, key: PartitionKey, start: int, end: int, brought: Iterable[tuple[int, int]]) -> int:
        """Returns the number of records in a range of the source that the flow back has not brought; at most, where the
        source is dead or the range is long."""
        source = self._situation.source
        if source is not None and end - start <= EXACT_OFFSETS:
            return unmirrored(source, self.flow, {key: start}, {key: end})[key].records
        return sum(behind - first for first, behind in between(start, end, brought))

    def _denied(self, lines: list[Line]) -> dict[str, str]:
        """Returns the groups for which this principal may not commit their new offsets, with the missing permission."""
        topics: dict[str, set[str]] = {}
        for line in lines:
            if line.target_topic is not None and _is_moved(line):
                topics.setdefault(line.group_id, set()).add(line.target_topic)
        unread = self._unread_there
        asked = {group: of for group, of in topics.items() if group not in unread}
        denied = {group: target_groups.why(error) for group, error in unread.items() if is_denied(error)}
        return denied | denied_commits(self._situation.target, asked, self.flow.connect_timeout_ms)

    def _unreadable(self, line: Line) -> str:
        """Says which cluster does not tell what about the line; returns an empty text if both tell it."""
        error = self._unread_there.get(line.group_id)
        if error is not None and not is_denied(error):
            return f"{PositionReason.TARGET_UNREAD}: {error}"
        place = (line.target_topic or "", line.target_partition or 0)
        if line.has_place and place in self._unread_logs:
            return f"the target does not tell the ends of {place[0]}-{place[1]} now: {self._unread_logs[place]}"
        key = (line.topic or "", line.partition or 0)
        if key in self._situation.unread:
            return f"the source does not tell the ends of {key[0]}-{key[1]} now: {self._situation.unread[key]}"
        return self._unread.get(line.group_id, "")

    def _rewound(self, lines: list[Line], choice: Choice) -> set[GroupKey]:
        """Returns the lines whose groups were moved back on the source by their owners since they were last in step.

        The checkpoint job would move them back on the target in its next cycle. With positions of a time in the past,
        groups go back because the operator says so.
        """
        ahead = [line for line in lines if line.has_place and (line.target_offset or 0) > (line.continues_at or 0)]
        if not ahead or choice.at is not None:
            return set()
        settled = group_positions.settled(self.ledger, self.flow)
        keys = {(line.group_id, line.topic, line.partition): line for line in ahead}
        return {
            key
            for key, line in keys.items()
            if (before := settled.get(key)) is not None
            and not self._is_before_reset(before)
            and before.downstream_offset == line.target_offset
            and (line.upstream_offset or 0) < (before.upstream_offset or 0)
        }

    def _is_before_reset(self, row: Checkpoint) -> bool:
        reset = self._situation.resets.get((row.topic or "", row.partition or 0))
        return reset is not None and row.created_at < reset.committed_at

    def _judged(
        self,
        draft: Draft,
        choice: Choice,
        *,
        members_on: Iterable[str],
        uncarried: int,
        denied: str = "",
        is_rewound: bool = False,
        is_uneven: bool = False,
    ) -> Line:
        """Adds to a line what speaks against it, and what of that is accepted."""
        line = draft.line
        blocks = blocks_of(
            line,
            reason=draft.reason,
            is_complete=draft.is_complete and (line.topic, line.partition) not in self._situation.emptied,
            has_failed=(line.topic, line.partition) in self._situation.failed,
            members_on=members_on,
            max_lag=choice.max_lag,
            stale_by=stale_by(line, choice, self._situation.looked_at),
            unreadable=self._unreadable(line),
            hidden=self._hidden(line),
            losses=draft.losses,
            uncarried=uncarried,
            denied=denied if _is_moved(line) else "",
            is_rewound=is_rewound,
        )
        if self.flow.topics_shared and self._back is None and line.has_place:
            blocks = (*blocks, (BlockKind.NOT_COVERED, SHARED))
        elif is_uneven:
            blocks = (*blocks, (BlockKind.NOT_COVERED, MERGED))
        accepted = {kind for kind, _ in blocks} & choice.accept
        return replace(line, blocks=blocks, accepted=tuple(sorted(accepted)))

    def _on_target(self, names: list[str]) -> dict[str, TargetGroup]:
        """Reads the groups on the target; one that can't be read counts as unknown there, and its lines are blocked."""
        target, timeout_ms = self._situation.target, self.flow.connect_timeout_ms
        found, self._unread_there = target_groups.read_each_group(target, names, timeout_ms)
        return dict.fromkeys(names, TargetGroup(True, {})) | found

    def _members(self, names: list[str], on_target: Mapping[str, TargetGroup]) -> dict[str, list[str]]:
        """Returns the aliases of the clusters on which each group has members."""
        is_idle_there: Mapping[str, bool] = {}
        asked = [group for group in names if group not in self._unread]
        if asked and self._situation.source is not None:
            is_idle_there = idle_groups(self._situation.source, asked, self.flow.connect_timeout_ms)
        members: dict[str, list[str]] = {group: [] for group in names}
        for group in names:
            if not is_idle_there.get(group, True):
                members[group].append(self.flow.source)
            if not on_target[group].is_idle:
                members[group].append(self.flow.target)
        return members

    def _standings(self, choice: Choice) -> list[Standing]:
        """Reads the positions, and when they were confirmed last.

        Of a group that the source can't tell about, those in the ledger count.
        """
        situation, ledger, flow = self._situation, self.ledger, self.flow
        self._confirmed_at, self._unread, self._tells_all = None, {}, True
        stored = group_positions.in_ledger(ledger, flow, choice.groups, choice.at)
        if situation.source is None or choice.at is not None:
            self._confirmed_at = group_positions.confirmed_at(ledger, flow, choice.at)
            return stored if choice.at is None else stored + self._later(stored, choice)
        known = group_positions.names(stored)
        found, self._unread, self._tells_all = group_positions.on_cluster(situation.source, flow, choice.groups, known)
        if not self._unread:
            return found
        self._confirmed_at = group_positions.confirmed_at(ledger, flow, choice.at)
        stored = [one for one in stored if one.group_id in self._unread]
        unknown = sorted(self._unread.keys() - {*group_positions.names(stored)})
        now = situation.looked_at
        return found + stored + [Standing(group, None, None, None, "", SeenIn.LEDGER, now) for group in unknown]

    def _later(self, stored: Iterable[Standing], choice: Choice) -> list[Standing]:
        """Returns, without an offset, the positions that the ledger knows by now and did not know at the chosen time.

        Their groups would stay where they are, and the flow would be closed over them.
        """
        then = {(one.group_id, one.topic, one.partition) for one in stored}
        newest = group_positions.in_ledger(self.ledger, self.flow, choice.groups, None)
        return [
            replace(one, upstream_offset=None, metadata="")
            for one in newest
            if one.topic is not None and (one.group_id, one.topic, one.partition) not in then
        ]

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
        confirmed_at = one.seen_at if one.seen_in is SeenIn.SOURCE else self._confirmed_at
        if confirmed_at is not None and one.unread_since is not None:
            confirmed_at = min(confirmed_at, one.unread_since)
        line = Line(
            one.group_id,
            one.topic,
            one.partition,
            self._without_place(one)[0],
            upstream_offset=one.upstream_offset,
            seen_in=one.seen_in,
            seen_at=one.seen_at,
            confirmed_at=confirmed_at,
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
                rpo_seconds=None if key in situation.unread else age,
            )
        seen, committed_ms = situation.seen.get(key), situation.committed_ms.get(key)
        return replace(
            line,
            mirrored_to=mirrored_to,
            source_end=seen,
            lag_seen=None if seen is None else lag(seen, mirrored_to or 0),
            rpo_seconds=None if committed_ms is None else max(0.0, (now_ms - committed_ms) / 1000),
        )

    def _without_place(self, one: Standing) -> tuple[Status, str]:
        """Returns status and reason of a position that has no counterpart."""
        if one.topic is None:
            return Status.NOT_COVERED, UNKNOWN if one.group_id in self._unread else SHARE_GROUP
        if self.flow.scatters(one.topic):
            return Status.NOT_COVERED, PositionReason.SCATTERED
        if reason := self._situation.awaited.get((one.topic, one.partition or 0)) or self._former(one):
            return Status.NOT_MIRRORED_YET, reason
        if one.upstream_offset is None and one.group_id and self.flow.mirrors_topic(one.topic):
            return Status.NOT_COVERED, NOT_THEN
        situation, key = self._situation, (one.topic, one.partition or 0)
        if _is_of_no_flow(one) and key in situation.partitions:
            return Status.NOT_COVERED, NOT_RECORDED
        exists = situation.source is None or key in situation.ends or key in situation.unread
        if exists and self.flow.mirrors_topic(one.topic):
            return Status.NOT_MIRRORED_YET, NOT_YET
        return Status.NOT_MIRRORED, NO_TOPIC

    def _skipped(self, lines: list[Line]) -> dict[tuple[PartitionKey, int], int]:
        """Counts the records that were written on the target before each counterpart and that the flow back has not
        carried yet.

        Counterparts without such records are left out.
        """
        carried_to, places = self._situation.carried_to, {_place(line) for line in lines if line.has_place}
        ends: dict[PartitionKey, int] = {}
        for key, place in places:
            if key in carried_to and place > carried_to[key] and key not in self._unread_logs:
                ends[key] = max(place, ends.get(key, 0))
        if not ends or self._back is None:
            return {}
        mine = two_way.ranges_there(self._situation.pieces, ends)
        stretches = {key: between(carried_to[key], end, mine.get(key, ())) for key, end in ends.items()}
        found = uncarried(self._situation.target, self._back, stretches)
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
            if line.target_offset is not None
            and (place := line.continues_at) is not None
            and (there := max(line.target_offset, line.target_start)) != place
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
            if line.target_offset is None or line.continues_at is None:
                found.append((None, None))
                continue
            count = counts.get((line.group_id, line.target_topic, line.target_partition), 0)
            found.append((count, 0) if line.target_offset <= line.continues_at else (0, count))
        return found


def _is_of_no_flow(one: Standing) -> bool:
    """Returns True for a position in the ledger of which only the first offset was recorded (`says_the_same_as`)."""
    return one.seen_in is SeenIn.LEDGER and one.reason == PositionReason.NOT_OF_FLOW


def _group_place(line: Line) -> tuple[str, PartitionKey]:
    return line.group_id, _place(line)[0]


def _unevenly_read(lines: Iterable[Line]) -> set[tuple[str, PartitionKey]]:
    """Returns the groups and remote partitions in which several topics are merged, of which the group has read unlike
    parts: what it has read lies between what it has not."""
    offsets: dict[tuple[str, PartitionKey], set[int]] = {}
    for line in filter(lambda line: line.has_place, lines):
        offsets.setdefault(_group_place(line), set()).add(_place(line)[1])
    return {place for place, found in offsets.items() if len(found) > 1}


def _one_for_each_place(lines: list[Line]) -> list[Line]:
    """Leaves each group one offset in a remote partition. Where it has read several topics that are merged there, the
    least one skips nothing of any of them."""
    chosen: dict[tuple[str, PartitionKey], Line] = {}
    for line in sorted(filter(lambda line: line.has_place, lines), key=lambda line: _place(line)[1]):
        chosen.setdefault(_group_place(line), line)
    return [
        line if not line.has_place or chosen[_group_place(line)] is line else replace(line, downstream_offset=None)
        for line in lines
    ]


def stale_by(line: Line, choice: Choice, now: datetime) -> str:
    """Says how old a position from the ledger is; returns an empty text if it is young enough.

    Args:
        line: line of the plan.
        choice: the operator's choice, with the maximum age and the time of the positions.
        now: time of the plan, UTC.
    """
    if line.seen_in != SeenIn.LEDGER:
        return ""
    if line.confirmed_at is None:
        return "the table cycles has no cycle of the checkpoint job, so nothing confirms the position"
    age_s = ((choice.at or now) - line.confirmed_at).total_seconds()
    if age_s < -CLOCKS_DIFFER_S and choice.at is None:
        return (
            f"the checkpoint job has confirmed the position last at {line.confirmed_at:%Y-%m-%d %H:%M:%S}, "
            f"{-age_s:,.0f} s from now: its clock is, or was, ahead"
        )
    if age_s <= choice.max_position_age_s:
        return ""
    return (
        f"the checkpoint job has confirmed the position last at {line.confirmed_at:%Y-%m-%d %H:%M:%S}, {age_s:,.0f} s "
        f"before; allowed are {choice.max_position_age_s:,}"
    )


def _span_key(line: Line) -> SpanKey:
    return line.group_id, (line.topic or "", line.partition or 0), _place(line)[0]


def _place(line: Line) -> tuple[PartitionKey, int]:
    return (line.target_topic or "", line.target_partition or 0), line.continues_at or 0


def _is_moved(line: Line) -> bool:
    """Returns True if a run commits an offset for the line."""
    return line.has_place and line.target_offset != line.continues_at
