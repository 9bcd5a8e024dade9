"""Config providers: where the values of references come from, by the names that references have for them.

Sources: `EnvVarConfigProvider`, `FileConfigProvider` and `DirectoryConfigProvider` of Kafka 4.3.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import javaproperties

Provider = Callable[[str, str], str | None]

# Kafka's own classes for references that its Java client resolves, with the property that limits what they may read.
KAFKA_PROVIDERS = {
    "env": ("org.apache.kafka.common.config.provider.EnvVarConfigProvider", "allowlist.pattern"),
    "file": ("org.apache.kafka.common.config.provider.FileConfigProvider", "allowed.paths"),
    "directory": ("org.apache.kafka.common.config.provider.DirectoryConfigProvider", "allowed.paths"),
}


def from_environment(_path: str, key: str) -> str | None:
    """Resolves `${env:NAME}`: an environment variable of this process."""
    return os.environ.get(key)


def from_file(path: str, key: str) -> str | None:
    """Resolves `${file:/path/to.properties:key}`: one key of a property file, which is UTF-8 to Kafka's provider."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return javaproperties.load(file).get(key)
    except OSError:
        return None


def from_directory(path: str, key: str) -> str | None:
    """Resolves `${directory:/path:file}`: the contents of a file in a directory, as Kubernetes mounts secrets."""
    try:
        return None if "/" in key else (Path(path) / key).read_text("utf-8")
    except OSError:
        return None


def from_scope_environment(scope: str, key: str) -> str | None:
    """Resolves `${secrets:scope:key}` from the environment variable SECRET_<SCOPE>_<KEY>, with underscores for all but
    letters and digits."""
    return os.environ.get(scope_variable(scope, key))


def scope_variable(scope: str, key: str) -> str:
    """Returns the name of the environment variable of a secret in a scope."""
    return "_".join(["SECRET", *(re.sub(r"\W", "_", part).upper() for part in (scope, key))])


BUILT_IN: Mapping[str, Provider] = {
    "env": from_environment,
    "file": from_file,
    "directory": from_directory,
    "secrets": from_scope_environment,
}
PROVIDERS = dict(BUILT_IN)


def ask_first(name: str, provider: Provider) -> None:
    """Puts a provider of this process in front of the built-in one of its name, which answers where it has no value.

    Entry points call this, once. Spark's workers are other processes: they have the built-in providers only.
    """
    built_in = BUILT_IN[name]

    def found(path: str, key: str) -> str | None:
        value = provider(path, key)
        return built_in(path, key) if value is None else value

    PROVIDERS[name] = found
