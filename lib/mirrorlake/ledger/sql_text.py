"""SQL text: the one place where values become literals, and names become identifiers.

Delta's parser (4.4.0) does not pass on named parameters. A statement that needs a value therefore contains it as a
literal; a frame is filtered by columns instead, where that is as simple.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

NAME = re.compile(r"\{(\w+)\}")
# Braces: Spark replaces ${...} in each statement, also within literals; ${env:HOME} would become the variable's value.
# PySpark formats statements that name frames in braces.
ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "{": "\\u007b", "}": "\\u007d", "\0": "\\u0000"})


def literal(value: str) -> str:
    """Quotes a string of any content, as Spark reads it unless `spark.sql.parser.escapedStringLiterals` is set."""
    return f"'{value.translate(ESCAPES)}'"


def literals(values: Iterable[str]) -> str:
    """Quotes strings and separates them by commas, as for IN."""
    return ", ".join(map(literal, values))


def identifier(*parts: str) -> str:
    """Quotes a name, such as that of a table with its catalog and schema."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def filled(text: str, word: Callable[[str], str]) -> str:
    """Replaces each name in braces by the SQL text that `word` returns for it."""
    return NAME.sub(lambda found: word(found[1]), text)
