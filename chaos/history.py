"""The history of all runs in a directory: one line of JSON for each seed, with the revision of the code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.clusters import ROOT
from chaos.run import Verdict

CODE = ("lib", "chaos", "expectations")


def revision() -> str:
    """Returns the last commit that has changed the code, with a plus if it was changed since; empty without git."""
    last = _git("log", "-1", "--format=%h", "--", *CODE)
    return f"{last}+" if last and _git("status", "--porcelain", "--", *CODE) else last


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class History:
    """The verdicts of all runs in a directory; kept in a file.

    Args:
        file: the file.
        revision: the revision of the code that runs.
    """

    def __init__(self, file: Path, revision: str) -> None:
        self._file, self._revision = file, revision

    def add(self, verdict: Verdict) -> None:
        """Adds the verdict of a run."""
        line = {
            "revision": self._revision,
            "seed": verdict.seed,
            "findings": verdict.findings,
            "records": verdict.records,
            "faults": sum(verdict.made.values()),
            "faults_s": round(verdict.faults_s, 1),
            "recovered_s": verdict.recovered_s,
            "restarts": verdict.restarts,
            "seconds": round(verdict.seconds, 1),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def seeds(self) -> set[int]:
        """The seeds that were run with this revision."""
        return {line["seed"] for line in self._lines()}

    def summary(self) -> str:
        """Returns what was run with this revision, in one line. The last run of a seed decides whether it is clean."""
        lines = list(self._lines())
        last = {line["seed"]: line["findings"] for line in lines}
        wrong = sorted(seed for seed, found in last.items() if found)
        hours = sum(line["faults_s"] for line in lines) / 3600
        recovered = sorted(line["recovered_s"] for line in lines if line["recovered_s"] is not None)
        times = (
            f"{recovered[len(recovered) // 2]:.1f} s in the middle, {recovered[-1]:.1f} s at most" if recovered else "-"
        )
        return (
            f"with revision {self._revision or 'unknown'}: {len(last)} seeds, {len(lines)} runs, "
            f"{sum(line['records'] for line in lines):,} records, {sum(line['faults'] for line in lines):,} faults of "
            f"requests in {hours:.2f} hours of faults; recovered after {times}; found something the last time: {wrong}"
        )

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                if (found := json.loads(line))["revision"] == self._revision:
                    yield found
