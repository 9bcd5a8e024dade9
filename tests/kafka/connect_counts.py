"""Counts records by the notebook, on Spark Connect: ADDRESS SCHEMA CONFIG FLOW; prints its result as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(ROOT)]

from mirrorlake.local.session import use_utc  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from tests.workspace import run_notebook  # noqa: E402


def main(address: str, schema: str, config: str, flow: str) -> None:
    use_utc()
    spark = SparkSession.builder.remote(address).getOrCreate()
    given = {"schema": schema, "config": config, "flow": flow, "max_lateness_seconds": "0"}
    print(json.dumps(run_notebook(spark, "counts", **given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
