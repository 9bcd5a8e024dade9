"""Cuts the map into the segments that a verification compares.

A segment is one run with the gap in front of it, on both sides: `[upstream_from, upstream_end) -> [downstream_from,
downstream_end)`. Its mapped part is `[upstream_start, upstream_end) -> [downstream_start, downstream_end)`. The
segments of a partition cover its logs without a hole. A record is therefore either mapped or in a gap, and no reader
should see a record in a gap. The range behind the last run is also a segment, without a mapped part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.config.start import StartSpec
from mirrorlake.jobs.verification.scope import VerificationMode, VerificationScope
from mirrorlake.partition_key import PartitionKey
from mirrorlake.translation.versioned_map import RUN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.window import WindowSpec

REMOTE = ("target_topic", "target_partition")
LIMITS = ("upstream_from", "downstream_from", "downstream_to", "source_start", "target_start", "taken_over_to")
SHARES = 1_000_000  # into which the runs are cut, of which a fraction is judged
TYPES = {"int": "BIGINT", "str": "STRING", "bool": "BOOLEAN"}


class RunChoice(StrEnum):
    """The treatment of a run of the map in a verification."""

    BEFORE = "before"
    CHOSEN = "chosen"
    AFTER = "after"
    VOID = "void"  # its records remain on the target after a reset


@dataclass
class Extent:
    """The offsets of one partition that are verified, limited by the map and by both logs. Ends are exclusive.

    Attributes:
        topic: source topic.
        partition: source partition.
        target_topic: remote topic.
        target_partition: remote partition.
        upstream_from: first source offset to verify.
        upstream_to: end of the source offsets to verify.
        downstream_from: first target offset to verify.
        downstream_end: end of the last run.
        mapped: mapped records in this extent; each has an offset on both sides.
        taken_over_to: end on the target of the records that another mirror copied (`jobs/migration/takeover.py`); -1 if
            there are none.
        void: records on the target whose log the source has lost since; they are ignored.
        verified_to_ms: commit time of the last run, in ms since the epoch.
        elsewhere: records that were mirrored to another remote topic, because the flow changed its name; they are not
            verified.
        downstream_to: end of the target offsets to verify: the start of the next run, or the log's end.
        source_start: first offset of the source's log; earlier offsets can't be compared any more.
        target_start: first offset of the target's log; earlier offsets can't be compared any more.
        source_end: last stable offset of the source's log.
        target_end: last stable offset of the target's log.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int
    upstream_from: int
    upstream_to: int
    downstream_from: int
    downstream_end: int
    mapped: int
    taken_over_to: int
    void: int
    verified_to_ms: int
    elsewhere: int = 0
    downstream_to: int = 0
    source_start: int = 0
    target_start: int = 0
    source_end: int = 0
    target_end: int = 0

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    @property
    def remote(self) -> PartitionKey:
        return self.target_topic, self.target_partition


