"""PEM text, in the form that Java and OpenSSL both read."""

from __future__ import annotations

import re
import textwrap

from mirrorlake.errors import ConfigurationError

BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
CERTIFICATE, KEY, ENCRYPTED_KEY = "CERTIFICATE", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"


def certificates(name: str, text: str) -> str:
    """Returns all certificates of a text.

    Args:
        name: the property that it comes from, for messages.
        text: the text; line ends in it may have become spaces, as in a property file.

    Raises:
        ConfigurationError: there are none.
    """
    found = [_block(label, body) for label, body in BLOCK.findall(text) if label == CERTIFICATE]
    if not found:
        raise ConfigurationError(f"property {name} holds no PEM certificate (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


def private_key(name: str, text: str, password_name: str, password: str) -> str:
    """Returns the private key of a text.

    Args:
        name: the property that it comes from, for messages.
        text: the text, which may hold certificates, too.
        password_name: the property with the key's password.
        password: that password, empty for none.

    Raises:
        ConfigurationError: there is none that Java can read, or it needs a password, or it needs none.
    """
    found = [(label, body) for label, body in BLOCK.findall(text) if label.endswith(KEY)]
    if not found:
        raise ConfigurationError(f"property {name} holds no PEM private key (-----BEGIN PRIVATE KEY-----)")
    label, body = found[0]
    if label not in (KEY, ENCRYPTED_KEY):
        raise ConfigurationError(
            f"property {name} holds a key of another form ({label}). Java reads PKCS #8 only. Convert it with: openssl "
            "pkcs8 -topk8"
        )
    if (label == ENCRYPTED_KEY) != bool(password):
        why = "is missing, and the key is encrypted. Set it" if not password else "is set, and the key is not encrypted"
        raise ConfigurationError(f"property {password_name} {why} ({name})")
    return _block(label, body)


def encrypted(alias: str, key: str, password: str) -> str:
    """Returns an unencrypted private key with encryption.

    Raises:
        ConfigurationError: the key is malformed.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        found = load_pem_private_key(key.encode(), None)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"cluster {alias}: the client's private key can't be used: malformed. Check {alias}.ssl.keystore.*"
        ) from None
    encryption = BestAvailableEncryption(password.encode())
    return found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def decrypted(alias: str, key: str, password: str) -> str:
    """Returns an encrypted private key without its encryption.

    Raises:
        ConfigurationError: the password is not that of the key.
    """
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        found = load_pem_private_key(key.encode(), password.encode())
    except ValueError:
        raise ConfigurationError(f"property {alias}.ssl.key.password is not the password of the client's key") from None
    return found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _block(label: str, body: str) -> str:
    lines = textwrap.fill("".join(body.split()), 64)
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
