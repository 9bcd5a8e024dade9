"""Failover: planned, rehearsed and run. Consumer groups continue on the target at their exact offsets, and an operator
signs for it.

- **plan** changes neither a cluster nor a table.
- **rehearse** brings the ledger up to date, checks every offset by the records on the target, and writes rows into
  `failovers`.
- **run** with the source alive mirrors what is left and translates again. All lines must pass the expectations before
  groups are moved. With the source dead, the ledger and the target are enough. After a run of all groups the flow is
  closed: no mirror job can continue it before `jobs/failover/failback.py` has opened it.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.errors import ConfigurationError, GateError, LedgerError, MirrorlakeError, TargetError
from mirrorlake.gate import Gate, require
from mirrorlake.jobs.checkpoint import rebuild, target_groups
from mirrorlake.jobs.checkpoint.target_groups import COMMITTED_AT_ONCE
from mirrorlake.jobs.failover import access, plan
from mirrorlake.jobs.failover.access import AccessKind, MissingAccess
from mirrorlake.jobs.failover.plan import ALIVE, DEAD, Choice, FailoverMode, FailoverOutcome, Line, gate_frame
from mirrorlake.jobs.failover.planner import PlanMaker
from mirrorlake.jobs.failover.recheck import changed_groups
from mirrorlake.jobs.failover.rehearsal import Proof, Rehearsal, runs_of
from mirrorlake.jobs.failover.snapshot import Situation, connected, look
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.jobs.mirror.topics.own_topics import OwnTopics
from mirrorlake.ledger import views
from mirrorlake.ledger.journal import Cycle, CycleJob
from mirrorlake.ledger.sql_text import literals
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.model.slot import ClosedFor
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.printable import named
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.topic_changes import ChangeOutcome
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed_for, promoted_topics
from mirrorlake.state.generation import Beginning, begin_again, begin_generation

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


# The outcomes that leave nothing to do about a group.
AGAIN = "Run it again: groups that have their offsets stay"
MOVED = frozenset({FailoverOutcome.COMMITTED, FailoverOutcome.IN_STEP, FailoverOutcome.NO_PLACE})


@dataclass(frozen=True)
class FailoverResult:
    """The result of a failover.

    `is_source_alive` is true if the source was read. `drained` counts the records of the final mirror run. `generation`
    is the one that closed the flow (0 if it was not closed). `access` lists what principals of the flow lack on the
    target (only if the source was read), and what closing the flow lacks.
    """

    failover_id: str
    flow: str
    mode: str
    is_source_alive: bool
    lines: tuple[Line, ...]
    drained: int = 0
    generation: int = 0
    access: tuple[MissingAccess, ...] = ()

    @property
    def go(self) -> bool:
        return bool(self.lines) and all(line.go for line in self.lines)

    def table(self) -> pd.DataFrame:
        """Returns one row for each group and partition, for display."""
        return plan.table(self.lines)

    def access_table(self) -> pd.DataFrame:
        """Returns one row for each access that the target lacks, for display."""
        return access.table(self.access)

    def to_json(self) -> dict[str, Any]:
        return {
            "failover_id": self.failover_id,
            "flow": self.flow,
            "mode": self.mode,
            "source": ALIVE if self.is_source_alive else DEAD,
            "go": self.go,
            "groups": len({line.group_id for line in self.lines if line.group_id}),
            "positions": len(self.lines),
            "no_go": sum(not line.go for line in self.lines),
            "blocks": dict(Counter(kind for line in self.lines for kind, _ in line.blocks)),
            "outcomes": dict(Counter(line.outcome for line in self.lines if line.outcome)),
            "not_mirrored": sum({(line.topic, line.partition): line.not_mirrored or 0 for line in self.lines}.values()),
            "drained": self.drained,
            "generation": self.generation,
            "access_missing": sum(one.outcome != ChangeOutcome.APPLIED for one in self.access),
        }


class Failover:
    """One failover of one flow.

    Args:
        spark: a session with Delta and the Kafka source.
        config: path of the property file, which may also enable a flow back.
        flow: the flow of that file.
        ledger: tables with the maps, and for the results.
        suites: directory of the expectations (`failover.json`, and `offset_syncs.json` for the final mirror run).
        check: called by a run with the source alive before its plan, with what is left mirrored and the ledger up to
            date; it gets the target and the source, and may raise an error. None for no such check.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: str,
        flow: Flow,
        ledger: Ledger,
        suites: str | Path,
        check: Callable[[Cluster, Cluster], None] | None = None,
    ) -> None:
        self.spark, self.config, self.flow, self.ledger, self._suites = spark, config, flow, ledger, Path(suites)
        self._check = check
        self._gate = Gate(self._suites / "failover.json")
        self._back = flow.load_back(config)

    def carry_out(self, choice: Choice) -> FailoverResult:
        """Carries out the operator's choice.

        Raises:
            TargetError, SourceError: a cluster that is needed can't be reached; or the target has refused groups, and
                the others were moved.
            GateError: a line of a run is blocked or an expectation failed, or a rehearsal found another record than the
                map says; no group was touched.
        """
        with ending(log, "failover", flow=self.flow.name, mode=choice.mode):
            return self._carry_out(choice)

    def _carry_out(self, choice: Choice) -> FailoverResult:
        self.ledger.ensure_tables()
        failover_id = uuid.uuid4().hex
        with connected(self.flow, choice) as (target, source):
            if choice.mode == FailoverMode.RUN:
                self._require_not_closed_otherwise(choice, target)
            log.info(
                event(
                    "failover_begun",
                    flow=self.flow.name,
                    failover_id=failover_id,
                    mode=choice.mode,
                    source=DEAD if source is None else ALIVE,
                )
            )
            drained = (
                self._drain(target)
                if choice.mode == FailoverMode.RUN and source is not None and choice.at is None
                else 0
            )
            if choice.mode != FailoverMode.PLAN:
                self._catch_up(target, source)
            if choice.mode == FailoverMode.RUN and source is not None and self._check is not None:
                self._check(target, source)
            situation = look(self.flow, self._back, ledger=self.ledger, target=target, source=source)
            if choice.topics is not None:
                self._topics(situation, choice.topics)
            lines = PlanMaker(
                spark=self.spark, flow=self.flow, back=self._back, ledger=self.ledger, situation=situation
            ).lines(choice)
            result = FailoverResult(
                failover_id=failover_id,
                flow=self.flow.name,
                mode=choice.mode,
                is_source_alive=source is not None,
                lines=tuple(lines),
                drained=drained,
                access=self._access(choice, situation),
            )
            if choice.mode == FailoverMode.PLAN:
                missing = [] if source is not None else rebuild.missing_positions(self.ledger, self.flow, target)[0]
                if missing:
                    name, remedy = self.flow.name, "rehearse: it reads them from the checkpoints topic of the target"
                    log.warning(event("positions_not_in_ledger", flow=name, positions=len(missing), remedy=remedy))
                return result
            return (
                self._run(result, situation, choice)
                if choice.mode == FailoverMode.RUN
                else self._rehearse(result, situation, choice)
            )

    def _access(self, choice: Choice, situation: Situation) -> tuple[MissingAccess, ...]:
        """Lists the access that the target lacks, and gives it if the operator says so."""
        flow, target, source = self.flow, situation.target, situation.source
        found = [] if source is None else access.missing_on_target(flow, source, target)
        if choice.applies_access:
            found = access.give(found, flow, target, self.ledger, choice.signed_by)
        if choice.closes is False:
            return tuple(found)
        if flow.remote_topics_writer:
            bindings = Admin(flow.target_connection, "target", flow.name).acls()
            found += access.unknown_denials(flow, bindings, self.ledger, self._closing(situation, choice))
        topics = None if choice.topics is None else self._topics(situation, choice.topics)
        to_open = access.missing_to_open(flow, topics, self.ledger)
        return (*found, *access.missing_to_close(flow, target), *to_open)

    # -- before the plan ----------------------------------------------------------------------------

    def _require_not_closed_otherwise(self, choice: Choice, target: Cluster) -> None:
        """Raises ConfigurationError if the flow is closed in a way that a run of this kind would mix up."""
        flow = self.flow
        reason = closed_for(
            offset_syncs.read_all_states(target, flow.offset_syncs_topic, flow.connect_timeout_ms).values()
        )
        if reason is ClosedFor.HANDBACK:
            raise ConfigurationError(
                f"flow {flow.name} was handed back to MirrorMaker 2, which has its records and groups now. No group "
                "was touched. Stop MirrorMaker 2 and open the flow with notebooks/takeover.ipynb first"
            )
        if reason and choice.topics is not None:
            raise ConfigurationError(
                f"flow {flow.name} was failed over as a whole, so single topics can't be promoted any more. No group "
                "was touched. Leave topics empty: groups that have their offsets stay"
            )

    def _drain(self, target: Cluster) -> int:
        """Mirrors what the source still has, unless the flow is closed: a closed flow has been drained."""
        states = offset_syncs.read_all_states(target, self.flow.offset_syncs_topic, self.flow.connect_timeout_ms)
        if not states and self._back is None:
            raise ConfigurationError(
                f"flow {self.flow.name}: no record was ever mirrored, so groups can't be moved to the target. Run "
                "the flow's mirror job first"
            )
        if closed_for(states.values()):
            return 0
        suite = self._suites / "offset_syncs.json"
        return (
            MirrorJob(
                engine=SparkEngine(self.spark),
                config=self.config,
                flow=replace(self.flow, ignores_pause=True),
                ledger=self.ledger,
                suite=suite,
                raises_interrupts=True,
            )
            .run(None)
            .records
        )

    def _catch_up(self, target: Cluster, source: Cluster | None) -> None:
        """Brings the ledger up to date with the offset-syncs topics of the clusters that are alive."""
        for flow, cluster in ((self.flow, target), (self._back, source)):
            if flow is not None and cluster is not None:
                topic = cluster.refresh([flow.offset_syncs_topic], flow.connect_timeout_ms).get(flow.offset_syncs_topic)
                if topic is not None:
                    self.ledger.catch_up(flow, topic.partitions)
        if source is None:
            rebuild.rebuild_positions(self.ledger, self.flow, target)

    # -- rehearse and run ---------------------------------------------------------------------------

    def _rehearse(self, result: FailoverResult, situation: Situation, choice: Choice) -> FailoverResult:
        placed = [line for line in result.lines if line.has_place]
        rehearsal = Rehearsal(
            flow=self.flow,
            target=situation.target,
            bounds=self._bounds(placed, situation.target),
            source=situation.source,
            source_ends=situation.ends,
        )
        runs = runs_of(views.runs_of_pair(self.ledger, self.flow.source, self.flow.target), placed)
        proven = [
            replace(
                line,
                outcome=FailoverOutcome.REHEARSED if line.has_place else FailoverOutcome.NO_PLACE,
                proof=rehearsal.prove(line, runs.get((line.topic or "", line.partition or 0, line.piece_to_start or 0)))
                if line.has_place
                else None,
            )
            for line in result.lines
        ]
        done = replace(result, lines=tuple(proven))
        self._record(done, choice)
        wrong = [line for line in proven if (line.proof or "").startswith(Proof.DIFFERS)]
        if wrong or not placed:
            what = (
                f"group {named(wrong[0].group_id)}, topic {wrong[0].topic}, partition {wrong[0].partition}: "
                f"{wrong[0].proof}"
                if wrong
                else "No matching group has an offset on the target, so nothing was checked"
            )
            raise GateError(
                f"flow {self.flow.name}, rehearsal {result.failover_id}: {len(wrong)} of {len(proven)} offsets "
                f"differ from the map. Do not fail over. {what}"
            )
        gone = sum((line.proof or "").startswith(Proof.GONE) for line in proven)
        if gone:
            reason = "retention or compaction has deleted their records"
            log.warning(event("places_not_proven", flow=self.flow.name, places=gone, reason=reason))
        return done

    def _run(self, result: FailoverResult, situation: Situation, choice: Choice) -> FailoverResult:
        denied = [one.missing for one in result.access if one.kind is AccessKind.PERMISSION]
        if denied and (choice.closes or choice.is_of_all):
            raise TargetError(
                f"flow {self.flow.name}, failover {result.failover_id}: {denied[0]} of cluster {self.flow.target}. "
                "Grant it, or set close = false; no group was touched"
            )
        blocked = [line for line in result.lines if not line.go]
        if blocked and not choice.partial:
            held = replace(result, lines=tuple(replace(line, outcome=FailoverOutcome.HELD) for line in result.lines))
            self._record(held, choice)
            kind, reason = blocked[0].open_blocks[0]
            raise GateError(
                f"flow {self.flow.name}, failover {result.failover_id}: {len(blocked)} of {len(result.lines)} lines "
                f"are no-go; no group was touched. Group {named(blocked[0].group_id)}, topic "
                f"{blocked[0].topic}, partition {blocked[0].partition}: {kind} ({reason}). Remove the cause, accept it "
                f"(accept = {kind}), or set partial = true for the others"
            )
        if not any(line.group_id for line in result.lines):
            return self._close_without_groups(result, situation, choice)
        movable = [line for line in result.lines if line.go and line.has_place]
        if movable:
            bounds = self._bounds(movable, situation.target)
            self._pass_gate(movable, bounds, result.failover_id)
            result = replace(result, lines=tuple(_with_start(line, bounds) for line in result.lines))
        # Before the first commit, so that the table shows a run that died, and which groups it may have moved.
        self._record(replace(result, lines=tuple(_decided(line) for line in result.lines)), choice)
        lines = self._commit(result.lines, situation)
        done = replace(result, lines=tuple(lines))
        is_recorded = self._is_concluded(done)  # before the flow is closed: that may fail, and these groups were moved
        is_whole = choice.is_of_all and all(line.outcome in MOVED for line in lines)
        closes = is_whole if choice.closes is None else choice.closes
        if closes:
            with self._said(done, "groups were moved, and closing the flow has failed", AGAIN):
                done = replace(done, generation=self._close(situation, choice))
            self._open(done, situation, choice)
        if not is_recorded:
            with self._said(
                done, f"groups were moved{_closed(done)}; table failovers still calls them intended", AGAIN
            ):
                self._conclude(done)
        refused = sorted({line.group_id for line in lines if (line.outcome or "").startswith(FailoverOutcome.REFUSED)})
        if refused:
            raise TargetError(
                f"flow {self.flow.name}: failover {result.failover_id} has refused "
                f"{len(refused)} groups, the others were moved. Group {named(refused[0])}: "
                f"{next(line.outcome for line in lines if line.group_id == refused[0])}. Remove the cause and run again"
            )
        return done

    def _close_without_groups(self, result: FailoverResult, situation: Situation, choice: Choice) -> FailoverResult:
        """Closes a flow without known groups if the operator asked for it; otherwise an empty list of groups is an
        error."""
        if not (choice.is_of_all and choice.closes):
            raise GateError(
                f"flow {self.flow.name}: no group matches; nothing was changed. To close a flow that no group reads, "
                "leave groups empty and set close = true"
            )
        if not situation.positions:
            raise ConfigurationError(
                f"flow {self.flow.name}: no record was ever mirrored, so there is nothing to close. Nothing was changed"
            )
        done = replace(result, generation=self._close(situation, choice))
        closed = Line("", None, None, Status.NO_GROUPS, outcome=FailoverOutcome.CLOSED)
        self._record(replace(done, lines=(*map(_decided, done.lines), closed)), choice)
        self._open(done, situation, choice)
        return done

    def _open(self, done: FailoverResult, situation: Situation, choice: Choice) -> None:
        """Lets others write to the remote topics that a run has closed, and does what else follows from closing.

        Raises:
            TargetError: the target has refused the first for some.
            MirrorlakeError: the ledger, or the source, does not answer.
        """
        topics = None if choice.topics is None else self._topics(situation, choice.topics)
        with self._said(done, f"the flow is closed (generation {done.generation}), and what follows has failed", AGAIN):
            left = access.open_to_writers(self.flow, topics, self.ledger)
            if topics is not None:
                self._open_back(situation, topics)
            else:  # so that nobody is told of the silence of its jobs
                self.ledger.append("cycles", [Cycle.note(self.flow, CycleJob.CLOSE, done.generation)])
        for one in left:
            log.warning(
                event("denial_left", flow=self.flow.name, acl=one.missing, reason=one.outcome, to_do=one.command)
            )
        if left:
            raise TargetError(
                f"flow {self.flow.name}, failover {done.failover_id}: the flow is closed (generation "
                f"{done.generation}), but {len(left)} ACLs still deny writing to remote topics, such as "
                f"{left[0].missing}: {left[0].outcome}. Delete them ({left[0].command}), or run this again; run a "
                "failback again in any case, which opens the other flow"
            )

    def _is_concluded(self, result: FailoverResult) -> bool:
        """Writes the outcomes; returns False if the ledger does not take them now. The flow is to be closed, whatever
        becomes of them."""
        try:
            self._conclude(result)
        except LedgerError as error:
            log.warning(event("outcomes_not_recorded", flow=self.flow.name, failover=result.failover_id, error=error))
            return False
        return True

    @contextlib.contextmanager
    def _said(self, result: FailoverResult, what: str, to_do: str) -> Iterator[None]:
        """Says in an error what has been done before it."""
        try:
            yield
        except MirrorlakeError as error:
            raise type(error)(
                f"flow {self.flow.name}, failover {result.failover_id}: {what}: {error.message}. {to_do}",
                retriable=error.retriable,
            ) from None

    def _close(self, situation: Situation, choice: Choice) -> int:
        """Closes the flow, or the topics that the operator has named; returns the generation."""
        if choice.topics is None:
            generation = close(self.flow, situation.target)
            opened_by = "notebooks/failback.ipynb"
            log.info(event("flow_closed", flow=self.flow.name, generation=generation, opened_by=opened_by))
            return generation
        topics = self._topics(situation, choice.topics)
        generation = _begin(self.flow, situation.target, Beginning(promotes=topics))
        log.info(event("topics_closed", flow=self.flow.name, generation=generation, topics=",".join(sorted(topics))))
        return generation

    def _open_back(self, situation: Situation, topics: frozenset[str]) -> None:
        """Opens topics on the flow back, if there is one and its cluster is alive."""
        if self._back is not None and situation.source is not None:
            self._demote(self._back, situation.source, {self.flow.policy.remote_topic(topic) for topic in topics})
        elif self._back is not None:
            detail = (
                f"cluster {self.flow.source} is dead, so topics of {self._back.name} that were promoted before stay "
                "closed there. Once it is alive, promote the same topics again, with partial = true and close = true"
            )
            log.warning(
                event("topics_not_opened", flow=self._back.name, topics=",".join(sorted(topics)), detail=detail)
            )

    def _demote(self, back: Flow, source: Cluster, topics: set[str]) -> None:
        """Opens topics of the flow back that were promoted before: their groups have come from there."""
        states = offset_syncs.read_all_states(source, back.offset_syncs_topic, back.connect_timeout_ms)
        opened = promoted_topics(states.values()) & topics
        if opened:
            stays = closed_for(states.values())  # the flow as a whole
            generation = begin_again(back, source, Beginning(demotes=opened, closes=stays))
            log.info(event("topics_opened", flow=back.name, generation=generation, topics=",".join(sorted(opened))))

    def _topics(self, situation: Situation, wanted: NameFilter) -> frozenset[str]:
        """Returns the topics of the flow that the operator has named.

        Raises:
            ConfigurationError: there are none.
        """
        found = frozenset(topic for topic in self._known(situation) if topic in wanted)
        if not found:
            raise ConfigurationError(f"flow {self.flow.name}: parameter topics names no topic of the flow")
        return found

    def _closing(self, situation: Situation, choice: Choice) -> frozenset[str]:
        """Returns the topics that a run closes."""
        return self._known(situation) if choice.topics is None else self._topics(situation, choice.topics)

    def _known(self, situation: Situation) -> frozenset[str]:
        return frozenset(
            topic for topic, _ in (*situation.positions, *situation.ends) if self.flow.mirrors_topic(topic)
        )

    def _pass_gate(
        self, lines: list[Line], bounds: Mapping[PartitionKey, tuple[int, int, int]], failover_id: str
    ) -> None:
        ends = {key: end for key, (_, _, end) in bounds.items()}
        results = self._gate.evaluate(gate_frame(lines, ends), self.flow.name, failover_id)
        self.ledger.append("expectation_results", results)
        require(results, f"flow {self.flow.name}, failover {failover_id}", "no group was touched")

    def _commit(self, lines: tuple[Line, ...], situation: Situation) -> list[Line]:
        """Moves the groups that are still as their lines say; returns the lines with their outcomes.

        Some groups at a time: to look at many takes minutes on a far cluster, and what was seen must be fresh.
        """
        movable: dict[str, list[Line]] = {}
        for line in lines:
            if line.go and line.has_place:
                movable.setdefault(line.group_id, []).append(line)
        refusals: dict[str, str] = {}
        refused: dict[tuple[str, PartitionKey], str] = {}
        names = sorted(movable)
        for at in range(0, len(names), COMMITTED_AT_ONCE):
            some = [line for name in names[at : at + COMMITTED_AT_ONCE] for line in movable[name]]
            try:
                refusals |= changed_groups(self.flow, some, situation.source, situation.target)
            except MirrorlakeError as error:
                if not at:
                    raise  # no group was touched
                refusals |= dict.fromkeys(names[at:], error.message)
                break  # these stay, and the outcomes of the others are kept
            commits: dict[str, dict[PartitionKey, tuple[int, str]]] = {}
            for line in some:
                if line.group_id not in refusals and line.target_offset != line.continues_at:
                    assert line.target_topic is not None
                    assert line.target_partition is not None
                    assert line.continues_at is not None
                    commits.setdefault(line.group_id, {})[line.target_topic, line.target_partition] = (
                        line.continues_at,
                        line.metadata or "",
                    )
            refused |= target_groups.commit(situation.target, commits, self.flow) if commits else {}

        def done(line: Line) -> str | None:
            is_old = line.outcome == FailoverOutcome.IN_STEP and line.group_id in refusals
            if line.outcome != FailoverOutcome.INTENDED and not is_old:
                return line.outcome
            place = (line.group_id, (line.target_topic or "", line.target_partition or 0))
            reason = refusals.get(line.group_id) or refused.get(place)
            return f"{FailoverOutcome.REFUSED}: {reason}" if reason else FailoverOutcome.COMMITTED

        return [replace(line, outcome=done(line)) for line in map(_decided, lines)]

    def _bounds(self, lines: list[Line], target: Cluster) -> dict[PartitionKey, tuple[int, int, int]]:
        """Returns the log start offset, the last stable offset and the high watermark of the lines' remote partitions.

        Raises:
            TargetError: the target does not tell those of a partition.
        """
        keys = sorted(
            {
                (line.target_topic, line.target_partition)
                for line in lines
                if line.target_topic is not None and line.target_partition is not None
            }
        )
        target.refresh({topic for topic, _ in keys}, self.flow.connect_timeout_ms)
        found, failed = target.log_bounds(keys)
        for (topic, partition), reason in sorted(failed.items()):
            raise TargetError(
                f"flow {self.flow.name}: cluster {self.flow.target} does not tell the ends of {topic}-{partition}: "
                f"{reason}. No group was touched. Bring its leader back, or fail the other groups over (groups = ...)",
                retriable=True,
            )
        return found

    def _record(self, result: FailoverResult, choice: Choice) -> None:
        now = datetime.now(UTC).replace(tzinfo=None)
        common = {
            "failover_id": result.failover_id,
            "source": self.flow.source,
            "target": self.flow.target,
            "mode": result.mode,
            "signed_by": choice.signed_by or None,
            "at": choice.at,
            "created_at": now,
        }
        names = Line.__dataclass_fields__.keys() - {"blocks", "accepted"}
        self.ledger.append(
            "failovers",
            [
                {
                    **common,
                    **{name: getattr(line, name) for name in names},
                    "downstream_offset": line.continues_at,
                    "previous_target_offset": line.target_offset,
                    "go": line.go,
                    "blocks": [f"{kind}: {reason}" for kind, reason in line.blocks],
                    "accepted": [kind.value for kind in line.accepted],
                }
                for line in result.lines
            ],
        )

    def _conclude(self, result: FailoverResult) -> None:
        """Writes the outcomes into the rows of a run: a group that was in step may have moved since, too."""
        rows = [
            (
                result.failover_id,
                line.group_id,
                line.topic,
                line.partition,
                line.target_topic,
                line.target_partition,
                line.outcome,
            )
            for line in result.lines
        ]
        names = (
            "failover_id STRING, group_id STRING, topic STRING, partition INT, target_topic STRING, "
            "target_partition INT"
        )
        same = " AND ".join(f"t.{name.split()[0]} <=> s.{name.split()[0]}" for name in names.split(", "))
        self.ledger.change(
            "failovers",
            f"MERGE INTO {self.ledger.table('failovers')} t USING {{s}} s "
            f"ON t.outcome IN ({literals((FailoverOutcome.INTENDED, FailoverOutcome.IN_STEP))}) AND {same} "
            "WHEN MATCHED THEN UPDATE SET outcome = s.outcome",
            s=self.spark.createDataFrame(rows, f"{names}, outcome STRING"),
        )


