"""One run: the traffic, the jobs, the faults, and then the evidence for the checker."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from chaos import evidence as read
from chaos.cells import SILENT
from chaos.checker import RECOVERY_S, Evidence, GroupPosition, Partition, Record, findings, is_in_place
from chaos.clusters import Clusters, Side
from chaos.disturbances import LOOK_S, Disturbances
from chaos.scenario import AHEAD_CONNECTIONS, FAULTS_S, SILENT_FROM_S, Scenario, reads_ahead
from chaos.supervisor import Supervisor
from chaos.traffic import Traffic

BEGIN_S = 8.0


@dataclass
class Verdict:
    """The result of a run.

    Attributes:
        findings: what the checker has found.
        seen: the requests by side and kind.
        made: the faults by side, kind of request and fault.
        laps: the seconds that each part of the run took.
    """

    seed: int
    findings: list[str]
    seconds: float
    faults_s: float
    records: int
    recovered_s: float | None
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    made: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    restarts: int = 0
    laps: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns everything as text; the keys of counters are joined by spaces."""
        counters = {
            name: {" ".join(key): count for key, count in sorted(getattr(self, name).items())}
            for name in ("seen", "made")
        }
        return json.dumps({**vars(self), **counters}, indent=1)


def run(plan: Scenario, clusters: Clusters, directory: Path) -> Verdict:
    """Carries out a scenario, and judges what it has left.

    Args:
        plan: the scenario.
        clusters: the clusters, which must be whole.
        directory: for logs; emptied.
    """
    began = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "plan.txt").write_text("".join(f"{line}\n" for line in plan.lines()))
    (directory / "cells.json").write_text(json.dumps([astuple(cell) for cell in plan.cells]))
    older, source = clusters.older_target, clusters.source
    target = older if plan.is_older and older is not None else clusters.target
    return _Run(plan, source, target, directory).carry_out(began)


