"""Judges the partitions of a map: compares both logs, explains one-sided records, and counts the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from mirrorlake.jobs.verification.classify import (
    WORDS,
    Cleaned,
    FindingKind,
    findings,
    with_doubts,
    with_places,
    with_reasons,
)
from mirrorlake.jobs.verification.compare import Comparison, compared, located
from mirrorlake.jobs.verification.logs import Cleanup, FlowLogs
from mirrorlake.jobs.verification.result import PartitionVerification
from mirrorlake.jobs.verification.segments import Extent, extents_frame
from mirrorlake.partition_key import PartitionKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Counts = defaultdict[PartitionKey, defaultdict[Any, int]]

OF_MAP = """
SELECT topic, partition, upstream_start AS upstream_offset, downstream_start AS downstream_offset, {duplicated} AS kind,
  concat('the map has ', overlap, ' source offsets twice, from this one on') AS detail FROM {segments} WHERE overlap > 0
UNION ALL
SELECT topic, partition, upstream_start, downstream_start, {out_of_order},
  concat('the target offsets of the map go back for ', mapped, ' records, from this one on')
FROM {segments} WHERE is_behind
"""


def _counts() -> Counts:
    return defaultdict(lambda: defaultdict(int))


@dataclass(frozen=True)
class VerifiedMap:
    """The map of a verification.

    Attributes:
        extents: extents by source partition.
        segments: segments of the extents (`jobs/verification/segments.py`); those that are not judged are ignored.
        is_shared: true if other programs write to the remote topics.
        is_partial: true if not all segments are judged.
        digested: number of recognised records of each partition.
        dropped: ranges of source offsets that an operator has dropped (`FlowLogs.source_fingerprints`).
    """

    extents: Mapping[PartitionKey, Extent]
    segments: DataFrame
    is_shared: bool
    is_partial: bool = False
    digested: Mapping[PartitionKey, int] | None = None
    dropped: Sequence[tuple[str, int, int, int]] = ()

    def totals(self) -> dict[PartitionKey, Any]:
        """Returns sums over the judged segments, by partition, and the bounds of the offsets to read (null if there are
        none)."""
        from pyspark.sql import functions as F

        is_there = F.col("is_judged") & ((F.col("mapped") == 0) | (F.col("expired") < F.col("mapped")))
        sums = [
            F.sum(F.when(F.col("is_judged"), F.col(name)).otherwise(0)).alias(name) for name in ("mapped", "expired")
        ]
        bounds = []
        for side in ("upstream", "downstream"):
            has_any = is_there & (F.col(f"{side}_end") > F.col(f"{side}_from"))
            bounds += [
                F.min(F.when(has_any, F.col(f"{side}_from"))).alias(f"{side}_from"),
                F.max(F.when(has_any, F.col(f"{side}_end"))).alias(f"{side}_to"),
            ]
        behind = F.sum(F.when(F.col("is_behind"), F.col("mapped")).otherwise(0)).alias("behind")
        rows = self.segments.groupBy("topic", "partition").agg(
            *sums, F.sum("overlap").alias("overlap"), behind, *bounds
        )
        return {(row["topic"], row["partition"]): row for row in rows.collect()}


@dataclass(frozen=True)
class _Wrong:
    """The differences between both logs.

    Attributes:
        findings: rows of `classify.findings`.
        kinds: findings of each partition, by kind.
        changed: changed records of each partition, by the parts that differ.
        placed: mismatches of each partition, by whether they are at a mapped offset.
        explained: mismatches of each partition, by whether they are explained.
    """

    findings: DataFrame | None = None
    kinds: Counts = field(default_factory=_counts)
    changed: Counts = field(default_factory=_counts)
    placed: Counts = field(default_factory=_counts)
    explained: Counts = field(default_factory=_counts)


def judge(of_map: VerifiedMap, logs: FlowLogs) -> tuple[list[PartitionVerification], DataFrame | None]:
    """Compares both logs.

    Returns:
        A row for each partition, and the findings (columns of `classify.findings`; None if there are none).
    """
    totals = of_map.totals()
    source, outcome = _compare(of_map, logs, totals)
    counts = _counted(outcome, "kind", "records")
    wrong = (
        _wrong(of_map, logs, source, outcome)
        if any(count[Comparison.MISMATCH] for count in counts.values())
        else _Wrong()
    )
    deleted = _deleted_on_target(of_map, logs)
    unknown = logs.cleanup("source", {topic for topic, _ in deleted}).unknown if deleted else {}
    partitions = [
        _partition(
            of_map, extent, total=totals[key], counts=counts[key], wrong=wrong, deleted_on_target=deleted.get(key, 0)
        )
        for key, extent in of_map.extents.items()
    ]
    for partition in partitions:
        if (partition.topic, partition.partition) in deleted and partition.topic in unknown:
            partition.notes.append(unknown[partition.topic])
    _settle_vanished(partitions, of_map, logs)
    rows = [wrong.findings] if wrong.findings is not None else []
    if any(total["overlap"] or total["behind"] for total in totals.values()):
        rows.append(outcome.sparkSession.sql(OF_MAP, segments=of_map.segments, **WORDS))
    return partitions, reduce(lambda one, other: one.unionByName(other), rows) if rows else None


def _wrong(of_map: VerifiedMap, logs: FlowLogs, source: DataFrame, outcome: DataFrame) -> _Wrong:
    reasons, doubts = _explained(of_map, logs, outcome)
    rows = with_doubts(findings(reasons, source), **doubts)
    return _Wrong(
        findings=rows,
        kinds=_counted(rows, "kind"),
        changed=_counted(rows.filter(rows.kind == FindingKind.DIFFERENT), "detail"),
        placed=_counted(reasons, "is_mapped"),
        explained=_counted(reasons, "is_explained"),
    )


def _partition(
    of_map: VerifiedMap, extent: Extent, total: Any, counts: Mapping[str, int], wrong: _Wrong, deleted_on_target: int
) -> PartitionVerification:
    """Returns the row of one partition: what had to be verified, and the result."""
    key, equal, digested = extent.key, counts[Comparison.EQUAL], (of_map.digested or {}).get(extent.key, 0)
    kinds = {kind: wrong.kinds[key][kind] for kind in FindingKind}
    held_against = equal + digested + kinds[FindingKind.DIFFERENT] + kinds[FindingKind.OUT_OF_ORDER]
    kinds[FindingKind.MISSING] += deleted_on_target
    kinds[FindingKind.DUPLICATED] += total["overlap"]
    kinds[FindingKind.OUT_OF_ORDER] += total["behind"]
    return PartitionVerification(
        *key,
        *extent.remote,
        upstream_from=extent.upstream_from,
        upstream_to=extent.upstream_to,
        downstream_from=extent.downstream_from,
        downstream_to=extent.downstream_to,
        records=held_against,
        digested=digested,
        missing=kinds[FindingKind.MISSING],
        duplicated=kinds[FindingKind.DUPLICATED],
        out_of_order=kinds[FindingKind.OUT_OF_ORDER],
        different=kinds[FindingKind.DIFFERENT],
        unexpected=kinds[FindingKind.UNEXPECTED],
        not_comparable=total["expired"] - deleted_on_target + wrong.explained[key][True],
        mapped=total["mapped"] + digested,
        accounted=total["expired"] + equal + digested + wrong.placed[key][True],
        verified_to=datetime.fromtimestamp(extent.verified_to_ms / 1000, UTC),
        notes=list(
            _notes(
                of_map,
                extent,
                total=total,
                left_out=counts[Comparison.LEFT_OUT],
                changed=wrong.changed[key],
                deleted_on_target=deleted_on_target,
            )
        ),
    )


def _compare(of_map: VerifiedMap, logs: FlowLogs, totals: Mapping[PartitionKey, Any]) -> tuple[DataFrame, DataFrame]:
    """Returns the source's fingerprints, and the result of `compare.compared`."""
    here: dict[PartitionKey, tuple[int, int]] = {}
    there: dict[PartitionKey, tuple[int, int]] = {}
    for key, total in totals.items():
        extent = of_map.extents[key]
        if total["upstream_from"] is not None:
            here[key] = max(total["upstream_from"], extent.source_start), min(total["upstream_to"], extent.source_end)
        if total["downstream_from"] is not None:  # several topics may share a remote topic
            start, end = (
                max(total["downstream_from"], extent.target_start),
                min(total["downstream_to"], extent.target_end),
            )
            known = there.get(extent.remote, (start, end))
            there[extent.remote] = min(start, known[0]), max(end, known[1])
    source = logs.source_fingerprints(here, of_map.dropped)
    if of_map.is_partial:
        judged = located(
            source, of_map.segments, on=("topic", "partition"), start="upstream_from", end="upstream_end"
        ).filter("range.is_judged")
        source = judged.drop("range")
    return source, compared(
        source, logs.target_fingerprints(there), of_map.segments, is_shared=of_map.is_shared
    ).localCheckpoint()


