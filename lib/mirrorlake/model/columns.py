"""Columns: many small records of one kind as a few strings, for JSON that compresses well.

A list of records becomes `{"rows": n, NAME: COLUMN, …}`. A column that has nothing but its field's default is left out,
as is one of differences that has nothing but zeros.

- Whole numbers: `[least, PLANE, …]`. The differences to the least one are written in base 256, and each plane has
  one of their digits, the lowest first, as base64. Equal numbers need no plane.
- Texts of which equal ones follow each other: `{"values": [TEXT, …]}`, as repeated ones compress to next to nothing.
- Other texts: `[[TEXT, …], least, PLANE, …]`: the different texts, and the number of each row's text.
- Numbers some of which are missing: `{"nulls": [row, …], "numbers": [least, …]}`.
- Anything else: `{"values": [VALUE, …]}`.

Some fields are near to others of their record, such as an end to its start. They are written as differences.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from operator import add, attrgetter, ne, sub
from typing import Any

Near = Sequence[tuple[str, str]]  # a field, and the one that it is written as a difference to, in the order of writing
MOST_TEXT = 1 << 15  # characters of a column of values
ANY_TOPIC = "*"  # stands for the source topic in the name of a remote topic, as no topic's name has it


def to_columns(records: Sequence[Any], kind: type, near: Near) -> dict[str, Any]:
    """Writes records of a dataclass as columns.

    Args:
        records: the records.
        kind: their class. A field `target_topic` is written with ANY_TOPIC in the place of the field `topic`.
        near: fields with whole numbers that are written as differences.
    """
    if not records:
        return {}
    found: dict[str, Any] = {one.name: [*map(attrgetter(one.name), records)] for one in fields(kind)}
    for name, base in near:
        found[name] = [*map(sub, found[name], found[base])]
    if "target_topic" in found:
        found["target_topic"] = [
            remote.replace(topic, ANY_TOPIC, 1) if topic else remote
            for remote, topic in zip(found["target_topic"], found["topic"], strict=True)
        ]
    usual = {one.name: one.default for one in fields(kind)} | {name: 0 for name, _ in near}
    left_out = {
        name
        for name, values in found.items()
        if usual[name] is not MISSING
        and all(type(value) is type(usual[name]) and value == usual[name] for value in values)
    }
    return {
        "rows": len(records),
        **{name: _column(values) for name, values in found.items() if name not in left_out},
    }


def from_columns(written: Mapping[str, Any], near: Near) -> list[dict[str, Any]]:
    """Reads records as plain values by field; fields whose column was left out are missing.

    Raises:
        ValueError, TypeError, KeyError: the columns are damaged.
    """
    if not written:
        return []
    rows = int(written["rows"])
    found = {name: _values(column, rows) for name, column in written.items() if name != "rows"}
    for name, base in reversed(near):
        found[name] = [*map(add, found.get(name, [0] * rows), found[base])]
    if "target_topic" in found:
        found["target_topic"] = [
            remote.replace(ANY_TOPIC, topic, 1)
            for remote, topic in zip(found["target_topic"], found["topic"], strict=True)
        ]
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def names(written: Mapping[str, Any]) -> set[str]:
    """Returns the names of the columns."""
    return {*written} - {"rows"}


def _column(values: Sequence[Any]) -> Any:
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return _numbers(values)
    if kinds == {int, type(None)}:
        return {
            "nulls": [row for row, value in enumerate(values) if value is None],
            "numbers": _numbers([value or 0 for value in values]),
        }
    if all(issubclass(kind, str) for kind in kinds):
        words = [*map(str, values)]
        texts = {text: number for number, text in enumerate(dict.fromkeys(words))}
        is_sorted = sum(map(ne, words, words[1:])) + 1 == len(texts)
        if is_sorted and len(texts) > 1 and sum(map(len, words)) <= MOST_TEXT:
            return {"values": words}
        return [[*texts], *_numbers([texts[word] for word in words])]
    return {"values": [*values]}


def _values(column: Any, rows: int) -> list[Any]:
    if isinstance(column, Mapping):
        if "values" in column:
            values = list(column["values"])
            if len(values) != rows:
                raise ValueError(f"{len(values)} values in a column of {rows} rows")
            return values
        numbers: list[Any] = _from_numbers(column["numbers"], rows)
        for row in column["nulls"]:
            numbers[row] = None
        return numbers
    if isinstance(column[0], list):
        return [column[0][number] for number in _from_numbers(column[1:], rows)]
    return _from_numbers(column, rows)


def _numbers(values: Sequence[int]) -> list[Any]:
    least = min(values)
    differences = [value - least for value in values]
    planes = range(0, max(differences).bit_length(), 8)
    return [least, *(_text(bytes(number >> shift & 255 for number in differences)) for shift in planes)]


def _from_numbers(column: Sequence[Any], rows: int) -> list[int]:
    found = [int(column[0])] * rows
    for number, plane in enumerate(column[1:]):
        digits = _bytes(plane)
        if len(digits) != rows:
            raise ValueError(f"{len(digits)} numbers in a column of {rows} rows")
        found = [value + (digit << 8 * number) for value, digit in zip(found, digits, strict=True)]
    return found


def _text(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), validate=True)
