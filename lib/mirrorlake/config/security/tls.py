"""What TLS connections trust, and the certificate that they show, as PEM text, whatever kind of store it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorlake.config.security import key_store, pem
from mirrorlake.config.security.key_store import Store
from mirrorlake.errors import ConfigurationError

TRUSTED, CHAIN, KEY = "ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"
KEY_PASSWORD = "ssl.key.password"
PASSWORDS = (KEY_PASSWORD, "ssl.keystore.password", "ssl.truststore.password")


@dataclass(frozen=True, repr=False)
class Tls:
    """The TLS settings of a client.

    Attributes:
        trusted: the certificates to trust; empty for those that the machine trusts.
        chain: the client's certificate and those up to its authority; empty if it shows none.
        key: the key of the client's certificate (PKCS #8).
        key_password: the password of the key; empty if it is not encrypted.
        checks_host: whether the name of the broker must be that in its certificate.
    """

    trusted: str
    chain: str
    key: str
    key_password: str
    checks_host: bool


def check(alias: str, properties: Mapping[str, str]) -> None:
    """Refuses contradictory stores, without reading any. Java refuses the same.

    Raises:
        ConfigurationError: a store is given twice or in part, or a property contradicts its type.
    """
    for side, inline in (("truststore", (TRUSTED,)), ("keystore", (CHAIN, KEY))):
        location, password = f"ssl.{side}.location", f"ssl.{side}.password"
        kind = properties.get(f"ssl.{side}.type", "JKS").upper()
        given = [name for name in inline if properties.get(name)]
        if given and properties.get(location):
            raise _refused(alias, given[0], f"{alias}.{location} is set, too. Remove one of them")
        if given and kind != "PEM":
            raise _refused(alias, given[0], f"it is PEM. Set {alias}.ssl.{side}.type=PEM")
        if given and len(given) < len(inline):
            raise _refused(alias, given[0], f"{', '.join(f'{alias}.{one}' for one in inline)} must be set together")
        if kind == "PEM" and properties.get(password):
            raise _refused(
                alias, password, f"a PEM file has no password of its own. Remove it; a key has {alias}.{KEY_PASSWORD}"
            )
    is_pem = properties.get("ssl.keystore.type", "JKS").upper() == "PEM"
    if properties.get("ssl.keystore.location") and not (is_pem or properties.get("ssl.keystore.password")):
        raise ConfigurationError(f"property {alias}.ssl.keystore.password is missing. Set it to the store's password")


def read(alias: str, values: Mapping[str, str]) -> Tls:
    """Reads the stores that properties name.

    Args:
        alias: the cluster, for messages.
        values: its properties, references resolved.

    Raises:
        ConfigurationError: a store can't be read here, or is not what its type says.
    """
    checks_host = bool(values.get("ssl.endpoint.identification.algorithm", "https"))
    return Tls(_trusted(alias, values), *_identity(alias, values), checks_host)


def java(alias: str, values: Mapping[str, str]) -> dict[str, str]:
    """Renders the properties of TLS for Java; an encrypted PEM key is decrypted, and passwords of no text are left out.

    Java before 19 can't read such a key, as OpenSSL and `cryptography` write it (PBES2, JDK-8231581). It takes a
    password of no text for one, and does not read an unencrypted key or a PEM store with it.

    Args:
        alias: the cluster, for messages.
        values: its properties, references resolved.

    Raises:
        ConfigurationError: the key can't be read.
    """
    given = {name: value for name, value in values.items() if value or name not in PASSWORDS}
    if KEY_PASSWORD not in given or given.get("ssl.keystore.type", "JKS").upper() != "PEM":
        return given
    chain, key, password = _identity(alias, given)
    given = {name: value for name, value in given.items() if name not in ("ssl.keystore.location", KEY_PASSWORD)}
    return {**given, CHAIN: chain, KEY: pem.decrypted(alias, key, password)} if key else given


def _trusted(alias: str, values: Mapping[str, str]) -> str:
    store = _store(alias, "truststore", values)
    if store and store.kind != "PEM":
        return key_store.trusted(store)
    text = key_store.read_text(store) if store else values.get(TRUSTED, "")
    name = store.name if store else f"{alias}.{TRUSTED}"
    return pem.certificates(name, text) if text else ""


def _identity(alias: str, values: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns chain, key and its password."""
    store, password = _store(alias, "keystore", values), values.get(KEY_PASSWORD, "")
    if store and store.kind != "PEM":
        return key_store.identity(store)
    if store:
        text = key_store.read_text(store)
        chain, key, name = text, text, store.name
    else:
        chain, key, name = values.get(CHAIN, ""), values.get(KEY, ""), f"{alias}.{KEY}"
    if not key:
        return "", "", ""
    return pem.certificates(name, chain), pem.private_key(name, key, f"{alias}.{KEY_PASSWORD}", password), password


def _store(alias: str, side: str, values: Mapping[str, str]) -> Store | None:
    if not values.get(f"ssl.{side}.location"):
        return None
    return Store(
        alias=alias,
        side=side,
        path=values[f"ssl.{side}.location"],
        kind=values.get(f"ssl.{side}.type", "JKS").upper(),
        password=values.get(f"ssl.{side}.password", ""),
        key_password=values.get(KEY_PASSWORD, "") if side == "keystore" else "",
    )


def _refused(alias: str, name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"property {alias}.{name} can't be used: {why}")
