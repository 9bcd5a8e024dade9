"""For generated logs, the target has the same records in the same order, and the map is right for every offset.

The tests use real brokers, and read with another client. MIRRORLAKE_FIDELITY_CASES is the number of logs (`make
test-fidelity`: 200). The logs are the same every time, unless MIRRORLAKE_FIDELITY_SEED is set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from mirrorlake.config.options import CONFIG_PROPERTIES_EXCLUDE
from mirrorlake.ledger import views
from mirrorlake.model.run import Run, translate
from mirrorlake.protocol.cluster import Cluster

from tests.fidelity.nasty_logs import Author, NastyLog, Written, nasty_logs
from tests.world import Record, World, configure

CASES = int(os.environ.get("MIRRORLAKE_FIDELITY_CASES", "24"))
DRAWN = 4  # times as many logs
AT_ONCE = 50  # topics that one flow mirrors together
# Remote topics of compacted topics are not compacted themselves: the target's cleaner may be faster than the source's,
# and would remove records that the source still has.
UNCOMPACTED = {
    "target.topic.creation.min.compaction.lag.ms": str(100 * 365 * 86_400_000),
    "config.properties.exclude": f"{' '.join(CONFIG_PROPERTIES_EXCLUDE.split())}, min.compaction.lag.ms, "
    "max.compaction.lag.ms",
}
KEPT = 3  # a filter leaves out the records whose offset is a multiple of this


class Case:
    """One generated log in a topic of a flow."""

    def __init__(self, world: World, cluster: Cluster, log: NastyLog, number: int) -> None:
        self.world, self.log = world, log
        self.topic = world.topic(f"{number}-filtered" if log.is_filtered else f"{number}", log.partitions, log.config())
        self.author = Author(cluster, self.topic)
        cluster.refresh([self.topic], 30_000)

    def write(self, start: int, end: int) -> None:
        for step in self.log.steps[start:end]:
            self.author.write(step)

    def compare(self, rows: list[Any]) -> int:
        """Compares both sides and the map (rows of offset_syncs) record by record; returns the number of records."""
        try:
            return self._compare(rows)
        except AssertionError as error:
            error.add_note(f"topic {self.topic}: {self.log}")
            raise

    def _compare(self, rows: list[Any]) -> int:
        if self.log.is_compacted:  # so that both sides stay readable
            configure(
                self.world,
                self.topic,
                {
                    "min.cleanable.dirty.ratio": "1",
                    "min.compaction.lag.ms": "3600000",
                    "max.compaction.lag.ms": "7200000",
                },
            )
        source, target = self.world.source_records(self.topic), self.world.target_records(self.topic)
        total = 0
        for partition, records in source.items():
            wanted = [
                (offset, created(record)) for offset, record in records if not self.log.is_filtered or offset % KEPT
            ]
            copies = target[partition]
            mine = [row for row in rows if (row["topic"], row["partition"]) == (self.topic, partition)]
            if self.log.is_compacted:  # the cleaner may have taken some of the source's records meanwhile
                self.compare_compacted(mine, wanted, copies)
            else:
                assert [record for _, record in copies] == [record for _, record in wanted], f"{self.topic}-{partition}"
                self.compare_map(mine, wanted, copies)
            total += len(wanted)
        return total

    def compare_compacted(
        self, rows: list[Any], source: list[tuple[int, Record]], target: list[tuple[int, Record]]
    ) -> None:
        """Checks that each copy has one source offset by the map, in order and once.

        Each record that the source still has must be on the target, with equal contents.
        """
        origin = {
            row["downstream_start"] + at: row["upstream_start"] + at for row in rows for at in range(row["records"])
        }
        strangers = [offset for offset, _ in target if offset not in origin]
        assert strangers == [], f"{self.topic}: copies that are in no run"
        upstream = [origin[offset] for offset, _ in target]
        assert upstream == sorted(set(upstream)), f"{self.topic}: copies out of order, or twice"
        copies = {offset: frozen(copy)[1] for offset, copy in zip(upstream, target, strict=True)}
        kept = {offset: frozen((offset, record))[1] for offset, record in source}
        assert kept.keys() - copies.keys() == set(), f"{self.topic}: missing on the target"
        assert {offset: copies[offset] for offset in kept} == kept

    def compare_map(self, rows: list[Any], source: list[tuple[int, Record]], target: list[tuple[int, Record]]) -> None:
        names = list(Run.__dataclass_fields__)
        runs = [
            Run(
                **{name: row[name] for name in names if name not in ("first_timestamp", "last_timestamp", "digest")},
                first_timestamp=0,
                last_timestamp=0,
                digest=0,
            )
            for row in rows
        ]
        pairs = [(offset, copy) for (offset, _), (copy, _) in zip(source, target, strict=True)]
        assert [
            (run.upstream_start + at, run.downstream_start + at) for run in runs for at in range(run.records)
        ] == pairs
        for offset in range(pairs[-1][0] + 1 if pairs else 0):
            assert translate(runs, offset) == next(copy for at, copy in pairs if at >= offset)


def created(record: Record) -> Record:
    """Returns a record as it should arrive on the target.

    The broker's time of the source (LogAppendTime) becomes a creation time. A time that readers call
    unavailable becomes -1.
    """
    key, value, headers, (kind, stamp) = record
    return key, value, headers, ((1, stamp) if kind else (0, 0))


def frozen(found: tuple[int, Record]) -> tuple[int, object]:
    offset, (key, value, headers, (_, stamp)) = found
    return offset, (key, value, tuple(headers or ()), stamp)


def generated(count: int) -> list[NastyLog]:
    """Generates logs one by one; hypothesis limits the size of an example, so one draw can't have all of them.

    What it draws depends on the constants of all modules, and it draws some logs many times. So it draws more, of which
    the largest ones are taken, and for a quarter the smallest ones.
    """
    logs: list[NastyLog] = []

    @seed(int(os.environ.get("MIRRORLAKE_FIDELITY_SEED", "1")))
    @settings(
        max_examples=DRAWN * count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(nasty_logs())
    def keep(log: NastyLog) -> None:
        logs.append(log)

    keep()
    found = sorted(dict.fromkeys(logs), key=lambda log: log.records)
    few = count // 4
    return found[:few] + found[few:][few - count :]


@pytest.mark.timeout(3_600)  # many logs take long on a slow machine
def test_any_log_arrives_record_by_record_with_an_exact_map(
    servers: tuple[str, str], spark: object, warehouse: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = generated(CASES)
    assert len(logs) >= CASES
    records = sum(
        mirrored_and_compared(
            World(*servers, Path(tmp_path_factory.mktemp("world")), spark, warehouse), logs[start : start + AT_ONCE]
        )
        for start in range(0, len(logs), AT_ONCE)
    )
    assert records > 5 * len(logs), "too little was compared"


def mirrored_and_compared(world: World, logs: list[NastyLog]) -> int:
    """Mirrors all logs with one flow, in stages; returns the number of equal records."""
    world.write_config(
        **{
            "mirrorlake.transforms": "filtered",
            "mirrorlake.transform.filtered.topics": ".*-filtered",
            "mirrorlake.transform.filtered.where": f"offset % {KEPT} <> 0",
            "mirrorlake.on.loss": "stop",
            "mirrorlake.slots": "3",
            **UNCOMPACTED,
        }
    )
    cluster = Cluster(world.flow.source_connection, "source", "author").connect()
    try:
        cases = [Case(world, cluster, log, number) for number, log in enumerate(logs)]
        for case in cases:
            case.write(0, case.log.pause)
        world.mirror()
        for case in cases:
            case.write(case.log.pause, len(case.log.steps))
        world.mirror()  # an open transaction holds back the records behind it
        for number, case in enumerate(cases):
            case.author.end_all(commit=number % 2 == 0)
        world.mirror()
        assert world.mirror().records == 0
        rows = (
            views.runs_of_pair(world.ledger, world.flow.source, world.flow.target)
            .orderBy("topic", "partition", "upstream_start")
            .collect()
        )
        records = sum(case.compare(rows) for case in cases)
        world.assert_accounted(*(case.topic for case in cases))
        return records
    finally:
        cluster.close()


def test_the_generator_makes_what_it_should() -> None:
    """Every kind of unusual content must occur in the generated logs."""
    seen: set[str] = set()

    @seed(1)
    @settings(
        max_examples=300, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(nasty_logs())
    def look(log: NastyLog) -> None:
        written = [step for step in log.steps if isinstance(step, Written)]
        records = [content for step in written for content in step.contents]
        seen.update(f"codec {step.codec}" for step in written)
        seen.update(f"writer {step.writer}" for step in written)
        seen.update(f"timestamp {content.timestamp}" for content in records if content.timestamp in (-1, 0))
        seen.update({"stamped"} if log.is_stamped else ())
        seen.update({"compacted"} if log.is_compacted else ())
        seen.update({"filtered"} if log.is_filtered else ())
        seen.update("tombstone" for content in records if content.key is not None and content.value is None)
        seen.update("large" for content in records if content.large)
        seen.update("null header" for content in records if any(value is None for _, value in content.headers))
        seen.update(
            "header twice" for content in records if len({name for name, _ in content.headers}) < len(content.headers)
        )
        seen.update("empty value" for content in records if content.value == b"")

    look()
    assert seen >= {
        *(f"codec {codec}" for codec in range(5)),
        "writer 0",
        "writer 1",
        "writer 2",
        "timestamp -1",
        "timestamp 0",
        "stamped",
        "compacted",
        "filtered",
        "tombstone",
        "large",
        "null header",
        "header twice",
        "empty value",
    }
