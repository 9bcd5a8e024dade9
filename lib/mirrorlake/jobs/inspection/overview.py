"""The overview of all flows, for people who were woken up: one line for each flow, worst first, and what to do next.

It is read from the clusters, without Spark. `history.py` adds what only the tables know.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.inspection.bounded import bounded
from mirrorlake.jobs.inspection.clusters import ClusterFacts, connected, connections_of, contact, timeout_ms
from mirrorlake.jobs.inspection.history import FlowHistory
from mirrorlake.jobs.mirror.lag_meter import measure
from mirrorlake.model.partition_lag import FlowLag, PartitionLag, PartitionState
from mirrorlake.model.slot import ClosedFor, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.state.closure import closed_for
from mirrorlake.state.offset_syncs import read_all_states
from mirrorlake.state.pause import Pause, read_pause

DEADLINE_S = 15.0
STALLED_S = 300.0  # without a commit of its slot, while a record waits that is as old; by default
QUIET_S = 900.0  # without a cycle, after which a checkpoint job has ended; longer if schedules take longer
AGAIN_S = 2.0  # in which a job that works commits
STARTING_S = 15.0  # in which a job that has just started commits for the first time
STUCK = frozenset({PartitionState.HELD, PartitionState.REPLACED, PartitionState.SILENT})


class Condition(StrEnum):
    """The conditions of a flow, the worst first; `MEANINGS` explains each of them."""

    DOWN = "down"
    PROBLEM = "problem"
    STALLED = "stalled"
    UNKNOWN = "unknown"
    CLOSED = "closed"
    PAUSED = "paused"
    NEW = "new"
    STANDBY = "standby"
    BEHIND = "behind"
    OK = "ok"


MEANINGS: Mapping[Condition, str] = {
    Condition.DOWN: "a cluster of the flow can't be used",
    Condition.PROBLEM: "the flow can't work as it is: the configuration, the states, a failed gate or verification, or "
    f"a checkpoint job without a cycle for {QUIET_S / 60:.0f} minutes (or `--stalled-after`, if that is longer) while "
    "the mirror job goes on",
    Condition.STALLED: f"records wait that nobody has copied for more than {STALLED_S / 60:.0f} minutes "
    "(`--stalled-after`): their slot commits nothing",
    Condition.UNKNOWN: "the clusters have not answered in time",
    Condition.CLOSED: "the flow was failed over, or handed back to MirrorMaker 2",
    Condition.PAUSED: "the flow is paused, by an operator or by its property file",
    Condition.NEW: "the flow has never run",
    Condition.STANDBY: "the flow was failed over, and the one the other way has mirrored since",
    Condition.BEHIND: "records wait, and commits go on",
    Condition.OK: "everything that is committed on the source is mirrored; `what` names what waits there for an open "
    "transaction",
}
ORDER = {condition: number for number, condition in enumerate(Condition)}
ATTENTION = frozenset(Condition) - {Condition.OK, Condition.BEHIND, Condition.STANDBY}
MIRRORS = frozenset({Condition.OK, Condition.BEHIND})
AT_WORK = MIRRORS | {Condition.PAUSED, Condition.STALLED}
FAILED_OVER = "failed over: groups continue on the target"


@dataclass(frozen=True)
class FlowOverview:
    """The overview of one flow. Numbers are None where they are not known.

    Attributes:
        flow: `source->target`.
        condition: its condition.
        detail: what that means here.
        next: what to do next; empty if there is nothing to do.
        lag: stable source offsets that are not mirrored.
        partitions, behind: the partitions of the source, and those with a lag.
        oldest_s: age of the oldest record that waits.
        generation: the number of the last job start.
        committed_s: seconds since the last commit with runs or gaps; None if a start was the last thing of every slot.
        state_s: seconds since the newest state of a slot was written: by a commit, a start, or the closing of the flow.
        pause: the pause that an operator has recorded.
        history: what the tables say; None if they were not read.
    """

    flow: str
    condition: Condition
    detail: str = ""
    next: str = ""
    lag: int | None = None
    partitions: int | None = None
    behind: int | None = None
    oldest_s: float | None = None
    generation: int | None = None
    committed_s: float | None = None
    state_s: float | None = None
    pause: Pause | None = None
    history: FlowHistory | None = None

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {
            "condition": self.condition.value,
            **{
                name: None if values[name] is None else round(values[name], 1)
                for name in ("committed_s", "state_s", "oldest_s")
            },
            "pause": self.pause.to_json() if self.pause else None,
            "history": asdict(self.history) if self.history else None,
        }


def overview(
    properties: Properties,
    names: Sequence[str],
    histories: Mapping[str, FlowHistory],
    deadline_s: float = DEADLINE_S,
    stalled_s: float = STALLED_S,
) -> list[FlowOverview]:
    """Looks at flows, and returns them worst first.

    Args:
        properties: the property file.
        names: the flows, which the file enables.
        histories: what the tables say, by flow.
        deadline_s: the longest time of each look.
        stalled_s: the age of a record that waits, and of its slot's last commit, from which on the flow has stalled.
    """
    found = dict[str, FlowOverview]()
    flows = []
    for name in names:
        try:
            flows.append(Flow.from_properties(properties, name))
        except ConfigurationError as error:
            found[name] = FlowOverview(name, Condition.PROBLEM, error.message, f"Correct {properties.path}")
    facts = contact(connections_of(flows), deadline_s)
    looks = {
        flow.name: partial(
            _look,
            flow,
            has_source=not facts[flow.source].error,
            limit_ms=timeout_ms(deadline_s),
            stalled_s=stalled_s,
        )
        for flow in flows
        if not facts[flow.target].error
    }
    answers = bounded(looks, deadline_s)
    for flow in flows:
        if flow.name not in answers:
            found[flow.name] = _down(flow, facts)
        elif (failed := answers[flow.name].error) is not None:
            found[flow.name] = FlowOverview(
                flow.name, Condition.PROBLEM, failed.message, f"mirrorlake doctor --flow '{flow.name}'"
            )
        else:
            one = answers[flow.name].value or FlowOverview(
                flow.name,
                Condition.UNKNOWN,
                f"not answered within {deadline_s:g} s",
                f"mirrorlake doctor --flow '{flow.name}'",
            )
            found[flow.name] = _down(flow, facts, one) if facts[flow.source].error else one
    told = [_with_history(one, histories.get(one.flow), stalled_s) for one in found.values()]
    return sorted(_paired(told), key=lambda one: (ORDER[one.condition], -(one.lag or 0), one.flow))


def _paired(told: Sequence[FlowOverview]) -> list[FlowOverview]:
    """Returns what was told, where flows are known to belong together: of two ways, one mirrors and one is at rest.

    Where both ways mirror, the one that was failed over is not at rest before the other one has committed something
    since: until then, nothing says that anybody has looked at it.
    """
    by_name = {one.flow: one for one in told}

    def paired(one: FlowOverview) -> FlowOverview:
        other = by_name.get("->".join(reversed(one.flow.split("->"))))
        if other is None or other.state_s is None or other.condition not in AT_WORK:
            return one
        if one.condition is Condition.CLOSED and one.detail == FAILED_OVER:
            if one.state_s is None or other.condition not in MIRRORS or other.state_s >= one.state_s:
                return one
            detail = f"failed over, and {other.flow} mirrors"
            return replace(one, condition=Condition.STANDBY, detail=detail, next=f"To go back: {one.next}")
        if one.condition is Condition.NEW:
            return replace(one, next=f"{one.next}, unless it is for a failback only")
        return one

    return [paired(one) for one in told]


def _down(flow: Flow, facts: Mapping[str, ClusterFacts], known: FlowOverview | None = None) -> FlowOverview:
    side = "source" if facts[flow.source].error else "target"
    error = facts[flow.source].error or facts[flow.target].error
    assert error is not None
    if side == "source" and facts[flow.target].error is None:
        step = f"If it stays down: mirrorlake plan --flow '{flow.name}' --source dead"
    else:
        step = f"mirrorlake doctor --flow '{flow.name}'"
    if known is not None and known.condition is Condition.CLOSED:
        return replace(known, detail=f"{known.detail}; {side} {error.message}")
    detail = f"{side}: {error.message}"
    return replace(known or FlowOverview(flow.name, Condition.DOWN), condition=Condition.DOWN, detail=detail, next=step)


def _look(flow: Flow, *, has_source: bool, limit_ms: int, stalled_s: float) -> FlowOverview:
    """Looks at a flow; once more if it seems to stall: a record with an old timestamp may just have come."""
    first = _looked(flow, has_source=has_source, limit_ms=limit_ms, stalled_s=stalled_s)
    if first.condition is not Condition.STALLED:
        return first
    time.sleep(AGAIN_S)
    return _looked(flow, has_source=has_source, limit_ms=limit_ms, stalled_s=stalled_s)


def _looked(flow: Flow, *, has_source: bool, limit_ms: int, stalled_s: float) -> FlowOverview:
    with connected(flow.target_connection, "target", limit_ms) as target:
        states = list(read_all_states(target, flow.offset_syncs_topic, limit_ms).values())
        pause = read_pause(target, flow, limit_ms)
    found = measure(replace(flow, connect_timeout_ms=limit_ms)) if has_source else None
    return _judged(flow, states, pause, found, stalled_s)


def _judged(
    flow: Flow, states: Sequence[SlotState], pause: Pause | None, found: FlowLag | None, stalled_s: float = STALLED_S
) -> FlowOverview:
    now_s = time.time()
    ages = {one.slot: now_s - one.created_ms / 1_000 for one in states}
    commits = {one.slot: ages[one.slot] for one in states if one.runs or one.gaps}
    started_s = min(ages.values(), default=0.0)
    partitions = [one for one in found.partitions if one.state is not PartitionState.PROMOTED] if found else []
    one = FlowOverview(
        flow.name,
        Condition.OK,
        lag=sum(each.lag or 0 for each in partitions) if found else None,
        partitions=len(partitions) if found else None,
        behind=sum(each.is_behind for each in partitions) if found else None,
        oldest_s=max((each.lag_seconds or 0.0 for each in partitions), default=0.0) or None,
        generation=max((state.generation for state in states), default=None),
        committed_s=min(commits.values(), default=None),
        state_s=min(ages.values(), default=None),
        pause=pause,
    )
    start = f"mirrorlake mirror --flow '{flow.name}'"
    stuck = next((each for each in partitions if each.state in STUCK), None)
    if reason := closed_for(states):
        back = (
            f"mirrorlake failback --flow '{flow.name}' --mode plan"
            if reason is ClosedFor.FAILOVER
            else "notebooks/takeover.ipynb opens it again"
        )
        said = FAILED_OVER if reason is ClosedFor.FAILOVER else "handed back"
        return replace(one, condition=Condition.CLOSED, detail=said, next=back)
    if pause is not None:
        return replace(
            one, condition=Condition.PAUSED, detail=str(pause), next=f"mirrorlake resume --flow '{flow.name}'"
        )
    if flow.paused:
        return replace(
            one,
            condition=Condition.PAUSED,
            detail="mirrorlake.paused is true in the property file",
            next="Set mirrorlake.paused = false",
        )
    if not states:
        return replace(one, condition=Condition.NEW, detail="never run", next=start)
    if stuck is not None:
        return replace(
            one,
            condition=Condition.PROBLEM,
            detail=f"{stuck.topic}-{stuck.partition} is {stuck.state}: {stuck.reason}",
            next=f"mirrorlake lag --flow '{flow.name}' shows all of them",
        )
    copied = found.copied if found else []  # topics that the property file pauses wait as they were told
    slots = {key: position.slot for key, position in merge_positions(states).items()}
    idle = {slot: 0.0 if age_s < STARTING_S else inf for slot, age_s in ages.items()} | commits
    stalled = [each for each in copied if each.lag and _idle_s(each, slots, idle) > stalled_s]
    waiting = f"{one.lag:,} offsets wait in {one.behind:,} partitions" if one.lag else ""
    if stalled:
        since = "" if commits else f"; the job has started {started_s:,.0f} s ago, and committed nothing since"
        return replace(
            one,
            condition=Condition.STALLED,
            detail=f"{waiting}, {len(stalled):,} of them for long{since}",
            next=f"Read the log of the mirror job. If none runs, start it: {start}",
        )
    open_ones = f"{found.uncommitted:,} offsets wait for open transactions on {flow.source}" if found else ""
    return replace(
        one,
        condition=Condition.BEHIND if one.lag else Condition.OK,
        detail="; ".join(filter(None, (waiting, open_ones if found and found.uncommitted else ""))),
    )


def _idle_s(one: PartitionLag, slots: Mapping[PartitionKey, int], commits: Mapping[int, float]) -> float:
    """Returns for how long a partition has waited without a commit of its slot; of any, if it has no slot yet.

    A record whose age is not known may be of any age.
    """
    waits_s = inf if one.lag_seconds is None else one.lag_seconds
    slot = slots.get((one.topic, one.partition))
    idle_s = min(commits.values(), default=inf) if slot is None else commits.get(slot, inf)
    return min(waits_s, idle_s)


def _with_history(one: FlowOverview, history: FlowHistory | None, stalled_s: float = STALLED_S) -> FlowOverview:
    """Adds what the tables say. A failed gate or verification makes a flow a problem that looks well otherwise, and so
    does a checkpoint job that has ended while the mirror job goes on."""
    if history is None:
        return one
    one = replace(one, history=history)
    if history.problem and ORDER[one.condition] > ORDER[Condition.PROBLEM] and one.condition is not Condition.CLOSED:
        return replace(one, condition=Condition.PROBLEM, detail=history.problem, next=history.remedy)
    if one.condition in MIRRORS and history.has_lost_checkpoints(max(stalled_s, QUIET_S)):
        detail = f"the checkpoint job has ended no cycle for {(history.checkpointed_s or 0) / 60:,.0f} minutes"
        remedy = f"See how its last run has ended, then mirrorlake checkpoint --flow '{one.flow}'"
        return replace(one, condition=Condition.PROBLEM, detail=detail, next=remedy)
    return one
