"""Clusters with TLS that require client certificates, passwords (SCRAM) or tokens (OAUTHBEARER), with ACLs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from mirrorlake.local.cluster import Broker, LocalCluster, running
from mirrorlake.local.ports import free_port

from tests.certificates import Certificates
from tests.identity_provider import IdentityProvider

PASSWORD, PLAIN_PASSWORD = 'scram"canary', "sha256-canary"  # of `mirror` with SHA-512, of AWKWARD with SHA-256
AWKWARD = "CN=mirror,O=x"  # SCRAM escapes these characters
MODULES = "org.apache.kafka.common.security"
OAUTH = f"{MODULES}.oauthbearer.OAuthBearer"
LISTENERS = {"SSL": "SSL", "REQUESTED": "SSL", "SCRAM": "SASL_SSL", "OAUTH": "SASL_SSL"}
SESSION_MS = 4_000  # of a login by SCRAM; a token's is its life
KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


class TlsCluster(LocalCluster):
    """A local cluster with listeners that require and request a client certificate, one for SCRAM and one for tokens.
    The test itself uses the plain one."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        self.ports = {name: free_port() for name in LISTENERS}
        for name in ("listeners", "advertised.listeners"):
            properties[name] += "".join(f",{listener}://localhost:{port}" for listener, port in self.ports.items())
        properties["listener.security.protocol.map"] += ",REQUESTED:SSL,SCRAM:SASL_SSL,OAUTH:SASL_SSL"
        return properties


@contextlib.contextmanager
def tls_clusters(
    base: Path, jars: Path, certificates: Certificates, issuer: IdentityProvider
) -> Iterator[tuple[TlsCluster, TlsCluster]]:
    """Runs a source and a target, on which `mirror` and AWKWARD may use all topics, groups and transactional ids."""
    keys = f"{issuer.url}/keys"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("broker", "localhost")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.trusted),
        "ssl.allow.dn.changes": "true",  # between the certificates of a broker
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.requested.ssl.client.auth": "requested",
        "listener.name.requested.ssl.principal.mapping.rules": "RULE:^.*$/shown/",
        "ssl.principal.mapping.rules": "RULE:^.*$/mirror/",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "listener.name.scram.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{OAUTH}LoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}ValidatorCallbackHandler",
        "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": "kafka",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    options = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}",)
    source, target = (
        TlsCluster(side, base / side, jars, properties=properties, java_options=options)
        for side in ("source", "target")
    )
    with running(source), running(target):
        for cluster in (source, target):
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            for user in ("mirror", AWKWARD):
                grant(admin, *((kind, "*", AclOperation.ALL) for kind in KINDS), principal=f"User:{user}")
            set_password(admin)
            set_password(admin, ScramMechanism.SCRAM_SHA_256, PLAIN_PASSWORD, AWKWARD)
        yield source, target


def grant(admin: AdminClient, *rights: tuple[ResourceType, str, AclOperation], principal: str = "User:mirror") -> None:
    """Lets a principal do something: by default, that of all listeners but REQUESTED."""
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in rights
    ]
    for future in admin.create_acls(bindings).values():
        future.result()


def set_password(
    admin: AdminClient,
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512,
    password: str = PASSWORD,
    user: str = "mirror",
) -> None:
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
    admin.alter_user_scram_credentials([change])[user].result()


@contextlib.contextmanager
def rotated(admin: AdminClient, store: Path) -> Iterator[None]:
    """Lets the listener SSL of a broker have another certificate for the length of a block."""

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("listener.name.ssl.ssl.keystore.location", str(store), incremental_operation=operation)
        broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([broker])[broker].result()

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)


def cut_connections(port: int) -> None:
    """Ends all connections of this process to a port, as the network would."""
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            copy = os.dup(int(path.name))
            try:
                one = socket.socket(fileno=copy)
            except OSError:  # no socket
                os.close(copy)
                raise
            with one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                    one.shutdown(socket.SHUT_RDWR)
