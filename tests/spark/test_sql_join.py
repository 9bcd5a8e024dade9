"""The SQL join and the definition of translation give the same result for every position on every map."""

from __future__ import annotations

import random
from typing import Any

from chispa import assert_df_equality
from mirrorlake.model.recent_runs import Nearby
from mirrorlake.model.run import Run
from mirrorlake.model.run import translate as by_definition
from mirrorlake.reasons import PositionReason
from mirrorlake.translation.sql_join import (
    MIRRORED,
    POSITION_NAMES,
    POSITIONS,
    Mirrored,
    by_gaps_at_hand,
    by_runs_at_hand,
    current_runs,
    translate,
)

from tests.log_model import Log

RUNS = (
    "topic STRING, partition INT, upstream_start BIGINT, upstream_end BIGINT, downstream_start BIGINT, downstream_end "
    "BIGINT"
)

GAPS = "topic STRING, partition INT, kind STRING, from_offset BIGINT, incarnation INT"
FIRST_GAPS = [("left_out", 0, "aborted", 10, 0)]


# Partitions of whose present log the map has no run; of the truncated one, the map has the run [0, 10) -> [0, 10).
WITHOUT_RUNS = (
    Mirrored("recreated", 0, "a.recreated", 0, 0, 0, 50, 50),  # and still empty
    Mirrored("filtered", 0, "a.filtered", 0, 25, 20, 50, 50),  # recreated, and no record of it is wanted
    Mirrored("truncated", 0, "a.truncated", 0, 12, 10, 50, 50),
    Mirrored("taken_over", 0, "a.taken_over", 0, 45, 40, 30),  # nothing on the target matched
    Mirrored("target_recreated", 0, "a.target_recreated", 0, 9, 0, 0, 0),
    Mirrored("again", 0, "a.again", 0, 12, 10, 60, 50),  # recreated, and mirrored since
)


def random_runs(dice: random.Random, topic: str, partition: int) -> list[Run]:
    runs, upstream, downstream = [], dice.randint(0, 9), dice.randint(0, 9)
    for _ in range(dice.randint(1, 40)):
        length = dice.randint(1, 9)
        runs.append(
            Run(
                topic,
                partition,
                f"a.{topic}",
                partition,
                upstream,
                upstream + length,
                downstream,
                downstream + length,
                length,
                0,
                0,
                0,
                0,
            )
        )
        upstream, downstream = upstream + length + dice.randint(0, 3), downstream + length + dice.randint(0, 3)
    return runs


def frames(spark: Any, runs: list[Run], positions: list[tuple[Any, ...]], mirrored: list[tuple[Any, ...]]) -> Any:
    rows = [
        (run.topic, run.partition, run.upstream_start, run.upstream_end, run.downstream_start, run.downstream_end)
        for run in runs
    ]
    return translate(
        spark.createDataFrame(positions, POSITIONS),
        spark.createDataFrame(rows, RUNS),
        spark.createDataFrame(FIRST_GAPS, GAPS),
        spark.createDataFrame([Mirrored(*row) for row in mirrored], MIRRORED),
    )


