"""Failback: returns from the target of a failed-over flow to its source, which works again.

`away` is the flow that was failed over and is closed since. `home` is the flow back. The modes are, in this order:

1. **plan** shows the diverged tail of the old source, the ends of its logs that it has lost (`lost_ends.py`), and the
   offsets there at which groups would continue. It changes neither cluster.
2. **begin** carries out the operator's choice about the tail (`jobs/failover/divergence.py`) and opens `home`. The
   mirror job of `home` then carries back what was written meanwhile, while applications continue on the target.
3. **run** follows once producers have stopped. It mirrors what is left, and translates groups by the maps of both
   directions. It moves them after the gate has passed, closes `home`, and opens `away` again. It is a failover in the
   other direction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, GateError, MirrorlakeError
from mirrorlake.jobs.failover import plan
from mirrorlake.jobs.failover.divergence import Divergence, diverged
from mirrorlake.jobs.failover.job import Failover, FailoverResult
from mirrorlake.jobs.failover.lost_ends import (
    ACCEPT,
    REFILL,
    REFILLED,
    LostEnd,
    decisions,
    lost_ends,
    pending_refills,
    require_refillable,
    require_same_cluster,
    resets,
    set_back,
)
from mirrorlake.jobs.failover.lost_ends import table as lost_ends_table
from mirrorlake.jobs.failover.plan import ALIVE, Choice, FailoverMode
from mirrorlake.jobs.failover.snapshot import connected
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.jobs.mirror.topics.own_topics import OwnTopics
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.journal import Cycle, CycleJob
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import of_process
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.model.gap import Gap
from mirrorlake.model.slot import ClosedFor, Position, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.probes.hidden_topics import require_visible
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed_for, promoted_topics
from mirrorlake.state.generation import Beginning, begin_again, begin_generation

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DROP, REAPPLY = "drop", "reapply"
HIDES_RECORDS = (
    "Without it, nobody can tell whether records of the topic have diverged or are lost. Nothing was changed. If it "
    "can't be granted, exclude the topic (topics.exclude)"
)
MODES = (FailoverMode.PLAN, FailoverMode.REHEARSE, FailoverMode.BEGIN, FailoverMode.RUN)
# A failback reads positions on the live clusters, and principals have their access on the source.
OF_FAILOVER = ("topics", "at", "source", "max_position_age_seconds", "access")
PARAMETERS = {name: default for name, default in plan.PARAMETERS.items() if name not in OF_FAILOVER} | {
    "diverged": "",
    "export": "",
    "lost": "",
}


def choice(given: Mapping[str, str]) -> Choice:
    """Reads the operator's choice from the texts of PARAMETERS, without the last three.

    Raises:
        ConfigurationError: see `Choice.parse`.
    """
    return Choice.parse({name: value for name, value in given.items() if name in plan.PARAMETERS}, MODES)


@dataclass(frozen=True)
class FailbackResult:
    """The result of a failback.

    Attributes:
        flow: the flow that was failed over.
        mode: mode of the failback.
        divergence: records of its source that were not mirrored.
        lost: ends of the source's logs that were mirrored, and that it no longer has.
        decided: choice about these records: `drop`, `reapply`, or empty.
        reapplied: number of records that were re-applied.
        refilled: number of records that were copied home as the source had lost them, with what was written since.
        failover: result of the flow home; None after `begin`.
        reopened: generation with which the flow continues; 0 if it stays closed.
        to_refill: number of partitions that are to be copied home as decided, and are not home yet.
    """

    flow: str
    mode: str
    divergence: Divergence
    lost: tuple[LostEnd, ...] = ()
    decided: str = ""
    reapplied: int = 0
    refilled: int = 0
    failover: FailoverResult | None = None
    reopened: int = 0
    to_refill: int = 0

    @property
    def go(self) -> bool:
        """True unless something stops a run (`stopped_by`), or a line does."""
        return not self.stopped_by and (self.failover is None or self.failover.go)

    @property
    def stopped_by(self) -> dict[str, str]:
        """Returns what stops a run besides lines, by kind, in words."""
        diverged = 0 if self.decided else self.divergence.records
        lost = 0 if self.mode == FailoverMode.BEGIN else len(self.lost)  # else it is refused
        found = {
            "lost": (lost, "partitions have lost records on the source, to decide about (lost)"),
            "open_transaction": (len(self.divergence.hidden), "partitions have an open transaction on the source"),
            "diverged": (diverged, "records have diverged, to decide about (mode = begin, diverged)"),
            "not_refilled": (self.to_refill, "partitions are not copied home yet, as decided (mode = begin)"),
        }
        return {kind: f"{count} {what}" for kind, (count, what) in found.items() if count}

    def lost_table(self) -> pd.DataFrame:
        """Returns one row for each lost end of the source's logs, for display."""
        return lost_ends_table(self.lost)

    def table(self) -> pd.DataFrame:
        """Returns one row for each group and partition of the flow home, for display; none after `begin`."""
        return plan.table(self.failover.lines if self.failover else ())

    def to_json(self) -> dict[str, Any]:
        found = {
            "flow": self.flow,
            "mode": self.mode,
            "go": self.go,
            "stopped_by": self.stopped_by,
            "diverged": self.divergence.records,
            "deleted": self.divergence.deleted,
            "open_transactions": len(self.divergence.hidden),
            "lost": sum(one.records for one in self.lost),
            "decided": self.decided,
            "reapplied": self.reapplied,
            "refilled": self.refilled,
            "reopened": self.reopened,
        }
        return {**(self.failover.to_json() if self.failover else {}), **found}


