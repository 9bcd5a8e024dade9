"""A mirror job that has been at work before its backlog appears.

The first append to the ledger is due 30 s after a job begins, and takes a cold JVM some ten seconds of CPU. Within the
window of a backlog it would count for a third, or not at all, depending on the speed of the machine. So the job begins
with a trickle, while the backlog is paused, until that append is done. Later appends, one in 30 s, count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.contestants import MIRRORLAKE, Running, Task, at_work
from bench.load import create
from bench.stream import Trickle

PER_SECOND = 50
PAUSED = "mirrorlake.topics.paused"
APPENDED_S = 180.0  # for which the first append is waited for
LOOK_S = 0.5


@contextmanager
def warmed_up(task: Task) -> Iterator[Running]:
    """Runs mirrorlake for the length of a block, which begins as the job is told to mirror the task's topic."""
    servers, trickling = task.clusters.source.bootstrap_servers, f"warm-up-{task.alias}"
    create(servers, trickling, 1)
    properties = {**(task.properties or {}), "topics": f"{task.topic}, {trickling}"}
    with at_work(MIRRORLAKE, replace(task, properties={**properties, PAUSED: task.topic})) as running:
        with Trickle(servers, trickling, 1, PER_SECOND):
            _await_append(task.directory / "warehouse/bench/offset_syncs/_delta_log", running)
        config = task.directory / "mirrorlake.properties"
        lines = config.read_text().splitlines(keepends=True)
        without = config.with_suffix(".new")
        without.write_text("".join(line for line in lines if not line.startswith(PAUSED)))
        without.replace(config)  # the job reads it at any time
        yield running


def _await_append(log: Path, running: Running) -> None:
    """Waits until a version of the table has come after that of its creation."""
    deadline = time.monotonic() + APPENDED_S
    while not any(map(_is_append, sorted(log.glob("*.json")))):
        if time.monotonic() > deadline or not running.is_alive:
            raise RuntimeError(f"nothing was appended to the ledger\n{running.end_of_log()}")
        time.sleep(LOOK_S)


def _is_append(version: Path) -> bool:
    actions = map(json.loads, version.read_text().splitlines())
    return any("add" in action for action in actions)
