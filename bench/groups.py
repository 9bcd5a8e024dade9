"""Many groups at once: the time from the last commit on the source until all groups have their offsets on the target.

All groups move, round after round, while the checkpoint job runs its cycles.
"""

from __future__ import annotations

import re
import statistics
import time
from contextlib import ExitStack
from typing import Any

from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.group_offsets import commit_group_offsets, group_offsets

from bench.arrivals import TIMEOUT_MS, StalledError
from bench.clusters import connected
from bench.contestants import Task, job
from bench.load import Load, create, fill
from bench.processes import MIB, ProcessTree

RECORDS = 80_000
ROUNDS = 4  # the first one warms up
POLL_S = 0.25
PLACED_S = 120
PROPERTIES = {"sync.group.offsets.enabled": "true"}
CYCLE = re.compile(r"\bcheckpoint_cycle .*\brows=(\d+) seconds=([\d.]+)$", re.MULTILINE)


def measure(task: Task, groups: int, partitions: int) -> dict[str, Any]:
    """Measures mirrorlake's checkpoint job with that many groups, each with a position in every partition."""
    clusters, load = task.clusters, Load(RECORDS, partitions=partitions)
    create(clusters.source.bootstrap_servers, task.topic, partitions)
    fill(clusters.source.bootstrap_servers, task.topic, load)
    names = [f"{task.alias}-group-{number:05}" for number in range(groups)]
    keys = [(task.topic, partition) for partition in range(partitions)]
    with ExitStack() as stack:
        source = stack.enter_context(connected(clusters.source.bootstrap_servers, "source"))
        target = stack.enter_context(connected(clusters.target.bootstrap_servers, "target"))
        source.refresh([task.topic], TIMEOUT_MS)
        ends = source.offsets(keys, LATEST_TIMESTAMP, TIMEOUT_MS)
        commit_group_offsets(source, {name: dict.fromkeys(keys, (0, "")) for name in names}, TIMEOUT_MS)
        with job("mirror", task, 0) as mirror:
            mirror.wait(180)
        running = stack.enter_context(job("checkpoint", task, 1))
        tree = stack.enter_context(ProcessTree(running.pid))
        _await(target, names, dict.fromkeys(keys, 0))
        seconds = []
        for number in range(1, ROUNDS + 1):
            places = {key: end * number // ROUNDS for key, end in ends.items()}
            began = time.monotonic()
            commit_group_offsets(
                source, {name: {key: (place, "") for key, place in places.items()} for name in names}, TIMEOUT_MS
            )
            committed = time.monotonic()
            _await(
                target, names, places
            )  # one transaction without a marker before it: offsets are the same on both sides
            seconds.append(time.monotonic() - committed)
            print(
                f"    {groups:,} groups x {partitions}: committed in {committed - began:.1f} s, in place after "
                f"{seconds[-1]:.1f} s",
                flush=True,
            )
        peak_bytes = tree.peak_bytes
    cycles = [
        float(took)
        for rows, took in CYCLE.findall((task.directory / "checkpoint.log").read_text())
        if int(rows) >= groups * partitions
    ]
    return {
        "groups": groups,
        "positions": groups * partitions,
        "in_place_s": statistics.median(seconds[1:]),
        "cycle_s": statistics.median(cycles[1:] or cycles or [0.0]),
        "rounds_s": seconds,
        "cycles_s": cycles,
        "peak_mib": peak_bytes / MIB,
    }


def _await(target: Cluster, names: list[str], places: dict[tuple[str, int], int]) -> None:
    """Waits until every group has these offsets in the partitions of the remote topic."""
    wanted = {partition: place for (_, partition), place in places.items()}
    deadline = time.monotonic() + PLACED_S
    while True:
        found = group_offsets(target, names, TIMEOUT_MS)
        late = [
            name
            for name in names
            if {position.partition: position.offset for position in found.get(name, ())} != wanted
        ]
        if not late:
            return
        if time.monotonic() > deadline:
            raise StalledError(f"{len(late):,} groups are not in place, among them {late[0]}: {found.get(late[0])}")
        time.sleep(POLL_S)
