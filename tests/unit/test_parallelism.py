"""How many tasks of a cluster, or of a session on one machine, copy."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from mirrorlake.local.session import copying_tasks_on, processors
from mirrorlake.spark.parallelism import copying_tasks


@pytest.mark.parametrize(("cores", "tasks"), [(1, 1), (2, 2), (3, 3), (4, 2), (8, 6), (64, 62)])
def test_of_a_cluster_of_four_cores_or_more_two_are_the_ledgers(cores: int, tasks: int) -> None:
    def spark(**chosen: str) -> SimpleNamespace:
        settings = {name.replace("_", "."): value for name, value in chosen.items()}
        return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores, getConf=lambda: settings))

    assert copying_tasks(spark()) == tasks
    assert copying_tasks(spark(spark_default_parallelism=str(cores))) == cores, "as the operator has chosen"


@pytest.mark.parametrize(("cores", "tasks"), [(1, 2), (2, 2), (4, 2), (8, 6), (10, 8), (64, 8)])
def test_on_one_machine_all_cores_but_two_copy_and_not_more_than_memory_is_planned_for(cores: int, tasks: int) -> None:
    assert copying_tasks_on(cores) == tasks


@pytest.mark.parametrize(("limit", "most"), [("100000 100000", 1), ("50000 100000", 1), ("6400000 100000", 64)])
def test_a_container_has_the_processors_of_its_limit(limit: str, most: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert processors(tmp_path / "cpu.max") == min(most, processors(tmp_path / "none"))


@pytest.mark.parametrize("limit", ["max 100000", "0 0", ""])
def test_where_a_container_has_no_limit_all_processors_are_its(limit: str, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert processors(tmp_path / "cpu.max") == len(os.sched_getaffinity(0))
