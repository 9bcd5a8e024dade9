"""Notebooks on Spark Connect, as on serverless compute and in standard access mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.local.connect_server import connect_server


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns what `connect_notebooks.py` has found: notebooks in one process of their own, on one server."""
    directory = tmp_path_factory.mktemp("connect")
    script = Path(__file__).with_name("connect_notebooks.py")
    environment = {**os.environ, "PYTHONPATH": str(root / "lib"), "MPLBACKEND": "agg"}
    with connect_server(root, directory) as address:
        done = subprocess.run(
            [sys.executable, str(script), address, str(directory / "warehouse")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_maintenance_and_those_who_only_read_run_without_a_spark_context(found: dict[str, Any]) -> None:
    assert found["maintain"]["expired"] == {"checkpoints": 2}
    (note,) = found["maintain"]["notes"]
    assert note.startswith("flow west->east: its map is kept")
    assert found["audit"] == {"flow": "west->east", "runs": 2, "gate_failures": 0, "anomalies": 0}
    assert (found["report"]["flows"], found["report"]["records"]) == (["west->east"], 1960)
    assert found["translate"]["output"] is None


def test_readers_need_no_more_than_select_and_views_are_made_by_maintenance(found: dict[str, Any]) -> None:
    assert "lacks the views resets, expired, " in found["without views"]
    assert "Run notebooks/maintain.ipynb once" in found["without views"]
    assert found["created"] == found["changes"] == []
    assert found["commits"] is False


def test_tasks_find_the_package_that_a_notebook_of_a_checkout_has_shipped(found: dict[str, Any]) -> None:
    assert re.search(r"/mirrorlake-[0-9a-f]{8}\.zip/mirrorlake/jobs/mirror/copy/task\.py$", found["package"])


def test_rows_are_inserted_once_and_a_notebook_opened_in_a_workspace_has_defaults_that_fit(
    found: dict[str, Any],
) -> None:
    assert found["inserted once"] == 1
    assert found["widgets"]["warehouse"] == ""
    assert found["widgets"]["catalog"] == "spark_catalog"
    assert found["widgets"]["config"] == "/Volumes/spark_catalog/mirrorlake/config/mirrorlake.properties"
    assert found["remote"] is True
