"""Producers of numbered records, which keep those that were acknowledged and those that were taken back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, Producer

TIMEOUT_S = 30


class NumberedProducer:
    """Writes `prefix.number` to all partitions in turn, until it is stopped or its cluster is dead.

    With a transactional id, records are written in transactions, some of which are aborted.

    Args:
        servers: bootstrap servers.
        topic: topic.
        partitions: number of its partitions.
        prefix: begin of each value.
        pause_ms: pause after 20 records.
        transactional_id: empty for a producer without transactions.
        aborts: probability that a transaction is aborted.
        seed: seed of the sizes of transactions.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        prefix: str,
        *,
        pause_ms: int = 0,
        transactional_id: str = "",
        aborts: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._topic, self._partitions, self._prefix, self._pause_ms = topic, partitions, prefix, pause_ms
        self._is_transactional, self._aborts, self._dice = bool(transactional_id), aborts, random.Random(seed)
        self.acknowledged: list[str] = []
        self.aborted: list[str] = []
        self._number = 0
        self._stopped = threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "log_level": 0,
        }
        if transactional_id:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 10_000}
        else:
            settings |= {"delivery.timeout.ms": 5_000}
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> NumberedProducer:
        """Begins to write in a thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread; a transaction under way is ended first, if the cluster lives."""
        self._stopped.set()
        self._thread.join()

    def kill(self) -> None:
        """Ends the thread, and forgets what the cluster has not acknowledged, as the death of a process would."""
        self._stopped.set()
        self._producer.purge()
        self._thread.join()
        self._producer.purge()
        with suppress(KafkaException):  # it may be fenced, or its transaction over
            self._producer.poll(0)
        del self._producer  # it would connect to the next cluster at this address

    def write(self, count: int) -> list[str]:
        """Writes that many records at once, without transactions; returns their values."""
        values = [self._send(self.acknowledged) for _ in range(count)]
        assert self._producer.flush(TIMEOUT_S) == 0, "records were not acknowledged"
        return values

    def _run(self) -> None:
        try:
            if self._is_transactional:
                self._producer.init_transactions(TIMEOUT_S)
            while not self._stopped.is_set():
                self._transact() if self._is_transactional else self._burst()
                self._stopped.wait(self._pause_ms / 1_000)  # the speed of this producer
        except KafkaException:
            self._stopped.wait()  # the cluster is dead

    def _burst(self) -> None:
        for _ in range(20):
            self._send(self.acknowledged)
        self._producer.flush(1)

    def _transact(self) -> None:
        sent: list[str] = []
        self._producer.begin_transaction()
        for _ in range(self._dice.randint(1, 40)):
            self._send(sent)
        self._producer.flush(3)  # so that the records of aborted transactions are in the log
        if self._dice.random() < self._aborts:
            self._end(self._producer.abort_transaction)
            self.aborted += sent
        else:
            self._end(self._producer.commit_transaction)
            self.acknowledged += sent

    def _end(self, end: Callable[[float], None]) -> None:
        """Ends the transaction, with as many tries as it takes; the last one after the producer was stopped."""
        while True:
            is_last = self._stopped.is_set()
            try:
                return end(3)
            except KafkaException as error:
                if is_last or not error.args[0].retriable():
                    raise

    def _send(self, delivered: list[str]) -> str:
        value = f"{self._prefix}.{self._number}"

        def on_delivery(error: Any, _: Any) -> None:
            if error is None:
                delivered.append(value)

        self._producer.produce(self._topic, value, partition=self._number % self._partitions, on_delivery=on_delivery)
        self._number += 1
        return value
