"""The connection to a cluster, rendered for each of the three client libraries.

A connection is the set of Java client properties of the property file (`bootstrap.servers`, `security.protocol`,
`sasl.*`, `ssl.*`), with references to secrets unresolved. The method for each library resolves them at the last moment,
where the client is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mirrorlake.config import secret_reference
from mirrorlake.errors import ConfigurationError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")

# Client properties with the same meaning in librdkafka. The Java client's other properties tune the Java client.
TO_LIBRDKAFKA = {
    "client.id": "client.id",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "ssl.key.password": "ssl.key.password",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
}

# Where a stretch of a log ends with a transaction's marker, a consumer fetches once more, and no record comes. With the
# default of this property, each task would wait for half a second.
SPARK_READS = {"kafka.fetch.max.wait.ms": "50"}

Setting = str | int | float | bool  # of librdkafka


@dataclass(frozen=True, repr=False)
class Connection:
    """The properties with which clients reach one cluster.

    Args:
        alias: the cluster's name in the property file.
        properties: Java client properties, references unresolved.
    """

    alias: str
    properties: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        get = dict(self.properties).get
        if not get("bootstrap.servers"):
            raise ConfigurationError(
                f"property {self.alias}.bootstrap.servers is missing. Set it to the addresses of cluster "
                f"{self.alias}: host:port, separated by commas"
            )
        for server in self.bootstrap_servers:
            if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}|\$\{.*", server):
                raise ConfigurationError(f"property {self.alias}.bootstrap.servers: '{server}' is not host:port")
        if self.security_protocol not in SECURITY_PROTOCOLS:
            raise ConfigurationError(
                f"property {self.alias}.security.protocol is '{get('security.protocol')}'; allowed are "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        if self.security_protocol.startswith("SASL"):
            mechanism = get("sasl.mechanism", "GSSAPI")
            if mechanism not in SASL_MECHANISMS:
                raise ConfigurationError(
                    f"property {self.alias}.sasl.mechanism is '{mechanism}'; supported are {', '.join(SASL_MECHANISMS)}"
                )
            if not get("sasl.jaas.config"):
                raise ConfigurationError(
                    f"property {self.alias}.sasl.jaas.config is missing. Set it, as security.protocol = "
                    f"{self.security_protocol} needs user name and password"
                )
        for store in ("truststore", "keystore"):
            location, kind = get(f"ssl.{store}.location"), get(f"ssl.{store}.type", "JKS").upper()
            if location and kind != "PEM":
                raise ConfigurationError(
                    f"property {self.alias}.ssl.{store}.type is {kind}; supported is PEM. Convert the store (keytool, "
                    f"openssl) and set {self.alias}.ssl.{store}.type=PEM"
                )

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in dict(self.properties)["bootstrap.servers"].split(",") if part.strip())

    @property
    def security_protocol(self) -> str:
        return dict(self.properties).get("security.protocol", "PLAINTEXT").upper()

    def librdkafka(self, **settings: Setting) -> dict[str, Setting]:
        """Renders the configuration of a confluent-kafka client; `settings` win."""
        values = self._resolved()
        rendered: dict[str, Setting] = {"bootstrap.servers": values["bootstrap.servers"]}
        rendered.update({ours: values[theirs] for theirs, ours in TO_LIBRDKAFKA.items() if theirs in values})
        rendered["security.protocol"] = self.security_protocol
        if self.security_protocol.startswith("SASL"):
            rendered["sasl.username"], rendered["sasl.password"] = self._credentials(values)
        for theirs, ours in (
            ("ssl.truststore.location", "ssl.ca.location"),
            ("ssl.truststore.certificates", "ssl.ca.pem"),
        ):
            if theirs in values:
                rendered[ours] = values[theirs]
        if "ssl.keystore.location" in values:
            rendered["ssl.certificate.location"] = rendered["ssl.key.location"] = values["ssl.keystore.location"]
        return {**rendered, **settings}

    def kafka_python(self, **settings: object) -> dict[str, object]:
        """Renders the configuration of kafka-python's connection manager; `settings` win."""
        values = self._resolved()
        rendered: dict[str, object] = {
            "bootstrap_servers": values["bootstrap.servers"].split(","),
            "security_protocol": self.security_protocol,
            "ssl_check_hostname": values.get("ssl.endpoint.identification.algorithm", "https") != "",
        }
        if self.security_protocol.startswith("SASL"):
            rendered["sasl_mechanism"] = values["sasl.mechanism"]
            rendered["sasl_plain_username"], rendered["sasl_plain_password"] = self._credentials(values)
        if "ssl.truststore.location" in values:
            rendered["ssl_cafile"] = values["ssl.truststore.location"]
        if "ssl.keystore.location" in values:
            rendered["ssl_certfile"] = rendered["ssl_keyfile"] = values["ssl.keystore.location"]
            rendered["ssl_password"] = values.get("ssl.key.password")
        return {**rendered, **settings}

    def spark(self, **settings: str) -> dict[str, str]:
        """Renders the options of Spark's Kafka source: the Java properties, prefixed. `settings` (not prefixed) win.

        Options are in plans and in the payloads of tasks, so secrets stay references, which Kafka's client resolves.
        """
        values = secret_reference.left_to_kafka(self.alias, self.properties)
        return {**SPARK_READS, **{f"kafka.{name}": value for name, value in values.items()}, **settings}

    def _resolved(self) -> dict[str, str]:
        return {name: secret_reference.resolve(f"{self.alias}.{name}", value) for name, value in self.properties}

    def _credentials(self, values: Mapping[str, str]) -> tuple[str, str]:
        options = {name: _unquoted(value) for name, value in JAAS_OPTION.findall(values["sasl.jaas.config"])}
        missing = [name for name in ("username", "password") if not options.get(name)]
        if missing:
            raise ConfigurationError(f"property {self.alias}.sasl.jaas.config has no {' and no '.join(missing)}")
        return options["username"], options["password"]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={secret_reference.masked(name, value)}" for name, value in self.properties)
        return f"Connection({self.alias}: {shown})"


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[:1] in "\"'" else value