def _with_start(line: Line, bounds: Mapping[PartitionKey, tuple[int, int, int]]) -> Line:
    """Returns a line with the start of its log as it is now: the plan may be older, or the leader was away then."""
    found = bounds.get((line.target_topic or "", line.target_partition or 0))
    return line if found is None else replace(line, target_start=found[0])


def _decided(line: Line) -> Line:
    """Returns a line with the outcome that a run intends."""
    if not line.go:
        return replace(line, outcome=FailoverOutcome.HELD)
    if not line.has_place:
        return replace(line, outcome=FailoverOutcome.NO_PLACE)
    is_there = line.target_offset == line.continues_at
    return replace(line, outcome=FailoverOutcome.IN_STEP if is_there else FailoverOutcome.INTENDED)


def _closed(result: FailoverResult) -> str:
    return f", and the flow is closed (generation {result.generation})" if result.generation else ""


def close(flow: Flow, target: Cluster) -> int:
    """Closes a flow and returns the generation; needs the target only.

    A running mirror job is fenced at its next micro-batch, and no new one can be started.
    """
    return _begin(flow, target, Beginning(closes=ClosedFor.FAILOVER))


def _begin(flow: Flow, target: Cluster, beginning: Beginning) -> int:
    """Begins a generation, also of a flow that has never mirrored: a job may start later. Returns its number."""
    if generation := begin_again(flow, target, beginning):
        return generation
    slots = flow.slots_on(1)
    OwnTopics(flow, Admin(flow.target_connection, "target", flow.name)).ensure_offset_syncs(slots)
    return begin_generation(flow, "", target=target, slots=slots, beginning=lambda known: beginning)
