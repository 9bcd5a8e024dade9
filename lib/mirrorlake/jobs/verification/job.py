"""The proof of equality: reads both clusters independently of the copying code, joins them by the exact map, and
reports every difference.

1. **Pin.** The map is that of one Delta version of `offset_syncs`. It is cut into segments: each is a run with the gap
   in front of it (`jobs/verification/segments.py`).
2. **Recognise** (`sample` only). Runs whose batches have the digest of the map on both sides are not compared record by
   record (`jobs/verification/run_digests.py`).
3. **Compare.** Spark's Kafka source reads committed records of both logs. They are joined by the map (`logs.py`,
   `jobs/verification/compare.py`).
4. **Explain.** A record that one side lacks may have expired, or may have been compacted since. It is then neither
   right nor wrong. All others become findings (`jobs/verification/classify.py`, `jobs/verification/summarize.py`).
5. **Judge and store.** The suite `verification` evaluates the counts, which are stored in `verifications`. Findings are
   stored in `verification_findings`, without the records' contents.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, LedgerError, MirrorlakeError, without_contents
from mirrorlake.gate import Gate
from mirrorlake.jobs.verification.logs import FlowLogs, Late
from mirrorlake.jobs.verification.result import (
    Finding,
    PartitionVerification,
    VerificationResult,
    VerificationStatus,
    gate_frame,
    is_exempt,
)
from mirrorlake.jobs.verification.run_digests import recognised
from mirrorlake.jobs.verification.scope import VerificationMode, VerificationScope
from mirrorlake.jobs.verification.segments import (
    Extent,
    RunChoice,
    extents,
    extents_frame,
    first_later_runs,
    partitions_of,
    segments,
    with_choice,
)
from mirrorlake.jobs.verification.summarize import VerifiedMap, judge
from mirrorlake.jobs.verification.unreadable import unreadable_partitions
from mirrorlake.ledger import views
from mirrorlake.ledger.store import Ledger, rows_of_pair, standing_differences
from mirrorlake.log import ending, event
from mirrorlake.metrics import of_process
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import NotCompared
from mirrorlake.spark.kafka_frames import why_unread
from mirrorlake.telemetry.job_telemetry import JobTelemetry
from mirrorlake.translation.versioned_map import Versions, current_map, last_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FINDINGS_KEPT = 1_000  # per partition
EXAMPLES = 10
PLACE = ("topic", "partition", "upstream_offset", "downstream_offset")
# The time of the last run, too: after a reset, the offsets of an earlier verification are those of another log.
UNSEEN = """
SELECT f.topic FROM {found} f LEFT ANTI JOIN {earlier} e ON e.topic = f.topic AND e.partition = f.partition
  AND e.upstream_to >= f.upstream_to AND e.verified_to >= f.verified_to AND NOT coalesce(e.pinned, false)
