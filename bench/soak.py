"""`make soak`: mirror and checkpoint run for MINUTES as operators run them, and nothing may grow.

Both notebooks run by papermill with Spark, under a trickle of records, a burst every two minutes, a consumer group
that commits, and restarts of a broker of either side in turn. The ledger and the groups have shorter intervals than by
default. So an hour does the work of several, and what fills or is compiled once has done so within the first ten
minutes. Every few seconds the instruments of `vitals.py` are read. In the end each series is judged (`judge.py`):
memory may grow by less than 1 MiB in an hour after the first ten minutes. .local/soak gets samples.csv, the verdicts as
verdicts.json and chart.svg, and beside each notebook the details of its JVM (jvm.txt) and the changes of its open files
(files.txt).

Exit codes: 0 nothing grows; 1 something does; 2 a job has ended before its time; 3 of a series nobody can tell; 130
interrupted.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException
from mirrorlake.local.cluster import LocalCluster

from bench.background import Background
from bench.clusters import ROOT, Clusters, two_clusters
from bench.judge import Judgement, Verdict, floor, judge
from bench.leak import leaking
from bench.load import Load, create, fill
from bench.soak_chart import draw
from bench.stream import Trickle
from bench.vitals import INSTRUMENTS, LEDGER, TRACKED, Instrument, Notebook, ledger_vitals

HOME = ROOT / ".local/soak"
TOPIC, GROUP, FLOW = "orders", "readers", "west->east"
PARTITIONS, PER_SECOND = 4, 50
BURST = Load(20_000, 512, partitions=PARTITIONS)
BURST_S, RESTART_S = 120.0, 300.0
LEDGER_S, CYCLE_S, LAG_S = 5, 3, 10  # 30, 5 and 60 by default
SAMPLE_S, WARM_UP_S, END_S = 10.0, 600.0, 180.0
LONGEST_WINDOW_S, FEWEST_WINDOWS = 2 * RESTART_S, 12  # what comes and goes does so with bursts and restarts
JOBS = ("mirror", "checkpoint")

Series = dict[str, list[tuple[float, float]]]


class Bursts(Background):
    """Fills the topic at intervals."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self._servers, self.count = servers, 0

    def work(self) -> None:
        while not self.stopping.wait(BURST_S):
            with suppress(RuntimeError):  # the broker is being restarted
                fill(self._servers, TOPIC, BURST)
                self.count += 1


class Group(Background):
    """A group that reads the topic on the source and commits."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 2_000,
                "log_level": 0,
            }
        )

    def work(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self.stopping.is_set():
            with suppress(KafkaException):
                self._consumer.consume(1_000, 1.0)
        self._consumer.close()


class Restarts(Background):
    """Restarts the broker of either side in turn."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self._clusters: tuple[LocalCluster, LocalCluster] = (clusters.source, clusters.target)
        self.count = 0

    def work(self) -> None:
        while not self.stopping.wait(RESTART_S):
            cluster = self._clusters[self.count % 2]
            cluster.stop_broker(1)
            cluster.start_broker(1)
            self.count += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S / 60, help="minutes that are not judged (10)")
    parser.add_argument(
        "--window", type=float, default=0, help="minutes of a point (10; less in a run below two hours)"
    )
    parser.add_argument("--leak", action="store_true", help="let both jobs leak of everything, to see that it is found")
    parser.add_argument(
        "--judge", type=Path, help="judge the samples of an earlier run, or of one that runs; run nothing"
    )
    given = parser.parse_args()
    ended: list[str] = []
    if given.judge:
        series = read_samples(given.judge)
    else:
        for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has started it without; nothing may stay
            signal.signal(number, signal.default_int_handler)
        try:
            series, ended = soak(given.minutes, leaks=given.leak)
        except KeyboardInterrupt:
            print(f"interrupted; --judge {HOME / 'samples.csv'} judges what there is")
            return 130
    home = given.judge.parent if given.judge else HOME
    warm_up_s, end_s = 60 * given.warm_up, ended_at(series)
    window_s = 60 * given.window or min(LONGEST_WINDOW_S, (end_s - warm_up_s) / FEWEST_WINDOWS)
    judged = judge_all(series, warm_up_s, max(window_s, SAMPLE_S))
    report(series, judged)
    (home / "verdicts.json").write_text(json.dumps({name: figures(one) for name, one in judged.items()}, indent=1))
    draw(series, judged, warm_up_s, home / "chart.svg")
    if ended:
        print(f"ended before its time: {', '.join(ended)}; see {HOME}/*.ipynb")
        return 2
    return verdict(judged)


