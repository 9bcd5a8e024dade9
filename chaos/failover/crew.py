"""The clients of a story: producers, consumers in groups, a copier; on one cluster after the other."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from chaos.failover import journal
from chaos.failover.clients import (
    Client,
    ConsumerSettings,
    Copier,
    start_consumer,
    start_verifiable_producer,
)
from chaos.failover.journal import Event, EventKind, Key, renamed
from chaos.failover.producers import NumberedProducer
from chaos.failover.story import JOBS, ORDERS, PAYMENTS, RESULTS, GroupDraw, Story
from tests.world import eventually

DEADLINE_S = 600
TAIL = 5  # records that each partition gets after a move, so that the end of reading is seen

Names = Mapping[str, str]  # of the topics on a cluster, by their names in the story


class Crew:
    """The clients of a story.

    Args:
        story: who they are.
        alias: begins the names of groups and transactional ids.
        directory: for their journals.

    Attributes:
        clients: the consumers that were started last, by group.
        acknowledged: the values that brokers have acknowledged, by topic.
        aborted: the values of aborted transactions.
        copier: the copier on the source, if the story has one.
    """

    def __init__(self, story: Story, alias: str, directory: Path) -> None:
        self._story, self._alias, self._directory = story, alias, directory
        self.clients: dict[str, list[Client]] = {}
        self.acknowledged: dict[str, list[str]] = {}
        self.aborted: list[str] = []
        self.copier: Copier | None = None
        self._producers: list[NumberedProducer] = []
        self._verifiable: Client | None = None

    @property
    def groups(self) -> list[str]:
        """The names of the groups on the clusters."""
        return [f"{self._alias}-{group.name}" for group in self._story.groups]

    @property
    def transactional_ids(self) -> list[str]:
        """The transactional ids of producers and copier."""
        return [f"{self._alias}-{name}" for name in ("payments", *(["copier"] if self._story.copier else []))]

    # -- work ---------------------------------------------------------------------------------------

    def start(self, servers: str, names: Names) -> None:
        """Lets everybody work on the source."""
        self._start_producers(servers, names)
        self.start_consumers(servers, names, 1)
        self.copier = self.start_copier(servers, names, self._directory)

    def _start_producers(self, servers: str, names: Names) -> None:
        story = self._story
        for topic in (ORDERS, PAYMENTS, JOBS):
            is_transactional = topic == PAYMENTS
            producer = NumberedProducer(
                servers,
                names[topic],
                story.partitions[topic],
                topic[0],
                pause_ms=story.pause_ms,
                transactional_id=f"{self._alias}-payments" if is_transactional else "",
                aborts=story.aborts,
                seed=story.seed,
            )
            self._producers.append(producer)
            self.acknowledged[topic] = producer.acknowledged
            if is_transactional:
                self.aborted = producer.aborted
        if story.copier is not None:
            self._producers[-1].write(1_000)
        for producer in self._producers:
            producer.start()
        if story.verifiable_producer:
            file = self._directory / "verifiable-producer.out"
            self._verifiable = start_verifiable_producer(servers, names[ORDERS], 7, 100, file)

    def start_consumers(self, servers: str, names: Names, stay: int) -> None:
        """Starts the members of all groups; `stay` numbers the clusters on which they have been."""
        for group in self._story.groups:
            self.clients[group.name] = self._start_members(group, servers, names, stay)

    def _start_members(self, group: GroupDraw, servers: str, names: Names, stay: int) -> list[Client]:
        return [
            start_consumer(
                group.kind,
                ConsumerSettings(
                    servers=servers,
                    group=f"{self._alias}-{group.name}",
                    topics=tuple(names[topic] for topic in group.topics),
                    journal=str(self._directory / f"{group.name}-{stay}-{member}.jsonl"),
                    batch=group.batch,
                    every=group.every,
                    is_async=group.is_async,
                    rewinds=group.rewinds if stay == 1 else 0.0,
                    pause_ms=group.pause_ms if stay == 1 else 0,
                    seed=1_000 * self._story.seed + member,
                ),
                group.protocol,
            )
            for member in range(group.members)
        ]

    def start_copier(self, servers: str, names: Names, directory: Path) -> Copier | None:
        """Starts the copier, if the story has one."""
        if self._story.copier is None:
            return None
        name = f"{self._alias}-copier"
        return Copier(self._story.copier, servers, (name, name, names[JOBS], names[RESULTS]), directory).start()

    def wait_for_traffic(self, records: int) -> None:
        """Waits until the first producer has written so many records more."""
        orders = self._producers[0]
        begin = len(orders.acknowledged)
        eventually(lambda: len(orders.acknowledged) >= begin + records, DEADLINE_S, f"{records} more records")

    def write_tail(self, servers: str, names: Names, prefix: str) -> dict[Key, list[str]]:
        """Writes a few records to each partition; returns their values."""
        written: dict[Key, list[str]] = {}
        for topic in (ORDERS, PAYMENTS, JOBS):
            partitions = self._story.partitions[topic]
            values = NumberedProducer(servers, names[topic], partitions, f"{prefix}-{topic[0]}").write(
                TAIL * partitions
            )
            written |= {(topic, partition): values[partition::partitions] for partition in range(partitions)}
        return written

    # -- the end ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Stops everybody, as before a planned failover."""
        self.wait_for_traffic(100)
        for producer in self._producers:
            producer.stop()
        if self._verifiable is not None:
            self._verifiable.stop()
        self._stop_consumers()
        if self.copier is not None:
            self.copier.stop(kill=False)

    def kill(self) -> None:
        """Kills everybody."""
        for client in self._all_clients():
            client.kill()
        if self.copier is not None:
            self.copier.stop(kill=True)
        if self._verifiable is not None:
            self._verifiable.kill()
        while self._producers:
            self._producers.pop().kill()

    def read_to_the_end(self, names: Names, ends: Mapping[Key, int]) -> None:
        """Waits until every group has read the last record of each partition; then stops the consumers."""
        topics = {group.name: set(group.topics) for group in self._story.groups}

        def are_done() -> bool:
            for client in self._all_clients():
                assert client.process.poll() is None, f"{client.file.name} has ended"
            return all(
                {key for key in ends if key[0] in topics[name]}
                <= {
                    event.key for event in found if event.kind is EventKind.READ and event.offset == ends.get(event.key)
                }
                for name, found in self.events(names).items()
            )

        with suppress(AssertionError):  # the judge says which record was not read
            eventually(are_done, DEADLINE_S, "groups at the ends of their partitions")
        self._stop_consumers()

    def _stop_consumers(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Client.stop, self._all_clients()))

    def _all_clients(self) -> list[Client]:
        return [client for members in self.clients.values() for client in members]

    # -- journals -----------------------------------------------------------------------------------

    def events(self, names: Names) -> dict[str, list[Event]]:
        """Returns what the present members of each group have read and committed, with the topics of the story."""
        back = {name: topic for topic, name in names.items()}
        return {group: renamed(self.events_of(group), back) for group in self.clients}

    def events_of(self, group: str) -> list[Event]:
        """Returns the events of one group, with the topics of the cluster."""
        return [event for client in self.clients[group] for event in client.events()]

    def verified(self) -> list[str]:
        """Returns the values that Kafka's verifiable producer knows to be acknowledged."""
        return [] if self._verifiable is None else journal.acknowledged(journal.lines_from(self._verifiable.file)[0])

    def journals(self) -> list[Path]:
        """Returns the files in which clients write."""
        return [client.file for client in self._all_clients()]
