"""Measures the lag of a flow in each partition, by its own connections, without a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.config.start import StartSpec
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.leaderless import without_remote_leader
from mirrorlake.jobs.mirror.planning.readiness import Readiness
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.jobs.mirror.planning.start_offsets import each_start
from mirrorlake.model.lag import lag
from mirrorlake.model.partition_lag import FlowLag, PartitionLag, PartitionState, Sightings, age_s, time_of
from mirrorlake.model.slot import Position, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster, connect_both
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.reasons import PartitionHeld
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import promoted_topics
from mirrorlake.state.oldest_records import oldest_timestamps
from mirrorlake.state.pause import LOOK_S, PauseWatch
from mirrorlake.translation.awaited import is_recreated

MOST_LOOKS = 200  # partitions of a measurement whose oldest records are looked for: those about which least is known
LOOK_WITHIN_S, LOOK_BYTES = 2.0, 2 << 20


def measure(flow: Flow) -> FlowLag:
    """Measures the lag of a flow once.

    Raises:
        SourceError, TargetError: a cluster can't be read.
    """
    meter = LagMeter(flow)
    try:
        return meter.measure()
    finally:
        meter.close()


class LagMeter:
    """Measures the lag of one flow repeatedly. What it has seen before bounds the ages of records.

    Args:
        flow: the flow; may be replaced between two measurements.
        now: returns the seconds since the epoch.
    """

    def __init__(self, flow: Flow, now: Callable[[], float] = time.time) -> None:
        self.flow, self._now = flow, now
        self._clusters: tuple[Cluster, Cluster] | None = None
        self._readiness = Readiness()
        self._pause = PauseWatch(holds_s=LOOK_S)
        self._sightings: dict[PartitionKey, Sightings] = {}
        self._oldest: dict[PartitionKey, tuple[int, int]] = {}  # timestamp at a position, which stays as it is

    def close(self) -> None:
        """Drops the connections; the next measurement makes new ones."""
        for cluster in self._clusters or ():
            cluster.close()
        self._clusters = None

    def measure(self) -> FlowLag:
        """Measures the lag of each partition.

        Raises:
            SourceError, TargetError: a cluster can't be read; the next measurement connects again.
        """
        try:
            return self._measure()
        except BaseException:
            self.close()
            raise

    def _measure(self) -> FlowLag:
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        if self._clusters is None:
            self._clusters = connect_both(flow, "lag", again=True)
        source, target = self._clusters
        there = target.refresh([flow.offset_syncs_topic], timeout_ms).get(flow.offset_syncs_topic)
        states, settled = offset_syncs.read_states_and_ends(
            target, flow.offset_syncs_topic, range(there.partitions if there else 0), timeout_ms
        )
        positions = merge_positions(states.values())
        promoted = promoted_topics(states.values())
        mirrored = {topic for topic, _ in positions}
        matching = source_topics(source, flow, mirrored - promoted)
        held = dict(flow.unnamed(matching, mirrored))
        named = {name: topic for name, topic in matching.items() if name not in held}
        is_settled = partial(offset_syncs.is_settled, target, flow.offset_syncs_topic, settled, timeout_ms)
        found_held = self._readiness.held(flow, named, target, positions, is_settled) if named else {}
        missing = self._readiness.waiting  # remote topics or positions that a job writes when it starts, or just now
        held |= {topic: why for topic, why in found_held.items() if topic not in missing}
        pause = self._pause.look(target, flow)
        readable = [(name, index) for name, topic in matching.items() for index in sorted(topic.leaders)]
        # Of a topic that the principal may not describe, the partitions are known by their positions alone.
        hidden = [key for key in positions if key[0] in matching and not matching[key[0]].leaders]
        keys = sorted([*readable, *hidden])
        ends, failed = source.stable_ends(readable, timeout_ms) if readable else ({}, {})
        stable = {key: end for key, (end, _) in ends.items()}
        high = source.high_watermarks(stable) if stable else {}
        new = [key for key in stable if key not in positions or is_recreated(positions[key], matching[key[0]].topic_id)]
        starts, misplaced = self._starts(source, new, positions)
        held |= {topic: str(error) for (topic, _), error in misplaced.items()}
        behind = [
            key
            for key, end in stable.items()
            if key[0] in named and key in positions and end > positions[key].upstream_next
        ]
        leaderless = without_remote_leader(flow, target, behind)
        now_s = self._now()
        lags = []
        for key in keys:
            state, reason = self._state(key, matching[key[0]], positions.get(key), held, promoted, stable.get(key))
            if state is PartitionState.MIRRORING and key in leaderless:
                state, reason = PartitionState.SILENT, leaderless[key]
            if pause is not None:
                state, reason = PartitionState.PAUSED, str(pause)
            if key not in stable:
                error = failed.get(key, "it is not known")
                reason = reason or PartitionHeld.NO_LEADER.about(topic=key[0], partition=key[1], error=error)
                is_expected = state in (PartitionState.MIRRORING, PartitionState.NOT_BEGUN)
                state = PartitionState.SILENT if is_expected else state
            position = positions.get(key)
            start = starts.get(key, position.upstream_next if position else None)
            lags.append(
                PartitionLag(
                    topic=key[0],
                    partition=key[1],
                    state=state,
                    reason=reason,
                    upstream_next=position.upstream_next if position else None,
                    last_stable_offset=stable.get(key),
                    high_watermark=high.get(key),
                    lag=None if key not in stable or start is None else lag(stable[key], start),
                    uncommitted=None if key not in high else lag(high[key], stable[key]),
                )
            )
        return FlowLag(
            flow.source,
            flow.target,
            datetime.fromtimestamp(now_s, UTC).replace(tzinfo=None),
            tuple(self._with_ages(source, lags, starts, now_s)),
            frozenset(filter(flow.is_backfill, matching)),
        )

    # -- one partition ------------------------------------------------------------------------------

    def _state(
        self,
        key: PartitionKey,
        topic: Topic,
        position: Position | None,
        held: Mapping[str, str],
        promoted: frozenset[str],
        stable: int | None,
    ) -> tuple[PartitionState, str | None]:
        name = key[0]
        if name in promoted:
            return (
                PartitionState.PROMOTED,
                "the topic was failed over by itself; promote it on the flow back to open it",
            )
        if name in held:
            return PartitionState.HELD, held[name]
        if self.flow.is_paused(name):
            return PartitionState.PAUSED, "mirrorlake.paused or mirrorlake.topics.paused"
        if position is None:
            return PartitionState.NOT_BEGUN, None
        if is_recreated(position, topic.topic_id):
            return PartitionState.REPLACED, "the topic was deleted and created anew on the source"
        if stable is not None and stable < position.upstream_next:
            return PartitionState.REPLACED, (
                f"the log ends at offset {stable}, but the flow has mirrored up to {position.upstream_next}"
            )
        return PartitionState.MIRRORING, None

    def _starts(
        self, source: Cluster, new: list[PartitionKey], positions: Mapping[PartitionKey, Position]
    ) -> tuple[dict[PartitionKey, int], dict[PartitionKey, SourceError]]:
        """Returns the offsets at which partitions begin that have no position in their present logs, and the errors of
        those that can't begin where the flow says."""
        if not new:
            return {}, {}
        timeout_ms = self.flow.connect_timeout_ms
        specs = {key: self.flow.start.of(key[0], is_first=False) for key in new if key not in positions}
        later = {key: spec for key, spec in specs.items() if spec != StartSpec()}
        starts, refused = each_start(source, later, timeout_ms)
        first = source.offsets(new, EARLIEST_TIMESTAMP, timeout_ms)
        return {key: start for key, start in (first | starts).items() if key not in refused}, refused

    # -- ages ---------------------------------------------------------------------------------------

    def _with_ages(
        self, source: Cluster, lags: list[PartitionLag], starts: Mapping[PartitionKey, int], now_s: float
    ) -> list[PartitionLag]:
        self._sightings = {
            (one.topic, one.partition): self._sightings.get((one.topic, one.partition), Sightings()) for one in lags
        }
        behind: dict[PartitionKey, tuple[int, int]] = {}
        for one in lags:
            key = one.topic, one.partition
            if one.last_stable_offset is None or one.lag is None:
                continue
            start = starts.get(key, one.upstream_next or 0)
            self._sightings[key].see(one.last_stable_offset, now_s)
            self._sightings[key].pass_by(start)
            if one.lag:
                behind[key] = (start, one.last_stable_offset)
        bounds = {key: self._sightings[key].bounds_s(start, now_s) for key, (start, _) in behind.items()}
        known: dict[PartitionKey, int | None] = {
            key: self._oldest[key][1]
            for key, (start, _) in behind.items()
            if key in self._oldest and self._oldest[key][0] == start
        }
        unknown = sorted(behind.keys() - known.keys(), key=lambda key: bounds[key][0] - bounds[key][1])[:MOST_LOOKS]
        known |= oldest_timestamps(source, self.flow, {key: behind[key] for key in unknown}, LOOK_WITHIN_S, LOOK_BYTES)
        self._oldest = {key: (behind[key][0], at) for key, at in known.items() if at is not None}
        return [self._with_age(one, known, bounds, now_s) for one in lags]

    def _with_age(
        self,
        one: PartitionLag,
        known: Mapping[PartitionKey, int | None],
        bounds: Mapping[PartitionKey, tuple[float, float]],
        now_s: float,
    ) -> PartitionLag:
        key = one.topic, one.partition
        if one.lag is None:
            return one
        if not one.lag or known.get(key, 0) is None:  # the offsets that wait hold no record
            return replace(one, lag_seconds=0.0)
        timestamp_ms = known.get(key)
        return replace(
            one,
            oldest_at=time_of(timestamp_ms, now_s),
            lag_seconds=age_s(timestamp_ms, now_s, bounds[key]),
        )
