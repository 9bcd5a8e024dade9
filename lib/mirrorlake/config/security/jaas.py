"""The value of `sasl.jaas.config`: one login module and its options.

The line is parsed as written, before its references are resolved, so that no value of a reference can be taken for
syntax. Source: `JaasConfig` of Kafka 4.3.0, which reads the line with `java.io.StreamTokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorlake.errors import ConfigurationError

FLAGS = "required|requisite|sufficient|optional"
QUOTED = r""" "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' """
OPTION = rf"([\w.\-$]+) \s* = \s* ({QUOTED} | [^\s;\"'][^\s;]*)"
MODULE = re.compile(rf"\s* ([\w.$]+) \s+ ({FLAGS}) (?=[\s;]|$)", re.VERBOSE | re.IGNORECASE)
NEXT_OPTION = re.compile(rf"\s* {OPTION}", re.VERBOSE)
END = re.compile(r"\s*;?\s*")
NO_SECRETS = ("username", "password", "clientId", "clientSecret", "scope")  # names of options
ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
TO_ESCAPE = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}


@dataclass(frozen=True, repr=False)
class Jaas:
    """A login module and its options.

    Args:
        module: the class of the login module.
        flag: `required` or another control flag.
        options: the options without quotes, references unresolved.
    """

    module: str
    flag: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, name: str, line: str) -> Jaas:
        """Parses a line.

        Args:
            name: the property, for messages. No message holds a part of the line.
            line: its value.

        Raises:
            ConfigurationError: the line is not a login module, its flag, and options.
        """
        head = MODULE.match(line)
        if not head:
            raise _malformed(name, "it does not begin with a login module and 'required'")
        options, at = {}, head.end()
        while found := NEXT_OPTION.match(line, at):
            options[found[1]], at = _unquoted(found[2]), found.end()
        if not END.fullmatch(line, at):
            known = [option for option in options if option in NO_SECRETS]  # others may be parts of a password
            after = f"option {known[-1]}" if known else "the login module"
            raise _malformed(name, f'what follows {after} is not an option="value". Write quotes in a value as \\"')
        return cls(head[1], head[2], options)

    def resolved(self, resolve: Callable[[str], str]) -> Jaas:
        """Returns the same with the references in each option resolved."""
        return Jaas(self.module, self.flag, {name: resolve(value) for name, value in self.options.items()})

    def java(self) -> str:
        """Renders the line for Java, with each value quoted."""
        options = "".join(f' {name}="{_escaped(value)}"' for name, value in self.options.items())
        return f"{self.module} {self.flag}{options};"


def _malformed(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"property {name} can't be read: {why}. It has the form: <class of a login module> required "
        'username="..." password="...";'
    )


def _unquoted(value: str) -> str:
    return ESCAPE.sub(_unescaped, value[1:-1]) if value[:1] in "\"'" else value


def _unescaped(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text, 8)) if text[0] in "01234567" else ESCAPED.get(text, text)


def _escaped(value: str) -> str:
    return "".join(TO_ESCAPE.get(character, character) for character in value)
