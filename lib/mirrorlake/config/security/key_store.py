"""Java's key stores, read as PEM for the clients that don't run on Java.

PKCS12 is read by `cryptography`. JKS is Java's own format: `keytool` converts it, which is there wherever Spark runs.
(The Python readers of JKS have had no release for years.) No password is in an argument, as these are seen by everybody
on the machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mirrorlake.config.security import pem
from mirrorlake.errors import ConfigurationError

JKS_MAGIC, JCEKS_MAGIC, PKCS12_BEGIN = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30"
KEYTOOL_TIMEOUT_S = 60
ENTRY = re.compile(r"^Alias name: (.*)\n(?:Creation date: .*\n)?Entry type: (\w+)", re.MULTILINE)
CACHED = 16  # stores; a process reads a handful


@dataclass(frozen=True, repr=False)
class Store:
    """A key store or trust store in a file.

    Attributes:
        alias: the cluster that it is for.
        side: `keystore` or `truststore`, as in the properties.
        path: the file.
        kind: JKS, PKCS12 or PEM. Java reads PKCS12 as JKS, too.
        password: the password of the store; empty for none.
        key_password: the password of the key in it; empty if it is that of the store.
        version: what changes with the file.
    """

    alias: str
    side: str
    path: str
    kind: str
    password: str
    key_password: str = ""
    version: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Returns the property with its location, for messages."""
        return self.property("location")

    def property(self, name: str) -> str:
        """Returns the full name of one of its properties."""
        return f"{self.alias}.ssl.{self.side}.{name}"


def read_text(store: Store) -> str:
    """Reads a PEM file.

    Raises:
        ConfigurationError: it can't be read.
    """
    return _bytes(store).decode("ascii", "replace")


def trusted(store: Store) -> str:
    """Returns the certificates of a trust store.

    Raises:
        ConfigurationError: it can't be read, its password is wrong, or it holds none.
    """
    return _trusted(_of_now(store))


def identity(store: Store) -> tuple[str, str, str]:
    """Returns the certificate chain of a key store, its key, and a password that the key has in this process only.

    Raises:
        ConfigurationError: the store can't be read, a password is wrong, or it holds no key.
    """
    return _identity(_of_now(store))


@lru_cache(CACHED)
def _trusted(store: Store) -> str:
    if not _is_jks(store):
        _, chain = _pkcs12(store, _bytes(store), store.password)
        return pem.certificates(store.name, chain)
    return pem.certificates(store.name, _keytool(store, "-list", "-rfc", *_opening(store)).decode("ascii", "replace"))


@lru_cache(CACHED)
def _identity(store: Store) -> tuple[str, str, str]:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    if _is_jks(store):
        own = secrets.token_urlsafe(24)
        key, chain = _pkcs12(store, _converted(store, own), own)
    else:
        if store.key_password not in ("", store.password):
            raise ConfigurationError(
                f"property {store.name}: in a PKCS12 store, the key has the store's password. Set "
                f"{store.alias}.ssl.key.password to the same, or remove it"
            )
        key, chain = _pkcs12(store, _bytes(store), store.password)
    if key is None:
        raise ConfigurationError(f"property {store.name}: {store.path} holds no private key")
    password = secrets.token_urlsafe(24)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())).decode()
    return pem.certificates(store.name, chain), text, password


def _pkcs12(store: Store, data: bytes, password: str) -> tuple[Any, str]:
    """Returns the key of a PKCS12 store, None if it has none, and all of its certificates, the key's first."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        found = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise ConfigurationError(
            f"property {store.name}: {store.path} is not a {store.kind} store, or its password is not that of "
            f"{store.property('password')}"
        ) from None
    own = [found.cert] if found.cert else []
    chain = [one.certificate.public_bytes(Encoding.PEM).decode() for one in (*own, *found.additional_certs)]
    return found.key, "".join(chain)


def _is_jks(store: Store) -> bool:
    data = _bytes(store)
    if data.startswith((JKS_MAGIC, JCEKS_MAGIC)) and store.kind == "JKS":
        return True
    if data.startswith(PKCS12_BEGIN):
        return False
    is_pem = b"-----BEGIN" in data
    raise ConfigurationError(
        f"property {store.name}: {store.path} is not a {store.kind} store. "
        + f"Set {store.property('type')} to {'PEM' if is_pem else 'what it is'}"
    )


def _converted(store: Store, password: str) -> bytes:
    """Returns the only key of a JKS store as a PKCS12 store with another password."""
    listed = _keytool(store, "-list", "-v", *_opening(store)).decode("utf-8", "replace")
    aliases = [alias for alias, kind in ENTRY.findall(listed) if kind == "PrivateKeyEntry"]
    if len(aliases) != 1:
        raise ConfigurationError(
            f"property {store.name}: {store.path} holds {len(aliases)} private keys. Leave one in it"
        )
    if aliases[0].startswith("-"):  # -J... would be an option of the JVM
        raise ConfigurationError(
            f"property {store.name}: the alias of the key in {store.path} begins with '-'. Rename it with: keytool "
            "-changealias"
        )
    with tempfile.TemporaryDirectory(prefix="mirrorlake-") as directory:  # 0700
        target = Path(directory) / "store.p12"
        arguments = ("-importkeystore", "-noprompt", "-srckeystore", _absolute(store), "-srcalias", aliases[0])
        passwords = ("-srcstorepass:env", "STORE", "-srckeypass:env", "KEY", "-deststorepass:env", "OWN")
        _keytool(
            store, *arguments, *passwords, "-destkeystore", str(target), "-deststoretype", "PKCS12",
            OWN=password, KEY=store.key_password or store.password,
        )  # fmt: skip
        return target.read_bytes()


def _opening(store: Store) -> tuple[str, ...]:
    opening = ("-keystore", _absolute(store))
    return (*opening, "-storepass:env", "STORE") if store.password else opening


def _absolute(store: Store) -> str:
    """Returns the path of a store, which keytool can't take for an option, as -J... of the JVM."""
    return str(Path(store.path).absolute())


def _keytool(store: Store, *arguments: str, **passwords: str) -> bytes:
    """Runs keytool; its messages are in English, whatever the machine speaks."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("keytool", path=f"{home}/bin") if home else None
    command = found or shutil.which("keytool")
    if not command:
        raise ConfigurationError(
            f"property {store.name}: {store.path} is a JKS store, and there is no keytool here to read it. Install "
            "Java's keytool on each machine, or convert the store: keytool -importkeystore -deststoretype PKCS12"
        )
    ran = subprocess.run(
        [command, "-J-Duser.language=en", *arguments],
        env={**os.environ, "STORE": store.password, **passwords},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=KEYTOOL_TIMEOUT_S,
        check=False,
    )
    if ran.returncode:
        raise ConfigurationError(
            f"property {store.name}: keytool can't read {store.path}. Check the store, its password and that of its key"
        )
    return ran.stdout


def _of_now(store: Store) -> Store:
    try:
        stat = Path(store.path).stat()
    except OSError as error:
        raise _unreadable(store, error) from None
    return replace(store, version=(stat.st_mtime_ns, stat.st_size, stat.st_ino))


def _bytes(store: Store) -> bytes:
    try:
        return Path(store.path).read_bytes()
    except OSError as error:
        raise _unreadable(store, error) from None


def _unreadable(store: Store, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"property {store.name}: {store.path} can't be read here: {error.strerror}. The file must be on the driver and "
        "on each worker"
    )