def _explained(of_map: VerifiedMap, logs: FlowLogs, outcome: DataFrame) -> tuple[DataFrame, dict[str, dict[str, str]]]:
    """Returns the mismatches with the map's data and is_explained (see `classify.with_reasons`), and for each side the
    topics of the source of which nobody can tell what the cleaner has deleted there, with the reason."""
    from pyspark.sql import functions as F

    mismatches = with_places(outcome, of_map.segments).localCheckpoint()
    one_sided = (
        mismatches.filter("is_mapped AND (source IS NULL OR target IS NULL)")
        .groupBy("topic", F.col("source").isNull().alias("lacks_source"))
        .count()
        .collect()
    )
    extents = of_map.extents.values()
    # retention may have deleted more since
    source_starts, target_starts = logs.starts(extents) if one_sided else ({}, {})
    starts = [
        replace(
            extent,
            source_start=source_starts.get(extent.key, extent.source_start),
            target_start=target_starts.get(extent.remote, extent.target_start),
        )
        for extent in extents
    ]
    cleaned: dict[str, Cleaned | None] = {}
    doubts: dict[str, dict[str, str]] = {}
    for side in ("source", "target"):
        lacking = {row["topic"] for row in one_sided if row["lacks_source"] == (side == "source")}
        names = {
            extent.key: extent.topic if side == "source" else extent.target_topic
            for extent in extents
            if extent.topic in lacking
        }
        cleanup = logs.cleanup(side, set(names.values()))
        doubts[side] = {key[0]: cleanup.unknown[name] for key, name in names.items() if name in cleanup.unknown}
        cleaned[side] = _cleaned(side, logs, [one for one in extents if one.key in names], names, cleanup)
    frame = extents_frame(outcome.sparkSession, starts)
    return with_reasons(mismatches, frame, **cleaned).localCheckpoint(), doubts


