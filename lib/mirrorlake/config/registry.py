"""How to reach the schema registry of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError


@dataclass(frozen=True, repr=False)
class SchemaRegistry:
    """The address of a schema registry; `transforms.schema_ids` talks to it.

    Attributes:
        alias: of the cluster.
        side: `source` or `target`.
        url: without a slash at the end.
        user_info: `user:password` or empty; better a reference to it.
    """

    alias: str
    side: str
    url: str
    user_info: str = ""

    @classmethod
    def of(cls, properties: Properties, alias: str, side: str) -> SchemaRegistry | None:
        """Reads the registry that the properties of a cluster name; None if they name none.

        Raises:
            ConfigurationError: the URL is none.
        """
        url = properties.values.get(f"{alias}.schema.registry.url", "").strip().rstrip("/")
        if url and not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"property {alias}.schema.registry.url is '{url}'; allowed is an address that begins with http:// or "
                "https://"
            )
        return (
            cls(alias, side, url, properties.values.get(f"{alias}.schema.registry.basic.auth.user.info", "").strip())
            if url
            else None
        )

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.alias}: {self.url})"
