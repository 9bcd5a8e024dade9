"""What the tables say about each flow in the last hours: checkpoints, gates, verifications, anomalies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mirrorlake.jobs.verification.result import VerificationStatus
from mirrorlake.jobs.verification.scope import VerificationMode
from mirrorlake.ledger.journal import CycleJob
from mirrorlake.ledger.local_tables import LocalTables

HOURS = 24.0
ONCE = ("failover", "takeover")  # what an operator runs shows its result by itself
ONE_EVALUATION = timedelta(seconds=1)  # rows of earlier versions have a time each


EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class FlowHistory:
    """What the tables say about one flow.

    Attributes:
        mirrored_s, checkpointed_s: seconds since the last cycle of each job; None if there was none.
        unfinished: group positions of the last checkpoint cycle that are past the mirrored end.
        gates_failed: evaluations of a gate that failed.
        failing: suites that have failed, and not passed since.
        not_equal: partitions whose newest verification has found a difference.
        anomalies: rows by kind.
        newest_anomaly: kind and detail of the newest one.
        problem, remedy: what is wrong, and what to do; empty if nothing is.
    """

    mirrored_s: float | None = None
    checkpointed_s: float | None = None
    unfinished: int | None = None
    gates_failed: int = 0
    failing: tuple[str, ...] = ()
    not_equal: int = 0
    anomalies: Mapping[str, int] = field(default_factory=dict)
    newest_anomaly: str = ""
    problem: str = ""
    remedy: str = ""

    def has_lost_checkpoints(self, limit_s: float) -> bool:
        """Tells whether the checkpoint job is silent for longer than a limit, and the mirror job is not."""
        if self.checkpointed_s is None or self.mirrored_s is None:
            return False
        return self.mirrored_s <= limit_s < self.checkpointed_s


def histories(tables: LocalTables, hours: float = HOURS, now: datetime | None = None) -> dict[str, FlowHistory]:
    """Reads what the tables say, by flow; nothing if the schema does not exist.

    Raises:
        LedgerError: a table can't be read.
    """
    if not tables.are_there():
        return {}
    now = now or datetime.now(UTC)
    since = now - timedelta(hours=hours)
    found: dict[str, dict[str, Any]] = {}

    def of(row: Mapping[str, Any]) -> dict[str, Any]:
        return found.setdefault(f"{row['source']}->{row['target']}", {"anomalies": {}})

    flow = ("source", "target")
    cycles = tables.newest("cycles", (*flow, "job"), ("unfinished",), "finished_at", since)
    for row in (*cycles, *_silent(tables, cycles)):
        age_s = (now - _utc(row["finished_at"])).total_seconds()
        if row["job"] == CycleJob.MIRROR:
            of(row)["mirrored_s"] = age_s
        elif row["job"] == CycleJob.CHECKPOINT:
            of(row).update(checkpointed_s=age_s, unfinished=row["unfinished"])
    _gates(tables, since, found)
    _verifications(tables, of)
    oddities = tables.newest("anomalies", (*flow, "kind"), ("topic", "partition", "detail"), "detected_at", since)
    for row in sorted(oddities, key=lambda row: _utc(row["detected_at"])):
        one, where = of(row), f" of {row['topic']}-{row['partition']}" if row["topic"] else ""
        one["anomalies"][row["kind"]] = row["rows"]
        one["newest_anomaly"] = f"{row['kind']}{where}: {row['detail'] or ''}"
    return {name: _judged(FlowHistory(**values)) for name, values in found.items()}


def _silent(tables: LocalTables, cycles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the last cycle of each checkpoint job that was silent for as long as `cycles` reaches back, while its
    mirror job was not."""
    jobs = {(row["source"], row["target"], row["job"]) for row in cycles}
    silent = {of[:2] for of in jobs if of[2] == CycleJob.MIRROR and (*of[:2], CycleJob.CHECKPOINT) not in jobs}
    if not silent:
        return []
    checkpoint = {"job": CycleJob.CHECKPOINT.value}
    ever = tables.newest("cycles", ("source", "target", "job"), (), "finished_at", EVER, checkpoint)
    return [{**row, "unfinished": None} for row in ever if (row["source"], row["target"]) in silent]


def _gates(tables: LocalTables, since: datetime, found: dict[str, dict[str, Any]]) -> None:
    """Counts the evaluations that have failed, and names the suites that have not passed since."""
    gate, failed = ("subject", "suite", "cycle_id"), {"success": False}
    failed_at: dict[tuple[str, str], datetime] = {}
    for row in tables.newest("expectation_results", gate, (), "evaluated_at", since, failed):
        one, key = found.setdefault(row["subject"], {"anomalies": {}}), (row["subject"], row["suite"])
        one["gates_failed"] = one.get("gates_failed", 0) + 1
        failed_at[key] = max(_utc(row["evaluated_at"]), failed_at.get(key, _utc(row["evaluated_at"])))
    passed = (
        tables.newest("expectation_results", gate[:2], (), "evaluated_at", since, {"success": True})
        if failed_at
        else []
    )
    passed_at = {(row["subject"], row["suite"]): _utc(row["evaluated_at"]) for row in passed}
    for (subject, suite), at in sorted(failed_at.items()):
        if suite not in ONCE and passed_at.get((subject, suite), at) - at < ONE_EVALUATION:
            found[subject]["failing"] = (*found[subject].get("failing", ()), suite)


def _verifications(tables: LocalTables, of: Any) -> None:
    """Counts the partitions in which a difference stands, however long ago it was found."""
    verdict = ("source", "target", "topic", "partition", "status", "mode")
    newest: dict[tuple[Any, ...], Any] = {}
    differ = {"status": VerificationStatus.DIFFERENT.value}
    if not tables.newest("verifications", verdict, (), "finished_at", EVER, differ):
        return
    for row in sorted(
        tables.newest("verifications", verdict, ("passed",), "finished_at", EVER),
        key=lambda row: _utc(row["finished_at"]),
    ):
        key = row["source"], row["target"], row["topic"], row["partition"]
        # A sample, or a time elsewhere, says nothing of a difference; what can't be compared does not, either.
        refutes = row["passed"] and row["mode"] in (VerificationMode.FULL, VerificationMode.INCREMENTAL)
        stands = key in newest and _differs(newest[key]) and not (refutes or _differs(row))
        if row["status"] != VerificationStatus.NOTHING_NEW and not stands:
            newest[key] = row
    for row in newest.values():
        if _differs(row):
            of(row)["not_equal"] = of(row).get("not_equal", 0) + 1


def _differs(row: Mapping[str, Any]) -> bool:
    return not row["passed"] and row["status"] == VerificationStatus.DIFFERENT


def _judged(one: FlowHistory) -> FlowHistory:
    if one.not_equal:
        return replace(
            one,
            problem=f"the last verification found differences in {one.not_equal:,} partitions",
            remedy="Look at the table verification_findings (docs/verification.md)",
        )
    if one.failing:
        return replace(
            one,
            problem=f"{one.gates_failed:,} gates failed ({', '.join(one.failing)}), and have not passed since",
            remedy="Read the table expectation_results, and the job's log",
        )
    return one


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
