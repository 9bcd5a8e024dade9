"""The plan of one micro-batch, as the planner makes it and the driver follows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace

from mirrorlake.config.reload import Notice
from mirrorlake.errors import MirrorlakeError
from mirrorlake.jobs.mirror.planning.uncommitted import WaitingFor
from mirrorlake.model.copy_plan import Range
from mirrorlake.partition_key import PartitionKey
from mirrorlake.state.pause import Pause


@dataclass(frozen=True)
class MirrorPlan:
    """The offsets to copy in one micro-batch, and further data for the driver.

    Attributes:
        generation: generation of the states that the plan was made from; -1 if there is no plan, but an error.
        slots: number of slots of the flow.
        lag: stable source offsets that are not mirrored, before this micro-batch.
        ranges: the offsets that each slot copies.
        topics: number of partitions of each topic of the flow.
        topic_ids: id of each of them on the source.
        held: reasons why topics are held, by topic.
        passing: those whose reason may pass by itself.
        not_begun: those of which nothing is mirrored yet.
        stuck: reasons why partitions do not advance, by topic and partition.
        is_lingering: whether partitions wait for `mirrorlake.linger.ms`.
        foreign: topics whose remote topic holds records of others, or may hold some.
        uncommitted: source offsets between the last stable offsets and the high watermarks.
        waiting_for: transactions on the source that the flow waits for.
        is_waiting: whether the next plan may soon have more, though this one has no ranges.
        notices: changes of the property file.
        paused: the pause of the flow, because of which the plan has no ranges; None if it is not paused.
        longest_s: the time for which each slot copies at most; not longer than `mirrorlake.batch.max.ms` in any case.
        retry: changes when the driver should try again what is held.
        error: the error that prevented a plan; None if there is none.
        number: number of the plan among those of its planner that had work or news.
        plan_ms: duration of planning.
    """

    generation: int = -1
    slots: int = 0
    lag: int = 0
    ranges: tuple[Range, ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    passing: frozenset[str] = frozenset()
    not_begun: frozenset[str] = frozenset()
    stuck: Mapping[PartitionKey, str] = field(default_factory=dict)
    is_lingering: bool = False
    foreign: frozenset[str] = frozenset()
    uncommitted: int = 0
    waiting_for: tuple[WaitingFor, ...] = ()
    is_waiting: bool = False
    notices: tuple[Notice, ...] = ()
    paused: Pause | None = None
    longest_s: float = float("inf")
    retry: int = 0
    error: MirrorlakeError | None = None
    number: int = 0
    plan_ms: float = 0.0

    def has_news(self, before: MirrorPlan) -> bool:
        """Returns True if the driver has to handle this plan: work, also work that lingers, and errors always."""
        if self.error or self.ranges or self.is_waiting or self.is_lingering:
            return True
        return replace(self, number=before.number, lag=before.lag, plan_ms=before.plan_ms) != before

    def without(self, topics: Collection[str]) -> MirrorPlan:
        """Returns the plan without the ranges of some topics."""
        kept = tuple(one for one in self.ranges if one.topic not in topics) if topics else self.ranges
        return self if len(kept) == len(self.ranges) else replace(self, ranges=kept)

    @property
    def copying(self) -> set[int]:
        """Slots that have something to copy."""
        return {one.slot for one in self.ranges}

    def by_slot(self) -> dict[int, list[Range]]:
        """Returns the ranges of each slot that has some, in the order of slots."""
        found: dict[int, list[Range]] = {slot: [] for slot in sorted(self.copying)}
        for one in self.ranges:
            found[one.slot].append(one)
        return found


@dataclass(frozen=True)
class HandledPlan:
    """What has become of the slots of a plan.

    Attributes:
        committed: those that were committed.
        waited: those that have copied nothing, as a rate, a quota or the driver told them.
        unfit: errors for which topics may not be copied into their remote topics now, by topic; None if nobody knows.
    """

    committed: Set[int] = frozenset()
    waited: Set[int] = frozenset()
    unfit: Mapping[str, MirrorlakeError] | None = None
