"""Certificates of an authority of the tests, as PEM files and as Java's key stores."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates

STORE_PASSWORD, KEY_PASSWORD = "store-canary", "key-canary"


class Certificates:
    """A certificate authority, and PEM stores of the certificates that it has signed."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._authority = directory, trustme.CA()
        self.trusted = directory / "trusted.pem"
        self._authority.cert_pem.write_to_path(self.trusted)

    def store(self, name: str, *identities: str, **validity: datetime) -> Path:
        """Stores a key with its certificate in a form that Java and OpenSSL both read (PKCS #8)."""
        issued = self._authority.issue_cert(*identities, **validity)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        path = self._directory / f"{name}.pem"
        path.write_bytes(key + b"".join(certificate.bytes() for certificate in issued.cert_chain_pems))
        return path

    def java_stores(self, kind: str, trusted_kind: str) -> tuple[Path, Path]:
        """Returns a key store and a trust store; the key of a JKS store has a password of its own."""
        pem, keys, trusted = (self._directory / f"{kind}-{name}" for name in ("identity", "keys", "trusted"))
        text = self.store(pem.name, "somebody@example.org").read_bytes()
        key, (first, *others) = load_pem_private_key(text, None), load_pem_x509_certificates(text)
        encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
        keys.write_bytes(serialize_key_and_certificates(b"me", key, first, others, encryption))
        keytool("-importcert", "-noprompt", "-file", self.trusted, *named("", trusted, trusted_kind))
        if kind == "JKS":
            converted = keys.with_suffix(".jks")
            to = (*named("dest", converted, kind), "-destkeypass", KEY_PASSWORD)
            keytool("-importkeystore", "-noprompt", "-srcalias", "me", *named("src", keys, "PKCS12"), *to)
            keys = converted
        return keys, trusted


def named(side: str, path: Path, kind: str) -> tuple[object, ...]:
    return f"-{side}keystore", path, f"-{side}storetype", kind, f"-{side}storepass", STORE_PASSWORD


def keytool(*arguments: object) -> None:
    subprocess.run(["keytool", *map(str, arguments)], check=True, capture_output=True)
