"""The cycles of the checkpoint job, as far as they need no Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from mirrorlake.errors import SourceError
from mirrorlake.jobs.checkpoint import cycle_counts
from mirrorlake.jobs.checkpoint import cycles as cycles_module
from mirrorlake.jobs.checkpoint.cycle_counts import CycleCounts
from mirrorlake.jobs.checkpoint.cycles import CycleRun, InProcessCycles, SparkCycles
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.metrics import Metrics
from mirrorlake.model.status import Status, SyncOutcome


def test_a_stop_while_the_job_still_prepares_is_kept() -> None:
    spark, flow = MagicMock(), MagicMock(retry_timeout_ms=1_000)
    flow.name = "a->b"
    cycles = SparkCycles(spark)
    cycles.stop()
    cycles.run(CycleRun("c", flow, "query", "checkpoint", 1.0, 0.0, handle=lambda *_: None, metrics=Metrics()))
    frame = spark.readStream.format.return_value.option.return_value.option.return_value.load.return_value
    assert not frame.writeStream.mock_calls


def test_a_run_whose_time_is_up_goes_on_until_a_cycle_succeeds_or_its_retries_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run in whose time the source did not answer would else end well, without a cycle."""
    reader = SimpleNamespace(partitions=lambda *_: [None], read=lambda _: [], with_logs=lambda rows: rows)
    monkeypatch.setattr(cycles_module, "GroupOffsetsReader", lambda *_, **__: reader)
    numbers: list[int] = []

    def away(_: object, rows: list[dict[str, Any]], number: int) -> None:
        numbers.append(number)
        if flow.answers_at is None or number < flow.answers_at:
            raise SourceError("a broker is away", retriable=True)

    flow: Any = SimpleNamespace(name="a->b", retry_timeout_ms=60_000, answers_at=2)
    run = CycleRun("c", flow, "query", "checkpoint", 0.01, 0.0, handle=away, metrics=Metrics())
    InProcessCycles(None).run(run)
    assert numbers == [0, 1, 2]

    flow.answers_at, flow.retry_timeout_ms = None, 500
    with pytest.raises(SourceError, match="a broker is away"):
        InProcessCycles(None).run(run)


class Cycles:
    """Cycles of one position, a minute apart; `measure` returns for how long it was unfinished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s, self._metrics = 0.0, Metrics()
        flow = MagicMock()
        flow.name = "a->b"
        self._counts = CycleCounts(flow, MagicMock(details=None), self._metrics)
        self._row = Checkpoint("a", "b", "g", "t", 0, Status.EXACT, "c", datetime.now(UTC))
        monkeypatch.setattr(cycle_counts.time, "monotonic", lambda: self._now_s)

    def measure(self, *, is_paused: bool = False, since_s: float | None = None, **changes: Any) -> float:
        self._now_s += 60
        clock: Any = SimpleNamespace(laps_ms={}, total_ms=0.0)
        row = replace(self._row, **changes)
        known = replace(row, created_at=row.created_at - timedelta(seconds=since_s or 0))
        self._counts.measure(
            clock, [row], {} if since_s is None else {row.key: known}, is_paused=lambda topic: is_paused
        )
        found = self._metrics.registry.get_sample_value("mirrorlake_checkpoint_worst_group_seconds", {"flow": "a->b"})
        assert found is not None
        return found


def test_a_group_at_the_end_of_what_is_mirrored_waits_for_nothing_while_the_mirror_advances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cycles = Cycles(monkeypatch)
    for cycle in range(20):
        at = 60_000 * cycle
        assert cycles.measure(status=Status.CLAMPED, upstream_offset=at + 100, downstream_offset=at) == 0
    for minute in range(1, 20):
        assert cycles.measure(status=Status.CLAMPED, upstream_offset=at + minute, downstream_offset=at) == 60 * minute


def test_a_position_that_an_earlier_job_has_found_unfinished_is_so_since_then(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = Cycles(monkeypatch)
    assert cycles.measure(since_s=900, sync=SyncOutcome.REFUSED) == 900
    assert cycles.measure(sync=SyncOutcome.REFUSED) == 960


def test_a_position_that_is_refused_is_unfinished_wherever_its_group_goes_and_none_is_in_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cycles = Cycles(monkeypatch)
    for minute in range(20):
        found = cycles.measure(upstream_offset=minute, downstream_offset=minute, sync=SyncOutcome.REFUSED)
        assert found == 60 * minute
    waiting: Any = {"upstream_offset": 20, "downstream_offset": 20, "sync": SyncOutcome.WAITING}
    assert cycles.measure(is_paused=True, **waiting) == 0
    assert cycles.measure(**waiting) == 0
    assert cycles.measure(**waiting) == 60
