"""The site of the documentation: links, lists, and that nothing is loaded from elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import docs_site  # noqa: E402


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("README.md", "docs/sql.md#lag", "sql.md#lag"),
        ("README.md", "#speed", "#speed"),
        ("README.md", "docs/report.png", "report.png"),
        ("README.md", "notebooks/mirror.ipynb", "source/notebooks/mirror.ipynb"),
        ("README.md", "expectations/", "index.md"),
        ("docs/index.md", "../README.md#guarantees", "overview.md#guarantees"),
        ("docs/index.md", "recipes/README.md", "recipes/README.md"),
        ("docs/recipes/migration.md", "../failover.md#failover", "../failover.md#failover"),
        ("docs/recipes/migration.md", "../../CHANGELOG.md", "../changelog.md"),
        ("docs/recipes/migration.md", "../../pom.xml", "../source/pom.xml"),
        ("docs/sql.md", "https://semver.org/", "https://semver.org/"),
    ],
)
def test_a_link_leads_to_the_same_place_as_on_a_forge(page: str, link: str, on_the_site: str) -> None:
    assert docs_site.with_links(f"see [x]({link}), and", page) == f"see [x]({on_the_site}), and"


def test_contents_of_list_items_are_indented_as_the_site_wants_it() -> None:
    text = """A list:
- one
  more of it

  | a | b |
  |---|---|

  ```sql
  SELECT 1
    FROM t
  ```

  that was one
- two
lazy

3. three
   - below
     it

   again
text
no list - here
    code
"""
    wide = """A list:

-   one
    more of it

    | a | b |
    |---|---|

    ```sql
    SELECT 1
      FROM t
    ```

    that was one

-   two
    lazy

3.  three
    -   below
        it

    again
    text
    no list - here
     code
"""
    assert docs_site.with_wide_lists(text) == wide


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="https://fonts.example/css">', ["https://fonts.example/css"]),
        ("<link href=//fonts.example/css rel=preconnect>", ["//fonts.example/css"]),
        ("<img alt='' src=http://i.example/a.png>", ["http://i.example/a.png"]),
        ("body { background: url('https://i.example/a.png') }", ["https://i.example/a.png"]),
        ("@import 'https://fonts.example/css';", ["https://fonts.example/css"]),
        ('<pre class="mermaid"><code>graph</code></pre>', ["mermaid"]),
        ('<a href="https://semver.org/">SemVer</a> <script src="assets/x.js"></script> url(data:image/svg+xml)', []),
    ],
)
def test_what_a_page_loads_from_another_host_is_found(text: str, loaded: list[str]) -> None:
    assert docs_site.foreign_hosts(text) == loaded


def test_each_link_of_a_page_outside_of_docs_has_a_place_on_the_site() -> None:
    for path, there in docs_site.ROOT_PAGES.items():
        assert (ROOT / path).is_file()
        assert not (ROOT / "docs" / there).exists(), "the page would hide another one"
