"""The variables of the bundle that decide which resources there are; workflows/mirrorlake.vars.yml describes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from databricks.bundles.core import Bundle
from mirrorlake.config.security.config_provider import scope_variable

CATALOG = "${var.catalog}"
SCHEMA = "${resources.schemas.mirrorlake.name}"
VOLUMES = f"/Volumes/{CATALOG}/{SCHEMA}"
CONFIG = f"{VOLUMES}/${{resources.volumes.config.name}}/mirrorlake.properties"

FLOW = re.compile(r"\s*(\S+?)\s*->\s*(\S+)\s*")
KEY = re.compile(r"[A-Za-z0-9]+([_-]*[A-Za-z0-9]+)*")  # what the bundle allows within a reference to a resource
SECRET = re.compile(r"([\w.@-]+)/([\w.-]+)")
FIELDS = {"flow", "key", "config", "cadence", "workers", "node_type", "secrets"}


class Cadence(StrEnum):
    """How the mirror and checkpoint jobs of a flow run. PAUSED: for ever, once another cadence is deployed."""

    CONTINUOUS = "continuous"
    SCHEDULED = "scheduled"
    PAUSED = "paused"


LATE_MINUTES = {Cadence.CONTINUOUS: 15, Cadence.SCHEDULED: 120, Cadence.PAUSED: 15}


@dataclass(frozen=True)
class FlowSettings:
    """One flow of the bundle.

    Attributes:
        name: `source->target`, by the aliases of the property file.
        key: what the keys of its resources end with, as in `mirror_west_to_east`.
        config: its property file, where every node of the cluster can read it.
        cadence: how its jobs run.
        workers: the worker nodes of its mirror, verify, failover and failback clusters, or a reference.
        node_type: the instance type of its nodes, or a reference.
        secrets: scope and key of each secret that its property file refers to.
    """

    name: str
    key: str
    config: str
    cadence: Cadence
    workers: int | str
    node_type: str
    secrets: tuple[tuple[str, str], ...]

    @property
    def tag(self) -> str:
        """The name as a tag: clouds refuse some of the characters of names."""
        return re.sub(r"[^A-Za-z0-9+=._:/@-]+", "-", self.name.replace("->", "-to-"))

    @classmethod
    def of(cls, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> FlowSettings:
        """Reads an entry of the variable `flows`; what it does not set, the variables of the same names do."""
        if unknown := sorted(given.keys() - FIELDS):
            raise ValueError(f"variable flows: unknown field {unknown[0]}; known are {', '.join(sorted(FIELDS))}")
        name = str(given.get("flow", ""))
        match = FLOW.fullmatch(name)
        if match is None:
            raise ValueError(f"variable flows: flow '{name}' is not of the form source->target")
        source, target = match.groups()
        key = str(given.get("key") or re.sub(r"[^A-Za-z0-9_-]", "_", f"{source}_to_{target}"))
        if not KEY.fullmatch(key):
            raise ValueError(
                f"variable flows: '{key}' can't be the key of flow {name}; set another one in its field key: letters, "
                "digits, and dashes and underscores between them"
            )
        return cls(
            name=f"{source}->{target}",
            key=key,
            config=str(given.get("config") or defaults["config"] or CONFIG),
            cadence=_cadence(given.get("cadence") or defaults["cadence"]),
            workers=given.get("workers", "${var.workers}"),
            node_type=given.get("node_type", "${var.node_type}"),
            secrets=tuple(_secret(secret) for secret in given.get("secrets", defaults["secrets"])),
        )


@dataclass(frozen=True)
class Settings:
    """What the variables of a target say about its resources.

    Attributes:
        flows: the flows, each with jobs of its own.
        config: the property file of the flows that name none.
        secret_scope: the scope that the bundle makes; empty for none.
        run_as: the service principal that runs the jobs; empty for who deploys them.
        readers: the group that may read tables, jobs and dashboard; empty for none.
        emails: the addresses that hear of failures and alerts.
        webhooks: ids of the notification destinations that do.
        warehouse_id: the SQL warehouse of dashboard and alerts; without one there are neither.
        policy_id: the policy of all job clusters; empty for none.
        budget_policy_id: the budget policy of serverless jobs; empty for none.
        tags: tags of all jobs and clusters.
        prevent_destroy: whether the bundle refuses to delete schema, volumes and secret scope.
    """

    flows: tuple[FlowSettings, ...]
    config: str
    secret_scope: str
    run_as: str
    readers: str
    emails: tuple[str, ...]
    webhooks: tuple[str, ...]
    warehouse_id: str
    policy_id: str
    budget_policy_id: str
    tags: Mapping[str, str]
    prevent_destroy: bool

    @property
    def late_minutes(self) -> int:
        """The minutes without a sign of a job, or of a commit, that are too many."""
        return max(LATE_MINUTES[flow.cadence] for flow in self.flows)

    @classmethod
    def of(cls, bundle: Bundle) -> Settings:
        """Reads the variables of a bundle."""
        given = bundle.variables
        flows = tuple(FlowSettings.of(flow, given) for flow in given["flows"] or [{"flow": given["flow"]}])
        for what, values in (("flow", [flow.name for flow in flows]), ("key", [flow.key for flow in flows])):
            value, number = Counter(values).most_common(1)[0]
            if number > 1:
                raise ValueError(f"variable flows: {what} {value} is there {number} times; give each flow its own key")
        _require_own_variables({secret for flow in flows for secret in flow.secrets})
        return cls(
            flows=flows,
            config=given["config"] or CONFIG,
            secret_scope=given["secret_scope"],
            run_as=given["run_as"],
            readers=given["readers"],
            emails=tuple(given["emails"]),
            webhooks=tuple(given["webhooks"]),
            warehouse_id=given["warehouse_id"],
            policy_id=given["policy_id"],
            budget_policy_id=given["budget_policy_id"],
            tags={"project": "mirrorlake", **given["tags"]},
            prevent_destroy=str(given["prevent_destroy"]).lower() == "true",
        )


def _cadence(value: Any) -> Cadence:
    if value not in list(Cadence):
        raise ValueError(f"variable cadence is '{value}'; allowed are {', '.join(Cadence)}")
    return Cadence(value)


def _require_own_variables(secrets: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError for two secrets with the same environment variable: a cluster would have one of them."""
    names: dict[str, str] = {}
    for scope, key in sorted(secrets):
        other = names.setdefault(scope_variable(scope, key), f"{scope}/{key}")
        if other != f"{scope}/{key}":
            raise ValueError(
                f"variable secrets: {other} and {scope}/{key} have the same environment variable "
                f"{scope_variable(scope, key)} on clusters; rename one of them"
            )


def _secret(value: Any) -> tuple[str, str]:
    match = SECRET.fullmatch(str(value))
    if match is None:
        raise ValueError(f"variable secrets: '{value}' is not of the form scope/key")
    return match[1], match[2]
