"""`make bench-check`: compares the results of a run with the limits of bench/limits.json.

It prints a line for each limit that is missed. A limit whose figure is missing is missed, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clusters import ROOT
from bench.contestants import MIRRORLAKE
from bench.side_by_side import RESULTS

LIMITS = ROOT / "bench/limits.json"


@dataclass(frozen=True)
class Limit:
    """The limit of a figure of a case: a ratio, or one of mirrorlake's own; `aim` is a goal that fails no check."""

    case: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None

    def missed(self, results: Mapping[str, Any]) -> str | None:
        """Describes how the results miss the limit; returns None if they keep it."""
        case = results["cases"].get(self.case, {"medians": {}, "ratios": {}})
        found = {**case["medians"].get(MIRRORLAKE, {}), **case["ratios"]}.get(self.figure)
        if found is None:
            return f"{self.case}, {self.figure}: no figure in these results"
        if self.at_least is not None and found < self.at_least:
            return f"{self.case}, {self.figure}: {found:.3g}, wanted at least {self.at_least:g}"
        if self.at_most is not None and found > self.at_most:
            return f"{self.case}, {self.figure}: {found:.3g}, wanted at most {self.at_most:g}"
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--limits", type=Path, default=LIMITS)
    given = parser.parse_args()
    if not given.results.exists():
        sys.exit(f"{given.results} is not there; `make bench` makes it")
    limits, results = (
        [Limit(**values) for values in json.loads(given.limits.read_text())],
        json.loads(given.results.read_text()),
    )
    missed = [line for limit in limits if (line := limit.missed(results))]
    print("\n".join(missed) if missed else f"all {len(limits)} limits are kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
