"""`python -m chaos`: runs seeds one after the other; prints what the checker finds, and the coverage table.

Each seed gets the cells that the runs in the directory have hit least. A single seed that was run here before gets the
same ones again.

The coverage table, and the history of the revision that runs, grow over all runs in the directory. So 300 seeds may
be run in pieces, also two of them side by side.

Exit codes: 0 nothing was found; 1 something was, or the seeds of a full run have left a cell empty.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from mirrorlake.local.proxy.faults import Fault

from chaos.cells import Cell
from chaos.clusters import ROOT, clusters
from chaos.coverage import Coverage
from chaos.history import History, revision
from chaos.jobs import warm_up
from chaos.run import Verdict, run
from chaos.scenario import scenario

HOME = ROOT / ".local/chaos"


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = argparse.ArgumentParser(prog="chaos", description=__doc__)
    arguments.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    arguments.add_argument("--seeds", type=int, default=20, help="how many seeds")
    arguments.add_argument(
        "--directory", type=lambda name: Path(name).resolve(), default=HOME, help="for logs, and for the clusters"
    )
    given = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have started it without; brokers must not stay behind
        signal.signal(number, signal.default_int_handler)
    given.directory.mkdir(parents=True, exist_ok=True)
    began, verdicts, coverage = time.monotonic(), [], Coverage(given.directory / "coverage.json")
    history = History(given.directory / "history.jsonl", revision())
    warm_up()
    with clusters(given.directory / f"clusters-{given.first}") as made:
        for seed in range(given.first, given.first + given.seeds):
            try:
                directory = given.directory / f"seed-{seed}"
                plan = scenario(seed, _recorded(directory) if given.seeds == 1 else coverage.deal(seed))
                verdict = run(plan, made, directory)
            except KeyboardInterrupt:
                print(f"interrupted; make chaos FROM={seed} goes on", flush=True)
                break
            verdicts.append(verdict)
            coverage.add(verdict.made)
            history.add(verdict)
            print(said(verdict), flush=True)
            for finding in verdict.findings:
                print(f"  FOUND {finding}", flush=True)
            if verdict.findings:
                print(f"  again: make chaos SEED={seed}; logs: {given.directory / f'seed-{seed}'}", flush=True)
    wrong = [verdict for verdict in verdicts if verdict.findings]
    print(f"\n{coverage.table()}\n")
    print(f"{len(verdicts)} seeds in {time.monotonic() - began:.0f} s; found something: {[one.seed for one in wrong]}")
    print(history.summary())
    empty = coverage.empty() if len(history.seeds) >= coverage.full_run else []
    for cell in empty:
        print(f"never made: {cell}")
    return 1 if wrong or empty else 0


def _recorded(directory: Path) -> list[Cell] | None:
    """Returns the cells of a seed that was run here before, to repeat it; None for those that belong to it."""
    file = directory / "cells.json"
    if not file.exists():
        return None
    return [Cell(side, api, Fault(fault), is_older) for side, api, fault, is_older in json.loads(file.read_text())]


def said(verdict: Verdict) -> str:
    """Returns the line about a run."""
    recovered = "never" if verdict.recovered_s is None else f"{verdict.recovered_s:.1f} s"
    faults = ", ".join(f"{side} {api} {fault}" for side, api, fault in verdict.made)
    return (
        f"seed {verdict.seed}: {'ok' if not verdict.findings else 'WRONG'}, {verdict.records} records, recovered after "
        f"{recovered}, {verdict.restarts} restarts, {verdict.seconds:.1f} s {verdict.laps}; {faults}"
    )


if __name__ == "__main__":
    sys.exit(main())
