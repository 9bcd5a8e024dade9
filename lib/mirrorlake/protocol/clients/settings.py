"""The settings of the two Python clients, librdkafka and kafka-python, for one connection.

Both get certificates and keys as they are in memory, so a file that is replaced is noticed by the next new connection.
Equal settings are equal objects: whoever holds a client can tell whether it has the present ones.
"""

from __future__ import annotations

import os
import secrets
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from mirrorlake.config.connection import Connection
from mirrorlake.config.security import pem
from mirrorlake.config.security.login import Password
from mirrorlake.config.security.tls import Tls
from mirrorlake.errors import ConfigurationError
from mirrorlake.protocol.clients.oauth_tokens import provider


def librdkafka(connection: Connection, **settings: Any) -> dict[str, Any]:
    """Renders the configuration of a confluent-kafka client; `settings` win.

    Raises:
        ConfigurationError: a reference leads nowhere, or a store can't be read here.
    """
    values = connection.resolved()
    rendered: dict[str, Any] = {
        "bootstrap.servers": values["bootstrap.servers"],
        "security.protocol": connection.security_protocol,
    }
    login, tls = connection.login(), connection.tls()
    if login:
        rendered["sasl.mechanism"] = connection.mechanism
        if isinstance(login, Password):
            rendered |= {"sasl.username": login.username, "sasl.password": login.password}
        else:
            rendered["oauth_cb"] = provider(login).for_librdkafka
    if tls:
        _context(connection.alias, tls)  # librdkafka does not name what it can't read
        rendered["ssl.endpoint.identification.algorithm"] = "https" if tls.checks_host else "none"
        rendered |= {"ssl.ca.pem": tls.trusted} if tls.trusted else {}
        rendered |= {"ssl.certificate.pem": tls.chain, "ssl.key.pem": tls.key} if tls.key else {}
        rendered |= {"ssl.key.password": tls.key_password} if tls.key_password else {}
    return {**rendered, **settings}


def kafka_python(connection: Connection, **settings: object) -> dict[str, object]:
    """Renders the configuration of kafka-python's connection manager; `settings` win.

    Raises:
        ConfigurationError: a reference leads nowhere, or a store can't be read here.
    """
    rendered: dict[str, object] = {
        "bootstrap_servers": connection.resolved()["bootstrap.servers"].split(","),
        "security_protocol": connection.security_protocol,
    }
    login, tls = connection.login(), connection.tls()
    if login:
        rendered["sasl_mechanism"] = connection.mechanism
        if isinstance(login, Password):
            name = _sasl_name(login.username) if connection.mechanism.startswith("SCRAM") else login.username
            rendered |= {"sasl_plain_username": name, "sasl_plain_password": login.password}
        else:
            rendered["sasl_oauth_token_provider"] = provider(login)
    if tls:
        rendered["ssl_context"] = _context(connection.alias, tls)
    return {**rendered, **settings}


def _sasl_name(username: str) -> str:
    """Escapes a user name for SCRAM (saslname of RFC 5802), as the other two clients do; kafka-python does not."""
    return username.replace("=", "=3D").replace(",", "=2C")


@lru_cache(16)
def _context(alias: str, tls: Tls) -> ssl.SSLContext:
    """Makes a context of TLS 1.2 and 1.3, as the other two clients have it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host
    try:
        if tls.trusted:
            context.load_verify_locations(cadata=tls.trusted)
        else:
            context.load_default_certs()
        if tls.key:
            _load_identity(context, alias, tls)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"cluster {alias}: the certificates, the key, or its password can't be used: "
            f"{(error.reason or 'malformed').replace('_', ' ').lower()}. Check {alias}.ssl.truststore.*, "
            f"{alias}.ssl.keystore.* and {alias}.ssl.key.password"
        ) from None
    return context


def _load_identity(context: ssl.SSLContext, alias: str, tls: Tls) -> None:
    """Loads certificate and key, for which Python's ssl knows files only: one of this user, deleted at once.

    Its key is encrypted, so that a process that is killed in between leaves nothing of use.
    """
    password = tls.key_password or secrets.token_urlsafe(24)
    key = tls.key if tls.key_password else pem.encrypted(alias, tls.key, password)
    handle, path = tempfile.mkstemp(prefix="mirrorlake-", suffix=".pem")  # 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key + tls.chain)
        context.load_cert_chain(path, password=password)
    finally:
        Path(path).unlink()
