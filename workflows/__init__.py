"""Resources of the bundle: schema, volumes, secret scopes, the jobs of every flow, dashboard and alerts.

`databricks bundle` calls `load_resources` (databricks.yml); docs/databricks.md says how to deploy. Strings such as
`${var.catalog}` are the bundle's own references, which it resolves afterwards: in development mode it puts a prefix in
front of the schema's name, so everything names the schema by `${resources.schemas.mirrorlake.name}`.
"""

from __future__ import annotations

import sys
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
    return resources
