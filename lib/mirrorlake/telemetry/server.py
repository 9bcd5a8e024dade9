"""Serves `/metrics` and `/health` of one job over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from mirrorlake.telemetry.health import Health

CLIENT_TIMEOUT_S = 10.0
STOPS_WITHIN_S = 5.0


class Server:
    """An HTTP server in threads of its own. It answers GET only, and reads nothing but the path and the headers.

    Args:
        host: the address to listen on, of IPv4 or IPv6, or a name of this machine. `::` listens on both.
        port: the port; 0 for any.
        registry: the metrics.
        health: the health of the job.

    Raises:
        OSError: the address can't be listened on.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        class Handler(_Handler):
            pass

        Handler.registry, Handler.health = registry, health
        self._server = _server(host, port, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOPS_WITHIN_S)


def _server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> _HTTPServer:
    """Listens on an address; one of IPv6 may be in brackets, as in a URL."""
    family, *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]

    class Bound(_HTTPServer):
        address_family = family

    return Bound((host.strip("[]"), port), handler)


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that does not read must not hold up the end of the job

    def server_bind(self) -> None:
        """Binds without the name of the host: the default asks DNS for it, and a job would wait if that is away."""
        TCPServer.server_bind(self)

    def handle_error(self, *_: Any) -> None:
        """Says nothing of a client that has gone before its answer; the default prints a stack trace."""


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    health: Health
    timeout = CLIENT_TIMEOUT_S
    server_version, sys_version = "mirrorlake", ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, kind, encode(self.registry))
            case "/health":
                report = self.health.report()
                body = json.dumps(report, indent=1).encode() + b"\n"
                self._answer(200 if report["alive"] else 503, "application/json", body)
            case _:
                self._answer(404, "text/plain; charset=utf-8", b"/metrics or /health\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: a scrape every few seconds is no event."""
