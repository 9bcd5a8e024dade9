"""Schema ids in keys and values, where both sides have a schema registry of their own: the same schema has another id
there.

Confluent's wire format: a zero, the id in four bytes, the data. A schema is looked up by its id in the source's
registry, registered in the target's under the subject of the remote topic (TopicNameStrategy: `<topic>-key`,
`<topic>-value`), which gives the id it already has there if it is known, and the four bytes are replaced.
"""

from __future__ import annotations

import struct
from typing import Any

import requests

from mirrorlake.config import secret_reference
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError

MAGIC = 0
PREFIX = struct.Struct(">bI")  # magic byte and id
TIMEOUT_S = 10
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
NOT_FOUND = 404
OURS_TO_CORRECT = frozenset(range(400, 500)) - {408, 429}  # a timeout, too many requests


class RegistryClient:
    """Requests to one schema registry (Confluent's REST interface)."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def schema(self, schema_id: int) -> dict[str, object] | None:
        """A schema as registries hand it over (schema, schemaType, references), None if there is none with that id."""
        return self._ask("GET", f"/schemas/ids/{schema_id}")

    def register(self, subject: str, schema: dict[str, object]) -> int:
        """The id of a schema under a subject, which it is registered for if it isn't yet.

        Raises:
            SourceError, TargetError: the registry can't be reached, or refuses the schema (incompatible with the
                subject's earlier ones, say).
        """
        answer = self._ask("POST", f"/subjects/{requests.utils.quote(subject, safe='')}/versions", schema)
        if answer is None:
            raise self._error(
                f"registering a schema for subject {subject} is refused: the registry has no place for it"
            )
        return int(str(answer["id"]))

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, object] | None:
        user, _, password = secret_reference.resolve(
            f"{self._registry.alias}.schema.registry.basic.auth.user.info", self._registry.user_info
        ).partition(":")
        auth = (user, password) if user else None
        try:
            response = requests.request(
                method,
                self._registry.url + path,
                json=body,
                auth=auth,
                timeout=TIMEOUT_S,
                headers={"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE},
            )
        except requests.RequestException as error:
            raise self._error(f"can't be reached ({type(error).__name__})", retriable=True) from None
        if response.status_code == NOT_FOUND and method == "GET":
            return None
        if not response.ok:
            what = f"answers {response.status_code} to {method} {path}: {response.text.strip()[:300]}"
            raise self._error(what, retriable=response.status_code not in OURS_TO_CORRECT)
        return dict(response.json())

    def _error(self, what: str, *, retriable: bool = False) -> MirrorlakeError:
        kind = SourceError if self._registry.side == "source" else TargetError
        return kind(
            f"the schema registry of cluster {self._registry.alias} ({self._registry.url}) {what}. Check "
            f"{self._registry.alias}.schema.registry.url, its user info and the schemas",
            retriable=retriable,
        )


class SchemaIds:
    """The ids of one registry in terms of another; grows with every id that turns up."""

    def __init__(self, source: SchemaRegistry, target: SchemaRegistry) -> None:
        self._source, self._target = RegistryClient(source), RegistryClient(target)
        self._source_alias = source.alias
        self._known: dict[tuple[int, str], int] = {}

    def translated(self, data: bytes | None, subject: str) -> bytes | None:
        """Bytes in the wire format, with the id that their schema has on the target under a subject; null stays null.

        Raises:
            ValueError: they aren't in that format, or the source's registry has no such id; in words.
            SourceError, TargetError: a registry can't be asked, or refuses.
        """
        if data is None:
            return None
        if len(data) < PREFIX.size or data[0] != MAGIC:
            raise ValueError("it does not begin with a zero and the four bytes of a schema id")
        _, schema_id = PREFIX.unpack_from(data)
        if (schema_id, subject) not in self._known:
            self._known[schema_id, subject] = self._look_up(schema_id, subject)
        return PREFIX.pack(MAGIC, self._known[schema_id, subject]) + data[PREFIX.size :]

    def _look_up(self, schema_id: int, subject: str) -> int:
        schema = self._source.schema(schema_id)
        if schema is None:
            raise ValueError(f"schema id {schema_id} is not in the registry of cluster {self._source_alias}")
        if schema.get("references"):
            raise ValueError(
                f"schema id {schema_id} refers to other schemas, which are not carried over; register it on the target "
                "and leave its id as it is"
            )
        wanted = {name: schema[name] for name in ("schema", "schemaType") if schema.get(name)}
        return self._target.register(subject, wanted)