def with_choice(runs: DataFrame, scope: VerificationScope, verified: DataFrame, standing: DataFrame) -> DataFrame:
    """Adds the column choice (`RunChoice`) to the map: CHOSEN by the scope, BEFORE or AFTER the chosen runs, or VOID.

    Args:
        runs: runs of `versioned_map.current_map`.
        scope: scope of the verification.
        verified: rows of the table verifications that passed and count for `incremental`.
        standing: differences that no later verification has refuted (`standing_differences`); `incremental` looks at
            their offsets again.
    """
    from pyspark.sql import functions as F

    if scope.mode == VerificationMode.TIME:
        too_early = F.lit(False) if scope.from_time is None else F.col("committed_at") < F.lit(scope.from_time)
        too_late = F.lit(False) if scope.to_time is None else F.col("committed_at") >= F.lit(scope.to_time)
        return runs.withColumn(
            "choice",
            F.when(F.col("is_void"), RunChoice.VOID)
            .when(too_early, RunChoice.BEFORE)
            .when(too_late, RunChoice.AFTER)
            .otherwise(RunChoice.CHOSEN),
        )
    if scope.mode != VerificationMode.INCREMENTAL:
        return runs.withColumn("choice", F.when(F.col("is_void"), RunChoice.VOID).otherwise(RunChoice.CHOSEN))
    # A verification counts only if it has seen its last run, and that is still in the map: after a reset, offsets are
    # those of another log, or a run of the same offsets is one of a remote topic that was filled again.
    of_log = ["topic", "partition", "target_topic", "target_partition"]
    ended = verified.select(
        *of_log, F.col("upstream_to").alias("upstream_end"), "downstream_from", "downstream_to", "finished_at"
    )
    known = (
        runs.filter("NOT is_void")
        .join(ended, [*of_log, "upstream_end"])
        .filter("downstream_end > downstream_from AND downstream_end <= downstream_to AND committed_at <= finished_at")
    )
    limits = standing.groupBy("topic", "partition").agg(F.min(F.coalesce("upstream_from", F.lit(0))).alias("limit"))
    marks = (
        known.join(F.broadcast(limits), ["topic", "partition"], "left")
        .filter("limit IS NULL OR upstream_end <= limit")
        .groupBy("topic", "partition")
        .agg(F.max("upstream_end").alias("mark"))
    )
    chosen = runs.join(F.broadcast(marks), ["topic", "partition"], "left")
    return chosen.withColumn(
        "choice",
        F.when(F.col("is_void"), RunChoice.VOID)
        .when(F.col("upstream_end") <= F.col("mark"), RunChoice.BEFORE)
        .otherwise(RunChoice.CHOSEN),
    ).drop("mark")


def partitions_of(chosen: DataFrame) -> list[Row]:
    """Returns one row for each partition of the map and each remote topic it was ever mirrored to.

    A row has the bounds of the chosen runs (null if there are none), and the ends of the runs before them.
    """
    from pyspark.sql import functions as F

    of = lambda choice, column: F.when(F.col("choice") == choice, F.col(column))  # noqa: E731
    grouped = chosen.groupBy("topic", "partition", "target_topic", "target_partition").agg(
        F.max(of(RunChoice.BEFORE, "upstream_end")).alias("upstream_before"),
        F.max(of(RunChoice.BEFORE, "downstream_end")).alias("downstream_before"),
        F.min(of(RunChoice.CHOSEN, "upstream_start")).alias("upstream_start"),
        F.min(of(RunChoice.CHOSEN, "downstream_start")).alias("downstream_start"),
        F.max(of(RunChoice.CHOSEN, "upstream_end")).alias("upstream_to"),
        F.max(of(RunChoice.CHOSEN, "downstream_end")).alias("downstream_end"),
        F.sum(F.when(F.col("choice") == RunChoice.CHOSEN, F.col("upstream_end") - F.col("upstream_start"))).alias(
            "mapped"
        ),
        F.coalesce(
            F.sum(F.when(F.col("choice") == RunChoice.VOID, F.col("downstream_end") - F.col("downstream_start"))),
            F.lit(0),
        ).alias("void"),
        F.coalesce(F.max(F.when(F.col("is_inferred"), F.col("downstream_end"))), F.lit(-1)).alias("taken_over_to"),
        F.max(F.unix_millis(of(RunChoice.CHOSEN, "committed_at"))).alias("verified_to_ms"),
    )
    return grouped.collect()


