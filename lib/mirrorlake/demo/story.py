"""`make demo`: two clusters, live traffic, a mirror, a migration of consumer groups.

The demo checks what it shows, and ends with a non-zero status if a check fails.

1. Two Kafka clusters start on this machine, `a` and `b`.
2. Producers write to three topics of `a` (keys, headers, different codecs, transactions). Six groups read at
different speeds and commit.
3. Meanwhile papermill runs the notebooks: mirror.ipynb copies `a` to `b`, checkpoint.ipynb syncs the groups' offsets.
4. The consumers on `a` stop and continue on `b`, from their groups' offsets on `b`. Every record that they get is
compared with those that they had read.
5. audit.ipynb queries the ledger; the executed notebooks are kept as HTML.
6. A verification compares every record by the exact map, and one page tells the whole story.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from mirrorlake import resources
from mirrorlake.demo.comparison import compare_groups, compare_topics
from mirrorlake.demo.page import PAGE
from mirrorlake.demo.run_notebook import COMMITTED, CYCLE, Notebook
from mirrorlake.demo.traffic import DEADLINE_S, READERS, TOPICS, consume, produce
from mirrorlake.local.__main__ import set_up
from mirrorlake.local.cluster import LocalCluster

LIVE_S = 15  # from the first micro-batch on
QUIET_S = 3

PROPERTIES = """\
# Written by `make demo`.
clusters = a, b
a.bootstrap.servers = {a}
b.bootstrap.servers = {b}
a->b.enabled = true
sync.group.offsets.enabled = true
refresh.groups.interval.seconds = 5
replication.factor = 1
offset-syncs.topic.replication.factor = 1
mirrorlake.ledger.interval.seconds = 3
"""


def home() -> Path:
    """Returns the directory of the demo's clusters, tables and pages."""
    return resources.home() / ".local/demo"


def page() -> Path:
    """Returns the path of the page that tells the whole story."""
    return home() / PAGE


def tell() -> list[str]:
    """Runs the demo; returns the checks that failed."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    set_up(resources.home())
    clusters = {
        name: LocalCluster(name, home() / "clusters" / name, resources.home() / ".local/jars/kafka", port=port)
        for name, port in (("a", 19092), ("b", 29092))
    }
    for cluster in clusters.values():
        cluster.delete()  # left by the last demo, which may have been interrupted
    shutil.rmtree(home(), ignore_errors=True)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(LocalCluster.start, clusters.values()))
        for cluster in clusters.values():
            say(f"cluster {cluster.name} runs on {cluster.bootstrap_servers}")
        problems = show(clusters["a"].bootstrap_servers, clusters["b"].bootstrap_servers, say)
    finally:
        for cluster in clusters.values():
            cluster.stop()
    say("both clusters are stopped")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return problems


def show(source: str, target: str, say: Callable[[str], None]) -> list[str]:
    """Runs the traffic and the notebooks; returns the checks that failed. Nothing of it is left when this ends."""
    with ExitStack() as ends:
        return _show(source, target, say, ends)


def _traffic(source: str, stop: threading.Event) -> list[threading.Thread]:
    """Creates the topics, and starts all producers and consumers; they end when `stop` is set."""
    admin = AdminClient({"bootstrap.servers": source, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1) for topic in TOPICS]).values():
        future.result()
    traffic = [threading.Thread(target=produce, args=(source, topic, stop)) for topic in TOPICS] + [
        threading.Thread(target=consume, args=(source, reader, stop)) for reader in READERS
    ]
    for thread in traffic:
        thread.start()
    return traffic


def _show(source: str, target: str, say: Callable[[str], None], ends: ExitStack) -> list[str]:
    config = home() / "mirrorlake.properties"
    config.write_text(PROPERTIES.format(a=source, b=target))
    stop = threading.Event()
    ends.callback(stop.set)  # an interrupt must not leave threads that keep this process alive
    traffic = _traffic(source, stop)
    say(f"{len(TOPICS)} producers and {len(READERS)} consumer groups are at work on cluster a")
    flow = ["-p", "config", str(config), "-p", "warehouse", str(home() / "warehouse")]
    jobs = [
        Notebook("mirror", [*flow, "-p", "trigger", "1 seconds"], say),
        Notebook("checkpoint", [*flow, "-p", "trigger", "3 seconds"], say),
    ]
    for job in jobs:
        ends.callback(job.end)
    say("mirror.ipynb and checkpoint.ipynb are starting (Spark takes a while)")
    for job in jobs:
        job.begun.wait(2 * DEADLINE_S)
    time.sleep(LIVE_S)  # the length of the live part; it waits for no condition
    stop.set()
    for thread in traffic:
        thread.join()
    say("producers and consumers on cluster a have stopped; the jobs finish what is left")
    mirror, checkpoint = jobs
    cycles = len(checkpoint.logged(CYCLE))
    problems = checkpoint.until(
        lambda: any("status_clamped" not in line for line in checkpoint.logged(CYCLE)[cycles + 1 :]),
        "every group is translated exactly",
    )
    problems += mirror.until(
        lambda: [line["lag"] for line in mirror.logged(COMMITTED)[-1:]] == [0] and mirror.quiet_s() > QUIET_S,
        "everything is mirrored",
    )
    for job in jobs:
        job.interrupt()
    problems += [problem for job in jobs for problem in job.wait()]
    if problems:
        return problems
    audit = Notebook("audit", ["-p", "warehouse", str(home() / "warehouse"), "-p", "group_id", "archive"], say)
    making = subprocess.Popen(
        [sys.executable, "-m", "mirrorlake.demo.page", str(home())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    say("every group goes on on cluster b; meanwhile a verification compares all records by the exact map")
    problems += compare_topics(source, target, say)
    say("what each group reads on cluster b is compared with what it has read on a: half a minute")
    moves, wrong = compare_groups(source, target)
    problems += wrong
    problems += audit.wait()
    say(f"audit.html is written; {PAGE} follows")
    printed, complaints = making.communicate(json.dumps([asdict(move) for move in moves]))
    if making.returncode:
        problems.append(f"the page could not be made: {complaints[-1_000:]}")
    else:
        say(printed.strip())
    print("\nlook at it:")
    for name in ("mirror", "checkpoint", "audit"):
        print(f"  {home() / 'notebooks' / name}.html")
    print(f"  Delta tables: {home() / 'warehouse/mirrorlake'}")
    if not making.returncode:
        print(f"  the whole story, one file to mail: {page().as_uri()}\n")
    return problems