def _deleted_on_target(of_map: VerifiedMap, logs: FlowLogs) -> dict[PartitionKey, int]:
    """Counts the records before the first offsets of the target that the source still has, and is to keep."""
    from pyspark.sql import functions as F

    deleted = of_map.segments.filter("is_judged AND expired > 0").select(
        "topic",
        "partition",
        (F.col("upstream_start") - F.col("expired")).alias("from_offset"),
        F.col("upstream_start").alias("to_offset"),
    )
    ends = deleted.groupBy("topic", "partition").agg(
        F.min("from_offset").alias("start"), F.max("to_offset").alias("end")
    )
    bounds = {
        key: (max(row["start"], of_map.extents[key].source_start), row["end"])
        for row in ends.collect()
        if (key := (row["topic"], row["partition"])) in of_map.extents
    }
    kept = logs.kept_records({key: bound for key, bound in bounds.items() if bound[0] < bound[1]})
    if kept is None:
        return {}
    found = located(kept, deleted, on=("topic", "partition"), start="from_offset", end="to_offset")
    rows = found.filter("range IS NOT NULL").groupBy("topic", "partition").count().collect()
    return {(row["topic"], row["partition"]): row["count"] for row in rows}


def _cleaned(
    side: str, logs: FlowLogs, extents: Iterable[Extent], names: Mapping[PartitionKey, str], cleanup: Cleanup
) -> Cleaned | None:
    """Returns the records that the log cleaner has left of the partitions on that side; None if none is compacted.

    `names` has the topic of each partition on that side.
    """
    compacted = cleanup.compacted
    chosen = [extent for extent in extents if names[extent.key] in compacted]
    if not chosen:
        return None
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    before_ms = {extent.topic: now_ms - compacted[names[extent.key]] for extent in chosen}
    return Cleaned(before_ms, logs.last_keys(side, chosen))


