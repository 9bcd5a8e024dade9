"""Two logs are compared by a map: each difference is found, with its kind and both offsets.

Each case is a partition of its own, so that all of them are compared at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mirrorlake.jobs.verification.classify import Cleaned, findings, with_places, with_reasons
from mirrorlake.jobs.verification.compare import compared, fingerprints
from mirrorlake.jobs.verification.segments import Extent, extents_frame, segments

RECORDS = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: "
    "BINARY>>, timestamp TIMESTAMP, timestampType INT"
)
RUNS = """topic STRING, partition INT, target_topic STRING, target_partition INT, upstream_start BIGINT,
  upstream_end BIGINT, downstream_start BIGINT, downstream_end BIGINT,
    digest STRING, committed_at TIMESTAMP, is_inferred BOOLEAN, choice STRING"""
TIME = datetime(2026, 11, 1, tzinfo=UTC)

Content = tuple[Any, ...]  # key, value, headers, timestamp, timestampType
Log = dict[int, Content]


def content(
    value: str | None, key: str | None = "k", headers: Any = None, ms: int = 0, *, stamped: bool = False
) -> Content:
    return (
        *(None if text is None else text.encode() for text in (key, value)),
        headers,
        TIME + timedelta(milliseconds=ms),
        int(stamped),
    )


def log(values: str, start: int = 0) -> Log:
    """Makes one record for each letter; _ is an offset without a record."""
    return {start + at: content(value) for at, value in enumerate(values) if value != "_"}


@dataclass
class Case:
    """One case: runs as (upstream_start, downstream_start, records), and the expected result.

    The result is the number of equal records, and kind and offsets of each finding.
    """

    source: Log
    target: Log
    runs: list[tuple[int, int, int]]
    equal: int
    expected: list[tuple[Any, ...]]
    topic: str = "t"
    inferred: bool = False
    source_start: int = 0
    target_start: int = 0

    def extent(self, partition: int) -> Extent:
        ends = (
            max(start + records for start, _, records in self.runs),
            max(start + records for _, start, records in self.runs),
        )
        places = sum(records for _, _, records in self.runs)
        reach = {
            "downstream_to": max([ends[1], *(offset + 1 for offset in self.target)]),
            "source_start": self.source_start,
            "target_start": self.target_start,
        }
        return Extent(
            self.topic,
            partition,
            f"a.{self.topic}",
            partition,
            0,
            ends[0],
            0,
            ends[1],
            places,
            ends[1] if self.inferred else -1,
            0,
            0,
            **reach,
        )


h, i = ("h", None), ("i", b"1")
VALUE = {at: content("v", headers=[h, i]) for at in range(8)}
CHANGED = {
    0: content("w", headers=[h, i]),
    1: content("v", "l", [h, i]),
    2: content("v", None, [h, i]),
    3: content("v", headers=[("h", b""), i]),
    4: content("v", headers=[i, h]),
    5: content("v"),
    6: content("v", headers=[h, i], ms=1),
    7: content(None, "x", ms=1),
}
ODD = {
    0: content("a"),
    1: content(None),
    2: content(""),
    5: content("b", None),
    6: content("c", "", [h, ("h", b"")]),
    7: content("d", ms=3),
}
TOMBSTONE = {
    0: content(None, "gone"),
    1: content("1", "x"),
    2: content("2", "y"),
    3: content("3", "x"),
    4: content("4", None),
    5: content("5", "z"),
}
ONLY = lambda *offsets: {offset: TOMBSTONE[offset] for offset in offsets}  # noqa: E731

CASES = {
    "equal": Case(
        ODD, {10: ODD[0], 11: ODD[1], 12: ODD[2], 14: ODD[5], 15: ODD[6], 16: ODD[7]}, [(0, 10, 3), (5, 14, 3)], 6, []
    ),
    "changed": Case(VALUE, CHANGED, [(0, 0, 8)], 0, [("different", at, at) for at in range(8)]),
    "lost": Case(log("abcdef"), log("ab__ef"), [(0, 0, 6)], 4, [("missing", 2, 2), ("missing", 3, 3)]),
    "lost at the end": Case(log("abc"), log("ab"), [(0, 0, 3)], 2, [("missing", 2, 2)]),
    "lost before it was mapped": Case(
        log("abcdef"), log("ab_ef"), [(0, 0, 2), (4, 3, 2)], 4, [("missing", 2, None), ("missing", 3, None)]
    ),
    "lost, and all later ones moved up": Case(
        log("abcde"), log("abde"), [(0, 0, 5)], 2, [("missing", 2, 2), ("out_of_order", 3, 2), ("out_of_order", 4, 3)]
    ),
    "doubled at the end": Case(log("abc"), log("abcb"), [(0, 0, 3)], 3, [("duplicated", 1, 3)]),
    "doubled between two runs": Case(log("abcd"), log("abacd"), [(0, 0, 2), (2, 3, 2)], 4, [("duplicated", 0, 2)]),
    "doubled, and all later ones moved down": Case(
        log("abc"), log("abbc"), [(0, 0, 3)], 2, [("duplicated", 1, 2), ("out_of_order", 2, 3)]
    ),
    "doubled in place of another": Case(log("abcd"), log("abbd"), [(0, 0, 4)], 3, [("different", 2, 2)]),
    "swapped": Case(log("abcdef"), log("aecdbf"), [(0, 0, 6)], 4, [("out_of_order", 1, 4), ("out_of_order", 4, 1)]),
    "neighbours swapped": Case(
        log("abcd", 5), log("acbd", 90), [(5, 90, 4)], 2, [("out_of_order", 6, 92), ("out_of_order", 7, 91)]
    ),
    "foreign": Case(
        log("abcd"), log("ab!cd?"), [(0, 0, 2), (2, 3, 2)], 4, [("unexpected", None, 2), ("unexpected", None, 5)]
    ),
    "mapped, but not on the source": Case(log("ab_d"), log("abxd"), [(0, 0, 4)], 3, [("unexpected", 2, 2)]),
    "the same content again and again": Case(log("aaaab"), log("aaaa_b"), [(0, 0, 4), (4, 5, 1)], 5, []),
    "one of many equal ones lost": Case(log("aaaab"), log("aa_ab"), [(0, 0, 5)], 4, [("missing", 2, 2)]),
    "expired on the source": Case(log("__cd"), log("abcd"), [(0, 0, 4)], 2, [], source_start=2),
    "expired on the target": Case(
        log("abcdef"), log("____e_f"), [(0, 0, 2), (2, 2, 3), (5, 6, 1)], 2, [], target_start=4
    ),
    "lost although younger than what has expired": Case(
        log("abcd"), log("__c_"), [(0, 0, 4)], 1, [("missing", 3, 3)], target_start=2
    ),
    "left by a take-over": Case(log("abcdef"), log("xabbdef?"), [(0, 1, 2), (3, 4, 3)], 5, [], inferred=True),
    "aborted on the source, and copied before a take-over": Case(
        log("ab_d"), log("abcd"), [(0, 0, 4)], 3, [], inferred=True
    ),
    "stamped by the target before a take-over": Case(
        log("ab"),
        {0: content("a", ms=9, stamped=True), 1: content("x", ms=9, stamped=True)},
        [(0, 0, 2)],
        1,
        [("different", 1, 1)],
        inferred=True,
    ),
    "stamped by the target": Case(
        log("a"), {0: content("a", ms=9, stamped=True)}, [(0, 0, 1)], 0, [("different", 0, 0)]
    ),
    "compacted on the target": Case(TOMBSTONE, ONLY(2, 3, 5), [(0, 0, 6)], 3, [], "cleaned-target"),
    "lost although it is compacted on the target": Case(
        TOMBSTONE, ONLY(0, 1, 2, 3, 4), [(0, 0, 6)], 5, [("missing", 5, 5)], "cleaned-target"
    ),
    "a tombstone lost that is too young to be compacted on the target": Case(
        TOMBSTONE, ONLY(2, 3, 5), [(0, 0, 6)], 3, [("missing", 0, 0)], "kept-target"
    ),
    "compacted on the source": Case(ONLY(2, 3, 5), TOMBSTONE, [(0, 0, 6)], 3, [], "cleaned-source"),
    "invented although it is compacted on the source": Case(
        ONLY(0, 1, 3, 4, 5), TOMBSTONE, [(0, 0, 6)], 5, [("unexpected", 2, 2)], "cleaned-source"
    ),
}


@pytest.fixture(scope="module")
def outcome(spark: Any) -> dict[str, tuple[int, list[tuple[Any, ...]], dict[Any, str]]]:
    """Returns, by case, the number of equal records, the findings in order, and their details by upstream offset."""
    from pyspark.sql import functions as F

    cases = list(enumerate(CASES.values()))

    def prints(side: str, prefix: str) -> Any:
        rows = [
            (prefix + case.topic, partition, offset, *record)
            for partition, case in cases
            for offset, record in getattr(case, side).items()
        ]
        return fingerprints(spark.createDataFrame(rows, RECORDS))

    def last(side: str) -> Cleaned:
        keys = prints(side, "").groupBy("topic", "partition", "key_hash").agg(F.max("offset").alias("last_offset"))
        # The tombstones of these cases have the time TIME.
        time_ms = round(TIME.timestamp() * 1000)
        return Cleaned({f"cleaned-{side}": time_ms + 1, f"kept-{side}": time_ms}, keys)

    runs = [
        (
            case.topic,
            partition,
            f"a.{case.topic}",
            partition,
            up,
            up + records,
            down,
            down + records,
            None,
            TIME,
            case.inferred,
            "chosen",
        )
        for partition, case in cases
        for up, down, records in case.runs
    ]
    extents = extents_frame(spark, [case.extent(partition) for partition, case in cases])
    cut = segments(spark.createDataFrame(runs, RUNS), extents, is_shared=False).localCheckpoint()
    source, target = prints("source", "").withColumn("left_out", F.lit(False)), prints("target", "a.")
    rows = compared(source, target, cut, is_shared=False).localCheckpoint()
    wrong = findings(
        with_reasons(with_places(rows, cut), extents, last("source"), last("target")).localCheckpoint(), source
    ).collect()
    equal = {row["partition"]: row["records"] for row in rows.filter("kind = 'equal'").collect()}
    found: dict[str, tuple[int, list[tuple[Any, ...]], dict[Any, str]]] = {}
    for (partition, _), name in zip(cases, CASES, strict=True):
        mine = [row for row in wrong if row["partition"] == partition]
        places = [(row["kind"], row["upstream_offset"], row["downstream_offset"]) for row in mine]
        found[name] = (
            equal.get(partition, 0),
            sorted(places, key=str),
            {row["upstream_offset"]: row["detail"] for row in mine},
        )
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_and_named_by_both_offsets(outcome: Any, name: str) -> None:
    equal, wrong, _ = outcome[name]
    assert (equal, wrong) == (CASES[name].equal, sorted(CASES[name].expected, key=str))


def test_what_differs_in_a_record_is_said(outcome: Any) -> None:
    details = outcome["changed"][2]
    assert [details[at] for at in range(8)] == [
        "value",
        "key",
        "key",
        "headers",
        "headers",
        "headers",
        "timestamp",
        "key, value, headers, timestamp",
    ]


def test_a_record_at_the_wrong_place_is_named_with_its_right_one(outcome: Any) -> None:
    assert outcome["neighbours swapped"][2] == {
        6: "the map has the record at downstream offset 91",
        7: "the map has the record at downstream offset 92",
    }
    assert outcome["lost before it was mapped"][2][2] == "the record is in no run of the map"
    assert outcome["doubled at the end"][2] == {1: "an additional copy of the record"}
