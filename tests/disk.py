"""Disks that are full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    """Puts a directory, with what it holds, on a file system of that size; skips the test where that is not allowed."""
    directory.mkdir(exist_ok=True)
    held = shutil.copytree(directory, directory.with_name("held"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(held, directory, dirs_exist_ok=True)
        yield
    finally:
        shutil.rmtree(held)
        shutil.copytree(directory, held)
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        shutil.copytree(held, directory, dirs_exist_ok=True)


def fill(path: Path) -> None:
    """Writes a file until its file system is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    assert shutil.disk_usage(path).free == 0
