"""The address of a cluster's schema registry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from mirrorlake.config.properties import REGISTRY_URL, REGISTRY_USER, Properties, Scope
from mirrorlake.config.security.login import LOOPBACK
from mirrorlake.config.transform import Transform
from mirrorlake.errors import ConfigurationError

ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^\s/?#@,:\[\]]+)(:\d{1,5})?(/[^\s?#@,]*)?")
MAY_BE_SECRET = re.compile(r"[?#@,]")  # a password that is not encoded, a token in the query, a second address


@dataclass(frozen=True, repr=False)
class SchemaRegistry:
    """The address of a schema registry; `transforms.schema_ids` talks to it.

    Attributes:
        alias: of the cluster.
        side: `source` or `target`.
        url: without a slash at the end, without user name and password.
        user_info: `user:password`, or a reference to it; empty if the registry asks for none.
    """

    alias: str
    side: str
    url: str
    user_info: str = ""

    @classmethod
    def of(cls, properties: Properties, alias: str, side: str) -> SchemaRegistry | None:
        """Reads the registry that the properties of a cluster name; None if they name none.

        Raises:
            ConfigurationError: the address is not a URL.
        """
        url = properties.values.get(f"{alias}.{REGISTRY_URL}", "").strip().rstrip("/")
        url, in_url = _without_user(url)
        if url and not ADDRESS.fullmatch(url):
            shown = "can't be used" if MAY_BE_SECRET.search(url) else f"is '{url}'"
            raise ConfigurationError(
                f"property {alias}.schema.registry.url {shown}; allowed is one address of the form https://host/path "
                "or http://host/path. Encode what is special to URLs in a user name or password, or set "
                f"{alias}.schema.registry.basic.auth.user.info"
            )
        if not url:
            return None
        user_info = properties.values.get(f"{alias}.{REGISTRY_USER}", "").strip()
        return cls(alias, side, url, user_info or in_url)

    @classmethod
    def pair(cls, scope: Scope, transforms: Sequence[Transform]) -> tuple[SchemaRegistry, SchemaRegistry] | None:
        """Reads the registries of both sides of a flow; None if no transform needs them.

        Raises:
            ConfigurationError: a transform needs a registry that no property names, or an address is not a URL.
        """
        source, target = (
            cls.of(scope.properties, scope.source, "source"),
            cls.of(scope.properties, scope.target, "target"),
        )
        needed_by = [
            transform.property_name(f"{side}.schema.ids")
            for transform in transforms
            for side in transform.translated_ids
        ]
        if not needed_by:
            return None
        if source is None or target is None:
            missing = scope.source if source is None else scope.target
            raise ConfigurationError(
                f"flow {scope.flow}: property {needed_by[0]} is translate, but {missing}.schema.registry.url is missing"
            )
        return source, target

    @property
    def warning(self) -> str | None:
        """A line for the operator if a password crosses the network unencrypted."""
        found = ADDRESS.fullmatch(self.url)
        is_local = found is not None and found[1].strip("[]").lower() in LOOPBACK
        if not self.user_info or not self.url.startswith("http://") or is_local:
            return None
        return (
            f"property {self.alias}.schema.registry.url begins with http: its user name and password cross the network "
            "unencrypted. Use an https address"
        )

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.alias}: {self.url})"


def _without_user(url: str) -> tuple[str, str]:
    """Splits `user:password` off an address."""
    scheme, divider, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user_info, at, host = authority.rpartition("@")
    return (f"{scheme}{divider}{host}{slash}{path}", unquote(user_info)) if at else (url, "")
