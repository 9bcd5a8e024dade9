"""Translates the committed offsets of a flow's groups in each cycle.

Positions near the end of a log are translated by the runs in memory (`model/recent_runs.py`). One SQL join against the
ledger translates all others. Exact results are kept, so that the positions of idle groups are not translated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.lag import lag
from mirrorlake.model.recent_runs import RecentRuns
from mirrorlake.model.slot import Position, SlotState, merge_positions
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state.offset_syncs import NewStates
from mirrorlake.translation.live_map import LiveMap
from mirrorlake.translation.sql_join import MIRRORED, POSITION_NAMES, Mirrored, by_runs_at_hand, translate

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
        flow_map: the whole map, as frames.
        incarnations: incarnations of partitions that had a reset, as of the last translation.
    """

    def __init__(self, ledger: Ledger, flow: Flow, target: Cluster) -> None:
        self._flow, self._target = flow, target
        self.flow_map = LiveMap(ledger, flow, target)
        self.incarnations: dict[PartitionKey, int] = {}
        self._new_states = NewStates(target, flow.offset_syncs_topic, flow.connect_timeout_ms)
        self._states: dict[int, SlotState] = {}
        self._positions: dict[PartitionKey, Position] = {}
        self._recent = RecentRuns()
        self._answers: dict[Asked, tuple[Mirrored, Row]] = {}
        self._version = 0

    def translate(
        self, session: SparkSession, positions: Collection[Mapping[str, Any]], logs: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Translates positions to offsets on the target.

        Args:
            session: Spark session of the micro-batch.
            positions: rows with group_id, topic, partition, upstream_offset, metadata.
            logs: rows with topic, partition, log_start and log_end for each partition of the flow, read after the
                positions.

        Returns:
            One row for each position, in any order, with the columns of `sql_join.translate`. Positions that have no
            offset on the target have those of POSITION_NAMES, status None, and `is_awaited`: true if the remote topic
            or its partition does not exist yet.

        Raises:
            TargetError: the target can't be read.
        """
        mirrored = self._mirrored(logs)  # read after positions and logs: the mirrored offsets must not be older
        if self._version != self._recent.version:
            self._version = self._recent.version
            self._answers.clear()
        absent = self._absent({key for position in positions if (key := _key(position)) in mirrored})
        found: list[dict[str, Any]] = []
        kept: dict[Asked, tuple[Mirrored, Row]] = {}
        open_: list[Mapping[str, Any]] = []
        for position in positions:
            asked = position["topic"], position["partition"], position["upstream_offset"]
            partition = mirrored.get(asked[:2])
            near = self._recent.near(self._positions.get(asked[:2]), asked[2]) if partition else None
            if partition is None or asked[:2] in absent:
                found.append(_without_place(position, is_awaited=partition is not None))
            elif near is not None:
                found.append(by_runs_at_hand(position, partition, near))
            elif (answer := self._remembered(asked, partition)) is not None:
                kept[asked] = self._answers[asked]
                found.append(answer | {name: position[name] for name in ("group_id", "metadata")})
            else:
                open_.append(position)
        self._answers = kept
        return found + self._by_ledger(session, open_, mirrored)

    def _absent(self, keys: Set[PartitionKey]) -> set[PartitionKey]:
        """Returns the partitions that the mirror job has not begun, and that don't exist on the target."""
        new = {key: self._flow.policy.remote_topic(key[0]) for key in keys if key not in self._positions}
        timeout_ms = self._flow.connect_timeout_ms
        # With operations, a topic that must not be described counts as missing, and stops nobody else.
        there = self._target.refresh(set(new.values()), timeout_ms, operations=True) if new else {}
        return {key for key, remote in new.items() if remote not in there or key[1] >= there[remote].partitions}

    def _by_ledger(
        self, session: SparkSession, positions: list[Mapping[str, Any]], mirrored: Mapping[PartitionKey, Mirrored]
    ) -> list[dict[str, Any]]:
        if not positions:
            return []
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
        answers = translate(
            asked,
            self.flow_map.read(session).runs,
            session.createDataFrame([mirrored[key] for key in partitions], MIRRORED),
        ).collect()
        for answer in answers:
            key = answer["topic"], answer["partition"]
            if answer["status"] == Status.EXACT:  # others may change when the ledger receives more rows
                self._answers[*key, answer["upstream_offset"]] = mirrored[key], answer
        return [answer.asDict() for answer in answers]

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
        states, is_continued = self._new_states.read()
        if not is_continued:
            self._recent.clear()
            self._states.clear()
        self._recent.add(states)
        self._states |= {state.slot: state for state in states}  # the last one of each slot has its positions
        self._positions = known = merge_positions(self._states.values())
        self.incarnations = {key: position.incarnation for key, position in known.items() if position.incarnation}
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
                )
        return found


def _key(position: Mapping[str, Any]) -> PartitionKey:
    return position["topic"], position["partition"]


def _without_place(position: Mapping[str, Any], *, is_awaited: bool) -> dict[str, Any]:
    return {**{name: position[name] for name in POSITION_NAMES}, "status": None, "is_awaited": is_awaited}
