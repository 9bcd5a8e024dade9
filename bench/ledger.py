"""`make bench-ledger`: the size of the ledger and the time of translation, for many runs and many groups.

Runs are generated in the order in which a mirror job commits them: every active partition gets one in each micro-batch.
Groups are at random offsets; each reads all partitions of one topic. A smaller ledger is measured first and not
counted. The results are a line for each size and .local/bench/ledger.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from mirrorlake.ledger.folding import fold_runs
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.views import ensure_views, read
from mirrorlake.local.session import local_session
from mirrorlake.translation.sql_join import current_runs, translate

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local/bench/ledger"
TOPICS, PARTITIONS = 10, 100
RECORDS = 1_000  # of each run; a marker takes one more offset on either side
SLOTS = 16

RUNS = f"""
SELECT 'west' AS source, 'east' AS target, concat('topic-', id % {TOPICS}) AS topic,
  CAST(id DIV {TOPICS} % {PARTITIONS} AS INT) AS partition,
  concat('west.topic-', id % {TOPICS}) AS target_topic, CAST(id DIV {TOPICS} % {PARTITIONS} AS INT) AS target_partition,
  n * {RECORDS + 1} AS upstream_start, n * {RECORDS + 1} + {RECORDS} AS upstream_end,
    n * {RECORDS + 1} AS downstream_start, n * {RECORDS + 1} + {RECORDS} AS downstream_end,
  {RECORDS}L AS records, 200000 + pmod(hash(id), 100000) AS bytes,
  timestamp_millis(1790000000000 + 5000 * n - 5000 + pmod(hash(id, 1), 500)) AS first_timestamp,
    timestamp_millis(1790000000000 + 5000 * n - pmod(hash(id, 2), 500)) AS last_timestamp,
  lower(lpad(hex(pmod(xxhash64(id), 4294967296)), 8, '0')) AS digest,
  concat('mirrorlake.west.east.slot-', id % {SLOTS}) AS transactional_id, 1000 + id % {SLOTS} AS producer_id,
    CAST(state % 32000 AS INT) AS producer_epoch,
  CAST(id % {SLOTS} AS INT) AS sync_partition, 2 * state AS sync_offset,
    timestamp_millis(1790000000000 + 5000 * last + 300) AS committed_at, false AS inferred, 0 AS incarnation,
    false AS shared
FROM (SELECT *, n DIV IN_ONE AS state, n DIV IN_ONE * IN_ONE + IN_ONE - 1 AS last
  FROM (SELECT id, id DIV {TOPICS * PARTITIONS} AS n FROM {{ids}}))
