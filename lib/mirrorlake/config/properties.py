"""MirrorMaker 2's property file: its clusters, its flows, and the cascade of a property from general to particular.

Source: `MirrorMakerConfig` of Kafka 4.3.0. A connector property (topics, replication.factor, ...) is looked up as
`source->target.<name>`, then `<target>.<name>`, then `<name>`; a client property as `<alias>.<role>.<name>`, then
`<alias>.<name>`, then `<role>.<name>` and `<name>`, where a role is consumer, producer or admin.
"""

from __future__ import annotations

import codecs
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import javaproperties

from mirrorlake.config import known_properties, options, secret_reference
from mirrorlake.config.connection import Connection
from mirrorlake.config.known_properties import PropertyUse, UseStatus
from mirrorlake.config.name_filter import NameFilter, split_list
from mirrorlake.config.option import OneOf, Option, Patterns
from mirrorlake.config.security import client_roles
from mirrorlake.config.security.client_roles import ROLES
from mirrorlake.config.security.login import TOKEN_URL
from mirrorlake.errors import ConfigurationError

ARROW = "->"

DATABRICKS = "DATABRICKS_RUNTIME_VERSION"  # set in each process of that runtime
CLIENT_PREFIXES = ("ssl.", "sasl.")
PEM_LINES = ("-----BEGIN", "-----END")  # up to the first blank, which ends the name of a property
OTLP_ENDPOINT, OTLP_HEADERS = "mirrorlake.metrics.otlp.endpoint", "mirrorlake.metrics.otlp.headers"
REGISTRY_URL, REGISTRY_USER = "schema.registry.url", "schema.registry.basic.auth.user.info"
INTERVAL = ".interval.seconds"
TRUSTED = "ssl.truststore.location"
RESOLVED_LATER = (OTLP_ENDPOINT, OTLP_HEADERS, REGISTRY_URL, REGISTRY_USER)
CLIENT_PROPERTIES = frozenset(
    """
    bootstrap.servers security.protocol client.id client.dns.lookup request.timeout.ms connections.max.idle.ms
    metadata.max.age.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retries receive.buffer.bytes send.buffer.bytes
    socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
    """.split()
)