def extents(
    partitions: Iterable[Row], flow: Flow, scope: VerificationScope, expired: Mapping[PartitionKey, int]
) -> list[Extent]:
    """Builds one extent for each partition (`partitions_of`) with chosen runs; the logs' offsets are set later.

    Args:
        partitions: the partitions of the map.
        flow: the flow.
        scope: the scope of the verification.
        expired: the source offset before which the map has expired, of each partition where it has (view `expired`).
    """
    everything = list(partitions)
    was_taken_over = any(row["taken_over_to"] >= 0 for row in everything)
    rows = sorted(
        (row for row in everything if row["mapped"] is not None and scope.has(row["topic"])),
        key=lambda row: (row["topic"], row["partition"], row["upstream_to"]),
    )
    found: dict[PartitionKey, Extent] = {}
    for row in rows:  # the last of several remote topics counts
        upstream, downstream = row["upstream_before"], row["downstream_before"]
        earlier = found.get((row["topic"], row["partition"]))
        # Before the first run of the map, records may be missing on the target, or unexpected there.
        if upstream is None:
            has_expired = row["upstream_start"] >= expired.get((row["topic"], row["partition"]), math.inf)
            is_whole = not (was_taken_over or earlier or has_expired) and all(
                flow.start.of(row["topic"], is_first=first) == StartSpec() for first in (True, False)
            )
            upstream = 0 if is_whole else row["upstream_start"]
            starts_behind = was_taken_over or earlier or has_expired or flow.topics_shared
            downstream = row["downstream_start"] if starts_behind else 0
        names = (
            "topic",
            "partition",
            "target_topic",
            "target_partition",
            "upstream_to",
            "downstream_end",
            "mapped",
            "taken_over_to",
            "void",
            "verified_to_ms",
        )
        extent = Extent(upstream_from=upstream, downstream_from=downstream, **{name: row[name] for name in names})
        extent.elsewhere = earlier.elsewhere + earlier.mapped if earlier else 0
        found[extent.key] = extent
    return list(found.values())


def extents_frame(spark: SparkSession, found: Iterable[Extent]) -> DataFrame:
    """Returns the extents as a frame, for joins."""
    schema = ", ".join(
        f"{field.name} {'INT' if 'partition' in field.name else TYPES[str(field.type)]}" for field in fields(Extent)
    )
    return spark.createDataFrame([tuple(asdict(extent).values()) for extent in found], schema)


def segments(
    chosen: DataFrame, found: DataFrame, *, is_shared: bool, fraction: float = 1.0, seed: int = 0
) -> DataFrame:
    """Cuts the chosen runs into segments, and adds a segment behind the last run of each partition.

    Args:
        chosen: the map with the column choice (`with_choice`).
        found: extents of the partitions, as a frame.
        is_shared: true if other programs write to the remote topics; there are no segments behind the last runs then.
        fraction: share of the runs that are judged.
        seed: seed of that choice; the same seed gives the same runs.

    Returns:
        The columns of RUN; upstream_from and downstream_from; mapped, the number of mapped offsets; expired, the number
        of those that can't be compared any more (start and from are behind them); is_judged; overlap, the number of
        source offsets that an earlier run has, too; is_behind, true if the run starts before the end of an earlier run
        on the target; is_taken_over, true if another mirror may have written into the gap.
    """
    limited = _with_limits(chosen, found)
    of_runs = _of_runs(limited, _is_judged(fraction, seed))
    return of_runs if is_shared else of_runs.unionByName(_behind_runs(found)).unionByName(_of_void_runs(limited))


def _with_limits(chosen: DataFrame, found: DataFrame) -> DataFrame:
    """Adds the limits of their partitions to the runs of the map, as columns `_upstream_from` and so on."""
    from pyspark.sql import functions as F

    of_partition = ("topic", "partition", *REMOTE)
    limits = found.select(*of_partition, *(F.col(name).alias(f"_{name}") for name in LIMITS))
    return chosen.join(F.broadcast(limits), [*of_partition])


def _is_judged(fraction: float, seed: int) -> Column:
    """Chooses a share of the runs, the same ones for one seed."""
    from pyspark.sql import functions as F

    if fraction >= 1:
        return F.lit(True)
    hashed = F.xxhash64("topic", "partition", "upstream_start", F.lit(seed))
    return F.pmod(hashed, F.lit(SHARES)) < round(fraction * SHARES)


