"""The pause of a flow as a running job knows it, without a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner
from kafka.future import Future
from mirrorlake.cli.app import main
from mirrorlake.errors import TargetError
from mirrorlake.protocol import cluster
from mirrorlake.protocol.network.event_loop import EventLoop
from mirrorlake.state import pause
from mirrorlake.state.pause import LOOK_S, Pause, PauseWatch

FLOW: Any = SimpleNamespace(ignores_pause=False, connect_timeout_ms=1_000)


@pytest.fixture
def target() -> Iterator[Any]:
    """Yields a target that has an event loop, and nothing else."""
    loop = EventLoop()
    loop.enter()
    yield SimpleNamespace(net=loop)
    loop.leave()


def test_a_job_that_has_never_read_the_pause_does_not_take_the_flow_for_open(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []

    async def read(*_: Any) -> Pause | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(pause, "read_pause_async", read)
    now_s = [0.0]
    watch, away, held = PauseWatch(lambda: now_s[0]), TargetError("no leader", retriable=True), Pause("ana", "x", 0)
    answers[:] = [away, held, away]
    with pytest.raises(TargetError, match="no leader"):
        watch.look(target, FLOW)
    assert watch.look(target, FLOW) == held, "the next look asks at once"
    now_s[0] += LOOK_S
    assert watch.look(target, FLOW) == held, "the last answer holds"
    assert not answers


def test_a_look_that_takes_long_goes_on_beside_the_job_and_ends_with_its_connections(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Future] = []
    held, now_s = Pause("ana", "x", 0), [0.0]

    async def read(*_: Any) -> Pause | None:
        asked.append(Future())
        return await asked[-1]

    def answer(what: Pause | None) -> None:
        target.net.call_later(0.01, lambda: asked[-1].success(what))

    monkeypatch.setattr(pause, "read_pause_async", read)
    watch = PauseWatch(lambda: now_s[0], holds_s=0.05)
    target.net.call_later(0.05, lambda: answer(None))
    assert watch.look(target, FLOW) is None, "the first look waits for its answer"
    now_s[0] += LOOK_S
    began = time.monotonic()
    assert [watch.look(target, FLOW) for _ in range(20)] == [None] * 20, "the last answer holds"
    assert (time.monotonic() - began < 0.5, len(asked)) == (True, 2), "one look is under way, and waited for once"
    answer(held)
    target.net.poll(timeout_ms=50, future=asked[-1])  # as the requests of the job do
    assert watch.look(target, FLOW) == held
    now_s[0] += LOOK_S
    assert (watch.look(target, FLOW), len(asked)) == (held, 3)
    other: Any = SimpleNamespace(net=EventLoop())
    other.net.enter()
    other.net.call_later(0.01, lambda: asked[-1].success(None))
    assert watch.look(other, FLOW) is None, "a new connection asks again"
    assert len(asked) == 4
    other.net.leave()


def test_a_job_that_looks_seldom_follows_an_order_at_its_next_look_and_not_one_of_its_last_look(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Pause | None] = [None]
    held, now_s, asked = Pause("ana", "x", 0), [0.0], [0]
    held_up: list[Future] = []

    async def read(*_: Any) -> Pause | None:
        asked[0] += 1
        if held_up:
            await held_up[-1]
        else:
            await target.net.sleep(0.05)  # a far target
        return order[0]

    monkeypatch.setattr(pause, "read_pause_async", read)
    watch = PauseWatch(lambda: now_s[0], holds_s=LOOK_S)
    assert watch.look(target, FLOW) is None
    for order[0] in (held, None, held):
        now_s[0] += 60
        assert watch.look(target, FLOW) == order[0]
    assert asked == [4]
    hasty = PauseWatch(lambda: now_s[0], holds_s=0.001)
    assert hasty.look(target, FLOW) == held
    now_s[0] += 60
    order[0] = None
    held_up.append(Future())
    assert hasty.look(target, FLOW) == held, "the look goes on beside the job"
    held_up.pop().success(None)
    target.net.poll(timeout_ms=1_000, future=hasty._under_way)
    now_s[0] += 60
    assert (hasty.look(target, FLOW), asked) == (None, [7]), "an answer that is as old as that is asked for anew"


def test_a_look_that_was_begun_goes_on_while_a_job_asks_for_other_things_and_is_not_asked_twice(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, now_s, asked = Pause("ana", "x", 0), [0.0], [0]

    async def read(*_: Any) -> Pause | None:
        asked[0] += 1
        await target.net.sleep(0.02)
        return held

    monkeypatch.setattr(pause, "read_pause_async", read)
    watch = PauseWatch(lambda: now_s[0], holds_s=0.0)
    for looks in (1, 2):
        watch.begin(target, FLOW)
        watch.begin(target, FLOW)
        other = Future()
        target.net.call_later(0.1, lambda other=other: other.success(None))
        target.net.poll(timeout_ms=5_000, future=other)
        assert watch.look(target, FLOW) == held
        assert asked == [looks]
        now_s[0] += LOOK_S
    unpaused: Any = SimpleNamespace(ignores_pause=True, connect_timeout_ms=1_000)
    watch.begin(target, unpaused)
    assert asked == [2]


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
