"""Notebooks on Spark Connect, as on serverless compute and in standard access mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.notebook.runtime import session

from tests.empty_ledger import ledger_in
from tests.example_ledger import fill, write_flow
from tests.workspace import connect_server, run_script


@pytest.fixture(scope="module")
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns what `connect_notebooks.py` has found, in a process of its own."""
    directory = tmp_path_factory.mktemp("connect")
    fill(ledger_in(spark, "connected", directory / "connected"))
    script, config = Path(__file__).with_name("connect_notebooks.py"), write_flow(directory)
    with connect_server(spark) as address:
        return run_script(script, address, "connected", str(config))


def test_maintenance_and_those_who_only_read_run_without_a_spark_context(found: dict[str, Any]) -> None:
    assert found["maintain"]["expired"] == {"checkpoints": 3}, "one position of a group that is gone among them"
    (note,) = found["maintain"]["notes"]
    assert note.startswith("flow west->east: its map is kept")
    assert found["audit"] == {"flow": "west->east", "runs": 2, "gate_failures": 0, "anomalies": 0}
    assert (found["report"]["flows"], found["report"]["records"]) == (["west->east"], 1860)
    assert found["translate"]["output"] is None


def test_readers_need_no_more_than_select_and_views_are_made_by_maintenance(found: dict[str, Any]) -> None:
    assert "lacks the views resets, expired, " in found["without views"]
    assert "Run notebooks/maintain.ipynb once" in found["without views"]
    assert found["created"] == found["changes"] == []
    assert found["commits"] is False


def test_tasks_find_the_package_that_a_notebook_of_a_checkout_ships(root: Path, tmp_path: Path) -> None:
    class Session:
        def addArtifacts(self, *path: str, pyfile: bool) -> None:  # noqa: N802 (Spark's name)
            shipped.append((path, pyfile))

    shipped: list[tuple[Any, ...]] = []
    for _ in range(2):
        assert isinstance(session({"spark": Session(), "dbutils": None}, root, "test"), Session)
    ((first,), is_python), ((second,), _) = shipped
    assert is_python
    assert Path(first).name == Path(second).name, "Spark refuses another file of the same name"
    statement = "import mirrorlake.jobs.mirror.copy.task as found; print(found.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": first}
    asked = [sys.executable, "-c", statement]
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{first}/mirrorlake/jobs/mirror/copy/task.py"


def test_rows_are_inserted_once_and_a_notebook_opened_in_a_workspace_has_defaults_that_fit(
    found: dict[str, Any],
) -> None:
    assert found["inserted once"] == 1
    assert found["widgets"]["warehouse"] == ""
    assert found["widgets"]["catalog"] == "spark_catalog"
    assert found["widgets"]["config"] == "/Volumes/spark_catalog/mirrorlake/config/mirrorlake.properties"
    assert found["remote"] is True
