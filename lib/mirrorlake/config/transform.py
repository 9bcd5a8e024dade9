"""A transform of the records of some topics: a filter and new contents, written as Spark SQL in the property file.

This module reads the configuration. `transforms.evaluate` runs it, and `transforms.validate` refuses expressions that
can't be run.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass

from mirrorlake.config.mirrorlake_options import FORMATS, ON_ERROR, SCHEMA_IDS, TRANSFORM
from mirrorlake.config.name_filter import NameFilter, split_list
from mirrorlake.config.properties import Scope
from mirrorlake.errors import ConfigurationError

TRANSFORMS, PREFIX = "mirrorlake.transforms", "mirrorlake.transform."
NAME = re.compile(r"[A-Za-z0-9_-]+")

WHERE, KEY, VALUE, HEADERS, TIMESTAMP, PARTITION = "where", "key", "value", "headers", "timestamp", "partition"
EXPRESSIONS = (WHERE, KEY, VALUE, HEADERS, TIMESTAMP, PARTITION)
SIDES = (KEY, VALUE)
BYTES, JSON, AVRO, CONFLUENT_AVRO = FORMATS
STOP, DEAD_LETTER = ON_ERROR
KEEP, TRANSLATE = SCHEMA_IDS
KNOWN = tuple(option.name.removeprefix(f"{PREFIX}<name>.") for option in TRANSFORM)


@dataclass(frozen=True)
class Format:
    """The format in which keys or values are read: `bytes` (not at all), `json`, `avro`, or `confluent-avro` (with the
    registry's five bytes in front).

    Args:
        name: one of FORMATS.
        schema: DDL or a type of Spark for json, the writer's schema in JSON for avro.
    """

    name: str = BYTES
    schema: str = ""


@dataclass(frozen=True)
class Transform:
    """The transform of the records of the topics that `topics` takes. Expressions are Spark SQL. An empty expression
    changes nothing.

    Attributes:
        where: a record for which this is not true is left out.
        key, value: STRING or BINARY.
        headers: ARRAY<STRUCT<key: STRING, value: BINARY>>.
        timestamp: TIMESTAMP, or BIGINT in ms.
        partition: INT, the partition on the target.
        key_format, value_format: the formats by which `key_data` and `value_data` are read.
        translated_ids: the sides (`key`, `value`) whose schema ids become those of the target's registry, after the
            expressions.
        on_error: whether a record that can't be transformed stops the flow (`stop`), or goes to the dead-letter topic
            (`dead-letter`).
        compression_type: the compression of the batches that are written.
    """

    name: str
    topics: NameFilter
    where: str = ""
    key: str = ""
    value: str = ""
    headers: str = ""
    timestamp: str = ""
    partition: str = ""
    key_format: Format = Format()
    value_format: Format = Format()
    translated_ids: tuple[str, ...] = ()
    on_error: str = STOP
    compression_type: str = "lz4"

    def property_name(self, part: str) -> str:
        """Names the property of a part, such as `value` or `value.format`."""
        return f"{PREFIX}{self.name}.{part}"

    def describe(self) -> str:
        """Renders the transform as in a property file, for people."""
        lines = {"topics": ", ".join(self.topics.include), **self.expressions}
        for side, how in self.formats.items():
            lines |= {f"{side}.format": how.name, f"{side}.schema": how.schema}
        lines |= {f"{side}.schema.ids": TRANSLATE for side in self.translated_ids}
        lines |= {"on.error": self.on_error, "compression.type": self.compression_type}
        return "\n".join(f"{self.property_name(part)} = {text}" for part, text in lines.items())

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions that the file has, by part, in the order of their evaluation."""
        return {part: text for part in EXPRESSIONS if (text := getattr(self, part))}

    @property
    def formats(self) -> dict[str, Format]:
        """The formats of the sides (`key`, `value`) that are decoded."""
        return {side: found for side in SIDES if (found := getattr(self, f"{side}_format")).name != BYTES}

    @classmethod
    def parse(cls, scope: Scope, name: str) -> Transform:
        """Reads the transform of a name, as a flow sees it. `transforms.validate` checks what only a Spark session can
        tell.

        Raises:
            ConfigurationError: a property is missing, unknown, empty or contradictory.
        """
        prefix = f"{PREFIX}{name}."
        given = scope.below(prefix)
        for part, text in sorted(given.items()):
            _require_sound(scope.flow, f"{prefix}{part}", part, text)
        if "topics" not in given:
            raise ConfigurationError(
                f"flow {scope.flow}: property {prefix}topics is missing. Set it to the topics of transform {name}: "
                "names and regexes, separated by commas"
            )
        if not (topics := split_list(given["topics"])):
            raise ConfigurationError(
                f"flow {scope.flow}: property {prefix}topics is '{given['topics']}', which names no topic. Set it to "
                f"the topics of transform {name}"
            )
        transform = cls(
            name,
            NameFilter(f"{prefix}topics", topics),
            where=given.get(WHERE, ""),
            key=given.get(KEY, ""),
            value=given.get(VALUE, ""),
            headers=given.get(HEADERS, ""),
            timestamp=given.get(TIMESTAMP, ""),
            partition=given.get(PARTITION, ""),
            key_format=_format(scope, f"{prefix}{KEY}."),
            value_format=_format(scope, f"{prefix}{VALUE}."),
            translated_ids=tuple(side for side in SIDES if scope.read(f"{prefix}{side}.schema.ids") == TRANSLATE),
            on_error=scope.read(f"{prefix}on.error"),
            compression_type=scope.read(f"{prefix}compression.type"),
        )
        if not transform.expressions and not transform.formats and not transform.translated_ids:
            raise ConfigurationError(
                f"flow {scope.flow}: transform {name} changes nothing. Set at least one of "
                f"{', '.join(f'{prefix}{part}' for part in EXPRESSIONS)}"
            )
        return transform

    @classmethod
    def parse_all(cls, scope: Scope) -> tuple[Transform, ...]:
        """Reads the transforms that a flow names in mirrorlake.transforms, in that order; see `parse`."""
        names = scope.read(TRANSFORMS)
        for name in names:
            if not NAME.fullmatch(name):
                raise ConfigurationError(
                    f"flow {scope.flow}: property {TRANSFORMS} names '{name}'; allowed in a name are letters, digits, "
                    "_ and -"
                )
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ConfigurationError(f"flow {scope.flow}: property {TRANSFORMS} names {', '.join(doubled)} twice")
        return tuple(cls.parse(scope, name) for name in names)

    @staticmethod
    def unused(scope: Scope) -> tuple[str, ...]:
        """Gives a warning for each transform that is configured although no flow of the file names it."""
        flows = (scope.properties.scope(flow) for flow in scope.properties.flows)
        named = {name for flow in flows for name in flow.read(TRANSFORMS)}
        configured = {name.partition(".")[0] for name in scope.below(PREFIX)}
        return tuple(
            f"transform {name} is configured, but no flow names it in {TRANSFORMS}; it has no effect"
            for name in sorted(configured - named)
        )


def _require_sound(flow: str, name: str, part: str, text: str) -> None:
    if part not in KNOWN:
        near = difflib.get_close_matches(part, KNOWN, 1)
        raise ConfigurationError(
            f"flow {flow}: property {name} is unknown"
            + (f"; did you mean {near[0]}?" if near else ".")
            + f" Allowed are {', '.join(KNOWN)}"
        )
    if not text:
        raise ConfigurationError(f"flow {flow}: property {name} is empty; leave it out, or give it a value")
    if "${" in text:
        reference = f"${{{text.partition('${')[2].partition('}')[0]}}}"
        raise ConfigurationError(
            f"flow {flow}: property {name} holds the reference {reference}. Remove the reference: Spark would put in "
            "the value of a variable or of its own configuration, and plans and records would show it"
        )


def _format(scope: Scope, prefix: str) -> Format:
    name, schema = scope.read(f"{prefix}format"), scope.read(f"{prefix}schema")
    if bool(schema) != (name != BYTES):
        wrong = (
            f"is missing, but {prefix}format = {name} needs a schema"
            if name != BYTES
            else f"has no effect: set {prefix}format to the format that the schema describes"
        )
        raise ConfigurationError(
            f"flow {scope.flow}: property {prefix}schema {wrong} (DDL for json, a schema in JSON for avro and "
            "confluent-avro)"
        )
    if name in (AVRO, CONFLUENT_AVRO):
        try:
            json.loads(schema)
        except ValueError as error:
            raise ConfigurationError(
                f"flow {scope.flow}: property {prefix}schema is '{schema}', which is not JSON: {error}; allowed is an "
                "Avro schema"
            ) from None
    return Format(name, schema)
