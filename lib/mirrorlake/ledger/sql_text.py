"""Values as SQL text, for statements that are put together from constants."""

from __future__ import annotations

from collections.abc import Iterable


def literal(value: str) -> str:
    """Quotes a string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(values: Iterable[str]) -> str:
    """Quotes strings, separated by commas, such as for IN."""
    return ", ".join(map(literal, values))
