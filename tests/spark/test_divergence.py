"""Records that a flow has brought are left out of a diverged tail, however many ranges of offsets they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mirrorlake.jobs.failover.divergence import BUCKET, Divergence, _brought, _summed, without_brought
from mirrorlake.ledger.store import Ledger

from tests.example_ledger import run


def test_records_in_ranges_within_across_and_at_the_edges_of_buckets_are_left_out_and_no_others(spark: Any) -> None:
    ranges = {
        ("t", 0): [(3, 5), (BUCKET - 1, BUCKET + 1), (2 * BUCKET, 4 * BUCKET), (4 * BUCKET + 1, 4 * BUCKET + 2)],
        ("t", 1): [(0, BUCKET)],
    }
    offsets = sorted({at + by for start, end in ranges["t", 0] for at in (start, end) for by in (-1, 0, 1)})
    rows = [("t", partition, offset) for partition in (0, 1, 2) for offset in offsets]
    records = spark.createDataFrame(rows, "topic STRING, partition INT, offset BIGINT")
    left = {tuple(row) for row in without_brought(records, ranges).collect()}
    assert left == {
        (topic, partition, offset)
        for topic, partition, offset in rows
        if not any(start <= offset < end for start, end in ranges.get((topic, partition), ()))
    }
    plan = without_brought(records, ranges)._jdf.queryExecution().executedPlan().toString()
    assert "bucket" in plan.split("LeftAnti")[0], "every record would be compared with every range of its partition"


def test_what_the_flow_back_has_brought_is_in_the_partitions_that_it_has_written(example: Ledger) -> None:
    names = {"source": "there", "target": "here", "target_topic": "t"}
    spread = run(9_001, "t", 0, (0, 50), 100, "10:00:00", **names, target_partition=1)
    renamed = run(9_002, "former", 1, (0, 10), 150, "10:00:01", **names)
    example.append("offset_syncs", [spread, renamed])
    flow: Any = SimpleNamespace(source="here", target="there")
    keys = ("t", 0), ("t", 1)
    found = _brought(flow, example, dict.fromkeys(keys, 120))
    assert found == {("t", 1): ((100, 160),)}


def test_records_whose_time_no_calendar_has_are_shown_and_counted(spark: Any) -> None:
    times = (1_700_000_000_000_000, 1_700_000_000_000, -99_999_999_999_999)  # the first one is in microseconds
    values = ", ".join(f"('t', 0, {offset}L, timestamp_millis({at}L), X'01', X'02')" for offset, at in enumerate(times))
    frame = spark.sql(f"SELECT * FROM VALUES {values} r (topic, partition, offset, timestamp, key, value)")
    flow: Any = SimpleNamespace(name="a->b", source="a")
    assert [row.year for row in Divergence(flow, (), frame, {}, {}, {}, {}, {}).sample()["timestamp"]] == [
        9999,
        2023,
        1,
    ]
    (records, last, first_at, last_at) = _summed(flow, frame)["t", 0]
    assert (records, last, first_at.year, last_at.year) == (3, 2, 1, 9999)
