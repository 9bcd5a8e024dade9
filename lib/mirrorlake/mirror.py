"""The mirror job: plan, copy, gate, commit, ledger, in that order, over and over.

The driver's part of the exactly-once protocol. For each micro-batch:

1. **Plan.** `kafka_ranges` says which offsets each slot should copy (no side effects).
2. **Copy.** One Spark task for each slot copies them into an open transaction and returns what it did.
3. **Gate.** The runs of all slots are held against the expectations, with the transactions still open. No Delta write happens now.
4. **Commit.** The driver ends the transactions itself. That is the only commit point there is.
5. **Ledger.** A stream of its own appends the offset-syncs topic to Delta.

Guaranteed: a read_committed reader of the target sees every record of the source once, in order per partition, whatever is killed when;
of two jobs for one flow, the older one stops. Not guaranteed: atomicity over slots (each slot commits by itself), and anything to
readers of uncommitted data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake import errors, mm2, offset_syncs, runs_frame, transaction
from mirrorlake.admin import Admin
from mirrorlake.batches import Batches
from mirrorlake.copy import Report, copy_slot, fenced, require_newest
from mirrorlake.errors import ConfigurationError, FencedError, GateError, LedgerError, MirrorlakeError, SourceError, TargetError, first_line
from mirrorlake.failpoint import from_specification
from mirrorlake.flow import Flow
from mirrorlake.gate import ExpectationResult, Gate, require
from mirrorlake.generation import Beginning, begin_generation
from mirrorlake.kafka_ranges import KafkaRanges
from mirrorlake.ledger import Ledger
from mirrorlake.live import LiveFlow
from mirrorlake.plan import Range
from mirrorlake.provenance import Provenance
from mirrorlake.slot import Position
from mirrorlake.start import Spec, find_starts
from mirrorlake.topology import Topology
from mirrorlake.wire import UNKNOWN_TOPIC, Cluster, ResponseError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

END_TIMEOUT_MS = 30_000
RESULTS_AT_ONCE = 1_000
HISTORY = 1_000  # micro-batches that are remembered for the picture
REPORT_SCHEMA = "slot INT, report STRING, error STRING"


@dataclass(frozen=True)
class Progress:
    """One micro-batch: what was committed, and how long each step took. `lag` counts source offsets still to be mirrored."""

    batch: int
    finished_at: datetime
    records: int
    bytes: int
    runs: int
    partitions: int
    lag: int
    seconds: float
    stages_ms: dict[str, float]

    def __str__(self) -> str:
        rate = self.records / self.seconds if self.seconds else 0.0
        stages = ", ".join(f"{name} {value / 1000:.2f}" for name, value in self.stages_ms.items())
        return (
            f"batch {self.batch}: {self.records:,} records of {self.partitions} partitions in {self.seconds:.2f} s "
            f"({rate:,.0f}/s, {self.bytes / max(self.seconds, 1e-9) / 1e6:.1f} MB/s), lag {self.lag:,} [{stages}]"
        )


@dataclass(frozen=True)
class MirrorResult:
    """What a run of the job has done; `history` has its last micro-batches."""

    flow: str
    generation: int
    batches: int
    records: int
    bytes: int
    lag: int
    seconds: float
    history: tuple[Progress, ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("flow", "generation", "batches", "records", "bytes", "lag")} | {"seconds": round(self.seconds, 3)}


class MirrorJob:
    """Mirrors one flow until it is told to stop.

    Args:
        spark: a classic session (not Connect) with Delta and the Kafka source; speculation must be off.
        config: the property file, which the planning process reads too.
        flow: the flow of that file.
        ledger: where history goes.
        suite: path of the expectations for offset syncs.
        say: called with a line of progress.
        failpoint: where to die, in tests (`mirrorlake.failpoint`).
    """

    def __init__(
        self, spark: SparkSession, config: str, flow: Flow, ledger: Ledger, suite: str | Path,
        say: Callable[[str], None] = print, failpoint: str = "",
    ) -> None:  # fmt: skip
        self.spark, self.config, self.ledger = spark, config, ledger
        self._live = LiveFlow(config, flow)
        self._gate = Gate(suite)
        self._say, self._fails_at, self._failpoint = say, failpoint, from_specification(failpoint)
        self._history: deque[Progress] = deque(maxlen=HISTORY)
        self._totals = Counter[str]()
        self._results: list[ExpectationResult] = []
        self._lag = 0
        self._ledger_query: StreamingQuery | None = None
        self._topics: dict[str, int] = {}
        self._held: dict[str, str] = {}
        self._compacted: set[str] = set()
        self._configs_due = time.monotonic() + flow.sync_topic_configs_interval_s
        self._acls_due = time.monotonic() + flow.sync_topic_acls_interval_s
        self._mm2 = mm2.Emitter(flow, say)
        self._places = contextlib.ExitStack()
        self._job_id = uuid.uuid4().hex[:8]

    @property
    def flow(self) -> Flow:
        """The flow, with what may change while the job runs."""
        return self._live.flow

    # -- the whole run -------------------------------------------------------------------------------------------------------

    def run(self, interval_s: float | None, run_for_s: float | None = None) -> MirrorResult:
        """Runs until everything that the source had at the start is mirrored (`interval_s` is None), or for `run_for_s`, or until it is
        interrupted; `interval_s` is the time between two micro-batches.

        Raises:
            MirrorlakeError: of the kind that says who has to act. What was committed before stays committed; nothing is left open.
        """
        began = time.monotonic()
        for warning in self.flow.warnings:
            self._say(f"warning: {warning}")
        self._prepare()
        batches = Batches(self._mirror, self.flow.retry_timeout_ms / 1000, self._say)
        failure: MirrorlakeError | None = None
        try:
            plans, place = self._plans(until_now=interval_s is None), self._places.enter_context(self.ledger.checkpoint("mirror"))
            batches.run(plans, f"mirror {self.flow.name} {self._job_id}", place, interval_s, run_for_s, self._tend)
        except MirrorlakeError as error:
            failure = error
            self._note(error)
            raise
        finally:
            self._finish_ledger(failure)
            self._places.close()
            self._store_results()
            self._source.close()
            self._target.close()
        totals = self._totals
        return MirrorResult(
            self.flow.name, self._generation, totals["batches"], totals["records"], totals["bytes"], self._lag, time.monotonic() - began, tuple(self._history)
        )

    def _prepare(self) -> None:
        """Checks everything that can be checked, then creates what is missing and takes the flow over."""
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        if self.spark.conf.get("spark.speculation", "false") == "true":
            raise ConfigurationError("spark.speculation is on: two attempts of one task would fence each other for ever. Set it to false for this job")
        client_id = f"{flow.name}|driver"
        self._source = Cluster(flow.source_connection, "source", client_id, timeout_ms).connect()
        self._target = Cluster(flow.target_connection, "target", client_id, timeout_ms).connect()
        if self._source.cluster_id == self._target.cluster_id and not flow.same_cluster_allowed:
            raise ConfigurationError(
                f"flow {flow.name}: {flow.source} and {flow.target} are the same Kafka cluster (id {self._source.cluster_id}). Correct one of the bootstrap.servers, "
                "or set mirrorlake.same.cluster.allowed = true if it is meant"
            )
        transaction.require_transactions(self._target, timeout_ms, flow.transactional_id(0))
        self.ledger.ensure_tables()
        found = {name: topic for name, topic in self._source.refresh(None, timeout_ms).items() if flow.mirrors_topic(name)}
        topics = {name: topic.partitions for name, topic in found.items()}
        remote_topics = flow.remote_topics(topics)
        if self._source.cluster_id == self._target.cluster_id:
            unmoved = [topic for topic, remote in remote_topics.items() if topic == remote]
            if unmoved:
                raise ConfigurationError(
                    f"flow {flow.name}: topic {unmoved[0]} would be mirrored into itself, as both are the same cluster and its name stays. Rename it, or exclude it"
                )
        slots = flow.slots_on(self.spark.sparkContext.defaultParallelism)
        self._source_admin = Admin(flow.source_connection, "source", flow.name)
        self._topology = Topology(flow, self._source_admin, Admin(flow.target_connection, "target", flow.name), self.ledger, self._say)
        self._sync_partitions = self._topology.ensure_offset_syncs(slots)
        self._ensure_topics(topics)
        self._topology.sync(topics, configs=flow.sync_topic_configs_enabled, acls=flow.sync_topic_acls_enabled)
        self._target.call(f"waiting for topic {flow.offset_syncs_topic}", self._see_offset_syncs, timeout_ms)
        self._generation = begin_generation(
            flow, self._source.cluster_id, self._target, slots, lambda known: Beginning() if known else Beginning(tuple(self._first_positions(found)))
        )
        self._say(f"flow {flow.name}: generation {self._generation}, {slots} slots, {len(topics)} topics with {sum(topics.values())} partitions")

    def _first_positions(self, topics: Mapping[str, Topic]) -> Iterator[Position]:
        """Where partitions start that are there when the flow starts for the first time, as far as that has to be remembered."""
        start = self.flow.start
        specs = {(name, partition): start.of(name, is_first=True) for name, topic in topics.items() for partition in topic.leaders}
        wanted = {key: spec for key, spec in specs.items() if spec != Spec() or not start.is_earliest_always}
        for (name, partition), offset in find_starts(self._source, wanted, self.flow.connect_timeout_ms).items():
            yield Position(name, partition, topics[name].topic_id, self.flow.policy.remote_topic(name), partition, offset, 0, 0)

    async def _see_offset_syncs(self) -> None:
        """A topic that was just created takes a moment to reach every broker."""
        topic = self.flow.offset_syncs_topic
        found = await self._target.update_metadata([topic])
        if topic not in found or found[topic].partitions < self._sync_partitions or -1 in found[topic].leaders.values():
            raise ResponseError(UNKNOWN_TOPIC, topic)

    def _plans(self, *, until_now: bool) -> DataFrame:
        self.spark.dataSource.register(KafkaRanges)
        reader = self.spark.readStream.format("kafka_ranges").option("config", self.config).option("flow", self.flow.name)
        return (reader.option("until", "now") if until_now else reader).load()

    def _start_ledger(self, interval_s: int | None) -> StreamingQuery:
        return self.ledger.stream_offset_syncs(self.flow, self._sync_partitions, interval_s, self._places.enter_context(self.ledger.checkpoint("ledger")))

    def _finish_ledger(self, failure: MirrorlakeError | None) -> None:
        """Appends what is still missing in the ledger, unless a newer job has it now; trouble here must not hide why the job has failed."""
        if self._ledger_query is not None:
            self._ledger_query.stop()
        if isinstance(failure, FencedError):
            return
        try:
            self._start_ledger(None).awaitTermination()
        except Exception as error:
            problem = LedgerError(f"flow {self.flow.name}: the ledger can't be brought up to date: {first_line(error)}. What is committed on the target stays correct")
            if failure is None:
                raise problem from None
            self._say(f"warning: {problem.message}")
        self._failpoint("driver.ledger")

    def _ensure_topics(self, topics: dict[str, int], held: Mapping[str, str] | None = None) -> None:
        """Makes remote topics ready. What holds back one topic is said and written down, and the others go on.

        Raises:
            TargetError: no topic can be mirrored.
        """
        failures = {topic: error.message for topic, error in self._topology.ensure(topics).items()} | dict(held or {})
        if topics and len(failures) == len(topics):
            raise TargetError(next(iter(failures.values())))
        new = {topic: why for topic, why in failures.items() if self._held.get(topic) != why}
        for topic, why in new.items():
            self._say(f"warning: topic {topic} is held back, the others go on: {why}")
        for topic in self._held.keys() - failures.keys():
            self._say(f"topic {topic} is mirrored again")
        self._held, self._topics = failures, topics
        self.ledger.append("anomalies", [self._anomaly(kind="held", topic=topic, detail=why, action="the others go on") for topic, why in new.items()])

    def _anomaly(self, **values: object) -> dict[str, object]:
        """A row of the table anomalies."""
        return {"source": self.flow.source, "target": self.flow.target, "detected_at": datetime.now(UTC).replace(tzinfo=None), **values}

    def _tend(self) -> None:
        """What is done beside the micro-batches: the ledger stream, and keeping topics in step."""
        self._keep_ledger()
        if self._live.poll():  # the planner says what has changed, once its plans follow it
            self._topology.flow = self.flow
        now, flow = time.monotonic(), self.flow
        self._mm2.heartbeats_if_due()
        configs = flow.sync_topic_configs_enabled and now >= self._configs_due
        acls = flow.sync_topic_acls_enabled and now >= self._acls_due
        if not (configs or acls):
            return
        self._configs_due = now + flow.sync_topic_configs_interval_s if configs else self._configs_due
        self._acls_due = now + flow.sync_topic_acls_interval_s if acls else self._acls_due
        try:
            self._topology.sync(self._topics, configs=configs, acls=acls)
        except MirrorlakeError as error:
            if not error.retriable:
                raise
            self._say(f"warning: {error.message} (topics are kept in step again later)")

    def _keep_ledger(self) -> None:
        """Starts the ledger stream once the mirror is on its way, and notices when it has ended."""
        if self._ledger_query is None and self.flow.ledger_interval_s:
            self._ledger_query = self._start_ledger(self.flow.ledger_interval_s)
        elif self._ledger_query is not None and not self._ledger_query.isActive:
            raise LedgerError(f"flow {self.flow.name}: the ledger stream has ended: {first_line(self._ledger_query.exception())}")

    # -- one micro-batch -----------------------------------------------------------------------------------------------------

    def _mirror(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = frame.collect()
        if not self._has_work(rows):
            return
        planned_at = time.monotonic()
        reports, failures = self._copy(frame, rows)
        copied_at = time.monotonic()
        self._failpoint("driver.copied")
        cycle_id = f"{self._job_id}-{batch_id}"
        moved = [report for report in reports if report.is_open]
        if moved:
            self._pass_gate(moved, cycle_id)
        gated_at = time.monotonic()
        self._failpoint("driver.gated")
        committed = [report for report in moved if self._commit(report, failures)]
        self._failpoint("driver.committed")
        done = time.monotonic()
        if committed:
            times = {"plan": planned_at - began, "copy": copied_at - planned_at, "gate": gated_at - copied_at, "commit": done - gated_at}
            self._report(batch_id, committed, done - began, {name: 1000 * value for name, value in times.items()})
            self._mm2.offset_syncs(run for report in committed for stretch in report.stretches for run in stretch["runs"])
        self._store_results(at_least=RESULTS_AT_ONCE)
        if failures:
            worst = max(failures, key=lambda failure: not failure.retriable)
            if not (worst.retriable and committed):
                raise worst
            self._say(f"warning: {worst.message} (the other slots went on; it is tried again)")

    def _has_work(self, rows: Sequence[Any]) -> bool:
        """Takes notice of what a plan says besides its ranges; True if there is something to copy.

        Raises:
            MirrorlakeError: the plan could not be made, or is that of a newer job, or no topic can be mirrored.
        """
        detail = next(json.loads(row["detail"]) for row in rows if row["kind"] == "plan")
        if detail["error"]:
            raise errors.from_json(detail["error"])
        generation = rows[0]["generation"]
        if generation > self._generation:
            raise fenced(self.flow, self._generation, generation)
        if generation < self._generation:
            return False  # made from the state before this job took over
        self._lag = detail["lag"]
        for line in detail["notes"]:
            self._say(line)
        self._ensure_topics({row["topic"]: row["partitions"] for row in rows if row["kind"] == "topic"}, detail["held"])
        self._failpoint("driver.planned")
        return any(row["kind"] == "range" for row in rows)

    def _copy(self, frame: DataFrame, rows: Sequence[Any]) -> tuple[list[Report], list[MirrorlakeError]]:
        """Runs one task for each slot. On any loss of a task, every slot of the plan is aborted before this returns."""
        slots = {row["slot"] for row in rows if row["kind"] == "range"}
        task = copy_task(self.flow, rows[0]["slots"], self._generation, self._fails_at)
        try:
            answers = frame.filter("kind = 'range'").mapInArrow(task, REPORT_SCHEMA).collect()
        except Exception as error:
            self._abort(slots)
            raise TargetError(f"flow {self.flow.name}: a copy task was lost: {first_line(error)}", retriable=True) from None
        reports = [Report(**json.loads(answer["report"])) for answer in answers if answer["report"]]
        failures = [errors.from_json(json.loads(answer["error"])) for answer in answers if answer["error"]]
        if sorted(answer["slot"] for answer in answers) != sorted(slots):
            self._abort(slots)
            raise MirrorlakeError(
                f"flow {self.flow.name}: slots {sorted(slots)} were planned but {sorted(answer['slot'] for answer in answers)} answered; nothing was committed"
            )
        fatal = next((failure for failure in failures if isinstance(failure, FencedError)), next((failure for failure in failures if not failure.retriable), None))
        if fatal is not None:
            for report in reports:
                if report.is_open:
                    transaction.end(self._target, report.producer, commit=False, timeout_ms=END_TIMEOUT_MS)
            if not isinstance(fatal, FencedError):
                self._abort(slots - {report.slot for report in reports})
            raise fatal
        return reports, failures

    def _pass_gate(self, reports: list[Report], cycle_id: str) -> None:
        try:
            self._name_holes(reports)
            results = self._gate.evaluate(runs_frame.frame(reports), self.flow.name, cycle_id)
            self._results += results
            require(results, f"flow {self.flow.name}, micro-batch {cycle_id}", "the transactions were aborted, nothing became visible and no position moved")
        except Exception as error:
            for report in reports:
                transaction.end(self._target, report.producer, commit=False, timeout_ms=END_TIMEOUT_MS)
            self._store_results()
            if isinstance(error, MirrorlakeError):
                raise
            raise GateError(
                f"flow {self.flow.name}, micro-batch {cycle_id}: the gate could not be evaluated ({first_line(error)}); the transactions were aborted"
            ) from error

    def _name_holes(self, reports: list[Report]) -> None:
        """Compaction explains holes in the logs of compacted topics only; elsewhere records are gone, and the gate must see that."""
        stretches = [stretch for report in reports for stretch in report.stretches if any(gap[2] == "compacted" for gap in stretch["gaps"])]
        unknown = {stretch["topic"] for stretch in stretches} - self._compacted
        if unknown:
            policies = {
                topic: entries["cleanup.policy"].value or "" for topic, entries in self._source_admin.configs(sorted(unknown)).items() if "cleanup.policy" in entries
            }
            self._compacted |= {topic for topic in unknown if "compact" in policies.get(topic, "compact")}  # what may not be described is believed
        for stretch in stretches:
            if stretch["topic"] not in self._compacted:
                stretch["gaps"] = [(start, end, "hole" if reason == "compacted" else reason) for start, end, reason in stretch["gaps"]]

    def _commit(self, report: Report, failures: list[MirrorlakeError]) -> bool:
        """Ends one slot's transaction; True if it is committed. What EndTxn leaves open is read from the log."""
        outcome = transaction.end(self._target, report.producer, commit=True, timeout_ms=END_TIMEOUT_MS)
        self._failpoint("driver.committing")
        if outcome is transaction.Outcome.DECIDED:
            return True
        if offset_syncs.find_state(self._target, self.flow.offset_syncs_topic, report.slot, report.producer, self.flow.connect_timeout_ms):
            return True
        failures.append(
            TargetError(
                f"flow {self.flow.name}, slot {report.slot}: the transaction was aborted before it could be committed (it took longer than "
                f"mirrorlake.transaction.timeout.ms={self.flow.transaction_timeout_ms}, or another job began one); its records are copied again",
                retriable=True,
            )
        )
        return False

    def _abort(self, slots: set[int]) -> None:
        """Aborts whatever is open in these slots, so that nothing holds back readers; a cluster that is away does it by timeout.

        Raises:
            FencedError: the slots belong to a newer job, whose transactions are none of our business.
        """
        for slot in slots:
            try:
                require_newest(self._target, self.flow, slot, self._generation)
                transaction.begin(self._target, self.flow.transactional_id(slot), self.flow.transaction_timeout_ms, END_TIMEOUT_MS)
            except FencedError:
                raise
            except MirrorlakeError as error:
                self._say(f"warning: {error.message}")

    # -- what people see -----------------------------------------------------------------------------------------------------

    def _report(self, batch_id: int, reports: list[Report], seconds: float, stages_ms: dict[str, float]) -> None:
        stretches = [stretch for report in reports for stretch in report.stretches]
        runs = [run for stretch in stretches for run in stretch["runs"]]
        self._lag = max(0, self._lag - sum(stretch["upstream_next"] - stretch["upstream_from"] for stretch in stretches))
        progress = Progress(
            batch_id, datetime.now(UTC), sum(run["records"] for run in runs), sum(run["bytes"] for run in runs), len(runs), len(stretches), self._lag, seconds, stages_ms
        )
        self._history.append(progress)
        self._totals.update(batches=1, records=progress.records, bytes=progress.bytes)
        self._say(str(progress))

    def _note(self, error: MirrorlakeError) -> None:
        """Writes what stopped the flow to the anomalies; a ledger that can't be written must not hide the error itself."""
        if isinstance(error, SourceError | TargetError) and not error.retriable and not isinstance(error, FencedError):
            row = self._anomaly(**{"kind": "stopped", **error.anomaly}, detail=error.message, action="stop")
            try:
                self.ledger.append("anomalies", [row])
            except MirrorlakeError as second:
                self._say(f"warning: {second.message}")

    def _store_results(self, at_least: int = 0) -> None:
        """Appends the results that have come together, if there are that many: seldom, and never while a transaction is open."""
        if len(self._results) >= at_least:
            results, self._results = self._results, []
            self.ledger.append("expectation_results", results)


