"""Copies of the repository, in which tests run while the repository itself may change."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from mutants.mutant import PACKAGE, Mutant

SHARED = (".venv", ".local")  # what setup has made; nobody wants it twice


def snapshot(root: Path, place: Path) -> Path:
    """Copies the files that git tracks or would track, as they are now; links what setup has made."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():  # a file that was deleted is listed until that is committed
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)
    for name in SHARED:
        (place / name).symlink_to(root / name)
    return place


def mutated(origin: Path, place: Path, mutant: Mutant) -> Path:
    """Copies a snapshot, with the compiled modules it has by now, and changes one module of the copy.

    Raises:
        CodeMovedError: the mutant does not fit.
    """
    changed = mutant.applied(origin)
    shutil.copytree(origin, place, symlinks=True)
    module = place / PACKAGE / mutant.module
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()  # it would be taken for that of the change, if that has the same size and second
    module.write_text(changed)
    return place
