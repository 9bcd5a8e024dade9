"""The filter by which a flow takes topics and groups: MirrorMaker 2's DefaultTopicFilter and DefaultGroupFilter.

A list of names and regexes is joined with `|` and must match the whole name. The exclude list wins. An empty include
list takes nothing. Patterns are Java's. The `regex` package runs them in its version-1 mode, which has features that
Python's own `re` lacks (possessive quantifiers, `\\p{...}`, set intersection). Escapes with another spelling in Java
are translated here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import regex

from mirrorlake.errors import ConfigurationError

QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
ESCAPE = re.compile(r"\\(?:(?P<negated>[pP])\{(?P<property>\w+)\}|k<(?P<name>\w+)>|(?P<letter>.))", re.DOTALL)
# A brace of a Java pattern always begins a repetition, unless it is part of an escape or stands in a class. The `regex`
# package takes an unfinished one as text, or as its own approximate matching, and the pattern would match other names.
ESCAPED = re.compile(r"\\(?:[pPxN]\{[^}]*\}|.)", re.DOTALL)
CLASS = re.compile(r"\[\^?\]?[^\[\]]*\]")
NO_REPETITION = re.compile(r"\{(?!\d+(,\d*)?\})")
# In Java these classes are ASCII, whatever their names say (Pattern without UNICODE_CHARACTER_CLASS).
CLASSES = {
    "w": "A-Za-z0-9_",
    "d": "0-9",
    "s": r" \t\n\x0B\f\r",
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "A-Za-z",
    "Digit": "0-9",
    "Alnum": "A-Za-z0-9",
    "Space": r" \t\n\x0B\f\r",
    "Blank": r" \t",
    "XDigit": "0-9A-Fa-f",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "ASCII": r"\x00-\x7F",
}


def split_list(value: str) -> tuple[str, ...]:
    """Splits a Kafka LIST value at its commas, and drops white space around them."""
    return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)


@lru_cache(maxsize=256)
def compile_patterns(property_name: str, patterns: tuple[str, ...]) -> regex.Pattern[str]:
    """Compiles the patterns of a list into one.

    Raises:
        ConfigurationError: the list is not a valid regular expression.
    """
    joined = "|".join(
        ESCAPE.sub(_from_java, QUOTED.sub(lambda match: regex.escape(match[1], special_only=False), pattern))
        for pattern in patterns
    )
    try:
        if any(map(_has_unfinished_repetition, patterns)):
            raise regex.error("unfinished repetition")
        return regex.compile(joined, regex.VERSION1)
    except regex.error as error:
        hint = " (a comma always separates two patterns, also inside {m,n})" if "{" in joined else ""
        raise ConfigurationError(
            f"property {property_name}: '{', '.join(patterns)}' is not a valid regular expression: {error}{hint}"
        ) from None


def _has_unfinished_repetition(pattern: str) -> bool:
    text, classes = ESCAPED.sub("_", QUOTED.sub("_", pattern)), 1
    while classes:  # one may stand in another
        text, classes = CLASS.subn("_", text)
    return NO_REPETITION.search(text) is not None


def _from_java(escape: re.Match[str]) -> str:
    """Translates one escape sequence of a Java pattern for the `regex` package."""
    if escape["name"]:
        return f"(?P={escape['name']})"
    name = escape["property"] or escape["letter"]
    if name.lower() in ("w", "d", "s") and not escape["property"]:
        return f"[{'^' if name.isupper() else ''}{CLASSES[name.lower()]}]"
    if escape["property"] in CLASSES:
        return f"[{'^' if escape['negated'] == 'P' else ''}{CLASSES[name]}]"
    return escape[0]


@dataclass(frozen=True)
class NameFilter:
    """Takes a name if an include pattern matches it and no exclude pattern does.

    Args:
        property_name: the include property, for messages; the exclude property is this plus `.exclude`.
        include, exclude: names and regexes.
    """

    property_name: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        compile_patterns(self.property_name, self.include)
        compile_patterns(f"{self.property_name}.exclude", self.exclude)

    @cached_property
    def _include(self) -> regex.Pattern[str]:
        return compile_patterns(self.property_name, self.include)

    @cached_property
    def _exclude(self) -> regex.Pattern[str]:
        return compile_patterns(f"{self.property_name}.exclude", self.exclude)

    def __contains__(self, name: str) -> bool:
        if not self.include or self._include.fullmatch(name) is None:
            return False
        return not self.exclude or self._exclude.fullmatch(name) is None

    def __getstate__(self) -> dict[str, object]:
        return {"property_name": self.property_name, "include": self.include, "exclude": self.exclude}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
