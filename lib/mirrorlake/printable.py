"""Text from elsewhere, such as names and errors of the clusters, made fit to be shown."""

from __future__ import annotations

LONGEST = 2_000  # characters that are shown of one text
LONGEST_NAME = 250  # of one name within a text; topics have 249 at most, groups and transactions may have 32,767


def shortened(text: str, longest: int = LONGEST) -> str:
    """Cuts a text to a number of characters, and says how long it was."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def printable(text: str, longest: int = LONGEST, keep: str = "") -> str:
    r"""Escapes what is not printable in a text, and shortens it.

    Controls (line ends, terminal sequences, NUL), characters that change the direction of text, and invisible ones
    become escapes such as `\x1b` or `\u202e`.

    Args:
        text: any text.
        longest: the number of its characters that stay.
        keep: characters that stay as they are.
    """
    cut = shortened(text, longest)
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in cut)


def named(name: str) -> str:
    """Makes a name fit to stand within a text."""
    return printable(name, LONGEST_NAME)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
