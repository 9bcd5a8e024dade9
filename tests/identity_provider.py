"""An OAuth identity provider on the loopback address: a token endpoint for client credentials, and its public keys."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT, SECRET = "mirrorlake", "oauth-canary"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class IdentityProvider:
    """Issues signed tokens for the principal `mirror`.

    Attributes:
        lifetime_s: of the tokens to come.
        issued: the tokens until now.
        secret: the secret that the client must know.
        asked: how often it was asked for one.
        answer: status and body to answer with in the place of a token, if a test sets it.
    """

    def __init__(self) -> None:
        self.lifetime_s, self.issued, self.secret = 3600.0, [], SECRET
        self.asked, self.answer = 0, None  # type: tuple[int, tuple[int, bytes] | None]
        self.headers: dict[str, str] = {}
        self._key = rsa.generate_private_key(65537, 2048)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, json.dumps(provider._keys()).encode())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._send(*provider._answer(self.headers.get("Authorization", ""), form))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **provider.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def token(self, **claims: object) -> str:
        """Returns a signed token."""
        now = time.time()
        body = {"iss": self.url, "aud": "kafka", "sub": "mirror", "iat": now, "exp": now + self.lifetime_s, **claims}
        signed = ".".join(
            encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT", "kid": "k"}, body)
        )
        return f"{signed}.{encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    @contextmanager
    def running(self) -> Iterator[IdentityProvider]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        modulus, exponent = (
            encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "kid": "k", "alg": "RS256", "use": "sig", "n": modulus, "e": exponent}]}

    def _answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        self.asked += 1
        if self.answer:
            return self.answer
        expected = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
        if authorization != f"Basic {expected}" or form.get("grant_type") != ["client_credentials"]:
            return 401, b'{"error": "invalid_client"}'
        self.issued.append(self.token())
        return 200, json.dumps({"access_token": self.issued[-1], "token_type": "bearer", "expires_in": 60}).encode()
