"""OAuth tokens of a client, for kafka-python and librdkafka: fetched from a token endpoint, kept while they last.

Sources: RFC 6749 4.4 (client credentials), KIP-255 and KIP-768, `HttpJwtRetriever` of Kafka 4.3.0. Neither tokens nor
secrets are in any message.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from mirrorlake.config.security.login import ClientCredentials, UnsecuredToken

if TYPE_CHECKING:
    import requests

LOG = logging.getLogger(__name__)
USED_SHARE = 0.8  # of a token's life, as sasl.login.refresh.window.factor of the Java client
PATIENCE_S = 1.0  # with a renewal, while the present token is good
ANSWER_BYTES = 256 << 10
ERROR_CHARACTERS = 60
OK, TOO_MANY = 200, 429
BROKEN = 500  # from this status on, the endpoint is in trouble, and may be well later


class TokenError(kafka.errors.KafkaConnectionError):  # type: ignore[misc]  # kafka-python has no types
    """Raised when the token endpoint does not answer, or is in trouble."""


class NoTokenError(kafka.errors.SaslAuthenticationFailedError):  # type: ignore[misc]  # kafka-python has no types
    """Raised when the token endpoint rejects the client, or answers with what is not a token. It is not asked again."""


@dataclass(frozen=True, repr=False)
class Token:
    """A token.

    Attributes:
        text: the token itself.
        principal: who it is for.
        expires_at_s: the end of its life, in seconds since 1970.
        renew_at_s: from when on a new one is fetched.
    """

    text: str
    principal: str
    expires_at_s: float
    renew_at_s: float


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """The tokens of one login. Thread-safe, as librdkafka asks from a thread of its own.

    Args:
        login: where tokens come from.
        fetch: makes a new token.
        clock: the time, in seconds since 1970.
    """

    def __init__(
        self,
        login: ClientCredentials | UnsecuredToken,
        fetch: Callable[[Any, float], Token],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._login, self._fetch, self._clock = login, fetch, clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renewal: threading.Thread | None = None

    def token(self) -> str:
        """Returns a token that is valid now.

        Raises:
            TokenError, NoTokenError: there is none.
        """
        return self._present().text

    def extensions(self) -> dict[str, str]:
        """Returns the SASL extensions that go with each token."""
        return dict(self._login.extensions)

    def for_librdkafka(self, _config: str = "") -> tuple[str, float, str, dict[str, str]]:
        """Returns token, end of its life, principal and extensions, as the `oauth_cb` of confluent-kafka."""
        found = self._present()
        return found.text, found.expires_at_s, found.principal, self.extensions()

    def _present(self) -> Token:
        with self._lock:
            now, known = self._clock(), self._token
            if known and now < known.renew_at_s:
                return known
            if not known or now >= known.expires_at_s:
                self._token = known = self._fetch(self._login, now)
                return known
            if not self._renewal or not self._renewal.is_alive():
                self._renewal = threading.Thread(target=self._renew, args=(now,), daemon=True)
                self._renewal.start()
                self._renewal.join(PATIENCE_S)
            return self._token or known

    def _renew(self, now_s: float) -> None:
        """Replaces a token that is still good, in a thread: an endpoint that hangs must hold up nobody who has one."""
        try:
            self._token = self._fetch(self._login, now_s)
        except (TokenError, NoTokenError) as error:
            LOG.warning("%s; the present token is used on", error)


@lru_cache(16)
def provider(login: ClientCredentials | UnsecuredToken) -> TokenProvider:
    """Returns the provider of this process for a login; equal logins share one, and its token."""
    return TokenProvider(login, fetched if isinstance(login, ClientCredentials) else unsecured)


def fetched(login: ClientCredentials, now_s: float) -> Token:
    """Fetches a token for client credentials. Redirects are not followed, as they would carry the secret elsewhere.

    Raises:
        TokenError, NoTokenError: see there.
    """
    import requests  # a tenth of a second of each task that needs no token

    names = (login.client_id, login.client_secret)
    user, secret = (quote_plus(name) for name in names) if login.encodes else names
    credentials = base64.b64encode(f"{user}:{secret}".encode()).decode()
    form = {"grant_type": "client_credentials", **({"scope": login.scope} if login.scope else {})}
    deadline = time.monotonic() + login.connect_timeout_s + login.read_timeout_s
    try:
        with requests.Session() as session:
            session.auth = _no_other_login  # else a .netrc would win
            # A proxy would read the secret, which leaves this machine by https only.
            session.trust_env = not login.token_url.startswith("http://")
            with session.post(
                login.token_url,
                data=form,
                headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
                timeout=(login.connect_timeout_s, login.read_timeout_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                status, body = response.status_code, _body(response, deadline)
    except (requests.RequestException, TimeoutError) as error:
        raise _failed(login, f"can't be reached: {type(error).__name__}") from None
    try:
        answer = json.loads(body)
        if not isinstance(answer, Mapping):
            raise ValueError
    except ValueError:
        raise _failed(login, f"answered {status}, and not with JSON", status) from None
    if status != OK or not answer.get("access_token"):
        reason = str(answer.get("error", "no access_token"))[:ERROR_CHARACTERS]
        shown = "".join(one for one in reason if one.isalnum() or one in "_-. ")
        raise _failed(login, f"answered {status}: {shown}", status)
    return _token(login, answer, now_s)


def unsecured(login: UnsecuredToken, now_s: float) -> Token:
    """Makes a token without a signature."""
    expires_at_s = now_s + login.lifetime_s
    claims: dict[str, object] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in login.claims
    }
    parts = ({"alg": "none"}, {"iat": now_s, "exp": expires_at_s, **claims})
    text = "".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)
    return Token(text, login.principal, expires_at_s, now_s + USED_SHARE * login.lifetime_s)


def _no_other_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _body(response: requests.Response, deadline: float) -> bytes:
    """Reads an answer up to a size and until a deadline, whatever its pace."""
    body = b""
    for part in response.iter_content(4096):
        body += part
        if len(body) > ANSWER_BYTES or time.monotonic() > deadline:
            raise TimeoutError
    return body


def _token(login: ClientCredentials, answer: Mapping[str, Any], now_s: float) -> Token:
    text = str(answer["access_token"])
    claims = _claims(text)
    if claims is None:
        raise _failed(login, "answered with a token that is not a JWT, which Kafka's clients need", 200)
    try:
        expires_at_s = float(claims["exp"])
    except (KeyError, TypeError, ValueError):
        raise _failed(login, "answered with a token without exp", 200) from None
    if expires_at_s <= now_s:
        raise _failed(login, "answered with a token that has expired. Compare the clocks of both machines", 200)
    principal = str(claims.get("sub") or login.client_id)
    return Token(text, principal, expires_at_s, now_s + USED_SHARE * (expires_at_s - now_s))


def _claims(token: str) -> Mapping[str, Any] | None:
    try:
        _, body, _ = token.split(".")
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, binascii.Error):
        return None
    return found if isinstance(found, Mapping) else None


def _failed(login: ClientCredentials, why: str, status: int = 0) -> TokenError | NoTokenError:
    kind = NoTokenError if 0 < status < BROKEN and status != TOO_MANY else TokenError
    return kind(
        f"cluster {login.alias}: the token endpoint {login.token_url.partition('?')[0]} {why}. Check "
        f"{login.alias}.sasl.oauthbearer.token.endpoint.url, client id, secret and scope"
    )