class _Run:
    def __init__(self, plan: Scenario, source: Side, target: Side, directory: Path) -> None:
        self._plan, self._source, self._target, self._directory = plan, source, target, directory
        self._alias = f"c{plan.seed}-{random.randrange(1 << 24):06x}"
        self._partitions: dict[str, int] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._is_silent = False
        self._laps: dict[str, float] = {}
        self._lap_from = time.monotonic()
        self._groups = [f"{self._alias}-g{number}" for number in range(3)]
        self._admin = AdminClient({"bootstrap.servers": source.servers, "log_level": 0})
        self._live = read.LiveReader(target.servers)
        self._traffic = Traffic(
            source.servers,
            self._alias,
            self._groups,
            random.Random(plan.seed),
            codec=plan.codec,
            size_bytes=plan.size_bytes,
            transactional=plan.transactional,
        )

    def carry_out(self, began: float) -> Verdict:
        self.add_topic(f"{self._alias}-orders", self._plan.partitions)
        supervisor = Supervisor(self._config(), f"{self._alias}->t", self._directory)
        disturbances = Disturbances(self._source, self._target, supervisor, self)
        self._traffic.start()
        self._arm()
        try:
            supervisor.start()
            faults_from = time.monotonic()
            self._lap("start")
            self._wait_for_records(supervisor)
            events_from = time.monotonic()
            for event in self._plan.events:
                self._wait(events_from + event.at_s, supervisor, events_from)
                disturbances.make(event)
            self._wait(events_from + FAULTS_S, supervisor, events_from, is_last=True)
            disturbances.end()
            faults_s = time.monotonic() - faults_from
            self._lap("faults")
            self._traffic.stop()
            expected = read.read_all(self._source.servers, self._partitions)
            self._lap("read the source")
            recovered_s = self._recovery(expected, supervisor)
            self._lap("recovery")
            stopped = supervisor.stop()
            self._lap("stop the jobs")
            left = self._evidence(expected, recovered_s, [*stopped, *self._live.problems])
        finally:
            supervisor.kill()
            self._source.proxy.arm([])
            self._target.proxy.arm([])
            self._live.stop()
        self._lap("evidence")
        self._count()
        self._clean()
        self._lap("clean")
        verdict = Verdict(
            seed=self._plan.seed,
            findings=findings(left),
            seconds=time.monotonic() - began,
            faults_s=faults_s,
            records=sum(map(len, expected.values())),
            recovered_s=recovered_s,
            restarts=supervisor.restarts,
            seen=self._seen,
            made=self._made,
            laps=self._laps,
        )
        (self._directory / "verdict.json").write_text(verdict.to_json())
        return verdict

    # -- topics -------------------------------------------------------------------------------------

    def add_topic(self, name: str, partitions: int) -> None:
        """Creates a topic on the source, writes to it, and reads its copy."""
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
        self.follow(name, partitions)

    def follow(self, name: str, partitions: int) -> None:
        """Writes to new partitions of a topic, and reads their copies."""
        before = self._partitions.get(name, 0)
        self._partitions[name] = partitions
        self._live.follow(self._remote(name), partitions)
        self._traffic.write_to(name, range(before, partitions))

    @property
    def topics(self) -> dict[str, int]:
        """The topics on the source, with their numbers of partitions."""
        return dict(self._partitions)

    @property
    def alias(self) -> str:
        """The name of the source in the flow."""
        return self._alias

    def _remote(self, topic: str) -> str:
        return f"{self._alias}.{topic}"

    def _config(self) -> Path:
        path = self._directory / "mirrorlake.properties"
        replicas = str(len(self._target.cluster.brokers))
        values = {
            "clusters": f"{self._alias}, t",
            **self._source.client_properties(self._alias),
            **self._target.client_properties("t"),
            f"{self._alias}->t.enabled": "true",
            "topics": f"{self._alias}-.*",
            "groups": f"{self._alias}-.*",
            "replication.factor": replicas,
            "offset-syncs.topic.replication.factor": replicas,
            "checkpoints.topic.replication.factor": replicas,
            "sync.group.offsets.enabled": "true",
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "refresh.topics.interval.seconds": "1",
            "refresh.groups.interval.seconds": "1",
            "sync.topic.configs.interval.seconds": "1",
            "mirrorlake.slots": str(self._plan.slots),
            "mirrorlake.state.changes.enabled": str(bool(self._plan.seed % 2)).lower(),
            "mirrorlake.fetch.connections": str(AHEAD_CONNECTIONS if reads_ahead(self._plan.seed) else 0),
            "mirrorlake.batch.max.ms": "1000",
            "mirrorlake.batch.max.records": "3000",
            "mirrorlake.transaction.timeout.ms": "10000",
            "mirrorlake.connect.timeout.ms": "15000",
            "mirrorlake.retry.timeout.ms": "60000",
        }
        path.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
        return path

    # -- faults -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Arms the faults after which connections go on."""
        for side, name in ((self._source, "source"), (self._target, "target")):
            side.proxy.faults()
            side.proxy.arm([rule for rule in self._plan.rules[name] if rule.fault not in SILENT])

    def _arm_silent(self) -> None:
        """Arms what was not made yet, and the faults after which connections are silent."""
        self._is_silent = True
        self._count()
        for side, name in ((self._source, "source"), (self._target, "target")):
            made = Counter({(api, fault): count for (of, api, fault), count in self._made.items() if of == name})
            left = []
            for rule in self._plan.rules[name]:
                key = rule.api, str(rule.fault)
                left += [] if made[key] > 0 else [rule]
                made[key] -= 1
            side.proxy.arm(left)

    def _count(self) -> None:
        for side, name in ((self._source, "source"), (self._target, "target")):
            seen, made = side.proxy.faults()
            self._seen.update({(name, api): count for api, count in seen.items()})
            self._made.update({(name, api, str(fault)): count for (api, fault), count in made.items()})

    @staticmethod
    def _wait_for_records(supervisor: Supervisor) -> None:
        """Lets the mirror job begin among the faults of its requests, but not for long: else little is sent later."""
        until = time.monotonic() + BEGIN_S
        while time.monotonic() < until and not supervisor.has_said("mirror", "micro_batch_committed"):
            supervisor.look()
            time.sleep(LOOK_S)

    def _wait(self, until: float, supervisor: Supervisor, events_from: float, *, is_last: bool = False) -> None:
        """Waits, and keeps the jobs running; the last time only until all faults were made."""
        rules = sum(map(len, self._plan.rules.values()))
        while (now := time.monotonic()) < until:
            if not self._is_silent and now >= events_from + SILENT_FROM_S:
                self._arm_silent()
            if is_last and self._is_silent:
                self._count()
                if sum(self._made.values()) >= rules:
                    return
            supervisor.look()
            time.sleep(max(0.0, min(LOOK_S, until - time.monotonic())))

    # -- evidence -----------------------------------------------------------------------------------

    def _recovery(self, expected: dict[Partition, list[Record]], supervisor: Supervisor) -> float | None:
        """Waits until the copies are there and the groups are at their places; returns how long that took."""
        began = time.monotonic()
        conditions: list[Callable[[], bool]] = [
            lambda: supervisor.have_begun,  # one that was killed last may have left a transaction open
            lambda: all(
                len(self._live.seen[self._remote(topic), partition]) >= len(records)
                for (topic, partition), records in expected.items()
            ),
            lambda: all(
                one.target_offset is not None
                and is_in_place(
                    expected[one.partition],
                    self._live.seen[self._remote(one.partition[0]), one.partition[1]],
                    one.source_offset,
                    one.target_offset,
                )
                for one in self._group_positions(expected)
            ),
        ]
        while conditions:
            if time.monotonic() > began + RECOVERY_S:
                return None
            supervisor.look()
            try:
                is_so = conditions[0]()
            except KafkaException:  # a broker that has just come back
                is_so = False
            if is_so:
                conditions.pop(0)
            else:
                time.sleep(LOOK_S)
        return time.monotonic() - began

    def _group_positions(self, expected: dict[Partition, list[Record]]) -> list[GroupPosition]:
        """Reads the positions of groups, but not in partitions of which a group has read nothing.

        In front of the first record, a position is translated by the ledger only, and the jobs have none here.
        """
        found = []
        wanted = {
            (topic, number): (self._remote(topic), number)
            for topic, count in self._partitions.items()
            for number in range(count)
        }
        for group in self._groups:
            here = read.committed(self._source.servers, group, wanted)
            there = read.committed(self._target.servers, group, [wanted[of] for of in here]) if here else {}
            found += [
                GroupPosition(group, of, offset, there.get(wanted[of]))
                for of, offset in here.items()
                if any(record.offset < offset for record in expected[of])
            ]
        return found

    def _evidence(
        self, expected: dict[Partition, list[Record]], recovered_s: float | None, stopped: list[str]
    ) -> Evidence:
        servers = self._target.servers
        target = read.read_all(servers, map(self._remote, self._partitions))
        names = {self._remote(topic): topic for topic in self._partitions}
        pieces = read.offset_map(servers, f"mirrorlake.offset-syncs.{self._alias}.internal")
        return Evidence(
            source=expected,
            target={(names[topic], number): records for (topic, number), records in target.items()},
            live={(names[topic], number): records for (topic, number), records in self._live.seen.items()},
            pieces=pieces,
            groups=self._group_positions(expected),
            open_partitions=read.open_partitions(servers, self._alias),
            stopped=stopped,
            recovered_s=recovered_s,
        )

    def _lap(self, what: str) -> None:
        now = time.monotonic()
        self._laps[what], self._lap_from = round(now - self._lap_from, 2), now

    def _clean(self) -> None:
        for side in (self._source, self._target):
            side.delete_topics(self._alias)
