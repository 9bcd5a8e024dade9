"""A notebook that papermill runs in a process of its own, with its log lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mirrorlake import resources
from mirrorlake.demo.traffic import DEADLINE_S

PARAMETER = re.compile("MIRRORLAKE_(?!LOG_)")
COMMITTED, CYCLE = "micro_batch_committed", "checkpoint_cycle"  # events of the two jobs
SHOWN = {COMMITTED, CYCLE, "generation_opened", "interrupted", "mirror_finished", "checkpoint_finished"}


class Notebook:
    """A notebook that papermill runs, as an operator would; its log lines are shown as they come."""

    def __init__(self, name: str, parameters: list[str], say: Callable[[str], None]) -> None:
        self.name, self._say = name, say
        self.output = resources.home() / ".local/demo" / "notebooks" / f"{name}.ipynb"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        words = [
            Path(sys.executable).with_name("papermill"),
            "--no-progress-bar",
            "--log-output",
            resources.notebooks() / f"{name}.ipynb",
            self.output,
            *parameters,
        ]
        self._log = self.output.with_suffix(".log")
        self._log.touch()
        # Parameters in the environment are for notebooks on clusters of the operator's own.
        inherited = {name: value for name, value in os.environ.items() if not PARAMETER.match(name)}
        own = {"FILE": str(self._log), "FORMAT": "json", "LEVEL": "INFO"}  # events of this level are waited for
        environment = inherited | {f"MIRRORLAKE_LOG_{name}": value for name, value in own.items()}
        self._process = subprocess.Popen(
            list(map(str, words)),
            cwd=resources.home(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._output: list[str] = []
        self._logged: list[dict[str, Any]] = []
        self._heard = time.monotonic()
        self.begun = threading.Event()
        self._readers = [threading.Thread(target=read) for read in (self._read_output, self._read_log)]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        self._output += self._process.stdout or ()

    def _read_log(self) -> None:
        is_over, left = False, ""
        with self._log.open() as file:
            while not is_over:
                is_over = self._process.poll() is not None
                *lines, left = (left + file.read()).split("\n")
                for line in lines:
                    self._take(json.loads(line))
                time.sleep(0.1)
        self.begun.set()  # also when it has failed

    def _take(self, line: dict[str, Any]) -> None:
        self._logged.append(line)
        self._heard = time.monotonic()
        if line["event"] in SHOWN or line["level"] != "INFO":
            self._say(f"{self.name}: {in_words(line)}")
        if line["event"] in (COMMITTED, CYCLE):
            self.begun.set()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Returns the log lines of an event so far."""
        return [line for line in list(self._logged) if line["event"] == event]

    def quiet_s(self) -> float:
        """Returns the seconds since the last log line."""
        return time.monotonic() - self._heard

    def until(self, condition: Callable[[], object], what: str) -> list[str]:
        """Waits for a condition; returns a problem if it does not come true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline or self._process.poll() is not None:
                return [f"{self.name}.ipynb: it did not come true that {what}"]
            time.sleep(0.2)
        self._say(f"{self.name}: {what}")
        return []

    def interrupt(self) -> None:
        """Interrupts the kernel, as Jupyter's stop button does.

        The job finishes its micro-batch, and the notebook continues after it.
        """
        for child in psutil.Process(self._process.pid).children() if self._process.poll() is None else ():
            if any("ipykernel" in word for word in child.cmdline()):
                child.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Ends papermill and its kernel, if they still run: the demo was interrupted."""
        if self._process.poll() is None:
            for process in (*psutil.Process(self._process.pid).children(recursive=True), self._process):
                with suppress(psutil.NoSuchProcess):
                    process.terminate()

    def wait(self) -> list[str]:
        """Waits for the end and keeps the HTML; returns the problems."""
        status = self._process.wait()
        for reader in self._readers:
            reader.join()
        html = subprocess.run(
            [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level", "ERROR", str(self.output)],
            capture_output=True,
            text=True,
            check=False,
        )
        if status:
            return [f"{self.name}.ipynb failed: {''.join(self._output[-15:])}"]
        return [f"{self.name}.html: {html.stderr[-500:]}"] if html.returncode else []


def in_words(line: dict[str, Any]) -> str:
    """Formats a log line for the terminal."""
    if line["event"] == COMMITTED:
        return (
            "batch {batch}: {records:,} records of {partitions} partitions in {seconds:.2f} s ({records_per_s:,}/s, "
            "{mb_per_s} MB/s), lag {lag:,}".format(**line)
        )
    fields = {name: value for name, value in line.items() if name not in ("time", "level", "logger", "event", "flow")}
    if line["event"] == CYCLE:
        statuses, syncs = (
            ", ".join(f"{count:,} {name.removeprefix(kind)}" for name, count in fields.items() if name.startswith(kind))
            for kind in ("status_", "sync_")
        )
        return (
            f"cycle {line['cycle']}: {line['groups']} groups, {line['positions']} positions ({statuses or 'none'}); on "
            f"the target: {syncs or 'none'}; {line['rows']} rows in {line['seconds']:.2f} s"
        )
    level = "" if line["level"] == "INFO" else f"{line['level'].lower()}: "
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())
    return f"{level}{line['event'].replace('_', ' ')}{': ' if said else ''}{said}"
