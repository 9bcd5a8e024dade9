"""Checkpoint freshness: the time from a group's commit on the source until its offset on the target is translated.

Several groups commit one after the other, spread over more than a cycle of either contestant. Each commits at the end
of a topic that keeps growing. A group has `moved` when its commit has changed its offset on the target. It is `exact`
when it would read no record again on the target.

MirrorMaker 2 keeps ever fewer offset syncs of older offsets. By its next cycle it has none near a group that has not
moved since. The number of records that such a group would read again is a figure, too.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.group_offsets import commit_group_offsets, group_offsets
from mirrorlake.protocol.log_reader import read_stretch

from bench.arrivals import TIMEOUT_MS, StalledError
from bench.clusters import connected
from bench.contestants import MIRRORLAKE, Task, at_work
from bench.load import create
from bench.processes import MIB, ProcessTree
from bench.stream import Reader, Trickle
from bench.trickle import await_first, await_topic

PER_SECOND = 100
GROUPS, SPREAD_S = (
    12,
    65.0,
)  # one commit every 5.4 s: with 5 s, all commits would fall into one phase of mirrorlake's cycle of 5 s
WARM_S, LAST_S = 30, 240
POLL_S, PLACES_S = 0.25, 5
READ_BYTES = 8 << 20
PROPERTIES = {"sync.group.offsets.enabled": "true"}


@dataclass
class Commit:
    """A group's commit on the source, and its offsets on the target afterwards, each with the time of discovery."""

    at: float
    offset: int
    seen: list[tuple[float, int]]


def measure(contestant: str, task: Task) -> dict[str, Any]:
    """Measures the freshness of all groups of one contestant, at its default intervals."""
    clusters, groups = task.clusters, [f"{task.alias}-group-{number}" for number in range(GROUPS)]
    create(clusters.source.bootstrap_servers, task.topic, 1)
    key = (task.topic, 0)
    with ExitStack() as stack:
        source = stack.enter_context(connected(clusters.source.bootstrap_servers, "source"))
        target = stack.enter_context(connected(clusters.target.bootstrap_servers, "target"))
        source.refresh([task.topic], TIMEOUT_MS)
        # Both contestants refresh their groups every ten minutes only, so the groups must exist beforehand.
        commit_group_offsets(source, {group: {key: (0, "")} for group in groups}, TIMEOUT_MS)
        trickle = stack.enter_context(Trickle(clusters.source.bootstrap_servers, task.topic, 1, PER_SECOND))
        running = stack.enter_context(at_work(contestant, task, checkpoints=True))
        trees = [stack.enter_context(ProcessTree(process.pid)) for process in running.processes]
        await_topic(target, task.remote_topic, running.end_of_log)
        with Reader(clusters.target.bootstrap_servers, task.remote_topic, 1) as reader:
            await_first(reader, running.end_of_log)
        time.sleep(WARM_S)
        commits: dict[str, Commit] = {}
        began = looked = time.monotonic()
        target.refresh([task.remote_topic], TIMEOUT_MS)
        while time.monotonic() < began + SPREAD_S + LAST_S:
            due = groups[len(commits) : int(1 + (time.monotonic() - began) * GROUPS / SPREAD_S)]
            for group in due:
                offset = source.offsets([key], LATEST_TIMESTAMP, TIMEOUT_MS)[key]
                commit_group_offsets(source, {group: {key: (offset, "")}}, TIMEOUT_MS)
                commits[group] = Commit(time.monotonic(), offset, [])
            _look(target, commits)
            if not running.is_alive:
                raise StalledError(running.end_of_log())
            if len(commits) == GROUPS and time.monotonic() > looked + PLACES_S:
                looked, batches = time.monotonic(), _data_batches(target, task.remote_topic)
                if all(
                    (_exact_s if contestant == MIRRORLAKE else _moved_s)(commit, batches) is not None
                    for commit in commits.values()
                ):
                    break
            time.sleep(POLL_S)
        trickle.stop()
        peak_bytes = sum(tree.peak_bytes for tree in trees)
        batches = _data_batches(target, task.remote_topic)
    moved, exact = ([seconds(commit, batches) for commit in commits.values()] for seconds in (_moved_s, _exact_s))
    again = [commit.offset - _records_before(commit.seen[-1][1], batches) for commit in commits.values() if commit.seen]
    return {
        "groups": len(commits),
        "moved_s": moved,
        "exact_s": exact,
        **_summary("moved", moved),
        **_summary("exact", exact),
        "peak_mib": peak_bytes / MIB,
        "read_again": statistics.median(again) if len(again) == len(commits) else None,
    }


def _look(target: Cluster, commits: dict[str, Commit]) -> None:
    for group, positions in (group_offsets(target, commits, TIMEOUT_MS) if commits else {}).items():
        for position in positions:
            seen = commits[group].seen
            if not seen or seen[-1][1] != position.offset:
                seen.append((time.monotonic(), position.offset))


def _data_batches(target: Cluster, topic: str) -> list[tuple[int, int]]:
    """Returns (first offset, records) of each data batch of the remote partition."""

    async def read() -> list[tuple[int, int]]:
        end = (await target.list_offsets([(topic, 0)], LATEST_TIMESTAMP))[topic, 0]
        log = read_stretch(target, (topic, 0), 0, end, READ_BYTES)
        return [
            (batch.base_offset, batch.records)
            async for batch, is_aborted in log
            if not (batch.is_control or is_aborted)
        ]

    return target.net.run(read)


def _records_before(position: int, batches: list[tuple[int, int]]) -> int:
    """Returns the number of the source's records before that position on the target."""
    return sum(min(max(0, position - first), count) for first, count in batches)


def _moved_s(commit: Commit, _batches: list[tuple[int, int]]) -> float | None:
    """Returns the seconds until the group had left the beginning of the log, None if it never did."""
    return next((at - commit.at for at, position in commit.seen if position > 0), None)


def _exact_s(commit: Commit, batches: list[tuple[int, int]]) -> float | None:
    """Returns the seconds until no record would have been read again, None if that never happened."""
    return next(
        (at - commit.at for at, position in commit.seen if _records_before(position, batches) >= commit.offset), None
    )


def _summary(name: str, found: list[float | None]) -> dict[str, float]:
    """Returns median and maximum, if every group has a value."""
    values = [value for value in found if value is not None]
    return (
        {f"{name}_p50_s": statistics.median(values), f"{name}_max_s": max(values)}
        if len(values) == len(found) and values
        else {}
    )
