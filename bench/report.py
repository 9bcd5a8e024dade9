"""`make bench-report`: writes the figures of a run into docs/performance.md and the sizes into docs/operations.md, each
between two marks, and draws the chart.

The text of the pages is written by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.chart import draw
from bench.clusters import ROOT
from bench.side_by_side import RESULTS
from bench.tables import lines, sizing

PAGE, OPERATIONS = ROOT / "docs/performance.md", ROOT / "docs/operations.md"
PICTURE = ROOT / "docs/performance.svg"
FIGURES = "<!-- figures: make bench-report -->", "<!-- end of figures -->"
SIZES = "<!-- sizing: make bench-report -->", "<!-- end of sizing -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = json.loads(parser.parse_args().results.read_text())
    _write(PAGE, FIGURES, [*measured(results["cases"]), "", *lines(results)])
    _write(OPERATIONS, SIZES, sizing(results))
    draw(results, PICTURE)
    return 0


def _write(page: Path, marks: tuple[str, str], text: list[str]) -> None:
    """Replaces what a page has between two marks."""
    start, end = marks
    before, _, rest = page.read_text().partition(start)
    _, mark, after = rest.partition(end)
    if not mark:
        sys.exit(f"{page} has no place for figures: {start} ... {end}")
    page.write_text("\n".join((before + start, "", *text, "", end)) + after)


def measured(cases: Mapping[str, Any]) -> list[str]:
    """Returns a line for each run and machine that the cases are of, with their names if there are several."""
    runs: dict[str, list[str]] = {}
    for name, case in cases.items():
        of = case["measured"]
        text = (
            f"{of['began'][:10]}, revision {of['revision']}: {of['processor']}, {of['cores']} cores, "
            f"{of['memory_gib']} GiB, {of['system']}; Kafka {of['kafka']}, {of['java']}, Python {of['python']}"
        )
        runs.setdefault(text, []).append(name)
    return [
        f"{'- ' if len(runs) > 1 else ''}Measured {text}. Medians of the rounds."
        + (f" Cases: {', '.join(names)}." if len(runs) > 1 else "")
        for text, names in runs.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
