"""The pause of a flow as a running job knows it, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.state import pause
from mirrorlake.state.pause import LOOK_S, Pause, PauseWatch

FLOW: Any = SimpleNamespace(ignores_pause=False, connect_timeout_ms=1_000)


def test_a_job_that_has_never_read_the_pause_does_not_take_the_flow_for_open(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    def read(*_: Any) -> Pause | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(pause, "read_pause", read)
    now_s = [0.0]
    watch, away, held = PauseWatch(lambda: now_s[0]), TargetError("no leader", retriable=True), Pause("ana", "x", 0)
    target: Any = None
    answers[:] = [away, held, away]
    with pytest.raises(TargetError, match="no leader"):
        watch.look(target, FLOW)
    assert watch.look(target, FLOW) == held, "the next look asks at once"
    now_s[0] += LOOK_S
    assert watch.look(target, FLOW) == held, "the last answer holds"
    assert not answers
