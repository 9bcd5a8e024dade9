"""A target that doesn't respond stops the reads of the source, before the memory of the copying worker fills up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from mirrorlake.local.cluster import LocalCluster, running

from bench.memory import Watch
from bench.processes import MIB
from tests.world import World, eventually

RECORD_BYTES, RECORDS = 10_000, 40_000  # 400 MB; the worker itself takes about 100
ALLOWED_MIB = 300
STANDSTILL_S = 5.0


@pytest.fixture
def target(root: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    with running(LocalCluster("target", tmp_path / "target", root / ".local/jars/kafka")) as cluster:
        yield cluster


def written(cluster: LocalCluster, topic: str) -> int:
    """Returns the end offset of the topic's first partition, with open transactions; 0 if the topic doesn't exist."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "watch",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:
        return max(0, consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    except KafkaException:
        return 0
    finally:
        consumer.close()


def test_a_target_that_stands_still_costs_no_memory_and_everything_arrives_once_it_goes_on(
    servers: tuple[str, str], target: LocalCluster, spark: object, warehouse: str, tmp_path: Path
) -> None:
    world = World(servers[0], target.bootstrap_servers, tmp_path, spark, warehouse, runs_on_spark=True)
    world.write_config(**{"mirrorlake.slots": "1", "mirrorlake.transaction.timeout.ms": "60000"})
    topic = world.topic(partitions=4)
    producer = Producer(
        {
            "bootstrap.servers": world.source_servers,
            "linger.ms": 50,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 0,
        }
    )
    value = os.urandom(RECORD_BYTES)
    for number in range(RECORDS):
        producer.produce(topic, value, partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0
    failures: list[Exception] = []

    def mirror() -> None:
        try:
            world.mirror()
        except Exception as error:
            failures.append(error)

    job = threading.Thread(target=mirror)
    job.start()
    eventually(
        lambda: failures or written(target, world.remote(topic)) > 0,
        what="the first records, of a transaction that is still open",
    )
    broker = target.brokers[0].pid
    os.kill(broker, signal.SIGSTOP)
    try:
        with Watch() as watch:
            time.sleep(STANDSTILL_S)  # the test needs a pause of this length
    finally:
        os.kill(broker, signal.SIGCONT)
    is_early = written(target, world.remote(topic)) < RECORDS // 4
    job.join()
    assert is_early, "it was stopped too late to show anything"
    assert not failures, failures[0]
    assert 0 < watch.peak_bytes < ALLOWED_MIB * MIB
    records = world.target_records(topic)
    assert {partition: len(found) for partition, found in records.items()} == dict.fromkeys(range(4), RECORDS // 4)
    assert all(record[1] == value for found in records.values() for _, record in found)
