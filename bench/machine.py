"""The machine of a benchmark: its description, its load, and a wait until it is idle."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import ROOT

CODE = ("lib", "bench", "expectations", "requirements.lock", "pom.xml")  # on which the figures depend
SETTLED_DIRTY_KIB = 64 << 10
SETTLE_S = 10


def describe() -> dict[str, Any]:
    """Returns processor, memory, system and versions, as far as they are known.

    `code` names what the figures depend on: two revisions that differ elsewhere have the same. It ends with `-dirty` if
    some of that has no revision.
    """
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    trees = _git("rev-parse", *(f"HEAD:{one}" for one in CODE))
    changes = _git("status", "--porcelain", "--", *CODE)
    return {
        "processor": _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": platform.platform(),
        "java": java[0] if java else "",
        "python": platform.python_version(),
        "kafka": _version_of("kafka_2.13-"),
        "revision": _git("describe", "--always"),
        "code": trees and hashlib.sha256(trees.encode()).hexdigest()[:12] + ("-dirty" if changes else ""),
    }


def _git(*words: str) -> str:
    """Returns what git says about this checkout; nothing where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout.strip()


def busy_s() -> float:
    """Returns the seconds that all processors have worked since the machine was started, for any process.

    Time that the host took from a virtual machine counts, too.
    """
    times = psutil.cpu_times()
    return (
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def settle() -> None:
    """Waits a few seconds at most until earlier writes are on disk, so that they don't slow the next contestant."""
    deadline = time.monotonic() + SETTLE_S
    time.sleep(1)
    while time.monotonic() < deadline and _dirty_kib() > SETTLED_DIRTY_KIB:
        time.sleep(0.5)


def _dirty_kib() -> int:
    found = _first_value(Path("/proc/meminfo"), "Dirty")
    return int(found.split()[0]) if found else 0


def _first_value(file: Path, name: str) -> str:
    if not file.exists():
        return ""
    return next((line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith(name)), "")


def _version_of(jar: str) -> str:
    return next((path.stem.removeprefix(jar) for path in (ROOT / ".local/jars/kafka").glob(f"{jar}*.jar")), "")
