"""The Java of this machine, as Spark takes it: the one of JAVA_HOME, if that is set, and the one on the PATH else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from mirrorlake.errors import ConfigurationError


def java_command(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the path of `java`; None if JAVA_HOME is not set, and there is none on the PATH."""
    home = environment.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else shutil.which("java")


def require_java() -> str:
    """Returns the path of `java`.

    Raises:
        ConfigurationError: there is none.
    """
    command = java_command()
    if command is None or not os.access(command, os.X_OK):
        raise ConfigurationError(
            f"there is no Java at {command}: let JAVA_HOME name Java 17, or unset it"
            if command
            else "java is not on the PATH. Install Java 17, or let JAVA_HOME name it"
        )
    return command
