"""How many tasks of a cluster copy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mirrorlake.spark.parallelism import copying_tasks


@pytest.mark.parametrize(("cores", "tasks"), [(1, 1), (2, 2), (3, 3), (4, 2), (8, 6), (64, 62)])
def test_of_a_cluster_of_four_cores_or_more_two_are_the_ledgers(cores: int, tasks: int) -> None:
    def spark(**chosen: str) -> SimpleNamespace:
        settings = {name.replace("_", "."): value for name, value in chosen.items()}
        return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores, getConf=lambda: settings))

    assert copying_tasks(spark()) == tasks
    assert copying_tasks(spark(spark_default_parallelism=str(cores))) == cores, "as the operator has chosen"
