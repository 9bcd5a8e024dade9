"""Reads the parameters of notebooks.

The first of these sources that has a parameter wins: the widget of its name (Databricks), another value that papermill
has put into the parameters cell, the environment (`MIRRORLAKE_<NAME>`), the default. A notebook hands over its globals,
in which Databricks puts `dbutils`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mirrorlake.errors import ConfigurationError

UNITS_S = {"second": 1, "minute": 60, "hour": 3600}
LONGEST_NUMBER = 20  # characters
DURATION = re.compile(r"(\d+(?:\.\d+)?)(?: *(second|minute|hour)s?)?")


def resolve(
    namespace: Mapping[str, Any], defaults: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the value of each parameter in `defaults`, as text."""
    dbutils = namespace.get("dbutils")
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
    """Reads a parameter that is `true` or `false`; it is false if it is not given.

    Raises:
        ConfigurationError: the value is neither of them.
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
    """Reads a parameter that is a whole number.

    Args:
        name: the name of the parameter.
        namespace: the globals of the notebook.
        default: the value if the parameter is not given.
        minimum: the smallest allowed value.
        maximum: the largest allowed value.
        environment: the environment variables.

    Raises:
        ConfigurationError: the value is no whole number, or out of bounds.
    """
    value = resolve(namespace, {name: str(default)}, environment)[name].strip()
    if not value.isascii() or not value.isdigit() or not minimum <= int(value) <= maximum:
        raise ConfigurationError(
            f"parameter {name} is '{value}'; allowed is a whole number from {minimum} to {maximum}"
        )
    return int(value)


def moment(name: str, value: str) -> datetime | None:
    """Parses a time in ISO form, in UTC unless it names a zone; returns it in UTC, or None for an empty value.

    Raises:
        ConfigurationError: the value is not a time.
    """
    if not value:
        return None
    try:
        when = datetime.fromisoformat(value)
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # OverflowError: in UTC, it is before the year 1 or after 9999
        raise ConfigurationError(
            f"parameter {name} is '{value}'; allowed is a time such as 2026-11-01 08:00:00 (UTC) or "
            "2026-11-01T08:00:00+01:00, or empty"
        ) from None


def seconds(name: str, value: str, allowed: str) -> float:
    """Parses a duration; returns seconds.

    Raises:
        ConfigurationError: the value is not a duration.
    """
    match = DURATION.fullmatch(value.strip())
    if match is None or len(match.group(1)) > LONGEST_NUMBER:
        raise ConfigurationError(f"parameter {name} is '{value}'; allowed is {allowed}")
    return float(match.group(1)) * UNITS_S[match.group(2) or "second"]
