"""The pace of the loop that plans."""

from __future__ import annotations

from itertools import accumulate, repeat

import pytest
from mirrorlake.jobs.mirror.plan_loop import IDLE_S, longer


@pytest.mark.parametrize("interval_s", [0.0, 0.3, 0.9, 5.0])
def test_an_idle_source_is_asked_less_often_but_each_second_and_never_more_often_than_the_interval(
    interval_s: float,
) -> None:
    pauses = list(accumulate(repeat(0, 20), lambda pause_s, _: longer(interval_s, pause_s), initial=interval_s))
    assert pauses == sorted(pauses)
    assert pauses[-1] == max(IDLE_S, interval_s)
    assert len([pause_s for pause_s in pauses if pause_s < IDLE_S]) < 10
