"""Folds what one state has of a partition: its runs into one row of offset_syncs, and its gaps into one row of gaps.

A source with many small transactions has a run and a gap for each of them. A row for each would be many more rows than
micro-batches have partitions. The views offset_sync_runs and offset_sync_gaps unfold them to one row for each again.

A state with one run of a partition has a row as before. A folded row spans its runs, and has the sums of their records
and bytes. Losses and resets keep rows of their own, as they are rare and looked for.

A version of mirrorlake that does not know folded rows would take one for a single run. It refuses states from
FOLDED_FROM on, so only these are folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrorlake.model.gap import EXPLAINED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FOLDED_FROM = 4  # version of the states (`model/slot.py`)
SEVERAL = "several"  # kind of a folded row of gaps
DIGEST_BASE = 1 << 31  # a folded digest is the CRC less this number, so that it fits into four bytes

STATE = ("source", "target", "sync_partition", "sync_offset", "committed_at")
RUN_KEYS = (
    *STATE,
    "topic",
    "partition",
    "target_topic",
    "target_partition",
    "transactional_id",
    "producer_id",
    "producer_epoch",
    "inferred",
    "incarnation",
    "shared",
)
GAP_KEYS = (*STATE, "topic", "partition", "incarnation")


def fold_runs(rows: DataFrame) -> DataFrame:
    """Folds rows of offset_syncs: one for each partition and target partition of a state, with the column runs.

    Args:
        rows: one row for each run (`run_rows`).
    """
    from pyspark.sql import functions as F

    # Only what the view can compute is folded. A run with other lengths would be an error, and stays as it is.
    length, there = F.col("upstream_end") - F.col("upstream_start"), F.col("downstream_end") - F.col("downstream_start")
    is_plain = (F.col("records") == length) & (F.col("records") == there)
    run = F.struct(
        "upstream_start", "downstream_start", "records", "bytes", "first_timestamp", "last_timestamp", "digest"
    )
    grouped = rows.groupBy(*RUN_KEYS, F.when(~is_plain, F.col("upstream_start")).alias("alone")).agg(
        F.min("upstream_start").alias("upstream_start"),
        F.max("upstream_end").alias("upstream_end"),
        F.min("downstream_start").alias("downstream_start"),
        F.max("downstream_end").alias("downstream_end"),
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
        _if_all_known(F.min, "first_timestamp"),
        _if_all_known(F.max, "last_timestamp"),
        F.when(F.count("*") == 1, F.first("digest")).alias("digest"),
        F.sort_array(F.collect_list(run)).alias("each"),
    )
    committed_ms = F.unix_millis("committed_at")
    runs = F.transform(
        "each",
        lambda one: F.struct(
            (one["upstream_start"] - F.col("upstream_start")).alias("upstream"),
            (one["downstream_start"] - F.col("downstream_start")).alias("downstream"),
            one["records"].alias("records"),
            one["bytes"].alias("bytes"),
            (committed_ms - F.unix_millis(one["first_timestamp"])).alias("first_ms"),
            (committed_ms - F.unix_millis(one["last_timestamp"])).alias("last_ms"),
            (F.conv(one["digest"], 16, 10).cast("bigint") - DIGEST_BASE).cast("int").alias("digest"),
        ),
    )
    return grouped.select(*rows.columns, F.when(F.size("each") > 1, runs).alias("runs"))


def fold_gaps(rows: DataFrame) -> DataFrame:
    """Folds rows of gaps: one for the explained gaps of each partition of a state, and one for each other gap.

    Args:
        rows: one row for each gap (`gap_rows`).
    """
    from pyspark.sql import functions as F

    is_alone = ~F.col("kind").isin(*map(str, EXPLAINED))
    gap = F.struct("from_offset", "to_offset", "kind", "downstream_offset")
    grouped = rows.groupBy(*GAP_KEYS, F.when(is_alone, F.struct("from_offset", "kind")).alias("alone")).agg(
        F.min("from_offset").alias("from_offset"),
        F.max("to_offset").alias("to_offset"),
        F.when(F.count("*") == 1, F.first("kind")).otherwise(F.lit(SEVERAL)).alias("kind"),
        F.min("downstream_offset").alias("downstream_offset"),
        F.sort_array(F.collect_list(gap)).alias("each"),
    )
    parts = F.transform(
        "each",
        lambda one: F.struct(
            (one["from_offset"] - F.col("from_offset")).alias("upstream"),
            (one["to_offset"] - one["from_offset"]).alias("offsets"),
            one["kind"].alias("kind"),
            (one["downstream_offset"] - F.col("downstream_offset")).alias("downstream"),
        ),
    )
    return grouped.select(*rows.columns, F.when(F.size("each") > 1, parts).alias("parts"))


def folded(
    states: DataFrame, rows_of: Callable[[DataFrame], DataFrame], fold: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Makes the rows of a table, folded where no version can misread them.

    Args:
        states: the states (`offset_sync_states`).
        rows_of: makes the rows of states, `run_rows` or `gap_rows`.
        fold: folds them, `fold_runs` or `fold_gaps`.
    """
    from pyspark.sql import functions as F

    is_newer = F.coalesce("version", F.lit(0)) >= FOLDED_FROM
    return rows_of(states.filter(~is_newer)).unionByName(
        fold(rows_of(states.filter(is_newer))), allowMissingColumns=True
    )


def has_several(name: str) -> Column:
    """Returns whether a state has several runs of a partition, or several gaps.

    Args:
        name: the column of the state, runs or gaps.
    """
    from pyspark.sql import functions as F

    partitions = F.transform(name, lambda one: F.struct(one["topic"], one["partition"]))
    return F.size(name) > F.size(F.array_distinct(partitions))


def _if_all_known(function: Any, name: str) -> Column:
    """Aggregates a column; null if it is null in a row."""
    from pyspark.sql import functions as F

    return F.when(F.count(name) == F.count("*"), function(name)).alias(name)
