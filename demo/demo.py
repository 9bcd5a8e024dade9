"""`make demo`: two clusters, live traffic, a mirror, a migration of consumer groups.

The demo checks what it shows, and ends with a non-zero status if a check fails.

1. Two Kafka clusters start on this machine, `a` and `b`.
2. Producers write to three topics of `a` (keys, headers, different codecs, transactions). Six groups read at
different speeds and commit.
3. Meanwhile papermill runs the notebooks: mirror.ipynb copies `a` to `b`, checkpoint.ipynb syncs the groups' offsets.
4. The consumers on `a` stop and continue on `b`, from their groups' offsets on `b`. Every record that they get is
compared with those that they had read.
5. audit.ipynb queries the ledger; the executed notebooks are kept as HTML.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mirrorlake.local.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local/demo"
LIVE_S, DEADLINE_S = 15, 60  # LIVE_S counts from the first micro-batch on
QUIET_S = 3
EOF_REACHED = -191  # librdkafka's _PARTITION_EOF

PROPERTIES = """\
# Written by `make demo`.
clusters = a, b
a.bootstrap.servers = {a}
b.bootstrap.servers = {b}
a->b.enabled = true
sync.group.offsets.enabled = true
refresh.groups.interval.seconds = 5
replication.factor = 1
offset-syncs.topic.replication.factor = 1
mirrorlake.ledger.interval.seconds = 3
"""

Key = tuple[str, int]

COMMITTED, CYCLE = "micro_batch_committed", "checkpoint_cycle"  # events of the two jobs
SHOWN = {COMMITTED, CYCLE, "generation_opened", "interrupted", "mirror_finished", "checkpoint_finished"}


@dataclass(frozen=True)
class Topic:
    """A topic on the source, and its traffic."""

    name: str
    partitions: int
    codec: str
    per_second: int
    transactional: bool = False


@dataclass
class Reader:
    """A consumer group on the source: its topics, its speed, and the values that it has read by partition."""

    group: str
    topics: tuple[str, ...]
    per_second: float
    read: dict[Key, set[bytes]] = field(default_factory=dict)


TOPICS = (
    Topic("orders", 4, "lz4", 800),
    Topic("payments", 2, "zstd", 200, transactional=True),
    Topic("clicks", 3, "none", 500),
)
READERS = (
    Reader("billing", ("orders",), 1e9),
    Reader("search", ("orders", "clicks"), 500),
    Reader("archive", ("orders", "payments", "clicks"), 150),
    Reader("fraud", ("payments",), 1e9),
    Reader("ledger", ("payments",), 60),
    Reader("sleepy", ("clicks",), 5),
)


def main() -> int:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    clusters = {
        name: LocalCluster(name, HOME / "clusters" / name, ROOT / ".local/jars/kafka", port=port)
        for name, port in (("a", 19092), ("b", 29092))
    }
    for cluster in clusters.values():
        cluster.delete()  # left by the last demo, which may have been interrupted
    shutil.rmtree(HOME, ignore_errors=True)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(LocalCluster.start, clusters.values()))
        for cluster in clusters.values():
            say(f"cluster {cluster.name} runs on {cluster.bootstrap_servers}")
        problems = show(clusters["a"].bootstrap_servers, clusters["b"].bootstrap_servers, say)
    finally:
        for cluster in clusters.values():
            cluster.stop()
    say("both clusters are stopped")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return bool(problems)


def show(source: str, target: str, say: Callable[[str], None]) -> list[str]:
    """Runs the traffic and the notebooks; returns the checks that failed."""
    config = HOME / "mirrorlake.properties"
    config.write_text(PROPERTIES.format(a=source, b=target))
    admin = AdminClient({"bootstrap.servers": source, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1) for topic in TOPICS]).values():
        future.result()
    stop = threading.Event()
    traffic = [threading.Thread(target=produce, args=(source, topic, stop)) for topic in TOPICS] + [
        threading.Thread(target=consume, args=(source, reader, stop)) for reader in READERS
    ]
    for thread in traffic:
        thread.start()
    say(f"{len(TOPICS)} producers and {len(READERS)} consumer groups are at work on cluster a")
    flow = ["-p", "config", str(config), "-p", "warehouse", str(HOME / "warehouse")]
    jobs = [
        Notebook("mirror", [*flow, "-p", "trigger", "1 seconds"], say),
        Notebook("checkpoint", [*flow, "-p", "trigger", "3 seconds"], say),
    ]
    say("mirror.ipynb and checkpoint.ipynb are starting (Spark takes a while)")
    for job in jobs:
        job.begun.wait(2 * DEADLINE_S)
    time.sleep(LIVE_S)  # the length of the live part; it waits for no condition
    stop.set()
    for thread in traffic:
        thread.join()
    say("producers and consumers on cluster a have stopped; the jobs finish what is left")
    mirror, checkpoint = jobs
    cycles = len(checkpoint.logged(CYCLE))
    problems = checkpoint.until(
        lambda: any("status_clamped" not in line for line in checkpoint.logged(CYCLE)[cycles + 1 :]),
        "every group is translated exactly",
    )
    problems += mirror.until(
        lambda: [line["lag"] for line in mirror.logged(COMMITTED)[-1:]] == [0] and mirror.quiet_s() > QUIET_S,
        "everything is mirrored",
    )
    for job in jobs:
        job.interrupt()
    problems += [problem for job in jobs for problem in job.wait()]
    if problems:
        return problems
    audit = Notebook("audit", ["-p", "warehouse", str(HOME / "warehouse"), "-p", "group_id", "archive"], say)
    say("every group goes on on cluster b")
    problems += compare_topics(source, target, say)
    problems += compare_groups(source, target)
    problems += audit.wait()
    print("\nlook at it:")
    for name in ("mirror", "checkpoint", "audit"):
        print(f"  {HOME / 'notebooks' / name}.html")
    print(f"  Delta tables: {HOME / 'warehouse/mirrorlake'}\n")
    return problems


class Notebook:
    """A notebook that papermill runs, as an operator would; its log lines are shown as they come."""

    def __init__(self, name: str, parameters: list[str], say: Callable[[str], None]) -> None:
        self.name, self._say = name, say
        self.output = HOME / "notebooks" / f"{name}.ipynb"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        words = [
            Path(sys.executable).with_name("papermill"),
            "--no-progress-bar",
            "--log-output",
            ROOT / f"notebooks/{name}.ipynb",
            self.output,
            *parameters,
        ]
        self._log = self.output.with_suffix(".log")
        self._log.touch()
        environment = {**os.environ, "MIRRORLAKE_LOG_FILE": str(self._log), "MIRRORLAKE_LOG_FORMAT": "json"}
        self._process = subprocess.Popen(
            list(map(str, words)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._output: list[str] = []
        self._logged: list[dict[str, Any]] = []
        self._heard = time.monotonic()
        self.begun = threading.Event()
        self._readers = [threading.Thread(target=read) for read in (self._read_output, self._read_log)]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        self._output += self._process.stdout or ()

    def _read_log(self) -> None:
        is_over, left = False, ""
        with self._log.open() as file:
            while not is_over:
                is_over = self._process.poll() is not None
                *lines, left = (left + file.read()).split("\n")
                for line in lines:
                    self._take(json.loads(line))
                time.sleep(0.1)
        self.begun.set()  # also when it has failed

    def _take(self, line: dict[str, Any]) -> None:
        self._logged.append(line)
        self._heard = time.monotonic()
        if line["event"] in SHOWN or line["level"] != "INFO":
            self._say(f"{self.name}: {in_words(line)}")
        if line["event"] in (COMMITTED, CYCLE):
            self.begun.set()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Returns the log lines of an event so far."""
        return [line for line in list(self._logged) if line["event"] == event]

    def quiet_s(self) -> float:
        """Returns the seconds since the last log line."""
        return time.monotonic() - self._heard

    def until(self, condition: Callable[[], object], what: str) -> list[str]:
        """Waits for a condition; returns a problem if it does not come true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline or self._process.poll() is not None:
                return [f"{self.name}.ipynb: it did not come true that {what}"]
            time.sleep(0.2)
        self._say(f"{self.name}: {what}")
        return []

    def interrupt(self) -> None:
        """Interrupts the kernel, as Jupyter's stop button does.

        The job finishes its micro-batch, and the notebook continues after it.
        """
        for child in psutil.Process(self._process.pid).children() if self._process.poll() is None else ():
            if any("ipykernel" in word for word in child.cmdline()):
                child.send_signal(signal.SIGINT)

    def wait(self) -> list[str]:
        """Waits for the end and keeps the HTML; returns the problems."""
        status = self._process.wait()
        for reader in self._readers:
            reader.join()
        html = subprocess.run(
            [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level", "ERROR", str(self.output)],
            capture_output=True,
            text=True,
            check=False,
        )
        if status:
            return [f"{self.name}.ipynb failed: {''.join(self._output[-15:])}"]
        return [f"{self.name}.html: {html.stderr[-500:]}"] if html.returncode else []


def in_words(line: dict[str, Any]) -> str:
    """Formats a log line for the terminal."""
    if line["event"] == COMMITTED:
        return (
            "batch {batch}: {records:,} records of {partitions} partitions in {seconds:.2f} s ({records_per_s:,}/s, "
            "{mb_per_s} MB/s), lag {lag:,}".format(**line)
        )
    fields = {name: value for name, value in line.items() if name not in ("time", "level", "logger", "event", "flow")}
    if line["event"] == CYCLE:
        statuses, syncs = (
            ", ".join(f"{count:,} {name.removeprefix(kind)}" for name, count in fields.items() if name.startswith(kind))
            for kind in ("status_", "sync_")
        )
        return (
            f"cycle {line['cycle']}: {line['groups']} groups, {line['positions']} positions ({statuses or 'none'}); on "
            f"the target: {syncs or 'none'}; {line['rows']} rows in {line['seconds']:.2f} s"
        )
    level = "" if line["level"] == "INFO" else f"{line['level'].lower()}: "
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())
    return f"{level}{line['event'].replace('_', ' ')}: {said}"


def produce(servers: str, topic: Topic, stop: threading.Event) -> None:
    """Produces records until it is stopped; every value begins with a number that is unique in its topic."""
    settings = {"transactional.id": f"demo-{topic.name}"} if topic.transactional else {}
    producer = Producer(
        {"bootstrap.servers": servers, "compression.type": topic.codec, "linger.ms": 20, "log_level": 0, **settings}
    )
    dice, number = random.Random(topic.name), 0
    if topic.transactional:
        producer.init_transactions(DEADLINE_S)
    while not stop.is_set():
        if topic.transactional:
            producer.begin_transaction()
        for _ in range(topic.per_second // 10):
            number += 1
            headers = [("trace", dice.randbytes(8)), ("attempt", None)][: dice.randint(0, 2)]
            value = f"{topic.name}/{number}/".encode() + dice.randbytes(60).hex().encode()
            producer.produce(
                topic.name,
                value,
                dice.choice([None, f"customer-{dice.randint(1, 500)}".encode()]),
                dice.randrange(topic.partitions),
                headers=headers,
            )
        producer.poll(0)
        if topic.transactional:
            producer.abort_transaction() if dice.random() < 0.2 else producer.commit_transaction()
        stop.wait(0.1)
    producer.flush(DEADLINE_S)


def consume(servers: str, reader: Reader, stop: threading.Event) -> None:
    """Reads at its own speed, and commits exactly what it has read."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": reader.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(list(reader.topics))
    started, count = time.monotonic(), 0
    while not stop.is_set():
        wanted = min(2_000, int((time.monotonic() - started) * reader.per_second) - count)
        messages = (
            [message for message in consumer.consume(wanted, 0.2) if message.error() is None] if wanted > 0 else []
        )
        if not messages:
            stop.wait(0.05)
            continue
        count += len(messages)
        next_offsets: dict[Key, int] = {}
        for message in messages:
            key = (message.topic(), message.partition())
            reader.read.setdefault(key, set()).add(message.value())
            next_offsets[key] = message.offset() + 1
        consumer.commit(
            offsets=[
                TopicPartition(topic, partition, offset, f"read {count}")
                for (topic, partition), offset in next_offsets.items()
            ],
            asynchronous=False,
        )
    consumer.close()


