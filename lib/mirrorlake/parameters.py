"""Reads the parameters of notebooks.

A parameter is taken from the widget of its name (Databricks), else from the parameters cell if papermill has put
another value there, else from the environment (`MIRRORLAKE_<NAME>`), else it is the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mirrorlake.errors import ConfigurationError

UNITS_S = {"second": 1, "minute": 60, "hour": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(?: *(second|minute|hour)s?)?")


def resolve(
    namespace: Mapping[str, Any], defaults: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The value of each parameter in `defaults`, as text."""
    dbutils = databricks_utilities()
    found = {}
    for name, default in defaults.items():
        given = str(namespace.get(name, default))
        if dbutils is not None:
            dbutils.widgets.text(name, given)
            found[name] = dbutils.widgets.get(name)
        else:
            found[name] = given if given != default else environment.get(f"MIRRORLAKE_{name.upper()}", default)
    return found


def flag(name: str, namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """A parameter that is `true` or `false`, and false if it is not given.

    Raises:
        ConfigurationError: it is something else.
    """
    value = resolve(namespace, {name: "false"}, environment)[name].lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"parameter {name} is '{value}'; allowed is true or false")
    return value == "true"


def integer(
    name: str,
    namespace: Mapping[str, Any],
    default: int,
    minimum: int,
    maximum: int,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """A parameter that is a whole number.

    Raises:
        ConfigurationError: it is something else, or out of bounds.
    """
    value = resolve(namespace, {name: str(default)}, environment)[name].strip()
    if not value.isascii() or not value.isdigit() or not minimum <= int(value) <= maximum:
        raise ConfigurationError(
            f"parameter {name} is '{value}'; allowed is a whole number from {minimum} to {maximum}"
        )
    return int(value)


def moment(name: str, value: str) -> datetime | None:
    """A time in ISO form, UTC unless it names a zone, as one of UTC; None if it is empty.

    Raises:
        ConfigurationError: it is none.
    """
    if not value:
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigurationError(
            f"parameter {name} is '{value}'; allowed is a time such as 2026-11-01 08:00:00 (UTC) or "
            "2026-11-01T08:00:00+01:00, or empty"
        ) from None
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)


def seconds(name: str, value: str, allowed: str) -> float:
    """A duration in seconds.

    Raises:
        ConfigurationError: it is not one.
    """
    match = DURATION.fullmatch(value.strip())
    if match is None:
        raise ConfigurationError(f"parameter {name} is '{value}'; allowed is {allowed}")
    return float(match.group(1)) * UNITS_S[match.group(2) or "second"]


def databricks_utilities() -> Any:
    return kernel_variable("dbutils")


def kernel_variable(name: str) -> Any:
    """A variable that the notebook's kernel has given to the user, None elsewhere."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return None if shell is None else shell.user_ns.get(name)