"""


def positions(spark: Any, groups: int, runs: int) -> Any:
    """Places each group at a random offset of each partition of its topic."""
    end = max(1, runs // (TOPICS * PARTITIONS)) * (RECORDS + 1)
    ids = spark.range(groups * PARTITIONS)
    return spark.sql(
        f"""SELECT concat('group-', id DIV {PARTITIONS}) AS group_id, concat('topic-',
          id DIV {PARTITIONS} % {TOPICS}) AS topic, CAST(id % {PARTITIONS} AS INT) AS partition,
              pmod(xxhash64(id), {end}) AS upstream_offset, '' AS metadata FROM {{ids}}""",
        ids=ids,
    )


def mirrored(spark: Any, runs: int) -> Any:
    """Makes the mirrored range of each partition."""
    end = max(1, runs // (TOPICS * PARTITIONS)) * (RECORDS + 1)
    return spark.sql(
        f"""SELECT concat('topic-', id % {TOPICS}) AS topic, CAST(id DIV {TOPICS} AS INT) AS partition,
          concat('west.topic-', id % {TOPICS}) AS target_topic,
              0L AS log_start, {end}L AS log_end, {end}L AS upstream_next, {end - 1}L AS downstream_next,
              CAST(NULL AS BIGINT) AS resumed_at
                FROM {{ids}}""",
        ids=spark.range(TOPICS * PARTITIONS),
    )


class Clock:
    """A clock for elapsed time and CPU time; CPU time hardly depends on other load of the machine."""

    def __init__(self, spark: Any) -> None:
        self._process = psutil.Process(spark.sparkContext._gateway.proc.pid)

    def time(self, work: Callable[[], Any]) -> dict[str, float]:
        """Returns the seconds that `work` takes, elapsed and of CPU."""
        began, cpu = time.monotonic(), self._cpu()
        work()
        return {"s": round(time.monotonic() - began, 2), "cpu_s": round(self._cpu() - cpu, 2)}

    def _cpu(self) -> float:
        times = [process.cpu_times() for process in (self._process, *self._process.children(recursive=True))]
        return sum(time.user + time.system for time in times)


def drained(frame: Any) -> None:
    """Computes all rows of a frame."""
    frame.write.format("noop").mode("overwrite").save()


def measure(spark: Any, runs: int, groups: list[int], in_one: int) -> dict[str, Any]:
    """Measures one size of the ledger.

    Args:
        spark: the session.
        runs: the number of runs.
        groups: numbers of groups to translate.
        in_one: the number of runs that a state has of a partition: 1 without transactions on the source.
    """
    clock = Clock(spark)
    shutil.rmtree(HOME, ignore_errors=True)
    schema = f"bench_{runs}"
    ledger = Ledger(spark, "spark_catalog", schema, str(HOME)).ensure_tables()
    ensure_views(ledger)
    spark.sql(f"USE spark_catalog.{schema}")
    rows = spark.sql(RUNS.replace("IN_ONE", str(in_one)), ids=spark.range(runs))
    result: dict[str, Any] = {"runs": runs, "in_one": in_one}
    result["append"] = clock.time(lambda: ledger.append_frame("offset_syncs", fold_runs(rows)))
    result["rows"] = ledger.read("offset_syncs").count()
    result["mb"] = _mb(ledger)
    result["optimize"] = clock.time(lambda: ledger.change("offset_syncs", f"OPTIMIZE {ledger.table('offset_syncs')}"))
    result["mb_optimized"] = _mb(ledger)
    middle = runs // (TOPICS * PARTITIONS) // 2 * (RECORDS + 1)
    one = f"SELECT * FROM translate('west', 'east', 'topic-3', 7, {middle + 5})"
    for _ in range(2):  # the first one warms up
        result["translate_one"] = clock.time(lambda: spark.sql(one).collect())
    (answer,) = spark.sql(one).collect()
    assert (answer["downstream_offset"], answer["status"]) == (middle + 5, "exact"), answer
    for count in groups:
        asked, known = positions(spark, count, runs), mirrored(spark, runs)
        gaps = ledger.read("gaps")
        work = translate(asked, current_runs(read(ledger, "offset_sync_runs"), gaps), gaps, known)
        result[f"translate_{count * PARTITIONS}"] = clock.time(lambda work=work: drained(work))
    result["unverified"] = clock.time(lambda: drained(read(ledger, "unverified")))
    return result


def _mb(ledger: Ledger) -> float:
    (detail,) = ledger.spark.sql(f"DESCRIBE DETAIL {ledger.table('offset_syncs')}").collect()
    return round(detail["sizeInBytes"] / 1e6, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--in-one", type=int, default=1, help="runs that a state has of a partition")
    parser.add_argument("--memory", default="6g", help="of Spark")
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    spark = local_session(
        ROOT,
        "bench",
        f"local[{given.cores}]",
        quick_start=False,
        **{
            "spark.driver.memory": given.memory,
            "spark.sql.shuffle.partitions": "16",
            "spark.local.dir": str(HOME.parent),
        },
    )
    try:
        measure(spark, 100_000, [100], given.in_one)  # not counted
        results = []
        for runs in given.runs:
            results.append(measure(spark, runs, given.groups, given.in_one))
            print(json.dumps(results[-1]), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(HOME, ignore_errors=True)
    (HOME.parent / "ledger.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
