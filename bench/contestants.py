"""The contestants: MirrorMaker 2 in four settings, and mirrorlake; each runs in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import ROOT, Clusters
from bench.mirrormaker import JAVA, exactly_once, mirrormaker, tuned

MIRRORLAKE, CEILING = "mirrorlake", "ceiling"
MM2_DEFAULT, MM2_DEFAULT_EOS, MM2_TUNED, MM2_TUNED_EOS = "mm2-default", "mm2-default-eos", "mm2-tuned", "mm2-tuned-eos"
TITLES = {
    MM2_DEFAULT: "MirrorMaker 2, default, at-least-once",
    MM2_DEFAULT_EOS: "MirrorMaker 2, default, exactly-once",
    MM2_TUNED: "MirrorMaker 2, tuned, at-least-once",
    MM2_TUNED_EOS: "MirrorMaker 2, tuned, exactly-once",
    MIRRORLAKE: "mirrorlake, exactly-once",
    CEILING: "bare ceiling: the loop alone, one transaction",
}
TARGET = "t"
STOP_S = 120


@dataclass(frozen=True)
class Task:
    """The task of a contestant: mirror the topic from the source, whose alias is `alias`, to the target.

    `properties` are further properties of the flow.
    """

    clusters: Clusters
    directory: Path
    alias: str
    topic: str
    codec: str = "lz4"
    properties: Mapping[str, str] | None = None

    @property
    def remote_topic(self) -> str:
        """Returns the remote topic."""
        return f"{self.alias}.{self.topic}"

    @property
    def flow(self) -> str:
        """Returns the name of the flow."""
        return f"{self.alias}->{TARGET}"

    @property
    def common(self) -> dict[str, str]:
        """Returns the properties that all contestants share."""
        return {"topics": self.topic, **(self.properties or {})}


class Running:
    """The processes of a running contestant."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
        self.processes, self.log = processes, log

    @property
    def is_alive(self) -> bool:
        """Returns True if all processes run."""
        return all(process.poll() is None for process in self.processes)

    def end_of_log(self) -> str:
        """Returns the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""


@contextmanager
def at_work(contestant: str, task: Task, *, checkpoints: bool = False) -> Iterator[Running]:
    """Runs a contestant for the length of a block.

    With `checkpoints` it syncs group offsets, too, for which mirrorlake has a separate job.
    """
    task.directory.mkdir(parents=True, exist_ok=True)
    if contestant != MIRRORLAKE:
        source = (task.alias, task.clusters.servers("source"))
        with mirrormaker(
            task.directory,
            source,
            (TARGET, task.clusters.servers("target")),
            _of_mirrormaker(contestant, task),
            java=JAVA,
        ) as process:
            yield Running([process], task.directory / "mm2.log")
        return
    with ExitStack() as stack:
        processes = [stack.enter_context(job(what, task)) for what in ("mirror", "checkpoint")[: 1 + checkpoints]]
        yield Running(processes, task.directory / "mirror.log")


@contextmanager
def job(what: str, task: Task, interval_s: float | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs one of mirrorlake's jobs for the length of a block; see `result_of` for its result."""
    servers = {task.alias: task.clusters.servers("source"), TARGET: task.clusters.servers("target")}
    properties = {
        "clusters": ", ".join(servers),
        **{f"{alias}.bootstrap.servers": value for alias, value in servers.items()},
        f"{task.flow}.enabled": "true",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        **task.common,
    }
    task.directory.mkdir(parents=True, exist_ok=True)
    config = task.directory / "mirrorlake.properties"
    config.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    words = [
        sys.executable,
        "-m",
        "bench.job",
        what,
        str(config),
        task.flow,
        str(task.directory / "warehouse"),
        str(_result(what, task)),
    ]
    path = os.pathsep.join((str(ROOT / "lib"), str(ROOT)))
    with (task.directory / f"{what}.log").open("w") as log:
        process = subprocess.Popen(
            [*words, *([] if interval_s is None else [str(interval_s)])],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(STOP_S)
        finally:
            _end(process)


def result_of(what: str, task: Task) -> dict[str, Any]:
    """Returns the result of one of mirrorlake's jobs; empty if the job did not write it."""
    file = _result(what, task)
    return json.loads(file.read_text()) if file.exists() else {}


def _result(what: str, task: Task) -> Path:
    return task.directory / f"{what}.json"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its descendants."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    process.kill()
    for other in family:
        try:
            other.kill()
        except psutil.Error:
            continue
    process.wait()


def _of_mirrormaker(contestant: str, task: Task) -> dict[str, str]:
    is_tuned, is_exact = contestant in (MM2_TUNED, MM2_TUNED_EOS), contestant in (MM2_DEFAULT_EOS, MM2_TUNED_EOS)
    return {
        # Heartbeats would start a second worker for the flow back in the same process.
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        "refresh.topics.interval.seconds": "600",
        **(tuned(task.alias, TARGET, task.codec) if is_tuned else {}),
        **(exactly_once(task.alias, TARGET) if is_exact else {}),
        **task.common,
    }
