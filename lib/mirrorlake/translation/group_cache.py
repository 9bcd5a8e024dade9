"""Translates the committed offsets of a flow's groups in each cycle.

Positions near the end of a log are translated by the runs in memory (`model/recent_runs.py`). One SQL join against the
ledger translates all others. Exact results are kept, so that the positions of idle groups are not translated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.lag import lag
from mirrorlake.model.recent_runs import RecentRuns
from mirrorlake.model.slot import Position, SlotState, merge_positions
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import PositionReason
from mirrorlake.state.closure import promoted_topics
from mirrorlake.state.offset_syncs import NewStates
from mirrorlake.translation.awaited import is_replaced_there, not_begun, why_awaited
from mirrorlake.translation.live_map import LiveMap
from mirrorlake.translation.log_starts import LogStarts, at_log_start, behind_all, place_of
from mirrorlake.translation.sql_join import (
    MIRRORED,
    POSITION_NAMES,
    RUN_START,
    Mirrored,
    Resumption,
    by_gaps_at_hand,
    by_runs_at_hand,
    resumptions,
    translate,
    without_reset,
)

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


Asked = tuple[str, int, int]  # topic, partition, upstream offset


class GroupTranslation:
    """Translates group positions of one flow repeatedly.

    Args:
        ledger: tables that hold the whole map.
        flow: flow of the groups.
        target: cluster with the flow's offset-syncs topic.

    Attributes:
        flow_map: the whole map, as frames; None in a job without Spark.
        incarnations: incarnations of partitions that had a reset, as of the last translation.
    """

    def __init__(self, ledger: Ledger | MemoryLedger, flow: Flow, target: Cluster) -> None:
        self._flow, self._target = flow, target
        self.flow_map = None if isinstance(ledger, MemoryLedger) else LiveMap(ledger, flow, target)
        self.incarnations: dict[PartitionKey, int] = {}
        self._new_states = NewStates(target, flow.offset_syncs_topic, flow.connect_timeout_ms)
        self._states: dict[int, SlotState] = {}
        self._positions: dict[PartitionKey, Position] = {}
        self._recent = RecentRuns()
        self.log_starts = LogStarts(target, flow.connect_timeout_ms)
        self._promoted: frozenset[str] = frozenset()
        self._answers: dict[Asked, tuple[Mirrored, Row]] = {}
        self._begins: dict[PartitionKey, int] = {}  # where the flow has begun, in partitions without any run
        self._version = 0

    def prime(self) -> None:
        """Reads the states, so that a first cycle notices a log that was truncated before it."""
        self._read_states()

    def translate(
        self, session: SparkSession | None, positions: Collection[Mapping[str, Any]], logs: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Translates positions to offsets on the target.

        Args:
            session: Spark session of the micro-batch; None in a job without Spark.
            positions: rows with group_id, topic, partition, upstream_offset, metadata.
            logs: rows with topic, partition, topic_id, log_start and log_end for each partition of the flow, read
                after the positions.

        Returns:
            One row for each position, in any order, with the columns of `sql_join.translate`. Positions that have no
            offset on the target have those of POSITION_NAMES, downstream_offset None, status and reason; status and
            reason are None for a partition that the flow does not mirror.

        Raises:
            TargetError: the target can't be read.
        """
        logs, before = list(logs), self._positions
        mirrored = self._mirrored(logs)  # read after positions and logs: the mirrored offsets must not be older
        if self._version != self._recent.version:
            self._version = self._recent.version
            self._answers.clear()
            self._begins.clear()
            self.log_starts.forget()
        asked_keys = {key for position in positions if (key := _key(position)) in mirrored}
        awaiting = (
            not_begun(self._flow, self._target, asked_keys, self._positions)
            | self._replaced_there(asked_keys)
            | self._replaced(logs, before)
        )
        found: list[dict[str, Any]] = []
        kept: dict[Asked, tuple[Mirrored, Row]] = {}
        open_: list[Mapping[str, Any]] = []
        for position in positions:
            asked = position["topic"], position["partition"], position["upstream_offset"]
            partition = mirrored.get(asked[:2])
            near = self._recent.near(self._positions.get(asked[:2]), asked[2]) if partition else None
            if position["topic"] in self._promoted:
                found.append(_without_place(position, Status.NOT_COVERED, PositionReason.PROMOTED))
            elif partition is None:
                found.append(_without_place(position, None, None))
            elif asked[:2] in awaiting:
                found.append(_without_place(position, Status.NOT_MIRRORED_YET, awaiting[asked[:2]]))
            elif near is not None and near.run is None and self._is_of_former_log(asked, partition):
                found.append(_without_place(position, Status.NOT_MIRRORED_YET, PositionReason.FORMER_LOG))
            elif near is not None:
                found.append(by_runs_at_hand(position, partition, near))
            elif asked[:2] in self._begins and self._has_no_run(asked[:2], partition):
                found.append(by_gaps_at_hand(position, partition, self._begins[asked[:2]]))
            elif (answer := self._remembered(asked, partition)) is not None:
                kept[asked] = self._answers[asked]
                found.append(answer | {name: position[name] for name in ("group_id", "metadata")})
            else:
                open_.append(position)
        self._answers = kept
        found += self._by_ledger(session, open_, mirrored)
        starts = self.log_starts.of(place_of(row) for row in found if behind_all(row, RUN_START))
        unread = self.log_starts.unread
        return [
            _without_place(row, Status.NOT_MIRRORED_YET, PositionReason.REMOTE_UNREAD)
            if behind_all(row, RUN_START) and place_of(row) in unread
            else at_log_start(row, starts, RUN_START)
            for row in found
        ]

    def _replaced_there(self, keys: Set[PartitionKey]) -> dict[PartitionKey, str]:
        """Returns the partitions whose remote topic is not the one that the mirror job has written, with the reason."""
        written = {key: known for key in keys if (known := self._positions.get(key)) and known.target_topic_id}
        names = {key: self._flow.policy.remote_topic(key[0]) for key in written}
        there = (
            self._target.refresh(set(names.values()), self._flow.connect_timeout_ms, operations=True) if names else {}
        )
        ids = {name: topic.topic_id for name, topic in there.items()}
        return {
            key: PositionReason.REMOTE_REPLACED
            for key, known in written.items()
            if is_replaced_there(known, ids.get(names[key], ""))
        }

    def _replaced(
        self, logs: Iterable[Mapping[str, Any]], before: Mapping[PartitionKey, Position]
    ) -> dict[PartitionKey, str]:
        """Returns the partitions whose log on the source is not the one that the mirror job has read, with the reason.

        A log that ends before `before`, the positions of the last cycle, was truncated: those of this cycle may be
        ahead of its end, as they were read later.
        """
        found = {}
        for log in logs:
            key = _key(log)
            position, earlier = self._positions.get(key), before.get(key)
            if position is None:
                continue
            is_same = earlier is not None and earlier.incarnation == position.incarnation
            mirrored_to = earlier.upstream_next if earlier and is_same else 0
            if reason := why_awaited(position, log["topic_id"], log["log_end"], mirrored_to):
                found[key] = reason
        return found

    def _is_of_former_log(self, asked: Asked, partition: Mirrored | None) -> bool:
        """Returns True for a position past the end of a log that has begun anew."""
        if partition is None or not self.incarnations.get(asked[:2]):
            return False
        return asked[2] > (partition.log_end if partition.log_high is None else partition.log_high)

    def _by_ledger(
        self,
        session: SparkSession | None,
        positions: list[Mapping[str, Any]],
        mirrored: Mapping[PartitionKey, Mirrored],
    ) -> list[dict[str, Any]]:
        if not positions:
            return []
        if session is None or self.flow_map is None:
            return [_without_place(position, Status.NOT_COVERED, PositionReason.NO_SPARK) for position in positions]
        import pyarrow as pa

        fields = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string())
        asked = session.createDataFrame(
            pa.table(
                [
                    pa.array([position[name] for position in positions], kind)
                    for name, kind in zip(POSITION_NAMES, fields, strict=True)
                ],
                names=POSITION_NAMES,
            )
        )
        partitions = {(position["topic"], position["partition"]) for position in positions}
        flow_map = self.flow_map.read(session)
        resumed: Mapping[PartitionKey, Resumption] = {}
        if self.incarnations:
            resumed = resumptions(flow_map.gaps)
            if without_reset(self.incarnations, resumed):  # the topic still has what the table has lost
                flow_map = self.flow_map.read(session, by_topic=True)
                resumed = resumptions(flow_map.gaps)
        if without := {key for key in partitions if self._has_no_run(key, mirrored[key])} - self._begins.keys():
            first = flow_map.gaps.groupBy("topic", "partition").agg({"from_offset": "min"}).collect()
            begins = {(topic, partition): offset for topic, partition, offset in first}
            self._begins |= {key: begins.get(key, mirrored[key].upstream_next) for key in without}
        rows = [
            mirrored[key]._replace(resumed_at=resumed[key].resumed_at if key in resumed else None) for key in partitions
        ]
        answers = translate(asked, flow_map.runs, flow_map.gaps, session.createDataFrame(rows, MIRRORED)).collect()
        for answer in answers:
            key = answer["topic"], answer["partition"]
            if answer["status"] in (Status.EXACT, Status.BEFORE_MIRROR):  # others may change with the ledger
                self._answers[*key, answer["upstream_offset"]] = mirrored[key], answer
        return [answer.asDict() for answer in answers]

    def _has_no_run(self, key: PartitionKey, partition: Mirrored) -> bool:
        """Returns True if the flow has begun the partition and mirrored nothing: all records were left out."""
        return key in self._positions and not partition.downstream_next and key not in self.incarnations

    def _remembered(self, asked: Asked, partition: Mirrored) -> dict[str, Any] | None:
        """Returns an earlier result if it still holds.

        A result with a run after the position always holds. Any other holds while the partition is unchanged.
        """
        if asked not in self._answers:
            return None
        before, answer = self._answers[asked]
        if answer["run_upstream_start"] is None and before != partition:
            return None
        return answer.asDict() | {"source_lag": lag(partition.log_end, asked[2])}

    def _mirrored(self, logs: Iterable[Mapping[str, Any]]) -> dict[PartitionKey, Mirrored]:
        """Returns the partitions of the flow in which each position has one offset on the target."""
        self._read_states()
        known = self._positions
        found = {}
        for log in logs:
            key = log["topic"], log["partition"]
            if not self._flow.scatters(key[0]):
                position = known.get(key)
                found[key] = Mirrored(
                    *key,
                    target_topic=self._flow.policy.remote_topic(key[0]),
                    log_start=log["log_start"],
                    log_end=log["log_end"],
                    upstream_next=position.upstream_next if position else log["log_start"],
                    downstream_next=position.downstream_next if position else 0,
                    log_high=log.get("log_high"),
                )
        return found

    @property
    def mirrored_ends(self) -> dict[PartitionKey, int]:
        """The ends of what is mirrored on the target, by topic and partition of the source."""
        return {key: position.downstream_next for key, position in self._positions.items()}

    def _read_states(self) -> None:
        states, is_continued = self._new_states.read()
        if not is_continued:
            self._recent.clear()
            self._states.clear()
        self._recent.add(states)
        self._states |= {state.slot: state for state in states}  # the last one of each slot has its positions
        self._positions = merge_positions(self._states.values())
        self._promoted = promoted_topics(self._states.values())
        self.incarnations = {
            key: position.incarnation for key, position in self._positions.items() if position.incarnation
        }


def _key(position: Mapping[str, Any]) -> PartitionKey:
    return position["topic"], position["partition"]


def _without_place(position: Mapping[str, Any], status: Status | None, reason: str | None) -> dict[str, Any]:
    names = {name: position[name] for name in POSITION_NAMES}
    return {**names, "downstream_offset": None, "status": status, "reason": reason}