@dataclass(frozen=True, repr=False)
class Properties:
    """A parsed property file.

    Args:
        values: every property as written, references unresolved.
        path: the file, for messages.
        is_shaded: True where Kafka's Java classes have other names, as on Databricks.
    """

    values: Mapping[str, str]
    path: str = "the configuration"
    is_shaded: bool = False

    @classmethod
    def load(cls, path: str | Path, environment: Mapping[str, str] = os.environ) -> Properties:
        """Reads a property file.

        Args:
            path: the file.
            environment: the environment of this process, which shows the runtime.

        Raises:
            ConfigurationError: the file can't be read or parsed.
        """
        try:
            text = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
            if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise ConfigurationError(
                    f"configuration file {path} is in UTF-16. Save it as UTF-8 or ASCII; a Java property file has "
                    "characters outside of ASCII as \\uXXXX"
                )
            values = secret_reference.by_built_in_names(javaproperties.loads(text))
        except OSError as error:
            raise ConfigurationError(f"configuration file {path} can't be read: {error.strerror}") from None
        except ValueError:  # its message would show a part of the file
            raise ConfigurationError(
                f"configuration file {path} is not a Java property file: line {_malformed_line(text)} has a \\u "
                "without four hexadecimal digits. Write a backslash as \\\\"
            ) from None
        for name, value in values.items():
            is_line = name in PEM_LINES
            if is_line or value.count(f"{PEM_LINES[0]} ") != value.count(f"{PEM_LINES[1]} "):
                what = "a line of a PEM text is no value" if is_line else f"the PEM text of {name} has no end"
                raise ConfigurationError(  # what follows would be names of properties, which are shown
                    f"configuration file {path}: {what}. End each line of it but the last one with \\n\\, as Java "
                    "needs it, or name the file that has it by a reference: ${directory:/path:file}"
                )
        return cls(values, str(path), DATABRICKS in environment)

    @cached_property
    def clusters(self) -> tuple[str, ...]:
        """The aliases, in the order of the file."""
        aliases = split_list(secret_reference.resolve("clusters", self.values.get("clusters", "")))
        if not aliases:
            raise ConfigurationError(
                f"{self.path}: property clusters is missing. Set it to the aliases of the clusters, separated by commas"
            )
        doubled = sorted({alias for alias in aliases if aliases.count(alias) > 1})
        if doubled:
            raise ConfigurationError(f"{self.path}: property clusters names {', '.join(doubled)} twice")
        return aliases

    @cached_property
    def flows(self) -> tuple[str, ...]:
        """Every enabled flow, as `source->target`."""
        pairs = [f"{source}{ARROW}{target}" for source in self.clusters for target in self.clusters if source != target]
        return tuple(pair for pair in pairs if Scope(self, *pair.split(ARROW)).read("enabled"))

    def scope(self, flow: str) -> Scope:
        """Narrows the properties to one flow.

        Raises:
            ConfigurationError: the flow's name is malformed, or names a cluster that is not in `clusters`.
        """
        source, arrow, target = (part.strip() for part in flow.partition(ARROW))
        if not (source and arrow and target):
            raise ConfigurationError(f"flow '{flow}' is not of the form source->target")
        for alias in (source, target):
            if alias not in self.clusters:
                near = difflib.get_close_matches(alias, self.clusters, 1)
                raise ConfigurationError(
                    f"flow {flow}: {self.path} has no cluster '{alias}'; it has {', '.join(self.clusters)}"
                    + (f". Did you mean '{near[0]}'?" if near else "")
                )
        if source == target:
            raise ConfigurationError(f"flow {flow}: source and target are the same cluster")
        return Scope(self, source, target)

    def connection(self, alias: str) -> Connection:
        """Collects the client properties of a cluster. Those of the whole file hold where the cluster has none.

        Raises:
            ConfigurationError: they contradict each other, or not all clients honour them.
        """
        client_roles.check(alias, self.values)
        found: dict[str, str] = {}
        for prefix in ("", *(f"{role}." for role in ROLES), f"{alias}.", *(f"{alias}.{role}." for role in ROLES)):
            for name, value in self.values.items():
                rest = name.removeprefix(prefix)
                if name.startswith(prefix) and is_client_property(rest):
                    found[rest] = value.strip()
        for name in sorted(client_roles.CHOICES.keys() & found.keys(), reverse=True):  # security.protocol is the first
            if client_roles.CHOICES[name] in found.get("security.protocol", "").upper():
                found[name] = secret_reference.resolve(f"{alias}.{name}", found[name]).strip()
        return Connection(alias, tuple(sorted(found.items())), self.is_shaded)

    def report(self) -> tuple[PropertyUse, ...]:
        """Finds the use of every property of the file: supported, not needed here, not supported, or unknown, and
        why."""
        return tuple(self._use(name) for name in sorted(self.values))

    def warnings(self) -> tuple[str, ...]:
        """Gives a line for each property that has no effect although its author may count on it, and for each file with
        secrets that other users of the machine may read."""
        return self._warnings

    @cached_property
    def _warnings(self) -> tuple[str, ...]:
        return (*(use.warning for use in self.report() if use.warning), *self._open_files())

    def _open_files(self) -> Iterator[str]:
        for name, file, mode in secret_reference.open_to_others(sorted(self.values.items())):
            yield f"property {name}: others may read or change file {file} (mode {mode:04o}). Set its mode to 0600"
        for name, file, mode in self._changeable():
            yield f"{name}: others may change file {file} (mode {mode:04o}). Take that right from them"
        mode = secret_reference.mode_for_others(self.path)
        literal = [name for name, value in sorted(self.values.items()) if self._is_literal_secret(name, value)]
        if mode and literal:
            yield (
                f"property {literal[0]} is a secret in {self.path}, which others may read or change (mode {mode:04o}). "
                "Set its mode to 0600, or name the secret by a reference"
            )

    def _changeable(self) -> Iterator[tuple[str, str, int]]:
        """Yields files without secrets that any user may change: who does decides to whom the clients log in."""
        stores = [(f"property {name}", value) for name, value in sorted(self.values.items()) if name.endswith(TRUSTED)]
        for name, file in (*stores, ("property file", str(self.path))):
            if (mode := secret_reference.mode_for_others(file)) & 0o002:
                yield name, file, mode

    def _is_literal_secret(self, name: str, value: str) -> bool:
        plain = _without_role(self._without_scope(name))
        if secret_reference.REFERENCE.search(value):
            return False
        if plain in (REGISTRY_URL, TOKEN_URL, OTLP_ENDPOINT):  # addresses, unless they hold a user
            return "@" in value
        has_effect = is_client_property(plain) or plain in (REGISTRY_USER, OTLP_HEADERS)
        return bool(value) and secret_reference.is_secret(name) and has_effect

    def _use(self, name: str) -> PropertyUse:
        plain = self._without_scope(name)
        of_client = _without_role(plain)
        if client_roles.decides_identity(of_client):
            return PropertyUse(name, UseStatus.SUPPORTED, "given to the clients of the cluster")
        if of_client in CLIENT_PROPERTIES:
            return PropertyUse(name, UseStatus.NOT_SUPPORTED, known_properties.OWN_CLIENTS)
        found = known_properties.look_up(name, plain)
        alias = name.removesuffix(f".{plain}")
        if found.status is UseStatus.SUPPORTED and alias in self.clusters and known_properties.is_of_target(plain):
            flows = [flow for flow in self.flows if alias in flow.split(ARROW)]
            if flows and not any(flow.endswith(f"{ARROW}{alias}") for flow in flows):
                return PropertyUse(name, UseStatus.UNKNOWN, f"no flow has the target {alias}; set {flows[0]}.{plain}")
        return found

    def _without_scope(self, name: str) -> str:
        if known_properties.is_acted_on(name):  # also where a cluster has the alias target, and the name begins so
            return name
        for source in self.clusters:
            rest = name.removeprefix(f"{source}{ARROW}")
            if rest != name and (plain := self._without_alias(rest)) != rest:
                return plain
        return self._without_alias(name)

    def _without_alias(self, name: str) -> str:
        aliases = sorted(self.clusters, key=len, reverse=True)  # of us and us.east, the longer one is meant
        return next((name.removeprefix(f"{one}.") for one in aliases if name.startswith(f"{one}.")), name)


