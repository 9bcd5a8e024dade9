"""Two logs are hashed in Spark and aligned, partition by partition."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from mirrorlake.jobs.migration.log_comparison import FOUND, compare, with_hash

RECORDS = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: "
    "BINARY>>, timestamp TIMESTAMP"
)
TIME = datetime(2026, 11, 1)


def hashed(spark: Any, rows: list[tuple[Any, ...]], *stamped: str) -> Any:
    return with_hash(spark.createDataFrame(rows, RECORDS), stamped)


def test_whatever_differs_in_a_record_gives_another_hash(spark: Any) -> None:
    contents = [
        (None, None, None, TIME),
        (b"", None, None, TIME),
        (None, b"", None, TIME),
        (b"a", b"", None, TIME),
        (b"", b"a", None, TIME),
        (b"ab", b"c", None, TIME),
        (b"a", b"bc", None, TIME),
        (b"a", b"bc", None, datetime(2026, 11, 1, 0, 0, 0, 1_000)),
        (b"a", b"bc", [("h", b"1")], TIME),
        (b"a", b"bc", [("h", b"2")], TIME),
        (b"a", b"bc", [("h", b"1"), ("h", b"1")], TIME),
    ]
    rows = hashed(spark, [("t", 0, at, *content) for at, content in enumerate(contents)]).collect()
    assert len({row["hash"] for row in rows}) == len(contents)
    assert [row["bytes"] for row in sorted(rows, key=lambda row: row["offset"])][:6] == [0, 0, 0, 1, 1, 3]


def test_where_the_copy_was_stamped_anew_its_time_does_not_count(spark: Any) -> None:
    rows = [("t", 0, at, b"a", b"b", None, datetime(2026, 11, 1 + at)) for at in range(2)]
    assert len({row["hash"] for row in hashed(spark, rows, "t").collect()}) == 1
    assert len({row["hash"] for row in hashed(spark, rows, "u").collect()}) == 2


def test_runs_are_cut_where_either_side_skips_an_offset(spark: Any) -> None:
    value = lambda number: (None, str(number).encode(), None, TIME)  # noqa: E731
    source = [("t", 0, offset, *value(offset)) for offset in (0, 1, 2, 5, 6, 7, 8)] + [("t", 1, 0, *value(0))]
    copy = [("t", 0, offset, *value(of)) for offset, of in ((10, 1), (11, 2), (12, 5), (14, 6), (15, 7))]
    one, other = (hashed(spark, rows).groupBy("topic", "partition") for rows in (source, copy))
    found = {
        row["partition"]: json.loads(row["finding"])
        for row in one.cogroup(other).applyInArrow(compare, FOUND).collect()
    }
    assert [run[:5] for run in found[0]["runs"]] == [[1, 3, 10, 12, 2], [5, 6, 12, 13, 1], [6, 8, 14, 16, 2]]
    assert (found[0]["upstream_next"], found[0]["copied"], found[0]["missing"], found[0]["foreign"]) == (8, 5, 0, 0)
    assert (found[1]["copied"], found[1]["runs"], found[1]["target_records"]) == (0, [], 0)
