"""The bare ceiling: raw batches from one topic into another, in one open transaction. SOURCE TARGET TOPIC REMOTE.

It is the loop of `jobs/mirror/copy/slot_copy.py` in one plain process: Fetch, seal, Produce, EndTxn. It has no Spark,
plan, state, map, gate or ledger, and it checks neither CRCs nor aborted transactions. It prints its figures as JSON,
from the first Fetch to the response to EndTxn.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any

from mirrorlake.config.connection import Connection
from mirrorlake.jobs.mirror.copy.source_reader import FETCH_BYTES, FETCH_WAIT_MS, PARTITION_FETCH_BYTES
from mirrorlake.log import configure
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.batches.record_batch import next_sequence, read_log
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, IN_FLIGHT, LATEST_TIMESTAMP, Cluster, by
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS

TIMEOUT_MS = 30_000
TRANSACTION_MS = 600_000


class Ceiling:
    """A single copy of one topic, whose partitions may have several leaders."""

    def __init__(self, source: Cluster, target: Cluster, topic: str, remote: str) -> None:
        self.source, self.target, self.remote = source, target, remote
        partitions = source.refresh([topic], TIMEOUT_MS)[topic].partitions
        target.refresh([remote], TIMEOUT_MS)
        keys = [(topic, partition) for partition in range(partitions)]
        self.positions = source.offsets(keys, EARLIEST_TIMESTAMP, TIMEOUT_MS)
        self.ends = source.offsets(keys, LATEST_TIMESTAMP, TIMEOUT_MS)
        self.records = self.batches = 0
        self._sequences = dict.fromkeys(range(partitions), 0)
        self._in_flight: deque[Any] = deque()

    async def copy(self, producer: transaction.Producer) -> None:
        """Copies all records that existed at the start; the transaction stays open."""
        pending = self._fetch()
        while pending:
            waiting: dict[int, deque[Any]] = {}
            for future in pending:
                for fetched in self.source.fetched(await future):
                    for batch in read_log(fetched.records):
                        self.positions[fetched.topic, fetched.partition] = batch.end_offset
                        if not batch.is_control:
                            waiting.setdefault(fetched.partition, deque()).append(batch)
            pending = self._fetch()
            while waiting:
                await self._produce(producer, {partition: batches.popleft() for partition, batches in waiting.items()})
                waiting = {partition: batches for partition, batches in waiting.items() if batches}
        await self._settle(0)

    def _fetch(self) -> list[Any]:
        wanted = {key: position for key, position in self.positions.items() if position < self.ends[key]}
        return [
            self.source.fetch(
                node, {key: wanted[key] for key in keys}, FETCH_BYTES, PARTITION_FETCH_BYTES, FETCH_WAIT_MS
            )
            for node, keys in by(lambda key: self.source.leader(*key), wanted).items()
        ]

    async def _produce(self, producer: transaction.Producer, batches: dict[int, Any]) -> None:
        for node, partitions in by(lambda partition: self.target.leader(self.remote, partition), batches).items():
            sealed: dict[PartitionKey, bytes] = {}
            for partition in partitions:
                batch, sequence = batches[partition], self._sequences[partition]
                sealed[self.remote, partition] = batch.sealed(producer.producer_id, producer.producer_epoch, sequence)
                self._sequences[partition] = next_sequence(sequence, batch.records)
                self.records, self.batches = self.records + batch.records, self.batches + 1
            await self._settle(IN_FLIGHT - 1)
            self._in_flight.append(self.target.produce(node, producer.transactional_id, sealed, PRODUCE_TIMEOUT_MS))

    async def _settle(self, limit: int) -> None:
        while len(self._in_flight) > limit:
            list(self.target.produced(await self._in_flight.popleft()))


def main(source_servers: str, target_servers: str, topic: str, remote: str) -> None:
    """Copies a topic, and prints the figures.

    Args:
        source_servers: the bootstrap servers of the source.
        target_servers: the bootstrap servers of the target.
        topic: the topic to copy.
        remote: the topic to write.
    """
    configure(level="WARNING")
    source = Cluster(Connection("source", (("bootstrap.servers", source_servers),)), "source", "ceiling")
    target = Cluster(
        Connection("target", (("bootstrap.servers", target_servers),)), "target", "ceiling", net=source.net
    )
    source.connect()
    target.connect()
    ceiling = Ceiling(source, target, topic, remote)
    producer = transaction.begin(target, "ceiling", TRANSACTION_MS, TIMEOUT_MS)
    began, cpu = time.monotonic(), time.process_time()
    target.net.run(lambda: ceiling.copy(producer))
    if transaction.end(target, producer, commit=True, timeout_ms=TIMEOUT_MS) is not transaction.Outcome.DECIDED:
        raise RuntimeError("the transaction was aborted before it could be committed")
    print(
        json.dumps(
            {
                "records": ceiling.records,
                "batches": ceiling.batches,
                "seconds": time.monotonic() - began,
                "cpu_s": time.process_time() - cpu,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