class Failback:
    """One failback.

    Args:
        spark: as for `Failover`.
        config: as for `Failover`.
        flow: the flow that was failed over.
        ledger: as for `Failover`.
        suites: as for `Failover`.

    Raises:
        ConfigurationError: the property file does not enable the flow back.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: str,
        flow: Flow,
        ledger: Ledger,
        suites: str | Path,
    ) -> None:
        home = flow.load_back(config)
        if home is None:
            raise ConfigurationError(
                f"flow {flow.name}: the flow back, {flow.name_back}, is not enabled in {config}: set "
                f"{flow.name_back}.enabled = true"
            )
        self.spark, self.config, self.home, self.away = spark, config, home, flow
        self.ledger, self._suites = ledger, Path(suites)

    def carry_out(self, choice: Choice, decide: str = "", export: str = "", lost: str = "") -> FailbackResult:
        """Carries out the operator's choice; its mode may also be `begin`.

        Args:
            choice: the operator's choice.
            decide: `drop` or `reapply`; may be empty if nothing has diverged.
            export: place for the diverged records (`Divergence.export`).
            lost: `refill` to copy home the records that the source has lost, or `accept` to go on without them; may be
                empty if it has lost none.

        Raises:
            ConfigurationError: the flow was not failed over, or `begin` lacks the choice about the diverged tail, or
                about what the source has lost.
            SourceError: the source is another cluster than before.
            GateError: as `Failover.carry_out`; or records have diverged, or are lost on the source, and no choice was
                made about them.
        """
        for name, value, allowed in (("diverged", decide, (DROP, REAPPLY)), ("lost", lost, (REFILL, ACCEPT))):
            if value not in ("", *allowed):
                raise ConfigurationError(
                    f"parameter {name} is '{value}'; allowed is {', '.join(allowed)}, or empty to decide nothing"
                )
        with ending(log, "failback", flow=self.away.name, mode=choice.mode):
            return self._carry_out(replace(choice, source=ALIVE), decide, export, lost)

    def _carry_out(self, choice: Choice, decide: str, export: str, decide_lost: str) -> FailbackResult:
        self.ledger.ensure_tables()
        # groups are on `here` now, and return to `there`
        with connected(self.away, Choice(source=ALIVE)) as (here, there):
            assert there is not None
            states = self._require_failed_over(here)
            require_same_cluster(self.away, there, max(states.values(), key=_generation).source_cluster_id)
            self._catch_up(here, there)  # records that the ledger doesn't know would count as diverged
            positions = merge_positions(states.values())
            require_visible(there, self.away, {topic for topic, _ in positions}, HIDES_RECORDS)
            lost = lost_ends(self.away, self.ledger, there, positions)
            differs_from = {one.key: one.from_offset for one in lost}
            divergence = self._diverged(there, here, differs_from)
            if choice.mode == FailoverMode.BEGIN and divergence.hidden:
                self._end_own_transactions(there)
                divergence = self._diverged(there, here, differs_from)
                self._require_no_open_transaction(divergence)
            self._mind_open_transactions(choice, divergence)
            if choice.mode == FailoverMode.PLAN and lost:
                return FailbackResult(self.away.name, choice.mode, divergence, lost)  # groups have no offsets yet
            if lost and not (choice.mode == FailoverMode.BEGIN and decide_lost):
                raise _undecided(self.away, lost, choice.mode)
            self._require_decision(choice, divergence, decide)
            to_refill = self._to_refill(choice, there)
            if export:
                divergence.export(export)
            if choice.mode == FailoverMode.BEGIN:
                if lost:
                    self._reset(lost, decide_lost, choice=choice, here=here, there=there, states=states)
                    divergence = self._diverged(there, here, {})  # records may have come meanwhile
                    self._require_no_open_transaction(divergence)
                    self._require_decision(choice, divergence, decide)
                    if export and divergence.records:
                        divergence.export(export)
                begun = self._begin(divergence, decide, choice=choice, here=here, there=there, states=states)
                return replace(begun, lost=lost)

        def require_nothing_since(there: Cluster, here: Cluster) -> None:
            since = self._diverged(there, here, divergence.ends)
            self._require_no_open_transaction(since)
            self._require_decision(choice, since, decide)

        result = Failover(
            spark=self.spark,
            config=self.config,
            flow=self.home,
            ledger=self.ledger,
            suites=self._suites,
            check=require_nothing_since,
        ).carry_out(choice)
        reopened = self._reopen(divergence) if result.generation else 0
        return FailbackResult(
            self.away.name, choice.mode, divergence, failover=result, reopened=reopened, to_refill=to_refill
        )

    def _diverged(self, there: Cluster, here: Cluster, differs_from: Mapping[PartitionKey, int]) -> Divergence:
        return diverged(self.away, self.home, self.ledger, source=there, target=here, differs_from=differs_from)

    def _require_decision(self, choice: Choice, divergence: Divergence, decide: str) -> None:
        """Requires that the operator has decided about the records that have diverged."""
        if choice.mode == FailoverMode.BEGIN and divergence.records and not decide:
            raise ConfigurationError(
                f"flow {self.away.name}: {divergence.records} records of cluster {self.away.source} have "
                f"diverged. Set parameter diverged: {DROP} leaves these records there for good, {REAPPLY} "
                "mirrors them after the records written since. No record was copied or passed over"
            )
        paused = sorted({one.topic for one in divergence.tails if one.records and self.away.is_paused(one.topic)})
        if choice.mode == FailoverMode.BEGIN and decide == REAPPLY and paused:
            raise ConfigurationError(
                f"flow {self.away.name}: {paused[0]} is paused by the property file (mirrorlake.paused, "
                f"mirrorlake.topics.paused), and {REAPPLY} would mirror nothing of it. Remove the pause, or set "
                f"diverged = {DROP}. No record was copied or passed over"
            )
        if choice.mode == FailoverMode.RUN and divergence.records:
            raise GateError(
                f"flow {self.away.name}: {divergence.records} records of cluster {self.away.source} have diverged, "
                "and no decision about them was recorded. No group was touched. Run this notebook with mode = "
                f"{FailoverMode.BEGIN} and diverged = {DROP} or {REAPPLY} first"
            )

    def _require_no_open_transaction(self, divergence: Divergence) -> None:
        """Requires that the source hides no record: nobody could tell whether it has diverged."""
        for key, hidden in divergence.hidden.items():
            what = hidden.about(key, self.away.source_connection.bootstrap_servers)
            raise GateError(
                f"flow {self.away.name}: on cluster {self.away.source}, {what}. Then run the same command again. The "
                "records may have diverged, so no group was touched, and nothing was decided"
            )

    def _mind_open_transactions(self, choice: Choice, divergence: Divergence) -> None:
        """Lets a plan tell of the open transactions that stop a rehearsal. `begin` and `run` look at them later."""
        if choice.mode == FailoverMode.REHEARSE:
            self._require_no_open_transaction(divergence)
        for key, hidden in divergence.hidden.items():
            detail = hidden.about(key, self.away.source_connection.bootstrap_servers)
            log.warning(event("records_hidden", flow=self.away.name, cluster=self.away.source, detail=detail))

    def _end_own_transactions(self, there: Cluster) -> None:
        """Aborts what a run of the flow home that has died has left open."""
        states = offset_syncs.read_all_states(there, self.home.offset_syncs_topic, self.home.connect_timeout_ms)
        begin_again(self.home, there, Beginning(closes=closed_for(states.values())))

    # -- steps --------------------------------------------------------------------------------------

    def _begin(
        self,
        divergence: Divergence,
        decide: str,
        choice: Choice,
        here: Cluster,
        there: Cluster,
        states: dict[int, SlotState],
    ) -> FailbackResult:
        reapplied = 0
        if divergence.records:
            self._note(
                divergence, decide, choice
            )  # recorded first: a repetition after a crash finds only the records that are left
        self._pass_over(divergence, here, there, drops=decide == DROP)
        if divergence.records:
            if decide == REAPPLY:
                reapplied = self._reapply(here, states)
                self._require_reapplied(divergence, here, there)
            log.info(event("divergence_decided", flow=self.away.name, records=divergence.records, decision=decide))
        refilled = self._refill(there)
        self._open(self.home, there)
        return FailbackResult(
            flow=self.away.name,
            mode=choice.mode,
            divergence=divergence,
            decided=decide if divergence.records else "",
            reapplied=reapplied,
            refilled=refilled,
        )

    def _pass_over(self, divergence: Divergence, here: Cluster, there: Cluster, *, drops: bool) -> None:
        """Moves the flow away behind what retention has deleted, and behind the tails if they are dropped.

        The flow stays closed. Opened again, it would stop at records that nobody can mirror any more.
        """
        positions, gaps = divergence.passed_over(drops=drops)
        if not positions:
            return
        begin_generation(
            self.away,
            there.cluster_id,
            target=here,
            slots=max(self._require_failed_over(here).values(), key=_generation).slots,
            beginning=self._moved_from(divergence.positions, positions, gaps),
        )
        self._catch_up(here, there)  # which notes the losses as anomalies

    def _carried(self, there: Cluster) -> dict[PartitionKey, Position]:
        """Returns the positions of the flow home."""
        states = offset_syncs.read_all_states(there, self.home.offset_syncs_topic, self.home.connect_timeout_ms)
        return merge_positions(states.values())

    def _refill(self, there: Cluster) -> int:
        """Copies home what the source has lost and the operator wants back; returns the number of records copied.

        The flow home stays closed meanwhile: any other run would leave out what is not copied yet. If this process
        dies, the next `begin` copies the rest, as the decision is recorded.
        """
        pending = pending_refills(self.away, self.ledger, self._carried(there))
        if not pending:
            return 0
        engine = InProcessEngine(SparkEngine(self.spark).parallelism)
        home = replace(self.home, refills=tuple(refill for _, refill in pending), ignores_pause=True)
        suite = self._suites / "offset_syncs.json"
        job = MirrorJob(
            engine, self.config, home, self.ledger, suite, closed_for=ClosedFor.FAILOVER, raises_interrupts=True
        )
        records = job.run(None).records
        self._require_refilled(there)
        lost = [one for one, _ in pending]
        self.ledger.append(
            "anomalies",
            decisions(self.away, lost, f"{REFILLED}, as decided", f"copied home from {self.away.target}"),
        )
        log.info(event("refilled", flow=self.home.name, records=records, partitions=len(pending)))
        return records

    def _to_refill(self, choice: Choice, there: Cluster) -> int:
        """Counts the partitions that are still to be copied home; a rehearsal and a run require that there are none."""
        if choice.mode in (FailoverMode.REHEARSE, FailoverMode.RUN):
            self._require_refilled(there)
        return (
            len(pending_refills(self.away, self.ledger, self._carried(there)))
            if choice.mode == FailoverMode.PLAN
            else 0
        )

    def _require_refilled(self, there: Cluster) -> None:
        """Requires that all is home that the operator wants to be copied home."""
        left = [refill for _, refill in pending_refills(self.away, self.ledger, self._carried(there))]
        if left:
            raise GateError(
                f"flow {self.home.name}: topic {left[0].topic}, partition {left[0].partition}, offsets "
                f"{left[0].from_offset} to {left[0].to_offset} are not copied home yet, although lost = {REFILL} was "
                f"decided. Run this notebook with mode = {FailoverMode.BEGIN} again"
            )

    def _set_back(self, lost: Sequence[LostEnd], action: str, here: Cluster, there: Cluster) -> None:
        """Sets the flow home back to what it had brought and the source has lost; it is opened again by `begin`."""

        def found() -> tuple[tuple[Position, ...], tuple[Gap, ...]]:
            return set_back(self.home, self.away, self.ledger, lost, self._carried(there), here, there)

        if not found()[0]:
            return
        self._close_home(here, there)  # a closed flow stays where it is, and takes other positions
        self._catch_up(here, there)
        positions, gaps = found()
        detail = f"brought to {self.away.source} before, and no longer there; mirrored again"
        rows = [
            Anomaly.of_flow(
                self.home,
                gap.kind,
                action,
                detail,
                topic=gap.topic,
                partition=gap.partition,
                from_offset=gap.from_offset,
                to_offset=gap.to_offset,
            )
            for gap in gaps
        ]
        self.ledger.append("anomalies", rows)
        self._close_home(here, there, positions, gaps)
        self._catch_up(here, there)
        log.warning(event("flow_set_back", flow=self.home.name, partitions=len(positions), decision=action))

    def _close_home(
        self, here: Cluster, there: Cluster, positions: tuple[Position, ...] = (), gaps: tuple[Gap, ...] = ()
    ) -> None:
        """Closes the flow home, for as long as another run of it would do the wrong; with other positions, if given."""
        states = offset_syncs.read_all_states(there, self.home.offset_syncs_topic, self.home.connect_timeout_ms)
        slots = max((state.slots for state in states.values()), default=self.home.slots_on(1))
        OwnTopics(self.home, Admin(self.home.target_connection, "target", self.home.name)).ensure_offset_syncs(slots)
        begin_generation(
            self.home,
            here.cluster_id,
            target=there,
            slots=slots,
            beginning=lambda known: Beginning(positions, gaps=gaps, closes=ClosedFor.FAILOVER),
        )

    def _require_own_states(self, there: Cluster) -> None:
        """Requires that the source has not lost states of the flow home: it would copy records again.

        Raises:
            ConfigurationError: the ledger has later ones.
        """
        topic, timeout_ms = self.home.offset_syncs_topic, self.home.connect_timeout_ms
        known = there.refresh([topic], timeout_ms).get(topic)
        keys = [(topic, partition) for partition in known.leaders] if known else []
        ends = there.offsets(keys, LATEST_TIMESTAMP, timeout_ms) if keys else {}
        for partition, offset in self.ledger.last_syncs(self.home).items():
            if ends.get((topic, partition), 0) <= offset:
                raise ConfigurationError(
                    f"flow {self.home.name}: cluster {self.home.target} has lost records of {topic}-{partition} as "
                    f"well, which had offset {offset}: what the flow back has copied is not known any more. Set "
                    f"parameter lost = {ACCEPT}, or restore the log. Nothing was changed"
                )

    def _reset(
        self,
        lost: Sequence[LostEnd],
        decided: str,
        choice: Choice,
        here: Cluster,
        there: Cluster,
        states: dict[int, SlotState],
    ) -> None:
        """Makes the map of the flow away void where the source has lost what was mirrored; the flow stays closed."""
        action = f"{decided}, signed by {choice.signed_by}"
        if decided == REFILL:
            self._require_own_states(there)
            require_refillable(self.home, self.away, lost, self._carried(there), here)
            self._close_home(here, there)
        else:
            self._set_back(lost, action, here, there)
        # Recorded first: a repetition after a crash finds nothing that is lost.
        detail = f"mirrored before the failover, and no longer on {self.away.source}"
        self.ledger.append("anomalies", decisions(self.away, lost, action, detail))
        before = merge_positions(states.values())
        positions, gaps = resets(self.away, there, before, lost)
        begin_generation(
            self.away,
            there.cluster_id,
            target=here,
            slots=max(states.values(), key=_generation).slots,
            beginning=self._moved_from(before, positions, gaps),
        )
        self._catch_up(here, there)
        records = sum(one.records for one in lost)
        log.warning(
            event("lost_ends_decided", flow=self.away.name, records=records, partitions=len(lost), decision=action)
        )

    def _moved_from(
        self, before: Mapping[PartitionKey, Position], positions: tuple[Position, ...], gaps: tuple[Gap, ...]
    ) -> Callable[[Mapping[PartitionKey, Position]], Beginning]:
        """Returns the beginning that moves the flow away to these positions, and keeps it closed.

        It raises ConfigurationError if the flow is no longer where it was before: two operators may decide at once, and
        the second one would set back what the first one has mirrored.
        """

        def beginning(known: Mapping[PartitionKey, Position]) -> Beginning:
            for position in positions:
                then, now = (_place(found.get((position.topic, position.partition))) for found in (before, known))
                if then != now:
                    raise ConfigurationError(
                        f"flow {self.away.name}: topic {position.topic}, partition {position.partition}: another "
                        f"process has moved the flow from offset {then} to {now} since this one has looked. This one "
                        f"has moved nothing. Run this notebook with mode = {FailoverMode.BEGIN} once at a time"
                    )
            return Beginning(positions, gaps=gaps, closes=ClosedFor.FAILOVER)

        return beginning

    def _reapply(self, here: Cluster, states: dict[int, SlotState]) -> int:
        """Runs the flow away once, to mirror the tail, and returns the number of records.

        Topics that were promoted by themselves have a tail, too, and come home with the flow: no run would mirror them.
        The flow stays closed meanwhile. If this process dies, no mirror job continues the flow, and the next `begin`
        finds what is left.
        """
        if promoted := promoted_topics(states.values()):
            begin_again(self.away, here, Beginning(closes=ClosedFor.FAILOVER, demotes=promoted))
        job = MirrorJob(
            engine=SparkEngine(self.spark),
            config=self.config,
            flow=replace(self.away, ignores_pause=True),
            ledger=self.ledger,
            suite=self._suites / "offset_syncs.json",
            closed_for=ClosedFor.FAILOVER,
            raises_interrupts=True,
        )
        result = job.run(None)
        self.ledger.append("cycles", [Cycle.note(self.away, CycleJob.CLOSE, result.generation)])
        return result.records

    def _require_reapplied(self, divergence: Divergence, here: Cluster, there: Cluster) -> None:
        """Requires that nothing of the tail is left. A run passes by topics that are held; what came later is new."""
        tails = self._diverged(there, here, {}).tails
        left = [one for one in tails if one.records and one.from_offset < divergence.ends.get(one.key, 0)]
        if left:
            raise GateError(
                f"flow {self.away.name}: topic {left[0].topic}, partition {left[0].partition}, offsets "
                f"{left[0].from_offset} to {left[0].to_offset}: {left[0].records} diverged records were not re-applied "
                f"({len(left)} partitions). The table anomalies says what holds the topic. Remove the cause, or "
                f"exclude the topic (topics.exclude), and run this notebook with mode = {FailoverMode.BEGIN} again. "
                f"With diverged = {DROP}, that drops what is left. {self.home.name} was not opened"
            )

    def _reopen(self, divergence: Divergence) -> int:
        """Reopens the flow away, after all groups have returned."""
        with connected(self.away, Choice(source=ALIVE)) as (here, there):
            assert there is not None
            self._pass_over(divergence, here, there, drops=False)
            generation = self._open(self.away, here)
        to_do = "start its mirror and checkpoint jobs"
        log.info(event("flow_reopened", flow=self.away.name, generation=generation, to_do=to_do))
        return generation

    def _open(self, flow: Flow, target: Cluster) -> int:
        """Opens a flow that was failed over, and topics of it that were failed over by themselves.

        Returns its generation, or 0 if it was not closed.
        """
        states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, flow.connect_timeout_ms)
        closed, promoted = closed_for(states.values()), promoted_topics(states.values())
        if closed is not ClosedFor.FAILOVER:
            if promoted and closed is ClosedFor.NOTHING:
                begin_again(flow, target, Beginning(demotes=promoted))
            return 0
        generation = begin_again(flow, target, Beginning(reopens=ClosedFor.FAILOVER))
        self.ledger.append("cycles", [Cycle.note(flow, CycleJob.OPEN, generation)])
        return generation

    def _require_failed_over(self, here: Cluster) -> dict[int, SlotState]:
        states = offset_syncs.read_all_states(here, self.away.offset_syncs_topic, self.away.connect_timeout_ms)
        if closed_for(states.values()) is not ClosedFor.FAILOVER:
            raise ConfigurationError(
                f"flow {self.away.name} was not failed over: its states on cluster {self.away.target} are not closed "
                "for a failover. Run notebooks/failover.ipynb for the flow first"
            )
        return states

    def _catch_up(self, here: Cluster, there: Cluster) -> None:
        for flow, cluster in ((self.away, here), (self.home, there)):
            topic = cluster.refresh([flow.offset_syncs_topic], flow.connect_timeout_ms).get(flow.offset_syncs_topic)
            if topic is not None:
                self.ledger.catch_up(flow, topic.partitions)

    def _note(self, divergence: Divergence, decide: str, choice: Choice) -> None:
        """Records the choice as anomalies, without repeating those that an earlier attempt recorded."""
        action = f"{decide}, signed by {choice.signed_by or 'nobody'}"
        table = self.ledger.of_flow("anomalies", self.away)
        noted = (
            table.filter(table.kind == AnomalyKind.DIVERGED)
            .select("topic", "partition", "from_offset", "to_offset", "action")
            .collect()
        )
        anomalies = [
            Anomaly.of_flow(
                self.away,
                AnomalyKind.DIVERGED,
                action,
                f"written on {self.away.source} and not mirrored before the failover, {tail.first_timestamp} to "
                f"{tail.last_timestamp}",
                topic=tail.topic,
                partition=tail.partition,
                from_offset=tail.from_offset,
                to_offset=tail.to_offset,
                records=tail.records,
            )
            for tail in divergence.tails
            if tail.records and (*tail.key, tail.from_offset, tail.to_offset, action) not in noted
        ]
        of_process().anomalies.labels(self.away.name, AnomalyKind.DIVERGED).inc(len(anomalies))
        self.ledger.append("anomalies", anomalies)


def _generation(state: SlotState) -> int:
    return state.generation


def _place(position: Position | None) -> str:
    """Returns where a flow is in a partition, as text: its offset, and which log of the partition that is."""
    return "none" if position is None else f"{position.upstream_next} (log {position.incarnation})"


def _undecided(flow: Flow, lost: Sequence[LostEnd], mode: FailoverMode) -> MirrorlakeError:
    first, records = lost[0], sum(one.records for one in lost)
    what = (
        f"flow {flow.name}: cluster {flow.source} has lost {records} records that were mirrored before the failover, "
        f"in {len(lost)} partitions. They exist on cluster {flow.target} only. Topic {first.topic}, partition "
        f"{first.partition}, offsets {first.from_offset} to {first.to_offset}"
    )
    if mode == FailoverMode.BEGIN:
        return ConfigurationError(
            f"{what}. Restore the log of {flow.source}, or set parameter lost = {REFILL} to copy them home, "
            f"or {ACCEPT} to go on without them. "
            "Nothing was changed"
        )
    return GateError(
        f"{what}. No group can be placed there before that is decided. Nothing was changed. Run this notebook with "
        f"mode = {FailoverMode.BEGIN} and lost = {REFILL} or {ACCEPT}, or restore the log"
    )