def copy_task(flow: Flow, slots: int, generation: int, failpoint: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of a Spark task: rows of ranges in, one row for the slot out (REPORT_SCHEMA). One Spark partition is one slot."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        names = [range_field.name for range_field in dataclasses.fields(Range)]
        ranges = [Range(**{name: row[name] for name in names}) for batch in batches for row in batch.to_pylist()]
        for slot in sorted({planned.slot for planned in ranges}):
            mine = [planned for planned in ranges if planned.slot == slot]
            answer = copy_slot(flow, lambda: worker_connections(flow), slot, slots, generation, mine, failpoint=from_specification(failpoint))
            report, error = (json.dumps(asdict(answer)), None) if isinstance(answer, Report) else (None, json.dumps(errors.to_json(answer)))
            if error:
                worker_connections.cache_clear()
            yield pa.RecordBatch.from_pydict(
                {"slot": pa.array([slot], pa.int32()), "report": pa.array([report], pa.string()), "error": pa.array([error], pa.string())},
            )

    return task


@lru_cache(maxsize=1)
def worker_connections(flow: Flow) -> tuple[Cluster, Cluster, Provenance | None]:
    """What this Spark worker keeps warm from one micro-batch to the next: both clusters, and what is known of who wrote what."""
    client_id = f"{flow.name}|copy"
    source = Cluster(flow.source_connection, "source", client_id, flow.connect_timeout_ms)
    target = Cluster(flow.target_connection, "target", client_id, flow.connect_timeout_ms, source.net)
    return source.connect(), target.connect(), Provenance(flow, source) if flow.minds_provenance else None
