"""Hooks of mkdocs: what `make docs` does beside rendering docs/.

- The README and other pages of the root become pages of the site. Files that a page links to are copied into
  the site, so that each link works there as it does on a forge.
- Content of list items is indented by two or three spaces, as CommonMark wants it; Python-Markdown wants four.
- The build fails if a page would load anything from another host.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, SOURCE = "docs", "source"
ROOT_PAGES: Mapping[str, str] = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
}
LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^ *(```+|~~~+)")
ITEM = re.compile(r"^( *)([-*]|\d+\.)( +)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon|prefetch|modulepreload)[^>]*"""
    r"""\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)["']?[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)"""
    r"""|@import\s+["']((?:https?:)?//[^"']+)"""
    r"""|class=["']?(mermaid)\b""",  # the theme would fetch what draws it
    re.IGNORECASE,
)


def linked(page: str, target: str) -> str:
    """Returns the path in the repository that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def place(path: str) -> str | None:
    """Returns the place of a file of the repository in the site; None for a folder."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{SOURCE}/{path}" if (ROOT / path).is_file() else None


def with_links(text: str, page: str) -> str:
    """Returns a page with links between the pages of the site, in the place of those between files of the repository.

    Args:
        text: the page.
        page: its path in the repository.
    """
    here = posixpath.dirname(place(page) or page)

    def rewritten(link: re.Match[str]) -> str:
        opening, target, rest = link.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        there = place(linked(page, target))
        if there is None:
            return f"{opening}{posixpath.relpath('index.md', here or '.')})"  # a folder has no page
        return f"{opening}{posixpath.relpath(there, here or '.')}{rest}"

    return LINK.sub(rewritten, text)


def with_wide_lists(text: str) -> str:
    """Returns a page whose list items have their content indented by four spaces for each level."""
    return "\n".join(_widened(text.split("\n")))


def _widened(lines: list[str]) -> Iterator[str]:
    levels: list[int] = []  # the columns at which the contents of the open items begin
    fence, before, is_loose = "", "", False
    for line in lines:
        indent, item = len(line) - len(line.lstrip(" ")), None if fence else ITEM.match(line)
        is_ended = bool(levels) and indent < levels[-1] and bool(line.strip()) and not fence
        if is_ended and (item or not before.strip()):  # otherwise a paragraph of the item goes on, outdented
            levels = [column for column in levels if column <= indent]
            if item and is_loose and before.strip():
                yield ""  # otherwise the item would belong to the last paragraph of the one before
        elif item and before.strip() and not ITEM.match(before):
            yield ""  # a list may follow a paragraph directly
        base = min(indent, levels[-1]) if levels else 0
        if item:
            yield " " * 4 * len(levels) + item[2] + " " * max(1, 4 - len(item[2])) + line[item.end() :]
            levels.append(item.end())
            is_loose = False
        else:
            yield " " * 4 * len(levels) + line[base:] if line.strip() else ""
        opened = FENCE.match(line)
        if fence and line.strip() == fence:
            fence = ""
        elif opened and not fence:
            fence = opened[1]
        before, is_loose = line, is_loose or not line.strip()


def foreign_hosts(text: str) -> list[str]:
    """Returns the addresses on other hosts that a page or a style sheet would load."""
    return [next(filter(None, found)) for found in LOADED.findall(text)]


# -- what mkdocs calls ------------------------------------------------------------------------------


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages of the root, and each file that a page links to."""
    from mkdocs.structure.files import File

    pages = {path: (ROOT / path).read_text() for path in ROOT_PAGES}
    pages |= {f"{DOCS}/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for path in ROOT_PAGES:
        files.append(File.generated(config, ROOT_PAGES[path], content=pages[path]))
    named = {linked(page, target) for page, text in pages.items() for _, target, _ in LINK.findall(text) if target}
    for path in sorted(named):
        if (there := place(path)) and there.startswith(f"{SOURCE}/"):
            files.append(File.generated(config, there, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrites links and lists of a page."""
    of_root = {there: path for path, there in ROOT_PAGES.items()}
    return with_wide_lists(with_links(markdown, of_root.get(page.file.src_uri, f"{DOCS}/{page.file.src_uri}")))


def on_post_build(*, config: Any) -> None:
    """Fails the build if a page would load anything from another host."""
    from mkdocs.exceptions import PluginError

    built = [file for file in Path(config.site_dir).rglob("*") if file.suffix in (".html", ".css")]
    found = {str(file): hosts for file in built if (hosts := foreign_hosts(file.read_text()))}
    if found or not built:
        raise PluginError(f"pages load from other hosts: {found}")
