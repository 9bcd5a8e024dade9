"""The objective of canaries: which arrive in time, which are late, and whose group is moved by whom."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.mirror.observation import canary as module
from mirrorlake.jobs.mirror.observation.canary import GIVEN_UP_AFTER, NEWEST, RECORD, Canary, Objective
from mirrorlake.metrics import Metrics


def flow(**properties: str) -> Flow:
    names = {name.replace("_", "."): value for name, value in properties.items()}
    base = {"clusters": "a, b", "a.bootstrap.servers": "a:1", "b.bootstrap.servers": "b:1", "a->b.enabled": "true"}
    return Flow.from_properties(Properties({**base, **names}), "a->b")


class Path:
    """An objective of 90 % within 10 s, and its metrics."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.objective = Objective("a->b", RECORD, 10.0, 0.9, self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            f"mirrorlake_canary_{name}", {"flow": "a->b", "path": RECORD, **labels}
        )


def test_late_canaries_burn_the_objective_once_each_whether_they_arrive_or_not() -> None:
    path = Path()
    for canary in range(3, NEWEST + 1):
        path.objective.sent(canary, 0.0)
        path.objective.arrived(canary, 2.0)
    assert (path.value("burn_ratio"), path.value("late_probes_total")) == (0.0, 0.0)
    path.objective.sent(1, 0.0)  # arrives late
    path.objective.sent(2, 0.0)  # never arrives
    path.objective.look(10.0)
    assert path.value("late_probes_total") == 0
    for at_s in (11.0, 12.0, 13.0):
        path.objective.look(at_s)
    assert path.value("late_probes_total") == 2
    assert path.value("burn_ratio") == pytest.approx(2 / NEWEST / 0.1), "of all that count, a tenth may be late"
    path.objective.arrived(1, 20.0)
    assert path.value("late_probes_total") == 2
    assert path.value("seconds_count") == NEWEST - 1
    assert path.objective.is_waiting
    path.objective.look(10.0 * GIVEN_UP_AFTER + 1)
    assert not path.objective.is_waiting
    assert (path.value("quantile_seconds", quantile="0.5"), path.value("probes_total")) == (2.0, NEWEST)
    path.objective.arrived(7_777, 100.0)
    assert path.value("seconds_count") == NEWEST - 1, "sent by another job"


def test_what_was_late_before_a_pause_burns_no_objective_in_it() -> None:
    path = Path()
    for canary in range(40):
        path.objective.sent(canary, 0.0)
    path.objective.look(11.0)
    assert path.value("burn_ratio") > 1
    path.objective.forget()
    assert path.value("burn_ratio") == 0
    path.objective.sent(41, 100.0)
    path.objective.arrived(41, 101.0)
    assert path.value("burn_ratio") == 0


def test_one_late_canary_after_a_start_burns_no_objective_and_an_interruption_does() -> None:
    path = Path()
    for canary in range(NEWEST // 10):
        path.objective.sent(canary, 0.0)
        path.objective.arrived(canary, 11.0)
        assert (path.value("burn_ratio") or 0) < 1.001
    assert (path.value("quantile_seconds", quantile="0.99") or 0) > 10
    path.objective.sent(-1, 0.0)
    path.objective.look(12.0)
    assert (path.value("burn_ratio") or 0) > 1.02


def test_a_canarys_group_is_synced_by_its_own_flow_and_moved_by_no_failover() -> None:
    own, other = "mirrorlake.canary.a.b", "mirrorlake.canary.b.a"
    off, on = flow(), flow(mirrorlake_canary_enabled="true", groups="orders.*")
    assert on.canary_group == own
    assert [on.checkpoints_group(group) for group in (own, other, "orders-1", "x")] == [True, False, True, False]
    assert [on.moves_group(group) for group in (own, other, "orders-1", "x")] == [False, False, True, False]
    assert not any(off.checkpoints_group(group) or off.moves_group(group) for group in (own, other))
    with pytest.raises(ConfigurationError, match=r"heartbeats\.replication\.enabled is false"):
        flow(mirrorlake_canary_enabled="true", heartbeats_replication_enabled="false")


def test_a_pause_makes_no_canary_late(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, now_s, sent, arrivals = Metrics(), [0.0], list[int](), MagicMock()
    arrivals.return_value.poll.return_value = []
    monkeypatch.setattr(module, "connect_both", lambda *_, **__: (MagicMock(), MagicMock()))
    monkeypatch.setattr(module, "Arrivals", arrivals)
    is_paused = [False, True, True, True, False]
    tested = Canary(flow(mirrorlake_canary_enabled="true"), metrics, lambda: is_paused[0], lambda: now_s[0])
    monkeypatch.setattr(tested, "_send", sent.append)

    class Ending:
        """Ends after the pauses of the list; each look takes longer than a canary may."""

        def is_set(self) -> bool:
            now_s[0] += 100.0
            return not is_paused

        def wait(self, _: float) -> None:
            is_paused.pop(0)

    def step() -> None:
        Canary._step(tested)
        is_paused.pop(0)

    monkeypatch.setattr(tested, "_step", step)
    monkeypatch.setattr(tested, "_ending", Ending())
    tested._keep()
    assert len(sent) == 2
    labels = {"flow": "a->b", "path": RECORD}
    assert metrics.registry.get_sample_value("mirrorlake_canary_late_probes_total", labels) == 0
