"""The cases by name, and the cases of a run.

The name of a backlog states its contents: `512-lz4-8` has records of 512 B, compressed with lz4, in 8 partitions. With
`-small` at the end, batches are as small as by the Java producer's default (16 KiB). With `-b1`, they hold 1 record, as
those of a producer that does not linger.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.local.proxy.control import NetworkLine

from bench import backlog, freshness, groups, trickle
from bench.clusters import HOME, Clusters
from bench.contestants import CEILING, MIRRORLAKE, MM2_DEFAULT, MM2_DEFAULT_EOS, MM2_TUNED, MM2_TUNED_EOS, Task
from bench.load import Load, create, fill

MAIN = "512-lz4-8"
RECORDS = {100: 24_000_000, 512: 20_000_000, 1_024: 8_000_000, 10_240: 1_000_000}
BATCH_RECORDS = {100: 2_000, 512: 500, 1_024: 250, 10_240: 50}
SIZES = (100, 512, 10_240)
SMALL_BATCH_BYTES = 16 << 10
CODECS = ("lz4", "zstd", "none")
PARTITIONS = (1, 8, 200)
AXES = (MAIN, "100-lz4-8", "10240-lz4-8", "512-zstd-8", "512-none-8", "512-lz4-1", "512-lz4-200", "512-lz4-8-small")
SMALL_BATCH_RECORDS = {1: 8_000_000, 8: 16_000_000, 32: 16_000_000}  # records of a case, by records of a batch
FIELD = tuple(f"{MAIN}-b{records}" for records in SMALL_BATCH_RECORDS)
PUBLISHED = "1024-none-40"  # the case that Redpanda publishes of its Migrator: 345 MB/s for each core
FAR = {"wan-source": "source", "wan-target": "target"}
ROUND_TRIP_MS, WINDOW_BYTES = 100, 4 << 20
FAR_RECORDS, FAR_PARTITIONS = 28_000_000, 4
TRICKLE_S = 60
GROUPS = 1_000


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: the name of the case.
        kind: `backlog`, `trickle`, `freshness` or `groups`.
        contestants: the contestants, in the order of the first round.
        settings: the contents of the case, for the results.
        measure: measures one contestant.
        load: the records that are in the topic beforehand; None if each contestant has a topic of its own.
        rounds: the largest number of rounds. A case with several tries within itself needs no more.
        once: the contestants of the first round only; no limit compares their figures.
        properties: the properties of every contestant.
        far: the side that contestants reach over a long line; empty for none.
    """

    name: str
    kind: str
    contestants: tuple[str, ...]
    settings: dict[str, Any]
    measure: Callable[[str, Task], dict[str, Any]]
    load: Load | None = None
    rounds: int = 1_000
    once: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    far: str = ""

    @property
    def topic(self) -> str:
        """Returns the source topic; a contestant without a shared load adds its alias."""
        return f"bench-{self.name}"

    def prepare(self, clusters: Clusters) -> None:
        """Empties both clusters, and fills the topic that all contestants share."""
        clusters.clean()
        if self.load:
            create(clusters.source.bootstrap_servers, self.topic, self.load.partitions)
            fill(clusters.source.bootstrap_servers, self.topic, self.load)

    @contextmanager
    def with_line(self, clusters: Clusters) -> Iterator[Clusters]:
        """Provides the clusters as contestants of this case reach them."""
        if not self.far:
            yield clusters
            return
        with clusters.with_line(self.far, NetworkLine(ROUND_TRIP_MS / 2, WINDOW_BYTES)) as far:
            yield far

    def task(self, clusters: Clusters, contestant: str, number: int) -> Task:
        """Returns the task of one contestant in one round; its alias is unique, so that the flow begins anew."""
        alias = f"r{number}{contestant.replace('-', '')}"
        codec = self.load.codec if self.load else "lz4"
        topic = self.topic if self.load else f"{self.topic}-{alias}"
        return Task(clusters, HOME / "runs" / self.name / alias, alias, topic, codec, self.properties)


