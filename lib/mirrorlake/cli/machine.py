"""The doctor's checks of this machine: Java, Spark and its jars, space."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mirrorlake import resources
from mirrorlake.jobs.inspection.finding import Check, DoctorFinding, ok, problem, warning
from mirrorlake.local.jars import SETUP, have_jars
from mirrorlake.local.java import java_command

MACHINE = "this machine"
OLDEST_JAVA, NEWEST_JAVA = 17, 23  # Hadoop's client calls what Java 24 has removed (JEP 486)
JAVA_ANSWERS_S = 10
LEAST_FREE_BYTES = 1 << 30
VERSION = re.compile(r'version "(\d+)')


def examine(warehouse: str) -> Iterator[DoctorFinding]:
    """Yields the findings about this machine; starts no JVM that stays."""
    yield _java()
    yield from _spark(resources.home())
    yield _space(Path(warehouse).absolute())


def _java() -> DoctorFinding:
    needed = f"Java {OLDEST_JAVA} to {NEWEST_JAVA}"
    home, command = os.environ.get("JAVA_HOME"), java_command()
    if command is None:
        return problem(Check.JAVA, MACHINE, "java is not on the PATH", f"Install {needed}")
    remedy = f"Let JAVA_HOME name {needed}, or unset it" if home else f"Install {needed}"
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return problem(Check.JAVA, MACHINE, f"{command} does not run: {type(error).__name__}", remedy)
    found = VERSION.search(done.stderr + done.stdout)
    if found is None or not OLDEST_JAVA <= int(found[1]) <= NEWEST_JAVA:
        return problem(Check.JAVA, MACHINE, f"{command} is {found[1] if found else 'of no known version'}", remedy)
    return ok(Check.JAVA, MACHINE, f"Java {found[1]} ({command})")


def _spark(home: Path) -> Iterator[DoctorFinding]:
    missing = []
    for package in ("pyspark", "delta-spark"):
        try:
            version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        yield problem(Check.SPARK, MACHINE, f"{' and '.join(missing)} not installed", "pip install 'mirrorlake[spark]'")
        return
    yield ok(Check.SPARK, MACHINE, f"pyspark {version('pyspark')}, delta-spark {version('delta-spark')}")
    jars = home / ".local/jars"
    if not any((jars / "spark").glob("*.jar")):
        yield problem(Check.SPARK, MACHINE, f"no Spark jars in {jars / 'spark'}", SETUP[0].upper() + SETUP[1:])
    elif not have_jars(home, resources.pom()):
        yield warning(Check.SPARK, MACHINE, f"the jars in {jars} are of another version", SETUP[0].upper() + SETUP[1:])
    else:
        yield ok(Check.SPARK, MACHINE, f"jars in {jars}")


def _space(warehouse: Path) -> DoctorFinding:
    # Not Path.exists: it raises for a folder that may not be entered. That folder is the one to be named.
    there = next(path for path in (warehouse, *warehouse.parents) if os.path.exists(path))
    remedy = "Name another --warehouse, or let the user of the jobs write there"
    if not there.is_dir():
        return problem(Check.SPACE, MACHINE, f"warehouse {warehouse} can't be made: {there} is a file", remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(Check.SPACE, MACHINE, f"warehouse {warehouse} can't be written: {there} is not writable", remedy)
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:,.1f} GiB free for warehouse {warehouse}"
    if free < LEAST_FREE_BYTES:
        return warning(Check.SPACE, MACHINE, text, "Free some, or name another --warehouse")
    return ok(Check.SPACE, MACHINE, text)
