"""The trace of a flow as the tables offset_syncs and gaps have it, held against the invariants of the protocol.

The tables have no generations and no positions, so the audit of the offset-syncs topic (`model/trace.py`) checks more.
Rows expire only from the beginning of a partition, so the rows that are left still follow each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mirrorlake.ledger import views
from mirrorlake.ledger.sql_text import literal, literals
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.model.gap import RESETS, GapKind
from mirrorlake.model.trace import MOST_SHOWN, Violation

# Each check selects the rows that break it: slot, offset, topic, partition, and what was found.
CHECKS = {
    "each epoch has one transaction, and epochs only grow": """
        SELECT slot, offset, '' AS topic, -1 AS partition,
          concat('producer ', producer_id, ' with epoch ', producer_epoch, ' follows epoch ', before) AS detail
        FROM (SELECT *, lag(producer_epoch) OVER (PARTITION BY slot, producer_id ORDER BY offset) AS before
              FROM (SELECT DISTINCT sync_partition AS slot, sync_offset AS offset, producer_id, producer_epoch
                    FROM {runs} WHERE NOT coalesce(inferred, false)))
        WHERE producer_epoch <= before""",
    "a producer writes one slot": """
        SELECT min(sync_partition) AS slot, min(sync_offset) AS offset, '' AS topic, -1 AS partition,
          concat('producer ', producer_id, ' has written the slots ',
            array_join(array_sort(collect_set(sync_partition)), ', ')) AS detail
        FROM {runs} GROUP BY producer_id HAVING count(DISTINCT sync_partition) > 1""",
    "a run has as many offsets on both sides as records": """
        SELECT sync_partition AS slot, sync_offset AS offset, topic, partition,
          concat('[', upstream_start, ', ', upstream_end, ') -> [', downstream_start, ', ', downstream_end, ') has ',
            records, ' records') AS detail
        FROM {runs} WHERE upstream_end - upstream_start != records OR downstream_end - downstream_start != records""",
    "runs and gaps continue where the position stood": """
        SELECT slot, offset, topic, partition,
          concat('upstream offsets [', first, ', ', end, ') follow ', before) AS detail
        FROM (SELECT *, lag(end) OVER (PARTITION BY topic, partition, incarnation ORDER BY first, end) AS before FROM (
          SELECT topic, partition, coalesce(incarnation, 0) AS incarnation,
            upstream_start AS first, upstream_end AS end, sync_partition AS slot, sync_offset AS offset,
            coalesce(inferred, false) AS inferred FROM {runs}
          UNION ALL
          SELECT topic, partition, incarnation, from_offset, to_offset, sync_partition, sync_offset, false FROM {gaps}
          WHERE kind NOT IN (RESETS)))
        WHERE first != before AND NOT inferred""",
    "a slot copies a partition in order": """
        SELECT sync_partition AS slot, sync_offset AS offset, topic, partition,
          concat('upstream offset ', upstream_start, ' comes after ', before) AS detail
        FROM (SELECT *, max(upstream_end) OVER (PARTITION BY sync_partition, topic, partition, incarnation
                ORDER BY sync_offset, upstream_start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
              FROM {runs})
        WHERE upstream_start < before""",
    "downstream offsets only grow": """
        SELECT sync_partition AS slot, sync_offset AS offset, topic, partition,
          concat('upstream offset ', upstream_start, ' is at ', downstream_start, ' on the target, before ', before)
            AS detail
        FROM (SELECT *, lag(downstream_end) OVER (PARTITION BY topic, partition, target_topic, target_partition
                ORDER BY incarnation, upstream_start) AS before FROM {runs})
        WHERE downstream_start < before AND topic NOT IN (RECREATED)""",
    "downstream offsets are given once": """
        SELECT sync_partition AS slot, sync_offset AS offset, topic, partition,
          concat('offset ', downstream_start, ' of ', target_topic, '-', target_partition, ' is in two runs') AS detail
        FROM (SELECT *, lag(downstream_end) OVER (PARTITION BY target_topic, target_partition
                ORDER BY downstream_start, downstream_end) AS before FROM {runs})
        WHERE downstream_start < before AND topic NOT IN (RECREATED)""",
}


@dataclass
class TableAudit:
    """The audit of a flow's rows: what was looked at, the checks that were made, and the violations."""

    counts: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)


def flows(ledger: Ledger) -> list[tuple[str, str]]:
    """Lists the flows whose runs a ledger has, by the aliases of their clusters."""
    pairs = ledger.read("offset_syncs").select("source", "target").distinct()
    return sorted((row["source"], row["target"]) for row in pairs.collect())


def audit_tables(ledger: Ledger, source: str, target: str) -> TableAudit:
    """Audits the rows of one flow.

    Args:
        ledger: the ledger.
        source: the alias of the source.
        target: the alias of the target.
    """
    from pyspark.sql import functions as F

    runs, gaps, audit = (
        views.runs_of_pair(ledger, source, target),
        rows_of_pair(views.read(ledger, "offset_sync_gaps"), source, target),
        TableAudit(),
    )
    # Offsets begin anew in a remote topic that was created anew, and rows do not say to which of the two they belong.
    recreated = gaps.filter(F.col("kind") == str(GapKind.TARGET_RECREATED)).select("topic").distinct().collect()
    names = {"RESETS": literals(map(str, RESETS)), "RECREATED": literals(row["topic"] for row in recreated) or "''"}
    counts = runs.agg(
        F.count("*").alias("runs"),
        F.count_distinct("sync_partition", "sync_offset").alias("transactions"),
        F.count_distinct("sync_partition").alias("slots"),
        F.count_distinct("producer_id").alias("producers"),
        F.count_distinct("topic", "partition").alias("partitions"),
    ).first()
    assert counts is not None  # an aggregate has one row
    audit.counts.update({**counts.asDict(), "gaps": gaps.count()})
    audit.checked.update(dict.fromkeys(CHECKS, 1))
    query = " UNION ALL ".join(f"SELECT {literal(check)} AS check, * FROM ({query})" for check, query in CHECKS.items())
    for word, values in names.items():
        query = query.replace(f"({word})", f"({values})")
    found = ledger.spark.sql(query, None, runs=runs, gaps=gaps)
    for row in found.orderBy("slot", "offset", "topic", "partition").limit(MOST_SHOWN).collect():
        audit.violations.append(
            Violation(row["check"], row["slot"], row["offset"], row["detail"], row["topic"], row["partition"])
        )
    audit.counts["violations"] = len(audit.violations)
    return audit