def find(wanted: str, scale: float) -> list[Case]:
    """Returns the cases of a selection.

    A selection is a list of names with commas between them, `default` (those with limits), `axes` (and one property
    varied at a time), `field` (batches of a few records, and what a competitor publishes), `far` (one cluster at the
    end of a long line) or `all`.

    Args:
        wanted: the selection.
        scale: the share of the records and seconds of each case, for a quick look.

    Raises:
        ValueError: there is no such case.
    """
    others = [_trickle(scale), _freshness(), _groups(scale)]
    far = [_far(name, scale) for name in FAR]
    default = [*(_backlog(name, scale) for name in (MAIN, *FIELD)), *far, *others]
    sets = {
        "default": default,
        "axes": [*default, *(_backlog(name, scale) for name in AXES if name != MAIN)],
        "field": [_backlog(name, scale) for name in (*FIELD, PUBLISHED)],
        "far": far,
        "all": [
            *(
                _backlog(name, scale)
                for name in dict.fromkeys(
                    (
                        *AXES,
                        *FIELD,
                        PUBLISHED,
                        *("-".join(map(str, one)) for one in itertools.product(SIZES, CODECS, PARTITIONS)),
                    )
                )
            ),
            *far,
            *others,
        ],
    }
    known = {case.name: case for case in sets["all"]}
    found: list[Case] = []
    for name in (part.strip() for part in wanted.split(",")):
        if name not in sets and name not in known:
            raise ValueError(f"there is no case {name}; there are {', '.join((*sets, *known))}")
        found += sets.get(name) or [known[name]]
    return list({case.name: case for case in found}.values())


def _backlog(name: str, scale: float) -> Case:
    size, codec, partitions, *small = name.split("-")
    records, batch = RECORDS[int(size)], BATCH_RECORDS[int(size)]
    if small == ["small"]:
        records, batch = records // 2, SMALL_BATCH_BYTES // int(size)
    elif small:
        batch = int(small[0].removeprefix("b"))
        records = SMALL_BATCH_RECORDS[batch]
    load = Load(max(1, int(scale * records)), int(size), codec, int(partitions), batch)
    once = (MM2_DEFAULT, MM2_DEFAULT_EOS) if name == MAIN else ()
    # The bare loop passes every batch on by itself. With one record in a batch, that would take minutes.
    contestants = (MM2_TUNED, MM2_TUNED_EOS, *once, MIRRORLAKE, *(() if name in FIELD else (CEILING,)))
    settings = {
        "records": load.records,
        "bytes": load.bytes,
        "codec": codec,
        "partitions": load.partitions,
        "batch_records": batch,
    }
    return Case(
        name, "backlog", contestants, settings,
        lambda contestant, task: backlog.measure(contestant, task, load.records, load.partitions), load, once=once,
    )  # fmt: skip


def _far(name: str, scale: float) -> Case:
    load = Load(max(1, int(scale * FAR_RECORDS)), partitions=FAR_PARTITIONS)
    settings = {
        "records": load.records,
        "bytes": load.bytes,
        "codec": load.codec,
        "partitions": load.partitions,
        "batch_records": load.batch_records,
        "round_trip_ms": ROUND_TRIP_MS,
        "window_bytes": WINDOW_BYTES,
    }
    return Case(
        name, "backlog", (MM2_TUNED, MIRRORLAKE, CEILING), settings,
        lambda contestant, task: backlog.measure(contestant, task, load.records, load.partitions), load, far=FAR[name],
    )  # fmt: skip


def _trickle(scale: float) -> Case:
    seconds = max(5.0, scale * TRICKLE_S)
    settings = {"per_second": trickle.PER_SECOND, "seconds": seconds, "partitions": 8}
    return Case(
        "trickle",
        "trickle",
        (MM2_TUNED, MM2_TUNED_EOS, MIRRORLAKE),
        settings,
        lambda contestant, task: trickle.measure(contestant, task, 8, seconds),
        rounds=1,
    )


def _freshness() -> Case:
    settings = {"groups": freshness.GROUPS, "per_second": freshness.PER_SECOND, "partitions": 1}
    return Case(
        "freshness",
        "freshness",
        (MM2_DEFAULT, MIRRORLAKE),
        settings,
        freshness.measure,
        rounds=1,
        properties=freshness.PROPERTIES,
    )


def _groups(scale: float) -> Case:
    count = max(2, int(scale * GROUPS))
    settings = {"groups": count, "partitions": 8}
    properties = {**groups.PROPERTIES, "emit.checkpoints.interval.seconds": "1"}
    return Case(
        "groups-1000",
        "groups",
        (MIRRORLAKE,),
        settings,
        lambda _, task: groups.measure(task, count, 8),
        rounds=1,
        properties=properties,
    )
