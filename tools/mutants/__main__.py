"""`python -m mutants`: makes each mutant of the catalog in a copy of the repository, and says which test catches it.

Exit codes: 0 all are caught; 1 some survived, or did not run; 2 nothing can be said, as the catalog does not fit the
code, or the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants.catalog import MUTANTS
from mutants.checkout import mutated, snapshot
from mutants.mutant import CodeMovedError, Mutant
from mutants.trial import Trial, Verdict, run

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / ".local/mutants"
MOST_WORKERS = 2
NAMES = ("MIRRORLAKE_TEST_SOURCE", "MIRRORLAKE_TEST_TARGET")


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = argparse.ArgumentParser(prog="mutants", description=__doc__)
    arguments.add_argument("--only", default="", help="a part of the names of the mutants to run, or of their tests")
    arguments.add_argument("--workers", type=int, default=MOST_WORKERS, help="how many run side by side, two at most")
    arguments.add_argument("--check", action="store_true", help="only see whether the catalog fits the code")
    given = arguments.parse_args()
    only = given.only.lower()
    chosen = [mutant for mutant in MUTANTS if any(only in text.lower() for text in (mutant.name, *mutant.tests))]
    if not chosen:
        print(
            f"no mutant has '{given.only}' in its name or its tests; there are:",
            *(one.name for one in MUTANTS),
            sep="\n  ",
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clusters must not stay behind
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        origin = snapshot(ROOT, Path(directory) / "origin")
        if problems := misfits(origin):
            print(*problems, sep="\n")
            return 2
        if given.check:
            print(f"{len(MUTANTS)} mutants fit the code")
            return 0
        with clusters(chosen, Path(directory)) as environment:
            return tried(chosen, origin, environment, max(1, min(given.workers, MOST_WORKERS)))


def misfits(origin: Path) -> list[str]:
    """Lists what is wrong with the catalog: mutants that do not fit the code or the tests, names that are there
    twice."""
    problems = []
    for mutant in MUTANTS:
        try:
            mutant.applied(origin)
        except CodeMovedError as error:
            problems.append(str(error))
        problems += [f"mutant '{mutant.name}': there is no {test}" for test in mutant.missing_tests(origin)]
    names = [slug(mutant) for mutant in MUTANTS]
    return problems + [f"two mutants are called {name}" for name in sorted(set(names)) if names.count(name) > 1]


def tried(chosen: Sequence[Mutant], origin: Path, environment: Mapping[str, str], workers: int) -> int:
    """Runs the tests without any mutant, then with each; prints a table; returns the exit code."""
    began = time.monotonic()
    tests = sorted({test for mutant in chosen for test in mutant.tests}, key=lambda test: _place(origin, test))
    print(f"{len(chosen)} mutants. The tests without any of them:", end=" ", flush=True)
    plain = run(origin, tests, environment, LOGS / "none.log", processes=workers)
    if plain.verdict is not Verdict.PASSED:
        print(f"they fail: {plain.test} ({plain.reason}). See {LOGS / 'none.log'}")
        return 2
    print(f"they pass ({plain.seconds:.0f} s)\n", flush=True)

    def outcome(mutant: Mutant) -> Trial:
        with tempfile.TemporaryDirectory(prefix="mutant-", dir=origin.parent) as directory:
            place = mutated(origin, Path(directory) / "copy", mutant)
            return run(place, mutant.tests, environment, LOGS / f"{slug(mutant)}.log")

    width = max(len(mutant.name) for mutant in chosen)
    print(f"{'mutant':{width}}  {'seconds':>7}  caught by", flush=True)
    wrong = 0
    with ThreadPoolExecutor(workers) as pool:
        for mutant, trial in zip(chosen, pool.map(outcome, chosen), strict=True):
            wrong += trial.verdict is not Verdict.CAUGHT
            print(f"{mutant.name:{width}}  {trial.seconds:7.1f}  {said(mutant, trial)}", flush=True)
    print(f"\n{len(chosen) - wrong} of {len(chosen)} mutants were caught, in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def _place(origin: Path, test: str) -> tuple[str, int]:
    """Returns the file of a test and its place there: tests of a file may share a table, and follow each other."""
    file, _, name = test.partition("::")
    text = (origin / file).read_text()
    return file, text.find(f"def {name.partition('[')[0]}(") if name else 0


def said(mutant: Mutant, trial: Trial) -> str:
    """What the table says of a trial."""
    if trial.verdict is Verdict.CAUGHT:
        return trial.test
    if trial.verdict is Verdict.PASSED:
        return f"SURVIVED {' '.join(mutant.tests)}"
    return f"INVALID: {trial.test} {trial.reason}. See {LOGS / slug(mutant)}.log"


def slug(mutant: Mutant) -> str:
    """The name of a mutant as that of a file."""
    return re.sub(r"\W+", "-", mutant.name.lower()).strip("-")


@contextlib.contextmanager
def clusters(chosen: Sequence[Mutant], directory: Path) -> Iterator[Mapping[str, str]]:
    """Starts a source and a target cluster for all trials, if one needs them; yields the variables that name them.
    Their code is that of the repository, without any mutant."""
    if not any(test.startswith("tests/kafka") for mutant in chosen for test in mutant.tests):
        yield {}
        return
    sys.path[:0] = [str(ROOT / "lib"), str(ROOT)]
    from mirrorlake.local.cluster import LocalCluster, running

    from tests.conftest import SOURCE, TARGET

    jars = ROOT / ".local/jars/kafka"
    with (
        running(LocalCluster("source", directory / "source", jars, properties=SOURCE)) as source,
        running(LocalCluster("target", directory / "target", jars, properties=TARGET)) as target,
    ):
        yield dict(zip(NAMES, (source.bootstrap_servers, target.bootstrap_servers), strict=True))


if __name__ == "__main__":
    sys.exit(main())
