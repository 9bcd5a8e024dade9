"""Memory that was freed goes back to the operating system."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mirrorlake.spare_memory import EVERY_S, SpareMemory

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PIECE_BYTES = 32 << 10  # smaller than what a driver takes from the system, as a test before may have been one


BURST = """
import ctypes, sys
import psutil
from mirrorlake.spare_memory import SpareMemory

SpareMemory(is_driver=sys.argv[1] == "driver")
MIB, SIZE, COUNT = 1 << 20, 100 << 10, 1_000  # glibc's own threshold is 128 KiB, as long as nothing larger was freed
allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
allocate.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
free(allocate(MIB))  # from now on, glibc takes pieces of this size from an arena
pieces = []
for _ in range(COUNT):
    pieces.append(ctypes.c_void_p(allocate(SIZE)))
    ctypes.memset(pieces[-1], 1, SIZE)
    allocate(1_000)  # it stays
before = psutil.Process().memory_info().rss
for piece in pieces:
    free(piece)
print((before - psutil.Process().memory_info().rss) // MIB)
"""


TASK = """
import ctypes, time
import psutil
from mirrorlake import spare_memory

spare_memory.EVERY_S = 0.05
spare_memory.of_process().give_back_if_due()
allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
allocate.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [ctypes.c_void_p(allocate(100 << 10)) for _ in range(1_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 100 << 10)
process, end = psutil.Process(), time.monotonic() + 30
before = process.memory_info().rss
for piece in pieces[:-1]:
    free(piece)
while process.memory_info().rss > before - (50 << 20) and time.monotonic() < end:
    time.sleep(0.01)
print((before - process.memory_info().rss) >> 20)
"""


class Held:
    """An object that refers to itself, as a closed connection does."""

    def __init__(self) -> None:
        self.held = self


@pytest.fixture(autouse=True)
def _nothing_is_left_out() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_memory_that_was_freed_below_memory_in_use_is_given_back_once_in_a_while() -> None:
    now_s = 0.0
    spare = SpareMemory(lambda: now_s)
    allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    allocate.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [allocate(PIECE_BYTES) for _ in range((100 << 20) // PIECE_BYTES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE_BYTES)
    for piece in pieces[:-1]:  # the last one keeps the allocator from giving back what is below
        free(piece)
    process = psutil.Process()
    before = process.memory_info().rss
    spare.give_back_if_due()
    assert process.memory_info().rss > before - 20 * MIB, "not yet"
    now_s += EVERY_S
    spare.give_back_if_due()
    assert process.memory_info().rss < before - 50 * MIB
    free(pieces[-1])


def test_objects_that_refer_to_each_other_are_freed_once_in_a_while_and_modules_are_not_looked_at() -> None:
    now_s = 0.0
    spare = SpareMemory(lambda: now_s)
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    closed = weakref.ref(Held())
    gc.disable()
    try:
        spare.give_back_if_due()
        assert closed() is not None, "not yet, and no reference counts"
        now_s += EVERY_S
        spare.give_back_if_due()
    finally:
        gc.enable()
    assert closed() is None


def test_what_a_job_has_made_is_freed_also_after_a_later_job_of_the_process_began() -> None:
    now_s = 0.0
    SpareMemory(lambda: now_s)
    made = Held()
    later = SpareMemory(lambda: now_s)
    closed = weakref.ref(made)
    del made
    now_s += EVERY_S
    later.give_back_if_due()
    assert closed() is None


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    SpareMemory(lambda: 0.0)._trim(0)


@pytest.mark.parametrize(("process", "given_back_mib"), [("driver", range(95, 105)), ("worker", range(5))])
def test_a_driver_gives_the_buffers_of_a_burst_back_at_once(process: str, given_back_mib: range) -> None:
    assert given_back(BURST, process) in given_back_mib


def test_a_worker_gives_the_memory_of_a_task_back_also_when_no_other_task_follows() -> None:
    assert given_back(TASK) > 50


def given_back(program: str, *words: str) -> int:
    """Returns the MiB that a program in a process of its own has given back."""
    environment = {"PYTHONPATH": str(ROOT / "lib")}
    command = [sys.executable, "-c", program, *words]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout)
