"""Checks that notebooks are fit to be committed; prints the problems and exits with 1 if there are any.

A notebook needs a parameters cell, a result cell, stable ids and the common beginning of the bootstrap cell.
It must have no outputs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOTSTRAP = """\
import sys
from pathlib import Path

# A checkout brings its own code; elsewhere mirrorlake must be installed.
checkout = next((folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "lib/mirrorlake").is_dir()), None)
if checkout:
    sys.path.insert(0, str(checkout / "lib"))

"""
EDGES = re.compile(r"runtime\.(?:parameters|session|finish)\((?!globals\(\))")
BUILT = re.compile(r"\b(?:sql|ask)\([^)]*?\bf[\"']|\.format\(")


def problems(path: Path) -> list[str]:
    """Returns one line for each problem of a notebook."""
    notebook = json.loads(path.read_text())
    cells = notebook["cells"]
    found = []
    for cell in cells:
        if cell.get("outputs") or cell.get("execution_count"):
            found.append(f"cell {cell['id']} has outputs: clear them")
        if set(cell.get("metadata", {})) - {"tags"}:
            found.append(f"cell {cell['id']} has metadata of an editor")
    for tag in ("parameters", "result"):
        if sum(tag in cell["metadata"].get("tags", []) for cell in cells) != 1:
            found.append(f"there must be one cell with the tag {tag}")
    if len({cell.get("id") for cell in cells}) != len(cells):
        found.append("cell ids are missing or used twice")
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if len(code) < 2 or not code[1].startswith(BOOTSTRAP):
        found.append("the cell behind the parameters must begin as tools/check_notebooks.py says")
    found += [
        "a query is built from values: name them in braces, as for Question.ask" for _ in filter(BUILT.search, code)
    ]
    found += [f"{edge[0]}...) must be given globals() first" for text in code for edge in EDGES.finditer(text)]
    if cells[0]["cell_type"] != "markdown":
        found.append("the first cell must say what the notebook is for")
    if set(notebook["metadata"]) - {"application/vnd.databricks.v1+notebook", "kernelspec", "language_info"}:
        found.append("the notebook has metadata of a run")
    return [f"{path.name}: {problem}" for problem in found]


def main() -> int:
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    found = [problem for path in notebooks for problem in problems(path)] or (
        [] if notebooks else ["there are no notebooks"]
    )
    print("\n".join(found) or f"{len(notebooks)} notebooks are clean")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
