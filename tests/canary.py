"""A password that must be nowhere, and the search for it in every form in which it could be written."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from deltalake import DeltaTable

CANARY = "canary-51ce/+&%<x>"


def forms(secret: str = CANARY) -> set[str]:
    """Returns a secret in clear, URL-encoded, escaped for JSON, HTML and Java, and what Base64 makes of it wherever it
    begins."""
    plain = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), html.escape(secret)}
    escaped = {json.dumps(secret)[1:-1], secret.replace("/", "\\/")}
    escaped |= {"".join(char if char.isalnum() or char in "-/+%" else f"\\u{ord(char):04x}" for char in secret)}
    encoded = set()
    for before in range(3):
        text = base64.b64encode(b"x" * before + secret.encode()).decode()
        # Without the characters that its neighbours decide about, too.
        core = text[(0, 2, 3)[before] : -4]
        encoded |= {core, core.replace("+", "-").replace("/", "_")}
    return plain | escaped | encoded


def leaks(places: Iterable[Path], texts: Iterable[str] = ()) -> Iterator[str]:
    """Yields a line for each file below the places, table of Delta among them, or text, that holds the canary."""
    sought = [(form, form.encode()) for form in forms()]
    for place in places:
        for file in [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file()):
            content = file.read_bytes()
            yield from (f"{file} holds {form}" for form, data in sought if data in content)
        for log in place.rglob("_delta_log") if place.is_dir() else ():
            rows = str(_rows(log.parent))
            yield from (f"table {log.parent} holds {form}" for form, _ in sought if form in rows)
    for text in texts:
        yield from (f"{text[:80]!r} holds {form}" for form, _ in sought if form in text)


def _rows(table: Path) -> list[dict[str, Any]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist()
