"""The login of a client: a user name and password, or where its OAuth tokens come from.

Sources: the login modules of Kafka 4.3.0, KIP-255 (unsecured tokens), KIP-768 (client credentials) and KIP-1139 (their
properties outside of `sasl.jaas.config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mirrorlake.config.security.jaas import Jaas
from mirrorlake.errors import ConfigurationError

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
URLENCODE = "sasl.oauthbearer.header.urlencode"
TIMEOUTS_MS = {"sasl.login.connect.timeout.ms": "10000", "sasl.login.read.timeout.ms": "10000"}  # as in Java

EXTENSION, UNSECURED_EXTENSION = "extension_", "unsecuredLoginExtension_"
STRING, NUMBER, LIST = (f"unsecuredLogin{kind}Claim_" for kind in ("String", "Number", "List"))
PRINCIPAL, LIFETIME = "unsecuredLoginPrincipalClaimName", "unsecuredLoginLifetimeSeconds"
SCOPE_CLAIM = "unsecuredLoginScopeClaimName"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, repr=False)
class Password:
    """A user name and a password, of PLAIN and SCRAM."""

    username: str
    password: str


@dataclass(frozen=True, repr=False)
class ClientCredentials:
    """The login of a client at an OAuth token endpoint.

    Attributes:
        token_url: the endpoint.
        encodes: True to encode id and secret as in a URL, as RFC 6749 says and most endpoints don't expect.
        extensions: SASL extensions that brokers get with the token (KIP-342).
    """

    alias: str
    token_url: str
    client_id: str
    client_secret: str
    scope: str
    encodes: bool
    extensions: Pairs
    connect_timeout_s: float
    read_timeout_s: float


@dataclass(frozen=True, repr=False)
class UnsecuredToken:
    """The claims of a token without a signature, for tests of brokers.

    Attributes:
        claims: the claims besides `exp` and `iat`.
    """

    principal: str
    claims: tuple[tuple[str, str | float | tuple[str, ...]], ...]
    lifetime_s: float
    extensions: Pairs


Login = Password | ClientCredentials | UnsecuredToken


def password(alias: str, jaas: Jaas) -> Password:
    """Reads user name and password, of PLAIN and SCRAM.

    Raises:
        ConfigurationError: one is missing, or they are those of a delegation token.
    """
    if jaas.options.get("tokenauth", "").lower() == "true":
        raise ConfigurationError(
            f"property {alias}.sasl.jaas.config has tokenauth=true: delegation tokens are not supported. Use the user "
            "name and password of a principal"
        )
    missing = [name for name in ("username", "password") if not jaas.options.get(name)]
    if missing:
        raise ConfigurationError(f"property {alias}.sasl.jaas.config has no {' and no '.join(missing)}")
    return Password(jaas.options["username"], jaas.options["password"])


def oauth(alias: str, jaas: Jaas, values: Mapping[str, str]) -> ClientCredentials | UnsecuredToken:
    """Reads where the tokens of OAUTHBEARER come from.

    Args:
        alias: the cluster.
        jaas: the options of the login module.
        values: the client's properties.

    Raises:
        ConfigurationError: something is missing, or an option is one that not all clients honour.
    """
    if values.get(TOKEN_URL):
        return _client_credentials(alias, jaas, values)
    return _unsecured(alias, jaas)


def client_credentials_jaas(jaas: Jaas, values: Mapping[str, str]) -> Jaas:
    """Returns the login with client id, secret and scope as its options, wherever they stand (KIP-1139)."""
    wanted = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
    options = {name: values.get(outside) or jaas.options.get(name, "") for name, outside in wanted.items()}
    extensions = {name: value for name, value in jaas.options.items() if name.startswith(EXTENSION)}
    return Jaas(jaas.module, jaas.flag, {name: value for name, value in options.items() if value} | extensions)


def _client_credentials(alias: str, jaas: Jaas, values: Mapping[str, str]) -> ClientCredentials:
    _require_known(alias, jaas, ("clientId", "clientSecret", "scope"), (EXTENSION,))
    try:
        url = urlsplit(values[TOKEN_URL])
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("https", "http") or not url.hostname or url.username or url.password:
        raise ConfigurationError(
            f"property {alias}.{TOKEN_URL} is not an https address without credentials. Set it to the token endpoint "
            "of the identity provider"
        )
    if url.scheme == "http" and url.hostname not in LOOPBACK:
        raise ConfigurationError(
            f"property {alias}.{TOKEN_URL} begins with http: the client's secret would cross the network unencrypted. "
            "Use an https address"
        )
    options = client_credentials_jaas(jaas, values).options
    client_id, client_secret = options.get("clientId", ""), options.get("clientSecret", "")
    if not (client_id and client_secret):
        raise ConfigurationError(
            f"property {alias}.sasl.jaas.config has no clientId or no clientSecret. Set both there, or set "
            f"{alias}.{CLIENT_ID} and {alias}.{CLIENT_SECRET}"
        )
    connect_ms, read_ms = (_number(alias, name, values.get(name) or default) for name, default in TIMEOUTS_MS.items())
    return ClientCredentials(
        alias=alias,
        token_url=values[TOKEN_URL],
        client_id=client_id,
        client_secret=client_secret,
        scope=options.get("scope", ""),
        encodes=values.get(URLENCODE, "").lower() == "true",
        extensions=_below(jaas, EXTENSION),
        connect_timeout_s=connect_ms / 1000,
        read_timeout_s=read_ms / 1000,
    )


def _unsecured(alias: str, jaas: Jaas) -> UnsecuredToken:
    _require_known(alias, jaas, (PRINCIPAL, LIFETIME, SCOPE_CLAIM), (STRING, NUMBER, LIST, UNSECURED_EXTENSION))
    claims: dict[str, str | float | tuple[str, ...]] = dict(_below(jaas, STRING))
    claims |= {name: _number(alias, f"sasl.jaas.config, {NUMBER}{name},", text) for name, text in _below(jaas, NUMBER)}
    claims |= {name: tuple(text[1:].split(text[0])) if text else () for name, text in _below(jaas, LIST)}
    principal = claims.get(jaas.options.get(PRINCIPAL, "sub"))
    if not isinstance(principal, str) or not principal:
        raise ConfigurationError(
            f"property {alias}.{TOKEN_URL} is missing. Set it to the token endpoint of the identity provider. (For "
            f"tests of brokers that take tokens without a signature, set {STRING}sub in {alias}.sasl.jaas.config)"
        )
    lifetime_s = _number(alias, f"sasl.jaas.config, {LIFETIME},", jaas.options.get(LIFETIME, "3600"))
    return UnsecuredToken(principal, tuple(claims.items()), lifetime_s, _below(jaas, UNSECURED_EXTENSION))


def _require_known(alias: str, jaas: Jaas, names: tuple[str, ...], prefixes: tuple[str, ...]) -> None:
    for name in jaas.options:
        if name not in names and not name.startswith(prefixes):
            raise ConfigurationError(
                f"property {alias}.sasl.jaas.config: option {name} is not supported with OAUTHBEARER here. Supported "
                f"are {', '.join((*names, *(f'{prefix}<name>' for prefix in prefixes)))}"
            )


def _below(jaas: Jaas, prefix: str) -> Pairs:
    return tuple((name.removeprefix(prefix), text) for name, text in jaas.options.items() if name.startswith(prefix))


def _number(alias: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"property {alias}.{name} is not a number") from None
