"""Runs the story of one seed on real brokers, and hands what the clients have left behind to the judge.

The source is a cluster of its own that may be killed; the target may be shared. Jobs run in this process, as threads:
the mirror job in process, the checkpoint job with its tables in Delta. The failover is the one of the notebook.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from mirrorlake.errors import GateError
from mirrorlake.jobs.failover.job import FailoverResult
from mirrorlake.local.cluster import LocalCluster

from chaos.failover.clients import compile_java
from chaos.failover.crew import DEADLINE_S, Crew
from chaos.failover.jobs import Death, Jobs
from chaos.failover.journal import Event, EventKind, Key
from chaos.failover.judge import (
    Cycle,
    Log,
    Logs,
    Stay,
    Verdict,
    copier_commits,
    judge_copier,
    judge_group,
    judge_logs,
    judge_written,
)
from chaos.failover.observed_cycles import SYNCED
from chaos.failover.story import COMMITTING, JOBS, ORDERS, RESULTS, TRAFFIC, ClientKind, Ending, Story
from tests.moving import IDENTITY, both_ways, failback, failover
from tests.world import World, eventually, read_committed

SOURCE = {  # groups of dead clients end within seconds, also those of KIP-848
    "group.consumer.min.session.timeout.ms": "5000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
MOMENT_S = 20  # a drawn moment that does not come by then is now
AGAIN = "again:"  # marks records that a copier has written after a move


@dataclass(frozen=True)
class Ground:
    """Where stories are run: a running source that may be killed, a target, and a session for the tables."""

    source: LocalCluster
    target_servers: str
    spark: Any
    warehouse: str
    directory: Path


class FailoverRun:
    """One story on the ground.

    Args:
        story: what happens.
        ground: where.
    """

    def __init__(self, story: Story, ground: Ground) -> None:
        self.story, self.ground = story, ground
        self.verdict = Verdict()
        self.seconds: dict[str, float] = {}
        settings = {
            "mirrorlake.slots": str(story.slots),
            "mirrorlake.retry.timeout.ms": "0",
            "mirrorlake.connect.timeout.ms": "5000",
            "sync.group.offsets.interval.seconds": "0",
        }
        ground.directory.mkdir(parents=True, exist_ok=True)
        self.world = World(
            ground.source.bootstrap_servers,
            ground.target_servers,
            ground.directory,
            ground.spark,
            ground.warehouse,
            settings,
        )
        self.home: World | None = None
        if story.ending is Ending.FAILBACK:
            self.home = both_ways(self.world, **IDENTITY, **settings)
        elif story.keeps_names:
            self.world.write_config(**IDENTITY)
        self.names = {topic: f"{self.world.alias}-{topic}" for topic in story.partitions}
        self.remotes = {topic: self.world.remote(name) for topic, name in self.names.items()}
        self.death = Death(ground.source, story.moment, story.number)
        self.jobs = Jobs(story, self.world, self.death)
        self.crew = Crew(story, self.world.alias, ground.directory)

    def run(self) -> Verdict:
        """Runs the story; returns the verdict.

        Raises:
            MirrorlakeError: a failover or a failback was refused.
            AssertionError: a client or a job did not do its part in time.
        """
        self._began = time.monotonic()
        if any(group.kind is ClientKind.JAVA for group in self.story.groups):
            compile_java()
        for topic, partitions in self.story.partitions.items():
            self.world.topic(topic, partitions)
        try:
            self._work_on_source()
            first_events, moves = self.crew.events(self.names), [self.jobs.cycles]
            self._lap("source")
            if self.story.ending is Ending.PLANNED:
                now_ms = time.time() * 1_000
                moves = [[Cycle(now_ms, now_ms)]]
            self._fail_over()
            self._lap("failover")
            mirrored = self._logs(self.ground.target_servers, self.remotes)
            written = self._work_on_target()
            second_events = self.crew.events(self.remotes)
            now_ms = time.time() * 1_000
            self._lap("target")
            if self.story.ending is not Ending.PLANNED:
                self.ground.source.start_broker(1)
                self._end_transactions()
            before = self._logs(self.ground.source.bootstrap_servers, self.names)
            there = self._logs(self.ground.target_servers, self.remotes)
            after = {
                key: _labelled(log, len(mirrored[key])) if key[0] == RESULTS else log for key, log in there.items()
            }
            second_events = {group: _as_in(events, after) for group, events in second_events.items()}
            self._judge_logs(before, mirrored, there, written)
            stays = {
                group.name: [
                    Stay(before, first_events[group.name]),
                    Stay(after, second_events[group.name], reads_to_end=True),
                ]
                for group in self.story.groups
            }
            if self.story.ending is Ending.FAILBACK:
                moves.append([Cycle(now_ms, now_ms)])
                last = self._go_home(after)
                for group in self.story.groups:
                    stays[group.name].append(Stay(last[0], last[1][group.name], reads_to_end=True))
            for group in self.story.groups:
                judge_group(self.verdict, group.name, stays[group.name], moves, group.topics)
            if self.crew.copier is not None:
                self._judge_copier(before, there, mirrored, moves[0])
            self._lap("judge")
            return self.verdict
        finally:
            self.crew.kill()

    # -- on the source ------------------------------------------------------------------------------

    def _work_on_source(self) -> None:
        """Lets clients and jobs work, until the source dies or everybody stops."""
        self.crew.start(self.ground.source.bootstrap_servers, self.names)
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(self.jobs.mirror), pool.submit(self.jobs.checkpoint)]

            def is_under_way() -> bool:
                for one in running:
                    if one.done():
                        one.result()  # raises what has ended it
                return self._is_under_way()

            try:
                eventually(is_under_way, DEADLINE_S, "a checkpoint cycle that has seen a commit of every group")
                if self.story.ending is Ending.PLANNED:
                    self.crew.leave()
                else:
                    self._die(pool)
            finally:
                self.death.done.set()
                self.jobs.stop()
            for one in running:
                one.result(DEADLINE_S)

    def _is_under_way(self) -> bool:
        """Returns True once a complete cycle has begun after each group's first commit, and a micro-batch is committed.

        Of a partition of which nothing is mirrored, a failover can't place a group.
        """
        began_ms = [cycle.began_ms for cycle in self.jobs.cycles if cycle.is_complete]
        return bool(began_ms and self.world.batches) and all(
            any(event.kind is EventKind.COMMITTED and event.at_ms < began_ms[-1] for event in events)
            for events in map(self.crew.events_of, self.crew.clients)
        )

    def _die(self, pool: ThreadPoolExecutor) -> None:
        """Kills the source at the drawn moment, and the clients a moment later."""
        story = self.story
        if story.rests:
            self.jobs.rest(story.rests)
            self.crew.wait_for_traffic(200)
        if story.moment == TRAFFIC:
            self.crew.wait_for_traffic(100 * story.number)
            self.death.armed.set()
            self.death.number = 0
            self.death.reach(TRAFFIC)
        elif story.moment == COMMITTING:
            self.death.armed.set()
            pool.submit(self.death.watch_commits, self.crew.journals())
        else:
            self.death.armed.set()
        self.death.done.wait(MOMENT_S)
        self.death.kill()
        threading.Event().wait(story.linger_ms / 1_000)  # how long the clients live on without the source
        self.crew.kill()

    # -- the move -----------------------------------------------------------------------------------

    def _fail_over(self) -> None:
        patient = {"mirrorlake.retry.timeout.ms": "60000", "mirrorlake.connect.timeout.ms": "60000"}
        for world in (self.world, self.home):
            if world is not None:
                world.write_config(**patient)
        if self.story.ending is Ending.PLANNED:
            self._wait_until_idle(self.world.source_admin)
            result = failover(self.world, mode="promote", signed_by="chaos")
        else:
            result = self._fail_over_without_source()
        assert {line.outcome for line in result.lines} <= {"committed", "in_step"}, result.to_json()
        assert result.generation, "the flow was not closed"

    def _fail_over_without_source(self) -> FailoverResult:
        """Fails over as an operator would: accepts that groups go back on the target only if the job had died."""
        accept = "clamped, lag"
        try:
            return failover(self.world, mode="failover", signed_by="chaos", accept=accept)
        except GateError as error:
            if "ahead" not in str(error) or self.death.how != SYNCED:
                raise
            self.jobs.errors.append(f"GateError: {error}")
            return failover(self.world, mode="failover", signed_by="chaos", accept=f"{accept}, ahead")

    def _wait_until_idle(self, admin: AdminClient) -> None:
        """Waits until no group of this run has members."""

        def is_idle() -> bool:
            found = admin.describe_consumer_groups(self.crew.groups)
            return all(not one.result().members for one in found.values())

        eventually(is_idle, DEADLINE_S, "groups without members")

    def _work_on_target(self) -> dict[Key, list[str]]:
        """Lets the clients go on where their groups are, to the end; returns the values written meanwhile."""
        servers = self.ground.target_servers
        written = self.crew.write_tail(servers, self.remotes, "t")
        self.crew.start_consumers(servers, self.remotes, 2)
        directory = self.ground.directory / "target"
        directory.mkdir()
        copier = self.crew.start_copier(servers, self.remotes, directory)
        if copier is not None:
            last = written[JOBS, 0][-1]
            try:
                eventually(lambda: self._has_copied(last), DEADLINE_S, f"output of {last}")
            finally:
                copier.stop(kill=False)
        self._read_to_the_end(servers, self.remotes)
        return written

    def _has_copied(self, value: str) -> bool:
        (log,) = self._logs(self.ground.target_servers, {RESULTS: self.remotes[RESULTS]}).values()
        return bool(log) and log[-1][1] == value

    def _read_to_the_end(self, servers: str, names: dict[str, str]) -> None:
        self.crew.read_to_the_end(names, {key: log[-1][0] for key, log in self._logs(servers, names).items() if log})

    def _end_transactions(self) -> None:
        """Lets the source abort the transactions that were open when it died."""
        for name in self.crew.transactional_ids:
            settings = {"bootstrap.servers": self.ground.source.bootstrap_servers, "log_level": 0}
            Producer({**settings, "transactional.id": name}).init_transactions(60)

    def _go_home(self, after: Logs) -> tuple[Logs, dict[str, list[Event]]]:
        """Fails back; returns the logs of the old source at the end, and what the groups have read there."""
        assert self.home is not None
        self._wait_until_idle(self.world.source_admin)
        failback(self.world, "drop", f"json:{self.ground.directory}/tail", mode="begin", signed_by="chaos")
        self.home.mirror()
        self._lap("begin and mirror back")
        failback(self.world, mode="run", signed_by="chaos", close="true", accept="ahead")
        self._lap("failback")
        servers = self.ground.source.bootstrap_servers
        self.crew.write_tail(servers, self.names, "h")
        self.crew.start_consumers(servers, self.names, 3)
        self._read_to_the_end(servers, self.names)
        last = self._logs(servers, self.names)
        readable = {key: log for key, log in after.items() if key[0] != RESULTS}
        judge_logs(self.verdict, readable, last, may_lose=False)
        return last, self.crew.events(self.names)

    # -- what is judged -----------------------------------------------------------------------------

    def _judge_logs(self, before: Logs, mirrored: Logs, there: Logs, written: dict[Key, list[str]]) -> None:
        judge_logs(self.verdict, before, mirrored, may_lose=self.story.ending is not Ending.PLANNED)
        for key, values in written.items():
            found = [value for _, value in there[key]][len(mirrored[key]) :]
            if found != values:
                self.verdict.findings.append(f"{key}: after the failover, others have written to the target")
        for topic, values in self.crew.acknowledged.items():
            also = self.crew.verified() if topic == ORDERS else []
            judge_written(self.verdict, topic, before, [*values, *also], self.crew.aborted)

    def _judge_copier(self, before: Logs, there: Logs, mirrored: Logs, cycles: Iterable[Cycle]) -> None:
        assert self.crew.copier is not None
        inputs, outputs = (JOBS, 0), (RESULTS, 0)
        judge_copier(
            self.verdict,
            "copier",
            left=(before[inputs], before[outputs]),
            joined=(there[inputs], there[outputs]),
            mirrored=len(mirrored[outputs]),
            commits=copier_commits(self.crew.copier.runs(), before[inputs], len(before[outputs])),
            cycles=list(cycles),
        )

    def _logs(self, servers: str, names: dict[str, str]) -> dict[Key, Log]:
        return {
            (topic, partition): [(offset, record[1].decode()) for offset, record in records]
            for topic, name in names.items()
            for partition, records in read_committed(servers, name).items()
        }

    def _lap(self, what: str) -> None:
        self.seconds[what] = round(time.monotonic() - self._began - sum(self.seconds.values()), 1)


def _labelled(log: Log, mirrored: int) -> Log:
    """Returns a copier's output with other values for the records behind the mirrored ones.

    A record that is processed again is another record, though it has the value of the first one.
    """
    return [(offset, value if at < mirrored else f"{AGAIN}{value}") for at, (offset, value) in enumerate(log)]


def _as_in(events: Iterable[Event], logs: Logs) -> list[Event]:
    """Returns the events with the labels that the records have in the logs."""
    labels = {(key, offset): value for key, log in logs.items() for offset, value in log if value.startswith(AGAIN)}
    return [
        replace(event, value=label)
        if (label := labels.get((event.key, event.offset))) == f"{AGAIN}{event.value}"
        else event
        for event in events
    ]
