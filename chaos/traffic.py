"""What others do on the source while a flow is mirrored: a producer numbers its records, and groups commit."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from chaos.checker import Partition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_S = 30.0
PAUSE_S = 0.15


class Traffic:
    """Produces in batches, transactions and aborted transactions, and lets groups commit, until it is stopped.

    Args:
        servers: the source, without a proxy.
        name: a name of its own, for transactional ids.
        groups: the groups that commit.
        dice: draws everything.
        codec: the codec of the batches.
        size_bytes: the most bytes of a value.
        transactional: the share of the rounds that are transactions; a third of these are aborted.
    """

    def __init__(
        self,
        servers: str,
        name: str,
        groups: Sequence[str],
        dice: random.Random,
        codec: str,
        size_bytes: int,
        transactional: float,
    ) -> None:
        self._servers, self._groups, self._dice, self._size_bytes = servers, groups, dice, size_bytes
        self._transactional = transactional
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 2,
            "topic.metadata.refresh.interval.ms": 500,
            "batch.num.messages": 20,
            "log_level": 0,
        }
        self._producer = Producer(settings)
        self._transactions = Producer({**settings, "transactional.id": f"{name}-traffic"})
        self._number = 0
        self._partitions: list[Partition] = []
        self._refused: list[str] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._commit)]

    def start(self) -> None:
        """Starts both threads."""
        for thread in self._threads:
            thread.start()

    def write_to(self, topic: str, partitions: Sequence[int]) -> None:
        """Adds partitions to write to."""
        self._partitions += [(topic, partition) for partition in partitions]

    def stop(self) -> None:
        """Ends the traffic; all records are acknowledged then.

        Raises:
            RuntimeError: a record was not acknowledged. The source itself has no faults, so nothing can be said.
        """
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._refused:
            raise RuntimeError(f"the source has refused a record of the test: {self._refused[0]}")

    def _write(self) -> None:
        try:
            self._transactions.init_transactions(FLUSH_S)
            while not self._stopping.is_set():
                if self._dice.random() < self._transactional:
                    self._transactions.begin_transaction()
                    is_aborted = self._dice.random() < 1 / 3
                    self._send(self._transactions, "aborted" if is_aborted else "committed")
                    self._transactions.flush(FLUSH_S)
                    (self._transactions.abort_transaction if is_aborted else self._transactions.commit_transaction)(
                        FLUSH_S
                    )
                else:
                    self._send(self._producer, "plain")
                    if self._producer.flush(FLUSH_S):
                        self._refused.append("no answer in time")
                self._stopping.wait(PAUSE_S)
        except KafkaException as error:
            self._refused.append(str(error))

    def _send(self, producer: Producer, kind: str) -> None:
        for _ in range(self._dice.randint(1, 30)):
            topic, partition = self._dice.choice(self._partitions)
            self._number += 1
            try:
                producer.produce(
                    topic,
                    f"{self._number} {kind} ".encode() + self._dice.randbytes(self._dice.randint(0, self._size_bytes)),
                    self._dice.choice([None, b"", f"key-{self._dice.randint(0, 9)}".encode()]),
                    partition,
                    on_delivery=lambda error, _: self._refused.append(str(error)) if error else None,
                    timestamp=int(time.time() * 1000) - self._dice.randint(0, 10_000),
                    headers=[("n", str(self._number).encode()), ("n", None)][: self._dice.randint(0, 2)],
                )
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:  # one that is new
                    raise
            producer.poll(0)

    def _commit(self) -> None:
        """Lets each group advance to an offset drawn between its own and the end, now and then."""
        settings = {"bootstrap.servers": self._servers, "topic.metadata.refresh.interval.ms": 500, "log_level": 0}
        consumers = {group: Consumer({**settings, "group.id": group}) for group in self._groups}
        dice = random.Random(self._dice.random())
        reached: dict[tuple[str, Partition], int] = {}
        while not self._stopping.wait(0.3):
            group, partition = dice.choice(self._groups), dice.choice(self._partitions)
            with contextlib.suppress(KafkaException):  # a partition that is new
                _, end = consumers[group].get_watermark_offsets(TopicPartition(*partition), timeout=FLUSH_S)
                offset = dice.randint(reached.get((group, partition), 0), end)
                consumers[group].commit(offsets=[TopicPartition(*partition, offset)], asynchronous=False)
                reached[group, partition] = offset
        for consumer in consumers.values():
            consumer.close()
