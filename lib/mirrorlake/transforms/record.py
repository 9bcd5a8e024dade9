"""A transformed record, as Spark passes it to the copying task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "outcome",
    "reason",
    "key",
    "value",
    "headers",
    "timestamp_ms",
    "target_partition",
)


@dataclass(frozen=True, slots=True)
class TransformedRecord:
    """One record with the columns of `transforms.evaluate.apply`."""

    topic: str
    partition: int
    offset: int
    outcome: str
    reason: str | None
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]] | None
    timestamp_ms: int | None
    target_partition: int | None
