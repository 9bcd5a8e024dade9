"""Retries: what may pass is repeated for a bounded time, with growing pauses, and not by a job that is stopped."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from mirrorlake.errors import MirrorlakeError, TargetError
from mirrorlake.metrics import Metrics
from mirrorlake.spark import retries
from mirrorlake.spark.retries import Retries


class Clock:
    """Time that passes only by waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.is_stopped = False
        monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.is_stopped


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def failing(times: int, *, retriable: bool = True) -> Callable[[], int]:
    """Returns a step that fails some times, and then returns how often it was called."""
    calls = 0

    def step() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise TargetError(f"failure {calls}", retriable=retriable)
        return calls

    return step


def slowly(clock: Clock, step: Callable[[], int]) -> Callable[[], int]:
    """Returns a step that takes 30 s before it ends as another one does."""

    def slow() -> int:
        clock.now_s += 30  # the time after which an answer counts as lost
        return step()

    return slow


def test_a_step_is_repeated_until_it_succeeds_and_the_next_one_has_all_of_the_time_again(clock: Clock) -> None:
    found = Retries(10, clock.wait, "a->b", Metrics())
    assert found.repeat(failing(5)) == 6
    assert found.repeat(failing(5)) == 6
    assert 10 < clock.now_s < 20


def test_a_step_that_goes_on_failing_ends_with_its_error_when_its_time_is_up(clock: Clock) -> None:
    with pytest.raises(MirrorlakeError, match="failure"):
        Retries(10, clock.wait, "a->b", Metrics()).repeat(failing(1_000))
    assert clock.now_s == pytest.approx(10)


def test_an_outage_may_last_for_hours(clock: Clock) -> None:
    assert Retries(86_400, clock.wait, "a->b", Metrics()).repeat(failing(2_000)) == 2_001


def test_attempts_that_took_all_of_the_time_by_themselves_are_followed_by_the_least_number_of_others(
    clock: Clock,
) -> None:
    assert Retries(10, clock.wait, "a->b", Metrics(), least=2).repeat(slowly(clock, failing(2))) == 3
    with pytest.raises(MirrorlakeError, match="failure 2"):
        Retries(10, clock.wait, "a->b", Metrics()).repeat(slowly(clock, failing(3)))
    with pytest.raises(MirrorlakeError, match="failure 3"):
        Retries(10, clock.wait, "a->b", Metrics(), least=2).repeat(slowly(clock, failing(3)))


def test_a_final_error_and_a_job_that_is_being_stopped_end_a_step_at_once(clock: Clock) -> None:
    with pytest.raises(MirrorlakeError, match="failure 1"):
        Retries(10, clock.wait, "a->b", Metrics()).repeat(failing(2, retriable=False))
    clock.is_stopped = True
    with pytest.raises(MirrorlakeError, match="failure 1"):
        Retries(10, clock.wait, "a->b", Metrics()).repeat(failing(2))
