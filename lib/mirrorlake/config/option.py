"""An option of the property file: its name, kind of value, default and documentation, as in Kafka's `ConfigDef`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mirrorlake.config.name_filter import split_list

LARGEST = 2**63 - 1  # Java's long
PLACEHOLDER = re.compile(r"<\w+>")


@dataclass(frozen=True)
class ValueKind:
    """A kind of value that a property may have."""

    @property
    def allowed(self) -> str:
        """The allowed values, for messages and documentation; empty where any text is allowed."""
        return ""

    def normalize(self, text: str) -> str:
        """Returns the spelling of a text that is compared with the allowed values, and shown if it is refused."""
        return text

    def parse(self, text: str) -> Any:
        """Turns the text of a file into the value.

        Raises:
            ValueError: the text is not allowed.
        """
        return text


@dataclass(frozen=True)
class Text(ValueKind):
    """Any text. Code that uses it may restrict it further.

    Attributes:
        form: the form of such a text, for documentation.
    """

    form: str = ""

    @property
    def allowed(self) -> str:
        return self.form


@dataclass(frozen=True)
class Flag(ValueKind):
    """`true` or `false`, in upper or lower case."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def normalize(self, text: str) -> str:
        return text.lower()

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"


@dataclass(frozen=True)
class Integer(ValueKind):
    """A whole number from minimum to maximum, or exactly `also`."""

    minimum: int
    maximum: int = LARGEST
    also: int | None = None

    @property
    def allowed(self) -> str:
        upper = f" to {self.maximum}" if self.maximum < LARGEST else " up"
        other = "" if self.also is None else f", or {self.also}"
        return f"a whole number from {self.minimum}{upper}{other}"

    def parse(self, text: str) -> int:
        number = int(text)
        if number != self.also and not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


@dataclass(frozen=True)
class OneOf(ValueKind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(self.words)

    def parse(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(text)
        return text


@dataclass(frozen=True)
class Names(ValueKind):
    """A list of names."""

    @property
    def allowed(self) -> str:
        return "names, separated by commas"

    def parse(self, text: str) -> tuple[str, ...]:
        return split_list(text)


@dataclass(frozen=True)
class Patterns(Names):
    """A list of names and Java regexes. The options of one field make a `NameFilter`: the first says what is included,
    the second what is excluded."""

    @property
    def allowed(self) -> str:
        return "names and Java regexes, separated by commas"


@dataclass(frozen=True)
class Option:
    """A property that mirrorlake acts on.

    Attributes:
        name: as in the file, without a flow or a target in front. `<...>` stands for text that the file's author
            chooses.
        kind: the values that are allowed.
        default: as it would stand in the file. `<source>` is the alias of the flow's source.
        description: the effect of the property, for the documentation.
        field: the field of `Flow` that the property feeds; empty if it feeds none.
        is_derived: code derives the field from this and other properties. Otherwise the field is the parsed value.
        is_live: a running mirror job takes over a change of the property.
        default_description: the default in words, where it depends on other properties or is long.
        mirrormaker_default: the default of MirrorMaker 2, where it differs.
    """

    name: str
    kind: ValueKind
    default: str
    description: str
    field: str = ""
    is_derived: bool = False
    is_live: bool = False
    default_description: str = ""
    mirrormaker_default: str = ""

    def takes(self, name: str) -> bool:
        """Tells whether a name is the option's, with any text in the place of placeholders."""
        parts = (re.escape(part) for part in PLACEHOLDER.split(self.name))
        return re.fullmatch(".+".join(parts), name) is not None