def test_sql_and_definition_agree_for_every_offset_of_random_maps(spark: Any) -> None:
    dice = random.Random(5)
    maps = {(f"t{number % 3}", number // 3): random_runs(dice, f"t{number % 3}", number // 3) for number in range(12)}
    positions, mirrored, expected = [], [], []
    for (topic, partition), runs in maps.items():
        end = runs[-1].upstream_end
        mirrored.append((topic, partition, f"a.{topic}", 0, end + 5, end, runs[-1].downstream_end))
        for offset in range(end + 6):
            group = f"g{offset}"
            positions.append((group, topic, partition, offset, "m"))
            expected.append((group, topic, partition, by_definition(runs, offset)))
    found = frames(spark, [run for runs in maps.values() for run in runs], positions, mirrored).select(
        "group_id", "topic", "partition", "downstream_offset"
    )
    wanted = spark.createDataFrame(expected, "group_id STRING, topic STRING, partition INT, downstream_offset BIGINT")
    assert_df_equality(found, wanted, ignore_row_order=True, ignore_nullable=True)


def test_every_status(spark: Any) -> None:
    runs = [Run("t", 0, "a.t", 0, 10, 20, 5, 15, 10, 0, 0, 0, 0), Run("t", 0, "a.t", 0, 23, 30, 17, 24, 7, 0, 0, 0, 0)]
    mirrored = [("t", 0, "a.t", 0, 40, 33, 24), ("new", 0, "a.new", 0, 9, 0, 0), ("behind", 0, "a.behind", 0, 9, 9, 9)]
    mirrored += [
        ("late", 0, "a.late", 0, 40, 30, 0),
        ("left_out", 0, "a.left_out", 0, 40, 30, 0),
    ]  # of their own starts
    asked = {
        "early": 3,
        "first": 10,
        "inside": 12,
        "gap": 21,
        "after gap": 23,
        "end": 30,
        "marker": 33,
        "ahead": 36,
        "beyond": 45,
    }
    positions = [(group, "t", 0, offset, "") for group, offset in asked.items()]
    positions += [
        ("empty", "new", 0, 0, ""),
        ("unread", "new", 0, 4, ""),
        ("late ledger", "behind", 0, 8, ""),
        ("late ledger, at its end", "behind", 0, 9, ""),
        ("elsewhere", "other", 0, 1, ""),
        *((f"before the start of {topic}", topic, 0, 9, "") for topic in ("late", "left_out")),
        *((f"at 20 in {topic}", topic, 0, 20, "") for topic in ("late", "left_out")),
        ("at the start", "late", 0, 30, ""),
    ]
    found = {
        row["group_id"]: (row["status"], row["downstream_offset"], row["reason"])
        for row in frames(spark, runs, positions, mirrored).collect()
    }
    assert found == {
        "early": ("before_mirror", 5, None),
        "first": ("exact", 5, None),
        "inside": ("exact", 7, None),
        "gap": ("exact", 17, None),
        "after gap": ("exact", 17, None),
        "end": ("exact", 24, None),
        "marker": ("exact", 24, None),  # markers behind the last run count as mirrored, but hold no records
        "ahead": ("clamped", 24, "past what is mirrored"),
        "beyond": ("clamped", 24, "past the end of the source log"),
        "empty": ("exact", 0, None),
        "unread": ("clamped", 0, "past what is mirrored"),
        "late ledger": ("not_covered", None, PositionReason.NO_RUN),
        "late ledger, at its end": ("exact", 9, None),  # whatever comes later is mirrored behind this
        "elsewhere": (None, None, None),
        "before the start of late": ("before_mirror", 0, None),
        "before the start of left_out": ("before_mirror", 0, None),
        "at 20 in late": ("before_mirror", 0, None),
        "at 20 in left_out": ("exact", 0, None),  # all records from 10 on were left out
        "at the start": ("exact", 0, None),
    }


def test_without_a_run_of_the_present_log_a_place_is_behind_all_that_is_mirrored_or_unknown(spark: Any) -> None:
    runs = [
        Run("truncated", 0, "a.truncated", 0, 0, 10, 0, 10, 10, 0, 0, 0, 0),
        Run("again", 0, "a.again", 0, 0, 10, 50, 60, 10, 0, 0, 0, 0),
    ]
    expected = {
        ("recreated", 0): ("exact", 50),
        ("recreated", 30): ("not_mirrored_yet", None),  # of the former log
        ("filtered", 5): ("exact", 50),
        ("filtered", 20): ("exact", 50),
        ("filtered", 23): ("clamped", 50),
        ("filtered", 26): ("not_mirrored_yet", None),
        ("truncated", 4): ("exact", 4),
        ("truncated", 10): ("exact", 50),
        ("truncated", 12): ("clamped", 50),
        ("truncated", 30): ("not_mirrored_yet", None),
        ("taken_over", 10): ("not_covered", None),
        ("taken_over", 40): ("exact", 30),
        ("taken_over", 50): ("clamped", 30),
        ("target_recreated", 0): ("exact", 0),
        ("target_recreated", 7): ("clamped", 0),
        ("again", 5): ("exact", 55),
        ("again", 12): ("clamped", 60),
        ("again", 30): ("not_mirrored_yet", None),
    }
    asked = [(f"g{offset}", topic, 0, offset, "") for topic, offset in expected]
    rows = frames(spark, runs, asked, list(WITHOUT_RUNS)).collect()
    assert {
        (row["topic"], row["upstream_offset"]): (row["status"], row["downstream_offset"]) for row in rows
    } == expected
    assert {row["reason"] for row in rows} >= {PositionReason.FORMER_LOG, PositionReason.NO_RUN}


def test_gaps_at_hand_give_the_same_rows_as_sql(spark: Any) -> None:
    mirrored = [
        Mirrored("late", 0, "a.late", 5, 40, 30, 0),
        Mirrored("left_out", 0, "a.left_out", 5, 40, 30, 0),
        Mirrored("new", 0, "a.new", 5, 40, 5, 0),
    ]
    positions = [("g", one.topic, 0, offset, "m") for one in mirrored for offset in range(44)]
    begins = {"late": 30, "left_out": 10, "new": 5}
    of = {one.topic: one for one in mirrored}
    expected = [
        by_gaps_at_hand(dict(zip(POSITION_NAMES, one, strict=True)), of[one[1]], begins[one[1]]) for one in positions
    ]
    found = [row.asDict() for row in frames(spark, [], positions, list(mirrored)).collect()]
    by_place = lambda row: (row["topic"], row["upstream_offset"])  # noqa: E731
    assert sorted(found, key=by_place) == sorted(expected, key=by_place)


def test_runs_at_hand_give_the_same_rows_as_sql(spark: Any) -> None:
    dice = random.Random(8)
    runs, positions, mirrored = [], [], []
    for number in range(12):
        mine = random_runs(dice, "t", number)
        end, passed = mine[-1].upstream_end, dice.randint(0, 3)
        runs += mine
        mirrored.append(
            Mirrored(
                "t",
                number,
                "a.t",
                dice.choice([0, end + 4]),
                end + 5,
                end + passed,
                mine[-1].downstream_end + dice.choice([0, 0, 2]),
            )
        )
        positions += [(f"g{offset}", "t", number, offset, "m") for offset in range(mine[0].upstream_start, end + 9)]
    expected = []
    for position in positions:
        mine = [run for run in runs if run.partition == position[2]]
        near = Nearby(next((run for run in mine if run.upstream_end > position[3]), None), mine[-1])
        expected.append(by_runs_at_hand(dict(zip(POSITION_NAMES, position, strict=True)), mirrored[position[2]], near))
    found = {
        (row["group_id"], row["partition"]): row.asDict() for row in frames(spark, runs, positions, mirrored).collect()
    }
    assert {(row["group_id"], row["partition"]): row for row in expected} == found
    assert {row["status"] for row in expected} == {"exact", "clamped"}
    assert len({row["reason"] for row in expected}) == 4


def test_what_a_reset_has_made_void_is_not_in_the_map_that_holds(spark: Any) -> None:
    dice = random.Random(12)
    logs = [Log.at_random(dice, "a", partition, resets=dice.randint(1, 4)) for partition in range(8)]
    runs, gaps = (
        spark.createDataFrame([tuple(row[column.split()[0]] for column in schema.split(", ")) for row in rows], schema)
        for schema, rows in (
            (f"{RUNS}, incarnation INT", [row for log in logs for row in log.runs]),
            (GAPS, [row for log in logs for row in log.gaps]),
        )
    )
    said: dict[int, dict[int, int]] = {log.partition: {} for log in logs}
    for row in current_runs(runs, gaps).collect():
        length = row["upstream_end"] - row["upstream_start"]
        assert length == row["downstream_end"] - row["downstream_start"] > 0
        offsets = {row["upstream_start"] + at: row["downstream_start"] + at for at in range(length)}
        assert not said[row["partition"]].keys() & offsets.keys()
        said[row["partition"]] |= offsets
    assert said == {log.partition: log.mapped for log in logs}


def test_lag_is_what_the_group_has_still_to_read(spark: Any) -> None:
    runs = [Run("t", 0, "a.t", 0, 0, 20, 0, 20, 20, 0, 0, 0, 0)]
    rows = frames(
        spark, runs, [("g", "t", 0, 12, ""), ("h", "t", 0, 99, "")], [("t", 0, "a.t", 0, 25, 20, 20)]
    ).collect()
    assert {row["group_id"]: row["source_lag"] for row in rows} == {"g": 13, "h": 0}
