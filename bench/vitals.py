"""The instruments of the soak: what the processes and files of one notebook run take, at one moment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.processes import MIB

KILOBYTE = 1024
HEAP_EVERY = 6  # looks: counting what is alive is a full collection, which also lets Spark delete shuffle files
WORKERS = ("pyspark.daemon", "mirrorlake.local.daemon", "pyspark.worker", "pyspark.sql.streaming")


@dataclass(frozen=True)
class Instrument:
    """A series of the soak.

    Attributes:
        name: its name.
        unit: the unit of its values.
        limit: the growth in an hour that is allowed.
    """

    name: str
    unit: str
    limit: float


INSTRUMENTS = (
    Instrument("papermill_rss", "MiB", 1),
    Instrument("driver_rss", "MiB", 1),
    Instrument("jvm_live_heap", "MiB", 1),
    Instrument("jvm_outside_heap", "MiB", 1),
    Instrument("jvm_rss", "MiB", 1),
    Instrument("workers_pss", "MiB", 1),
    Instrument("workers", "processes", 0.5),
    Instrument("threads", "threads", 0.5),
    Instrument("connections", "connections", 0.5),
    Instrument("open_files", "files", 0.5),
    Instrument("temporary_files", "files", 2),
    Instrument("notebook", "KiB", 1),
    Instrument("batch", "ms", 60),
)
# A table gets a commit in each interval of its writers: 120 an hour in offset_syncs, 240 in each of the tables that
# both jobs write, 360 in checkpoints with a cycle every ten seconds. Maintenance compacts their files. Spark keeps the
# progress of a query's last 100 micro-batches, so these files grow in the first hour of the ledger's query.
LEDGER = (
    Instrument("commits", "commits", 1_200),
    Instrument("log", "MiB", 40),
    Instrument("data", "MiB", 16),
    Instrument("progress_files", "files", 2_000),
)


@dataclass
class Notebook:
    """A notebook that papermill runs, with what it writes.

    Attributes:
        process: papermill.
        output: the executed notebook.
        temporary: the directory that its processes use for temporary files.
        log: its log lines as JSON.
    """

    process: psutil.Process
    output: Path
    temporary: Path
    log: Path
    _read: int = 0
    _looks: int = 0

    def vitals(self) -> dict[str, float]:
        """Returns the values of INSTRUMENTS; those that can't be read are left out."""
        family = [self.process, *self.process.children(recursive=True)]
        java = [one for one in family if _name(one) == "java"]
        workers = [one for one in family if one not in java and any(word in _words(one) for word in WORKERS)]
        driver = [one for one in family if "ipykernel" in _words(one)]
        values = {
            "papermill_rss": _sum([self.process], lambda one: one.memory_info().rss) / MIB,
            "driver_rss": _sum(driver, lambda one: one.memory_info().rss) / MIB,
            "jvm_rss": _sum(java, lambda one: one.memory_info().rss) / MIB,
            "workers_pss": _sum(workers, lambda one: one.memory_full_info().pss) / MIB,
            "workers": float(len(workers)),
            "threads": _sum([*driver, *java], lambda one: one.num_threads()),
            "connections": _sum(family, lambda one: len(one.net_connections("tcp"))),
            "open_files": _sum(family, lambda one: one.num_fds()),
            "temporary_files": float(sum(1 for _ in self.temporary.rglob("*"))),
            "notebook": self.output.stat().st_size / KILOBYTE if self.output.exists() else 0.0,
        }
        if self._looks % HEAP_EVERY == 0:
            values.update(_heap(java))
        self._looks += 1
        seconds = self._new_seconds()
        if seconds:
            values["batch"] = 1000 * sorted(seconds)[len(seconds) // 2]
        return {name: value for name, value in values.items() if value}

    def _new_seconds(self) -> list[float]:
        """Returns the durations of micro-batches and cycles that were logged since the last call."""
        found = []
        with suppress(FileNotFoundError), self.log.open() as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith("\n"):
                    break
                self._read += len(line.encode())
                with suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") in ("micro_batch_committed", "checkpoint_cycle"):
                        found.append(float(entry.get("seconds", 0)))
        return [seconds for seconds in found if seconds]


def ledger_vitals(schema: Path) -> dict[str, float]:
    """Returns the values of LEDGER: the size of all tables of a warehouse, and the progress of Spark's queries."""
    files = list(_files(schema))
    log = [(file, size) for file, size in files if "_delta_log" in file.parts]
    data = [size for file, size in files if file.suffix == ".parquet" and "_delta_log" not in file.parts]
    return {
        "commits": float(sum(file.suffix == ".json" and file.stem.isdigit() for file, _ in log)),
        "log": sum(size for _, size in log) / MIB,
        "data": sum(data) / MIB,
        "progress_files": float(sum("_checkpoints" in file.parts for file, _ in files)),
    }


def _files(directory: Path) -> Iterator[tuple[Path, int]]:
    for file in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file():
                yield file, file.stat().st_size


def _sum(processes: Iterable[psutil.Process], measure: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += measure(process)
    return total


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _heap(java: list[psutil.Process]) -> dict[str, float]:
    """Returns the heap that is alive after a full collection, and the JVM's memory outside of the heap, by jcmd."""
    for process in java:
        with suppress(psutil.Error, OSError, subprocess.SubprocessError, ValueError, IndexError):
            histogram = _jcmd(process.pid, "GC.class_histogram").strip().splitlines()
            live = int(histogram[-1].split()[2])
            committed = sum(
                int(line.split("total ")[1].split("K")[0])
                for line in _jcmd(process.pid, "GC.heap_info").splitlines()
                if " total " in line
            )
            outside = process.memory_info().rss - KILOBYTE * committed
            return {"jvm_live_heap": live / MIB, "jvm_outside_heap": outside / MIB}
    return {}


def _jcmd(pid: int, command: str) -> str:
    return subprocess.run(["jcmd", str(pid), command], capture_output=True, text=True, timeout=30, check=True).stdout
