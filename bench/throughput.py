"""`make bench`: records per second of mirrorlake's pass-through path in Spark, beside a record-by-record loop on the same clusters and topic.

The loop is what one would write by hand: one process of confluent-kafka, consume, produce, no transaction, no map. mirrorlake does its whole job:
plan, copy in transactions, gate, commit. Both read the same backlog, in turn, several rounds; medians count. The ledger's appends are outside the
time measured (they are off the copying path). Results: a table, and .local/bench/throughput.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mirrorlake.flow import Flow
from mirrorlake.ledger import Ledger
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.session import local_session
from mirrorlake.mirror import MirrorJob
from mirrorlake.properties import Properties

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local/bench"
WANTED_RATIO = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=512)
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shutil.rmtree(HOME, ignore_errors=True)
    jars = ROOT / ".local/jars/kafka"
    with (
        running(LocalCluster("source", HOME / "source", jars, quick_start=False)) as source,
        running(LocalCluster("target", HOME / "target", jars, quick_start=False)) as target,
    ):
        print(f"loading {given.records:,} records of {given.bytes} B, {given.codec}, {given.partitions} partitions", flush=True)
        load(source.bootstrap_servers, given)
        spark = local_session(ROOT, "bench", quick_start=False)
        results: dict[str, list[dict[str, float]]] = {"loop": [], "mirrorlake": []}
        for number in range(given.rounds + 1):  # the first round warms up and does not count
            for name, measure in (("loop", loop), ("mirrorlake", mirror)):
                found = measure(source.bootstrap_servers, target.bootstrap_servers, given, number, spark)
                print(f"round {number}{' (warming up)' if number == 0 else ''}: {name:<10} {found['records_per_s']:>10,.0f} records/s", flush=True)
                if number:
                    results[name].append(found)
        spark.stop()
    medians = {name: statistics.median(found["records_per_s"] for found in rounds) for name, rounds in results.items()}
    ratio = medians["mirrorlake"] / medians["loop"]
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    (HOME / "throughput.json").write_text(json.dumps({"case": vars(given), "machine": machine, "rounds": results, "medians": medians, "ratio": ratio}, indent=1))
    print(
        f"\nmedian of {given.rounds} rounds: loop {medians['loop']:,.0f}, mirrorlake {medians['mirrorlake']:,.0f} records/s: {ratio:.2f} times (wanted: {WANTED_RATIO})"
    )
    return ratio < WANTED_RATIO


def load(servers: str, given: argparse.Namespace) -> None:
    """Fills topic `backlog`; timestamps are fresh, so that retention leaves it alone."""
    if "backlog" not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics:
        create(servers, "backlog", given.partitions)
    dice = random.Random(1)
    words = [f"{dice.getrandbits(64):016x}" for _ in range(2_000)]
    values = [",".join(dice.choices(words, k=given.bytes // 17 + 1))[: given.bytes].encode() for _ in range(5_000)]
    producer = Producer(
        {"bootstrap.servers": servers, "compression.type": given.codec, "linger.ms": 20, "batch.size": 1_000_000, "batch.num.messages": 500, "log_level": 0}
    )
    for number in range(given.records):
        while True:
            try:
                producer.produce("backlog", values[number % len(values)], str(number).encode(), partition=number % given.partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def create(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # has to live until its futures are done
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def loop(source: str, target: str, given: argparse.Namespace, number: int, _spark: Any) -> dict[str, float]:
    """Consume and produce, record by record, in this process."""
    remote = f"loop-{number}"
    create(target, remote, given.partitions)
    consumer = Consumer({"bootstrap.servers": source, "group.id": remote, "enable.auto.commit": False, "queued.max.messages.kbytes": 200_000, "log_level": 0})
    consumer.assign([TopicPartition("backlog", partition, 0) for partition in range(given.partitions)])
    producer = Producer({"bootstrap.servers": target, "compression.type": given.codec, "linger.ms": 50, "batch.size": 1_000_000, "acks": "all", "enable.idempotence": True, "log_level": 0,
                         "queue.buffering.max.messages": 500_000})  # fmt: skip
    copied, began, cpu = 0, time.perf_counter(), time.process_time()
    while copied < given.records:
        for message in consumer.consume(10_000, 1.0):
            while True:
                try:
                    producer.produce(remote, message.value(), message.key(), message.partition(), timestamp=message.timestamp()[1], headers=message.headers() or [])
                    break
                except BufferError:
                    producer.poll(0.05)
            copied += 1
        producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - began
    consumer.close()
    return {"records_per_s": copied / seconds, "seconds": seconds, "cpu_us_per_record": 1e6 * (time.process_time() - cpu) / copied}


def mirror(source: str, target: str, given: argparse.Namespace, number: int, spark: Any, **settings: str) -> dict[str, float]:
    """The mirror job on a flow of its own; the time is that of its micro-batches, plan to commit."""
    alias = f"s{number}"
    properties = {
        "clusters": f"{alias}, t", f"{alias}.bootstrap.servers": source, "t.bootstrap.servers": target, f"{alias}->t.enabled": "true", "topics": "backlog",
        "replication.factor": "1", "offset-syncs.topic.replication.factor": "1", **settings,
    }  # fmt: skip
    config = HOME / f"{alias}.properties"
    config.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    flow = Flow.from_properties(Properties.load(config), f"{alias}->t")
    ledger = Ledger(spark, "spark_catalog", "bench", str(HOME / "warehouse"))
    result = MirrorJob(spark, str(config), flow, ledger, ROOT / "expectations/offset_syncs.json", say=lambda line: None).run(None)
    assert result.records == given.records, f"{result.records} of {given.records} records were mirrored"
    seconds = sum(done.seconds for done in result.history)
    stages = {f"{name}_ms": sum(done.stages_ms[name] for done in result.history) for name in result.history[0].stages_ms}
    return {"records_per_s": result.records / seconds, "seconds": seconds, "batches": result.batches, **stages}


if __name__ == "__main__":
    sys.exit(main())
