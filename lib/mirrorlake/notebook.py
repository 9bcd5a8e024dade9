"""What every notebook begins and ends with, the same under papermill, in Jupyter and as a Databricks task.

A parameter is taken from the widget of its name (Databricks), else from the parameters cell if papermill has put another value there, else from the
environment (`MIRRORLAKE_<NAME>`), else it is the default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

AVAILABLE_NOW = "availableNow"
UNITS_S = {"second": 1, "minute": 60, "hour": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(?: *(second|minute|hour)s?)?")


@dataclass(frozen=True)
class Parameters:
    """The parameters that notebooks share, with their defaults; a notebook's parameters cell repeats those it has.

    Attributes:
        config: property file in MirrorMaker 2's format.
        flow: `source->target`.
        warehouse: local directory of the tables; empty on Databricks.
        catalog, schema: of the tables.
        trigger: `availableNow` (do what there is, then end), `N seconds`, or empty for the interval of the property file.
        run_for: stop after this long (`N seconds`, `N minutes`, `N hours`); empty: when all is done, or never.
        checkpoints: directory for Spark's own progress; empty for a place beside the tables.
    """

    config: str = ".local/mirrorlake.properties"
    flow: str = "a->b"
    warehouse: str = ".local/warehouse"
    catalog: str = "spark_catalog"
    schema: str = "mirrorlake"
    trigger: str = AVAILABLE_NOW
    run_for: str = ""
    checkpoints: str = ""

    def interval_s(self, configured_s: float) -> float | None:
        """Seconds between two micro-batches; None to do what there is and end."""
        if self.trigger == AVAILABLE_NOW:
            return None
        return configured_s if not self.trigger else seconds("trigger", self.trigger, f"'{AVAILABLE_NOW}', 'N seconds', or empty")

    def run_for_s(self) -> float | None:
        """Seconds after which to stop; None for no limit."""
        return seconds("run_for", self.run_for, "'N seconds', 'N minutes', 'N hours', or empty") if self.run_for else None

    def ledger(self, spark: SparkSession) -> Ledger:
        """The tables these parameters name."""
        return Ledger(spark, self.catalog, self.schema, self.warehouse, self.checkpoints)


def parameters(namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Parameters:
    """The parameters of the notebook whose globals are given; on Databricks, declares its widgets."""
    defaults = {field.name: str(field.default) for field in fields(Parameters)}
    return Parameters(**resolve(namespace, defaults, environment))


def resolve(namespace: Mapping[str, Any], defaults: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The value of each parameter in `defaults`, as text."""
    dbutils = _dbutils()
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


def integer(name: str, namespace: Mapping[str, Any], default: int, minimum: int, maximum: int, environment: Mapping[str, str] = os.environ) -> int:
    """A parameter that is a whole number.

    Raises:
        ConfigurationError: it is something else, or out of bounds.
    """
    value = resolve(namespace, {name: str(default)}, environment)[name].strip()
    if not value.isascii() or not value.isdigit() or not minimum <= int(value) <= maximum:
        raise ConfigurationError(f"parameter {name} is '{value}'; allowed is a whole number from {minimum} to {maximum}")
    return int(value)


def table(rows: Iterable[Any]) -> pd.DataFrame:
    """Dataclass instances as a table, for people."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows])


def session(root: Path, name: str) -> SparkSession:
    """The Spark session: Databricks' own, or a local one."""
    spark = _from_user("spark")
    if spark is not None and _dbutils() is not None:
        return spark
    from mirrorlake.local.session import local_session

    return local_session(root, name)


def finish(result: Mapping[str, Any]) -> None:
    """Returns the result of the notebook: to the job on Databricks, as the output of this cell elsewhere."""
    text = json.dumps(result, default=str)
    dbutils = _dbutils()
    if dbutils is not None:
        dbutils.notebook.exit(text)
    print(text)


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
        raise ConfigurationError(f"parameter {name} is '{value}'; allowed is a time such as 2026-11-01 08:00:00 (UTC) or 2026-11-01T08:00:00+01:00, or empty") from None
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


def _dbutils() -> Any:
    return _from_user("dbutils")


def _from_user(name: str) -> Any:
    """A variable that the notebook's kernel has given to the user, None elsewhere."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return None if shell is None else shell.user_ns.get(name)
