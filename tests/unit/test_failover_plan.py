"""Decisions of a failover without clusters: choices, blocks, counterparts by definition, and skipped records."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.failover import failback, job
from mirrorlake.jobs.failover.divergence import Divergence, deleted_stretches, merged, stretches
from mirrorlake.jobs.failover.failback import FailbackResult
from mirrorlake.jobs.failover.losses import Losses
from mirrorlake.jobs.failover.plan import BLOCKS, Choice, Line, blocks_of, gate_frame
from mirrorlake.jobs.failover.planner import _one_for_each_place, _unevenly_read, stale_by
from mirrorlake.jobs.failover.rehearsal import Proof, Rehearsal
from mirrorlake.model.slot import ClosedFor, SlotState
from mirrorlake.state.closure import closed_for

LINE = Line(
    "g",
    "t",
    0,
    "exact",
    60,
    target_topic="a.t",
    target_partition=0,
    downstream_offset=61,
    mirrored_end=101,
    piece_start=50,
    piece_to_start=51,
    not_mirrored=0,
)
STATE = SlotState("a", "b", "id", 0, 1, 1, "x", 1, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "go"}, "parameter mode is 'go'"),
        ({"mode": "begin", "signed_by": "ann"}, "parameter mode is 'begin'"),
        ({"mode": "run", "source": "alive"}, "signed_by is empty"),
        ({"mode": "run", "signed_by": "ann"}, "source is 'auto', but a run must not guess"),
        ({"mode": "promote", "source": "dead"}, "means a source that is alive, but parameter source is 'dead'"),
        ({"mode": "failover", "source": "alive"}, "means a source that is dead"),
        ({"accept": "lag, everything"}, "accept names 'everything'"),
        ({"at": "yesterday"}, "parameter at is 'yesterday'"),
        ({"at": "2999-01-01 00:00:00"}, "is in the future"),
        ({"max_lag": "-1"}, "max_lag is '-1'"),
        ({"max_position_age_seconds": "1 h"}, "max_position_age_seconds is '1 h'"),
        ({"groups": "("}, "valid regular expression"),
        ({"partial": "perhaps"}, "parameter partial is 'perhaps'"),
        ({"access": "all"}, "parameter access is 'all'"),
        ({"access": "apply"}, "access is 'apply', but mode = plan changes nothing"),
    ],
)
def test_what_is_no_choice_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Choice.parse(given)


@pytest.mark.parametrize(("mode", "source"), [("promote", "alive"), ("failover", "dead")])
def test_promote_and_failover_are_runs_that_know_their_source(mode: str, source: str) -> None:
    for given in ({}, {"source": source}):
        chosen = Choice.parse({"mode": mode, "signed_by": "ann", **given})
        assert (chosen.mode, chosen.source) == ("run", source)
    with pytest.raises(ConfigurationError, match="signed_by is empty"):
        Choice.parse({"mode": mode})
    with pytest.raises(ConfigurationError, match=f"parameter mode is '{mode}'"):
        failback.choice({"mode": mode, "signed_by": "ann"})


def test_a_choice_is_read_from_texts() -> None:
    chosen = Choice.parse(
        {
            "mode": "run",
            "source": "dead",
            "signed_by": " ann ",
            "accept": "lag,members",
            "groups": "orders-.*, audit",
            "at": "2026-01-02T03:04:05Z",
            "close": "true",
        }
    )
    assert (chosen.signed_by, chosen.accept, chosen.at, chosen.closes, chosen.is_of_all) == (
        "ann",
        {"lag", "members"},
        datetime(2026, 1, 2, 3, 4, 5),
        True,
        False,
    )
    assert ("orders-1" in chosen.groups, "audit" in chosen.groups, "audit-2" in chosen.groups) == (True, True, False)
    assert failback.choice({**failback.PARAMETERS, "mode": "begin", "signed_by": "ann"}).mode == "begin"
    with pytest.raises(ConfigurationError, match="mode = begin"):
        failback.choice({"mode": "begin"})


def test_every_kind_of_block_has_its_cause_and_acceptance_lets_a_line_go() -> None:
    fine = {"reason": None, "is_complete": True, "has_failed": False, "members_on": (), "max_lag": 0}
    fine["losses"] = Losses()
    assert blocks_of(LINE, **fine) == ()
    lagging = replace(LINE, not_mirrored=None, lag_seen=7)
    causes = {
        "members": (LINE, {"members_on": ("b",)}),
        "permission": (LINE, {"denied": "the principal needs READ on GROUP g"}),
        "unreadable": (LINE, {"unreadable": "CoordinatorNotAvailableError (15): g"}),
        "open_transaction": (LINE, {"hidden": "a transaction is open in t-0 since offset 3"}),
        "stale_position": (LINE, {"stale_by": "old"}),
        "stale_map": (LINE, {"is_complete": False}),
        "verification": (LINE, {"has_failed": True}),
        "lag": (lagging, {}),
        "clamped": (replace(LINE, status="clamped"), {}),
        "not_mirrored": (replace(LINE, status="not_mirrored"), {}),
        "not_mirrored_yet": (replace(LINE, status="not_mirrored_yet"), {}),
        "not_covered": (replace(LINE, status="not_covered"), {}),
        "before_mirror": (LINE, {"losses": Losses(before_mirror=3)}),
        "losses": (LINE, {"losses": Losses(lost=4, kinds="hole")}),
        "ahead": (replace(LINE, target_offset=62), {}),
        "again": (replace(LINE, again=3), {}),
        "uncarried": (LINE, {"uncarried": 2}),
    }
    assert causes.keys() == BLOCKS.keys()
    for kind, (line, changes) in causes.items():
        blocks = blocks_of(line, **{**fine, **changes})
        assert [found for found, _ in blocks] == [kind]
        assert not replace(line, blocks=blocks).go
        assert replace(line, blocks=blocks, accepted=(kind,)).go
    assert blocks_of(lagging, **{**fine, "max_lag": 7}) == ()
    lossy = {**fine, "losses": Losses(before_mirror=1, lost=20, kinds="hole, retention", expired=300)}
    assert lossy["losses"].offsets == 321
    reasons = [reason for _, reason in blocks_of(LINE, **lossy)]
    assert "1 offsets from 60 on are before" in reasons[0]
    assert "20 offsets ahead of the group were lost (hole, retention)" in reasons[1]
    assert "300 records on the target at or after offset 61" in reasons[2]


def test_a_group_of_several_topics_that_are_merged_gets_the_offset_that_skips_nothing() -> None:
    lines = [
        replace(LINE, topic=topic, downstream_offset=offset)
        for topic, offset in (("us.t", 900), ("eu.t", 100), ("ap.t", 100))
    ]
    others = [replace(LINE, group_id="h", downstream_offset=950), replace(LINE, topic="v", downstream_offset=None)]
    found = _one_for_each_place([*lines, *others])
    assert [line.downstream_offset for line in found] == [None, 100, None, 950, None]
    uneven = {group for group, _ in _unevenly_read([*lines, *others])}
    assert uneven == {"g"}, "it reads again what is behind the first of its places"
    assert not _unevenly_read(lines[1:])


def test_a_position_from_the_ledger_is_stale_that_no_cycle_has_confirmed_for_too_long() -> None:
    now = datetime(2026, 11, 22, 12)
    choice = Choice(max_position_age_s=600)
    read = replace(LINE, seen_in="ledger", confirmed_at=now - timedelta(seconds=601))
    assert "confirmed the position last at 2026-11-22 11:49:59, 601 s before; allowed are 600" in stale_by(
        read, choice, now
    )
    assert stale_by(replace(read, confirmed_at=now - timedelta(seconds=600)), choice, now) == ""
    assert stale_by(read, replace(choice, at=now - timedelta(seconds=60)), now) == "", "as of a time in the past"
    assert "no cycle" in stale_by(replace(read, confirmed_at=None), choice, now)
    assert stale_by(replace(LINE, seen_in="source"), choice, now) == ""


def test_a_place_is_recomputed_from_the_piece_that_was_chosen() -> None:
    assert LINE.recomputed == 61
    assert replace(LINE, upstream_offset=40).recomputed == 51
    assert replace(LINE, later_start=20).recomputed == 20
    assert replace(LINE, piece_start=None, piece_to_start=None).recomputed == 101
    (row,) = gate_frame(
        [replace(LINE, blocks=(("lag", ""), ("ahead", "")), accepted=("lag",))], {("a.t", 0): 120}
    ).to_dict("records")
    assert (row["recomputed"], row["open_blocks"], row["log_end"]) == (61, 1, 120)


def test_a_place_in_a_later_piece_is_not_held_against_the_run_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rehearsal, "_first", lambda self, cluster, key, at, *_: (at, 2_000, None, None, ()))
    run = {
        "topic": "t",
        "downstream_start": 51,
        "downstream_end": 101,
        "last_timestamp": 1_000,
        "digest": None,
        "bytes": 1,
        "inferred": None,
    }
    rehearsal = Rehearsal(None, None, {("a.t", 0): (0, 120, 120)}, None, {})
    before = replace(LINE, upstream_offset=50, later_start=20, downstream_offset=20)
    assert rehearsal.prove(before, run) == Proof.BOUNDS, "both sides have written at once: the record is another flow's"
    assert rehearsal.prove(replace(before, later_start=None, downstream_offset=51), run).startswith(
        f"{Proof.DIFFERS}: the timestamp"
    )


def test_what_is_passed_over_is_dropped_or_was_brought_there() -> None:
    assert stretches(10, 20, ()) == [(10, 20, "dropped")]
    assert stretches(10, 20, [(15, 30), (2, 4), (8, 12)]) == [
        (10, 12, "mirrored"),
        (12, 15, "dropped"),
        (15, 20, "mirrored"),
    ]
    assert stretches(10, 10, [(0, 50)]) == []


def test_of_what_retention_has_deleted_the_markers_of_what_a_flow_had_brought_are_no_loss() -> None:
    """Each micro-batch of the flow back ends with a marker: a long failover would look like thousands of losses."""
    brought = [(start, start + 9) for start in range(100, 1_000, 10)]
    assert deleted_stretches(100, 1_000, brought) == [(100, 1_000, "mirrored")]
    assert deleted_stretches(95, 1_003, brought) == [
        (95, 100, "retention"),
        (100, 1_000, "mirrored"),
        (1_000, 1_003, "retention"),
    ]
    assert deleted_stretches(10, 20, [(12, 15)]) == [(10, 12, "retention"), (12, 16, "mirrored"), (16, 20, "retention")]
    assert merged([(7, 9), (1, 3), (3, 5), (4, 6)]) == ((1, 6), (7, 9))


def test_a_failback_is_no_go_until_all_is_home_as_decided() -> None:
    nothing: Any = Divergence(None, (), None, {}, {}, {}, {}, {})
    assert FailbackResult("a->b", "plan", nothing).go
    left = FailbackResult("a->b", "plan", nothing, to_refill=2)
    assert not left.go
    assert left.stopped_by == {"not_refilled": "2 partitions are not copied home yet, as decided (mode = begin)"}


def test_why_a_flow_is_closed_is_said_by_its_newest_closed_slot() -> None:
    older, newer = (
        replace(STATE, closed=True, generation=2),
        replace(STATE, closed=True, closed_for=ClosedFor.FAILOVER, generation=3),
    )
    assert closed_for([STATE]) == ""
    assert closed_for([older]) is ClosedFor.HANDBACK, "a record of an earlier version"
    assert closed_for([older, newer, replace(STATE, generation=4)]) is ClosedFor.FAILOVER
    assert SlotState.from_json(newer.to_json()) == newer


def test_a_promotion_with_a_dead_source_says_what_is_left_to_do_on_the_flow_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list[str]()
    monkeypatch.setattr(job.log, "warning", lambda line: lines.append(str(line)))
    failover: Any = object.__new__(job.Failover)
    failover.flow, failover._back, failover.ledger = SimpleNamespace(name="b->a", source="b"), None, None
    for back, said in ((None, 0), (SimpleNamespace(name="a->b"), 1)):
        failover._back = back
        failover._open_back(SimpleNamespace(source=None), frozenset({"t"}))
        assert sum("topics_not_opened flow=a->b topics=t " in message for message in lines) == said
    assert "cluster b is dead" in lines[0]
    assert "partial = true and close = true" in lines[0]
