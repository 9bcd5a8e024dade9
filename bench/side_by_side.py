"""`make bench`: MirrorMaker 2 and mirrorlake on the same clusters with the same topics, in alternating rounds.

The medians of the rounds count. Results are written to .local/bench/results.json after every measurement, so that an
interrupted run keeps them. With `--resume`, the next run goes on there. `make bench-check` compares them with limits.
`make bench-report` makes the table and the chart of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mirrorlake.log import configure

from bench.cases import Case, find
from bench.clusters import HOME, Clusters, two_clusters
from bench.contestants import CEILING, MIRRORLAKE
from bench.machine import describe, settle
from bench.summary import medians, ratios
from bench.tables import lines

RESULTS = HOME / "results.json"
SAME = ("code", "processor", "cores", "java", "python", "kafka")  # of runs whose rounds belong together
OTHERS_SHARE = 0.25  # CPU seconds per second; the instruments themselves take less


class Results:
    """The results so far, in memory and in a file."""

    def __init__(self, file: Path, rounds: int, kept: dict[str, Any]) -> None:
        self._file = file
        self._measured = describe() | {"began": datetime.now(UTC).isoformat(timespec="seconds")}
        self.values: dict[str, Any] = {"rounds": rounds, "cases": kept}

    def has(self, case: Case, contestant: str, number: int) -> bool:
        """Returns True if a contestant was measured in a round, by the run that this one resumes."""
        return number < len(self.values["cases"].get(case.name, {}).get("rounds", {}).get(contestant, ()))

    def add(self, case: Case, contestant: str, found: dict[str, Any]) -> None:
        """Adds one measurement, and writes the file."""
        known = self.values["cases"].setdefault(
            case.name,
            {
                "kind": case.kind,
                "settings": case.settings,
                "measured": self._measured,
                "rounds": {},
            },
        )
        known["rounds"].setdefault(contestant, []).append(found)
        known["medians"] = medians(known["rounds"])
        known["ratios"] = ratios(known)
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(self.values, indent=1))
        written.replace(self._file)


def resumed(cases: Mapping[str, Any], wanted: Sequence[Case], now: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the cases of earlier results that a run keeps, without what it measures again.

    A round of a wanted case counts if it was measured with the same code, on the same kind of machine (SAME), with the
    same settings and without an error. Code that has no revision is not the same.

    Args:
        cases: the cases of the earlier results.
        wanted: the cases of this run.
        now: `describe` of this run; empty to keep no round of them.
    """
    kept = dict(cases)
    is_known = bool(now.get("code")) and not now["code"].endswith("-dirty")
    for case in wanted:
        found = kept.pop(case.name, None)
        if not is_known or not found or found["settings"] != case.settings:
            continue
        if all(found.get("measured", {}).get(name) == now.get(name) for name in SAME):
            rounds = {
                name: [result for result in results if "error" not in result]
                for name, results in found["rounds"].items()
            }
            kept[case.name] = {**found, "rounds": {name: results for name, results in rounds.items() if results}}
    return kept


def main() -> int:
    configure(level="WARNING")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", default="default", help="names with commas between them, or default, axes, field, far, all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default="", help="only these, with commas between them")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the records and seconds of each case; below 1 for a quick look"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--add", action="store_true", help="keep what the results have of other cases")
    parser.add_argument(
        "--resume", action="store_true", help="keep that, and the rounds of these cases that this code has done"
    )
    given = parser.parse_args()
    for ending in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # shells ignore SIGINT for background jobs, but brokers and contestants must end with this process
        signal.signal(ending, signal.default_int_handler)
    try:
        cases = find(given.cases, given.scale)
    except ValueError as error:
        parser.error(str(error))
    only = {name for name in given.contestants.split(",") if name}
    given.results.parent.mkdir(parents=True, exist_ok=True)
    keeps = (given.add or given.resume) and given.results.exists()
    kept = json.loads(given.results.read_text())["cases"] if keeps else {}
    results = Results(given.results, given.rounds, resumed(kept, cases, describe() if given.resume else {}))
    shutil.rmtree(HOME / "runs", ignore_errors=True)
    failures = 0
    with two_clusters(HOME / "side-by-side") as clusters:
        for case in cases:
            failures += run(case, clusters, results, min(given.rounds, case.rounds), only)
    print("\n" + "\n".join(lines(results.values)) + f"\n\nresults: {given.results}")
    return 1 if failures else 0


def run(case: Case, clusters: Clusters, results: Results, rounds: int, only: set[str]) -> int:
    """Runs all rounds of one case; returns the number of failed measurements.

    Args:
        case: the case.
        clusters: both clusters.
        results: the results to add to.
        rounds: the number of rounds.
        only: the contestants to measure; all if empty.
    """
    began = time.monotonic()
    if not any(_left(case, results, number, only) for number in range(rounds)):
        _say(f"{case.name}: done before")
        return 0
    _say(f"{case.name}: {', '.join(f'{name} {value}' for name, value in case.settings.items())}")
    case.prepare(clusters)
    with case.with_line(clusters) as reached:
        failures = _rounds(case, reached, results, rounds, only)
    clusters.clean()
    _say(f"{case.name}: took {time.monotonic() - began:.0f} s")
    return failures


def _rounds(case: Case, clusters: Clusters, results: Results, rounds: int, only: set[str]) -> int:
    failures = 0
    if case.kind == "backlog":  # warms up the brokers' JVMs, so that the first contestant has no disadvantage
        first = CEILING if CEILING in case.contestants else MIRRORLAKE
        try:
            case.measure(first, case.task(clusters, first, rounds))
        except Exception as error:  # the cases that follow are measured in any case
            _say(f"  warming up: {type(error).__name__}: {error}")
        clusters.clean(keep=case.topic)
    for number in range(rounds):
        for contestant in _left(case, results, number, only):
            task = case.task(clusters, contestant, number)
            settle()
            try:
                found = case.measure(contestant, task)
            except Exception as error:  # the others continue; a failure is a result, too
                failures += 1
                found = {"error": f"{type(error).__name__}: {error}"}
            results.add(case, contestant, found)
            _say(f"  round {number + 1}, {contestant}: {said(found)}")
            if found.get("others_cpu_share", 0.0) > OTHERS_SHARE:
                _say(
                    "    warning: something else was at work on this machine, which this measurement has suffered from"
                )
            clusters.clean(keep=case.topic)
    return failures


def _left(case: Case, results: Results, number: int, only: set[str]) -> list[str]:
    """Returns the contestants that a round still has to measure; each is the first in some round."""
    contestants = [
        name for name in case.contestants if (not only or name in only) and not (number and name in case.once)
    ]
    first = number % max(1, len(contestants))
    return [name for name in contestants[first:] + contestants[:first] if not results.has(case, name, number)]


def said(found: dict[str, Any]) -> str:
    """Formats a measurement as one line."""
    if "error" in found:
        return found["error"]
    return ", ".join(
        f"{name} {value:,.0f}" if abs(value) >= 1000 else f"{name} {value:.2f}"
        for name, value in found.items()
        if isinstance(value, int | float)
    )


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
