"""The plan of one micro-batch, as the planner makes it and the driver receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorlake import errors
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
        generation: generation of the states that the plan was made from.
        slots: number of slots of the flow.
        lag: stable source offsets that are not mirrored, before this micro-batch.
        ranges: the offsets that each slot copies.
        topics: number of partitions of each topic of the flow.
        held: reasons why topics are held, by topic.
        stuck: reasons why partitions do not advance, by topic and partition.
        is_lingering: whether partitions wait for `mirrorlake.linger.ms`.
        uncommitted: source offsets between the last stable offsets and the high watermarks.
        waiting_for: transactions on the source that the flow waits for.
        notices: changes of the property file.
        paused: the pause of the flow, because of which the plan has no ranges; None if it is not paused.
        error: the error that prevented a plan; None if there is none.
        plan_ms: duration of planning.
    """

    generation: int
    slots: int
    lag: int = 0
    ranges: tuple[Range, ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    stuck: Mapping[PartitionKey, str] = field(default_factory=dict)
    is_lingering: bool = False
    uncommitted: int = 0
    waiting_for: tuple[WaitingFor, ...] = ()
    notices: tuple[Notice, ...] = ()
    paused: Pause | None = None
    error: MirrorlakeError | None = None
    plan_ms: float = 0.0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> MirrorPlan:
        """Reads the plain values that `Planner.latest` returns."""
        error = values.get("error")
        return cls(
            generation=values.get("generation", -1),
            slots=values.get("slots", 0),
            lag=values.get("lag", 0),
            ranges=tuple(Range(**planned) for planned in values.get("ranges", ())),
            topics={topic: partitions for topic, (partitions, _) in values.get("topics", {}).items()},
            held=values.get("held", {}),
            stuck={(topic, partition): why for topic, partition, why in values.get("stuck", ())},
            is_lingering=values.get("lingering", False),
            uncommitted=values.get("uncommitted", 0),
            waiting_for=tuple(WaitingFor(**one) for one in values.get("waiting_for", ())),
            notices=tuple(Notice(**notice) for notice in values.get("notices", ())),
            paused=Pause(**paused) if (paused := values.get("paused")) else None,
            error=errors.from_json(error) if error else None,
            plan_ms=values.get("plan_ms", 0.0),
        )

    def by_slot(self) -> dict[int, list[Range]]:
        """Returns the ranges of each slot that has some, in the order of slots."""
        found: dict[int, list[Range]] = {slot: [] for slot in sorted({one.slot for one in self.ranges})}
        for one in self.ranges:
            found[one.slot].append(one)
        return found
