"""Makes the report: the last hours of every flow, from the tables alone, with a bounded number of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.verification.result import VerificationStatus
from mirrorlake.jobs.verification.scope import VerificationMode
from mirrorlake.ledger import views
from mirrorlake.ledger.journal import CycleJob
from mirrorlake.ledger.store import Ledger, standing_differences
from mirrorlake.model.anomaly import AnomalyAction
from mirrorlake.parameters import moment
from mirrorlake.reasons import NotCompared

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, Row

POINTS = 240  # maximum number of points of a line in a figure
WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 86_400)  # possible widths of a point
ANOMALIES_SHOWN = 50
LONGEST = timedelta(days=3_650)
QUIET_MINUTES = 15.0  # without activity, after which a job is reported; schedules take longer


@dataclass(frozen=True)
class FlowReport:
    """One flow, in numbers. Counts are those of the window unless stated otherwise; None means unknown.

    Attributes:
        flow: name of the flow.
        records: records committed on the target.
        bytes: bytes committed on the target.
        lag: source offsets that were not mirrored in the mirror job's last cycle.
        mirrored_at: last activity of the mirror job: a cycle or a commit.
        checkpointed_at: last cycle of the checkpoint job.
        positions: group positions in the last checkpoint cycle.
        unfinished: clamped positions in the last checkpoint cycle.
        evaluations: evaluations of gates.
        refused: evaluations of gates that failed.
        verified_to: commit time up to which verifications have covered all partitions and found no difference.
        unverified: mirrored records that no verification has covered, in all time.
        failed_verifications: partitions whose last verification failed.
        losses: records that were lost.
        anomalies: number of anomalies.
        is_closed: a failover has closed the flow, and no failback has opened it since.
        quiet_minutes: time without activity after which a job counts as a problem.
    """

    flow: str
    records: int
    bytes: int
    lag: int | None
    mirrored_at: datetime | None
    checkpointed_at: datetime | None
    positions: int | None
    unfinished: int | None
    evaluations: int
    refused: int
    verified_to: datetime | None
    unverified: int
    failed_verifications: int
    losses: int
    anomalies: int
    is_closed: bool = False
    quiet_minutes: float = QUIET_MINUTES

    def problems(self, now: datetime) -> list[str]:
        """Returns the problems of the flow, one sentence each; none if there are none."""
        found = []
        if self.refused:
            found.append(f"a gate failed in {self.refused} of {self.evaluations} evaluations")
        if self.failed_verifications:
            found.append(
                f"a verification found differences, or nothing to compare, in {self.failed_verifications} partitions"
            )
        if self.anomalies:
            found.append(
                f"{self.anomalies} {'anomaly' if self.anomalies == 1 else 'anomalies'}"
                + (f", {self.losses:,} records lost" if self.losses else "")
            )
        found += [
            f"no activity of the {job} job for {ago(now - seen)}"
            for job, seen in ((CycleJob.MIRROR, self.mirrored_at), (CycleJob.CHECKPOINT, self.checkpointed_at))
            if seen is not None and (now - seen).total_seconds() > 60 * self.quiet_minutes and not self.is_closed
        ]
        if not self.is_closed and self.lag and self.mirrored_at is not None and not self.records:
            found.append(f"{self.lag:,} offsets of lag, and nothing was mirrored")
        return found


@dataclass(frozen=True)
class Report:
    """The contents of the report. All times are UTC, those of frames too.

    Attributes:
        since: start of the window.
        until: end of the window.
        width_s: seconds of the window that one point covers.
        flows: the flows in numbers, by name.
        throughput: columns flow, at, records, bytes, records_per_s, bytes_per_s.
        lag: columns flow, at, lag (the largest).
        freshness: columns flow, at, age_s (since the last checkpoint cycle, at the end of the point).
        stages: columns flow, at, and the median seconds of each stage of a micro-batch.
        gates: columns flow, suite, at, passed, refused.
        verified: columns flow, topic, verified, unverified (records).
        anomalies: the newest anomalies, with columns of the table.
    """

    since: datetime
    until: datetime
    width_s: int
    flows: tuple[FlowReport, ...]
    throughput: pd.DataFrame
    lag: pd.DataFrame
    freshness: pd.DataFrame
    stages: pd.DataFrame
    gates: pd.DataFrame
    verified: pd.DataFrame
    anomalies: pd.DataFrame

    def to_json(self) -> dict[str, Any]:
        problems = {flow.flow: flow.problems(self.until) for flow in self.flows}
        return {
            "flows": [flow.flow for flow in self.flows],
            "records": sum(flow.records for flow in self.flows),
            "until": self.until.isoformat(timespec="seconds"),
            "problems": problems,
            "worries": problems,  # its name before; jobs may read it
        }


def make_report(
    ledger: Ledger,
    flows: str,
    hours: str,
    until: str = "",
    quiet_minutes: str = f"{QUIET_MINUTES:g}",
    now: datetime | None = None,
) -> Report:
    """Reads the tables.

    Args:
        ledger: the ledger, with its tables.
        flows: `source->target`, several separated by commas; empty for all flows in the tables.
        hours: length of the window, as text.
        until: end of the window, ISO, UTC unless it names a zone; empty for now.
        quiet_minutes: time without activity after which a job counts as a problem, as text.
        now: the current time.

    Raises:
        ConfigurationError: a value is malformed.
        LedgerError: the tables do not have the flow.
    """
    end = (moment("until", until) or now or datetime.now(UTC)).replace(tzinfo=None)
    start = end - _length("hours", hours, hours=1)
    quiet = _length("quiet_minutes", quiet_minutes, minutes=1)
    return _Reader(ledger, flows, start, end, quiet / timedelta(minutes=1)).read()


def _length(name: str, given: str, **unit: float) -> timedelta:
    try:
        found = float(given) * timedelta(**unit)
    except (ValueError, OverflowError):
        found = timedelta()
    if not timedelta() < found <= LONGEST:
        raise ConfigurationError(
            f"parameter {name} is '{given}'; allowed is a number above 0, such as 24 or 0.5, and up to "
            f"{LONGEST / timedelta(**unit):.0f}"
        )
    return found


class _Reader:
    def __init__(self, ledger: Ledger, flows: str, since: datetime, until: datetime, quiet: float) -> None:
        self.ledger, self.since, self.until, self.quiet_minutes = ledger, since, until, quiet
        seconds = (until - since).total_seconds()
        self.width_s = next((width for width in WIDTHS_S if seconds / width <= POINTS), WIDTHS_S[-1])
        self.names = self._flows(flows)

    def _flows(self, flows: str) -> list[str]:
        known = self.ledger.flows("offset_syncs", "cycles")
        wanted = [name.strip() for name in flows.split(",") if name.strip()]
        for name in wanted:
            self.ledger.require_flow(name, known)
        return wanted or known

    def read(self) -> Report:
        cycles = self._within("cycles", "finished_at")
        gates, anomalies, verified = self._gates(), self._anomalies(), self._verified()
        return Report(
            since=self.since,
            until=self.until,
            width_s=self.width_s,
            flows=tuple(self._in_numbers(verified)),
            throughput=self._throughput(),
            lag=self._lag(cycles),
            freshness=self._freshness(cycles),
            stages=self._stages(cycles),
            gates=gates,
            verified=verified,
            anomalies=anomalies,
        )

    # -- over time ----------------------------------------------------------------------------------

    def _throughput(self) -> pd.DataFrame:
        import pandas as pd
        from pyspark.sql import functions as F

        sums = [F.sum(name).alias(name) for name in ("records", "bytes")]
        points = self._every_point(
            self._within("offset_syncs", "committed_at").groupBy("flow", "at").agg(*sums).toPandas()
        )
        # The window covers only a part of its first and last point.
        ends = (points["at"] + pd.Timedelta(seconds=self.width_s)).clip(upper=pd.Timestamp(self.until))
        seconds = (ends - points["at"].clip(lower=pd.Timestamp(self.since))).dt.total_seconds()
        return points.assign(records_per_s=points["records"] / seconds, bytes_per_s=points["bytes"] / seconds)

    def _lag(self, cycles: DataFrame) -> pd.DataFrame:
        from pyspark.sql import functions as F

        return (
            cycles.filter((F.col("job") == CycleJob.MIRROR) & F.col("lag").isNotNull())
            .groupBy("flow", "at")
            .agg(F.max("lag").alias("lag"))
            .orderBy("flow", "at")
            .toPandas()
        )

    def _freshness(self, cycles: DataFrame) -> pd.DataFrame:
        """Returns the age of the last checkpoint cycle at each point, from the first cycle on.

        The age grows at points without a cycle.
        """
        import pandas as pd
        from pyspark.sql import functions as F

        last: pd.DataFrame = (
            cycles.filter(F.col("job") == CycleJob.CHECKPOINT)
            .groupBy("flow", "at")
            .agg(F.max("finished_at").alias("finished_at"))
            .toPandas()
        )
        frames = []
        for name, seen in last.groupby("flow"):
            points = pd.DataFrame({"at": self._points()})
            points = pd.merge_asof(
                points, seen[["at", "finished_at"]].astype(points["at"].dtype).sort_values("at"), on="at"
            ).dropna()
            ends = (points["at"] + pd.Timedelta(seconds=self.width_s)).clip(upper=pd.Timestamp(self.until))
            frames.append(
                pd.DataFrame(
                    {
                        "flow": name,
                        "at": points["at"],
                        "age_s": (ends - points["finished_at"]).dt.total_seconds().clip(lower=0),
                    }
                )
            )
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"flow": [], "at": [], "age_s": []})

    def _stages(self, cycles: DataFrame) -> pd.DataFrame:
        from pyspark.sql import functions as F

        from mirrorlake.spark.timing import STAGES

        medians = [F.coalesce(F.median(F.col("stages_ms")[name]) / 1000, F.lit(0.0)).alias(name) for name in STAGES]
        return (
            cycles.filter((F.col("job") == CycleJob.MIRROR) & (F.col("records") > 0))
            .groupBy("flow", "at")
            .agg(*medians)
            .orderBy("flow", "at")
            .toPandas()
        )

    def _gates(self) -> pd.DataFrame:
        """Counts the evaluations of gates by their results; one evaluation has many expectations."""
        from pyspark.sql import functions as F

        results = self._in_window(
            self.ledger.read("expectation_results").withColumn("flow", F.col("subject")), "evaluated_at"
        )
        asked = results.groupBy("flow", "suite", "at", "cycle_id").agg(F.min("success").alias("passed"))
        counted = asked.groupBy("flow", "suite", "at").agg(
            F.count_if("passed").alias("passed"), F.count_if(~F.col("passed")).alias("refused")
        )
        return counted.orderBy("flow", "suite", "at").toPandas()

    # -- in numbers ---------------------------------------------------------------------------------

    def _in_numbers(self, verified: pd.DataFrame) -> Iterable[FlowReport]:
        from pyspark.sql import functions as F

        moved = self._by_flow(
            self._within("offset_syncs", "committed_at")
            .groupBy("flow")
            .agg(F.sum("records").alias("records"), F.sum("bytes").alias("bytes"))
        )
        past = self._named(self.ledger.read("cycles")).filter(F.col("finished_at") <= F.lit(self.until))
        signs = past.filter(F.col("job") != CycleJob.LEDGER).groupBy("flow", "job")
        last = signs.agg(
            F.max("finished_at").alias("at"),
            *(F.max_by(name, "finished_at").alias(name) for name in ("lag", "positions", "unfinished")),
        ).collect()
        jobs = {(row["flow"], row["job"]): row for row in last}
        newest = (
            self._named(self.ledger.read("offset_syncs"))
            .filter(F.col("committed_at") <= F.lit(self.until))
            .groupBy("flow")
        )
        committed = self._by_flow(newest.agg(F.max("committed_at").alias("at")))
        asked = (
            self._within("expectation_results", "evaluated_at", flow="subject")
            .groupBy("flow", "suite", "cycle_id")
            .agg(F.min("success").alias("passed"))
        )
        gates = self._by_flow(
            asked.groupBy("flow").agg(F.count("*").alias("evaluations"), F.count_if(~F.col("passed")).alias("refused"))
        )
        proofs = self._proofs()
        oddities = self._within("anomalies", "detected_at")
        odd = self._by_flow(
            oddities.groupBy("flow").agg(
                F.count("*").alias("anomalies"),
                F.sum(F.when(F.col("action") == AnomalyAction.CONTINUE, F.col("records"))).alias("losses"),
            )
        )
        unverified = verified.groupby("flow")["unverified"].sum() if len(verified) else {}
        for name in self.names:
            mirror, checkpoint = jobs.get((name, CycleJob.MIRROR)), jobs.get((name, CycleJob.CHECKPOINT))
            closed_at = _value(jobs.get((name, CycleJob.CLOSE)), "at")
            opened = [at for at in (_value(mirror, "at"), _value(jobs.get((name, CycleJob.OPEN)), "at")) if at]
            signs_of_mirror = [at for at in (_value(mirror, "at"), committed.get(name, {}).get("at")) if at]
            yield FlowReport(
                flow=name,
                quiet_minutes=self.quiet_minutes,
                records=_number(moved, name, "records"),
                bytes=_number(moved, name, "bytes"),
                lag=_value(mirror, "lag"),
                mirrored_at=max(signs_of_mirror, default=None),
                checkpointed_at=_value(checkpoint, "at"),
                positions=_value(checkpoint, "positions"),
                unfinished=_value(checkpoint, "unfinished"),
                evaluations=_number(gates, name, "evaluations"),
                refused=_number(gates, name, "refused"),
                verified_to=proof.get("verified_to") if (proof := proofs.get(name, {})).get("passed") else None,
                unverified=int(unverified.get(name, 0)),
                failed_verifications=_number(proofs, name, "failed"),
                losses=_number(odd, name, "losses"),
                anomalies=_number(odd, name, "anomalies"),
                is_closed=closed_at is not None and closed_at >= max(opened, default=closed_at),
            )

    def _proofs(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the commit time up to which each flow is verified, and its number of failed partitions.

        All that was committed on the target up to that time is verified, in all partitions: it is the last commit
        before the first record that no verification covers. A partition has failed if a difference stands in it, or if
        the newest verification has found it late, and a flow if that had nothing to compare at all.
        """
        from pyspark.sql import functions as F

        rows = self.ledger.read("verifications")
        rows = rows.filter(F.col("finished_at") <= F.lit(self.until))
        named = self._named(rows)
        wrong = self._named(standing_differences(rows)).select("flow", "topic", "partition")
        newest = named.groupBy("flow", "topic", "partition").agg(
            *(
                F.max_by(value, F.struct("finished_at", "upstream_to")).alias(name)
                for name, value in (("status", F.col("status")), ("late", F.coalesce("unmirrored", F.lit(0)) > 0))
            ),
            F.max("finished_at").alias("finished_at"),
        )
        last = named.groupBy("flow").agg(F.max("finished_at").alias("last"), F.max("passed").alias("passed"))
        in_vain = F.col("topic").isNull() & (F.col("finished_at") == F.col("last"))
        in_vain &= F.col("status") != VerificationStatus.NOTHING_NEW
        is_late = (F.col("status") == VerificationStatus.NOT_MIRRORED) | F.col("late")
        behind = newest.join(last, "flow").filter(is_late | in_vain)
        failed = wrong.unionByName(behind.select(*wrong.columns)).distinct()
        counted = failed.groupBy("flow").agg(F.count("*").alias("failed"))
        judged = last.select("flow", "passed").join(counted, "flow", "left")
        return self._by_flow(judged.join(self._verified_to(), "flow", "left"))

    def _comparable(self, view: str) -> DataFrame:
        """Returns the rows of a view about partitions, without those that can never be compared: a transform changes
        their records, or they were promoted. The newest verification says so."""
        from pyspark.sql import functions as F

        keys = ["flow", "topic", "partition"]
        rows = self._named(self.ledger.read("verifications"))
        newest = (
            rows.filter(F.col("mode").isin(VerificationMode.FULL, VerificationMode.INCREMENTAL))
            .groupBy(*keys)
            .agg(*(F.max_by(name, "finished_at").alias(name) for name in ("status", "detail")))
        )
        detail = F.coalesce("detail", F.lit(""))
        waits = [F.contains(detail, F.lit(reason.value)) for reason in (NotCompared.CORRUPT, NotCompared.NOT_IN_MAP)]
        is_exempt = (F.col("status") == VerificationStatus.NOT_COVERED) & ~waits[0] & ~waits[1]
        exempt = newest.filter(is_exempt).select(*keys)
        return self._named(views.read(self.ledger, view)).join(F.broadcast(exempt), keys, "left_anti")

    def _verified_to(self) -> DataFrame:
        """Returns the last commit of each flow before the first record that no verification covers."""
        from pyspark.sql import functions as F

        runs, unverified = (self._comparable(name) for name in ("current_runs", "unverified"))
        keys = ["flow", "topic", "partition"]
        first = unverified.groupBy(*keys).agg(F.min("from_offset").alias("first"))
        marked = runs.join(F.broadcast(first), keys, "left").select(
            "flow", "committed_at", (F.col("upstream_end") > F.col("first")).alias("is_open")
        )
        ends = marked.groupBy("flow").agg(F.min(F.when(F.col("is_open"), F.col("committed_at"))).alias("open_from"))
        before = F.col("open_from").isNull() | (F.col("committed_at") < F.col("open_from"))
        return (
            marked.join(F.broadcast(ends), "flow")
            .filter(before)
            .groupBy("flow")
            .agg(F.max("committed_at").alias("verified_to"))
        )

    def _verified(self) -> pd.DataFrame:
        from pyspark.sql import functions as F

        total = self._comparable("current_runs").groupBy("flow", "topic").agg(F.sum("records").alias("records"))
        left = self._comparable("unverified").groupBy("flow", "topic").agg(F.sum("records").alias("left"))
        unverified = F.least(F.coalesce("left", F.lit(0)), F.col("records"))
        joined = total.join(left, ["flow", "topic"], "left").select(
            "flow", "topic", (F.col("records") - unverified).alias("verified"), unverified.alias("unverified")
        )
        return joined.orderBy("flow", "topic").toPandas()

    def _anomalies(self) -> pd.DataFrame:
        from pyspark.sql import functions as F

        names = (
            "detected_at",
            "flow",
            "kind",
            "topic",
            "partition",
            "from_offset",
            "to_offset",
            "records",
            "action",
            "detail",
        )
        return (
            self._within("anomalies", "detected_at")
            .select(*names)
            .orderBy(F.desc("detected_at"))
            .limit(ANOMALIES_SHOWN)
            .toPandas()
        )

    # -- rows ---------------------------------------------------------------------------------------

    def _within(self, table: str, time: str, flow: str = "") -> DataFrame:
        """Returns the rows of the window, with their flow and their point (`at`, its start)."""
        from pyspark.sql import functions as F

        rows = self.ledger.read(table)
        return self._in_window(rows.withColumn("flow", F.col(flow)) if flow else self._named(rows), time)

    def _in_window(self, rows: DataFrame, time: str) -> DataFrame:
        from pyspark.sql import functions as F

        inside = rows.filter(
            F.col("flow").isin(*self.names) & (F.col(time) >= F.lit(self.since)) & (F.col(time) < F.lit(self.until))
        )
        return inside.withColumn("at", self._point(F.col(time)))

    def _point(self, time: Column) -> Column:
        from pyspark.sql import functions as F

        return F.timestamp_seconds(F.floor(F.unix_millis(time) / (1000 * self.width_s)) * self.width_s)

    def _points(self) -> Sequence[Any]:
        import pandas as pd

        width = f"{self.width_s}s"
        return pd.date_range(
            pd.Timestamp(self.since).floor(width), pd.Timestamp(self.until), freq=width, unit="us", inclusive="left"
        )

    def _every_point(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Adds rows of zeros for points without rows."""
        import pandas as pd

        full = pd.MultiIndex.from_product([self.names, self._points()], names=["flow", "at"])
        return (
            frame.astype({"at": full.levels[1].dtype})
            .set_index(["flow", "at"])
            .reindex(full, fill_value=0)
            .reset_index()
        )

    def _named(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        named = rows.withColumn("flow", F.concat("source", F.lit("->"), "target"))
        return named.filter(F.col("flow").isin(*self.names))

    def _by_flow(self, frame: DataFrame) -> dict[str, dict[str, Any]]:
        return {row["flow"]: row.asDict() for row in frame.collect()}


def _value(row: Row | None, column: str) -> Any:
    return None if row is None else row[column]


def _number(rows: Mapping[str, Mapping[str, Any]], name: str, column: str) -> int:
    return int(rows.get(name, {}).get(column) or 0)


def ago(span: timedelta) -> str:
    """Formats a time span with one unit, for display."""
    seconds = max(0, int(span.total_seconds()))
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"
