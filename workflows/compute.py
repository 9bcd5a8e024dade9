"""What jobs run on: classic clusters, which reach Kafka, and serverless compute; and the libraries of both."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mirrorlake.config.secret_reference import REDACTED
from mirrorlake.config.security.config_provider import scope_variable

from workflows.settings import FlowSettings, Settings

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "./dist/*.whl"  # the artifact of databricks.yml
# Databricks Runtime has these, and its own code depends on their versions; the wheel's bounds hold all the same.
OF_THE_RUNTIME = {"cryptography", "numpy", "pandas", "pyarrow", "requests"}
NAME = re.compile(r"[A-Za-z0-9._-]+")

SPARK = {
    "spark.speculation": "false",  # two attempts of a copying task would fence each other
    "spark.sql.session.timeZone": "UTC",
    "spark.redaction.regex": REDACTED,
}
SINGLE_NODE = {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*, 4]"}


def packages() -> list[str]:
    """Lists the packages that the wheel needs and the runtime lacks, in the versions that it is tested with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {NAME.match(line)[0] for line in project["dependencies"]} - OF_THE_RUNTIME  # type: ignore[index]
    pins = dict(line.split("==") for line in _lines("requirements.txt") if "==" in line)
    return [f"{name}=={pins[name]}" for name in sorted(wanted)]


def libraries() -> list[dict[str, Any]]:
    """Lists the libraries of a task on a classic cluster; every Python process of the cluster finds them."""
    return [*({"pypi": {"package": package}} for package in packages()), {"whl": WHEEL}]


def environment() -> dict[str, Any]:
    """Returns the environment of serverless tasks."""
    return {"environment_key": "mirrorlake", "spec": {"environment_version": "4", "dependencies": [*packages(), WHEEL]}}


def cluster(settings: Settings, flow: FlowSettings | None, tags: dict[str, str], *, is_single: bool) -> dict[str, Any]:
    """Returns a classic cluster in dedicated mode.

    Args:
        settings: the settings of the bundle.
        flow: the flow whose secrets the cluster may read; None for those of all flows.
        tags: the tags of its cost.
        is_single: True for one node, whose driver runs the tasks.
    """
    flows = settings.flows if flow is None else (flow,)
    secrets = {secret for one in flows for secret in one.secrets}
    return {
        "spark_version": "${var.spark_version}",
        "node_type_id": flow.node_type if flow else "${var.node_type}",
        "num_workers": 0 if is_single else flow.workers if flow else "${var.workers}",
        "data_security_mode": "DATA_SECURITY_MODE_DEDICATED",
        "spark_conf": {**SPARK, **(SINGLE_NODE if is_single else {})},
        "spark_env_vars": {
            scope_variable(scope, key): f"{{{{secrets/{scope}/{key}}}}}" for scope, key in sorted(secrets)
        },
        "custom_tags": {**tags, **({"ResourceClass": "SingleNode"} if is_single else {})},
        **({"policy_id": settings.policy_id} if settings.policy_id else {}),
    }


def _lines(name: str) -> list[str]:
    return [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
