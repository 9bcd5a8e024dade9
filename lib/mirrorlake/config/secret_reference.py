"""Config-provider references: `${env:NAME}`, `${file:path:key}`, `${secrets:scope:key}`, resolved where a client is
built.

The syntax is Kafka's (KIP-297: `${provider:[path:]key}`). A property keeps its reference for as long as possible:
references travel to Spark workers, values don't. No message of this module holds a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import javaproperties

from mirrorlake.errors import ConfigurationError

REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}]*):)?([^}:]*)\}")
# Names of Kafka properties whose values must not be shown.
SECRET_NAME = re.compile(
    r"(?i)password|secret|token|jaas|user\.info|credential|(^|\.)ssl\.(key|keystore\.key|keystore\.certificate\.chain)$|(^|\.)key$"
)
MASK = "[hidden]"

Provider = Callable[[str, str], str | None]


def from_environment(_path: str, key: str) -> str | None:
    """Resolves `${env:NAME}`: an environment variable of this process."""
    return os.environ.get(key)


def from_file(path: str, key: str) -> str | None:
    """Resolves `${file:/path/to.properties:key}`: one key of a property file."""
    try:
        with Path(path).open("rb") as file:
            return javaproperties.load(file).get(key)
    except OSError:
        return None


def from_scope_environment(scope: str, key: str) -> str | None:
    """Resolves `${secrets:scope:key}` from the environment variable SECRET_<SCOPE>_<KEY>, with underscores for all but
    letters and digits."""
    return os.environ.get("_".join(["SECRET", *(re.sub(r"\W", "_", part).upper() for part in (scope, key))]))


PROVIDERS: Mapping[str, Provider] = {"env": from_environment, "file": from_file, "secrets": from_scope_environment}


def is_secret(name: str) -> bool:
    """Tells whether the value of a property must not be shown anywhere."""
    return bool(SECRET_NAME.search(name))


def masked(name: str, value: str) -> str:
    """Hides the value of a property if it is secret. A reference is not secret and stays readable."""
    return value if not is_secret(name) or REFERENCE.fullmatch(value) else MASK


def resolve(name: str, value: str, providers: Mapping[str, Provider] = PROVIDERS) -> str:
    """Replaces every reference in a value.

    Args:
        name: the property, for messages.
        value: the value, as in the property file.
        providers: functions of (path, key) by the provider's name. They return None for a key that they don't have.

    Raises:
        ConfigurationError: a reference names an unknown provider, or something that does not exist.
    """

    def replace(match: re.Match[str]) -> str:
        provider, path, key = match.group(1), match.group(2) or "", match.group(3)
        if provider not in providers:
            raise ConfigurationError(
                f"property {name} refers to {match.group(0)}: unknown config provider '{provider}'; allowed are "
                f"{', '.join(sorted(providers))}"
            )
        found = providers[provider](path, key)
        if found is None:
            raise ConfigurationError(f"property {name} refers to {match.group(0)}, which does not exist here")
        return found

    return REFERENCE.sub(replace, value)
