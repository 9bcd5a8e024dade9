"""Failback: returns from the target of a failed-over flow to its source, which works again.

`away` is the flow that was failed over and is closed since. `home` is the flow back. The modes are, in this order:

1. **plan** shows the diverged tail of the old source, and the offsets there at which groups would continue. It changes
   neither cluster.
2. **begin** carries out the operator's choice about the tail (`jobs/failover/divergence.py`) and opens `home`. The
   mirror job of `home` then carries back what was written meanwhile, while applications continue on the target.
3. **run** follows once producers have stopped. It mirrors what is left, and translates groups by the maps of both
   directions. It moves them after the gate has passed, closes `home`, and opens `away` again. It is a failover in the
   other direction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, GateError
from mirrorlake.jobs.failover import plan
from mirrorlake.jobs.failover.divergence import Divergence, diverged
from mirrorlake.jobs.failover.job import Failover, FailoverResult
from mirrorlake.jobs.failover.plan import ALIVE, Choice, FailoverMode
from mirrorlake.jobs.failover.snapshot import connected, way_back
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import of_process
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.model.slot import ClosedFor, SlotState
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed_for
from mirrorlake.state.generation import Beginning, begin_generation

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DROP, REAPPLY = "drop", "reapply"
MODES = (FailoverMode.PLAN, FailoverMode.REHEARSE, FailoverMode.BEGIN, FailoverMode.RUN)
OF_LEDGER = ("at", "source", "max_position_age_seconds")  # a failback reads positions on the live clusters
PARAMETERS = {name: default for name, default in plan.PARAMETERS.items() if name not in OF_LEDGER} | {
    "diverged": "",
    "export": "",
}


def choice(given: Mapping[str, str]) -> Choice:
    """Reads the operator's choice from the texts of PARAMETERS, without the last two.

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
        decided: choice about these records: `drop`, `reapply`, or empty.
        reapplied: number of records that were re-applied.
        failover: result of the flow home; None after `begin`.
        reopened: generation with which the flow continues; 0 if it stays closed.
    """

    flow: str
    mode: str
    divergence: Divergence
    decided: str = ""
    reapplied: int = 0
    failover: FailoverResult | None = None
    reopened: int = 0

    def table(self) -> pd.DataFrame:
        """Returns one row for each group and partition of the flow home, for display; none after `begin`."""
        return plan.table(self.failover.lines if self.failover else ())

    def to_json(self) -> dict[str, Any]:
        found = {
            "flow": self.flow,
            "mode": self.mode,
            "diverged": self.divergence.records,
            "decided": self.decided,
            "reapplied": self.reapplied,
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
        home = way_back(config, flow)
        if home is None:
            raise ConfigurationError(
                f"flow {flow.name}: the flow back, {flow.target}->{flow.source}, is not enabled in {config}: set "
                f"{flow.target}->{flow.source}.enabled = true"
            )
        self.spark, self.config, self.home, self.away = spark, config, home, flow
        self.ledger, self._suites = ledger, Path(suites)

    def carry_out(self, choice: Choice, decide: str = "", export: str = "") -> FailbackResult:
        """Carries out the operator's choice; its mode may also be `begin`.

        Args:
            choice: the operator's choice.
            decide: `drop` or `reapply`; may be empty if nothing has diverged.
            export: place for the diverged records (`Divergence.export`).

        Raises:
            ConfigurationError: the flow was not failed over, or `begin` lacks the choice about the diverged tail.
            GateError: as `Failover.carry_out`; or records have diverged and no choice was made about them.
        """
        with ending(log, "failback", flow=self.away.name, mode=choice.mode):
            return self._carry_out(replace(choice, source=ALIVE), decide, export)

    def _carry_out(self, choice: Choice, decide: str, export: str) -> FailbackResult:
        if decide not in ("", DROP, REAPPLY):
            raise ConfigurationError(
                f"parameter diverged is '{decide}'; allowed is {DROP}, {REAPPLY}, or empty to decide nothing"
            )
        self.ledger.ensure_tables()
        # groups are on `here` now, and return to `there`
        with connected(self.away, Choice(source=ALIVE)) as (here, there):
            assert there is not None
            states = self._require_failed_over(here)
            self._catch_up(here, there)  # records that the ledger doesn't know would count as diverged
            divergence = diverged(self.away, self.ledger, there, here)
            if choice.mode == FailoverMode.BEGIN and divergence.records and not decide:
                raise ConfigurationError(
                    f"flow {self.away.name}: {divergence.records} records of cluster {self.away.source} have "
                    f"diverged. Set parameter diverged: {DROP} leaves these records there for good, {REAPPLY} "
                    "mirrors them after the records written since. Nothing was changed"
                )
            if export:
                divergence.export(export)
            if choice.mode == FailoverMode.BEGIN:
                return self._begin(divergence, decide, choice=choice, here=here, there=there, states=states)
        if choice.mode == FailoverMode.RUN and divergence.records:
            raise GateError(
                f"flow {self.away.name}: {divergence.records} records of cluster {self.away.source} have diverged, "
                "and no decision about them was recorded. Nothing was changed. Run this notebook with mode = "
                f"{FailoverMode.BEGIN} and diverged = {DROP} or {REAPPLY} first"
            )
        result = Failover(
            spark=self.spark, config=self.config, flow=self.home, ledger=self.ledger, suites=self._suites
        ).carry_out(choice)
        reopened = self._reopen() if result.generation else 0
        return FailbackResult(self.away.name, choice.mode, divergence, failover=result, reopened=reopened)

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
            slots, cluster_id = max(states.values(), key=lambda state: state.generation).slots, there.cluster_id
            if decide == DROP:
                positions, gaps = divergence.passed_over()
                begin_generation(
                    self.away,
                    cluster_id,
                    target=here,
                    slots=slots,
                    beginning=lambda known: Beginning(positions, gaps=gaps, closes=ClosedFor.FAILOVER),
                )
                self.ledger.catch_up(
                    self.away,
                    here.refresh([self.away.offset_syncs_topic], self.away.connect_timeout_ms)[
                        self.away.offset_syncs_topic
                    ].partitions,
                )
            else:
                reapplied = self._reapply()
            log.info(event("divergence_decided", flow=self.away.name, records=divergence.records, decision=decide))
        self._open(self.home, there)
        return FailbackResult(
            flow=self.away.name,
            mode=choice.mode,
            divergence=divergence,
            decided=decide if divergence.records else "",
            reapplied=reapplied,
        )

    def _reapply(self) -> int:
        """Runs the flow away once, to mirror the tail, and returns the number of records.

        The flow stays closed meanwhile. If this process dies, no mirror job continues the flow, and the next `begin`
        finds what is left.
        """
        return (
            MirrorJob(
                engine=SparkEngine(self.spark),
                config=self.config,
                flow=self.away,
                ledger=self.ledger,
                suite=self._suites / "offset_syncs.json",
                closed_for=ClosedFor.FAILOVER,
            )
            .run(None)
            .records
        )

    def _reopen(self) -> int:
        """Reopens the flow away, after all groups have returned."""
        with connected(self.away, Choice(source=ALIVE)) as (here, _):
            generation = self._open(self.away, here)
        to_do = "start its mirror and checkpoint jobs"
        log.info(event("flow_reopened", flow=self.away.name, generation=generation, to_do=to_do))
        return generation

    def _open(self, flow: Flow, target: Cluster) -> int:
        """Opens a flow that was failed over; returns its generation, or 0 if it was not closed for that."""
        states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, flow.connect_timeout_ms)
        if closed_for(states.values()) is not ClosedFor.FAILOVER:
            return 0
        newest = max(states.values(), key=lambda state: state.generation)
        return begin_generation(
            flow,
            newest.source_cluster_id,
            target=target,
            slots=newest.slots,
            beginning=lambda known: Beginning(reopens=ClosedFor.FAILOVER),
        )

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
