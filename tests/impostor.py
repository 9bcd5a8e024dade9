"""A server that poses as a broker."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path


class Impostor:
    """A TLS server on this machine with a certificate of its own, which keeps the bytes that clients send."""

    def __init__(self, certificate: Path) -> None:
        self.connections, self.received = 0, b""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        impostor = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                impostor.connections += 1
                self.request.settimeout(5)
                with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as tls:
                    while data := tls.recv(4096):
                        impostor.received += data

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    @contextlib.contextmanager
    def listening(self) -> Iterator[Impostor]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
