"""The bare ceiling: raw batches from one topic into another, in one open transaction.

Arguments: SOURCE TARGET TOPIC REMOTE CONNECTIONS RECORDS.

It is the loop of `jobs/mirror/copy/slot_copy.py` in one plain process: Fetch, seal, Produce, EndTxn. It has no Spark,
plan, state, map, gate or ledger, and it checks neither CRCs nor aborted transactions. It prints its figures as JSON,
from the first Fetch to the response to EndTxn.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from functools import partial
from typing import Any

from mirrorlake.config.connection import Connection
from mirrorlake.jobs.mirror.copy.fetcher import FETCH_BYTES, FETCH_WAIT_MS, PARTITION_FETCH_BYTES
from mirrorlake.log import configure
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.batches.record_batch import Sealed, next_sequence, read_log
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.network.network_client import IN_FLIGHT, MOST_IN_FLIGHT
from mirrorlake.protocol.requests.grouping import by
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS

TIMEOUT_MS = 30_000
TRANSACTION_MS = 600_000
TURN_S = 0.001
FAR_BYTES = 8 << 20  # in flight on one of several connections


class Ceiling:
    """A single copy of one topic, whose partitions may have several leaders.

    Args:
        source: cluster to read.
        target: cluster to write, on the same event loop.
        topic: topic to copy.
        remote: topic to write.
        connections: number of connections to each broker. Each carries its own partitions.
        records: number of records to copy, the same of each partition.
    """

    def __init__(
        self, source: Cluster, target: Cluster, topic: str, remote: str, connections: int, records: int
    ) -> None:
        self.source, self.target, self.remote, self.connections = source, target, remote, connections
        partitions = source.refresh([topic], TIMEOUT_MS)[topic].partitions
        target.refresh([remote], TIMEOUT_MS)
        keys = [(topic, partition) for partition in range(partitions)]
        self.positions = source.offsets(keys, EARLIEST_TIMESTAMP, TIMEOUT_MS)
        ends = source.offsets(keys, LATEST_TIMESTAMP, TIMEOUT_MS)
        self.ends = {key: min(end, self.positions[key] + records // partitions) for key, end in ends.items()}
        self.records = self.batches = 0
        self._sequences = dict.fromkeys(range(partitions), 0)
        self._in_flight: dict[int, deque[tuple[Any, int]]] = {}
        self._begun: set[PartitionKey] = set()
        self._is_beginning = False

    async def copy(self, producer: transaction.Producer) -> None:
        """Copies the records up to a batch that has the last of them; the transaction stays open."""
        lanes = by(lambda key: key[1] % self.connections, self.positions)
        await self.source.together(*(partial(self._copy, producer, lane, keys) for lane, keys in lanes.items()))

    async def _copy(self, producer: transaction.Producer, lane: int, keys: list[PartitionKey]) -> None:
        """Copies the partitions of one lane."""
        pending = self._fetch(lane, keys)
        while pending:
            waiting: dict[int, deque[Any]] = {}
            for future in pending:
                for fetched in self.source.fetched(await future):
                    for batch in read_log(fetched.records):
                        self.positions[fetched.topic, fetched.partition] = batch.end_offset
                        if not batch.is_control:
                            waiting.setdefault(fetched.partition, deque()).append(batch)
            pending = self._fetch(lane, keys)
            while waiting:
                batches = {partition: batches.popleft() for partition, batches in waiting.items()}
                await self._produce(producer, lane, batches)
                waiting = {partition: batches for partition, batches in waiting.items() if batches}
        await self._settle(lane, 0, 0)

    def _fetch(self, lane: int, keys: list[PartitionKey]) -> list[Any]:
        wanted = {key: self.positions[key] for key in keys if self.positions[key] < self.ends[key]}
        partition_bytes = PARTITION_FETCH_BYTES if self.connections == 1 else FETCH_BYTES
        return [
            self.source.fetch(
                node, {key: wanted[key] for key in of_node}, FETCH_BYTES, partition_bytes, FETCH_WAIT_MS, lane=lane
            )
            for node, of_node in by(lambda key: self.source.leader(*key), wanted).items()
        ]

    async def _produce(self, producer: transaction.Producer, lane: int, batches: dict[int, Any]) -> None:
        for node, partitions in by(lambda partition: self.target.leader(self.remote, partition), batches).items():
            sealed: dict[PartitionKey, bytes | Sealed] = {}
            for partition in partitions:
                batch, sequence = batches[partition], self._sequences[partition]
                sealed[self.remote, partition] = batch.sealed(producer.producer_id, producer.producer_epoch, sequence)
                self._sequences[partition] = next_sequence(sequence, batch.records)
                self.records, self.batches = self.records + batch.records, self.batches + 1
            await (
                self._settle(lane, MOST_IN_FLIGHT - 1, FAR_BYTES)
                if self.connections > 1
                else self._settle(lane, IN_FLIGHT - 1, FETCH_BYTES)
            )
            while self._is_beginning and not self._begun.issuperset(sealed):
                await self.source.net.sleep(
                    TURN_S
                )  # a broker takes the first batches of partitions one after the other
            future = self.target.produce(node, producer.transactional_id, sealed, PRODUCE_TIMEOUT_MS, lane=lane)
            if not self._begun.issuperset(sealed):
                self._is_beginning = True
                await future
                self._is_beginning = False
                self._begun.update(sealed)
            self._in_flight.setdefault(lane, deque()).append((future, sum(map(len, sealed.values()))))

    async def _settle(self, lane: int, requests: int, size: int) -> None:
        """Waits until at most so many requests are in flight, with at most so many bytes."""
        queue = self._in_flight.setdefault(lane, deque())
        while len(queue) > requests or sum(one for _, one in queue) > size:
            list(self.target.produced(await queue.popleft()[0]))


def main(source_servers: str, target_servers: str, topic: str, remote: str, connections: str, records: str) -> None:
    """Copies a topic, and prints the figures.

    Args:
        source_servers: the bootstrap servers of the source.
        target_servers: the bootstrap servers of the target.
        topic: the topic to copy.
        remote: the topic to write.
        connections: the number of connections to each broker.
        records: the number of records to copy.
    """
    configure(level="WARNING")
    source = Cluster(Connection("source", (("bootstrap.servers", source_servers),)), "source", "ceiling")
    target = Cluster(
        Connection("target", (("bootstrap.servers", target_servers),)), "target", "ceiling", net=source.net
    )
    source.connect()
    target.connect()
    ceiling = Ceiling(source, target, topic, remote, int(connections), int(records))
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
