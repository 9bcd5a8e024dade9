"""The security properties of Kafka's clients, and what mirrorlake does with each of them.

Three client libraries reach a cluster: Java's, librdkafka and kafka-python. A property is honoured by all of them or is
refused; none is left out by one of them without a word. Names are those of `SslConfigs` and `SaslConfigs` of Kafka
4.3.0.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from mirrorlake.errors import ConfigurationError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
STORE_TYPES = ("JKS", "PKCS12", "PEM")

LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
OAUTH = "org.apache.kafka.common.security.oauthbearer"

INSTEAD_OF_MECHANISM = {
    "GSSAPI": "the published builds of confluent-kafka have no Kerberos. Let the brokers have a listener with one of "
    "these, or with client certificates",
    "AWS_MSK_IAM": "librdkafka lacks it, and it has not been tried on a real cluster. Turn on SASL/SCRAM "
    "(SCRAM-SHA-512) or client certificates for the cluster, which MSK offers beside IAM",
}
AT_THE_BROKERS = "Remove it here, and set it at the brokers, where it holds for all clients"
NO_JAVA_CLASSES = "it is a class or provider of the Java client only. Remove it"
NO_OTHER_LOGIN = (
    "a login by Java classes of your own reaches the Java client only. Remove it, and use a mechanism's own login"
)

HONOURED = frozenset(
    """
    ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    sasl.jaas.config sasl.mechanism
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.scope sasl.oauthbearer.header.urlencode
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    """.split()
)

# Of the Java client's timing and of brokers: no result depends on them.
HARMLESS = (
    "sasl.kerberos.",
    "sasl.login.refresh.",
    "sasl.login.retry.",
    "sasl.oauthbearer.clock.skew",
    "sasl.oauthbearer.expected.",
    "sasl.oauthbearer.jwks.",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "ssl.allow.",
    "sasl.enabled.mechanisms",
    "sasl.server.",
)

# Only these values mean the same to all clients. Java compares the names of algorithms and TLS versions as they are.
ALLOWED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "ssl.endpoint.identification.algorithm": (("https", ""), "Set it to https, or to nothing for no check"),
    "ssl.keystore.type": (STORE_TYPES, "Convert the store"),
    "ssl.truststore.type": (STORE_TYPES, "Convert the store"),
    "ssl.protocol": (("TLSv1.3", "TLS"), AT_THE_BROKERS),
    "ssl.keymanager.algorithm": (("SunX509", "PKIX"), NO_JAVA_CLASSES),
    "ssl.trustmanager.algorithm": (("PKIX",), NO_JAVA_CLASSES),
    "sasl.oauthbearer.jwt.retriever.class": (
        (f"{OAUTH}.DefaultJwtRetriever", f"{OAUTH}.ClientCredentialsJwtRetriever"),
        "Tokens come from sasl.oauthbearer.token.endpoint.url, for client credentials",
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        (f"{OAUTH}.DefaultJwtValidator", f"{OAUTH}.ClientJwtValidator"),
        NO_JAVA_CLASSES,
    ),
    "sasl.login.callback.handler.class": (
        (LOGIN_HANDLER, f"{OAUTH}.secured.OAuthBearerLoginCallbackHandler"),
        NO_OTHER_LOGIN,
    ),
}
TLS_VERSIONS = frozenset(("TLSv1.2", "TLSv1.3"))

REFUSED: Mapping[str, str] = {
    "ssl.cipher.suites": f"librdkafka can't be held to it with TLS 1.3. {AT_THE_BROKERS}",
    "ssl.engine.factory.class": NO_JAVA_CLASSES,
    "ssl.provider": NO_JAVA_CLASSES,
    "ssl.secure.random.implementation": NO_JAVA_CLASSES,
    "sasl.client.callback.handler.class": NO_OTHER_LOGIN,
    "sasl.login.class": NO_OTHER_LOGIN,
    "sasl.oauthbearer.assertion.": "tokens for an assertion are not supported. Use client credentials",
}
KNOWN = HONOURED | set(ALLOWED) | set(REFUSED) | {"ssl.enabled.protocols"}


def check(alias: str, security_protocol: str, properties: Mapping[str, str]) -> None:
    """Refuses security properties that not all three clients honour.

    Args:
        alias: the cluster, for messages.
        security_protocol: decides which properties are in use: those of TLS, those of SASL, both or none.
        properties: the properties of its clients.

    Raises:
        ConfigurationError: a property or its value is refused. The message names it, the reason, and what to do.
    """
    used = ("ssl.",) * ("SSL" in security_protocol.split("_")) + ("sasl.",) * security_protocol.startswith("SASL")
    for name, value in properties.items():
        if used and name.startswith(used):
            _check_one(f"{alias}.{name}", name, value)


def _check_one(full: str, name: str, value: str) -> None:
    for refused, why in REFUSED.items():
        if name.startswith(refused) and (value or name != refused):
            raise ConfigurationError(f"property {full} is not supported: {why}")
    if name in ALLOWED:
        allowed, instead = ALLOWED[name]
        if value.lower() not in (one.lower() for one in allowed):
            shown = ", ".join(one or "nothing" for one in allowed)
            raise ConfigurationError(f"property {full} is '{value}'; supported are {shown}. {instead}")
    elif name == "ssl.enabled.protocols":
        if {version.strip() for version in value.split(",")} != TLS_VERSIONS:
            raise ConfigurationError(
                f"property {full} is '{value}'; supported is {','.join(sorted(TLS_VERSIONS))}, as librdkafka can't be "
                f"held to one of them. {AT_THE_BROKERS}"
            )
    elif name not in KNOWN and not name.startswith(HARMLESS):
        near = difflib.get_close_matches(name, KNOWN, 1)
        raise ConfigurationError(
            f"property {full} is unknown to Kafka's clients" + (f". Did you mean {near[0]}?" if near else ". Remove it")
        )
