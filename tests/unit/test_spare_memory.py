"""Memory that was freed goes back to the operating system."""

from __future__ import annotations

import ctypes

import psutil
import pytest
from mirrorlake.spare_memory import EVERY_S, SpareMemory

MIB = 1 << 20
PIECE_BYTES = 100 << 10  # below the size from which the allocator asks the system for each piece


def test_memory_that_was_freed_below_memory_in_use_is_given_back_once_in_a_while() -> None:
    now_s = 0.0
    spare = SpareMemory(lambda: now_s)
    allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    allocate.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [allocate(PIECE_BYTES) for _ in range(1_000)]
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


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    SpareMemory(lambda: 0.0)._trim(0)
