"""The checkpoint job: syncs consumer groups to their exact offsets on the target, and records their history.

In each cycle, the job reads the committed offsets of groups on the source and translates them
(`translation/group_cache.py`). It evaluates the expectations on the result. It then commits offsets for groups without
members on the target, and appends changes to `checkpoints`.

Guaranteed: a group that continues at a committed offset with status `exact` reads every record that it had not read,
and no other. A `clamped` offset skips nothing either. The group would read records past the mirrored end again, once
they are mirrored, unless a later cycle advances it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake import errors
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.reload import GroupsFlow
from mirrorlake.errors import GateError, LedgerError, MirrorlakeError, first_line
from mirrorlake.gate import Gate, require
from mirrorlake.jobs.checkpoint.brought_topics import BroughtTopics
from mirrorlake.jobs.checkpoint.cycle_counts import CycleCounts
from mirrorlake.jobs.checkpoint.cycle_rows import CycleRows
from mirrorlake.jobs.checkpoint.cycles import CycleRun, Cycles, SparkCycles
from mirrorlake.jobs.checkpoint.gate_frame import gate_frame
from mirrorlake.jobs.checkpoint.group_sync import GroupSync
from mirrorlake.jobs.checkpoint.history import History
from mirrorlake.jobs.checkpoint.unread import Unread, reasons
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.ledger.journal import Cycle, CycleJob, Journal
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import Metrics, of_process
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.protocol import mm2_topics
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.mm2_topics import Mm2Topic
from mirrorlake.reasons import PositionReason
from mirrorlake.spare_memory import SpareMemory
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state.closure import require_open_to_groups
from mirrorlake.state.pause import LOOK_S, Pause, PauseWatch
from mirrorlake.telemetry.job_telemetry import JobTelemetry
from mirrorlake.translation.group_cache import GroupTranslation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointResult:
    """The result of a run; `statuses` and `syncs` count the positions of the last cycle. With `paused`, that cycle has
    moved no group."""

    flow: str
    cycles: int
    groups: int
    positions: int
    statuses: dict[str, int]
    syncs: dict[str, int]
    rows: int
    seconds: float
    paused: Pause | None = None

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        paused = self.paused.to_json() if self.paused else None
        return values | {"seconds": round(self.seconds, 3), "paused": paused}


class CheckpointJob:
    """Translates and syncs the groups of one flow until it is stopped.

    Args:
        spark: a session with Delta. None: only positions near the end of a log are translated, and the others wait.
        config: path of the property file, which Spark's workers read too.
        flow: the flow of that file.
        ledger: tables with the runs, and for the history; in memory for a job without Spark.
        suite: path of the expectations for checkpoints.
        metrics: metrics to update; None for those of the process.
        cycles: reads the committed offsets of groups; None for a streaming query of `spark`.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        config: str,
        flow: Flow,
        ledger: Ledger | MemoryLedger,
        suite: str,
        metrics: Metrics | None = None,
        cycles: Cycles | None = None,
    ) -> None:
        self.spark, self.config, self.flow, self.ledger = spark, config, flow, ledger
        self._metrics = metrics or of_process()
        self._cycles = cycles or SparkCycles(spark)  # type: ignore[arg-type]  # they need a session
        self._gate = Gate(suite, self._metrics)
        self._telemetry = JobTelemetry(flow, "checkpoint", self._metrics, self._gate.name)
        self._journal = Journal(ledger)
        self._spare_memory = SpareMemory(is_driver=True)
        self._job_id = uuid.uuid4().hex[:8]
        self._history = History(ledger, flow)
        self._counts = CycleCounts(flow, self._telemetry, self._metrics)
        self._unread = Unread()
        self._pause_watch = PauseWatch(holds_s=LOOK_S)
        self._pause: Pause | None = None
        self._is_emitted = False
        self._file = GroupsFlow(config, flow)
        self._stopping = threading.Event()
        self._checkpoints = Mm2Topic(
            flow.target_connection,
            flow.policy.checkpoints_topic(),
            flow.checkpoints_replication_factor,
            flow.name,
        )

    def run(self, interval_s: float | None, run_for_s: float | None = None) -> CheckpointResult:
        """Runs one cycle, or a cycle in each interval.

        Args:
            interval_s: seconds between two cycles; None for one cycle.
            run_for_s: seconds after which to stop; None to run until interrupted.

        Raises:
            ConfigurationError: the flow was failed over or handed back.
            MirrorlakeError: the error that ended the run; its class tells who has to act.
        """
        with ending(log, "checkpoint", flow=self.flow.name), self._telemetry:
            result = self._run(interval_s, run_for_s)
        log.info(
            event(
                "checkpoint_finished",
                flow=result.flow,
                cycles=result.cycles,
                groups=result.groups,
                positions=result.positions,
                rows=result.rows,
                seconds=round(result.seconds, 3),
            )
        )
        return result

    def stop(self) -> None:
        """Ends the run after the cycle under way; may be called from another thread."""
        self._stopping.set()
        self._cycles.stop()

    def _run(self, interval_s: float | None, run_for_s: float | None) -> CheckpointResult:
        began = time.monotonic()
        flow = self.flow
        for warning in flow.warnings:
            log.warning(event("configuration_warning", flow=flow.name, detail=warning))
        starting = Retries.of_start(flow, self._stopping.wait, self._metrics)
        self._target = starting.repeat(lambda: self._connected(flow.target_connection, "target"))
        try:
            starting.repeat(lambda: self._connected(flow.source_connection, "source")).close()
            starting.repeat(self._prepare)
            self._telemetry.health.ready()
            with self.ledger.checkpoint("checkpoint") as checkpoint:
                self._cycles.run(
                    CycleRun(
                        config=self.config,
                        flow=flow,
                        name=f"checkpoint {flow.name} {self._job_id}",
                        checkpoint=checkpoint,
                        interval_s=interval_s,
                        run_for_s=run_for_s,
                        handle=self._cycle,
                        metrics=self._metrics,
                    )
                )
        except BaseException:
            with contextlib.suppress(Exception):  # the error of the job is the one to tell of
                self._journal.write()
            if waiting := self._journal.waiting():
                log.warning(event("ledger_rows_missing", flow=flow.name, rows=waiting))
            raise
        finally:
            self._target.close()
        self._journal.write()
        counts = self._counts
        return CheckpointResult(
            flow=flow.name,
            cycles=counts.cycles,
            groups=counts.groups,
            positions=sum(counts.statuses.values()),
            statuses=dict(counts.statuses),
            syncs=dict(counts.syncs),
            rows=counts.rows,
            seconds=time.monotonic() - began,
            paused=self._pause,
        )

    def _connected(self, connection: Connection, side: str) -> Cluster:
        return Cluster(connection, side, f"{self.flow.name}|checkpoint", self.flow.connect_timeout_ms).connect()

    def _prepare(self) -> None:
        """Checks all preconditions, and reads what earlier jobs have recorded."""
        require_open_to_groups(self.flow, self._target)
        self.ledger.ensure_tables()
        self._translation = GroupTranslation(self.ledger, self.flow, self._target)
        self._sync = GroupSync(self.flow, self._target, self._translation.log_starts)
        self._brought = BroughtTopics(self.config, self.flow, self._target)
        self._translation.prime()
        self._history.recall()

    # -- one cycle ----------------------------------------------------------------------------------

    def _cycle(self, session: SparkSession | None, read: list[dict[str, Any]], batch_id: int) -> None:
        clock = Stopwatch()
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in read:
            if row["error"]:
                raise errors.from_json(json.loads(row["error"]))
            rows.setdefault(row["kind"], []).append(row)
        clock.lap("read")
        cycle_id = f"{self._job_id}-{batch_id}"
        now = self._history.next_time(datetime.now(UTC).replace(tzinfo=None))
        shared = sorted(row["group_id"] for row in rows.get("share", ()))
        listed = {row["group_id"] for row in rows.get("group", ())}
        unread = Unread.of(rows.get("unread", ()), listed)
        unread.require_some(len(rows.get("log", ())))
        offsets = [row for row in rows.get("offset", ()) if (row["topic"], row["partition"]) not in unread.partitions]
        found = self._translation.translate(session, offsets, rows.get("log", ()))
        translated = [row for row in found if row["downstream_offset"] is not None]
        made = CycleRows(self.flow, cycle_id, now, self._brought)
        checkpoints = made.translated(translated) + made.without_place(
            row for row in found if row["downstream_offset"] is None
        )
        history = self._history
        history.forget_lost_targets(self._translation, session)
        clock.lap("translate")
        if translated:
            self._pass_gate(translated, cycle_id)
        clock.lap("gate")
        self._look_for_pause()
        read_keys = {(row["group_id"], row["topic"], row["partition"]) for row in offsets}
        kept = self._kept(read_keys, unread, cycle_id, now)
        synced = [*self._sync.sync(checkpoints, history, is_paused=self._pause is not None), *kept]
        clock.lap("sync")
        alive = {row["group_id"] for row in rows.get("offset", ())} | {row.group_id for row in kept} | {*shared}
        gone = history.gone(alive)
        ended = history.ended({row.key for row in synced}, {*gone})
        # A deletion ends all rows up to its time, so it stands before the new positions.
        before = replace(made, now=now - timedelta(microseconds=1))
        returned = history.returned(shared, alive)
        whole = [
            *before.about([(group, None, None) for group in returned], Status.DELETED, PositionReason.SHARED_NO_MORE),
            *made.about([(group, None, None) for group in shared], Status.NOT_COVERED, PositionReason.SHARE_GROUP),
            *made.about([(group, None, None) for group in gone], Status.DELETED, PositionReason.GROUP_GONE),
            *made.about(ended, Status.DELETED, PositionReason.OFFSET_GONE),
        ]
        changed = [row for row in [*synced, *whole] if not row.says_the_same_as(history.known.get(row.key))]
        with _repeated_by_the_next_cycle(self._sync.again):
            self.ledger.append("checkpoints", changed)
        if self._pause is None:
            self._is_emitted = self._emit(changed if self._is_emitted else synced, now)
        else:
            self._is_emitted = False  # all positions are due after the pause
        clock.lap("append")
        earlier = history.known if self._counts.cycles == 0 else {}
        history.note(synced, whole, gone)
        self._counts.count(len(listed), synced, rows=len(changed), batch_id=batch_id, seconds=clock.total_ms / 1000)
        self._counts.measure(clock, synced, earlier, is_paused=self._is_paused)
        cycle = Cycle(
            self.flow.source,
            self.flow.target,
            CycleJob.CHECKPOINT,
            cycle_id,
            duration_ms=clock.total_ms,
            stages_ms=clock.laps_ms,
            positions=len(synced),
            unfinished=self._counts.statuses[Status.CLAMPED],
        )
        self._journal.note("cycles", [cycle])
        with _repeated_by_the_next_cycle():
            self._journal.write_if_due()
        for notice in self._file.poll():
            log.warning(event("configuration_deferred", flow=self.flow.name, detail=notice.detail))
        self._spare_memory.give_back_if_due()

    def _kept(self, keys: set[GroupKey], unread: Unread, cycle_id: str, now: datetime) -> list[Checkpoint]:
        """Returns the last rows of the positions that are missing only because the source does not tell them.

        Args:
            keys: the positions that were read in this cycle.
            unread: what the source did not tell.
            cycle_id: the id of the cycle.
            now: the time of the cycle.
        """
        missing = {
            key: row
            for key, row in self._history.known.items()
            if key not in keys and row.topic is not None and row.status is not Status.DELETED
        }
        found, unread = reasons(self.flow, missing, unread)
        unread.log_since(self._unread, self.flow)
        self._unread = unread
        sync = SyncOutcome.HELD if self.flow.sync_group_offsets_enabled else SyncOutcome.OFF
        return [
            replace(missing[key], sync=sync, reason=reason, source_lag=None, cycle_id=cycle_id, created_at=now)
            for key, reason in found.items()
        ]

    def _pass_gate(self, translated: list[dict[str, Any]], cycle_id: str) -> None:
        consequence = "no group was touched"
        try:
            results = self._gate.evaluate(gate_frame(translated, self._history.known), self.flow.name, cycle_id)
        except MirrorlakeError:
            raise
        except Exception as error:
            raise GateError(
                f"flow {self.flow.name}, cycle {cycle_id}: the gate could not be evaluated ({first_line(error)}); "
                f"{consequence}"
            ) from error
        self._journal.note("expectation_results", results)
        require(results, f"flow {self.flow.name}, cycle {cycle_id}", consequence)

    def _look_for_pause(self) -> None:
        """Reads whether an operator has paused the flow, and says it when that changes.

        Positions are still recorded then, so that a failover with a dead source can use them.
        """
        before, self._pause = self._pause, self._pause_watch.look(self._target, self.flow)
        if self._pause is not None and self._pause != before:
            log.warning(event("flow_paused", flow=self.flow.name, detail=str(self._pause), effect="no group is moved"))
        elif self._pause is None and before is not None:
            log.info(event("flow_resumed", flow=self.flow.name))

    def _is_paused(self, topic: str) -> bool:
        """Returns True if an operator has paused the flow, or the property file, as it is by now, the topic."""
        return self._pause is not None or self._file.newest.is_paused(topic)

    def _merged(self, rows: Iterable[Checkpoint]) -> set[tuple[str, str | None, int | None]]:
        """Returns groups and remote partitions into which several topics are merged that the group reads."""
        if self.flow.policy.keeps_topics_apart or not self.flow.topics_shared:
            return set()  # of two topics with one remote name, the flow holds one
        topics: dict[tuple[str, str | None, int | None], set[str | None]] = {}
        for row in (*self._history.known.values(), *rows):
            topics.setdefault((row.group_id, row.target_topic, row.target_partition), set()).add(row.topic)
        return {place for place, of in topics.items() if len(of) > 1}

    def _emit(self, rows: Sequence[Checkpoint], now: datetime) -> bool:
        """Writes MirrorMaker 2's checkpoints topic: all positions in the first cycle and after a failure, then changes
        only.

        A group that reads several topics which are merged into one has no single offset there, and gets none.
        """
        if not self.flow.emit_checkpoints_enabled:
            return True
        timestamp_ms = int(now.replace(tzinfo=UTC).timestamp() * 1000)
        merged = self._merged(rows)
        known = [
            row
            for row in rows
            if row.downstream_offset is not None
            and row.upstream_offset is not None
            and row.target_topic is not None
            and (row.group_id, row.target_topic, row.target_partition) not in merged
        ]
        records = [
            mm2_topics.checkpoint(
                row.group_id,
                str(row.target_topic),
                target_partition=int(row.target_partition or 0),
                upstream_offset=int(row.upstream_offset or 0),
                downstream_offset=int(row.downstream_offset or 0),
                metadata=row.metadata or "",
            )
            for row in known
        ]
        return not records or self._checkpoints.write([(key, value, timestamp_ms) for key, value in records])


@contextlib.contextmanager
def _repeated_by_the_next_cycle(prepare: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lets an error of the ledger pass for a while: the next cycle finds the groups in step, and writes their rows."""
    try:
        yield
    except LedgerError as error:
        prepare()
        raise LedgerError(error.message, retriable=True) from None
