"""The jars of Spark and Kafka below `.local/jars`, fetched by Maven.

`.local/jars/.ready` holds a digest of the Maven project and of what set-up adds, so that a newer mirrorlake has its own
jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrorlake import resources
from mirrorlake.errors import ConfigurationError
from mirrorlake.local.hadoop_defaults import DEFAULTS, write_defaults
from mirrorlake.local.java import java_command

SETUP = f"run `{'make setup' if resources.checkout() else 'python -m mirrorlake.local setup'}` first"
PROFILES = ("spark", "kafka")
REPORTED_LINES = 5  # of what Maven says when it fails; advice on Maven's options follows
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def have_jars(root: Path, pom: Path) -> bool:
    """Returns whether the jars below `root` are those of the Maven project."""
    marker = root / ".local/jars/.ready"
    return marker.is_file() and marker.read_text() == _digest(pom)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Lets one process at a time change `.local/jars`; the next one waits."""
    (root / ".local").mkdir(parents=True, exist_ok=True)
    with (root / ".local/jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_jars(root: Path, pom: Path) -> None:
    """Replaces everything below `.local/jars` by the jars of the Maven project.

    Args:
        root: the directory that holds `.local`.
        pom: the Maven project, with a profile for each of PROFILES and a property `jars` for the directory.

    Raises:
        ConfigurationError: Java or Maven is missing, or Maven fails; the message has the beginning of its output.
    """
    commands = {"Java 17": java_command(), "Maven": shutil.which("mvn")}
    missing = [name for name, command in commands.items() if command is None]
    if missing:
        raise ConfigurationError(f"{' and '.join(missing)} not found on the PATH; install what is missing")
    jars = (root / ".local/jars").resolve()
    new = jars.with_name("jars.new")  # the old ones stay until all new ones are there
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for profile in PROFILES:
        command = f"mvn --quiet --batch-mode -P {profile} dependency:copy-dependencies".split()
        done = subprocess.run(
            [*command, "--file", str(pom), f"-Djars={new}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if done.returncode:
            said = "\n".join(COLOURS.sub("", done.stdout).splitlines()[:REPORTED_LINES])
            raise ConfigurationError(f"Maven could not fetch the jars of profile {profile} of {pom}:\n{said}")
    shutil.rmtree(jars, ignore_errors=True)
    new.rename(jars)
    write_defaults(root)
    (jars / ".ready").write_text(_digest(pom))


def _digest(pom: Path) -> str:
    return hashlib.sha256(pom.read_bytes() + repr(DEFAULTS).encode()).hexdigest()
