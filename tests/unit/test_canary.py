"""The search for the canary finds it in each form; a search that finds nothing would say nothing."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.canary import CANARY, leaks

WRITTEN = {
    "clear": CANARY,
    "base64": base64.b64encode(CANARY.encode()).decode(),
    "login": base64.b64encode(f"\0mirror\0{CANARY}".encode()).decode(),
    "basic": base64.b64encode(f"user:{CANARY}@host".encode()).decode(),
    "url-safe": base64.urlsafe_b64encode(f"us:{CANARY}".encode()).decode(),
    "url": f"http://user:{quote(CANARY, safe='')}@host",
    "form": urlencode({"password": CANARY}),
    "json": json.dumps({"password": CANARY}),
    "json of javascript": json.dumps(CANARY).replace("/", "\\/"),
    "html": html.escape(CANARY),
    "unicode": CANARY.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_each_form_of_a_password_is_found(form: str, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/file").write_text(f"before{WRITTEN[form]}after")
    assert [*leaks([tmp_path])]
    assert [*leaks([], [f"x{WRITTEN[form]}y"])]
    (tmp_path / "log/file").write_text("mirror canary-51c")
    assert not [*leaks([tmp_path], ["mirror"])]


def test_a_password_in_a_compressed_table_is_found(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"error": [f"login with {CANARY} failed"] * 100}))
    assert any(line.startswith("table ") for line in leaks([tmp_path]))
