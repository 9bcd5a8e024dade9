"""The pause of a flow as a running job knows it, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner
from mirrorlake.cli.app import main
from mirrorlake.errors import TargetError
from mirrorlake.protocol import cluster
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


@pytest.mark.parametrize("last", [b'{"version": 99, "paused": true}', b"", b"[1]", b'{"version": 1, "paused": true}'])
@pytest.mark.parametrize(("words", "is_paused"), [(("resume",), False), (("pause", "--reason", "x"), True)])
def test_an_order_takes_the_place_of_a_record_that_nobody_can_read(
    last: bytes, words: tuple[str, ...], is_paused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr(cluster, "Cluster", MagicMock())
    monkeypatch.setattr(pause, "read_order", lambda *_: last)
    monkeypatch.setattr(pause, "_record", lambda _, order: recorded.append(order["paused"]))
    config = tmp_path / "mm2.properties"
    config.write_text(
        "clusters = a, b\na.bootstrap.servers = 127.0.0.1:1\nb.bootstrap.servers = 127.0.0.1:1\na->b.enabled = true\n"
    )
    done = CliRunner().invoke(main, [words[0], "--config", str(config), "--output", "json", *words[1:]])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["changed"] is True
    assert recorded == [is_paused]
