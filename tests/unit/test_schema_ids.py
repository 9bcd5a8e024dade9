"""What a schema registry answers, and which of it is about a record."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from mirrorlake.config.properties import Properties
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.errors import SourceError
from mirrorlake.transforms.schema_ids import FAILED_S, RegistryClient, SchemaIdError, SchemaIds

JSON, HTML = "application/json", "text/html"
UNKNOWN = (404, JSON, b'{"error_code": 40403, "message": "Schema 7 not found"}')


class Registry(ThreadingHTTPServer):
    """Gives the same answer to each request; `seen` has the headers of all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answer: tuple[int, str, bytes] = UNKNOWN
        self.seen: list[Any] = []


class Answering(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.seen.append(self.headers)
        code, kind, body = self.server.answer
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code // 100 == 3:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def registry_of(made: Registry, user_info: str = "") -> SchemaRegistry:
    values = {"clusters": "a, b", "a.schema.registry.url": f"http://127.0.0.1:{made.server_port}"}
    values |= {"a.schema.registry.basic.auth.user.info": user_info} if user_info else {}
    found = SchemaRegistry.of(Properties(values), "a", "source")
    assert found is not None
    return found


def test_an_id_that_the_registry_does_not_know_is_about_the_record(registry: Registry) -> None:
    made = registry_of(registry)
    assert RegistryClient(made).schema(7) is None
    with pytest.raises(SchemaIdError, match="schema id 7 is not in the registry of cluster a"):
        SchemaIds(made, made).translated(b"\0\0\0\0\7x", "t-value")


@pytest.mark.parametrize(
    ("answer", "may_pass"),
    [
        ((200, HTML, b"<h1>Maintenance</h1>"), True),
        ((404, HTML, b"<h1>nginx</h1>"), True),
        ((404, JSON, b'{"message": "no such route"}'), True),
        ((200, JSON, b'["a list"]'), True),
        ((503, HTML, b""), True),
        ((401, HTML, b"who are you?"), True),
        ((401, JSON, b'{"error_code": 40101}'), False),
        ((301, HTML, b""), False),
    ],
)
def test_the_answer_of_a_proxy_is_about_no_record(
    registry: Registry, answer: tuple[int, str, bytes], may_pass: bool
) -> None:
    registry.answer = answer
    for ask in (lambda client: client.schema(7), lambda client: client.register("t-value", {"schema": "{}"})):
        with pytest.raises(SourceError, match=r"answers \d+ to (GET|POST)") as caught:
            ask(RegistryClient(registry_of(registry)))
        assert caught.value.retriable == may_pass
    assert len(registry.seen) == 2, "a redirect is not followed: it may lead the password elsewhere"


def test_a_password_may_have_any_character(registry: Registry) -> None:
    assert RegistryClient(registry_of(registry, "ann:p\u20acss")).schema(7) is None
    assert registry.seen[0]["Authorization"].startswith("Basic ")


def test_an_id_that_is_not_known_is_asked_for_once_in_a_while(registry: Registry) -> None:
    made, now_s = registry_of(registry), [0.0]
    ids = SchemaIds(made, made, clock=lambda: now_s[0])
    for number in (7, 7, 8, 7, 8):
        with pytest.raises(SchemaIdError, match=f"schema id {number} is not"):
            ids.translated(b"\0\0\0\0%cx" % number, "t-value")
    assert len(registry.seen) == 2
    now_s[0] += FAILED_S
    with pytest.raises(SchemaIdError):
        ids.translated(b"\0\0\0\0\7x", "t-value")
    assert len(registry.seen) == 3, "it may have been registered since"