def _settle_vanished(partitions: Iterable[PartitionVerification], of_map: VerifiedMap, logs: FlowLogs) -> None:
    """Explains mapped offsets without a record on either side.

    They expired during the comparison, at most as many as a log has lost offsets meanwhile, or were compacted on both
    sides. Otherwise the map is wrong, and a note says so.
    """
    short = [partition for partition in partitions if partition.accounted < partition.mapped]
    if not short:
        return
    extents = [of_map.extents[partition.topic, partition.partition] for partition in short]
    starts, remote_starts = logs.starts(extents)
    cleaned, remote_cleaned = (
        logs.cleanup("source", {extent.topic for extent in extents}),
        logs.cleanup("target", {extent.target_topic for extent in extents}),
    )
    for partition, extent in zip(short, extents, strict=True):
        vanished = partition.mapped - partition.accounted
        gone = max(
            0,
            starts.get(extent.key, 0) - extent.source_start,
            remote_starts.get(extent.remote, 0) - extent.target_start,
        )
        is_compacted = extent.topic in cleaned.compacted and extent.target_topic in remote_cleaned.compacted
        explained = vanished if is_compacted else min(vanished, gone)
        partition.accounted += explained
        partition.not_comparable += explained
        if vanished := vanished - explained:
            doubts = (cleaned.unknown.get(extent.topic), remote_cleaned.unknown.get(extent.target_topic))
            why = (f"the map has {vanished:,} records that neither side has", *doubts)
            partition.notes.append("; ".join(filter(None, why)))


def _notes(
    of_map: VerifiedMap, extent: Extent, total: Any, left_out: int, changed: Mapping[str, int], deleted_on_target: int
) -> Iterable[str]:
    if deleted_on_target:
        yield f"{deleted_on_target:,} records that the source keeps are deleted on the target (counted as missing)"
    if changed:
        yield "different in " + ", ".join(f"{parts} ({count:,})" for parts, count in sorted(changed.items()))
    if total["expired"]:
        yield (
            f"{total['expired']:,} records of the map are before the first offsets that the logs still have "
            f"({extent.source_start:,} on the source, {extent.target_start:,} on the target)"
        )
    if left_out:
        yield (
            f"{left_out:,} records were not compared: other flows, other producers or another mirror have written "
            "them, or a failback has dropped them (table gaps)"
        )
    if extent.elsewhere:
        yield f"{extent.elsewhere:,} records were mirrored to another remote topic before, and not compared"
    if extent.void:
        yield (
            f"{extent.void:,} records on the target are of a log that the source has lost since (table gaps), and "
            "were not compared"
        )
    if extent.taken_over_to >= 0:
        yield "another mirror has copied a part; its missing and repeated records are in anomalies"
    if of_map.is_shared:
        yield "other programs write to the remote topic too; records outside the map were not compared"


def _counted(rows: DataFrame, of: str, records: str = "") -> Counts:
    """Counts rows (or sums a column) for each partition, by the values of column `of`."""
    from pyspark.sql import functions as F

    counts = _counts()
    count = F.sum(records) if records else F.count("*")
    for row in rows.groupBy("topic", "partition", of).agg(count.alias("n")).collect():
        counts[row["topic"], row["partition"]][row[of]] = row["n"]
    return counts
