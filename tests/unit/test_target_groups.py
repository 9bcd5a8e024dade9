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
    refused, changed = GroupSync(flow, target)._commit({name: {KEY: (50, "")} for name in before}, before, 0.0)
    assert (committed, changed, refused) == (["g0", "g2"], {"g1"}, {})


def test_a_clock_that_is_set_back_makes_no_row_older_than_those_before() -> None:
    ledger, flow = MemoryLedger(), SimpleNamespace(source="a", target="b", name="a->b")
    ledger.append("checkpoints", [replace(ROW, created_at=NOON + timedelta(hours=1))])
    history = History(ledger, flow)  # type: ignore[arg-type]
    history.recall()
    times = [history.next_time(NOON + timedelta(seconds=second)) for second in (0, 1, 4000)]
    assert times == [NOON + timedelta(hours=1, microseconds=2), NOON + timedelta(hours=1, microseconds=4), times[2]]
    assert times[2] == NOON + timedelta(seconds=4000)
