"""Where everything is kept: the schema of the tables, two volumes, and the secret scope."""

from __future__ import annotations

from databricks.bundles.core import Resources

from workflows.settings import CATALOG, SCHEMA, Settings

# A reader can query tables and views, and call the functions. USE CATALOG is the catalog owner's to grant.
READ = ["USE_SCHEMA", "SELECT", "EXECUTE"]
# What the jobs do there. Where the bundle has grants at all, a deployment takes back all others, such as those by hand.
WRITE = [*READ, "CREATE_TABLE", "CREATE_FUNCTION", "MODIFY", "READ_VOLUME", "WRITE_VOLUME"]


def add(resources: Resources, settings: Settings) -> None:
    """Adds schema, volumes and secret scope."""
    lifecycle = {"prevent_destroy": True} if settings.prevent_destroy else {}
    resources.add_schema(
        "mirrorlake",
        {
            "catalog_name": CATALOG,
            "name": "${var.schema}",
            "comment": "Offset history of mirrorlake",
            "grants": [
                {"principal": principal, "privileges": privileges}
                for principal, privileges in ((settings.readers, READ), (settings.run_as, WRITE))
                if principal
            ],
            "lifecycle": lifecycle,
        },
    )
    for name, comment in (
        ("config", "Property files of the flows, and the certificates that they name"),
        ("checkpoints", "Progress of streaming queries; nothing depends on it"),
    ):
        resources.add_volume(
            name,
            {
                "catalog_name": CATALOG,
                "schema_name": SCHEMA,
                "name": name,
                "volume_type": "MANAGED",
                "comment": comment,
                "lifecycle": lifecycle if name == "config" else {},
            },
        )
    if settings.secret_scope:
        reads = [{"service_principal_name": settings.run_as, "level": "READ"}] if settings.run_as else []
        resources.add_secret_scope(
            "secrets", {"name": settings.secret_scope, "permissions": reads, "lifecycle": lifecycle}
        )
