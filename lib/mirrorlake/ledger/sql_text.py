"""SQL literals, for statements that are built from constants."""

from __future__ import annotations

from collections.abc import Iterable


def literal(value: str) -> str:
    """Quotes a string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(values: Iterable[str]) -> str:
    """Quotes strings and separates them by commas, as for IN."""
    return ", ".join(map(literal, values))
