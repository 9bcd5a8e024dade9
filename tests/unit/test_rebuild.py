"""Positions of groups that the checkpoints topic has and the ledger lacks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.checkpoint.rebuild import missing
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.model.slot import Position
from mirrorlake.model.status import Status
from mirrorlake.protocol.mm2_topics import GroupCheckpoint

FLOW = Flow.from_properties(
    Properties(
        {
            "clusters": "a, b",
            "a.bootstrap.servers": "h:1",
            "b.bootstrap.servers": "h:2",
            "a->b.enabled": "true",
            "groups": "g.*",
        }
    ),
    "a->b",
)
POSITIONS = [Position("t", 0, "id", "a.t", 0, 100, 90, 0)]


def record(group: str, offset: int, at_ms: int, topic: str = "a.t") -> GroupCheckpoint:
    return GroupCheckpoint(group, topic, 0, offset, offset - 10, "", at_ms)


def row(group: str, offset: int | None, at_ms: int, micros: int = 0) -> Checkpoint:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    at = at.replace(microsecond=at.microsecond + micros)
    if offset is None:
        return Checkpoint("a", "b", group, None, None, Status.DELETED, "c", at)
    return Checkpoint(
        "a", "b", group, "t", 0, Status.EXACT, "c", at, upstream_offset=offset, downstream_offset=offset - 10
    )


def test_an_empty_table_gets_every_position_of_the_flow_and_nothing_when_it_is_filled_again() -> None:
    records = [record("g1", 50, 1_000), record("g2", 120, 2_000), record("h", 1, 3_000), record("g3", 1, 1, "other")]
    records.append(GroupCheckpoint("g4", "a.new", 2, 0, 0, "", 3_000))  # a partition that has never had a record
    found, left_out = missing(FLOW, records, POSITIONS, [])
    assert [(one.group_id, one.upstream_offset, one.downstream_offset, one.status) for one in found] == [
        ("g1", 50, 40, Status.EXACT),
        ("g2", 120, 110, Status.CLAMPED),
        ("g4", 0, 0, Status.EXACT),
    ]
    assert (found[-1].topic, found[-1].partition) == ("new", 2)
    assert left_out == {"known": 0, "older": 0, "other_groups": 1, "not_mirrored": 1}
    assert missing(FLOW, records, POSITIONS, found)[0] == []


def test_a_table_of_an_older_copy_gets_what_came_later_and_no_group_that_was_deleted_before() -> None:
    """The rows are of 5 s and before; a record's time has whole milliseconds, a row's has not."""
    rows = [row("g1", 50, 1_000, micros=7), row("g2", 60, 5_000, micros=7), row("g5", None, 5_000)]
    records = [
        record("g1", 50, 9_000),  # written anew when a job began, and the same
        record("g2", 70, 9_000),
        record("g3", 20, 9_000),  # a new group
        record("g4", 30, 5_000),  # of the cycle of the newest row, which was read in part
        record("g5", 40, 4_000),  # the group was deleted afterwards
        record("g6", 40, 4_999),  # later cycles have not seen the group
    ]
    found, left_out = missing(FLOW, records, POSITIONS, rows)
    assert [(one.group_id, one.upstream_offset) for one in found] == [("g2", 70), ("g3", 20), ("g4", 30)]
    assert left_out == {"known": 1, "older": 2, "other_groups": 0, "not_mirrored": 0}
    assert missing(FLOW, records, POSITIONS, [*rows, *found])[0] == []


def test_a_position_where_topics_are_merged_is_that_of_none_of_them_unless_the_table_knows_it() -> None:
    """The record does not say which of them the group reads, and their maps put the offset in different places."""
    merged = [*POSITIONS, Position("t2", 0, "id2", "a.t", 0, 80, 70, 0)]
    (found,), _ = missing(FLOW, [record("g1", 50, 1_000)], merged, [])
    assert (found.status, found.upstream_offset, found.downstream_offset) == (Status.NOT_COVERED, None, None)
    assert missing(FLOW, [record("g1", 50, 1_000)], merged, [found])[0] == []
    for topic in ("t", "t2"):
        known = replace(row("g1", 50, 1_000, micros=7), topic=topic)
        for at_ms in (1_000, 9_000):
            assert missing(FLOW, [record("g1", 50, at_ms)], merged, [known])[0] == []
    assert missing(FLOW, [record("g1", 60, 1_000)], merged, [known])[0] == [], "the row of a later cycle is newer"