"""


class Verification:
    """Verifies one flow.

    Args:
        spark: a classic session with Delta and the Kafka source; its executors read both clusters.
        flow: flow to verify.
        ledger: tables with the map, and for the results.
        suite: path of the expectations for verifications.
    """

    def __init__(self, spark: SparkSession, flow: Flow, ledger: Ledger, suite: str | Path) -> None:
        self.spark, self.flow, self.ledger = spark, flow, ledger
        self._gate = Gate(suite)

    def run(self, scope: VerificationScope) -> VerificationResult:
        """Compares the records of the scope, and stores the result, whether it passes or not
        (`VerificationResult.require`).

        Raises:
            ConfigurationError: the Delta version does not exist.
            SourceError, TargetError: a cluster can't be read.
            LedgerError: the tables can't be read or written.
        """
        metrics = of_process()
        with (
            ending(log, "verification", flow=self.flow.name, mode=scope.mode),
            JobTelemetry(self.flow, "verify", metrics, self._gate.name),
        ):
            result = self._run(scope)
            if scope.is_of_all_records and result.is_whole and (result.passed or result.is_neutral):
                metrics.verified_seconds.labels(self.flow.name).set(result.started_at.timestamp())
            return result

    def _run(self, scope: VerificationScope) -> VerificationResult:
        flow, started_at, verification_id = self.flow, datetime.now(UTC), uuid.uuid4().hex
        self.ledger.ensure_tables()
        client_id, timeout_ms = f"{flow.name}|verify", flow.connect_timeout_ms
        with (
            closing(Cluster(flow.source_connection, "source", client_id, timeout_ms).connect()) as source,
            closing(Cluster(flow.target_connection, "target", client_id, timeout_ms).connect()) as target,
        ):
            logs = FlowLogs(self.spark, flow, source, target)
            if scope.version is None and logs.has_later_states(self.ledger.last_syncs(flow)):
                # What the ledger lacks would not be compared, and it would look as if nothing was mirrored since.
                self.ledger.catch_up(flow, logs.sync_partitions())
            versions = Versions.pinned(self.ledger, flow, scope.version)
            before = started_at - timedelta(seconds=scope.max_lateness_s)
            late = logs.late(round(before.timestamp() * 1000), scope.has) if scope.minds_lateness else {}
            partitions, wrong = self._verify(scope, versions, logs)
            partitions = with_late(partitions, logs.still_late(late))
        is_neutral = is_exempt(partitions) or (
            scope.mode == VerificationMode.INCREMENTAL
            and not any(one.unmirrored or one.is_unreadable or one.is_unread for one in partitions)
            and self._are_past(scope, [one for one in partitions if one.is_covered])
            and any(scope.has(row["topic"]) for row in self._passed(scope).select("topic").distinct().collect())
        )
        results = [] if is_neutral else self._gate.evaluate(gate_frame(partitions), flow.name, verification_id)
        examples = wrong.orderBy(*PLACE).limit(EXAMPLES).collect() if wrong is not None else []
        result = VerificationResult(
            flow=flow.name,
            verification_id=verification_id,
            mode=scope.mode,
            offset_syncs_version=versions.offset_syncs,
            gaps_version=versions.gaps,
            started_at=started_at,
            finished_at=datetime.now(UTC),
            partitions=tuple(partitions),
            results=tuple(results),
            examples=tuple(Finding.from_row(row) for row in examples),
            is_neutral=is_neutral,
            topics=None if scope.topics is None else ",".join(scope.topics.include),
            is_pinned=scope.version is not None,
        )
        self._store(result, wrong)
        log.log(
            logging.INFO if result.passed or result.is_neutral else logging.WARNING,
            event(
                "verification_finished",
                flow=flow.name,
                verification_id=verification_id,
                mode=scope.mode,
                passed=result.passed,
                records=result.total("records"),
                differences=result.total("differences"),
                statement=result.statement(),
            ),
        )
        return result

    def _are_past(self, scope: VerificationScope, covered: Sequence[PartitionVerification]) -> bool:
        """Returns True if no log has a record of these partitions any more, no difference stands in them, and their
        map was there before: an earlier verification has said so, and no one can ever pass it."""
        if any(one.status is not VerificationStatus.NOT_COMPARABLE for one in covered):
            return False
        if not covered:
            return True
        standing = standing_differences(self.ledger.of_flow("verifications", self.flow))
        rows = standing.select("topic", "partition").distinct().collect()
        if {(one.topic, one.partition) for one in covered} & {(row[0], row[1]) for row in rows}:
            return False
        found = self.spark.createDataFrame(
            [(one.topic, one.partition, one.upstream_to, one.verified_to) for one in covered],
            "topic STRING, partition INT, upstream_to BIGINT, verified_to TIMESTAMP",
        )
        return self.spark.sql(UNSEEN, found=found, earlier=self._earlier(scope)).isEmpty()

    # -- comparing ----------------------------------------------------------------------------------

    def _verify(
        self, scope: VerificationScope, versions: Versions, logs: FlowLogs
    ) -> tuple[list[PartitionVerification], DataFrame | None]:
        """Returns a row for each partition, and the findings (None if there are none)."""
        try:
            standing = standing_differences(self.ledger.of_flow("verifications", self.flow))
            runs = current_map(self.ledger, self.flow, versions)
            everything = with_choice(runs, scope, self._passed(scope), standing)
            partitions_known = partitions_of(everything)
        except Exception as error:  # from Delta: the files of an old version are deleted
            raise LedgerError(
                f"version {versions.offset_syncs} of {self.ledger.table('offset_syncs')}, or {versions.gaps} of gaps, "
                f"can't be read: {without_contents(error)}"
            ) from None
        try:
            uncovered = self._uncovered(scope, {(row["topic"], row["partition"]) for row in partitions_known}, logs)
            found = {
                extent.key: extent
                for extent in extents(partitions_known, self.flow, scope, self._expired())
                if extent.key not in uncovered
            }
            if not found:
                return list(uncovered.values()), None
            version = versions.offset_syncs
            log.info(
                event("verification_begun", flow=self.flow.name, partitions=len(found), offset_syncs_version=version)
            )
            # Planning the query takes longer than running it, so that it is not repeated. Earlier runs may be many.
            chosen = everything.filter(everything.choice != RunChoice.BEFORE).localCheckpoint()
            last = last_states(self.ledger, self.flow, versions)
            for key, reason in logs.reach(found.values()).items():
                del found[key]
                uncovered[key] = _unread(key, reason)
            self._bound_tails(scope, chosen, found, last=last, logs=logs)
            partitions, wrong = self._compared(scope, versions, chosen, found=found, uncovered=uncovered, logs=logs)
        except MirrorlakeError:
            raise
        except Exception as error:  # from Spark: a log can't be read, or a timestamp is out of range
            raise MirrorlakeError(
                f"flow {self.flow.name}: the logs can't be compared: {why_unread(error)}. Nothing was stored"
            ) from None
        return sorted([*partitions, *uncovered.values()], key=lambda one: (one.topic, one.partition)), wrong

    def _compared(
        self,
        scope: VerificationScope,
        versions: Versions,
        chosen: DataFrame,
        found: dict[PartitionKey, Extent],
        uncovered: dict[PartitionKey, PartitionVerification],
        logs: FlowLogs,
    ) -> tuple[list[PartitionVerification], DataFrame | None]:
        """Compares what Spark can read; see `judge`.

        A partition whose source has a corrupt batch that the flow has passed over goes from `found` to `uncovered`.
        """
        while found:
            try:
                return judge(self._map(scope, versions.offset_syncs, chosen=chosen, found=found), logs)
            except MirrorlakeError:
                raise
            except Exception as error:
                broken = found.keys() & unreadable_partitions(error, self.ledger, self.flow)
                if not broken:
                    raise
                for key in broken:
                    extent = found.pop(key)
                    uncovered[key] = PartitionVerification(
                        *key,
                        upstream_from=extent.source_start,
                        upstream_to=extent.source_end,
                        is_covered=False,
                        is_unreadable=True,
                        notes=[NotCompared.CORRUPT.value],
                    )
        return [], None

    def _expired(self) -> dict[PartitionKey, int]:
        """Returns the source offset before which the map has expired, of each partition where it has."""
        rows = rows_of_pair(views.read(self.ledger, "expired"), self.flow.source, self.flow.target).collect()
        return {(row["topic"], row["partition"]): row["to_offset"] for row in rows}

    def _passed(self, scope: VerificationScope) -> DataFrame:
        """Returns the passed verifications that `incremental` continues from."""
        return self._earlier(scope).filter("passed")

    def _earlier(self, scope: VerificationScope) -> DataFrame:
        """Returns the `full` and `incremental` verifications so far.

        To repeat a verification by its version, only those of earlier versions count.
        """
        table = self.ledger.of_flow("verifications", self.flow)
        mine = table.filter(table["mode"].isin(VerificationMode.FULL, VerificationMode.INCREMENTAL))
        return mine if scope.version is None else mine.filter(mine.offset_syncs_version < scope.version)

    def _uncovered(
        self, scope: VerificationScope, known: set[PartitionKey], logs: FlowLogs
    ) -> dict[PartitionKey, PartitionVerification]:
        """Returns the partitions of the flow that can't be compared, each with the reason.

        A transform changes their records, the map has nothing of them, or nobody tells whether it should.
        """
        is_whole = scope.mode in (VerificationMode.FULL, VerificationMode.INCREMENTAL)
        there, unread = logs.source_partitions(scope.has) if is_whole else ({}, {})
        found, promoted = {}, logs.promoted()
        wanted = sorted(key for key in known | there.keys() | unread.keys() if scope.has(key[0]))
        if scope.topics is not None and not wanted:
            raise ConfigurationError(
                f"parameter topics is '{','.join(scope.topics.include)}', which matches no topic of flow "
                f"{self.flow.name} that has records. Nothing was compared"
            )
        for key in wanted:
            transform = self.flow.transform_of(key[0])
            if key[0] in promoted:
                reason = NotCompared.PROMOTED.value
            elif transform is not None:
                reason = NotCompared.TRANSFORMED.about(transform=transform.name)
            elif key in unread:
                found[key] = _unread(key, unread[key])
                continue
            elif key in known:
                continue
            else:
                reason = NotCompared.NOT_IN_MAP.value
            start, end = there.get(key, (None, None))
            found[key] = PartitionVerification(
                *key,
                upstream_from=start,
                upstream_to=end,
                is_covered=False,
                is_exempt=key[0] in promoted or transform is not None,
                notes=[reason],
            )
        return found

    def _map(
        self,
        scope: VerificationScope,
        version: int,
        chosen: DataFrame,
        found: dict[PartitionKey, Extent],
    ) -> VerifiedMap:
        """Cuts the map into segments, within both logs, and recognises runs by their digests in a sample."""
        frame = extents_frame(self.spark, found.values())
        cut = segments(
            chosen, frame, is_shared=self.flow.topics_shared, fraction=scope.fraction, seed=version
        ).localCheckpoint()
        if scope.mode != VerificationMode.SAMPLE:
            return VerifiedMap(found, cut, self.flow.topics_shared, dropped=self._dropped())
        known = recognised(cut, self.flow).localCheckpoint()
        failed = known.filter("error IS NOT NULL").first()
        if failed is not None:
            raise errors.from_json(json.loads(failed["error"]))
        marked = known.selectExpr("topic", "partition", "upstream_end", "true AS is_known")
        cut = (
            cut.join(marked, ["topic", "partition", "upstream_end"], "left")
            .selectExpr("*", "is_known IS NOT NULL AND mapped > 0 AS is_recognised")
            .drop("is_known")
        )
        digested = cut.filter("is_recognised").groupBy("topic", "partition").agg({"mapped": "sum"}).collect()
        judged = cut.withColumn("is_judged", cut.is_judged & ~cut.is_recognised).drop("is_recognised").localCheckpoint()
        return VerifiedMap(
            found,
            judged,
            self.flow.topics_shared,
            is_partial=True,
            digested={(row[0], row[1]): row[2] for row in digested},
            dropped=self._dropped(),
        )

    def _dropped(self) -> list[tuple[str, int, int, int]]:
        """Returns topic, partition and offsets of the records that failbacks have left on the source for good."""
        gaps = rows_of_pair(views.read(self.ledger, "current_gaps"), self.flow.source, self.flow.target)
        dropped = gaps.filter(gaps.kind == GapKind.DROPPED)
        return [tuple(row) for row in dropped.select("topic", "partition", "from_offset", "to_offset").collect()]

    def _bound_tails(
        self,
        scope: VerificationScope,
        chosen: DataFrame,
        found: dict[PartitionKey, Extent],
        last: dict[int, int],
        logs: FlowLogs,
    ) -> None:
        """Limits the segment behind the last run of each partition to the start of the next run.

        The next run is from this version of the map, or from later commits. If other programs write to the remote
        topics, as they do once the flow was failed over, the segment is left out. `last` has the offsets of the last
        states that this version of the map has.
        """
        if self.flow.topics_shared or logs.is_closed():
            for extent in found.values():
                extent.downstream_to = extent.downstream_end
            return
        columns = ["target_topic", "target_partition", "downstream_start"]
        later = [logs.later_runs(last)] if logs.has_later_states(last) else []
        if scope.mode == VerificationMode.TIME:
            later.append(chosen.filter(chosen.choice == RunChoice.AFTER))
        if not later:
            return
        runs = reduce(lambda one, other: one.unionByName(other), (some.select(columns) for some in later))
        next_run = first_later_runs(runs, extents_frame(self.spark, found.values()))
        for extent in found.values():
            extent.downstream_to = min(extent.downstream_to, next_run.get(extent.remote, extent.downstream_to))

    # -- storing ------------------------------------------------------------------------------------

    def _store(self, result: VerificationResult, wrong: DataFrame | None) -> None:
        """Stores the findings first and the verdict last, so that a verdict always has its findings."""
        flow = self.flow
        if wrong is not None:
            self.ledger.append_frame("verification_findings", self._findings(result, wrong))
        self.ledger.append("expectation_results", result.results)
        common = {
            "verification_id": result.verification_id,
            "source": flow.source,
            "target": flow.target,
            "mode": result.mode,
            "offset_syncs_version": result.offset_syncs_version,
            "gaps_version": result.gaps_version,
            "started_at": result.started_at,
            "finished_at": result.finished_at,
            "topics": result.topics,
            "pinned": result.is_pinned,
        }
        rows = [partition.row() for partition in result.partitions]
        says_something = any(partition.is_covered or partition.unmirrored for partition in result.partitions)
        if result.is_neutral or not says_something:  # a row about the whole flow makes it, or its failure, visible
            whole = {**PartitionVerification("", 0).row(), "topic": None, "partition": None}
            status = VerificationStatus.NOTHING_NEW if result.is_neutral else whole["status"]
            rows.append({**whole, "status": status, "detail": result.statement()})
        self.ledger.append("verifications", [{**row, **common} for row in rows])

    def _findings(self, result: VerificationResult, wrong: DataFrame) -> DataFrame:
        """Returns the rows of verification_findings: the first ones of each partition."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        remotes = [
            (one.topic, one.partition, one.target_topic, one.target_partition)
            for one in result.partitions
            if one.is_covered
        ]
        named = self.spark.createDataFrame(
            remotes, "topic STRING, partition INT, target_topic STRING, target_partition INT"
        )
        order = Window.partitionBy("topic", "partition").orderBy(
            F.coalesce("downstream_offset", "upstream_offset"), "kind"
        )
        kept = wrong.withColumn("number", F.row_number().over(order)).filter(F.col("number") <= FINDINGS_KEPT)
        common = {"verification_id": result.verification_id, "source": self.flow.source, "target": self.flow.target}
        rows = kept.join(F.broadcast(named), ["topic", "partition"]).withColumns(
            {name: F.lit(value) for name, value in common.items()}
        )
        return rows.select(self.ledger.read("verification_findings").columns)


def _unread(key: PartitionKey, reason: str) -> PartitionVerification:
    return PartitionVerification(*key, is_covered=False, is_unread=True, notes=[reason])


def with_late(
    partitions: Sequence[PartitionVerification], late: Mapping[PartitionKey, Late]
) -> list[PartitionVerification]:
    """Notes in the results which partitions are late, and adds those that have no result, in order."""
    found = {(one.topic, one.partition): one for one in partitions}
    for key, one in late.items():
        row = found.setdefault(key, PartitionVerification(*key, is_covered=False))
        if not row.is_covered:
            row.upstream_from, row.upstream_to = one.start, one.end
        row.unmirrored = one.records
        row.notes.append(f"{one.records:,} records from source offset {one.start:,} on are late: not mirrored yet")
    return [found[key] for key in sorted(found)]
