"""Signals interrupt the event loop between two steps, so that no task ends halfway."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from mirrorlake.config.connection import Connection
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    made = EventLoop()
    yield made
    made.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_within_a_task_is_raised_once_the_step_is_over_and_the_task_goes_on(loop: EventLoop) -> None:
    steps = list[str]()

    async def task() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("whole")
        await loop.sleep(0)
        steps.append("next")

    async def other() -> str:
        await loop.sleep(60)
        return "never"

    loop.call_soon(task)
    with pytest.raises(KeyboardInterrupt):
        loop.run(other)
    assert steps == ["whole"]

    async def later() -> str:
        await loop.sleep(0.01)
        return "done"

    assert loop.run(later) == "done"
    assert steps == ["whole", "next"]


def test_an_interrupt_ends_the_wait_for_the_network_at_once(loop: EventLoop) -> None:
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(lambda: loop.sleep(60))
    timer.join()


def test_an_interrupt_at_the_end_of_the_last_step_is_not_lost(loop: EventLoop) -> None:
    async def task() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop.run(task)


def test_an_interrupt_while_a_loop_is_closed_is_raised_once_all_is_closed(loop: EventLoop) -> None:
    async def task() -> None:
        signal.raise_signal(signal.SIGINT)
        await loop.sleep(60)

    loop.call_soon(task)
    with pytest.raises(KeyboardInterrupt):
        loop.close()
    assert loop._wakeup_r.fileno() == loop._wakeup_w.fileno() == -1
    assert not loop._pending_tasks


def test_an_interrupt_while_a_cluster_is_closed_is_raised_once_it_is_closed(loop: EventLoop) -> None:
    connection = Connection("a", (("bootstrap.servers", "127.0.0.1:1"),))
    clusters = [Cluster(connection, side, "tests", net=loop) for side in ("source", "target")]

    async def task() -> None:
        signal.raise_signal(signal.SIGINT)
        await loop.sleep(60)

    loop.call_soon(task)
    with pytest.raises(KeyboardInterrupt):
        clusters[0].close()
    assert loop._wakeup_r.fileno() != -1, "the other one uses the loop"
    clusters[1].close()
    assert loop._wakeup_r.fileno() == -1
