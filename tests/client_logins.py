"""Properties with which a flow reaches the clusters of `tests.tls_cluster`, one function for each kind of login."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.certificates import KEY_PASSWORD, STORE_PASSWORD, Certificates
from tests.identity_provider import CLIENT, SECRET, IdentityProvider
from tests.tls_cluster import AWKWARD, LISTENERS, MODULES, OAUTH, PASSWORD, PLAIN_PASSWORD, TlsCluster
from tests.world import World


def over_tls(alias: str, cluster: TlsCluster, listener: str, certificates: Certificates) -> dict[str, str]:
    return {
        f"{alias}.bootstrap.servers": f"localhost:{cluster.ports[listener]}",
        f"{alias}.security.protocol": LISTENERS[listener],
        f"{alias}.ssl.truststore.type": "PEM",
        f"{alias}.ssl.truststore.location": str(certificates.trusted),
    }


def with_certificate(alias: str, cluster: TlsCluster, certificates: Certificates) -> dict[str, str]:
    return {
        **over_tls(alias, cluster, "SSL", certificates),
        f"{alias}.ssl.keystore.type": "PEM",
        f"{alias}.ssl.keystore.location": str(certificates.store("client", "somebody@example.org")),
    }


def with_password(world: World, cluster: TlsCluster, certificates: Certificates) -> dict[str, str]:
    secrets, alias = world.directory / "secrets.properties", world.target_alias
    secrets.write_text(f"password = {PASSWORD}\n")
    return {
        **over_tls(alias, cluster, "SCRAM", certificates),
        f"{alias}.sasl.mechanism": "SCRAM-SHA-512",
        f"{alias}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required "
        f'username="mirror" password="${{file:{secrets}:password}}";',
    }


def with_token(alias: str, cluster: TlsCluster, certificates: Certificates, issuer: IdentityProvider) -> dict[str, str]:
    return {
        **over_tls(alias, cluster, "OAUTH", certificates),
        f"{alias}.sasl.mechanism": "OAUTHBEARER",
        f"{alias}.sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        f"{alias}.sasl.jaas.config": f'{OAUTH}LoginModule required clientId="{CLIENT}" clientSecret="{SECRET}";',
    }


def with_inline_certificate(
    alias: str, cluster: TlsCluster, certificates: Certificates, listener: str = "SSL"
) -> dict[str, str]:
    """Returns the properties of a client whose certificate and encrypted key are in the property file itself."""
    text = certificates.store("inline", "somebody@example.org").read_bytes()
    key = load_pem_private_key(text, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY_PASSWORD.encode()))
    inline = {
        "truststore.certificates": certificates.trusted.read_bytes(),
        "keystore.key": encrypted,
        "keystore.certificate.chain": text[text.index(b"-----BEGIN CERT") :],
        "truststore.type": b"PEM",
        "keystore.type": b"PEM",
        "key.password": KEY_PASSWORD.encode(),
    }
    found = over_tls(alias, cluster, listener, certificates)
    del found[f"{alias}.ssl.truststore.location"]
    return found | {f"{alias}.ssl.{name}": value.decode().replace("\n", " ") for name, value in inline.items()}


def with_references(
    form: str, cluster: TlsCluster, certificates: Certificates, issuer: IdentityProvider, file: Path
) -> dict[str, str]:
    """Returns properties whose secrets are references: to the environment, and to a file or files written here."""

    def refer(**secrets: str) -> list[str]:
        file.write_text("".join(f"{name} = {value}\n" for name, value in secrets.items()))
        return [f"${{file:{file}:{name}}}" for name in secrets]

    def mounted(**secrets: str) -> list[str]:
        directory = file.with_name("mounted")
        directory.mkdir()
        for name, value in secrets.items():
            (directory / name).write_text(f"{value}\n")
        return [f"${{directory:{directory}:{name}}}" for name in secrets]

    def over(listener: str, **changes: str) -> dict[str, str]:
        named = {f"c.{name.replace('_', '.')}": value for name, value in changes.items()}
        return over_tls("c", cluster, listener, certificates) | named

    if form == "SCRAM":
        (password,) = refer(password=PLAIN_PASSWORD)
        login = f'{MODULES}.scram.ScramLoginModule required username="{AWKWARD}" password="{password}";'
        return over("SCRAM", sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=login)
    if form == "OAUTHBEARER":
        return with_token("c", cluster, certificates, issuer) | {
            "c.sasl.jaas.config": f'{OAUTH}LoginModule required clientId="{CLIENT}";',
            "c.sasl.oauthbearer.client.credentials.client.secret": "${env:OAUTH_CLIENT_SECRET}",
        }
    if form == "encrypted PEM":
        given = with_inline_certificate("c", cluster, certificates)
        names = ("c.ssl.keystore.key", "c.ssl.keystore.certificate.chain")
        references = refer(key=given[names[0]], chain=given[names[1]])
        return given | dict(zip(names, references, strict=True)) | {"c.ssl.key.password": "${env:KEY_PASSWORD}"}
    if form == "PEM":
        text = certificates.store("plain", "somebody@example.org").read_text()
        at = text.index("-----BEGIN CERT")
        key, chain = mounted(key=text[:at], chain=text[at:])
        inline = {"ssl_keystore_type": "PEM", "ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
        return over("SSL", ssl_key_password="", **inline)
    kind, trusted_kind = form.split()
    keys, trusted = certificates.java_stores(kind, trusted_kind)
    of_key = KEY_PASSWORD if kind == "JKS" else STORE_PASSWORD
    password, key_password = (mounted if kind == "JKS" else refer)(store=STORE_PASSWORD, key=of_key)
    return over(
        "SSL",
        ssl_keystore_type=kind,
        ssl_keystore_location=str(keys),
        ssl_keystore_password=password,
        ssl_key_password=key_password,
        ssl_truststore_type=trusted_kind,
        ssl_truststore_location=str(trusted),
        ssl_truststore_password=password,
    )
