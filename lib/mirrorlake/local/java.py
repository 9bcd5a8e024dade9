"""The Java of this machine, as Spark takes it: the one of JAVA_HOME, if that is set, and the one on the PATH else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def java_command(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the path of `java`; None if JAVA_HOME is not set, and there is none on the PATH."""
    home = environment.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else shutil.which("java")
