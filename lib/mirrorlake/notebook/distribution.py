"""Ships the package to Spark's Python processes, where a notebook runs from a checkout in a workspace.

Tasks import the package in processes of their own, on all nodes. They find an installed wheel; the path of a notebook
they do not know.
"""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake import resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


def ship(spark: SparkSession) -> None:
    """Adds the package to the session's Python files, if it is not installed.

    Args:
        spark: a session whose tasks are to find the package, classic or of Spark Connect.
    """
    if resources.checkout() is not None:
        # The folder stays: executors that start later fetch the archive from there.
        spark.addArtifacts(str(packed(Path(tempfile.mkdtemp(prefix="mirrorlake-")))), pyfile=True)


def packed(folder: Path) -> Path:
    """Packs the package into an archive in a folder; returns its path.

    Its name tells its contents: Spark refuses another file of the same name, and this code may have changed since.
    """
    package, digest = resources.PACKAGE, 0
    archive = folder / "mirrorlake.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packing:
        for path in sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            name, content = str(Path(package.name, path.relative_to(package))), path.read_bytes()
            packing.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
            digest = zlib.crc32(content, zlib.crc32(name.encode(), digest))
    return archive.rename(folder / f"mirrorlake-{digest:08x}.zip")