@dataclass(frozen=True, repr=False)
class Scope:
    """The properties as the flow `source->target` sees them, read with their types."""

    properties: Properties
    source: str
    target: str

    @property
    def flow(self) -> str:
        return f"{self.source}{ARROW}{self.target}"

    def text(self, name: str, default: str) -> str:
        """Reads a connector property: the flow's own value, else the target's, else the file's, else the default."""
        key = self._place(name)
        return default if key is None else self.properties.values[key].strip()

    def _place(self, name: str) -> str | None:
        """Returns the name under which a connector property stands that is in effect, None if there is none."""
        names = filter(None, (name, options.FORMER_NAMES.get(name)))
        keys = (key for one in names for key in (f"{self.flow}.{one}", f"{self.target}.{one}", one))
        return next((key for key in keys if key in self.properties.values), None)

    def read(self, name: str, default: str | None = None) -> Any:
        """Reads a property of the table of options, with its kind and default.

        Args:
            name: as in the table, with any text in the place of its placeholders.
            default: in the place of the table's, where other properties decide about it.

        Raises:
            ConfigurationError: the value is not allowed.
            KeyError: the table has no such property.
        """
        option = options.find(name)
        if default is None:
            default = option.default.replace("<source>", self.source)
        text = self.text(name, default)
        return self._parsed(name, option, default if self._is_off(name, text) else text)

    def _is_off(self, name: str, text: str) -> bool:
        """Tells whether an interval below 0, which is off to MirrorMaker 2, is that of something that is off here."""
        switch = _switch_of(name)
        return bool(switch) and self._resolved(name, text).startswith("-") and not self.read(switch)

    def _parsed(self, name: str, option: Option, text: str) -> Any:
        try:
            return option.kind.parse(option.kind.normalize(self._resolved(name, text)))
        except ValueError:
            raise ConfigurationError(
                f"flow {self.flow}: property {name} is '{option.kind.normalize(text)}' in {self.properties.path}; "
                f"allowed is {option.kind.allowed}{_instead_of(name, text)}"
            ) from None

    def _resolved(self, name: str, text: str) -> str:
        """Resolves references to config providers; those to secrets stay until a client needs them."""
        is_kept = name in RESOLVED_LATER or secret_reference.is_secret(name)
        return text if is_kept else secret_reference.resolve(name, text).strip()

    def of_worker(self, name: str) -> Any:
        """Reads a property of MirrorMaker 2's workers of which a value for the whole file holds before that of the
        target (`MirrorMakerConfig.workerConfig`). It reads none of a flow; with Connect, there is no other place."""
        keys = (name, f"{self.target}.{name}", f"{self.flow}.{name}")
        found = next((key for key in keys if key in self.properties.values), None)
        return (
            self.read(name) if found is None else self._parsed(name, options.find(name), self.properties.values[found])
        )

    def source_consumer(self, name: str) -> str:
        """Reads a property of the consumer with which MirrorMaker 2 reads the source, wherever it may stand.

        `<target>.consumer` is the consumer of another cluster. So is `source.consumer` where a cluster has that alias.
        """
        option, values = options.find(f"consumer.{name}"), self.properties.values
        if name == "isolation.level":
            option = replace(option, kind=OneOf(("read_uncommitted", "read_committed")))
        key = self.place_of_consumer(name)
        return str(self._parsed(key or f"consumer.{name}", option, values[key] if key else option.default)).strip()

    def consumer_warnings(self) -> Iterator[str]:
        """Yields a line for each such property that MirrorMaker 2 obeys in the configuration of a connector, and not
        where it stands (`MirrorMakerConfig.connectorBaseConfig`)."""
        for name in ("auto.offset.reset", "isolation.level"):
            key, default = self.place_of_consumer(name), options.find(f"consumer.{name}").default
            if name == "auto.offset.reset" and self.text("mirrorlake.start", ""):
                continue
            value = self.source_consumer(name)  # a wrong one is refused wherever it stands
            ignored = {f"consumer.{name}", f"source.consumer.{name}"} - {f"{self.source}.consumer.{name}"}
            if key in ignored and value != default:
                yield (
                    f"property {key} holds here, and with MirrorMaker 2 only in the configuration of a connector: the "
                    f"process of its own ignores it at the top of a file, so that it has used {default}. Write "
                    f"{self.source}.consumer.{name} if it is meant, or remove it"
                )

    def target_warnings(self) -> Iterator[str]:
        """Yields a line for each connector property that stands at the alias of the target alone: MirrorMaker 2 makes
        it one of the cluster's clients there, and ignores it (`MirrorMakerConfig.connectorBaseConfig`)."""
        prefix = f"{self.target}."
        for key in sorted(name for name in self.properties.values if name.startswith(prefix)):
            plain = key.removeprefix(prefix)
            is_in_effect = self._place(known_properties.FORMER.get(plain, plain)) == key
            if known_properties.is_of_mirrormaker(plain) and is_in_effect:
                yield (
                    f"property {key} holds here for all flows to {self.target}, and MirrorMaker 2 ignores it there. "
                    f"Write {self.flow}.{plain} if it is meant, or remove it"
                )

    def place_of_consumer(self, name: str) -> str | None:
        """Returns the name under which a property of the source's consumer stands, None if it does not."""
        of_source = () if "source" in self.properties.clusters else ("source.",)
        scopes = ("", f"{self.flow}.", f"{self.source}.", *of_source, f"{self.flow}.source.")
        found = [key for key in (f"{scope}consumer.{name}" for scope in scopes) if key in self.properties.values]
        return found[-1] if found else None

    def plain_fields(self) -> dict[str, Any]:
        """Reads the fields of `Flow` that properties hold as they are, by the table of options."""
        by_field: dict[str, list[Option]] = {}
        for option in options.OPTIONS:
            if option.field and not option.is_derived:
                by_field.setdefault(option.field, []).append(option)
        return {field: self._plain_field(found) for field, found in by_field.items()}

    def below(self, prefix: str) -> dict[str, str]:
        """Reads all properties that begin with a prefix, by their names without it."""
        names = {
            name.partition(prefix)[2]
            for name in self.properties.values
            if name.startswith((prefix, f"{self.target}.{prefix}", f"{self.flow}.{prefix}"))
        }
        return {name: self.text(f"{prefix}{name}", "") for name in names}

    def resolved_below(self, prefix: str) -> dict[str, str]:
        """Reads the same as `below`, with the values of references."""
        return {name: self._resolved(f"{prefix}{name}", text) for name, text in self.below(prefix).items()}

    def _plain_field(self, found: Sequence[Option]) -> Any:
        values = [self.read(option.name) for option in found]
        if isinstance(found[0].kind, Patterns):
            return NameFilter(found[0].name, *values)
        (value,) = values
        return value


def _instead_of(name: str, text: str) -> str:
    """Says what an interval below 0 means to MirrorMaker 2: nothing is done at intervals (`Scheduler`)."""
    switch = _switch_of(name)
    return f". To switch this off, set {switch} = false" if switch and text.startswith("-") else ""


def _switch_of(name: str) -> str:
    """Names the property that switches off what is done at an interval; empty if there is none."""
    switch = f"{name.removesuffix(INTERVAL)}.enabled"
    return switch if name.endswith(INTERVAL) and any(option.name == switch for option in options.OPTIONS) else ""


def _malformed_line(text: bytes) -> int:
    """Returns the number of the first line that is no line of a Java property file."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            javaproperties.loads(line)
        except ValueError:
            return number
    return 1


def is_client_property(name: str) -> bool:
    """Tells whether a property is one of a Kafka client (MirrorClientConfig.CLIENT_CONFIG_DEF), not of a connector."""
    return name in CLIENT_PROPERTIES or name.startswith(CLIENT_PREFIXES)


def _without_role(name: str) -> str:
    role, dot, rest = name.partition(".")
    return rest if dot and role in ROLES else name
