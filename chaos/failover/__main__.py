"""`make chaos-failover`: groups that work all the time, a source that dies at a drawn moment, and a judge.

Each seed is a story of its own (`story.py`), run on real brokers (`run.py`). Its journals are judged
without mirrorlake's code (`judge.py`). The directory of a seed with findings is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.session import local_session
from mirrorlake.log import quiet_kafka

from chaos.failover.clients import JARS, ROOT
from chaos.failover.judge import Verdict
from chaos.failover.run import SOURCE, FailoverRun, Ground
from chaos.failover.story import Ending, Story, draw

HOME = ROOT / ".local/chaos/failover"
SEEDS_OF_A_CLUSTER = 20  # then new clusters are made, so that topics and groups of earlier seeds cost nothing


def main() -> int:
    """Runs the seeds; returns 1 if there was a finding."""
    parser = argparse.ArgumentParser(description="Failover under chaos: see docs/failover.md.")
    parser.add_argument("--seed", type=int, default=0, help="one seed only")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--ending", choices=[*Ending], help="this ending for every seed")
    where = "directory of clusters, tables, journals and results"
    parser.add_argument("--home", type=lambda name: Path(name).resolve(), default=HOME, help=where)
    given = parser.parse_args()
    seeds = [given.seed] if given.seed else [*range(given.first, given.first + given.seeds)]
    ending = Ending(given.ending) if given.ending else None
    quiet_kafka()
    shutil.rmtree(given.home, ignore_errors=True)
    given.home.mkdir(parents=True)
    spark = local_session(ROOT, "chaos")
    total, failed = Counter[str](), []
    for begin in range(0, len(seeds), SEEDS_OF_A_CLUSTER):
        clusters = given.home / f"clusters-{begin}"
        with (
            running(LocalCluster("source", clusters / "source", JARS, properties=SOURCE)) as source,
            running(LocalCluster("target", clusters / "target", JARS)) as target,
        ):
            for seed in seeds[begin : begin + SEEDS_OF_A_CLUSTER]:
                directory, warehouse = given.home / f"seed-{seed}", str(given.home / f"warehouse_{begin}")
                ground = Ground(source, target.bootstrap_servers, spark, warehouse, directory)
                verdict = _tell(draw(seed, ending), ground, given.home / "results.jsonl")
                total.update(_numbers(verdict))
                failed += [seed] if verdict.findings else []
                if not verdict.findings:
                    shutil.rmtree(directory)
                source.start()  # a story that broke off may have left it dead
        shutil.rmtree(clusters)
    print(f"{len(seeds)} seeds, {len(failed)} with findings {failed or ''}: {_shown(total)}", flush=True)
    return bool(failed)


def _tell(story: Story, ground: Ground, results: Path) -> Verdict:
    """Runs a story and prints its line; an error is a finding."""
    run, began = FailoverRun(story, ground), time.monotonic()
    try:
        run.run()
    except Exception as error:
        (ground.directory / "error.txt").write_text(traceback.format_exc())
        run.verdict.findings.append(f"{type(error).__name__}: {error}")
    verdict = run.verdict
    seconds = round(time.monotonic() - began, 1)
    said = "; ".join(verdict.findings[:5]) or "as promised"
    print(f"seed {story.seed}: {story} {seconds} s, {_shown(_numbers(verdict))}: {said}", flush=True)
    with results.open("a") as file:
        row = {
            "seed": story.seed,
            "story": str(story),
            "died": run.death.how,
            "seconds": run.seconds,
            **asdict(verdict),
        }
        row |= {"errors": run.jobs.errors, "cycles": len(run.jobs.cycles), "findings": verdict.findings[:20]}
        file.write(json.dumps(row) + "\n")
    return verdict


def _numbers(verdict: Verdict) -> dict[str, int]:
    return {one.name: getattr(verdict, one.name) for one in fields(Verdict) if one.name != "findings"}


def _shown(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in numbers.items())


if __name__ == "__main__":
    sys.exit(main())
