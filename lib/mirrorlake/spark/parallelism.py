"""How many tasks of a job may copy at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FREE_CORES = 2  # for the ledger's stream; a copying task that waits for one of its tasks delays the whole micro-batch


def copying_tasks(spark: SparkSession) -> int:
    """Returns how many tasks a classic session runs at the same time, less those of the ledger's stream.

    `spark.default.parallelism`, where it is set, is taken as it is.
    """
    context = spark.sparkContext
    cores = context.defaultParallelism
    is_chosen = context.getConf().get("spark.default.parallelism") is not None
    return cores if is_chosen or cores < 2 * FREE_CORES else cores - FREE_CORES
