"""Parameters, session and result of every notebook, under papermill, in Jupyter and as a Databricks task.

A parameter is the value of the widget with its name (Databricks). Otherwise it is the value in the parameters cell, if
papermill has changed it, or the environment variable `MIRRORLAKE_<NAME>`, or the default, in this order.

A notebook hands its globals to these functions: on Databricks, `dbutils` and `spark` are among them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake import resources
from mirrorlake.config.security import config_provider
from mirrorlake.ledger.store import Ledger
from mirrorlake.notebook import distribution, log_output
from mirrorlake.notebook.stop_signal import StoppableJob, done_aside
from mirrorlake.parameters import resolve, seconds

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

AVAILABLE_NOW = "availableNow"
PROPERTY_FILE = "/Volumes/{catalog}/{schema}/config/mirrorlake.properties"  # where the bundle has a volume for it


@dataclass(frozen=True)
class Parameters:
    """The parameters that notebooks share, with their defaults; a notebook's parameters cell repeats the ones that it
    uses.

    Attributes:
        config: property file in MirrorMaker 2's format.
        flow: `source->target`.
        warehouse: local directory of the tables; empty on Databricks.
        catalog: catalog of the tables.
        schema: schema of the tables.
        trigger: `availableNow` (process what is available, then end), `N seconds`, or empty for the interval of the
            property file.
        run_for: time after which to stop (`N seconds`, `N minutes`, `N hours`); empty to run until all is done, or
            without limit.
        checkpoints: directory for Spark's own progress; empty for a directory beside the tables.
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
        """Returns the seconds between two micro-batches; None to process what is available and end."""
        if self.trigger == AVAILABLE_NOW:
            return None
        return (
            configured_s
            if not self.trigger
            else seconds("trigger", self.trigger, f"'{AVAILABLE_NOW}', 'N seconds', or empty")
        )

    def run_for_s(self) -> float | None:
        """Returns the seconds after which to stop; None for no limit."""
        return (
            seconds("run_for", self.run_for, "'N seconds', 'N minutes', 'N hours', or empty") if self.run_for else None
        )

    def ledger(self, spark: SparkSession) -> Ledger:
        """Returns the ledger with the tables that the parameters name."""
        return Ledger(
            spark=spark,
            catalog=self.catalog,
            schema=self.schema,
            warehouse=self.warehouse,
            checkpoints=self.checkpoints,
        )


def parameters(namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Parameters:
    """Reads the parameters from a notebook's globals; on Databricks, declares its widgets.

    From this call on, the notebook shows log lines, and this process reads `${secrets:scope:key}` from the scopes of
    the workspace. Where a notebook is run by hand on Databricks, defaults for a local machine would be of no use there:
    the catalog is then the workspace's own, and the property file is in the volume of the schema. Jupyter runs a
    notebook in its own folder: within a checkout, the default paths are those at its top level all the same.
    """
    log_output.install(environment)
    defaults = {field.name: str(field.default) for field in fields(Parameters)}
    if (dbutils := namespace.get("dbutils")) is None:
        here = _at_top_level(defaults)
        return Parameters(**resolve(_fitting(namespace, defaults, here), {**defaults, **here}, environment))
    config_provider.ask_first("secrets", partial(_from_scope, dbutils.secrets))
    here = {"warehouse": "", "catalog": namespace["spark"].catalog.currentCatalog()}
    place = resolve(_fitting(namespace, defaults, here), {name: defaults[name] for name in ("catalog", "schema")})
    here["config"] = PROPERTY_FILE.format(**place)
    return Parameters(**resolve(_fitting(namespace, defaults, here), defaults, environment))


def _at_top_level(defaults: Mapping[str, str]) -> dict[str, str]:
    """Returns the default paths from the top level of the checkout, if this process runs in a folder below it."""
    home = resources.checkout()
    if home is None or home not in Path.cwd().parents:
        return {}
    return {name: str(home / defaults[name]) for name in ("config", "warehouse")}


def _fitting(namespace: Mapping[str, Any], local: Mapping[str, str], here: Mapping[str, str]) -> dict[str, Any]:
    """Replaces parameters that still have their default for a local machine by the default for this platform."""
    return {**namespace, **{name: value for name, value in here.items() if namespace.get(name) in (None, local[name])}}


def _from_scope(secrets: Any, scope: str, key: str) -> str | None:
    """Reads a secret of a scope; returns None if there is no such secret, or this user may not read it."""
    try:
        return str(secrets.get(scope, key))
    except Exception:  # of Py4J, with the JVM's message
        return None


def table(rows: Iterable[Any]) -> pd.DataFrame:
    """Returns dataclass instances as a table, for display."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows])


def session(namespace: Mapping[str, Any], root: Path, name: str) -> SparkSession:
    """Returns the Spark session: Databricks' own, one of a Spark Connect server, or a local one.

    From this call on, tables show text between $ as it is, not as formulas and links of MathJax.

    Args:
        namespace: the globals of the notebook.
        root: the directory with the jars of a local session.
        name: the name of a local Spark application.
    """
    import pandas as pd

    pd.options.display.html.use_mathjax = False
    spark = namespace.get("spark")
    if spark is not None and "dbutils" in namespace:
        distribution.ship(spark)
        return spark
    from mirrorlake.local.session import local_session, use_utc

    if "SPARK_REMOTE" in os.environ:  # Spark's own variable, such as sc://localhost:15002
        from pyspark.sql import SparkSession

        use_utc()
        return SparkSession.builder.getOrCreate()
    return local_session(root, name)


@contextmanager
def ended_by_sigterm(job: StoppableJob) -> Iterator[None]:
    """Lets SIGTERM end a job between two micro-batches, for the length of a block, so that no transaction stays open.

    Only the main thread of a process can handle signals; elsewhere, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with done_aside(job.stop) as stop:
        before = signal.signal(signal.SIGTERM, lambda *_: stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def finish(namespace: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Returns the result of the notebook: to the job on Databricks, as the output of this cell elsewhere."""
    text = json.dumps(result, default=str)
    dbutils = namespace.get("dbutils")
    if dbutils is not None:
        dbutils.notebook.exit(text)
    sys.stdout.write(f"{text}\n")  # at once: between two writes, a kernel may end the output and begin another
