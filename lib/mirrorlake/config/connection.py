"""The connection to a cluster: the properties with which clients reach it.

A connection is the set of Java client properties of the property file (`bootstrap.servers`, `security.protocol`,
`sasl.*`, `ssl.*`), with references to secrets unresolved. They are resolved at the last moment, where a client is
built. This module renders them for Java; `protocol.clients.settings` does so for the two Python clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirrorlake.config import secret_reference
from mirrorlake.config.security import login, tls
from mirrorlake.config.security import properties as security
from mirrorlake.config.security.jaas import Jaas
from mirrorlake.config.security.login import LOOPBACK, Login
from mirrorlake.config.security.properties import (
    INSTEAD_OF_MECHANISM,
    LOGIN_HANDLER,
    OAUTH,
    OAUTHBEARER,
    SASL_MECHANISMS,
    SECURITY_PROTOCOLS,
)
from mirrorlake.config.security.tls import Tls
from mirrorlake.errors import ConfigurationError

# Where a stretch of a log ends with a transaction's marker, a consumer fetches once more, and no record comes. With the
# default of this property, each task would wait for half a second.
SPARK_READS = {"kafka.fetch.max.wait.ms": "50"}

JAAS = "sasl.jaas.config"
KAFKA = "org.apache.kafka."
SHADED = "kafkashaded."  # what Databricks puts before the names of Kafka's Java classes
SCRAM_MODULE = f"{KAFKA}common.security.scram.ScramLoginModule"
LOGIN_MODULES = {
    "PLAIN": f"{KAFKA}common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    OAUTHBEARER: f"{OAUTH}.OAuthBearerLoginModule",
}
IGNORED = re.compile(r"(^|,)\s*[0-9a-zA-Z%._-]*://")  # a protocol in front of an address (Java's ClientUtils)
UNHIDDEN = {"PLAIN": "the password", OAUTHBEARER: "the token"}  # what these mechanisms send as it is
# Rendered as options of the login module, because Java clients before 4.1 don't know them as properties (KIP-1139).
NEWER = (login.CLIENT_ID, login.CLIENT_SECRET, login.SCOPE, "sasl.oauthbearer.jwt.")


@dataclass(frozen=True, repr=False)
class Connection:
    """The properties with which clients reach one cluster.

    Args:
        alias: the cluster's name in the property file.
        properties: Java client properties, references unresolved.
        is_shaded: True where Kafka's Java classes have other names, as on Databricks.
    """

    alias: str
    properties: tuple[tuple[str, str], ...]
    is_shaded: bool = False

    def __post_init__(self) -> None:
        given = dict(self.properties)
        if not given.get("bootstrap.servers"):
            raise ConfigurationError(
                f"property {self.alias}.bootstrap.servers is missing. Set it to the addresses of cluster "
                f"{self.alias}: host:port, separated by commas"
            )
        for server in self.bootstrap_servers:
            if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}|.*\$\{.*", server):
                raise ConfigurationError(f"property {self.alias}.bootstrap.servers: '{server}' is not host:port")
        if self.security_protocol not in SECURITY_PROTOCOLS:
            raise ConfigurationError(
                f"property {self.alias}.security.protocol is '{given.get('security.protocol')}'; allowed are "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        handler = "sasl.login.callback.handler.class"
        plain = given | ({handler: given[handler].removeprefix(SHADED)} if handler in given else {})
        if self.uses_sasl:
            self._check_sasl(given)
        security.check(self.alias, self.security_protocol, plain)
        if self.uses_tls:
            tls.check(self.alias, given)

    def _check_sasl(self, given: Mapping[str, str]) -> None:
        mechanism = self.mechanism
        if mechanism not in SASL_MECHANISMS:
            instead = INSTEAD_OF_MECHANISM.get(mechanism, "")
            raise ConfigurationError(
                f"property {self.alias}.sasl.mechanism is '{mechanism}'; supported are {', '.join(SASL_MECHANISMS)}"
                + (f". {mechanism}: {instead}" if instead else "")
            )
        if not given.get(JAAS):
            raise ConfigurationError(
                f"property {self.alias}.{JAAS} is missing. Set it, as security.protocol = {self.security_protocol} "
                "needs a login"
            )
        if mechanism != OAUTHBEARER and given.get("sasl.login.callback.handler.class"):
            raise ConfigurationError(
                f"property {self.alias}.sasl.login.callback.handler.class is not supported with {mechanism}: "
                f"{security.NO_OTHER_LOGIN}"
            )
        # What a reference stands for is checked where a client is built.
        if not (secret_reference.REFERENCE.fullmatch(given[JAAS]) or "${" in given.get(login.TOKEN_URL, "")):
            self._login(self._jaas(given[JAAS]), given)

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        servers = IGNORED.sub(r"\1", dict(self.properties)["bootstrap.servers"])
        return tuple(part.strip() for part in servers.split(",") if part.strip())

    @property
    def security_protocol(self) -> str:
        return dict(self.properties).get("security.protocol", "PLAINTEXT").upper()

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def mechanism(self) -> str:
        """Returns the SASL mechanism; it means nothing without SASL."""
        return dict(self.properties).get("sasl.mechanism", "GSSAPI")

    @property
    def warnings(self) -> Iterator[str]:
        """Yields a line for the operator if what a client proves itself with crosses the network unencrypted."""
        hosts = {server.rpartition(":")[0].strip("[]").lower() for server in self.bootstrap_servers}
        if self.security_protocol == "SASL_PLAINTEXT" and self.mechanism in UNHIDDEN and not hosts <= {*LOOPBACK}:
            yield (
                f"property {self.alias}.security.protocol is SASL_PLAINTEXT: with {self.mechanism}, "
                f"{UNHIDDEN[self.mechanism]} crosses the network unencrypted. Use SASL_SSL"
            )

    def resolved(self) -> dict[str, str]:
        """Returns the properties besides the login, with their references resolved.

        Raises:
            ConfigurationError: a reference leads nowhere.
        """
        found = {name: self._resolve(name, value) for name, value in self.properties if name != JAAS}
        return {**found, "bootstrap.servers": IGNORED.sub(r"\1", found["bootstrap.servers"])}

    def login(self) -> Login | None:
        """Returns the login with its references resolved, None without SASL.

        Raises:
            ConfigurationError: a reference leads nowhere, or the login is incomplete.
        """
        return self._login(self._resolved_jaas(), self.resolved()) if self.uses_sasl else None

    def tls(self) -> Tls | None:
        """Reads the certificates and the key, None without TLS.

        Raises:
            ConfigurationError: a reference leads nowhere, or a store can't be read here.
        """
        return tls.read(self.alias, self.resolved()) if self.uses_tls else None

    def java(self) -> dict[str, str]:
        """Renders the properties of a Java client.

        Raises:
            ConfigurationError: a reference leads nowhere.
        """
        values = tls.java(self.alias, self.resolved()) if self.uses_tls else self.resolved()
        if not self.uses_sasl:
            return values
        jaas = self._resolved_jaas()
        self._login(jaas, values)
        return self._for_java(jaas, values)

    def spark(self, **settings: str) -> dict[str, str]:
        """Renders the options of Spark's Kafka source: the Java properties, prefixed. `settings` (not prefixed) win.

        Options are in plans and in the payloads of tasks. So secrets stay references, which Kafka's client resolves.
        An encrypted PEM key is an exception, and so are Databricks, whose Kafka client has other names, and a reference
        to a whole JAAS line of which a part stands outside of it.

        Raises:
            ConfigurationError: see `java`.
        """
        values = self.java()
        if not self.is_shaded:
            values = secret_reference.left_to_kafka(self._java_with_references(), values)
        return {**SPARK_READS, **{f"kafka.{name}": value for name, value in values.items()}, **settings}

    def _java_with_references(self) -> dict[str, str]:
        """Renders the properties of `java` as they are written, for those in which that makes a difference."""
        values = dict(self.properties)
        line = values.pop(JAAS, "")
        if values.get(tls.KEY_PASSWORD):
            values.pop(tls.KEY, None)  # `java` has it decrypted
        if not line or not self.uses_sasl:
            return values
        if not secret_reference.REFERENCE.fullmatch(line):
            return self._for_java(self._jaas(line), values)
        if values.get(login.TOKEN_URL):
            if any(values.get(name) for name in (login.CLIENT_ID, login.CLIENT_SECRET, login.SCOPE)):
                return values  # these belong into the line, which `java` has resolved
            values = {name: value for name, value in values.items() if not name.startswith(NEWER)}
        return {**values, JAAS: line}

    def _for_java(self, jaas: Jaas, values: Mapping[str, str]) -> dict[str, str]:
        """Renders login and properties, with references or without, by the names that every Java client knows."""
        rendered = dict(values)
        if values.get(login.TOKEN_URL):
            jaas = login.client_credentials_jaas(jaas, values)
            rendered = {name: value for name, value in values.items() if not name.startswith(NEWER)}
            rendered["sasl.login.callback.handler.class"] = self._java_class(LOGIN_HANDLER)
        return {**rendered, JAAS: Jaas(self._java_class(jaas.module), jaas.flag, jaas.options).java()}

    def _java_class(self, name: str) -> str:
        return SHADED + name if self.is_shaded else name

    def _resolve(self, name: str, value: str) -> str:
        """Resolves references. A file with one secret often ends with a line end; Java's clients trim all values."""
        if not secret_reference.REFERENCE.search(value):
            return value
        found = secret_reference.resolve(f"{self.alias}.{name}", value)
        return found.rstrip("\r\n") if name == JAAS else found.strip()

    def _jaas(self, line: str) -> Jaas:
        """Parses the login; one copied from Databricks has the names of classes that it has elsewhere."""
        jaas = Jaas.parse(f"{self.alias}.{JAAS}", line)
        module = jaas.module.removeprefix(SHADED)
        if module != LOGIN_MODULES[self.mechanism]:
            raise ConfigurationError(
                f"property {self.alias}.{JAAS}: the login module of {self.mechanism} is "
                f"{LOGIN_MODULES[self.mechanism]}. Name it there"
            )
        return Jaas(module, jaas.flag, jaas.options)

    def _resolved_jaas(self) -> Jaas:
        line = dict(self.properties)[JAAS]
        if secret_reference.REFERENCE.fullmatch(line):
            return self._jaas(self._resolve(JAAS, line))
        return self._jaas(line).resolved(lambda value: self._resolve(JAAS, value))

    def _login(self, jaas: Jaas, values: Mapping[str, str]) -> Login:
        if self.mechanism == OAUTHBEARER:
            return login.oauth(self.alias, jaas, values)
        return login.password(self.alias, jaas)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={secret_reference.masked(name, value)}" for name, value in self.properties)
        return f"Connection({self.alias}: {shown})"
