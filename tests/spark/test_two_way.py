"""Counterparts by both maps, compared with their definition and with the translation by one map."""

from __future__ import annotations

import random
from typing import Any

from mirrorlake.model.run import Run
from mirrorlake.state.backlog import between
from mirrorlake.translation.sql_join import MIRRORED, POSITIONS, Mirrored, translate
from mirrorlake.translation.two_way import KNOWN, PIECES, by_definition, counterparts, ranges_there, records_between

from tests.spark.test_sql_join import GAPS, RUNS, WITHOUT_RUNS, random_runs

Piece = tuple[str, int, int, int, str, int, int, bool]


def both_ways(dice: random.Random, topic: str, *, at_once: bool) -> list[Piece]:
    """Generates the two maps of a partition that both sides write, in turns or at once.

    Where both write at once, the stretches of records have a different order on each side.
    """
    stretches = [(dice.randint(1, 6), dice.random() < 0.5) for _ in range(dice.randint(1, 30))]
    places: list[list[int]] = []
    for order in (
        list(range(len(stretches))),
        sorted(range(len(stretches)), key=lambda at: at + (dice.uniform(0, 4) if at_once else 0)),
    ):
        at, starts = dice.randint(0, 5), [0] * len(stretches)
        for number in order:
            starts[number] = at
            at += stretches[number][0] + dice.randint(0, 2)
        places.append(starts)
    return [
        (topic, 0, here, here + length, f"x.{topic}", 0, there, is_back)
        for (length, is_back), here, there in zip(stretches, *places, strict=True)
    ]


def pairs(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(start + at, to_start + at) for _, _, start, end, _, _, to_start, _ in pieces for at in range(end - start)]


def test_sql_and_definition_agree_for_every_offset_of_maps_of_both_directions(spark: Any) -> None:
    dice = random.Random(11)
    maps = {f"t{number}": both_ways(dice, f"t{number}", at_once=number % 2 == 0) for number in range(16)}
    positions, known, expected = [], [], {}
    for topic, made in maps.items():
        end = made[-1][3]
        known.append((topic, 0, 0, end + 3, end + 3, 0, 0, None, None, f"x.{topic}", 0))
        for offset in range(end + 4):
            positions.append((f"g{offset}", topic, 0, offset, ""))
            expected[f"g{offset}", topic] = by_definition(pairs(made), offset)
    frames = (
        spark.createDataFrame(positions, POSITIONS),
        spark.createDataFrame([piece for made in maps.values() for piece in made], PIECES),
        spark.createDataFrame(known, KNOWN),
    )
    found = {
        (row["group_id"], row["topic"]): (row["downstream_offset"], row["again"])
        for row in counterparts(*frames).collect()
    }
    assert found == expected
    mixed = {key for key, (_, again) in found.items() if again}
    assert mixed, "no map was out of order"
    assert all(int(topic[1:]) % 2 == 0 for _, topic in mixed), "in turns, nothing is read again"


def test_without_a_way_back_it_is_the_translation(spark: Any) -> None:
    dice = random.Random(3)
    maps = {f"t{number}": random_runs(dice, f"t{number}", 0) for number in range(6)}
    positions, mirrored = [("early", "new", 0, 4, "")], [Mirrored("new", 0, "a.new", 0, 9, 0, 0)]
    for topic, runs in maps.items():
        end, downstream = (
            runs[-1].upstream_end,
            runs[-1].downstream_end + (topic == "t1"),
        )  # of t1 the ledger lacks something
        mirrored.append(Mirrored(topic, 0, f"a.{topic}", 0, end + 5, end + 2, downstream))
        positions += [(f"g{offset}", topic, 0, offset, "") for offset in range(end + 8)]
    maps["truncated"] = [Run("truncated", 0, "a.truncated", 0, 0, 10, 0, 10, 10, 0, 0, 0, 0)]
    maps["again"] = [Run("again", 0, "a.again", 0, 0, 10, 50, 60, 10, 0, 0, 0, 0)]
    for one in WITHOUT_RUNS:
        mirrored.append(one)
        positions += [(f"g{offset}", one.topic, 0, offset, "") for offset in range(60)]
    known = [(one.topic, 0, *one[3:7], 0, one.resumed_at, None, one.target_topic, 0) for one in mirrored]
    rows = [run for runs in maps.values() for run in runs]
    plain = spark.createDataFrame(
        [
            (run.topic, 0, run.upstream_start, run.upstream_end, run.downstream_start, run.downstream_end)
            for run in rows
        ],
        RUNS,
    )
    turned = spark.createDataFrame(
        [
            (run.topic, 0, run.upstream_start, run.upstream_end, f"a.{run.topic}", 0, run.downstream_start, False)
            for run in rows
        ],
        PIECES,
    )
    asked = spark.createDataFrame(positions, POSITIONS)
    columns = (
        "group_id",
        "topic",
        "partition",
        "target_topic",
        "target_partition",
        "downstream_offset",
        "status",
        "mirrored_end",
    )
    one, other = (
        {tuple(row) for row in frame.select(*columns).collect()}
        for frame in (
            translate(asked, plain, spark.createDataFrame([], GAPS), spark.createDataFrame(mirrored, MIRRORED)),
            counterparts(asked, turned, spark.createDataFrame(known, KNOWN)),
        )
    )
    assert one == other
    statuses = {"exact", "clamped", "before_mirror", "not_covered", "not_mirrored_yet"}
    assert {status for *_, status, _ in one} == statuses


def test_what_a_flow_has_written_is_one_range_with_its_markers_and_several_with_records_of_others(spark: Any) -> None:
    rows = [
        ("t", 0, 0, 10, "x.t", 0, 5, False),  # 5 to 15, and a marker
        ("t", 0, 10, 20, "x.t", 0, 16, False),
        ("t", 0, 20, 25, "x.t", 0, 29, False),  # three offsets are missing
        ("t", 0, 90, 95, "x.t", 0, 60, True),
        ("t", 1, 0, 3, "x.t", 1, 0, False),
    ]
    keys = {("x.t", 0), ("x.t", 1), ("x.u", 0)}
    found = ranges_there(spark.createDataFrame(rows, PIECES), keys)
    assert found == {("x.t", 0): [(5, 26), (29, 34)], ("x.t", 1): [(0, 3)]}
    assert [*between(0, 40, found["x.t", 0])] == [(0, 5), (26, 29), (34, 40)]
    assert [*between(10, 30, found["x.t", 0])] == [(26, 29)]
    assert [*between(6, 20, found["x.t", 0]), *between(5, 5, ())] == []
    assert [*between(3, 8, ())] == [(3, 8)]


def test_records_between_two_offsets_are_counted_by_runs(spark: Any) -> None:
    made = spark.createDataFrame([("t", 0, 0, 10, "x", 0, 5, False), ("t", 0, 10, 14, "x", 0, 16, False)], PIECES)
    spans = spark.createDataFrame(
        [("a", "x", 0, 7, 18), ("b", "x", 0, 15, 16), ("c", "x", 0, 0, 99)],
        "group_id STRING, target_topic STRING, target_partition INT, from BIGINT, to BIGINT",
    )
    assert {row["group_id"]: row["records"] for row in records_between(spans, made).collect()} == {"a": 10, "c": 14}
