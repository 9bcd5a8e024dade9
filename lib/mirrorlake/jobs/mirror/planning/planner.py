"""Makes plans: the offsets that each slot copies next.

A plan is made from the positions that the slots have committed on the target, and from the source's last stable
offsets. Planning reads no records of the source and has no side effects.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import partial

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.config.reload import LiveFlow
from mirrorlake.config.start import StartSpec
from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.jobs.mirror.leaderless import without_remote_leader
from mirrorlake.jobs.mirror.planning.former_leaders import FormerLeaders, suspects
from mirrorlake.jobs.mirror.planning.linger import Linger
from mirrorlake.jobs.mirror.planning.plan import HandledPlan, MirrorPlan
from mirrorlake.jobs.mirror.planning.readiness import WAIT_S, Readiness
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.jobs.mirror.planning.start_offsets import each_start
from mirrorlake.jobs.mirror.planning.stuck import SILENT_S, StuckPartitions
from mirrorlake.jobs.mirror.planning.turns import Turns
from mirrorlake.jobs.mirror.planning.uncommitted import Uncommitted
from mirrorlake.model.anomaly import about
from mirrorlake.model.copy_plan import Partition, Range, make_plan, total_lag
from mirrorlake.model.gap import GapKind
from mirrorlake.model.merged_positions import MergedPositions
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster, connect_both
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import promoted_topics
from mirrorlake.state.pause import PauseWatch
from mirrorlake.translation.awaited import is_recreated

RETRY_TOPICS_S = 5.0
RETRY_LEADERS_S = 1.0
RETRY_HELD_S = 30.0


class Planner:
    """Plans one flow repeatedly.

    Args:
        live: the flow, whose property file may change.
        until_now: if true, plans end at the source's end offsets of the first plan.
    """

    def __init__(self, live: LiveFlow, until_now: bool) -> None:
        self._live = live
        self._until_now = until_now
        self._until: dict[PartitionKey, int] | None = {} if until_now else None
        self._last = MirrorPlan()
        self._topics: dict[str, Topic] = {}
        self._unnamed: dict[str, str] = {}  # topics without a remote name, and why
        self._misplaced: dict[str, str] = {}  # topics that were to start outside of their logs, and why
        self._misplaced_due = 0.0
        self._unfit: Mapping[str, MirrorlakeError] = {}  # topics that the driver does not copy now
        self._unfit_since: float | None = None  # on the monotonic clock, if the reason of one may pass
        self._remote_ids: dict[str, str] = {}
        self._readiness = Readiness()
        self._looked_again = 0.0
        self._leaderless: dict[PartitionKey, tuple[float, str]] = {}  # on the target: since when, and why they wait
        self._leaders_due = 0.0
        self._generation = 0
        self._merged = MergedPositions()
        self._slot_of: dict[PartitionKey, int] = {}
        self._starts: dict[tuple[str, int, str, StartSpec], int] = {}  # of this generation: the end of a log moves
        self._is_settled = False  # whether no earlier planner of this generation can have placed a partition unseen
        self._topics_due = 0.0
        self._stuck = StuckPartitions()
        self._former_leaders = FormerLeaders()
        self._linger = Linger()
        self._turns = Turns()
        self._uncommitted = Uncommitted()
        self._pause = PauseWatch()
        self._clusters: tuple[Cluster, Cluster] | None = None

    @property
    def flow(self) -> Flow:
        return self._live.flow

    def latest(self) -> MirrorPlan:
        """Makes a new plan; returns the last one again if there is no work and no news. An error is a plan, too."""
        began = time.perf_counter()
        try:
            plan = self._plan()
        except MirrorlakeError as error:
            plan = self._failed(error)
        except Exception as error:
            plan = self._failed(errors.unexpected(f"flow {self.flow.name}: planning", error))
        if plan.has_news(self._last):
            plan_ms = 1000 * (time.perf_counter() - began)
            self._last = replace(plan, number=self._last.number + 1, plan_ms=plan_ms)
        return self._last

    def handled(self, plan: HandledPlan) -> None:
        """Notes what has become of the slots of the last plan; states of those committed may not be readable yet."""
        self._stuck.committed(plan.committed, plan.waited)
        if plan.unfit is not None:
            self._unfit = plan.unfit
            may_pass = any(error.retriable for error in plan.unfit.values())
            self._unfit_since = (self._unfit_since or time.monotonic()) if may_pass else None

    def close(self) -> None:
        """Drops the connections; the next plan makes new ones."""
        for cluster in self._clusters or ():
            cluster.close()
        self._clusters = None

    def _failed(self, error: MirrorlakeError) -> MirrorPlan:
        """Returns an error as a plan."""
        self.close()
        self._topics_due = 0.0  # new connections know no topics yet
        return MirrorPlan(error=error)

    # -- making a plan ------------------------------------------------------------------------------

    def _plan(self) -> MirrorPlan:
        notices = self._live.poll()
        if notices:
            self._topics_due = 0.0
        source, target = self._connected()
        self._pause.begin(target, self.flow)
        timeout_ms = self.flow.connect_timeout_ms
        topic = self.flow.offset_syncs_topic
        if topic not in target.topics:
            target.refresh([topic], timeout_ms)
        partitions = target.topics[topic].partitions if topic in target.topics else 0
        states, stable = self._stuck.read(
            partial(offset_syncs.read_states_and_ends, target, topic, range(partitions), timeout_ms)
        )
        newest = max(states.values(), key=lambda state: state.generation, default=None)
        if newest is None:
            raise errors.TargetError(
                f"flow {self.flow.name}: topic {topic} on cluster {self.flow.target} holds no state. The topic may "
                "have been deleted while the job was running. Restore it. To start the flow anew instead, delete the "
                "topic together with the flow's remote topics, and the flow's rows of the tables offset_syncs and gaps"
            )
        if newest.generation != self._generation:
            self._generation, self._slot_of, self._starts, self._is_settled = newest.generation, {}, {}, False
        positions = self._merged.of(states)
        promoted = promoted_topics(states.values())
        self._find_topics(source, target, {topic for topic, _ in positions}, promoted)
        is_settled = partial(offset_syncs.is_settled, target, topic, stable, timeout_ms)
        held = self._unnamed | self._readiness.held(self.flow, self._topics, target, positions, is_settled)
        waiting = self._readiness.waiting
        unfit = self._unfit.keys() & self._topics.keys()
        left_out = held.keys() | unfit | promoted
        wanted = [topic for topic in self._topics if not (topic in left_out or self.flow.is_paused(topic))]
        offered, stable_ends, silent = self._offered(source, positions, wanted)
        held |= self._misplaced
        lag = total_lag(offered, positions)
        self._uncommitted.look(source, stable_ends, is_only_look=self._until_now)
        if self._until is not None:  # a topic may be offered later than in the first plan
            self._until = stable_ends | self._until
        unplaced = {(one.topic, one.partition) for one in offered} - positions.keys() - self._slot_of.keys()
        if unplaced and not self._is_settled:
            self._is_settled = is_settled()
        is_placing = self._is_settled or not unplaced
        if not is_placing:  # a slot may have begun them already, by a commit that can't be read yet
            offered = [one for one in offered if (one.topic, one.partition) not in unplaced]
        due = offered if self._until_now else self._linger.due(offered, positions, self.flow.linger_ms)
        limit = (
            (lambda topic: self.flow.transform_of(topic) is not None, self.flow.batch_max_transformed_records)
            if self.flow.transforms
            else None
        )
        ranges = make_plan(
            due,
            positions,
            slots=newest.slots,
            max_records=self.flow.batch_max_records,
            until=self._until,
            planned_before=self._slot_of,
            max_transformed=limit,
        )
        pause = self._pause.look(target, self.flow)
        ranges = [] if pause else ranges
        self._slot_of.update(
            {
                (planned.topic, planned.partition): planned.slot
                for planned in ranges
                if (planned.topic, planned.partition) not in positions
            }
        )
        self._stuck.observe(states)
        leaderless = self._without_remote_leader(target, ranges, offered)
        others = [planned for planned in ranges if (planned.topic, planned.partition) not in leaderless]
        # A run that ends with what there is must not end well without them: it tries them until its time is over.
        ranges = others if others or not self._until_now else ranges
        long_since = time.monotonic() - SILENT_S
        stuck = silent | {key: why for key, why in leaderless.items() if self._leaderless[key][0] <= long_since}
        stuck |= self._stuck.failing(ranges, self.flow.retry_timeout_ms / 1_000, self.flow.has_rate)
        going = {(one.topic, one.partition) for one in due}
        lingering = {key for one in offered if (key := (one.topic, one.partition)) not in going}
        ranges = self._stuck.planned(
            self._turns.taken(self.flow, ranges, self._stuck.resting),
            states,
            {positions[key].slot for key in lingering},
        )
        if (
            self._stuck.begins_again(ranges) and time.monotonic() > self._looked_again + RETRY_TOPICS_S
        ):  # no progress: a topic or a permission may be missing by now
            self._topics_due, self._looked_again = 0.0, time.monotonic()
            self._readiness.forget()
        # A plan is news then, so that the driver tries again what is held, and knows the lag of a flow that is paused.
        retry = int(time.monotonic() / RETRY_HELD_S) if (held or unfit or pause) and not self._until_now else 0
        return MirrorPlan(
            generation=newest.generation,
            slots=newest.slots,
            lag=lag,
            ranges=tuple(ranges),
            topics={name: topic.partitions for name, topic in self._topics.items()},
            topic_ids={name: topic.topic_id for name, topic in self._topics.items()},
            held={topic: why for topic, why in held.items() if topic not in waiting},
            passing=self._readiness.passing | self._misplaced.keys(),
            not_begun=frozenset(held.keys() - {topic for topic, _ in positions}),
            stuck=stuck,
            uncommitted=self._uncommitted.records,
            waiting_for=self._uncommitted.waiting_for,
            is_waiting=pause is None
            and (
                bool(waiting)
                or (self._unfit_since is not None and time.monotonic() < self._unfit_since + WAIT_S)
                or (self._until_now and (self._stuck.is_electing or not is_placing))
            ),
            is_lingering=pause is None and bool(lingering),
            foreign=self._readiness.foreign - promoted,
            notices=tuple(notices),
            paused=pause,
            retry=retry,
        )

    def _offered(
        self, source: Cluster, positions: Mapping[PartitionKey, Position], topics: list[str]
    ) -> tuple[list[Partition], dict[PartitionKey, int], dict[PartitionKey, str]]:
        """Finds what can be copied now.

        Returns:
            The partitions with something to copy or to look into; the last stable offset of every partition; and the
            reasons of those whose leader does not answer.
        """
        wanted = [(topic, partition) for topic in topics for partition in range(self._topics[topic].partitions)]
        ends, failed = source.stable_ends(wanted, self.flow.connect_timeout_ms) if wanted else ({}, {})
        if gone := {topic for topic, _ in failed if topic not in source.topics}:
            self._topics = {name: topic for name, topic in self._topics.items() if name not in gone}
            self._topics_due = 0.0
            ends = {key: end for key, end in ends.items() if key[0] not in gone}
        silent = {key: why for key, why in failed.items() if key[0] not in gone}
        if suspected := {topic for topic, _ in suspects(ends, positions, self._topics)}:
            timeout_ms = self.flow.connect_timeout_ms
            described, doubts = self._former_leaders.look(source, suspected, timeout_ms, self.flow.retry_timeout_ms)
            self._topics.update(described)
            asked = [key for key in ends if key[0] in suspected]
            again, failed = source.stable_ends(asked, timeout_ms, requires_some=False)
            ends.update(again)
            silent |= failed | {
                key: doubts[key[0]] for key in suspects(ends, positions, self._topics) if key[0] in doubts
            }
            ends = {key: end for key, end in ends.items() if key not in silent}
        stable = {key: end for key, (end, _) in ends.items()}
        keys = self._changed(stable, positions)
        ids = {key: self._topics[key[0]].topic_id for key in keys}
        replaced = {key for key in keys if key in positions and is_recreated(positions[key], ids[key])}
        new = [key for key in keys if key not in positions or key in replaced]
        first = source.offsets(new, EARLIEST_TIMESTAMP, self.flow.connect_timeout_ms) if new else {}
        specs = {key: self.flow.start.of(key[0], is_first=False) for key in new if key not in replaced}
        later = self._later_starts(source, {key: spec for key, spec in specs.items() if spec != StartSpec()})
        keys = [key for key in keys if key[0] not in self._misplaced]
        offered = []
        for key in keys:
            count, topic_id = self._topics[key[0]].partitions, self._topics[key[0]].topic_id
            is_set_back = key in positions and key not in replaced and stable[key] < positions[key].upstream_next
            if (is_set_back or key in replaced) and not self.flow.passes_over_losses:
                raise self._not_the_same_log(positions[key], topic_id, stable[key])
            is_set_back = is_set_back or (key in positions and self._is_recreated(positions[key]))
            replaced_at = first.get(key, 0) if key in replaced else None
            offered.append(
                Partition(
                    *key,
                    topic_id=topic_id,
                    partitions=count,
                    first=max(later.get(key, 0), first.get(key, 0)),  # retention may have passed a start since
                    stable=stable[key],
                    is_anchored=key in later,
                    is_set_back=is_set_back,
                    replaced_at=replaced_at,
                    leader_epoch=ends[key][1],
                )
            )
        return offered, stable, self._stuck.silent(silent)

    def _later_starts(self, source: Cluster, specs: Mapping[PartitionKey, StartSpec]) -> dict[PartitionKey, int]:
        """Returns where new partitions begin that do not begin at their first record.

        One that was planned keeps its start until it has a position: the commit of the first plan may be seen late, and
        if it has failed, what came since is mirrored all the same.
        """
        ids = {key: (*key, self._topics[key[0]].topic_id, spec) for key, spec in specs.items()}
        unknown = {key: spec for key, spec in specs.items() if ids[key] not in self._starts}
        is_due = time.monotonic() >= self._misplaced_due
        if not is_due:
            unknown = {key: spec for key, spec in unknown.items() if key[0] not in self._misplaced}
        found, refused = each_start(source, unknown, self.flow.connect_timeout_ms)
        # The reason stays as it was first told: the log grows meanwhile.
        misplaced = {key[0]: self._misplaced.get(key[0], error.message) for key, error in refused.items()}
        self._misplaced = misplaced if is_due else self._misplaced | misplaced
        self._misplaced_due = time.monotonic() + RETRY_TOPICS_S if is_due else self._misplaced_due
        self._starts.update((ids[key], offset) for key, offset in found.items())
        return {key: self._starts[ids[key]] for key in specs if ids[key] in self._starts}

    def _without_remote_leader(
        self, target: Cluster, ranges: Iterable[Range], offered: Iterable[Partition]
    ) -> dict[PartitionKey, str]:
        """Returns the reasons of the partitions whose remote partitions have no leader, among those of failing slots.

        One such partition would fail the whole slot. It stays out of plans until the target names a leader.
        """
        now, failing = time.monotonic(), self._stuck.failing_slots
        left_out = self._leaderless.keys() & {(one.topic, one.partition) for one in offered}
        suspects = {(one.topic, one.partition) for one in ranges if one.slot in failing} | left_out
        if not suspects:
            self._leaderless = {}
        elif now >= self._leaders_due:
            self._leaders_due = now + RETRY_LEADERS_S
            found = without_remote_leader(self.flow, target, suspects)
            self._leaderless = {key: self._leaderless.get(key, (now, why)) for key, why in found.items()}
        return {key: why for key, (_, why) in self._leaderless.items()}

    def _changed(
        self, stable: Mapping[PartitionKey, int], positions: Mapping[PartitionKey, Position]
    ) -> list[PartitionKey]:
        """Returns the partitions that don't end at their positions, or whose topics may be others than before.

        Of many thousands, most are idle. They cost a look into two mappings each.
        """
        ids, remote_ids = {name: topic.topic_id for name, topic in self._topics.items()}, self._remote_ids
        return [
            key
            for key, end in stable.items()
            if (known := positions.get(key)) is None
            or end != known.upstream_next
            or (known.topic_id and known.topic_id != ids[key[0]])
            or (known.target_topic_id and known.target_topic_id != remote_ids.get(known.target_topic, ""))
        ]

    def _is_recreated(self, position: Position) -> bool:
        """Returns true if the remote topic is another one than that of the position, by its id."""
        now = self._remote_ids.get(position.target_topic, position.target_topic_id)
        return position.target_topic_id not in ("", now)

    def _not_the_same_log(self, position: Position, topic_id: str, stable: int) -> SourceError:
        key = (position.topic, position.partition)
        where = f"flow {self.flow.name}, topic {position.topic}, partition {position.partition}"
        on = (
            "To mirror the records that the source has now, after those mirrored before, set mirrorlake.on.loss = "
            "continue"
        )
        if is_recreated(position, topic_id):
            return SourceError(
                f"{where}: the topic was deleted and created anew on cluster {self.flow.source} (id {topic_id}; the "
                f"flow has mirrored id {position.topic_id} up to offset {position.upstream_next}). The new records "
                f"are not mirrored. {on}",
                anomaly=about(GapKind.RECREATED, key, 0, position.upstream_next),
            )
        return SourceError(
            f"{where}: the log ends at offset {stable}, but the flow has mirrored up to {position.upstream_next}: "
            f"cluster {self.flow.source} has lost records (unclean leader election or restored disks). Compare both "
            f"clusters. {on}",
            anomaly=about(GapKind.TRUNCATED, key, stable, position.upstream_next),
        )

    def _find_topics(self, source: Cluster, target: Cluster, mirrored: Set[str], promoted: Set[str]) -> None:
        """Reads the topics of the source and the remote topics, at the refresh interval."""
        if self._topics and time.monotonic() < self._topics_due:
            return
        matching = source_topics(source, self.flow, mirrored - promoted)
        self._unnamed = self.flow.unnamed(matching, mirrored)
        self._topics = {name: topic for name, topic in matching.items() if name not in self._unnamed}
        remote = (
            target.refresh(
                set(self.flow.remote_topics(self._topics).values()), self.flow.connect_timeout_ms, operations=True
            )
            if self._topics
            else {}
        )
        self._remote_ids = {name: topic.topic_id for name, topic in remote.items() if topic.topic_id}
        interval = self.flow.refresh_topics_interval_s or float("inf")
        self._topics_due = time.monotonic() + (interval if self._topics else min(interval, RETRY_TOPICS_S))

    def _connected(self) -> tuple[Cluster, Cluster]:
        if self._clusters is None:
            self._clusters = connect_both(self.flow, "plan", again=True)
        return self._clusters
