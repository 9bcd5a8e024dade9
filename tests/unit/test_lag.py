"""Ages of records by what was seen, and when a mirror job writes down what it has measured."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.observation.lag_keeper import LagKeeper, LagSample
from mirrorlake.metrics import Metrics
from mirrorlake.model.partition_lag import (
    KEPT_SIGHTINGS,
    FlowLag,
    PartitionLag,
    PartitionState,
    Sightings,
    age_s,
    time_of,
)

from tests.log_lines import logged

INFINITE = float("inf")
FLOW = Flow.from_properties(
    Properties(
        {"clusters": "a, b", "a.bootstrap.servers": "a:1", "b.bootstrap.servers": "b:1", "a->b.enabled": "true"}
    ),
    "a->b",
)


def test_a_record_is_between_the_ends_that_were_seen_before_and_after_it() -> None:
    seen = Sightings()
    assert seen.bounds_s(5, 100.0) == (0.0, INFINITE)
    seen.see(5, 100.0)
    seen.see(5, 110.0)
    seen.see(8, 120.0)
    assert seen.bounds_s(5, 130.0) == (10.0, 20.0), "not there at 110, there at 120"
    assert seen.bounds_s(4, 130.0) == (30.0, INFINITE), "there when the log was first seen"
    assert seen.bounds_s(8, 130.0) == (0.0, 10.0)
    seen.see(3, 140.0)
    assert seen.bounds_s(2, 150.0) == (10.0, INFINITE), "a log that ends earlier is another one"


def test_what_is_forgotten_makes_bounds_wider_and_never_wrong() -> None:
    seen = Sightings()
    for at in range(1_000):
        seen.see(10 * at, float(at))
    assert len(seen._seen) <= KEPT_SIGHTINGS + 1
    for offset in range(0, 9_990, 37):
        least, largest = seen.bounds_s(offset, 1_000.0)
        appended = offset / 10  # between the looks before and after it
        assert least <= 1_000 - appended <= largest + 1
    seen.pass_by(9_985)
    assert seen.bounds_s(9_985, 1_000.0) == (1.0, 2.0)
    assert len(seen._seen) == 2


@pytest.mark.parametrize(
    ("timestamp_ms", "bounds", "age"),
    [
        (90_000, (0.0, INFINITE), 10.0),
        (90_000, (20.0, 30.0), 20.0),  # seen before it says that it was made
        (1_000, (20.0, 30.0), 30.0),  # an old record, written just now
        (0, (0.0, INFINITE), None),
        (-1, (5.0, INFINITE), 5.0),
        (None, (0.0, 30.0), 0.0),
        (10**15, (0.0, INFINITE), None),  # microseconds
        (10**15, (7.0, 9.0), 7.0),
        (120_000, (0.0, INFINITE), 0.0),  # a clock that is ahead
    ],
)
def test_a_timestamp_counts_as_far_as_it_can_be_right(
    timestamp_ms: int | None, bounds: tuple[float, float], age: float | None
) -> None:
    assert age_s(timestamp_ms, 100.0, bounds) == age


def test_a_timestamp_that_can_not_be_right_is_no_time() -> None:
    assert time_of(90_000, 100.0) == datetime(1970, 1, 1, 0, 1, 30)
    assert [time_of(wrong, 100.0) for wrong in (None, 0, -5, 10**18)] == [None] * 4


class Meter:
    """Measures what it is told."""

    def __init__(self) -> None:
        self.flow, self.now = FLOW, datetime(2026, 11, 24)
        self.lag, self.position, self.fails = 0, 10, False

    def measure(self) -> FlowLag:
        if self.fails:
            raise SourceError("cluster a can't be reached")
        self.now += timedelta(seconds=60)
        one = PartitionLag(
            "t", 0, PartitionState.MIRRORING, None, self.position, self.position + self.lag, lag=self.lag
        )
        return FlowLag("a", "b", self.now, (one,))

    def close(self) -> None:
        pass


def test_an_idle_flow_writes_seldom_one_that_lags_always_and_a_failure_is_said_once() -> None:
    meter, rows = Meter(), list[LagSample]()
    metrics = Metrics()
    keeper = LagKeeper(FLOW, metrics, rows.append, meter=meter)  # type: ignore[arg-type]

    def written(times: int) -> int:
        before = len(rows)
        for _ in range(times):
            keeper.measure(is_last=False)
        return len(rows) - before

    assert written(11) == 3, "the first, and every fifth"
    meter.lag = 4
    assert written(3) == 3
    meter.lag, meter.position = 0, 14
    assert written(2) == 1
    assert all(row.due_at > row.measured_at + timedelta(minutes=5) for row in rows)
    meter.fails = True
    with logged() as said:
        assert written(3) == 0
    assert [line.split()[1] for line in said] == ["lag_not_measured"]
    assert metrics.registry.get_sample_value("mirrorlake_lag_measured_timestamp_seconds", {"flow": "a->b"}) is not None
    meter.fails = False
    keeper.measure(is_last=True)
    assert rows[-1].due_at == rows[-1].measured_at


def test_a_flow_has_caught_up_where_leaders_answer_and_with_no_answer_nobody_knows() -> None:
    def caught_up(*partitions: tuple[PartitionState, int | None]) -> bool:
        rows = [PartitionLag("t", number, state, lag=lag) for number, (state, lag) in enumerate(partitions)]
        return FlowLag("a", "b", datetime(2026, 1, 1), tuple(rows)).is_caught_up

    copied, silent = PartitionState.MIRRORING, (PartitionState.SILENT, None)
    assert caught_up((copied, 0), silent), "a broker is away, and the others go on"
    assert not caught_up((copied, 1), silent)
    assert not caught_up((copied, None), silent)
    assert not caught_up(silent, silent)
    assert caught_up((PartitionState.PAUSED, 9))


def test_a_backfill_hides_no_lag_of_the_other_topics() -> None:
    rows = [
        PartitionLag(topic, 0, PartitionState.MIRRORING, lag=9, lag_seconds=seconds)
        for topic, seconds in (("history", 3e7), ("payments", 400.0))
    ]
    found = FlowLag("a", "b", datetime(2026, 1, 1), tuple(rows), frozenset({"history"}))
    assert (found.seconds, found.records, found.is_caught_up) == (400, 18, False)


def test_a_topic_that_only_the_job_knows_to_be_held_keeps_no_flow_from_being_caught_up() -> None:
    states = (PartitionState.MIRRORING, PartitionState.NOT_BEGUN, PartitionState.PAUSED)
    rows = [PartitionLag("t", number, state, lag=9, lag_seconds=900.0) for number, state in enumerate(states)]
    other = PartitionLag("u", 0, PartitionState.MIRRORING, lag=0)
    found = FlowLag("a", "b", datetime(2026, 1, 1), (*rows, other)).with_held({"t": "it stamps records anew"})
    assert found.is_caught_up
    assert found.seconds == 0
    assert [(one.state, one.reason) for one in found.partitions] == [
        (PartitionState.HELD, "it stamps records anew"),
        (PartitionState.HELD, "it stamps records anew"),
        (PartitionState.PAUSED, None),
        (PartitionState.MIRRORING, None),
    ]
