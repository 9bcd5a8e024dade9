"""`make bench-report`: writes the figures of a run into docs/performance.md, between two marks, and draws the chart.

The text of the page is written by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.chart import draw
from bench.clusters import ROOT
from bench.side_by_side import RESULTS
from bench.tables import lines

PAGE = ROOT / "docs/performance.md"
PICTURE = ROOT / "docs/performance.svg"
FROM, TO = "<!-- figures: make bench-report -->", "<!-- end of figures -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = json.loads(parser.parse_args().results.read_text())
    before, _, rest = PAGE.read_text().partition(FROM)
    _, mark, after = rest.partition(TO)
    if not mark:
        sys.exit(f"{PAGE} has no place for figures: {FROM} ... {TO}")
    PAGE.write_text("\n".join((before + FROM, "", _machine(results), "", *lines(results), "", TO)) + after)
    draw(results, PICTURE)
    return 0


def _machine(results: dict[str, Any]) -> str:
    machine = results["machine"]
    revisions = dict.fromkeys(
        case.get("revision", "unknown") for case in results["cases"].values()
    )  # several if a run has added cases to another run's
    return (
        f"Measured {results['began'][:10]}, revision {' and '.join(revisions)}: {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; "
        f"Kafka {machine['kafka']}, {machine['java']}, Python {machine['python']}. Medians of the rounds."
    )


if __name__ == "__main__":
    sys.exit(main())
