"""Groups of what goes into one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def by(key: Callable[[Any], Any], items: Iterable[Any]) -> dict[Any, list[Any]]:
    """Groups items by equal keys."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
