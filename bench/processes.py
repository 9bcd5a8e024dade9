"""CPU time and memory of a process and all its descendants, including those that have ended."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

FAMILY_S = 0.5  # between two searches for descendants; those that live shorter are not counted
MEMORY_S = 1.0
MIB = 1 << 20


@dataclass
class ProcessTree:
    """A process and its descendants, watched for the length of a block.

    Memory is the sum of proportional set sizes. Pages that processes share, as Python's workers do, count once.
    """

    pid: int
    peak_bytes: int = 0
    _cpu: dict[tuple[int, float], float] = field(default_factory=dict)
    _java: set[tuple[int, float]] = field(default_factory=set)
    _family: dict[tuple[int, float], psutil.Process] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> ProcessTree:
        self._find_family()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_s(self, *, java_only: bool = False) -> float:
        """Returns user and system time so far, of all processes or of JVMs only, including those that have ended."""
        with self._lock:
            for key, process in self._family.items():
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._cpu[key] = times.user + times.system
            return sum(used for key, used in self._cpu.items() if not java_only or key in self._java)

    def _watch(self) -> None:
        looks = 0
        while not self._stop.wait(FAMILY_S):
            self._find_family()
            self.cpu_s()
            looks += 1
            if looks * FAMILY_S >= MEMORY_S:
                looks = 0
                self._look_at_memory()

    def _find_family(self) -> None:
        with suppress(psutil.Error):
            root = psutil.Process(self.pid)
            found = {
                (process.pid, process.create_time()): process for process in (root, *root.children(recursive=True))
            }
            java = {
                key for key, process in found.items() if process.name() == "java"
            }  # a script may become a JVM later
            with self._lock:
                self._family = found
                self._java |= java

    def _look_at_memory(self) -> None:
        taken = 0
        for process in list(self._family.values()):
            with suppress(psutil.Error):
                taken += process.memory_full_info().pss
        self.peak_bytes = max(self.peak_bytes, taken)
