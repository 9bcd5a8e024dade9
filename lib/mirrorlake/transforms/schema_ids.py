"""Translates schema ids in keys and values between the schema registries of source and target.

Both registries assign their own id to the same schema. Confluent's wire format is a zero byte, the id in four bytes,
the data. The schema is looked up by its id in the source's registry. It is then registered in the target's registry
under the subject of the remote topic (TopicNameStrategy: `<topic>-key`, `<topic>-value`). The registration returns the
existing id if the schema is already known. This id replaces the four bytes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import requests
from requests.auth import HTTPBasicAuth

from mirrorlake.config import secret_reference
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError

MAGIC = 0
PREFIX = struct.Struct(">bI")  # magic byte and id
TIMEOUT_S = 10
FAILED_S, MOST_FAILED = 60.0, 10_000
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
OK, NOT_FOUND = 200, 404
UNKNOWN_ID = 40_403  # the code of an error in the body of a 404; others come from a gateway
OURS_TO_CORRECT = frozenset(range(400, 500)) - {NOT_FOUND, 408, 429}  # request timeout, too many requests
REDIRECTS = range(300, 400)


class SchemaIdError(ValueError):
    """Raised for a record whose schema id can't be translated."""


class RegistryClient:
    """Sends requests to one schema registry (Confluent's REST interface)."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._session = requests.Session()

    def schema(self, schema_id: int) -> dict[str, object] | None:
        """Returns a schema in the registry's form (schema, schemaType, references), or None if the id is unknown."""
        return self._ask("GET", f"/schemas/ids/{schema_id}")

    def register(self, subject: str, schema: dict[str, object]) -> int:
        """Registers a schema under a subject and returns its id; returns the existing id if it is registered already.

        Raises:
            SourceError, TargetError: the registry can't be reached, or refuses the schema (for example, as incompatible
            with the subject's earlier schemas).
        """
        answer = self._ask("POST", f"/subjects/{requests.utils.quote(subject, safe='')}/versions", schema)
        if answer is None:
            raise self._error(f"does not register the schema of subject {subject}")
        if not isinstance(answer.get("id"), int):
            raise self._error(f"gives no id to the schema of subject {subject}", retriable=True)
        return int(str(answer["id"]))

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, object] | None:
        user, _, password = (
            secret_reference.resolve(
                f"{self._registry.alias}.schema.registry.basic.auth.user.info", self._registry.user_info
            )
            .strip()  # a mounted file ends with a line end
            .partition(":")
        )
        auth = HTTPBasicAuth(user.encode(), password.encode()) if user else None  # as text, only Latin-1 is possible
        send = partial(
            self._session.request,
            method,
            self._registry.url + path,
            json=body,
            auth=auth,
            timeout=TIMEOUT_S,
            allow_redirects=False,  # a POST would become a GET, and the credentials go elsewhere
            headers={"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE},
        )
        try:
            response = _sent(send)
        except requests.RequestException as error:
            raise self._error(f"can't be reached ({type(error).__name__})", retriable=True) from None
        status, answer = response.status_code, _object(response)
        if status == NOT_FOUND and answer is not None and answer.get("error_code") == UNKNOWN_ID:
            return None
        if status != OK or answer is None:
            what = f"answers {status} to {method} {path}: {response.text.strip()[:300]}"
            is_ours = status in OURS_TO_CORRECT and answer is not None  # else it is a proxy's answer
            raise self._error(what, retriable=not is_ours and status not in REDIRECTS)
        return answer

    def _error(self, what: str, *, retriable: bool = False) -> MirrorlakeError:
        kind = SourceError if self._registry.side == "source" else TargetError
        return kind(
            f"the schema registry of cluster {self._registry.alias} ({self._registry.url}) {what}. Check "
            f"{self._registry.alias}.schema.registry.url, its user info and the schemas",
            retriable=retriable,
        )


def _sent(send: Callable[[], requests.Response]) -> requests.Response:
    """Sends a request; once more if the registry has closed the connection, which it may do to an idle one."""
    try:
        return send()
    except requests.Timeout:
        raise
    except requests.ConnectionError:
        return send()


def _object(response: requests.Response) -> dict[str, object] | None:
    """Returns the JSON object of an answer; None if it has none, as a page of a proxy."""
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


class SchemaIds:
    """Maps the schema ids of the source's registry to those of the target's.

    Caches each id, and for FAILED_S the reason why it has no counterpart.
    """

    def __init__(
        self, source: SchemaRegistry, target: SchemaRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._target = RegistryClient(source), RegistryClient(target)
        self._source_alias = source.alias
        self._known: dict[tuple[int, str], int] = {}
        self._failed: dict[tuple[int, str], tuple[float, str]] = {}  # until when, and why
        self._clock = clock

    def translated(self, data: bytes | None, subject: str) -> bytes | None:
        """Replaces the schema id in bytes of the wire format by the target's id of the same schema; null stays null.

        Raises:
            SchemaIdError: the bytes have another format, or the source's registry does not know the id; the message
                says which.
            SourceError, TargetError: a registry can't be reached, or refuses the schema.
        """
        if data is None:
            return None
        if len(data) < PREFIX.size or data[0] != MAGIC:
            raise SchemaIdError("the data does not begin with a zero byte and a schema id of four bytes")
        _, schema_id = PREFIX.unpack_from(data)
        key = schema_id, subject
        if key not in self._known:
            until, why = self._failed.get(key, (0.0, ""))
            if self._clock() < until:
                raise SchemaIdError(why)
            try:
                self._known[key] = self._look_up(schema_id, subject)
            except SchemaIdError as error:
                if len(self._failed) >= MOST_FAILED:  # of data that have no schema id, each may look like another one
                    self._failed.clear()
                self._failed[key] = self._clock() + FAILED_S, str(error)
                raise
        return PREFIX.pack(MAGIC, self._known[key]) + data[PREFIX.size :]

    def _look_up(self, schema_id: int, subject: str) -> int:
        schema = self._source.schema(schema_id)
        if schema is None:
            raise SchemaIdError(f"schema id {schema_id} is not in the registry of cluster {self._source_alias}")
        if schema.get("references"):
            raise SchemaIdError(
                f"schema id {schema_id} refers to other schemas, which mirrorlake does not register. Register it on "
                "the target with the same id, and set schema.ids = keep"
            )
        wanted = {name: schema[name] for name in ("schema", "schemaType") if schema.get(name)}
        return self._target.register(subject, wanted)
