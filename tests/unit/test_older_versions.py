"""States that earlier versions have written are read, and those of a later version are refused by name.

`tests/older_states/` holds one record of each format, as the code of that format has written it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.model.gap import Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import READ_VERSIONS, VERSION, ClosedFor, Position, SlotState
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.state.closure import closed_for, promoted_topics
from pyspark.sql import Row

from tests.world import ROOT

STATES = {int(file.stem[-1]): file.read_bytes() for file in (ROOT / "tests/older_states").glob("format-?.json")}


def test_there_is_a_record_of_each_format_that_was_ever_written_and_the_newest_is_what_is_written_now() -> None:
    assert set(STATES) == set(READ_VERSIONS) == set(range(1, VERSION + 1))
    newest = json.loads(STATES[VERSION])
    assert json.loads(SlotState.from_json(STATES[VERSION]).to_json()) == newest, "a new field needs a new format"


@pytest.mark.parametrize("version", STATES)
def test_a_state_of_each_format_says_what_it_said_then(version: int) -> None:
    epochs = (3, "dGFyZ2V0LXRvcGljLWlkLQ", 120) if version > 1 else (-1, "", -1)
    gaps = (Gap("orders", 0, 500, 501, GapKind.MARKER, 0, 500),) if version > 1 else ()
    assert SlotState.from_json(STATES[version]) == SlotState(
        source="west",
        target="east",
        source_cluster_id="c291cmNlLWNsdXN0ZXItaQ",
        slot=1,
        slots=2,
        generation=4,
        transactional_id="mirrorlake.west.east.slot-1",
        producer_id=4711,
        producer_epoch=9,
        positions=(Position("orders", 0, "c291cmNlLXRvcGljLWlkLQ", "west.orders", 0, 501, 500, 1, 0, *epochs),),
        runs=(
            Run("orders", 0, "west.orders", 0, 0, 500, 0, 500, 500, 51200, 1763889000000, 1763889060000, 0x0BADCAFE),
        ),
        created_ms=1763889061000,
        producer_ids=(4242,),
        gaps=gaps,
        closed_for=ClosedFor.NOTHING,
        topics_shared=False,
        promoted_topics=(),
    )


def test_a_state_of_format_3_that_stops_jobs_stops_them_for_ever() -> None:
    """The code of format 3 has written it: the flow was failed over, a topic was promoted before, and others write."""
    state = SlotState.from_json((ROOT / "tests/older_states/closed-3.json").read_bytes())
    assert (state.closed, state.closed_for, state.topics_shared) == (True, ClosedFor.FAILOVER, True)
    assert closed_for([state]) is ClosedFor.FAILOVER
    assert promoted_topics([state]) == {"payments", "größe"}
    (position,), (gap,), (run,) = state.positions, state.gaps, state.runs
    assert (position.incarnation, position.upstream_next, position.downstream_next, position.slot) == (2, 40, 900, 0)
    assert (gap.kind, gap.from_offset, gap.to_offset, gap.incarnation) == (GapKind.RECREATED, 0, 0, 1)
    assert (state.inferred, run.incarnation, run.records) == (True, 2, 40)
    assert state.all_producer_ids == (7, 8, 9)


@pytest.mark.parametrize("part", ["", "positions", "runs", "gaps"])
def test_a_field_of_a_later_version_is_refused_by_name_and_not_ignored(part: str) -> None:
    value: dict[str, Any] = json.loads(STATES[VERSION])
    (value[part][0] if part else value)["of_the_future"] = 1
    with pytest.raises(TargetError, match=r"has the fields of_the_future\..*Upgrade mirrorlake"):
        SlotState.from_json(json.dumps(value).encode())
    if part == "positions":
        SlotState.from_json(json.dumps(value).encode(), with_positions=False)


def test_a_row_of_checkpoints_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    empty = {field.name: None for field in fields(Checkpoint)}
    row = Row(**empty | {"status": "exact", "sync": "in_step", "of_the_future": 1})
    known = Checkpoint.from_row(row)
    assert known.status is Status.EXACT
    assert known.sync is SyncOutcome.IN_STEP
    later = Checkpoint.from_row(Row(**row.asDict() | {"status": "of_the_future", "sync": "later"}))
    assert (later.status, later.sync) == ("of_the_future", "later")
    assert not known.says_the_same_as(later)


def test_a_later_format_is_refused_by_its_number() -> None:
    later = {**json.loads(STATES[VERSION]), "version": VERSION + 1}
    with pytest.raises(
        TargetError, match=rf"has format version {VERSION + 1}; this version of mirrorlake reads 1 to {VERSION}"
    ):
        SlotState.from_json(json.dumps(later).encode())
