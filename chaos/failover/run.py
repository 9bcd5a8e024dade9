"""Runs the story of one seed on real brokers, and hands what the clients have left behind to the judge.

The source is a cluster of its own that may be killed; the target may be shared. Jobs run in this process, as threads:
the mirror job in process, the checkpoint job with its tables in Delta. The failover is the one of the notebook.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from mirrorlake.errors import GateError, MirrorlakeError
from mirrorlake.jobs.checkpoint.job import CheckpointJob
from mirrorlake.jobs.failover.job import FailoverResult
from mirrorlake.local.cluster import LocalCluster

from chaos.failover import journal
from chaos.failover.clients import (
    Client,
    ConsumerSettings,
    Copier,
    compile_java,
    start_consumer,
    start_verifiable_producer,
)
from chaos.failover.journal import Event, EventKind, Key, renamed
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
from chaos.failover.observed_cycles import SYNCED, MortalLedger, ObservedCycles
from chaos.failover.producers import NumberedProducer
from chaos.failover.story import (
    COMMITTING,
    JOBS,
    ORDERS,
    PAYMENTS,
    RESULTS,
    TRAFFIC,
    ClientKind,
    Ending,
    GroupDraw,
    Story,
)
from tests.moving import IDENTITY, both_ways, failback, failover
from tests.world import ROOT, World, eventually, read_committed

SOURCE = {  # groups of dead clients end within seconds, also those of KIP-848
    "group.consumer.min.session.timeout.ms": "5000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
MOMENT_S = 20  # a drawn moment that does not come by then is now
DEADLINE_S = 150
AGAIN = "again:"  # marks records that a copier has written after a move
TAIL = 5  # records that each partition gets after a move, so that the end of reading is seen


@dataclass(frozen=True)
class Ground:
    """Where stories are run: a running source that may be killed, a target, and a session for the tables."""

    source: LocalCluster
    target_servers: str
    spark: Any
    warehouse: str
    directory: Path


@dataclass
class Death:
    """Kills the source at the drawn moment, once it is armed."""

    source: LocalCluster
    moment: str
    number: int
    armed: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    how: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, step: str) -> None:
        """Takes note of a step, in the thread that has reached it; kills the source if it is the one."""
        with self._lock:
            if not self.armed.is_set() or self.done.is_set() or step != self.moment:
                return
            self.number -= 1
            if self.number <= 0:
                self._kill(step)

    def kill(self) -> None:
        """Kills the source if it still lives."""
        with self._lock:
            if not self.done.is_set():
                self._kill("deadline")

    def _kill(self, how: str) -> None:
        self.source.stop_broker(1, kill=True)
        self.how = how
        self.done.set()


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
        self.cycles: list[Cycle] = []
        self.death = Death(ground.source, story.moment, story.number)
        self.jobs: list[Any] = []
        self.errors: list[str] = []
        self.stopping: set[str] = set()
        self.producers: list[NumberedProducer] = []
        self.acknowledged: dict[str, list[str]] = {}
        self.aborted: list[str] = []
        self.verifiable: Client | None = None
        self.clients: dict[str, list[Client]] = {}
        self.copier: Copier | None = None

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
            first_events, moves = self._events(self.names), [self.cycles]
            self._lap("source")
            if self.story.ending is Ending.PLANNED:
                now_ms = time.time() * 1_000
                moves = [[Cycle(now_ms, now_ms)]]
            self._fail_over()
            self._lap("failover")
            mirrored = self._logs(self.ground.target_servers, self.remotes)
            written = self._work_on_target()
            second_events = self._events(self.remotes)
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
            if self.copier is not None:
                self._judge_copier(before, there, mirrored, moves[0])
            self._lap("judge")
            return self.verdict
        finally:
            self._kill_everything()

    # -- on the source ------------------------------------------------------------------------------

    def _work_on_source(self) -> None:
        """Lets producers, consumers, copier and jobs work, until the source dies or everybody stops."""
        story = self.story
        self._start_producers()
        for group in story.groups:
            self.clients[group.name] = self._start_members(group, self.ground.source.bootstrap_servers, self.names, 1)
        if story.copier is not None:
            ours = self.names[JOBS], self.names[RESULTS]
            names = (f"{self.world.alias}-copier", f"{self.world.alias}-copier", *ours)
            servers = self.ground.source.bootstrap_servers
            self.copier = Copier(story.copier, servers, names, self.ground.directory).start()
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(self._mirror), pool.submit(self._checkpoint)]

            def is_under_way() -> bool:
                for one in running:
                    if one.done():
                        one.result()  # raises what has ended it
                return self._is_under_way()

            try:
                eventually(is_under_way, DEADLINE_S, "a checkpoint cycle that has seen a commit of every group")
                if story.ending is Ending.PLANNED:
                    self._leave()
                else:
                    self._die(pool)
            finally:
                self.death.done.set()
                for job in self.jobs:
                    job.stop()
            for one in running:
                one.result(DEADLINE_S)

    def _is_under_way(self) -> bool:
        """Returns True once a complete cycle has begun after each group's first commit."""
        began_ms = [cycle.began_ms for cycle in self.cycles if cycle.is_complete]
        return bool(began_ms) and all(
            any(event.kind is EventKind.COMMITTED and event.at_ms < began_ms[-1] for event in self._events_of(name))
            for name in self.clients
        )

    def _start_producers(self) -> None:
        story, servers = self.story, self.ground.source.bootstrap_servers
        for topic in (ORDERS, PAYMENTS, JOBS):
            is_transactional = topic == PAYMENTS
            producer = NumberedProducer(
                servers,
                self.names[topic],
                story.partitions[topic],
                topic[0],
                pause_ms=story.pause_ms,
                transactional_id=f"{self.world.alias}-payments" if is_transactional else "",
                aborts=story.aborts,
                seed=story.seed,
            )
            self.producers.append(producer)
            self.acknowledged[topic] = producer.acknowledged
            if is_transactional:
                self.aborted = producer.aborted
        if story.copier is not None:
            self.producers[-1].write(1_000)
        for producer in self.producers:
            producer.start()
        if story.verifiable_producer:
            file = self.ground.directory / "verifiable-producer.out"
            self.verifiable = start_verifiable_producer(servers, self.names[ORDERS], 7, 100, file)

    def _start_members(self, group: GroupDraw, servers: str, names: dict[str, str], stay: int) -> list[Client]:
        return [
            start_consumer(
                group.kind,
                ConsumerSettings(
                    servers=servers,
                    group=f"{self.world.alias}-{group.name}",
                    topics=tuple(names[topic] for topic in group.topics),
                    journal=str(self.ground.directory / f"{group.name}-{stay}-{member}.jsonl"),
                    batch=group.batch,
                    every=group.every,
                    is_async=group.is_async,
                    rewinds=group.rewinds if stay == 1 else 0.0,
                    pause_ms=group.pause_ms if stay == 1 else 0,
                    seed=1_000 * self.story.seed + member,
                ),
                group.protocol,
            )
            for member in range(group.members)
        ]

    def _mirror(self) -> None:
        """Runs mirror jobs until the source is dead; one that fails is followed by the next one."""
        while not self.death.done.is_set() and "mirror" not in self.stopping:
            job = self.world.disturbed_job(self.death.reach)
            self._run_job(job, self.story.mirror_s)

    def _checkpoint(self) -> None:
        while not self.death.done.is_set() and "checkpoint" not in self.stopping:
            world, suite = self.world, ROOT / "expectations/checkpoints.json"
            cycles = ObservedCycles(world.spark, self.cycles, self.death.reach)
            ledger: Any = MortalLedger(world.ledger, self.death.reach, lambda: self.death.how == SYNCED)
            job = CheckpointJob(world.spark, world.config, world.flow, ledger, str(suite), cycles=cycles)
            self._run_job(job, self.story.checkpoint_s)

    def _run_job(self, job: Any, interval_s: float) -> None:
        self.jobs.append(job)
        if not self.death.done.is_set():
            try:
                job.run(interval_s)
            except MirrorlakeError as error:  # the source may be dead, or dying
                self.errors.append(f"{type(error).__name__}: {error}")

    def _die(self, pool: ThreadPoolExecutor) -> None:
        """Kills the source at the drawn moment, and the clients a moment later."""
        story = self.story
        if story.rests:
            self.stopping.add(story.rests)
            for job in self.jobs:
                if isinstance(job, CheckpointJob) == (story.rests == "checkpoint"):
                    job.stop()
            self._wait_for_traffic(200)
        if story.moment == TRAFFIC:
            self._wait_for_traffic(100 * story.number)
            self.death.armed.set()
            self.death.number = 0
            self.death.reach(TRAFFIC)
        elif story.moment == COMMITTING:
            self.death.armed.set()
            pool.submit(self._watch_commits)
        else:
            self.death.armed.set()
        self.death.done.wait(MOMENT_S)
        self.death.kill()
        threading.Event().wait(story.linger_ms / 1_000)  # how long the clients live on without the source
        self._kill_everything()

    def _wait_for_traffic(self, records: int) -> None:
        orders = self.producers[0]
        begin = len(orders.acknowledged)
        eventually(lambda: len(orders.acknowledged) >= begin + records, DEADLINE_S, f"{records} more records")

    def _watch_commits(self) -> None:
        """Reaches the step COMMITTING while a client waits for the answer to a commit."""
        files = {client.file: client.file.stat().st_size for one in self.clients.values() for client in one}
        while not self.death.done.is_set():
            for file, size in files.items():
                if (now := file.stat().st_size) == size:
                    continue
                with file.open("rb") as journal:
                    journal.seek(size)
                    lines = journal.read().splitlines()
                files[file] = now
                if lines and (b'"committing"' in lines[-1] or b'"records_consumed"' in lines[-1]):
                    self.death.reach(COMMITTING)
            self.death.done.wait(0.002)

    def _leave(self) -> None:
        """Stops everybody, as before a planned failover."""
        self._wait_for_traffic(100)
        for producer in self.producers:
            producer.stop()
        if self.verifiable is not None:
            self.verifiable.stop()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Client.stop, [client for one in self.clients.values() for client in one]))
        if self.copier is not None:
            self.copier.stop(kill=False)

    def _kill_everything(self) -> None:
        for client in [client for one in self.clients.values() for client in one]:
            client.kill()
        if self.copier is not None:
            self.copier.stop(kill=True)
        if self.verifiable is not None:
            self.verifiable.kill()
        while self.producers:
            self.producers.pop().kill()

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
            self.errors.append(f"GateError: {error}")
            return failover(self.world, mode="failover", signed_by="chaos", accept=f"{accept}, ahead")

    def _wait_until_idle(self, admin: AdminClient) -> None:
        """Waits until no group of this run has members."""
        groups = [f"{self.world.alias}-{group.name}" for group in self.story.groups]

        def is_idle() -> bool:
            found = admin.describe_consumer_groups(groups)
            return all(not one.result().members for one in found.values())

        eventually(is_idle, DEADLINE_S, "groups without members")

    def _work_on_target(self) -> dict[Key, list[str]]:
        """Lets the clients go on where their groups are, to the end; returns the values written meanwhile."""
        servers = self.ground.target_servers
        written = self._write_tail(servers, self.remotes, "t")
        for group in self.story.groups:
            self.clients[group.name] = self._start_members(group, servers, self.remotes, 2)
        if self.story.copier is not None:
            ours = self.remotes[JOBS], self.remotes[RESULTS]
            names = (f"{self.world.alias}-copier", f"{self.world.alias}-copier", *ours)
            directory = self.ground.directory / "target"
            directory.mkdir()
            last, copier = written[JOBS, 0][-1], Copier(self.story.copier, servers, names, directory).start()
            try:
                eventually(lambda: self._has_copied(last), DEADLINE_S, f"output of {last}")
            finally:
                copier.stop(kill=False)
        self._read_to_the_end(servers, self.remotes)
        return written

    def _has_copied(self, value: str) -> bool:
        (log,) = self._logs(self.ground.target_servers, {RESULTS: self.remotes[RESULTS]}).values()
        return bool(log) and log[-1][1] == value

    def _write_tail(self, servers: str, names: dict[str, str], prefix: str) -> dict[Key, list[str]]:
        written: dict[Key, list[str]] = {}
        for topic in (ORDERS, PAYMENTS, JOBS):
            partitions = self.story.partitions[topic]
            values = NumberedProducer(servers, names[topic], partitions, f"{prefix}-{topic[0]}").write(
                TAIL * partitions
            )
            written |= {(topic, partition): values[partition::partitions] for partition in range(partitions)}
        return written

    def _read_to_the_end(self, servers: str, names: dict[str, str]) -> None:
        """Waits until every group has read the last record of each partition; then stops the consumers."""
        ends = {key: log[-1][0] for key, log in self._logs(servers, names).items() if log}
        topics = {group.name: set(group.topics) for group in self.story.groups}

        def are_done() -> bool:
            for client in (client for one in self.clients.values() for client in one):
                assert client.process.poll() is None, f"{client.file.name} has ended"
            events = self._events(names)
            return all(
                {key for key in ends if key[0] in topics[name]}
                <= {
                    event.key for event in found if event.kind is EventKind.READ and event.offset == ends.get(event.key)
                }
                for name, found in events.items()
            )

        with suppress(AssertionError):  # the judge says which record was not read
            eventually(are_done, DEADLINE_S, "groups at the ends of their partitions")
        with ThreadPoolExecutor() as pool:
            list(pool.map(Client.stop, [client for one in self.clients.values() for client in one]))

    def _end_transactions(self) -> None:
        """Lets the source abort the transactions that were open when it died."""
        for name in ("payments", *(["copier"] if self.story.copier else [])):
            settings = {"bootstrap.servers": self.ground.source.bootstrap_servers, "log_level": 0}
            Producer({**settings, "transactional.id": f"{self.world.alias}-{name}"}).init_transactions(60)

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
        self._write_tail(servers, self.names, "h")
        for group in self.story.groups:
            self.clients[group.name] = self._start_members(group, servers, self.names, 3)
        self._read_to_the_end(servers, self.names)
        last = self._logs(servers, self.names)
        readable = {key: log for key, log in after.items() if key[0] != RESULTS}
        judge_logs(self.verdict, readable, last, may_lose=False)
        return last, self._events(self.names)

    # -- what is judged -----------------------------------------------------------------------------

    def _judge_logs(self, before: Logs, mirrored: Logs, there: Logs, written: dict[Key, list[str]]) -> None:
        judge_logs(self.verdict, before, mirrored, may_lose=self.story.ending is not Ending.PLANNED)
        for key, values in written.items():
            found = [value for _, value in there[key]][len(mirrored[key]) :]
            if found != values:
                self.verdict.findings.append(f"{key}: after the failover, others have written to the target")
        for topic, values in self.acknowledged.items():
            also = self._verified() if topic == ORDERS else []
            judge_written(self.verdict, topic, before, [*values, *also], self.aborted)

    def _verified(self) -> list[str]:
        return [] if self.verifiable is None else journal.acknowledged(journal.lines_from(self.verifiable.file)[0])

    def _judge_copier(self, before: Logs, there: Logs, mirrored: Logs, cycles: Iterable[Cycle]) -> None:
        assert self.copier is not None
        inputs, outputs = (JOBS, 0), (RESULTS, 0)
        judge_copier(
            self.verdict,
            "copier",
            left=(before[inputs], before[outputs]),
            joined=(there[inputs], there[outputs]),
            mirrored=len(mirrored[outputs]),
            commits=copier_commits(self.copier.runs(), before[inputs], len(before[outputs])),
            cycles=list(cycles),
        )

    def _events(self, names: dict[str, str]) -> dict[str, list[Event]]:
        back = {name: topic for topic, name in names.items()}
        return {group: renamed(self._events_of(group), back) for group in self.clients}

    def _events_of(self, group: str) -> list[Event]:
        return [event for client in self.clients[group] for event in client.events()]

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
