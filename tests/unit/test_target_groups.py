"""Decisions about groups on the target."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.jobs.checkpoint import group_sync, target_groups
from mirrorlake.jobs.checkpoint.group_sync import GroupSync
from mirrorlake.jobs.checkpoint.history import History
from mirrorlake.jobs.checkpoint.target_groups import TargetGroup, decide
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.model.status import Status, SyncOutcome
from mirrorlake.reasons import PositionReason
from mirrorlake.translation.log_starts import LogStarts

KEY = ("a.t", 0)
NOON = datetime(2026, 11, 1, 12)
ROW = Checkpoint(
    source="a",
    target="b",
    group_id="g",
    topic="t",
    partition=0,
    target_topic="a.t",
    target_partition=0,
    upstream_offset=100,
    downstream_offset=70,
    metadata="A",
    source_lag=None,
    status=Status.EXACT,
    reason=None,
    cycle_id="c",
    created_at=NOON,
    target_offset=70,
    sync=SyncOutcome.IN_STEP,
)


@pytest.mark.parametrize(
    ("group", "metadata", "expected"),
    [
        (TargetGroup(True, {KEY: 70}, {KEY: "A"}), "A", SyncOutcome.IN_STEP),
        (TargetGroup(True, {KEY: 70}, {KEY: "A"}), "B", SyncOutcome.COMMITTED),
        (TargetGroup(False, {KEY: 70}, {KEY: "A"}), "B", SyncOutcome.IN_STEP),  # it is at work there
        (TargetGroup(True, {KEY: 70}, {KEY: "its own"}), "B", SyncOutcome.IN_STEP),  # it was at work there
    ],
)
def test_new_metadata_at_the_same_offset_follow_unless_the_group_has_worked_on_the_target(
    group: TargetGroup, metadata: str, expected: SyncOutcome
) -> None:
    found = decide(group, KEY, downstream_offset=70, upstream_offset=101, previous=ROW, metadata=metadata)
    assert found.sync is expected


@pytest.mark.parametrize(
    ("group", "expected", "offset", "is_said"),
    [
        (TargetGroup(True, {}), SyncOutcome.COMMITTED, 90, True),
        (TargetGroup(True, {KEY: 70}), SyncOutcome.COMMITTED, 90, True),
        (TargetGroup(True, {KEY: 90}, {KEY: "A"}), SyncOutcome.COMMITTED, 90, True),  # it is as it was put there
        (TargetGroup(True, {KEY: 90}, {KEY: "B"}), SyncOutcome.IN_STEP, 90, True),
        (TargetGroup(True, {KEY: 95}), SyncOutcome.HELD, 90, False),  # it was at work there
        (TargetGroup(False, {KEY: 70}), SyncOutcome.HELD, 90, False),
    ],
)
def test_a_group_is_put_at_the_start_of_the_log_where_retention_has_passed_its_offset(
    group: TargetGroup, expected: SyncOutcome, offset: int, is_said: bool
) -> None:
    found = decide(group, KEY, downstream_offset=80, upstream_offset=101, previous=ROW, metadata="B", log_start=90)
    assert (found.sync, found.offset) == (expected, offset)
    assert (found.reason == PositionReason.PASSED_BY_RETENTION) is is_said


def test_a_group_that_somebody_has_used_since_it_was_read_is_left_to_the_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {name: TargetGroup(True, {KEY: 5}) for name in ("g0", "g1", "g2")}
    now = {**before, "g1": TargetGroup(True, {KEY: 500})}
    committed: list[str] = []

    def commit(_target: Any, offsets: Any, *_: Any) -> dict[Any, str]:
        committed.extend(offsets)
        return {}

    monkeypatch.setattr(group_sync, "COMMITTED_AT_ONCE", 1)
    monkeypatch.setattr(group_sync, "FRESH_S", -1.0)
    monkeypatch.setattr(
        target_groups, "read_each_group", lambda _, names, __: ({name: now[name] for name in names}, {})
    )
    monkeypatch.setattr(target_groups, "commit", commit)
    flow: Any = SimpleNamespace(name="a->b")
    target: Any = None
    sync = GroupSync(flow, target, LogStarts(target, 0))
    refused, changed = sync._commit({name: {KEY: (50, "")} for name in before}, before, 0.0)
    assert (committed, changed, refused) == (["g0", "g2"], {"g1"}, {})


def test_a_group_waits_while_the_target_does_not_tell_where_its_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, busy = TargetGroup(True, {}), TargetGroup(False, {})
    monkeypatch.setattr(target_groups, "read_each_group", lambda *_: ({"g": idle, "h": busy}, {}))
    flow: Any = SimpleNamespace(
        name="a->b", sync_group_offsets_enabled=True, sync_group_offsets_interval_s=0.0, topics_shared=False
    )
    target: Any = SimpleNamespace(
        existing=lambda keys, *_, **__: list(keys), log_starts=lambda keys: ({}, {key for key in keys if key == KEY})
    )
    history: Any = SimpleNamespace(settled={})
    sync = GroupSync(flow, target, LogStarts(target, 0))
    rows = sync.sync([ROW, replace(ROW, group_id="h")], history, is_paused=False)
    assert [(row.sync, row.reason) for row in rows] == [
        (SyncOutcome.HELD, PositionReason.REMOTE_UNREAD),
        (SyncOutcome.HELD, PositionReason.MEMBERS),
    ]


@pytest.mark.parametrize(("log_start", "known"), [(0, 0), (ROW.downstream_offset, 1)])
def test_a_place_behind_all_that_is_mirrored_is_that_of_a_former_flow_unless_the_log_begins_there(
    log_start: int, known: int
) -> None:
    ledger, flow = MemoryLedger(), SimpleNamespace(source="a", target="b", name="a->b")
    ledger.append("checkpoints", [ROW])
    history = History(ledger, flow)  # type: ignore[arg-type]
    history.recall()
    place = (str(ROW.target_topic), int(ROW.target_partition or 0))
    translation: Any = SimpleNamespace(
        incarnations={},
        flow_map=None,
        mirrored_ends={(ROW.topic, ROW.partition): (ROW.downstream_offset or 0) - 1},
        log_starts=SimpleNamespace(known={place: log_start}),
    )
    history.forget_lost_targets(translation, None)
    assert len(history.known) == known


def test_a_commit_in_a_topic_that_is_not_mirrored_makes_no_row() -> None:
    foreign = replace(ROW, status=Status.NOT_MIRRORED, reason=str(PositionReason.NOT_OF_FLOW))
    assert replace(foreign, upstream_offset=99, metadata="x").says_the_same_as(foreign)
    for one in (
        ROW,
        *(replace(foreign, reason=str(of)) for of in (PositionReason.NO_TOPIC, PositionReason.OF_FLOW_BACK)),
    ):
        assert not replace(one, upstream_offset=99).says_the_same_as(one)
    assert not foreign.says_the_same_as(ROW)


def test_a_clock_that_is_set_back_makes_no_row_older_than_those_before() -> None:
    ledger, flow = MemoryLedger(), SimpleNamespace(source="a", target="b", name="a->b")
    ledger.append("checkpoints", [replace(ROW, created_at=NOON + timedelta(hours=1))])
    history = History(ledger, flow)  # type: ignore[arg-type]
    history.recall()
    times = [history.next_time(NOON + timedelta(seconds=second)) for second in (0, 1, 4000)]
    assert times == [NOON + timedelta(hours=1, microseconds=2), NOON + timedelta(hours=1, microseconds=4), times[2]]
    assert times[2] == NOON + timedelta(seconds=4000)
