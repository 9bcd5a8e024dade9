"""Names are matched as in Java, compared with Java itself."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.config.name_filter import NameFilter

NAMES = [
    "orders",
    "orders.eu",
    "Orders",
    "a-b_c",
    "x1",
    "été",
    "a.b.c",
    "__consumer_offsets",
    "mm2-offsets.a.internal",
    "aaa",
    "",
    "a",
    "-",
    "]",
    "\\",
]
PATTERNS = [
    ".*",
    "orders",
    "orders.*",
    r"orders\..*",
    "(?i)ORDERS",
    r"[a-z&&[^o]].*",
    r"\p{L}+",
    r"\p{Lower}+",
    r"\w+",
    r"\d+|x\d",
    "a{3}",
    "a*+",
    "(?:a|b)+",
    r"\Qa.b\E.*",
    r"[\w.-]+",
    "^orders$",
    r".*\.internal",
    "__.*",
    "(orders|x)1?",
    r"(?<name>a)\k<name>a",
    "[a-c.]+",
    r"\S+",
    ".+[^s]",
    "a?",
    r"\\",
    "[]a]",
    r"\p{Alpha}+",
    r"\p{IsAlphabetic}+",
    "(?s).",
    r"\P{Alpha}",
    r"\W",
    r"\\w",
    r"[\p{Alpha}\d]+",
    r"\p{Punct}",
    r"[^\w]",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_java_matches(spark: Any, pattern: str) -> None:
    java = spark._jvm.java.util.regex.Pattern
    expected = [name for name in NAMES if java.matches(pattern, name)]
    names = NameFilter("topics", (pattern,))
    assert [name for name in NAMES if name in names] == expected
