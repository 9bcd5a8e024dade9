"""Locates files of the package that are not modules: expectations, notebooks, the Maven project of the jars.

In a checkout they are at its top level, beside `lib`. In a wheel they are below the package.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def checkout() -> Path | None:
    """Returns the top level of the checkout that this package runs from, None if it is installed."""
    return None if (PACKAGE / "expectations").is_dir() else PACKAGE.parents[1]


def home() -> Path:
    """Returns the directory whose `.local` holds jars, logs and local clusters.

    It is the checkout, or the current folder if the package is installed.
    """
    return checkout() or Path.cwd()


def expectations() -> Path:
    """Returns the directory of the expectation suites."""
    return _carried() / "expectations"


def notebooks() -> Path:
    """Returns the directory of the notebooks."""
    return _carried() / "notebooks"


def pom() -> Path:
    """Returns the Maven project that names the jars of Spark and Kafka."""
    return _carried() / "pom.xml"


def _carried() -> Path:
    return checkout() or PACKAGE
