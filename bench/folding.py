"""`make bench-folding`: what a source with many small transactions leaves in the ledger, folded and not.

States are made as a job commits them: each partition has a run and a gap for each transaction of the source. Rows are
folded by default, to one for each partition and micro-batch in each table. The results are a line for each case and
.local/bench/folding.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from mirrorlake.ledger import folding
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.views import ensure_views
from mirrorlake.local.session import local_session
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import SlotState

from bench.clusters import HOME as BENCHES
from bench.clusters import ROOT
from bench.ledger import Clock

HOME = BENCHES / "folding"
RECORDS = "value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
SLOTS, TOPICS = 4, 10
BATCH_S, PER_SECOND, LARGEST = 5, 10, 10  # of a micro-batch; transactions of a partition; records of each
FIRST = datetime(2026, 9, 21, tzinfo=UTC)
NEVER = 1 << 30  # a version that no state has
ASKED = (3, 7, 2_205)  # number of a topic, partition, offset


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    shutil.rmtree(HOME, ignore_errors=True)
    settings = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.local.dir": str(BENCHES / "spark"),
    }
    spark = local_session(ROOT, "bench", "local[2]", quick_start=False, **settings)
    try:
        measured(spark, "warm", folding.FOLDED_FROM, given.partitions, 2)  # not counted
        cases = (("folded", folding.FOLDED_FROM), ("rows", NEVER))
        results = [measured(spark, name, first, given.partitions, given.batches) for name, first in cases]
    finally:
        spark.stop()
        shutil.rmtree(HOME, ignore_errors=True)
    assert results[0]["answer"] == results[1]["answer"], "both translate alike"
    (BENCHES / "folding.json").write_text(json.dumps({"case": vars(given), "rows": results}, indent=1))
    return 0


def measured(spark: Any, name: str, folded_from: int, partitions: int, batches: int) -> dict[str, Any]:
    """Measures what some micro-batches leave in a ledger, of which each is appended by itself.

    Args:
        spark: the session.
        name: name of the case and of its schema.
        folded_from: version of the states that are folded.
        partitions: number of partitions with traffic.
        batches: number of micro-batches.
    """
    default, folding.FOLDED_FROM = folding.FOLDED_FROM, folded_from
    try:
        ledger = Ledger(spark, "spark_catalog", name, str(HOME)).ensure_tables()
        clock, dice = Clock(spark), random.Random(1)
        found: dict[str, Any] = {"case": name, "batches": batches, "append_s": 0.0, "append_cpu_s": 0.0}
        for batch in range(batches):
            frame = spark.createDataFrame([*records(dice, batch, partitions)], RECORDS).repartition(SLOTS)
            took = clock.time(lambda frame=frame: ledger.merge_offset_syncs(frame))
            found["append_s"] += took["s"] / batches
            found["append_cpu_s"] += took["cpu_s"] / batches
    finally:
        folding.FOLDED_FROM = default
    for table in ("offset_syncs", "gaps"):
        rows, size = ledger.read(table).count(), _bytes(ledger, table)
        ledger.change(table, f"OPTIMIZE {ledger.table(table)}")
        found |= {
            f"{table}_rows_a_partition": rows / batches / partitions,
            f"{table}_kb_a_batch": size / batches / 1e3,
            f"{table}_kb_a_batch_optimized": _bytes(ledger, table) / batches / 1e3,
        }
    ensure_views(ledger)
    spark.sql(f"USE spark_catalog.{name}")
    topic, partition, offset = ASKED
    one = f"SELECT * FROM translate('west', 'east', 'topic-{topic}', {partition}, {offset})"
    for _ in range(2):  # the first one warms up
        found["translate_one_s"] = clock.time(lambda: spark.sql(one).collect())["s"]
    found["answer"] = [row["downstream_offset"] for row in spark.sql(one).collect()]
    found = {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}
    print(json.dumps(found), flush=True)
    return found


def records(dice: random.Random, batch: int, partitions: int) -> Iterator[tuple[bytearray, int, int, datetime]]:
    """Yields the states of one micro-batch, as rows of Spark's Kafka source."""
    for slot in range(SLOTS):
        mine = [transactions(dice, batch, number) for number in range(slot, partitions, SLOTS)]
        state = SlotState(
            source="west",
            target="east",
            source_cluster_id="",
            slot=slot,
            slots=SLOTS,
            generation=1,
            transactional_id=f"mirrorlake.west.east.slot-{slot}",
            producer_id=1_000 + slot,
            producer_epoch=batch,
            runs=tuple(run for runs, _ in mine for run in runs),
            gaps=tuple(gap for _, gaps in mine for gap in gaps),
        )
        committed_at = FIRST + timedelta(seconds=BATCH_S * (batch + 1))
        yield bytearray(state.to_json()), slot, 2 * batch, committed_at


def transactions(dice: random.Random, batch: int, number: int) -> tuple[list[Run], list[Gap]]:
    """Returns the runs and gaps of one partition in one micro-batch: one of each for each transaction."""
    topic, partition = f"topic-{number % TOPICS}", number // TOPICS
    up = down = batch * BATCH_S * PER_SECOND * (LARGEST + 1)
    began_ms = int(FIRST.timestamp() * 1000) + 1000 * BATCH_S * batch
    runs, gaps = [], []
    for each in range(BATCH_S * PER_SECOND):
        count, at_ms = dice.randint(1, LARGEST), began_ms + 1000 * each // PER_SECOND + dice.randint(0, 60)
        runs.append(
            Run(
                topic,
                partition,
                f"west.{topic}",
                partition,
                upstream_start=up,
                upstream_end=up + count,
                downstream_start=down,
                downstream_end=down + count,
                records=count,
                bytes=70 + 520 * count,
                first_timestamp=at_ms,
                last_timestamp=at_ms + dice.randint(0, 20),
                digest=dice.getrandbits(32),
            )
        )
        gaps.append(Gap(topic, partition, up + count, up + count + 1, GapKind.MARKER, 0, down + count))
        up, down = up + count + 1, down + count
    return runs, gaps


def _bytes(ledger: Ledger, table: str) -> int:
    (detail,) = ledger.spark.sql(f"DESCRIBE DETAIL {ledger.table(table)}").collect()
    return int(detail["sizeInBytes"])


if __name__ == "__main__":
    sys.exit(main())