def compare_topics(source: str, target: str, say: Callable[[str], None]) -> list[str]:
    """Compares both sides record by record, as read_committed consumers see them; returns the differences."""
    problems, total = [], 0
    for topic in TOPICS:
        for partition in range(topic.partitions):
            here = records(source, "demo-compare", topic.name, partition, 0)
            there = records(target, "demo-compare", f"a.{topic.name}", partition, 0)
            total += len(here)
            if [record[1:] for record in here] != [record[1:] for record in there]:
                problems.append(
                    f"{topic.name}-{partition}: {len(here)} records on a, {len(there)} on b, and they differ"
                )
    say(f"{total:,} records compared, key, value, headers, timestamp and order: {len(problems)} partitions differ")
    return problems + ([] if total else ["nothing was compared"])


def compare_groups(source: str, target: str) -> list[str]:
    """Lets each group continue on the target, and compares its records with those that it had read on the source."""
    line = "  {:<9} {:<11} {:>9} {:>11} {:>9} {:>9} {:>8}"
    print("\n" + line.format("group", "partition", "upstream", "downstream", "unread", "re-read", "skipped"))
    problems, shown = [], 0
    for reader in READERS:
        committed = {
            key: offset for key, offset in positions(source, reader.group, reader.topics).items() if offset >= 0
        }
        arrived = positions(target, reader.group, [f"a.{topic}" for topic in reader.topics])
        for (topic, partition), upstream in sorted(committed.items()):
            downstream = arrived[f"a.{topic}", partition]
            unread = {record[2] for record in records(source, "demo-compare", topic, partition, upstream)}
            got = (
                [record[2] for record in records(target, reader.group, f"a.{topic}", partition, downstream)]
                if downstream >= 0
                else []
            )
            again, skipped = len(set(got) & reader.read.get((topic, partition), set())), len(unread - set(got))
            print(line.format(reader.group, f"{topic}-{partition}", upstream, downstream, len(unread), again, skipped))
            shown += 1
            if downstream < 0 or again or skipped or len(got) != len(unread):
                problems.append(
                    f"group {reader.group}, {topic}-{partition}: {again} re-read, {skipped} skipped, {len(got)} of "
                    f"{len(unread)} read"
                )
    print(f"\n  {shown} positions moved, {len(problems)} wrong")
    return problems + ([] if shown > 5 else ["hardly any group has read anything"])


def positions(servers: str, group: str, topics: Iterable[str]) -> dict[Key, int]:
    """Returns the committed offsets of a group."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        asked = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        return {(found.topic, found.partition): found.offset for found in consumer.committed(asked, timeout=10)}
    finally:
        consumer.close()


def records(servers: str, group: str, topic: str, partition: int, start: int) -> list[tuple[object, ...]]:
    """Reads offset, key, value, headers and timestamp of every record of a partition, from an offset to the end.

    Args:
        servers: the bootstrap servers.
        group: the group id of the consumer.
        topic: the topic.
        partition: the partition.
        start: the first offset.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[tuple[object, ...]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.1):
                if message.error() is None:
                    found.append(
                        (message.offset(), message.key(), message.value(), message.headers(), message.timestamp())
                    )
                elif message.error().code() == EOF_REACHED:
                    return found
                else:
                    raise KafkaException(message.error())
        raise TimeoutError(f"{topic}-{partition} could not be read to its end")
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
