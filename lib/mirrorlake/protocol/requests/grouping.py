"""Groups of what goes into one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def by(key: Callable[[Any], Any], items: Iterable[Any]) -> dict[Any, list[Any]]:
    """Groups items by equal keys."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def portions(items: Iterable[Item], size: Callable[[Item], int], at_most: int) -> Iterator[list[Item]]:
    """Yields items in their order, as many at a time as go into one request.

    Args:
        items: topics or groups, for example.
        size: returns the size of an item, such as the number of records that the controller writes for it, at most.
        at_most: the size of a portion of several items, at most.
    """
    portion, filled = list[Item](), 0
    for item in items:
        if portion and filled + size(item) > at_most:
            yield portion
            portion, filled = [], 0
        portion.append(item)
        filled += size(item)
    if portion:
        yield portion
