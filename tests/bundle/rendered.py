"""What `databricks bundle` makes of the files of the bundle, as far as it can be known without a workspace.

It follows the command line's own order (databricks/cli, bundle/phases/initialize.go): files, target, variables, mode,
Python, prefixes, references. It takes no short cut through what the resources should be.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from databricks.bundles.build import _append_resources
from databricks.bundles.core import Bundle, Resources

from workflows import load_resources

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = re.compile(r"\$\{([a-zA-Z]+(?:[-_]*[a-zA-Z0-9]+)*(?:\.[a-zA-Z]+(?:[-_]*[a-zA-Z0-9]+)*)*)\}")
USER = "ann_lee"
PREFIXED = {"jobs": "name", "dashboards": "display_name", "alerts": "display_name"}
TRIGGERS = {"jobs": ("schedule", "continuous", "trigger"), "alerts": ("schedule",)}


@dataclass(frozen=True)
class Rendered:
    """A bundle for one target.

    Attributes:
        whole: everything in it, references resolved.
    """

    whole: dict[str, Any]

    def resources(self, kind: str) -> dict[str, dict[str, Any]]:
        return self.whole["resources"].get(kind, {})

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return self.resources("jobs")


def files() -> list[Path]:
    """Lists databricks.yml and the files that it includes."""
    root = ROOT / "databricks.yml"
    return [root, *(path for pattern in load(root)["include"] for path in sorted(ROOT.glob(pattern)))]


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def render(target: str = "dev", **variables: Any) -> Rendered:
    """Renders the bundle as `databricks bundle deploy -t TARGET` would deploy it.

    Args:
        target: the name of a target.
        variables: values that the operator sets.
    """
    whole: dict[str, Any] = {}
    for path in files():
        whole = _merged(whole, load(path))
    chosen = copy.deepcopy(whole.pop("targets")[target])
    values = {name: one["default"] for name, one in whole.pop("variables").items()}
    overrides = {**chosen.pop("variables", {}), **variables}
    assert overrides.keys() <= values.keys(), "a variable that is set must be declared"
    values |= overrides
    whole = _merged(whole, chosen)
    whole["bundle"]["target"] = target
    known = {
        "bundle": {"target": target, "name": whole["bundle"]["name"]},
        "workspace": {"current_user": {"short_name": USER}},
        "var": values,
    }
    python = load_resources(Bundle(target=target, variables=copy.deepcopy(values)))
    assert isinstance(python, Resources)
    assert not python.diagnostics.has_error()
    whole = _append_resources(whole, python)
    presets = dict(whole.get("presets", {}))
    if whole.get("mode") == "development":
        presets = {"name_prefix": f"[dev {USER}] ", "trigger_pause_status": "PAUSED", "tags": {"dev": USER}, **presets}
        presets.setdefault("jobs_max_concurrent_runs", 4)
    _apply(presets, whole["resources"])
    whole = _resolved(whole, known)
    known["resources"] = whole["resources"]
    return Rendered(_resolved(whole, known))


def _apply(presets: dict[str, Any], resources: dict[str, dict[str, Any]]) -> None:
    """Applies presets to all resources (resourcemutator/apply_presets.go); volumes and secret scopes have none."""
    prefix = presets.get("name_prefix", "")
    for kind, field in PREFIXED.items():
        for resource in resources.get(kind, {}).values():
            resource[field] = prefix + resource[field]
            for trigger in TRIGGERS.get(kind, ()):
                if trigger in resource:
                    paused = presets.get("trigger_pause_status", "UNPAUSED")
                    resource[trigger].setdefault("pause_status", paused)
    for schema in resources.get("schemas", {}).values():
        schema["name"] = re.sub(r"\W+", "_", prefix.replace("[", "").strip()) + schema["name"]
    for job in resources.get("jobs", {}).values():
        job["tags"] = {**presets.get("tags", {}), **job.get("tags", {})}
        job["max_concurrent_runs"] = job.get("max_concurrent_runs") or presets.get("jobs_max_concurrent_runs", 1)
        job.setdefault("queue", {"enabled": True})


def _merged(left: Any, right: Any) -> Any:
    """Merges two parts of a configuration: maps by key, lists one after the other, anything else the right one."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {key: _merged(left.get(key), right.get(key)) if key in right else left[key] for key in {**left, **right}}
    if isinstance(left, list) and isinstance(right, list):
        return [*left, *right]
    return left if right is None else copy.deepcopy(right)


def _resolved(value: Any, known: dict[str, Any]) -> Any:
    """Replaces references to what is known, also within what they refer to; others stay."""
    if isinstance(value, dict):
        return {key: _resolved(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [_resolved(one, known) for one in value]
    if not isinstance(value, str):
        return value
    if (whole := REFERENCE.fullmatch(value)) and (found := _found(whole[1], known)) is not None:
        return found if isinstance(found, bool | int) else _resolved(found, known) if found != value else found
    return REFERENCE.sub(
        lambda match: match[0] if (found := _found(match[1], known)) is None else str(_resolved(found, known)), value
    )


def _found(path: str, known: dict[str, Any]) -> Any:
    at: Any = known
    for key in path.split("."):
        if not isinstance(at, dict) or key not in at:
            return None
        at = at[key]
    return at
