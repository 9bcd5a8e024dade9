"""Resources of the bundle: schema, volumes, secret scopes, the jobs of every flow, dashboard and alerts.

`databricks bundle` calls `load_resources` (databricks.yml); docs/databricks.md says how to deploy. Strings such as
`${var.catalog}` are the bundle's own references, which it resolves afterwards: in development mode it puts a prefix in
front of the schema's name, so everything names the schema by `${resources.schemas.mirrorlake.name}`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from databricks.bundles.core import Bundle, Resources

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "lib"))  # names of secrets and what is redacted are the library's

from workflows import alerts, dashboard, jobs, storage  # noqa: E402
from workflows.settings import Settings  # noqa: E402


def load_resources(bundle: Bundle) -> Resources:
    """Makes all resources of a target.

    Raises:
        ValueError: a variable has a value that is not allowed; the message names variable and value.
    """
    settings, resources = Settings.of(bundle), Resources()
    storage.add(resources, settings)
    jobs.add(resources, settings)
    if settings.warehouse_id:  # both need a SQL warehouse
        dashboard.add(resources, settings)
        alerts.add(resources, settings)
    _require_unique_keys(resources)
    return resources


def _require_unique_keys(resources: Resources) -> None:
    """Raises ValueError for two resources with the same key: `databricks bundle run` and `open` could not tell them
    apart. The command line itself checks only those in YAML."""
    kinds = (
        resources.jobs,
        resources.schemas,
        resources.volumes,
        resources.secret_scopes,
        resources.dashboards,
        resources.alerts,
    )
    key, number = Counter(key for kind in kinds for key in kind).most_common(1)[0]
    if number > 1:
        raise ValueError(f"two resources have the key {key}; set another one in the field key of the flow")
