"""The mirror job: plan, copy, gate, commit and ledger, repeatedly.

This module is the driver's part of the exactly-once protocol. For each micro-batch:

1. **Plan.** The planner chooses the offsets that each slot copies (no side effects).
2. **Copy.** One task for each slot copies them into an open transaction and returns a report.
3. **Gate.** The driver evaluates the expectations on the runs of all slots, with the transactions still open. It does
   not write the runs to Delta now.
4. **Commit.** The driver ends the transactions. This is the only commit point.
5. **Ledger.** A separate stream appends the offset-syncs topic to Delta.

The engine, Spark or this process, makes the plans and runs the tasks.

Guaranteed: a read_committed reader of the target sees every record of the source once, in order per partition, whatever
process is killed at any time. Of two jobs for one flow, the older one stops.

Not guaranteed: atomicity over slots (each slot commits by itself), and anything for readers of uncommitted data.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow, require_rates
from mirrorlake.config.reload import LiveFlow, Notice
from mirrorlake.config.replication_policy import HEARTBEATS
from mirrorlake.config.transform import DEAD_LETTER
from mirrorlake.errors import (
    ConfigurationError,
    FencedError,
    LedgerError,
    MirrorlakeError,
    TargetError,
)
from mirrorlake.failpoint import from_specification
from mirrorlake.gate import ExpectationResult, Gate
from mirrorlake.jobs.mirror.engine import CopyTasks, Engine, JobRun
from mirrorlake.jobs.mirror.ledger_keeper import LedgerKeeper
from mirrorlake.jobs.mirror.micro_batch import MicroBatch
from mirrorlake.jobs.mirror.observation.canary import Canary
from mirrorlake.jobs.mirror.observation.holdups import Holdups
from mirrorlake.jobs.mirror.observation.lag_keeper import LagKeeper, LagSample
from mirrorlake.jobs.mirror.observation.progress_keeper import ProgressKeeper
from mirrorlake.jobs.mirror.planning.first_start import require_first_copy
from mirrorlake.jobs.mirror.planning.plan import HandledPlan, MirrorPlan
from mirrorlake.jobs.mirror.planning.readiness import foreign_topics
from mirrorlake.jobs.mirror.planning.slow_slots import SlowSlots
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.jobs.mirror.planning.start_offsets import first_positions
from mirrorlake.jobs.mirror.topics.own_topics import OwnTopics
from mirrorlake.jobs.mirror.topics.topology import Topology
from mirrorlake.jobs.mirror.topics.way_back import WayBack
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import Metrics, of_process
from mirrorlake.model.slot import ClosedFor, SlotState, merge_positions
from mirrorlake.protocol import mm2_topics, transaction
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.timing import MirrorResult, Stopwatch, stages
from mirrorlake.state.closure import promoted_topics, require_open
from mirrorlake.state.fencing import fenced
from mirrorlake.state.generation import Beginning, begin_generation
from mirrorlake.state.giving_way import GivingWay
from mirrorlake.state.offset_syncs import read_all_states
from mirrorlake.state.pause import Pause, PauseWatch
from mirrorlake.telemetry.job_telemetry import JobTelemetry

log = logging.getLogger(__name__)

INTERVAL_S = 0.3  # from one micro-batch to the next, where nothing else is asked for
PAUSE_LOOK_S = 1.0  # between two looks of a job that waits for the end of a pause, most of which ask nobody
SYNC_AGAIN_S = 60.0  # until topics are synced again after a failure that may pass
PAUSE_SAID_S = 600.0  # interval at which a job repeats that its flow is paused


class MirrorJob:
    """Mirrors one flow until it is stopped.

    Args:
        engine: runs the micro-batches.
        config: path of the property file, which the planner reads too.
        flow: the flow of that file.
        ledger: tables for the history.
        suite: path of the expectations for offset syncs.
        failpoint: step at which tests let the process die (`mirrorlake.failpoint`).
        closed_for: reason for which the flow is closed. It stays closed when this job ends, so that no other job can
            continue it. NOTHING: the flow must be open.
        metrics: metrics to update; None for those of the process.
        raises_interrupts: whether `run` raises an interrupt. It does where the run is a step of something larger, which
            must not go on with a part of the records.
    """

    def __init__(
        self,
        engine: Engine,
        config: str,
        flow: Flow,
        ledger: Ledger | MemoryLedger,
        suite: str | Path,
        failpoint: str = "",
        closed_for: ClosedFor = ClosedFor.NOTHING,
        metrics: Metrics | None = None,
        *,
        raises_interrupts: bool = False,
    ) -> None:
        self._raises_interrupts = raises_interrupts
        self._engine, self.config, self.ledger, self._closed_for = engine, config, ledger, closed_for
        self._live = LiveFlow(config, flow)
        self._metrics = metrics or of_process()
        self._gate = Gate(suite, self._metrics)
        self._failpoint = from_specification(failpoint)
        self._topics: dict[str, int] = {}
        self._holdups = Holdups(flow, self._metrics, self._append_anomalies)
        self._configs_due = time.monotonic() + flow.sync_topic_configs_interval_s
        self._acls_due = time.monotonic() + flow.sync_topic_acls_interval_s
        self._mm2 = mm2_topics.Emitter(flow)
        self._places = contextlib.ExitStack()
        job_id = uuid.uuid4().hex[:8]
        self._keeper = LedgerKeeper(flow, ledger, self._metrics, job_id)
        self._pause: Pause | None = None
        self._generation = self._retried = 0
        self._stopping = threading.Event()
        self._pause_said_at = self._waited_s = 0.0
        self._giving_way = GivingWay(self._stopping.wait)
        # Heartbeats come each second. Without a canary, nobody waits for them.
        self._slow_slots = SlowSlots(lambda topic: flow.canary_enabled or not flow.policy.is_heartbeats_topic(topic))
        self._waits_for_records = True
        self._telemetry = JobTelemetry(flow, "mirror", self._metrics, self._gate.name)
        self._progress = ProgressKeeper(
            flow, self._metrics, self._telemetry, self._keeper, self._append_anomalies, job_id
        )
        self._canary = Canary(flow, self._metrics, self._pauses_canaries) if flow.canary_enabled else None
        self._lag_keeper = LagKeeper(
            flow, self._metrics, self._note_lag, self._progress.measured, lambda: self._holdups.held_topics
        )

    @property
    def flow(self) -> Flow:
        """The flow, with the properties that may change while the job runs."""
        return self._live.flow

    # -- the whole run ------------------------------------------------------------------------------

    def run(self, interval_s: float | None, run_for_s: float | None = None) -> MirrorResult:
        """Mirrors the flow until the end of the run.

        Args:
            interval_s: seconds between two micro-batches; None to mirror everything that the source had at the start,
                and end.
            run_for_s: seconds after which to stop; None to run until interrupted.

        Raises:
            MirrorlakeError: the error that ended the run; its class tells who has to act. Earlier commits hold, and no
                transaction of this job stays open.
        """
        with ending(log, "mirror", flow=self.flow.name), self._telemetry:
            result = self._run(interval_s, run_for_s)
        log.info(event("mirror_finished", **result.to_json()))
        return result

    def _run(self, interval_s: float | None, run_for_s: float | None) -> MirrorResult:
        began = time.monotonic()
        if interval_s is None:
            self._canary = None  # a run that drains the source says nothing of the usual latency
            self._waits_for_records = False
        for warning in self.flow.warnings:
            log.warning(event("configuration_warning", flow=self.flow.name, detail=warning))
        failure: BaseException | None = None
        try:
            starting = Retries.of_start(self.flow, self._stopping.wait, self._metrics)
            self._connect(starting)
            self._lag_keeper.start()  # it also tells of a pause
            if self._waited(interval_s, run_for_s, starting):
                starting.repeat(self._prepare)
                if self._canary is not None and interval_s is not None:  # a run that drains the source has no latency
                    self._canary.start()
                self._copy(interval_s, None if run_for_s is None else run_for_s - self._waited_s)
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if self._canary is not None:
                    self._canary.finish()
                # A failover that closes the flow waits for no measurement.
                has_run = failure is None and bool(self._generation) and not self._closed_for
                self._lag_keeper.finish(measures=has_run)
                if has_run:
                    self._progress.ended()
                self._keeper.finish(failure)
                self._failpoint("driver.ledger")
            finally:
                self._places.close()
        return self._progress.result(self._generation, time.monotonic() - began, self._pause)

    def _topics_to_mirror(
        self, states: list[SlotState], promoted: frozenset[str], slots: int
    ) -> tuple[dict[str, Topic], dict[str, int], dict[str, str]]:
        """Returns the topics of the flow on the source, the partitions of those to mirror, and why the others can't be.

        Raises:
            ConfigurationError: no topic can be mirrored, or not at the rates of the flow, or one into itself.
        """
        flow, mirrored = self.flow, {topic for topic, _ in merge_positions(states)}
        found = source_topics(self._source, flow, mirrored - promoted)
        unnamed = flow.unnamed(found, mirrored)
        if found and len(unnamed) == len(found):
            raise ConfigurationError(next(iter(unnamed.values())))
        topics = {name: topic.partitions for name, topic in found.items() if name not in unnamed}
        self._live.slots = min(slots, max(1, sum(topics.values())))
        require_rates(flow, self._live.slots)
        unmoved = [topic for topic, remote in flow.remote_topics(topics).items() if topic == remote]
        if unmoved and self._source.cluster_id == self._target.cluster_id:
            raise ConfigurationError(
                f"flow {flow.name}: topic {unmoved[0]} would be mirrored into itself: source and target are the same "
                "cluster, and the replication policy keeps the topic's name. Rename the remote topic, or exclude the "
                "topic (topics.exclude)"
            )
        return found, topics, unnamed

    def _read_states(self) -> list[SlotState]:
        """Reads the states of the slots that an earlier job has left."""
        topic, timeout_ms = self.flow.offset_syncs_topic, self.flow.connect_timeout_ms
        # A principal that may not describe the topic is told so by the request that creates it.
        there = self._target.refresh([topic], timeout_ms, operations=True).get(topic)
        if there is None or not there.leaders:
            return []
        return list(read_all_states(self._target, topic, timeout_ms).values())

    def _require_no_map(self) -> None:
        """Requires that the tables have no map of an earlier topic: groups would be moved by it.

        Of a topic that the principal may not describe, nobody knows; the request that creates it says so.
        """
        flow = self.flow
        topic, timeout_ms = flow.offset_syncs_topic, flow.connect_timeout_ms
        there = self._target.refresh([topic], timeout_ms, operations=True).get(topic)
        is_hidden = there is not None and not there.leaders
        if not is_hidden and self.ledger.has_map(flow):
            raise ConfigurationError(
                f"flow {flow.name}: topic {flow.offset_syncs_topic} on cluster {flow.target} holds no state, but the "
                "tables offset_syncs and gaps have rows of the flow. They are the map of an earlier topic, and groups "
                "would be moved by it. Nothing was changed. If the topic was lost, restore it. To start the flow anew, "
                f"use another schema, or delete the rows of these two tables with source = '{flow.source}' and target "
                f"= '{flow.target}'"
            )

    def _promoted(self, states: Iterable[SlotState]) -> frozenset[str]:
        """Returns the topics that were failed over by themselves, and logs them."""
        promoted = promoted_topics(states)
        if promoted:
            detail = "they are not mirrored; promote them on the flow back to open them"
            log.info(event("topics_promoted", flow=self.flow.name, topics=",".join(sorted(promoted)), detail=detail))
        return promoted

    def _copy(self, interval_s: float | None, run_for_s: float | None) -> None:
        """Runs micro-batches until the end of the run; records the error that ends it as an anomaly."""
        try:
            self._engine.run(
                JobRun(
                    config=self.config,
                    flow=self.flow,
                    slots=self._live.slots,
                    interval_s=interval_s,
                    run_for_s=run_for_s,
                    handle=self._mirror,
                    watch=self._tend,
                    metrics=self._metrics,
                    seen=self._live.seen,
                    raises_interrupts=self._raises_interrupts,
                )
            )
        except MirrorlakeError as error:
            # Another job has taken over, or no row can be written.
            if not isinstance(error, (FencedError, LedgerError)):
                self._append_anomalies([Anomaly.of_error(self.flow, error)])
            raise

    def stop(self) -> None:
        """Ends the run after the micro-batch under way; may be called from another thread."""
        self._stopping.set()
        self._engine.stop()

    def _connect(self, starting: Retries) -> None:
        """Connects to both clusters."""
        self._engine.require_usable(self.flow)
        self._source = starting.repeat(lambda: self._connected(self.flow.source_connection, "source"))
        self._places.callback(self._source.close)
        self._target = starting.repeat(lambda: self._connected(self.flow.target_connection, "target"))
        self._places.callback(self._target.close)

    def _connected(self, connection: Connection, side: str) -> Cluster:
        return Cluster(connection, side, f"{self.flow.name}|driver", self.flow.connect_timeout_ms).connect()

    def _waited(self, interval_s: float | None, run_for_s: float | None, starting: Retries) -> bool:
        """Waits while the flow is paused; nothing is created or written meanwhile.

        Returns:
            False if the run ends in the pause: because it was stopped, its time is up, or it would end anyway.
        """
        flow, began, watch = self.flow, time.monotonic(), PauseWatch()
        try:
            while self._paused(starting.repeat(lambda: watch.look(self._target, self.flow))):
                self._tell(self._poll_file())
                self._waited_s = time.monotonic() - began
                left_s = float("inf") if run_for_s is None else run_for_s - self._waited_s
                if interval_s is None or left_s <= 0 or self._stopping.wait(min(PAUSE_LOOK_S, left_s)):
                    return False
        except KeyboardInterrupt:
            log.info(event("interrupted", flow=flow.name))
            if self._raises_interrupts:
                raise
            return False
        return True

    def _note_lag(self, row: LagSample) -> None:
        if self._generation:  # before that, there may be no tables
            self._keeper.note("lag_samples", [row])

    def _pauses_canaries(self) -> bool:
        return self._pause is not None or self.flow.is_paused(HEARTBEATS)

    def _paused(self, pause: Pause | None) -> bool:
        """Notes whether the flow is paused, and says it when that changes, and every few minutes while it lasts."""
        before, self._pause = self._pause, pause
        now = time.monotonic()
        if pause is not None:
            self._telemetry.health.progressed()  # a job that waits as it was told is well
        if pause is not None and (pause != before or now > self._pause_said_at + PAUSE_SAID_S):
            self._pause_said_at = now
            log.warning(event("flow_paused", flow=self.flow.name, detail=str(pause), effect="nothing is copied"))
        elif pause is None and before is not None:
            log.info(event("flow_resumed", flow=self.flow.name))
        return pause is not None

    def _prepare(self) -> None:
        """Checks all preconditions, then creates what is missing and opens a new generation."""
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        if self._source.cluster_id == self._target.cluster_id and not flow.same_cluster_allowed:
            raise ConfigurationError(
                f"flow {flow.name}: {flow.source} and {flow.target} are the same Kafka cluster (id "
                f"{self._source.cluster_id}). Correct one of the bootstrap.servers, or set "
                "mirrorlake.same.cluster.allowed = true if this is intended"
            )
        slots = flow.slots_on(self._engine.parallelism)
        transaction.require_transactions(self._target, timeout_ms, flow.transactional_id(0))
        states = self._read_states()
        if not self._closed_for:
            require_open(flow, states)
        promoted = self._promoted(states)
        # What this refuses is refused before anything is created.
        found, topics, unnamed = self._topics_to_mirror(states, promoted, slots)
        if not merge_positions(states):
            require_first_copy(flow, self._source, self._target, topics)
        self.ledger.ensure_tables()
        if not states:
            self._require_no_map()
        if self._canary is not None:
            self._canary.prepare()
        self._mm2.heartbeats_if_due()  # at least one in a run that ends with the last record
        beats = self._canary is not None or flow.emit_heartbeats_enabled or flow.emit_heartbeats_back
        if beats and HEARTBEATS not in found:  # the first ones have made the topic
            found, topics, unnamed = self._topics_to_mirror(states, promoted, slots)
        self._source_admin = Admin(flow.source_connection, "source", flow.name, timeout_ms)
        target_admin = Admin(flow.target_connection, "target", flow.name, timeout_ms)
        own = OwnTopics(flow, target_admin)
        sync_partitions = own.ensure_offset_syncs(slots)
        self._live.flow = flow = replace(flow, loses_states=own.loses_states)
        if any(transform.on_error == DEAD_LETTER for transform in flow.transforms):
            own.ensure_dead_letters(self._target)
        way_back = WayBack(self.config, self._source)
        self._topology = Topology(flow, self._source_admin, target_admin, self._keeper, way_back)
        self._topology.promoted = promoted
        mine = {name: found[name] for name in topics if name not in promoted}
        self._topology.foreign = foreign_topics(flow, mine, self._target, merge_positions(states))
        self._ensure_topics(topics, unnamed)
        self._sync(configs=flow.sync_topic_configs_enabled, acls=flow.keeps_acls)
        self._generation = begin_generation(
            flow,
            self._source.cluster_id,
            target=self._target,
            slots=slots,
            beginning=lambda known: Beginning(
                () if known else tuple(first_positions(self._source, flow, {name: found[name] for name in topics})),
                closes=self._closed_for,
            ),
            failpoint=self._failpoint,
        )
        for transform in flow.transforms:
            if not any(flow.transform_of(topic) is transform for topic in topics):
                wanted = ", ".join(transform.topics.include)
                log.warning(event("transform_without_topics", flow=flow.name, transform=transform.name, topics=wanted))
        log.info(
            event(
                "generation_opened",
                flow=flow.name,
                generation=self._generation,
                slots=slots,
                topics=len(topics),
                partitions=sum(topics.values()),
            )
        )
        self._metrics.generation.labels(flow.name).set(self._generation)
        self._keeper.start(sync_partitions)
        self._telemetry.health.ready()

    def _ensure_topics(
        self, topics: dict[str, int], held: Mapping[str, str] | None = None, passing: Set[str] = frozenset()
    ) -> None:
        """Prepares remote topics. A topic that is held is logged and recorded, and the others continue.

        Args:
            topics: number of partitions of each topic.
            held: reasons why topics are held, beside those for which they can't be prepared.
            passing: held topics whose reason may pass by itself.

        Raises:
            TargetError: no topic can be mirrored.
        """
        refused = self._topology.ensure(topics)
        failures = {topic: error.message for topic, error in refused.items()} | dict(held or {})
        if topics and topics.keys() <= failures.keys():
            may_pass = bool(passing & failures.keys()) or any(error.retriable for error in refused.values())
            raise TargetError(next(iter(failures.values())), retriable=may_pass)
        self._holdups.topics(failures)
        self._topics = topics

    def _tend(self) -> None:
        """Does the work between micro-batches: idle cycles, what is held, and topic sync."""
        self._progress.idle_if_due()
        self._holdups.measure()
        self._follow_file()
        if self._pause is not None:
            return
        self._mm2.heartbeats_if_due()
        self._sync_if_due()

    def _sync_if_due(self) -> None:
        """Syncs configuration and access rights of the remote topics at their intervals."""
        now, flow = time.monotonic(), self.flow
        configs = flow.sync_topic_configs_enabled and now >= self._configs_due
        acls = flow.keeps_acls and now >= self._acls_due
        if not (configs or acls):
            return
        self._configs_due = now + flow.sync_topic_configs_interval_s if configs else self._configs_due
        self._acls_due = now + flow.sync_topic_acls_interval_s if acls else self._acls_due
        self._sync(configs=configs, acls=acls)

    def _sync(self, *, configs: bool, acls: bool) -> None:
        """Syncs configuration, or what mirroring needs of it, and access rights; soon again after what may pass."""
        try:
            self._topology.sync(self._topics, configs=configs, acls=acls)
        except MirrorlakeError as error:
            if not (error.retriable or isinstance(error, LedgerError)):
                raise
            log.warning(event("topics_not_in_step", flow=self.flow.name, error=error))
            self._metrics.retries.labels(self.flow.name, type(error).__name__).inc()
            soon = time.monotonic() + SYNC_AGAIN_S
            self._configs_due = min(self._configs_due, soon) if configs else self._configs_due
            self._acls_due = min(self._acls_due, soon) if acls else self._acls_due

    def _follow_file(self) -> None:
        """Takes over changes of the property file; the planner reports them, when its plans follow them."""
        if self._poll_file():
            self._topology.flow = self.flow

    def _poll_file(self) -> list[Notice]:
        """Hands changes of the property file to all that have the flow since the job was made; returns what to tell."""
        notices = self._live.poll()
        if notices:
            self._keeper.flow = self._lag_keeper.flow = self._progress.flow = self.flow
        return notices

    # -- one micro-batch ----------------------------------------------------------------------------

    def _mirror(self, plan: MirrorPlan, tasks: CopyTasks, number: int, clock: Stopwatch) -> HandledPlan:
        """Handles one plan of the engine."""
        self._follow_file()  # a run without an interval is not tended in between
        self._look_into(plan)
        unfit, copying = self._topology.unfit, plan.copying
        plan = plan.without(unfit)
        left_out = copying - plan.copying
        if not plan.ranges:
            return HandledPlan(waited=left_out, unfit=unfit)
        began_ms = 1000 * time.time()
        batch = MicroBatch(
            flow=self.flow, generation=self._generation, target=self._target, gate=self._gate, failpoint=self._failpoint
        )
        if self._waits_for_records:
            plan = self._slow_slots.shortened(plan)
        outcome = batch.run(plan, tasks, self._progress.cycle_id(number), clock=clock, evaluated=self._note_results)
        if outcome.committed:
            stages_ms = stages(plan.plan_ms, clock, outcome.committed)
            self._slow_slots.observe(outcome.committed, stages_ms)
            self._progress.committed(number, self._generation, outcome.committed, stages_ms, began_ms)
            self._mm2.offset_syncs(run for report in outcome.committed for run in report.runs)
        if outcome.failures:
            if any(failure.contested for failure in outcome.failures):
                self._giving_way.pause()
            if any(failure.out_of_step for failure in outcome.failures):
                self._sync(configs=True, acls=False)
            worst = max(outcome.failures, key=lambda failure: not failure.retriable)
            if not (worst.retriable and outcome.committed):
                self._telemetry.health.failed(worst)
                raise worst
            log.warning(
                event(
                    "slots_failed",
                    flow=self.flow.name,
                    generation=self._generation,
                    batch=number,
                    failed=len(outcome.failures),
                    committed=len(outcome.committed),
                    error=worst,
                )
            )
            self._metrics.retries.labels(self.flow.name, type(worst).__name__).inc()
        return HandledPlan(
            {report.slot for report in outcome.committed}, outcome.waited | left_out, self._topology.unfit
        )

    def _look_into(self, plan: MirrorPlan) -> None:
        """Handles the parts of a plan besides its ranges.

        Raises:
            MirrorlakeError: planning failed, the plan is of a newer generation, or no topic can be mirrored.
        """
        if plan.error:
            self._telemetry.health.failed(plan.error)
            raise plan.error
        if plan.generation > self._generation:
            raise fenced(self.flow, self._generation, plan.generation)
        if plan.generation < self._generation:  # all opening states could be read before the first plan
            raise TargetError(
                f"flow {self.flow.name}: {self.flow.offset_syncs_topic} on cluster {self.flow.target} went back from "
                f"generation {self._generation} to {plan.generation}, so the cluster has lost records of the topic, or "
                "a broker that is not the leader any more has answered. Nothing was copied. Restore these records, "
                "then start the job again",
                retriable=True,
            )
        self._paused(plan.paused)
        if plan.is_lingering and not plan.ranges:
            self._telemetry.health.progressed()  # it waits as it was told
        self._progress.planned(plan.lag)
        self._tell(plan.notices)
        if plan.paused is None:
            if plan.retry != self._retried:
                # A remote topic may be gone, and is created again: with what it had, if the flow may lose records.
                self._topology.try_again(plan.held if self.flow.passes_over_losses else plan.not_begun)
            self._retried = plan.retry
            self._topology.foreign = plan.foreign
            self._ensure_topics(dict(plan.topics), plan.held, plan.passing)
        self._holdups.partitions(plan.stuck)
        self._holdups.transactions(plan.uncommitted, plan.waiting_for)
        self._failpoint("driver.planned")

    def _tell(self, notices: Iterable[Notice]) -> None:
        """Logs changes of the property file."""
        for notice in notices:
            level = logging.WARNING if notice.is_warning else logging.INFO
            log.log(level, event(notice.event, flow=self.flow.name, detail=notice.detail))

    def _note_results(self, results: list[ExpectationResult]) -> None:
        self._keeper.note("expectation_results", results)

    def _append_anomalies(self, rows: Sequence[Anomaly]) -> None:
        for row in rows:
            self._metrics.anomalies.labels(self.flow.name, row.kind).inc()
        self._keeper.append("anomalies", rows)
