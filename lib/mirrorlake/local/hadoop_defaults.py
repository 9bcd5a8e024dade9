"""The defaults of Hadoop that a local session needs, in place of the thousand that Hadoop has.

Each small query copies Hadoop's configuration several times, and sends it to its tasks once for each table that it
reads or writes, with the origin of each property, compressed. This took a fifth of the JVM's time. Where a property is
missing, Hadoop's code has a default of its own. Those below are the ones that a session relies on.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

CORE = {
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
    "fs.defaultFS": "file:///",
    "hadoop.security.authentication": "simple",
    "hadoop.tmp.dir": "${java.io.tmpdir}/hadoop-${user.name}",
    "io.serializations": "org.apache.hadoop.io.serializer.WritableSerialization",
}
DEFAULTS: dict[str, dict[str, str]] = {"core-default.xml": CORE, "mapred-default.xml": {}, "yarn-default.xml": {}}


def defaults_jar(root: Path) -> Path:
    """Returns the jar with DEFAULTS, which set-up has made; it comes first on the class path of a session."""
    return root / ".local/jars/hadoop-defaults.jar"


def write_defaults(root: Path) -> None:
    """Makes the jar, with the same bytes each time."""
    with zipfile.ZipFile(defaults_jar(root), "w") as jar:
        for name, properties in DEFAULTS.items():
            lines = [f"<property><name>{key}</name><value>{one}</value></property>" for key, one in properties.items()]
            jar.writestr(zipfile.ZipInfo(name), "\n".join(["<configuration>", *lines, "</configuration>\n"]))
