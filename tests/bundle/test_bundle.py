"""The bundle as it would be deployed: valid, complete, and what docs/databricks.md says of it.

Resources are validated by the models of the package databricks-bundles, which Databricks generates from the bundle's
JSON schema; files by bundle.schema.json in this directory. `rendered.py` stands in for the command line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from databricks.bundles.alerts import Alert
from databricks.bundles.dashboards import Dashboard
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.secret_scopes import SecretScope
from databricks.bundles.volumes import Volume
from jsonschema import Draft202012Validator
from mirrorlake.config.secret_reference import REDACTED
from mirrorlake.config.security.config_provider import scope_variable

from tests.bundle.rendered import REFERENCE, ROOT, USER, Rendered, files, load, render

MODELS = {
    "jobs": Job,
    "schemas": Schema,
    "volumes": Volume,
    "secret_scopes": SecretScope,
    "dashboards": Dashboard,
    "alerts": Alert,
}
SEVERAL = [
    {"flow": "us-west->us-east", "secrets": ["kafka.prod/west-password"]},
    {"flow": "a.b -> c_d", "cadence": "scheduled", "workers": 4, "config": "/Volumes/x/y/z.properties"},
    {"flow": "1->2-", "key": "one"},
]
FULL = {
    "flows": SEVERAL,
    "warehouse_id": "0123456789abcdef",
    "emails": ["oncall@example.com"],
    "webhooks": ["5f0a"],
    "readers": "analysts",
    "secret_scope": "kafka.prod",
    "policy_id": "ABC",
    "budget_policy_id": "DEF",
    "tags": {"team": "streaming"},
    "catalog": "data-platform",
    "schema": "kafka-mirror",
    "run_as": "5b4f",
}
DEV, PROD = render("dev", flow="us-west->us-east"), render("prod", **FULL)
CLASSIC = [(name, job) for bundle in (DEV, PROD) for name, job in bundle.jobs.items() if "job_clusters" in job]
BY_HAND = {"failover", "failback"}


def kind(name: str) -> str:
    return name.partition("_")[0]


def parameters_of(notebook: Path) -> set[str]:
    cells = json.loads(notebook.read_text())["cells"]
    (cell,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    return set(re.findall(r"^(\w+) *=", "".join(cell["source"]), re.MULTILINE))


def parameters(job: dict[str, Any]) -> dict[str, str]:
    return {parameter["name"]: parameter["default"] for parameter in job["parameters"]}


# -- valid -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_file_is_valid_against_the_schema(path: Path) -> None:
    schema = json.loads((Path(__file__).parent / "bundle.schema.json").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(load(path))] == []


@pytest.mark.parametrize("bundle", [DEV, PROD], ids=["dev", "prod"])
def test_every_resource_is_valid_and_no_reference_is_left(bundle: Rendered) -> None:
    assert REFERENCE.search(json.dumps(bundle.whole)) is None
    for name, resources in bundle.whole["resources"].items():
        for resource in resources.values():
            MODELS[name].from_dict(resource)
            assert "" not in resource.values()


def test_a_typo_and_a_wrong_value_would_be_noticed() -> None:
    wrong = json.loads(json.dumps(DEV.jobs["mirror_us-west_to_us-east"]))
    wrong["tasks"][0]["notebook_tsk"] = {}
    with pytest.raises(ValueError, match="notebook_tsk"):
        Job.from_dict(wrong)


def test_every_variable_that_is_used_is_declared_and_every_declared_one_is_used() -> None:
    declared = {name for path in files() for name in load(path).get("variables", {})}
    python = "".join(path.read_text() for path in (ROOT / "workflows").glob("*.py"))
    used = set(re.findall(r"\$\{var\.(\w+)\}", "".join(path.read_text() for path in files()) + python))
    used |= set(re.findall(r"(?:given|defaults)\[\"(\w+)\"\]", python))
    assert used == declared


def test_the_command_line_can_load_the_resources_as_it_does(tmp_path: Path) -> None:
    variables = {name: {"value": one["default"]} for name, one in load(files()[1])["variables"].items()}
    (tmp_path / "input.json").write_text(
        json.dumps({"bundle": {"target": "dev"}, "variables": variables, "python": load(files()[0])["python"]})
    )
    paths = {name: tmp_path / f"{name}.json" for name in ("input", "output", "diagnostics", "locations")}
    words = [f"--{name}={path}" for name, path in paths.items()]
    command = [sys.executable, "-m", "databricks.bundles.build", "--phase=load_resources", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert paths["diagnostics"].read_text() == ""
    assert len(json.loads(paths["output"].read_text())["resources"]["jobs"]) == 7


# -- names and places ---------------------------------------------------------------------------------


def test_in_development_mode_jobs_use_the_schema_that_is_deployed_and_none_runs_unasked() -> None:
    (schema,) = DEV.resources("schemas").values()
    assert schema["name"] == f"dev_{USER}_mirrorlake"
    assert {volume["schema_name"] for volume in DEV.resources("volumes").values()} == {schema["name"]}
    for job in DEV.jobs.values():
        assert parameters(job)["schema"] == schema["name"]
        assert job["name"].startswith(f"[dev {USER}] mirrorlake ")
        timing = job.get("schedule") or job.get("continuous") or {"pause_status": "PAUSED"}
        assert timing["pause_status"] == "PAUSED"
    assert parameters(DEV.jobs["maintain"])["config"] == f"/Volumes/main/{schema['name']}/config/mirrorlake.properties"
    assert not any("lifecycle" in one for kind in ("schemas", "volumes") for one in DEV.resources(kind).values())


def test_in_production_what_cannot_be_rebuilt_is_kept_and_names_with_dashes_are_quoted() -> None:
    kept = [PROD.resources("schemas")["mirrorlake"], PROD.resources("volumes")["config"]]
    for one in (*kept, PROD.resources("secret_scopes")["secrets"]):
        assert one["lifecycle"] == {"prevent_destroy": True}
    for alert in PROD.resources("alerts").values():
        assert "`data-platform`.`kafka-mirror`." in alert["query_text"]
    dashboard = PROD.resources("dashboards")["dashboard"]
    assert (dashboard["dataset_catalog"], dashboard["dataset_schema"]) == ("data-platform", "kafka-mirror")
    for job in PROD.jobs.values():
        timing = job.get("schedule") or job.get("continuous") or {"pause_status": "UNPAUSED"}
        assert timing["pause_status"] == "UNPAUSED"


def test_every_flow_has_jobs_of_its_own_whatever_it_is_called() -> None:
    kinds = ("mirror", "checkpoint", "verify", "failover", "failback")
    keys = {"us-west->us-east": "us-west_to_us-east", "a.b->c_d": "a_b_to_c_d", "1->2-": "one"}
    assert set(PROD.jobs) == {f"{kind}_{key}" for kind in kinds for key in keys.values()} | {"maintain", "report"}
    for flow, key in keys.items():
        for kind_ in kinds:
            job = PROD.jobs[f"{kind_}_{key}"]
            assert job["name"] == f"mirrorlake {kind_} {flow}"
            assert parameters(job)["flow"] == flow
            assert re.fullmatch(r"[A-Za-z0-9+=._:/@-]+", job["tags"]["flow"])
            assert job["tags"].items() >= {"project": "mirrorlake", "team": "streaming"}.items()
    scheduled, followed = PROD.jobs["mirror_a_b_to_c_d"], PROD.jobs["mirror_us-west_to_us-east"]
    assert (parameters(scheduled)["config"], parameters(followed)["config"]) == (
        "/Volumes/x/y/z.properties",
        "/Volumes/data-platform/kafka-mirror/config/mirrorlake.properties",
    )
    assert scheduled["job_clusters"][0]["new_cluster"]["num_workers"] == 4


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"flow": "a"}, "flow 'a' is not of the form source->target"),
        ({"flows": [{"flow": "a.b->c"}, {"flow": "a_b->c"}]}, "key a_b_to_c is there 2 times"),
        ({"flows": [{"flow": "a->b-"}]}, "'a_to_b-' can't be the key of flow a->b-"),
        ({"flows": [{"flow": "a->b", "worker": 1}]}, "unknown field worker"),
        ({"cadence": "hourly"}, "cadence is 'hourly'"),
        ({"secrets": ["password"]}, "'password' is not of the form scope/key"),
        ({"secrets": ["k/a-b", "K/a.b"]}, "K/a.b and k/a-b have the same environment variable SECRET_K_A_B"),
        ({"flows": [{"flow": "a->b", "key": "stuck"}], "warehouse_id": "1"}, "two resources have the key mirror_stuck"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        render("dev", **variables)


# -- jobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DEV.jobs])
def test_every_notebook_is_deployed_and_gets_the_parameters_it_has_and_no_other_is_passed_to_it(name: str) -> None:
    job = DEV.jobs[name]
    given, known = set(parameters(job)), set()
    for task in job["tasks"]:
        notebook = ROOT / task["notebook_task"]["notebook_path"]
        assert notebook.is_file()
        assert notebook.relative_to(ROOT).parts[0] in DEV.whole["sync"]["paths"]
        base = set(task["notebook_task"]["base_parameters"])
        assert given & base == set(), "job parameters override base parameters of the same name"
        had = parameters_of(notebook)
        assert base <= had <= given | base
        known |= had
    assert given <= known, "all tasks get the job's parameters, and one of them has each"


def test_what_an_operator_changes_for_one_run_is_a_parameter_of_the_job() -> None:
    """`databricks bundle run KEY --params name=value` changes no base parameter of a task."""
    for name, wanted in {"maintain": {"upgrade", "dry_run"}, "verify": {"mode", "topics", "version"}}.items():
        for job in (job for key, job in DEV.jobs.items() if kind(key) == name):
            assert wanted <= set(parameters(job))


@pytest.mark.parametrize("bundle", [DEV, PROD], ids=["dev", "prod"])
def test_jobs_run_once_at_a_time_for_ever_or_by_the_clock_and_a_failover_by_hand(bundle: Rendered) -> None:
    for name, job in bundle.jobs.items():
        timings = {"schedule", "continuous"} & job.keys()
        assert job["max_concurrent_runs"] == 1
        assert len(timings) == (kind(name) not in BY_HAND)
        (first, *_) = job["tasks"]
        given = first["notebook_task"]["base_parameters"]
        if "continuous" in job:
            assert len(job["tasks"]) == 1, "a continuous job allows no dependencies"
            assert given["trigger"] == ""
            assert "max_retries" not in first, "it allows no retries of its own"
            assert job["continuous"]["task_retry_mode"] == "ON_FAILURE"
        elif "trigger" in given:
            assert given["trigger"] == "availableNow"
            assert first["max_retries"] == 3
        assert job["queue"]["enabled"] is (kind(name) in BY_HAND), "runs of a schedule pile up in a queue"
    follow = {kind(name) for name, job in bundle.jobs.items() if "continuous" in job}
    assert follow == (set() if bundle is DEV else {"mirror", "checkpoint"}), "a run for development ends by itself"


def test_a_flow_that_waits_has_all_jobs_and_none_of_them_runs_by_itself_in_production_either() -> None:
    pair = render("prod", flows=[{"flow": "a->b"}, {"flow": "b->a", "cadence": "paused"}], warehouse_id="1")
    runs = {
        name: next((job[one]["pause_status"] for one in ("continuous", "schedule") if one in job), None)
        for name, job in pair.jobs.items()
    }
    following = {"mirror", "checkpoint", "verify"}
    assert {name: status for name, status in runs.items() if name.endswith("_to_a")} == {
        **{f"{kind}_b_to_a": "PAUSED" for kind in following},
        **{f"{kind}_b_to_a": None for kind in BY_HAND},
    }
    assert {runs[f"{kind}_a_to_b"] for kind in following} == {"UNPAUSED"}
    waiting, running = pair.jobs["mirror_b_to_a"], pair.jobs["mirror_a_to_b"]
    assert waiting["continuous"] == {**running["continuous"], "pause_status": "PAUSED"}
    assert waiting["tasks"] == running["tasks"], "it runs as any other once it is deployed with another cadence"
    silent = pair.resources("alerts")["mirror_silent"]["evaluation"]["threshold"]["value"]["double_value"]
    assert silent == 15


@pytest.mark.parametrize(("name", "job"), CLASSIC, ids=[name for name, _ in CLASSIC])
def test_clusters_do_not_speculate_hide_secrets_and_are_classic(name: str, job: dict[str, Any]) -> None:
    (made,) = job["job_clusters"]
    cluster = made["new_cluster"]
    assert {task["job_cluster_key"] for task in job["tasks"]} == {made["job_cluster_key"]}
    assert cluster["spark_conf"]["spark.speculation"] == "false"
    assert cluster["spark_conf"]["spark.redaction.regex"] == REDACTED
    assert cluster["data_security_mode"] == "DATA_SECURITY_MODE_DEDICATED"
    assert cluster["custom_tags"].items() >= {"project": "mirrorlake"}.items()
    is_single = cluster["spark_conf"].get("spark.databricks.cluster.profile") == "singleNode"
    assert is_single == (cluster["num_workers"] == 0) == (cluster["custom_tags"].get("ResourceClass") == "SingleNode")
    assert is_single == (kind(name) in {"checkpoint", "maintain"})


def test_a_flow_gets_its_own_secrets_and_maintenance_those_of_all() -> None:
    variable, value = scope_variable("kafka.prod", "west-password"), "{{secrets/kafka.prod/west-password}}"
    having = {
        name
        for name, job in PROD.jobs.items()
        for cluster in job.get("job_clusters", ())
        if cluster["new_cluster"].get("spark_env_vars") == {variable: value}
    }
    assert having == {name for name in PROD.jobs if name.endswith("_us-west_to_us-east")} | {"maintain"}


def test_maintenance_reads_a_property_file_that_a_flow_has() -> None:
    assert parameters(PROD.jobs["maintain"])["config"].endswith("/config/mirrorlake.properties")
    own = render(
        "dev", flows=[{"flow": "a->b", "config": "/Volumes/x/one"}, {"flow": "a->c", "config": "/Volumes/x/two"}]
    )
    assert parameters(own.jobs["maintain"])["config"] == "/Volumes/x/one"


@pytest.mark.parametrize("name", [*DEV.jobs])
def test_tasks_have_the_wheel_and_the_versions_the_code_is_tested_with(name: str) -> None:
    pinned = {line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()}
    job = DEV.jobs[name]
    for task in job["tasks"]:
        if kind(name) == "report":
            (environment,) = job["environments"]
            assert environment["environment_key"] == task["environment_key"]
            *packages, wheel = sorted(environment["spec"]["dependencies"], key=lambda one: one.startswith("./"))
        else:
            *listed, last = task["libraries"]
            packages, wheel = [library["pypi"]["package"] for library in listed], last["whl"]
        assert wheel == "./dist/*.whl"
        assert {"kafka-python", "great-expectations"} < {package.partition("==")[0] for package in packages}
        assert set(packages) <= pinned


def test_a_deployment_has_one_wheel_also_after_an_upgrade(tmp_path: Path) -> None:
    """The command line uploads, and lists as libraries, whatever `dist` has."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/mirrorlake-0.0.9-py3-none-any.whl").touch()
    builder = tmp_path / ".venv/bin/python"
    builder.parent.mkdir(parents=True)
    builder.write_text('#!/bin/sh\nmkdir -p dist && echo "$*" > dist/mirrorlake-0.1.0-py3-none-any.whl\n')
    builder.chmod(0o700)
    subprocess.run(DEV.whole["artifacts"]["mirrorlake"]["build"], shell=True, cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "--wheel-dir dist" in wheel.read_text()


def test_failures_are_told_and_readers_may_read_and_no_more() -> None:
    for job in PROD.jobs.values():
        assert job["email_notifications"] == {"on_failure": ["oncall@example.com"]}
        assert job["webhook_notifications"] == {"on_failure": [{"id": "5f0a"}]}
        assert job["permissions"] == [{"group_name": "analysts", "level": "CAN_VIEW"}]
        assert job["notification_settings"]["no_alert_for_canceled_runs"] is ("continuous" not in job), (
            "one that goes on for ever is cancelled when it has failed too often"
        )
    (schema,) = PROD.resources("schemas").values()
    readers = schema["grants"][0]
    assert readers == {"principal": "analysts", "privileges": ["USE_SCHEMA", "SELECT", "EXECUTE"]}
    for alert in PROD.resources("alerts").values():
        told = alert["evaluation"]["notification"]["subscriptions"]
        assert told == [{"user_email": "oncall@example.com"}, {"destination_id": "5f0a"}]
    assert PROD.jobs["report"]["budget_policy_id"] == "DEF"
    assert not DEV.resources("dashboards")
    assert not DEV.resources("alerts"), "both need a warehouse"


def test_a_deployment_leaves_the_principal_of_the_jobs_what_they_need() -> None:
    """Grants of a schema, and permissions of a scope, are all that the bundle says, after each deployment."""
    given = {one["principal"]: one["privileges"] for one in PROD.resources("schemas")["mirrorlake"]["grants"]}
    tables = {"USE_SCHEMA", "CREATE_TABLE", "CREATE_FUNCTION", "SELECT", "MODIFY", "EXECUTE"}
    assert {*given["5b4f"]} == {*tables, "READ_VOLUME", "WRITE_VOLUME"}
    scope = PROD.resources("secret_scopes")["secrets"]
    assert scope["permissions"] == [{"service_principal_name": "5b4f", "level": "READ"}]
    assert "grants" not in DEV.resources("schemas")["mirrorlake"], "who deploys owns it"


def test_a_run_of_a_schedule_that_hangs_ends_and_is_told_of() -> None:
    for job in PROD.jobs.values():
        assert job.get("timeout_seconds", 0) == (86_400 if "schedule" in job else 0)


def test_every_alert_and_every_tile_of_the_dashboard_is_there_once() -> None:
    dashboard = json.loads(PROD.resources("dashboards")["dashboard"]["serialized_dashboard"])
    datasets = [dataset["name"] for dataset in dashboard["datasets"]]
    (page,) = dashboard["pages"]
    used = [item["widget"]["queries"][0]["query"]["datasetName"] for item in page["layout"]]
    assert datasets == used
    assert len(set(datasets)) == len(datasets) > 8
    taken = [
        (x, y)
        for item in page["layout"]
        for x in range(item["position"]["x"], item["position"]["x"] + item["position"]["width"])
        for y in range(item["position"]["y"], item["position"]["y"] + item["position"]["height"])
    ]
    assert len(taken) == len(set(taken)), "tiles lie on each other"
    assert max(x for x, _ in taken) == 5


def test_no_file_holds_anything_that_looks_like_a_secret() -> None:
    for path in (*files(), *(ROOT / "workflows").glob("*.py")):
        assert not re.search(r"(?i)(password|secret|token)\s*[:=]\s*[\"']?[a-z0-9]{6}", path.read_text())
