"""Runs notebooks in this process as serverless compute does: on Spark Connect, with Databricks' own names.

`python connect_notebooks.py ADDRESS SCHEMA CONFIG` prints the results as JSON; an error of a notebook ends it. What
Connect lacks (`sparkContext`, `_jvm`, RDDs) raises an error there. Notebooks that only read may send no statement that
changes anything.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(ROOT)]

from mirrorlake.errors import LedgerError  # noqa: E402
from mirrorlake.ledger import maintenance  # noqa: E402
from mirrorlake.ledger.store import Ledger  # noqa: E402
from mirrorlake.local.session import use_utc  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from tests.example_ledger import checkpoint  # noqa: E402
from tests.workspace import DatabricksUtilities, run_notebook  # noqa: E402

CHANGES = re.compile(
    r"\s*(CREATE|ALTER|DROP|INSERT|MERGE|DELETE|UPDATE|OPTIMIZE|VACUUM|TRUNCATE|REPLACE|GRANT)\b", re.I
)


@contextmanager
def changes(spark: SparkSession) -> Any:
    """Yields a list of the statements that change something, as they are sent within the block."""
    sent: list[str] = []
    kind, plain = type(spark), type(spark).sql

    def sql(session: Any, statement: str, *arguments: Any, **named: Any) -> Any:
        if CHANGES.match(statement):
            sent.append(statement)
        return plain(session, statement, *arguments, **named)

    kind.sql = sql
    try:
        yield sent
    finally:
        kind.sql = plain


def versions(spark: SparkSession, schema: str) -> dict[str, int]:
    """Returns the number of commits to each table."""
    names = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect() if not row["isTemporary"]]
    return {
        name: spark.sql(f"DESCRIBE HISTORY {schema}.{name} LIMIT 1").collect()[0]["version"]
        for name in names
        if name in ("offset_syncs", "checkpoints", "anomalies", "expectation_results")
    }


def main(address: str, schema: str, config: str) -> None:
    use_utc()
    spark = SparkSession.builder.remote(address).getOrCreate()
    found: dict[str, Any] = {}
    ledger = Ledger(spark, "spark_catalog", schema)  # as in Unity Catalog: the catalog knows the tables
    with changes(spark) as sent:
        ledger.ensure_tables()
    found["created"] = sent
    given = {"schema": schema, "flow": "west->east", "config": config}
    try:
        run_notebook(spark, "audit", **given)
    except LedgerError as error:
        found["without views"] = str(error)
    maintenance.TABLES = {"checkpoints": maintenance.TABLES["checkpoints"]}  # one is as good as all, and quicker
    found["maintain"] = run_notebook(spark, "maintain", **given, checkpoints_days="1")
    again = {**checkpoint("again", "orders", 0, (1, 1), "13:59:00"), "metadata": "{not a name} ${env:HOME}"}
    for _ in range(2):
        rows = spark.createDataFrame([tuple(again.values())], _schema(again))
        ledger.insert_missing("checkpoints", rows, ("source", "target", "group_id", "topic", "partition"))
    found["inserted once"] = ledger.read("checkpoints").filter("group_id = 'again'").count()
    before = versions(spark, schema)
    with changes(spark) as sent:
        found["audit"] = run_notebook(spark, "audit", **given)
        found["report"] = run_notebook(spark, "report", schema=schema, hours="24", until="2026-11-20T14:00:00")
        positions = json.dumps({"orders": {"0": 510, "1": 390}})
        found["translate"] = run_notebook(spark, "translate", **given, positions=positions, source_is_gone="true")
    found["changes"], found["commits"] = sent, versions(spark, schema) != before
    found["widgets"] = _defaults(spark)
    os.environ["SPARK_REMOTE"] = address
    found["remote"] = _without_databricks(spark)
    print(json.dumps(found))


def _schema(row: dict[str, Any]) -> str:
    kinds = {int: "BIGINT", str: "STRING"}
    return ", ".join(f"{name} {kinds.get(type(value), 'TIMESTAMP')}" for name, value in row.items())


def _defaults(spark: SparkSession) -> dict[str, str]:
    """Returns the parameters of a notebook that is opened in a workspace, and run as it is."""
    from mirrorlake.notebook.runtime import parameters

    namespace = {"spark": spark, "dbutils": DatabricksUtilities({}), "warehouse": ".local/warehouse", "flow": "a->b"}
    return vars(parameters(namespace))


def _without_databricks(spark: SparkSession) -> bool:
    """Tells whether a notebook uses the server that SPARK_REMOTE names."""
    from mirrorlake.notebook.runtime import session

    return session({}, ROOT, "remote") is spark


if __name__ == "__main__":
    main(*sys.argv[1:])
