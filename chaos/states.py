"""Decodes the runs and gaps of a record of the offset-syncs topic, by its documentation. Imports nothing of mirrorlake.

docs/design.md, "States", describes the format.
"""

from __future__ import annotations

import base64
import json
from typing import Any


def runs_and_gaps(value: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the offsets of a state's runs and gaps by the names that earlier formats gave them."""
    state = json.loads(value)
    runs, gaps = (_rows(state.get(name) or {}) for name in ("runs", "gaps"))
    for run in runs:
        offsets = run["upstream_end"] = run.get("upstream_end", 0)
        run["downstream_start"] = run.get("downstream_start", 0) + run["upstream_start"]
        run["downstream_end"] = run.get("downstream_end", 0) + offsets + run["downstream_start"]
        run["upstream_end"] += run["upstream_start"]
    for gap in gaps:
        gap["to_offset"] = gap.get("to_offset", 0) + gap["from_offset"]
    return runs, gaps


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    count = columns.pop("rows", 0)
    found = {name: _column(column, count) for name, column in columns.items()}
    return [{name: column[row] for name, column in found.items()} for row in range(count)]


def _column(column: Any, count: int) -> list[Any]:
    if isinstance(column, dict):
        return list(column["values"]) if "values" in column else _column(column["numbers"], count)
    if isinstance(column[0], list):
        return [column[0][number] for number in _column(column[1:], count)]
    planes = [base64.b64decode(plane + "=" * (-len(plane) % 4)) for plane in column[1:]]
    assert all(len(plane) == count for plane in planes), "a column has another number of rows"
    return [column[0] + sum(plane[row] << 8 * digit for digit, plane in enumerate(planes)) for row in range(count)]
