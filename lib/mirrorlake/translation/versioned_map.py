"""Reads the map as of one version of the Delta tables.

A verification uses only this version of the map, so that it gives the same result when it is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError
from mirrorlake.ledger.sql_text import literals
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.ledger.views import unfolded_runs
from mirrorlake.model.gap import RESETS, GapKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUN = (
    "topic",
    "partition",
    "target_topic",
    "target_partition",
    "upstream_start",
    "upstream_end",
    "downstream_start",
    "downstream_end",
    "digest",
    "committed_at",
    "is_inferred",
)

# A range that a reset has made void has no source any more. Its records remain on the target, unless the reset was the
# loss of the remote topic.
CURRENT = """
WITH resets AS (
  SELECT topic, partition, collect_list(struct(incarnation, from_offset, kind)) AS resets FROM {gaps}
    WHERE kind IN ({kinds}) GROUP BY topic, partition
),
limited AS (
  SELECT r.*, coalesce(array_min(transform(filter(z.resets, x -> x.incarnation >= r.incarnation), x -> x.from_offset)),
    r.upstream_end) AS limit,
    coalesce(exists(z.resets, x -> x.incarnation >= r.incarnation AND x.kind = {target_recreated}), false) AS is_gone
  FROM {runs} r LEFT JOIN resets z ON z.topic = r.topic AND z.partition = r.partition
)
SELECT topic, partition, target_topic, target_partition, upstream_start, least(upstream_end, limit) AS upstream_end,
  downstream_start,
  least(downstream_end, downstream_start + limit - upstream_start) AS downstream_end, CASE WHEN limit >= upstream_end
    THEN digest END AS digest,
  committed_at, is_inferred, false AS is_void, sync_partition, sync_offset
FROM limited WHERE upstream_start < limit
UNION ALL
SELECT topic, partition, target_topic, target_partition, upstream_end, upstream_end, greatest(downstream_start,
  downstream_start + limit - upstream_start), downstream_end, NULL,
  committed_at, is_inferred, true, sync_partition, sync_offset
FROM limited WHERE upstream_end > limit AND NOT is_gone
"""


@dataclass(frozen=True)
class Versions:
    """Delta versions of the tables offset_syncs and gaps that belong together."""

    offset_syncs: int
    gaps: int

    @classmethod
    def pinned(cls, ledger: Ledger, flow: Flow, version: int | None) -> Versions:
        """Returns the newest versions, or the versions that belong to a given version of offset_syncs.

        For a given version, the version of gaps is the one that the last verification with it used. Without such a
        verification, it is the version of gaps at the time of the offset_syncs version.

        Args:
            ledger: the tables.
            flow: flow whose verifications are read.
            version: version of offset_syncs; None for the newest.

        Raises:
            ConfigurationError: there is no such version.
        """
        from pyspark.sql import functions as F

        newest = cls(
            *(int(_history(ledger, name).agg(F.max("version")).collect()[0][0]) for name in ("offset_syncs", "gaps"))
        )
        if version is None:
            return newest
        table = ledger.table("offset_syncs")
        if version > newest.offset_syncs:
            raise ConfigurationError(
                f"parameter version is {version}, but {table} has no version after {newest.offset_syncs}"
            )
        known = (
            ledger.of_flow("verifications", flow)
            .filter(F.col("offset_syncs_version") == version)
            .agg(F.max_by("gaps_version", "finished_at"))
            .collect()[0][0]
        )
        if known is not None:
            return cls(version, int(known))
        made = _history(ledger, "offset_syncs").filter(F.col("version") == version).select("timestamp").first()
        if made is None:
            raise ConfigurationError(
                f"parameter version is {version}, which the history of {table} does not have any more"
            )
        at = (
            _history(ledger, "gaps")
            .filter(F.col("timestamp") <= F.lit(made["timestamp"]))
            .agg(F.max("version"))
            .collect()[0][0]
        )
        return cls(version, int(at or 0))


def current_map(ledger: Ledger, flow: Flow, versions: Versions) -> DataFrame:
    """Reads the runs of a flow that hold in the given versions.

    Resets (`gap.RESETS`) clip the runs. The columns are RUN, is_void, sync_partition, sync_offset.

    Ranges that a reset has made void and that remain on the target have rows with is_void. Such rows have no source
    offsets (upstream_start equals upstream_end) and no digest.
    """
    from pyspark.sql import functions as F

    runs = unfolded_runs(_of_version(ledger, flow, "offset_syncs", versions.offset_syncs))
    gaps = _of_version(ledger, flow, "gaps", versions.gaps)
    later = {"inferred": F.lit(False), "incarnation": F.lit(0)}  # older tables do not have these columns
    runs = runs.withColumns(
        {name: F.coalesce(name, default) if name in runs.columns else default for name, default in later.items()}
    )
    return clipped(runs, gaps)


def clipped(runs: DataFrame, gaps: DataFrame) -> DataFrame:
    """Clips the runs of one flow by later resets (`gap.RESETS`); see `current_map`, whose columns it returns.

    Args:
        runs: rows of offset_syncs, one for each run; inferred and incarnation are not null.
        gaps: the flow's rows of gaps (topic, partition, kind, from_offset, incarnation).
    """
    return runs.sparkSession.sql(
        CURRENT.replace("{kinds}", literals(RESETS)),
        runs=runs.withColumnRenamed("inferred", "is_inferred"),
        gaps=gaps,
        target_recreated=GapKind.TARGET_RECREATED,
    )


def last_states(ledger: Ledger, flow: Flow, versions: Versions) -> dict[int, int]:
    """Returns the offset of the last state of which the version has runs, by partition of the offset-syncs topic."""
    runs = _of_version(ledger, flow, "offset_syncs", versions.offset_syncs)
    return {row[0]: row[1] for row in runs.groupBy("sync_partition").agg({"sync_offset": "max"}).collect()}


def _of_version(ledger: Ledger, flow: Flow, name: str, version: int) -> DataFrame:
    table = ledger.spark.read.option("versionAsOf", version).table(ledger.table(name))
    return rows_of_pair(table, flow.source, flow.target)


def _history(ledger: Ledger, name: str) -> DataFrame:
    return ledger.spark.sql(f"DESCRIBE HISTORY {ledger.table(name)}")
