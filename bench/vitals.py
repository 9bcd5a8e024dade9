"""The instruments of the soak: what the processes and files of one notebook run take, at one moment."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psutil

from bench.processes import MIB

KILOBYTE = 1024
ADDRESS = re.compile(r"0x([0-9a-f]{8,})")
COMPILED = re.compile(r"max_used=(\d+)Kb")  # of each segment of the code cache; its pages stay resident
ABOUT_CODE = re.compile(r"^-\s+Code \(.*?\(malloc=(\d+)KB", re.MULTILINE | re.DOTALL)
KINDS = re.compile(r"^-\s+(\S.*? \(reserved=.*\))$", re.MULTILINE)
# The options of a JVM that is looked at. Three of four full collections leave dead objects where they are otherwise, up
# to a twentieth of the heap, and a histogram counts them as int[].
TRACKED = "-XX:NativeMemoryTracking=summary -XX:MarkSweepAlwaysCompactCount=1"
POOLS = ("block-manager-a", "block-manager-s")  # as far as Linux keeps a thread's name
OWN_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")  # what makes the name of a file its own
LONG_S = 300
LOWEST_S = 1.0
LARGEST = 100  # lines of a histogram, about 8 KiB
FILES_OF_A_LINK = 3  # to a worker: the JVM has its socket, and an epoll and an eventfd to wait for it (PythonWorker)
WORKERS = ("pyspark.daemon", "mirrorlake.local.daemon", "pyspark.worker", "pyspark.sql.streaming")


@dataclass(frozen=True)
class Instrument:
    """A series of the soak.

    Attributes:
        name: its name.
        unit: the unit of its values.
        limit: the growth in an hour that is allowed; None for a series that is only shown.
        is_floor: True if its floor is judged, as work and garbage come and go above it.
    """

    name: str
    unit: str
    limit: float | None
    is_floor: bool = True


# The memory of a JVM is judged by two of its parts: what is alive on the heap after a full collection, and the rest
# without compiled code and what the JVM notes about it (the places of references, a tenth of the code). The heap itself
# grows and shrinks with garbage, up to the limit that it has. Compiled code has a limit, too
# (-XX:ReservedCodeCacheSize), and is added for long: a method is compiled once it was called 200 times.
# A driver gives its spare memory back once a minute and needs some of it again within seconds. What it keeps is the
# floor of its memory, which is read each second so that the floor is met. What it takes again between is shown.
INSTRUMENTS = (
    Instrument("papermill_private", "MiB", 1),
    Instrument("driver_private", "MiB", 1),
    Instrument("driver_between", "MiB", None),
    Instrument("jvm_live_heap", "MiB", 1),
    Instrument("jvm_outside_heap", "MiB", 1),
    Instrument("jvm_compiled_code", "MiB", None),
    Instrument("jvm_rss", "MiB", None),
    Instrument("workers_private", "MiB", 1),
    Instrument("workers", "processes", 0.5),
    Instrument("threads", "threads", 0.5),
    Instrument("connections", "connections", 0.5),
    Instrument("open_files", "files", 0.5),
    Instrument("temporary_files", "files", 2),
    Instrument("notebook", "KiB", 1),
    Instrument("batch", "ms", 60),
)
# A table gets a commit in each interval of its writers: with those of a soak, 720 an hour in offset_syncs, 1,440 in
# each of the tables that both jobs write, 1,200 in checkpoints, 360 in lag_samples. Maintenance compacts their
# files. Spark keeps the progress of a query's last 100 micro-batches, which come within the first ten minutes.
LEDGER = (
    Instrument("commits", "commits", 6_000, is_floor=False),
    Instrument("log", "MiB", 200, is_floor=False),
    Instrument("data", "MiB", 80, is_floor=False),
    Instrument("progress_files", "files", 200, is_floor=False),
)


class Lowest:
    """The smallest memory of some processes since it was last asked for, read each second by a thread."""

    def __init__(self) -> None:
        self._processes: Sequence[psutil.Process] = ()
        self._least = inf
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="lowest", daemon=True).start()

    def take(self, processes: Sequence[psutil.Process]) -> float:
        """Returns the smallest bytes of the processes since the last call; 0 if there are none."""
        now = _sum(processes, _anonymous)
        with self._lock:
            least, self._least = min(now, self._least if processes == self._processes else inf), inf
            self._processes = processes
        return least

    def _read(self) -> None:
        while True:
            time.sleep(LOWEST_S)
            with self._lock:
                found = _sum(self._processes, _anonymous)
                self._least = min(self._least, found) if found else self._least


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
    _open: Counter[str] = field(default_factory=Counter)
    _lowest: Lowest = field(default_factory=Lowest)

    def vitals(self) -> dict[str, float]:
        """Returns the values of INSTRUMENTS; those that can't be read are left out."""
        family = [self.process, *self.process.children(recursive=True)]
        java = [one for one in family if _name(one) == "java"]
        workers = [one for one in family if one not in java and any(word in _words(one) for word in WORKERS)]
        driver = [one for one in family if "ipykernel" in _words(one)]
        others = [one for one in family if one not in workers]
        links = min(_links(java, workers), len(workers))
        memory = {
            "papermill_private": _sum([self.process], _anonymous) / MIB,
            "driver_private": self._lowest.take(driver) / MIB,
            "driver_between": _sum(driver, _anonymous) / MIB,
            "jvm_rss": _sum(java, lambda one: one.memory_info().rss) / MIB,
            "workers_private": _of_workers(workers, lambda one: _own(one, workers)) / MIB,
        }
        values = {name: value for name, value in memory.items() if value}  # there is no such process, or it is ending
        values |= {
            "workers": float(len(workers)),
            "threads": _sum([*driver, *java], _threads),
            "connections": _sum(others, _connections) + _of_workers(workers, _connections) - links,
            "open_files": _sum(others, _open_files) + _of_workers(workers, _open_files) - FILES_OF_A_LINK * links,
            "temporary_files": float(_left_over(self.temporary)),
        }
        if self.output.exists():
            values["notebook"] = self.output.stat().st_size / KILOBYTE
        self._note_open_files(family)
        # A full collection, which also lets Spark delete shuffle files.
        values.update(_heap(java, self.output.with_suffix(".jvm.txt")))
        seconds = self._new_seconds()
        if seconds:
            values["batch"] = 1000 * sorted(seconds)[len(seconds) // 2]
        return values

    def _note_open_files(self, family: Sequence[psutil.Process]) -> None:
        """Appends to a file which kinds of open files have become more or fewer since the last call."""
        found = Counter(name for process in family for name in _open_names(process))
        changes = {name: found[name] - self._open[name] for name in sorted({*found, *self._open})}
        lines = [f"{time.strftime('%H:%M:%S')} {change:+d} {name}\n" for name, change in changes.items() if change]
        with self.output.with_suffix(".files.txt").open("a") as file:
            file.writelines(lines)
        self._open = found

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
        with suppress(psutil.Error, OSError):
            total += measure(process)
    return total


def _of_workers(workers: Sequence[psutil.Process], measure: Callable[[psutil.Process], float]) -> float:
    """Returns the sum of a measure over Spark's Python processes; of those that a daemon has forked, the largest one.

    They take turns. One more of them, up to a core's worth, is counted as a process.
    """
    largest: dict[int, float] = {}
    pids = {one.pid for one in workers}
    for one in workers:
        with suppress(psutil.Error, OSError):
            kind = parent if (parent := one.ppid()) in pids else -one.pid
            largest[kind] = max(largest.get(kind, 0.0), measure(one))
    return sum(largest.values())


def _links(java: Sequence[psutil.Process], workers: Sequence[psutil.Process]) -> int:
    """Returns the number of a JVM's connections that end at one of Spark's Python processes.

    There is one for each process. They are counted as processes; more than those are a leak.
    """
    ends: set[tuple[int, int]] = set()
    for one in workers:
        with suppress(psutil.Error, OSError):
            ends |= {ports[::-1] for ports in _ports(one)}
    return int(_sum(java, lambda one: len(ends.intersection(_ports(one)))))


def _ports(process: psutil.Process) -> list[tuple[int, int]]:
    """Returns the ports of a process's connections, its own first; a JVM writes addresses in another way."""
    return [(end.laddr.port, end.raddr.port) for end in process.net_connections("tcp") if end.raddr]


def _own(worker: psutil.Process, workers: Sequence[psutil.Process]) -> int:
    """Returns the memory that one of Spark's Python processes has allocated; of a forked one, since it was forked.

    What it has in common with the daemon becomes its own page by page, as it writes to it. That ends after some hundred
    tasks, with no more than the daemon has, and is left out.
    """
    parent = worker.parent()
    return _anonymous(worker) - (_anonymous(parent) if parent in workers else 0)


def _threads(process: psutil.Process) -> int:
    """Returns the number of threads, without those of two pools of Spark that come and go, up to 100 of each."""
    count = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            count += not (thread / "comm").read_text().startswith(POOLS)
    return count


def _left_over(directory: Path) -> int:
    """Returns the number of files that were written long ago. What a task has written for the next one goes before."""
    count, before = 0, time.time() - LONG_S
    for file in directory.rglob("*"):
        with suppress(FileNotFoundError):
            count += file.is_file() and file.stat().st_mtime < before
    return count


def _anonymous(process: psutil.Process) -> int:
    """Returns the memory that a process has allocated, with what it has in common with others.

    Pages of files, such as libraries, are left out: they count or not, as other processes use the same files.
    """
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return KILOBYTE * int(line.split()[1])
    return 0


def _connections(process: psutil.Process) -> int:
    return len(process.net_connections("tcp"))


def _open_files(process: psutil.Process) -> int:
    return process.num_fds()


def _open_names(process: psutil.Process) -> Iterator[str]:
    """Yields the process's name with that of each of its open files, without the digits that make it its own."""
    with suppress(psutil.Error, OSError):
        for number in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                yield f"{process.name()} {OWN_NAME.sub('#', str(number.readlink()))}"


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _heap(java: list[psutil.Process], details: Path) -> dict[str, float]:
    """Returns the heap that is alive after a full collection, by jcmd, and the JVM's memory outside of the heap: its
    compiled code, and the rest.

    The largest classes and the kinds of native memory are appended to a file, which says later on what has grown.
    """
    for process in java:
        with suppress(psutil.Error, OSError, subprocess.SubprocessError, ValueError, IndexError):
            histogram = _jcmd(process.pid, "GC.class_histogram").strip().splitlines()
            live = int(histogram[-1].split()[2])
            addresses = [int(found, 16) for found in ADDRESS.findall(_jcmd(process.pid, "GC.heap_info"))]
            _jcmd(process.pid, "System.trim_native_heap")  # it does so itself, once a minute
            code = KILOBYTE * sum(map(int, COMPILED.findall(_jcmd(process.pid, "Compiler.codecache"))))
            native = _jcmd(process.pid, "VM.native_memory")
            code += KILOBYTE * sum(map(int, ABOUT_CODE.findall(native)))
            with details.open("a") as file:
                moment = f"{time.strftime('%H:%M:%S')} {live / MIB:.2f} MiB"
                file.write("\n".join((moment, *histogram[:LARGEST], *KINDS.findall(native), "\n")))
            return {
                "jvm_live_heap": live / MIB,
                "jvm_outside_heap": (_resident_outside(process, min(addresses), max(addresses)) - code) / MIB,
                "jvm_compiled_code": code / MIB,
            }
    return {}


def _resident_outside(process: psutil.Process, start: int, end: int) -> int:
    """Returns the resident bytes of a process, without those of files, that are not between two addresses."""
    total = 0
    for piece in process.memory_maps(grouped=False):
        first, last = (int(address, 16) for address in piece.addr.split("-"))
        total += 0 if first >= start and last <= end else piece.anonymous
    return total


def _jcmd(pid: int, command: str) -> str:
    return subprocess.run(["jcmd", str(pid), command], capture_output=True, text=True, timeout=30, check=True).stdout
