"""databricks.yml and workflows/ are valid, and all files and tasks that they name exist.

The resources are validated by the models of the package databricks-bundles, which Databricks generates from the
bundle's JSON schema. The rest is validated by bundle.schema.json in this directory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume
from jsonschema import Draft202012Validator
from mirrorlake.config.secret_reference import REDACTED

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "databricks.yml", *sorted((ROOT / "workflows").glob("*.yml"))]
MODELS = {"jobs": Job, "schemas": Schema, "volumes": Volume}


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def resources(kind: str) -> dict[str, dict[str, Any]]:
    return {name: value for path in FILES for name, value in load(path).get("resources", {}).get(kind, {}).items()}


def parameters_of(notebook: Path) -> set[str]:
    cells = json.loads(notebook.read_text())["cells"]
    (cell,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    return set(re.findall(r"^(\w+) *=", "".join(cell["source"]), re.MULTILINE))


JOBS = resources("jobs")
SCHEDULED = {"mirror", "checkpoint", "verify", "maintain", "report"}


def test_there_is_something_to_check() -> None:
    assert len(FILES) >= 4
    assert set(JOBS) == {"mirror", "checkpoint", "verify", "maintain", "failover", "failback", "report"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_valid_against_the_schema(path: Path) -> None:
    schema = json.loads((Path(__file__).parent / "bundle.schema.json").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(load(path))] == []


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in MODELS for name in resources(kind)])
def test_every_resource_is_valid_against_the_model_of_its_kind(kind: str, name: str) -> None:
    MODELS[kind].from_dict(resources(kind)[name])


def test_a_typo_and_a_wrong_value_would_be_noticed() -> None:
    wrong = json.loads(json.dumps(JOBS["mirror"]))
    wrong["tasks"][0]["notebook_tsk"] = {}
    with pytest.raises(ValueError, match="notebook_tsk"):
        Job.from_dict(wrong)


def test_every_file_is_included() -> None:
    included = {path for pattern in load(ROOT / "databricks.yml")["include"] for path in ROOT.glob(pattern)}
    assert included == set(FILES[1:])


def test_every_variable_that_is_used_is_declared_and_every_declared_one_is_used() -> None:
    declared = {name for path in FILES for name in load(path).get("variables", {})}
    used = {name for path in FILES for name in re.findall(r"\$\{var\.(\w+)\}", path.read_text())}
    set_by_targets = {
        name for target in load(ROOT / "databricks.yml")["targets"].values() for name in target.get("variables", {})
    }
    assert used == declared
    assert set_by_targets <= declared


def test_every_other_reference_is_to_something_that_exists() -> None:
    known = {f"resources.{kind}.{name}.name" for kind in MODELS for name in resources(kind)}
    known |= {"workspace.current_user.short_name", "bundle.target"}
    found = {
        name for path in FILES for name in re.findall(r"\$\{([^}]+)\}", path.read_text()) if not name.startswith("var.")
    }
    assert found <= known


@pytest.mark.parametrize("job", JOBS)
def test_every_notebook_exists_and_gets_exactly_the_parameters_it_has(job: str) -> None:
    definition = JOBS[job]
    given = {parameter["name"] for parameter in definition["parameters"]}
    for task in definition["tasks"]:
        notebook = (ROOT / "workflows" / task["notebook_task"]["notebook_path"]).resolve()
        assert notebook.is_file()
        base = set(task["notebook_task"].get("base_parameters", {}))
        assert given & base == set(), "job parameters override base parameters of the same name"
        assert given | base == parameters_of(notebook)


@pytest.mark.parametrize("job", JOBS)
def test_clusters_that_tasks_name_exist_and_only_one_run_is_allowed(job: str) -> None:
    definition = JOBS[job]
    clusters = {cluster["job_cluster_key"] for cluster in definition["job_clusters"]}
    assert {task["job_cluster_key"] for task in definition["tasks"]} == clusters
    assert definition["max_concurrent_runs"] == 1
    assert ("schedule" in definition) == (job in SCHEDULED), "a failover is nothing that a clock decides about"
    assert "pause_status" not in definition.get("schedule", {}), (
        "development mode pauses schedules that do not say it themselves"
    )


@pytest.mark.parametrize("job", JOBS)
def test_libraries_have_the_versions_the_code_is_tested_with(job: str) -> None:
    pinned = {line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()}
    packages = {library["pypi"]["package"] for task in JOBS[job]["tasks"] for library in task["libraries"]}
    assert packages
    assert packages <= pinned


@pytest.mark.parametrize("job", JOBS)
def test_the_mirror_does_not_speculate_hides_secrets_and_runs_on_a_classic_cluster(job: str) -> None:
    for cluster in JOBS[job]["job_clusters"]:
        assert cluster["new_cluster"]["spark_conf"]["spark.speculation"] == "false"
        assert cluster["new_cluster"]["spark_conf"]["spark.redaction.regex"] == REDACTED
        assert cluster["new_cluster"]["data_security_mode"] == "DATA_SECURITY_MODE_DEDICATED"


def test_no_file_holds_anything_that_looks_like_a_secret() -> None:
    for path in FILES:
        assert not re.search(r"(?i)(password|secret|token)\s*[:=]\s*\S", path.read_text())
