"""Config-provider references: `${env:NAME}`, `${file:path:key}`, `${directory:path:file}`, `${secrets:scope:key}`,
resolved where a client is built.

The syntax is Kafka's (KIP-297: `${provider:[path:]key}`). A property keeps its reference for as long as possible:
references travel to Spark workers and into the options of Spark's Kafka source, values don't. No message of this module
holds a value. Source: `ConfigTransformer` of Kafka 4.3.0.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mirrorlake.config.security.config_provider import KAFKA_PROVIDERS, PROVIDERS, Provider, scope_variable
from mirrorlake.errors import ConfigurationError

REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}]*):)?([^}:]*)\}")
# Names of Kafka properties whose values must not be shown.
SECRET_NAME = re.compile(
    r"(?i)password|secret|token|jaas|user\.info|credential|otlp\.headers|(^|\.)ssl\.(key|keystore\.key|keystore\.certificate\.chain)$|(^|\.)key$"
)
# For spark.redaction.regex, which replaces Spark's own list: properties whose values Spark's pages and logs hide.
REDACTED = r"(?i)password|secret|token|jaas|sasl|user\.info|credential|access[.]?key|ssl\.key|pem|(^|\.)key$"
MASK = "[hidden]"
LIKE_KAFKAS = {"io.strimzi.kafka.EnvVarConfigProvider": "env"}  # classes of others that do the same
ENDS_TEXT = re.compile(r"""["'\\\r\n]""")  # within the quotes of a JAAS line


def by_built_in_names(values: Mapping[str, str]) -> dict[str, str]:
    """Renames the providers in references to those of this module, where a file gives them names of its own.

    Args:
        values: every property of the file; `config.providers.<name>.class` says which of Kafka's providers has a name.

    Raises:
        ConfigurationError: a reference names a provider of a class that is not known here.
    """
    kinds = {kind: name for name, (kind, _) in KAFKA_PROVIDERS.items()} | LIKE_KAFKAS
    given = {
        name: values.get(f"config.providers.{name}.class", "").strip()
        for name in map(str.strip, values.get("config.providers", "").split(","))
    }
    own = {name: kinds[kind] for name, kind in given.items() if kind in kinds}

    def renamed(match: re.Match[str]) -> str:
        provider = match.group(1)
        if given.get(provider) and provider not in own:
            raise ConfigurationError(
                f"config provider {provider} is of class {given[provider]}, which mirrorlake does not have, and "
                f"{match.group(0)} refers to it. Use {', '.join(f'${{{name}:...}}' for name in sorted(PROVIDERS))}"
            )
        return "${" + own.get(provider, provider) + match.group(0)[2 + len(provider) :]

    return (
        {name: REFERENCE.sub(renamed, value) for name, value in values.items()} if any(given.values()) else {**values}
    )


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
        ConfigurationError: a reference names an unknown provider, or something that does not exist or is not text.
    """

    def replace(match: re.Match[str]) -> str:
        provider, path, key = match.group(1), match.group(2) or "", match.group(3)
        if provider not in providers:
            raise ConfigurationError(
                f"property {name} refers to {match.group(0)}: unknown config provider '{provider}'; allowed are "
                f"{', '.join(sorted(providers))}"
            )
        try:
            found = providers[provider](path, key)
        except ValueError:  # its message would show a part of the file
            raise ConfigurationError(
                f"property {name} refers to {match.group(0)}, and {path} can't be read: it is not UTF-8"
                + (
                    ", or has a \\u without four hexadecimal digits. Write a backslash as \\\\"
                    if provider == "file"
                    else ""
                )
            ) from None
        if found is None:
            raise ConfigurationError(f"property {name} refers to {match.group(0)}, which does not exist here")
        return found

    return REFERENCE.sub(replace, value)


def left_to_kafka(written: Mapping[str, str], resolved: Mapping[str, str]) -> dict[str, str]:
    """Renders properties for a Java client that resolves the references to secrets itself, by Kafka's own providers.

    Other references are resolved, and those that Kafka reads differently: a value within a JAAS line that would end its
    quotes, a secret that this process alone knows. All are resolved if a value looks like a reference, as Kafka would
    take it for one.

    Args:
        written: properties with references. One that is missing is resolved.
        resolved: the same properties for the same client, references resolved.
    """
    rendered = dict(resolved)
    read: dict[str, set[str]] = {}
    for name, value in written.items():
        if name not in resolved or not is_secret(name):
            continue
        references = [match.groups(default="") for match in REFERENCE.finditer(value)]
        left = [found for reference in references if (found := _for_kafka(*reference)) is not None]
        if left and len(left) == len(references) and not _ends_text(name, value, references):
            texts = iter([text for text, _, _ in left])
            rendered[name] = REFERENCE.sub(lambda _, texts=texts: next(texts), value)  # type: ignore[misc]
            for _, provider, allowed in left:
                read.setdefault(provider, set()).add(allowed)
    if any(REFERENCE.search(value) for name, value in rendered.items() if value == resolved[name]):
        return dict(resolved)
    if read:
        rendered["config.providers"] = ",".join(sorted(read))
    for provider, several in read.items():
        kind, limit = KAFKA_PROVIDERS[provider]
        rendered[f"config.providers.{provider}.class"] = kind
        rendered[f"config.providers.{provider}.param.{limit}"] = ("|" if provider == "env" else ",").join(
            sorted(several)
        )
    return rendered


def _for_kafka(provider: str, path: str, key: str) -> tuple[str, str, str] | None:
    """Returns a reference as Kafka's Java client reads it, its provider, and what that must be allowed to read."""
    if provider == "secrets":
        provider, path, key = "env", "", scope_variable(path, key)
    if provider == "env":
        return (f"${{env:{key}}}", provider, re.escape(key)) if not path and key in os.environ else None
    place = str(Path(path).absolute())
    return None if ":" in place or "," in place else (f"${{{provider}:{place}:{key}}}", provider, place)


def _ends_text(name: str, value: str, references: Iterable[tuple[str, ...]]) -> bool:
    """Tells whether a resolved value would end the quotes around it; a whole line has its own quotes."""
    return (
        "jaas" in name
        and not REFERENCE.fullmatch(value)
        and any(ENDS_TEXT.search(PROVIDERS[provider](path, key) or "") for provider, path, key in references)
    )


def open_to_others(properties: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
    """Yields files with secrets that other users of the machine may read: property, path, and mode.

    Such files are the key stores, and those that references name.

    Args:
        properties: names and values, as in the property file.
    """
    for name, value in properties:
        files = [match.group(2) or "" for match in REFERENCE.finditer(value) if match.group(1) == "file"]
        files += [
            f"{match.group(2)}/{match.group(3)}" for match in REFERENCE.finditer(value) if match.group(1) == "directory"
        ]
        if name.endswith("ssl.keystore.location") and not REFERENCE.search(value):
            files.append(value)
        for file in files:
            if mode := mode_for_others(file):
                yield name, file, mode


def mode_for_others(path: str | Path) -> int:
    """Returns the mode of a file that others than its owner may read or write; 0 of any other one, and of none."""
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return 0
    return mode if mode & 0o066 else 0
