"""The pauses of a job whose transactions another job has ended."""

from __future__ import annotations

from mirrorlake.state.giving_way import FORGOTTEN_S, GivingWay


def test_a_job_gives_way_longer_each_time_and_begins_anew_after_a_while() -> None:
    now, waited = 0.0, list[float]()

    def wait(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds

    giving_way = GivingWay(wait, lambda: now)
    for _ in range(6):
        giving_way.pause()
        now += 1
    now += FORGOTTEN_S
    giving_way.pause()
    assert waited == [0.5, 1, 2, 4, 8, 8, 0.5]
