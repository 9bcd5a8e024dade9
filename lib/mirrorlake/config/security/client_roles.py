"""The roles of MirrorMaker 2's clients: consumer, producer and admin. Each may have properties of its own.

mirrorlake reaches a cluster as one principal: the same connections read, write and administer. It takes the properties
of a role if they are those of all roles, and refuses separate credentials, because a role would have rights that its
own principal lacks. Source: `MirrorMakerConfig` and `MirrorConnectorConfig` of Kafka 4.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirrorlake.config import secret_reference
from mirrorlake.config.name_filter import split_list
from mirrorlake.errors import ConfigurationError

ROLES = ("consumer", "producer", "admin")
IDENTITY = ("bootstrap.servers", "security.protocol")
IDENTITY_PREFIXES = ("ssl.", "sasl.")
# The properties of a client that decide how it connects, with what its protocol must have for that. Those with which it
# connects it resolves when it does.
CHOICES = {
    "security.protocol": "",
    "sasl.mechanism": "SASL",
    "ssl.endpoint.identification.algorithm": "SSL",
    "ssl.keystore.type": "SSL",
    "ssl.truststore.type": "SSL",
}
ONE_PRINCIPAL = "mirrorlake reaches a cluster as one principal, whose rights docs/security.md lists"


def decides_identity(name: str) -> bool:
    """Tells whether a client property decides who is reached, or as whom."""
    return name in IDENTITY or name.startswith(IDENTITY_PREFIXES)


def check(alias: str, values: Mapping[str, str]) -> None:
    """Refuses credentials that one role of a cluster has and another has not.

    Args:
        alias: the cluster.
        values: every property of the file.

    Raises:
        ConfigurationError: two roles differ. The message names both properties, and what to do.
    """
    found = {role: _of_role(alias, role, values) for role in ROLES}
    for role in ROLES:
        for name, (full, value) in found[role].items():
            for other in ROLES:
                full_of_other, value_of_other = found[other].get(name, ("", None))
                if value != value_of_other:
                    against = f"from {full_of_other}" if full_of_other else f"from those of the {other}, which has none"
                    raise ConfigurationError(
                        f"property {full} differs {against}. {ONE_PRINCIPAL}. Set {alias}.{name}, and remove {name} of "
                        "single roles"
                    )


def check_flow(source: str, target: str, values: Mapping[str, str], clusters: Mapping[str, Mapping[str, str]]) -> None:
    """Refuses credentials that a flow has for itself, other than those of its clusters.

    Args:
        source: the alias of the source.
        target: the alias of the target.
        values: every property of the file.
        clusters: the client properties of both clusters, by alias.

    Raises:
        ConfigurationError: a property of the flow differs from that of the cluster.
    """
    for full, name, aliases in _of_flow(source, target, values):
        for alias in aliases:
            of_cluster = clusters[alias].get(name)
            if of_cluster not in (values[full].strip(), _resolved(full, name, values[full])):
                raise ConfigurationError(
                    f"property {full} differs from {alias}.{name}. {ONE_PRINCIPAL}. Set {alias}.{name}, and remove "
                    "that of the flow"
                )


def _resolved(full: str, name: str, text: str) -> str:
    """Returns a choice as that of a cluster is: with the values of references."""
    try:
        return secret_reference.resolve(full, text).strip() if name in CHOICES else text.strip()
    except ConfigurationError:
        return text.strip()


def _of_role(alias: str, role: str, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the full name and the value of each property that decides a role's identity, by name."""
    found: dict[str, tuple[str, str]] = {}
    for prefix in ("", f"{role}.", f"{alias}.", f"{alias}.{role}."):
        for full, value in values.items():
            name = full.removeprefix(prefix)
            if full.startswith(prefix) and decides_identity(name):
                found[name] = full, value.strip()
    return found


def _of_flow(source: str, target: str, values: Mapping[str, str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields each such property of a flow: its full name, its name, and the clusters that it would be used at."""
    flow = f"{source}->{target}."
    prefixes: dict[str, tuple[str, ...]] = dict.fromkeys(
        (flow, *(f"{flow}{role}." for role in ROLES)), (source, target)
    )
    clusters = split_list(secret_reference.resolve("clusters", values.get("clusters", "")))
    for scope in (flow, f"{target}.", ""):
        for side, alias in (("source", source), ("target", target)):
            if not scope and side in clusters:
                continue  # it is that cluster's own
            prefixes |= {f"{scope}{side}.{role}.": (alias,) for role in (*ROLES, "cluster")}
    for full in values:
        for prefix, aliases in prefixes.items():
            name = full.removeprefix(prefix)
            if full.startswith(prefix) and decides_identity(name):
                yield full, name, aliases
