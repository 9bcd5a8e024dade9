"""Signals end jobs, whatever the job does at that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUSY = """
import signal, threading
from mirrorlake.cli.running import stopped_by_signals
from mirrorlake.notebook.runtime import ended_by_sigterm

class Job:
    def __init__(self):
        self.stopping = threading.Event()

    def run(self):
        print("runs", flush=True)
        with self.stopping._cond:  # as in every look at the event, for some microseconds
            signal.raise_signal(signal.SIGTERM)
        assert self.stopping.wait(20)

    def stop(self):
        self.stopping.set()

job = Job()
with {handled}(job):
    job.run()
print("ended", flush=True)
"""


@pytest.mark.parametrize("handled", ["ended_by_sigterm", "stopped_by_signals"])
def test_sigterm_ends_a_job_that_looks_at_its_event_at_that_moment(handled: str) -> None:
    words = [sys.executable, "-c", BUSY.replace("{handled}", handled)]
    environment = {"PYTHONPATH": str(ROOT / "lib")}
    found = subprocess.run(words, capture_output=True, text=True, timeout=30, env=environment, check=False)
    assert found.stdout.split() == ["runs", "ended"], found.stderr
    assert found.returncode == 0