def _of_runs(limited: DataFrame, is_judged: Column) -> DataFrame:
    """The segments of the chosen runs: each with the gap in front of it, as far as both logs still reach."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def earlier(of: Sequence[str], *order: str) -> WindowSpec:
        return Window.partitionBy(*of).orderBy(*order).rowsBetween(Window.unboundedPreceding, -1)

    upstream, downstream = (
        earlier(("topic", "partition"), "upstream_start", "downstream_start"),
        earlier(REMOTE, "downstream_start", "upstream_start"),
    )
    mapped = F.col("upstream_end") - F.col("upstream_start")
    expired = F.least(
        F.greatest(
            F.lit(0),
            F.col("_source_start") - F.col("upstream_start"),
            F.col("_target_start") - F.col("downstream_start"),
        ),
        mapped,
    )
    cut = limited.filter(F.col("choice") == RunChoice.CHOSEN).select(
        *RUN,
        mapped.alias("mapped"),
        expired.alias("expired"),
        is_judged.alias("is_judged"),
        F.greatest(F.lit(0), F.max("upstream_end").over(upstream) - F.col("upstream_start")).alias("overlap"),
        F.coalesce(F.max("downstream_end").over(upstream) > F.col("downstream_start"), F.lit(False)).alias("is_behind"),
        F.coalesce(F.max("upstream_end").over(upstream), "_upstream_from").alias("upstream_from"),
        F.coalesce(F.max("downstream_end").over(downstream), "_downstream_from").alias("downstream_from"),
        "_taken_over_to",
    )
    for side in ("upstream", "downstream"):
        cut = cut.withColumn(f"{side}_start", F.col(f"{side}_start") + F.col("expired"))
        cut = cut.withColumn(
            f"{side}_from",
            F.when(F.col("expired") > 0, F.col(f"{side}_start")).otherwise(F.least(f"{side}_from", f"{side}_start")),
        )
    return cut.withColumn("is_taken_over", F.col("downstream_from") <= F.col("_taken_over_to")).drop("_taken_over_to")


def _unmapped(*, is_judged: bool) -> list[Column]:
    """The columns of a segment without a mapped part."""
    from pyspark.sql import functions as F

    zero = F.lit(0).cast("long")
    return [
        zero.alias("mapped"),
        zero.alias("expired"),
        zero.alias("overlap"),
        F.lit(is_judged).alias("is_judged"),
        F.lit(False).alias("is_behind"),
    ]


def _behind_runs(found: DataFrame) -> DataFrame:
    """The segments behind the last run of each partition, up to where the map goes on or the log ends."""
    from pyspark.sql import functions as F

    return found.filter("downstream_to > downstream_end").select(
        "topic",
        "partition",
        *REMOTE,
        F.col("upstream_to").alias("upstream_start"),
        F.col("upstream_to").alias("upstream_end"),
        F.col("downstream_to").alias("downstream_start"),
        F.col("downstream_to").alias("downstream_end"),
        F.lit(None).cast("string").alias("digest"),
        F.lit(None).cast("timestamp").alias("committed_at"),
        F.lit(False).alias("is_inferred"),
        *_unmapped(is_judged=True),
        F.col("upstream_to").alias("upstream_from"),
        F.col("downstream_end").alias("downstream_from"),
        (F.col("downstream_end") <= F.col("taken_over_to")).alias("is_taken_over"),
    )


def _of_void_runs(limited: DataFrame) -> DataFrame:
    """The segments of what a reset has left on the target, which have no source."""
    from pyspark.sql import functions as F

    end = F.least("downstream_end", "_downstream_to")
    return limited.filter(F.col("choice") == RunChoice.VOID).select(
        *RUN[:4],
        F.col("upstream_start"),
        F.col("upstream_start").alias("upstream_end"),
        end.alias("downstream_start"),
        end.alias("downstream_end"),
        *RUN[8:],
        *_unmapped(is_judged=False),
        F.col("upstream_start").alias("upstream_from"),
        F.greatest("downstream_start", "_downstream_from").alias("downstream_from"),
        F.lit(True).alias("is_taken_over"),
    )


def first_later_runs(later: DataFrame, found: DataFrame) -> dict[PartitionKey, int]:
    """Returns the first offset of a run behind the verified ones, by remote partition.

    Args:
        later: columns target_topic, target_partition and downstream_start of runs.
        found: extents, as a frame.
    """
    from pyspark.sql import functions as F

    ends = found.groupBy("target_topic", "target_partition").agg(F.max("downstream_end").alias("end"))
    behind = later.join(F.broadcast(ends), ["target_topic", "target_partition"]).filter("downstream_start >= end")
    return {
        (row[0], row[1]): row[2]
        for row in behind.groupBy("target_topic", "target_partition").agg(F.min("downstream_start")).collect()
    }