def soak(minutes: float, *, leaks: bool) -> tuple[Series, list[str]]:
    """Runs both notebooks for that long; returns all series, and the jobs that have ended before."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    with two_clusters(HOME / "clusters") as clusters:
        create(clusters.source.bootstrap_servers, TOPIC, PARTITIONS)
        config = write_config(clusters)
        environment = leaking(HOME / "leak") if leaks else {}
        with ExitStack() as stack:
            notebooks = {job: stack.enter_context(running(job, config, minutes, environment)) for job in JOBS}
            trickle = Trickle(clusters.source.bootstrap_servers, TOPIC, PARTITIONS, PER_SECOND)
            stack.enter_context(trickle)
            stack.enter_context(Group(clusters.source.bootstrap_servers))
            bursts = stack.enter_context(Bursts(clusters.source.bootstrap_servers))
            restarts = stack.enter_context(Restarts(clusters))
            series, ended = watch(notebooks, 60 * minutes)
            print(
                f"{minutes:g} minutes: {len(trickle.sent):,} records in a trickle ({trickle.replaced} producers "
                f"replaced), {bursts.count} bursts of {BURST.records:,}, {restarts.count} restarts of brokers"
            )
    return series, ended


def ended_at(series: Series) -> float:
    """Returns the time of the last sample."""
    return max((samples[-1][0] for samples in series.values()), default=0.0)


def judge_all(series: Series, warm_up_s: float, window_s: float) -> dict[str, Judgement]:
    """Judges each series that has a limit."""
    end_s = ended_at(series)
    return {
        name: judge(
            series.get(name, []),
            instrument.limit,
            warm_up_s,
            window_s,
            point=floor if instrument.is_floor else median,
            end_s=end_s,
        )
        for name, instrument in expected()
        if instrument.limit is not None
    }


def figures(one: Judgement) -> dict[str, Any]:
    """Returns a judgement as plain values; what is not known is None."""
    values = {**asdict(one), "judged": one.points}
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in values.items()
    }


def verdict(judged: dict[str, Judgement]) -> int:
    """Prints the verdict about the whole; returns the exit code."""
    of = {
        kind: [name for name, one in judged.items() if one.verdict is kind]
        for kind in (Verdict.GROWS, Verdict.UNDECIDED, Verdict.STEP)
    }
    if of[Verdict.GROWS]:
        print(f"verdict: these grow: {', '.join(of[Verdict.GROWS])}")
        return 1
    if of[Verdict.UNDECIDED]:
        print(f"verdict: nothing is seen to grow, but nobody can tell of {', '.join(of[Verdict.UNDECIDED])}")
        return 3
    steps = f"; one step each: {', '.join(of[Verdict.STEP])}" if of[Verdict.STEP] else ""
    print(f"verdict: nothing grows{steps}")
    return 0


def read_samples(path: Path) -> Series:
    """Reads the samples of a run."""
    series: Series = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            series[row["series"]].append((float(row["seconds"]), float(row["value"])))
    return series


def write_config(clusters: Clusters) -> Path:
    """Writes the property file of the flow, with the intervals of a soak."""
    properties = {
        "clusters": "west, east",
        "west.bootstrap.servers": clusters.source.bootstrap_servers,
        "east.bootstrap.servers": clusters.target.bootstrap_servers,
        f"{FLOW}.enabled": "true",
        "topics": TOPIC,
        "groups": GROUP,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "sync.group.offsets.enabled": "true",
        "emit.checkpoints.interval.seconds": str(CYCLE_S),
        "mirrorlake.ledger.interval.seconds": str(LEDGER_S),
        "mirrorlake.lag.interval.seconds": str(LAG_S),
        "mirrorlake.retry.timeout.ms": "300000",
    }
    config = HOME / "mirrorlake.properties"
    config.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    return config


@contextmanager
def running(job: str, config: Path, minutes: float, variables: Mapping[str, str]) -> Iterator[Notebook]:
    """Runs a notebook by papermill for the length of a block, with variables of the environment."""
    temporary, log, output = HOME / f"{job}-tmp", HOME / f"{job}.jsonl", HOME / f"{job}.ipynb"
    temporary.mkdir()
    given = {
        "config": str(config),
        "flow": FLOW,
        "warehouse": str(HOME / "warehouse"),
        "trigger": "1 second" if job == "mirror" else f"{CYCLE_S} seconds",
        "run_for": f"{int(60 * (minutes + 60))} seconds",  # it is stopped before
    }
    words = [
        str(Path(sys.executable).with_name("papermill")),
        "--no-progress-bar",
        str(ROOT / f"notebooks/{job}.ipynb"),
    ]
    words += [str(output), *(word for name, value in given.items() for word in ("-p", name, value))]
    environment = {
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "MIRRORLAKE_LOG_FILE": str(log),
        "MIRRORLAKE_LOG_FORMAT": "json",
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {TRACKED}",
        **variables,
    }
    with (HOME / f"{job}.err").open("w") as errors:
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **environment}, stdout=errors, stderr=subprocess.STDOUT
        )
    try:
        yield Notebook(psutil.Process(process.pid), output, temporary, log)
    finally:
        family = [process, *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        for one in family[1:]:
            with suppress(psutil.Error):
                if "ipykernel" in " ".join(one.cmdline()):
                    one.send_signal(signal.SIGTERM)  # ends the job between two micro-batches
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            for one in reversed(family):
                with suppress(psutil.Error, OSError):
                    one.kill()
            process.wait()


def watch(notebooks: dict[str, Notebook], seconds: float) -> tuple[Series, list[str]]:
    """Reads all instruments until the time is over; returns the series, and the jobs that have ended before."""
    series: Series = defaultdict(list)
    with (HOME / "samples.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("seconds", "series", "value"))
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            ended = [job for job, notebook in notebooks.items() if not is_running(notebook)]
            if ended:
                return series, ended
            values = {f"{job} {name}": one for job, nb in notebooks.items() for name, one in nb.vitals().items()}
            values |= {f"ledger {name}": one for name, one in ledger_vitals(HOME / "warehouse").items()}
            for name, value in values.items():
                series[name].append((passed, value))
                rows.writerow((f"{passed:.1f}", name, f"{value:.3f}"))
            file.flush()
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - passed)))
    return series, []


def is_running(notebook: Notebook) -> bool:
    with suppress(psutil.Error):
        return notebook.process.is_running() and notebook.process.status() != psutil.STATUS_ZOMBIE
    return False


def report(series: Series, judged: Mapping[str, Judgement]) -> None:
    """Prints a line for each series."""
    print(f"{'series':28} {'verdict':10} {'last':>10} {'an hour':>10} {'95 % from':>10} {'to':>10} {'limit':>8}  unit")
    for name, instrument in expected():
        samples = series.get(name, [])
        last = f"{samples[-1][1]:,.1f}" if samples else "-"
        one = judged.get(name)
        if one is None:
            print(f"{name:28} {'shown only':10} {last:>10} {'':>42}  {instrument.unit}")
            continue
        numbers = " ".join(f"{value:>10,.1f}" for value in (one.slope, one.low, one.high))
        step = f"; a step of {one.step:,.1f}" if one.verdict is Verdict.STEP else ""
        short = f"; {one.points} points after the warm-up" if one.verdict is Verdict.UNDECIDED else ""
        print(f"{name:28} {one.verdict:10} {last:>10} {numbers} {instrument.limit:>8g}  {instrument.unit}{step}{short}")


def expected() -> Iterator[tuple[str, Instrument]]:
    """Yields the names of all series."""
    for job in JOBS:
        for instrument in INSTRUMENTS:
            yield f"{job} {instrument.name}", instrument
    for instrument in LEDGER:
        yield f"ledger {instrument.name}", instrument


if __name__ == "__main__":
    sys.exit(main())
