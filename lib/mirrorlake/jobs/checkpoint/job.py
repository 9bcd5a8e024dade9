"""The checkpoint job: syncs consumer groups to their exact offsets on the target, and records their history.

In each cycle, the job reads the committed offsets of groups on the source and translates them
(`translation/group_cache.py`). It evaluates the expectations on the result. It then commits offsets for groups without
members on the target, and appends changes to `checkpoints`.

Guaranteed: a group that continues at a committed offset with status `exact` reads every record that it had not read,
and no other. A `clamped` offset skips nothing either. The group would read records past the mirrored end again, once
they are mirrored, unless a later cycle advances it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrorlake import errors
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.errors import GateError, MirrorlakeError, first_line
from mirrorlake.gate import Gate, require
from mirrorlake.jobs.checkpoint import target_groups
from mirrorlake.jobs.checkpoint.cycles import CycleRun, Cycles, SparkCycles
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.ledger.journal import Cycle, CycleJob, Journal
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import Metrics, count_age, of_process
from mirrorlake.model.gap import GapKind
from mirrorlake.model.status import SETTLED, Status, SyncOutcome
from mirrorlake.protocol import mm2_topics
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.mm2_topics import Mm2Topic
from mirrorlake.protocol.requests.metadata import DESCRIBE
from mirrorlake.reasons import PositionReason
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.timing import Stopwatch
from mirrorlake.state.closure import require_open_to_groups
from mirrorlake.state.pause import LOOK_S, Pause, PauseWatch
from mirrorlake.telemetry.job_telemetry import JobTelemetry
from mirrorlake.translation.group_cache import GroupTranslation

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

UNFINISHED = frozenset((Status.CLAMPED, Status.NOT_MIRRORED_YET, SyncOutcome.REFUSED, SyncOutcome.WAITING))


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


@dataclass
class _Counts:
    cycles: int = 0
    groups: int = 0
    rows: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)


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
        self._telemetry = JobTelemetry(flow, "checkpoint", self._metrics)
        self._unfinished_since: dict[GroupKey, float] = {}
        self._journal = Journal(ledger)
        self._job_id = uuid.uuid4().hex[:8]
        self._known: dict[GroupKey, Checkpoint] = {}
        self._settled: dict[GroupKey, Checkpoint] = {}
        self._sync_due = 0.0
        self._counts = _Counts()
        self._pause_watch = PauseWatch(holds_s=LOOK_S)
        self._pause: Pause | None = None
        self._is_emitted = False
        self._stopping = threading.Event()
        self._incarnations: dict[
            tuple[str, int], int
        ] = {}  # incarnations of partitions with resets, as of the last `_forget_lost_targets`
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
        starting = Retries(flow.connect_timeout_ms / 1000, self._stopping.wait, flow.name, self._metrics)
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
        self._admin = Admin(self.flow.target_connection, "target", self.flow.name)
        self.ledger.ensure_tables()
        self._translation = GroupTranslation(self.ledger, self.flow, self._target)
        self._translation.prime()
        self._recall()

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
        now = datetime.now(UTC).replace(tzinfo=None)
        shared = sorted(row["group_id"] for row in rows.get("share", ()))
        listed = {row["group_id"] for row in rows.get("group", ())}
        found = self._translation.translate(session, rows.get("offset", ()), rows.get("log", ()))
        translated = [row for row in found if row["downstream_offset"] is not None]
        checkpoints = self._translated(translated, cycle_id, now) + self._without_place(
            (row for row in found if row["downstream_offset"] is None), cycle_id, now
        )
        self._forget_lost_targets(session)
        clock.lap("translate")
        if translated:
            self._pass_gate(translated, cycle_id)
        clock.lap("gate")
        self._look_for_pause()
        read_keys = {(row["group_id"], row["topic"], row["partition"]) for row in rows.get("offset", ())}
        kept = self._kept(read_keys, cycle_id, now)
        synced = [*self._sync(checkpoints), *kept]
        clock.lap("sync")
        gone = self._gone({group for group, _, _ in read_keys} | {row.group_id for row in kept} | {*shared})
        ended = self._ended({row.key for row in synced}, {*gone})
        whole = [
            *self._about(
                [(group, None, None) for group in shared], Status.NOT_COVERED, PositionReason.SHARE_GROUP, cycle_id, now
            ),
            *self._about(
                [(group, None, None) for group in gone], Status.DELETED, PositionReason.GROUP_GONE, cycle_id, now
            ),
            *self._about(ended, Status.DELETED, PositionReason.OFFSET_GONE, cycle_id, now),
        ]
        changed = [row for row in [*synced, *whole] if not row.says_the_same_as(self._known.get(row.key))]
        self.ledger.append("checkpoints", changed)
        if self._pause is None:
            self._is_emitted = self._emit(changed if self._is_emitted else synced, now)
        else:
            self._is_emitted = False  # all positions are due after the pause
        clock.lap("append")
        self._known = {row.key: row for row in [*synced, *whole]}
        self._settled = {key: row for key, row in self._settled.items() if row.group_id not in gone} | {
            row.key: row for row in synced if row.sync in SETTLED
        }
        self._count(listed, synced, changed=changed, batch_id=batch_id, seconds=clock.total_ms / 1000)
        self._measure(clock, synced)
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
        self._journal.write_if_due()

    def _forget_lost_targets(self, session: SparkSession | None) -> None:
        """Forgets the rows of partitions whose remote topic was created anew.

        Offsets begin anew there, so earlier target offsets can't be compared.
        """
        incarnations = self._translation.incarnations
        if incarnations == self._incarnations or session is None or self._translation.flow_map is None:
            return
        from pyspark.sql import functions as F

        gaps = self._translation.flow_map.read(session).gaps.filter(F.col("kind") == GapKind.TARGET_RECREATED)
        lost = {
            (row["topic"], row["partition"]): row["at"]
            for row in gaps.groupBy("topic", "partition").agg(F.max("committed_at").alias("at")).collect()
        }
        for rows in (self._known, self._settled):
            for key in [key for key, row in rows.items() if key[1:] in lost and row.created_at < lost[key[1:]]]:
                del rows[key]
        self._incarnations = incarnations

    def _translated(self, rows: Iterable[Any], cycle_id: str, now: datetime) -> list[Checkpoint]:
        names = (
            "target_topic",
            "target_partition",
            "upstream_offset",
            "downstream_offset",
            "metadata",
            "source_lag",
            "reason",
        )
        return [
            Checkpoint(
                source=self.flow.source,
                target=self.flow.target,
                group_id=row["group_id"],
                topic=row["topic"],
                partition=row["partition"],
                status=Status(row["status"]),
                cycle_id=cycle_id,
                created_at=now,
                **{name: row[name] for name in names},
            )
            for row in rows
        ]

    def _without_place(self, found: Iterable[Mapping[str, Any]], cycle_id: str, now: datetime) -> list[Checkpoint]:
        rows = []
        for row in found:
            status, reason = (row["status"], row["reason"]) if row["status"] else self._why_not(row["topic"])
            names = ("group_id", "topic", "partition", "upstream_offset", "metadata")
            rows.append(
                Checkpoint(
                    source=self.flow.source,
                    target=self.flow.target,
                    status=status,
                    reason=reason,
                    cycle_id=cycle_id,
                    created_at=now,
                    sync=SyncOutcome.WAITING if status == Status.NOT_MIRRORED_YET else None,
                    **{name: row[name] for name in names},
                )
            )
        return rows

    def _why_not(self, topic: str) -> tuple[Status, str]:
        """Returns status and reason of positions in a topic that can't be translated."""
        if not self.flow.mirrors_topic(topic):
            return Status.NOT_MIRRORED, PositionReason.NOT_OF_FLOW
        if self.flow.scatters(topic):
            return Status.NOT_COVERED, PositionReason.SCATTERED
        return Status.NOT_MIRRORED, PositionReason.NO_TOPIC

    def _kept(self, keys: set[GroupKey], cycle_id: str, now: datetime) -> list[Checkpoint]:
        """Returns the last rows of the positions that are missing only because this principal may not see their topics.

        Without DESCRIBE on a topic, the source leaves out the offsets of groups in it without an error.

        Args:
            keys: the positions that were read in this cycle.
            cycle_id: the id of the cycle.
            now: the time of the cycle.
        """
        missing = {
            key: row
            for key, row in self._known.items()
            if key not in keys and row.topic is not None and row.status is not Status.DELETED
        }
        topics = {row.topic for row in missing.values() if row.topic is not None and self.flow.mirrors_topic(row.topic)}
        if not topics:
            return []
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        source = Cluster(flow.source_connection, "source", f"{flow.name}|checkpoint", timeout_ms)
        with closing(source.connect(again=True)):
            found = source.refresh(sorted(topics), timeout_ms, operations=True)
        hidden = {name for name, topic in found.items() if not topic.allows(DESCRIBE)}
        return [
            replace(
                row,
                sync=SyncOutcome.HELD,
                reason=PositionReason.NOT_PERMITTED,
                source_lag=None,
                cycle_id=cycle_id,
                created_at=now,
            )
            for row in missing.values()
            if row.topic in hidden
        ]

    def _gone(self, groups: set[str]) -> list[str]:
        """Returns the groups that had a position, and have none in any topic now."""
        return sorted({group for group, _, _ in self._known} - groups)

    def _ended(self, keys: set[GroupKey], gone: set[str]) -> list[GroupKey]:
        """Returns the positions that a group had, and has no more, though it has others."""
        return sorted(
            key
            for key, row in self._known.items()
            if row.topic is not None and row.group_id not in gone and key not in keys
        )

    def _about(
        self, keys: Iterable[GroupKey], status: Status, reason: str, cycle_id: str, now: datetime
    ) -> list[Checkpoint]:
        """Builds rows about whole groups or ended positions, which the job does not change on the target."""
        return [
            Checkpoint(
                source=self.flow.source,
                target=self.flow.target,
                group_id=group,
                topic=topic,
                partition=partition,
                status=status,
                cycle_id=cycle_id,
                created_at=now,
                sync=SyncOutcome.HELD,
                reason=reason,
            )
            for group, topic, partition in keys
        ]

    def _pass_gate(self, translated: list[dict[str, Any]], cycle_id: str) -> None:
        consequence = "no group was touched"
        try:
            results = self._gate.evaluate(gate_frame(translated, self._known), self.flow.name, cycle_id)
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

    def _sync(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Decides about every position, commits those that may be moved, and returns the rows with their outcomes."""
        movable = [row for row in checkpoints if row.downstream_offset is not None]
        if not self.flow.sync_group_offsets_enabled or not movable:
            return [
                replace(row, sync=SyncOutcome.OFF) if row.downstream_offset is not None else row for row in checkpoints
            ]
        if time.monotonic() < self._sync_due or self._pause is not None:
            return [row if row.downstream_offset is None else self._waiting(row) for row in checkpoints]
        if self.flow.topics_shared:
            return [
                replace(
                    row,
                    sync=SyncOutcome.HELD,
                    reason="; ".join(part for part in (row.reason, PositionReason.SHARED) if part),
                )
                if row in movable
                else row
                for row in checkpoints
            ]
        on_target = target_groups.read_groups(
            self._admin, self._target, sorted({row.group_id for row in movable}), self.flow
        )
        decided: list[Checkpoint] = []
        commits: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
        for row in checkpoints:
            if (
                row.downstream_offset is None
                or row.upstream_offset is None
                or row.target_topic is None
                or row.target_partition is None
            ):
                decided.append(row)
                continue
            target_key, before = (row.target_topic, row.target_partition), self._settled.get(row.key)
            decision = target_groups.decide(
                on_target[row.group_id],
                target_key,
                downstream_offset=row.downstream_offset,
                upstream_offset=row.upstream_offset,
                previous_upstream=before.upstream_offset if before else None,
                last_synced=before.downstream_offset if before else None,
            )
            reason = "; ".join(part for part in (row.reason, decision.reason) if part) or None
            decided.append(
                replace(
                    row,
                    sync=decision.sync,
                    reason=reason,
                    target_offset=on_target[row.group_id].offsets.get(target_key),
                )
            )
            if decision.sync is SyncOutcome.COMMITTED:
                commits.setdefault(row.group_id, {})[target_key] = (row.downstream_offset, row.metadata or "")
        if commits:  # a failover may have moved the groups since they were read
            promoted = require_open_to_groups(self.flow, self._target)
            held = {row.key for row in decided if row.sync is SyncOutcome.COMMITTED and row.topic in promoted}
            for group, topic, partition in held:
                remote = (self.flow.policy.remote_topic(topic or ""), partition or 0)
                del commits[group][remote]
            commits = {group: offsets for group, offsets in commits.items() if offsets}
            decided = [
                replace(row, sync=SyncOutcome.HELD, reason=PositionReason.PROMOTED) if row.key in held else row
                for row in decided
            ]
        refusals = target_groups.commit(self._target, commits, self.flow)
        self._sync_due = time.monotonic() + self.flow.sync_group_offsets_interval_s
        return [
            replace(row, sync=SyncOutcome.REFUSED, reason=refusals[row.group_id])
            if row.sync is SyncOutcome.COMMITTED and row.group_id in refusals
            else row
            for row in decided
        ]

    def _waiting(self, row: Checkpoint) -> Checkpoint:
        """Returns the row of a position between two syncs.

        Its last outcome on the target holds until the group's position changes.
        """
        before = self._known.get(row.key)
        names = ("status", "upstream_offset", "downstream_offset", "metadata")
        if before is not None and before.sync and all(getattr(before, name) == getattr(row, name) for name in names):
            return replace(row, sync=before.sync, reason=before.reason, target_offset=before.target_offset)
        return replace(row, sync=SyncOutcome.WAITING)

    def _emit(self, rows: Iterable[Checkpoint], now: datetime) -> bool:
        """Writes MirrorMaker 2's checkpoints topic: all positions in the first cycle and after a failure, then changes
        only."""
        if not self.flow.emit_checkpoints_enabled:
            return True
        timestamp_ms = int(now.replace(tzinfo=UTC).timestamp() * 1000)
        known = [
            row
            for row in rows
            if row.downstream_offset is not None and row.upstream_offset is not None and row.target_topic is not None
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

    # -- history and progress -----------------------------------------------------------------------

    def _recall(self) -> None:
        """Reads the last row of every group and partition from the ledger, and the last row with a settled outcome
        (SETTLED)."""
        found = self.ledger.last_checkpoints(self.flow)
        gone = {
            row["known"].group_id: row["known"].created_at
            for row in found
            if row["known"].status is Status.DELETED and row["known"].topic is None
        }
        self._known, self._settled = (
            {
                row[name].key: row[name]
                for row in found
                if name in row and not row[name].created_at < gone.get(row[name].group_id, row[name].created_at)
            }
            for name in ("known", "settled")
        )

    def _count(
        self, listed: set[str], synced: list[Checkpoint], changed: list[Checkpoint], batch_id: int, seconds: float
    ) -> None:
        counts = self._counts
        counts.cycles, counts.groups, counts.rows = counts.cycles + 1, len(listed), counts.rows + len(changed)
        counts.statuses, counts.syncs = (
            Counter(row.status for row in synced),
            Counter(row.sync for row in synced if row.sync),
        )
        log.info(
            event(
                "checkpoint_cycle",
                flow=self.flow.name,
                cycle=batch_id,
                groups=len(listed),
                positions=len(synced),
                **{f"status_{name}": count for name, count in sorted(counts.statuses.items())},
                **{f"sync_{name}": count for name, count in sorted(counts.syncs.items())},
                rows=len(changed),
                seconds=round(seconds, 2),
            )
        )

    def _measure(self, clock: Stopwatch, synced: list[Checkpoint]) -> None:
        flow, metrics, counts = self.flow.name, self._metrics, self._counts
        metrics.checkpoint_cycles.labels(flow).inc()
        count_age(metrics.checkpoint_age_seconds, flow)
        self._telemetry.health.progressed()
        now = time.monotonic()
        self._unfinished_since = {
            row.key: self._unfinished_since.get(row.key, now)
            for row in synced
            if row.status in UNFINISHED or row.sync in UNFINISHED
        }
        oldest = min(self._unfinished_since.values(), default=now)
        metrics.worst_group_seconds.labels(flow).set(now - oldest)
        self._detail(synced, clock.total_ms)
        for stage, stage_ms in clock.laps_ms.items():
            metrics.checkpoint_stage_seconds.labels(flow, stage).observe(stage_ms / 1000)
        for status in Status:
            metrics.checkpoint_positions.labels(flow, status).set(counts.statuses[status])
        for outcome in SyncOutcome:
            metrics.synced_positions.labels(flow, outcome).set(counts.syncs[outcome])

    def _detail(self, synced: Iterable[Checkpoint], latency_ms: float) -> None:
        """Updates the metrics of groups, if they are on."""
        details, flow = self._telemetry.details, self.flow
        if details is None:
            return
        places = [(row, row.topic, row.partition) for row in synced]
        details.groups(
            flow.name,
            {
                (row.group_id, topic, partition): row.source_lag
                for row, topic, partition in places
                if topic is not None and partition is not None and row.source_lag is not None
            },
        )
        details.checkpointed(
            (
                (flow.source, flow.target, row.group_id, row.target_topic, str(row.target_partition))
                for row in synced
                if row.sync is SyncOutcome.COMMITTED and row.target_topic is not None
            ),
            latency_ms,
        )


def gate_frame(translated: Iterable[dict[str, Any]], known: Mapping[GroupKey, Checkpoint]) -> pd.DataFrame:
    """Returns the input of the gate: the translation, recomputed by its definition, and the regression of each group.

    The columns are those of `sql_join.translate`, recomputed and regression. recomputed is the definition applied to
    the run that the SQL query used. regression is the number of downstream offsets by which a group would go back on
    the target although it did not on the source. It is 0 for a clamped position, which waits for the ledger.
    """
    import pandas as pd

    return pd.DataFrame(
        [{**row, "recomputed": _by_definition(row), "regression": _regression(row, known)} for row in translated]
    )


def _by_definition(row: Mapping[str, Any]) -> int:
    if row["run_upstream_start"] is None:
        return row["mirrored_end"]
    return row["run_downstream_start"] + max(0, row["upstream_offset"] - row["run_upstream_start"])


def _regression(row: Mapping[str, Any], known: Mapping[GroupKey, Checkpoint]) -> int:
    before = known.get((row["group_id"], row["topic"], row["partition"]))
    if (
        before is None
        or before.downstream_offset is None
        or before.upstream_offset is None
        or row["status"] == Status.CLAMPED
    ):
        return 0
    return (
        max(0, before.downstream_offset - row["downstream_offset"])
        if row["upstream_offset"] >= before.upstream_offset
        else 0
    )
