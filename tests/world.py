"""A world for one test: topics with unique names on two real clusters, a flow between them, and independent readers.

librdkafka (confluent-kafka) reads the records to compare, not the code that copies.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec
from crc32c import crc32c
from deltalake import DeltaTable
from mirrorlake.config.flow import Flow
from mirrorlake.failpoint import Failpoint, from_specification
from mirrorlake.jobs.checkpoint.cycles import InProcessCycles, SparkCycles
from mirrorlake.jobs.checkpoint.job import CheckpointJob, CheckpointResult
from mirrorlake.jobs.mirror.engine import Engine
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob, MirrorResult
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.metrics import of_process as of_this_process
from mirrorlake.model.changes import whole_states
from mirrorlake.model.gap import RESETS
from mirrorlake.model.slot import SlotState
from mirrorlake.model.trace import TraceAudit

from tests.empty_ledger import put_tables
from tests.log_lines import of_process

ROOT = Path(__file__).resolve().parents[1]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 180  # a cold JVM with another one beside it takes a minute to begin
PROCESS_S = 900  # for one that starts a JVM, and works, on a machine that is slow and busy

Record = tuple[Any, Any, Any, Any]  # key, value, headers, timestamp


class _LedgerOfJob(Ledger):
    """Tables of which some stay empty, and which get the map when somebody reads it.

    A ledger that is behind is one that its readers have to expect. An append of the map takes seconds, and tests mirror
    several times before they look at it.

    Attributes:
        unread: the names of tables that stay empty.
        due: the arguments of `catch_up`, by flow, until then.
    """

    unread: frozenset[str] = frozenset()
    due: dict[str, tuple[Flow, int]]

    def append(self, name: str, rows: Iterable[Any]) -> None:
        if name not in self.unread:
            super().append(name, rows)

    def catch_up(self, flow: Flow, partitions: int, appended: Callable[[int, float], None] = lambda *_: None) -> None:
        self.due[flow.name] = flow, partitions


@dataclass
class World:
    """Two clusters, a unique source alias, and a directory.

    Attributes:
        runs_on_spark: True if jobs read and copy in Spark's tasks; else they run in this process, by the same code.
        memory: the tables of a world without Spark.
        small_records: records up to which the driver on Spark copies them itself.
        audits_trace: False in a test that has itself written into the offset-syncs topic.
        keeps_journal: True in a test that reads what jobs in this process note of each cycle; jobs on Spark note it
            always. Each of their appends takes half a second.
        due: appends of the map that wait for a reader of the tables (`_LedgerOfJob`).
    """

    source_servers: str
    target_servers: str
    directory: Path
    spark: Any = None
    warehouse: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    alias: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")
    target_alias: str = "t"
    runs_on_spark: bool = False
    memory: MemoryLedger = field(default_factory=MemoryLedger)
    small_records: int = 0
    audits_trace: bool = True
    keeps_journal: bool = False
    due: dict[str, tuple[Flow, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of_process()  # from here on, lines are kept
        self.directory.mkdir(exist_ok=True)
        # A session knows a schema by its name, and is that of many tests: each directory has a name of its own.
        self.warehouse = self.warehouse or str(self.directory / f"warehouse_{crc32c(str(self.directory).encode()):08x}")
        put_tables(self.warehouse, Path(self.warehouse).name)
        self.source_admin = AdminClient({"bootstrap.servers": self.source_servers, "log_level": 0})
        self.target_admin = AdminClient({"bootstrap.servers": self.target_servers, "log_level": 0})
        self.write_config()

    # -- configuration and jobs ---------------------------------------------------------------------

    @property
    def flow_name(self) -> str:
        return f"{self.alias}->{self.target_alias}"

    @property
    def config(self) -> str:
        return str(self.directory / "mirrorlake.properties")

    def write_config(self, **changes: str) -> None:
        """Writes the property file; names of changes have _ for dots."""
        self.properties.update({name.replace("_", "."): value for name, value in changes.items()})
        values = {
            "clusters": f"{self.alias}, {self.target_alias}",
            f"{self.alias}.bootstrap.servers": self.source_servers,
            f"{self.target_alias}.bootstrap.servers": self.target_servers,
            f"{self.flow_name}.enabled": "true",
            "topics": f"{self.alias}-.*",
            "groups": f"{self.alias}-.*",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "sync.group.offsets.enabled": "true",
            "emit.heartbeats.enabled": "false",  # the clusters are shared
            "heartbeats.replication.enabled": "false",
            "refresh.topics.interval.seconds": "1",
            "refresh.groups.interval.seconds": "1",
            "mirrorlake.ledger.interval.seconds": "2",
            "mirrorlake.lag.interval.seconds": "0",  # a measurement at the end of each run takes a second with a ledger
            "mirrorlake.transaction.timeout.ms": "20000",
            "mirrorlake.retry.timeout.ms": "60000",
            **self.properties,
        }
        Path(self.config).write_text("".join(f"{name} = {value}\n" for name, value in values.items()))

    @property
    def flow(self) -> Flow:
        return Flow.load(self.config, self.flow_name)

    @property
    def ledger(self) -> Any:
        """Returns the tables; in a world without Spark, the rows that the jobs have appended."""
        if self.spark is None:
            return self.memory
        self._catch_up()
        return Ledger(self.spark, "spark_catalog", Path(self.warehouse).name, self.warehouse)

    def _catch_up(self) -> None:
        while self.due:
            _, (flow, partitions) = self.due.popitem()
            self.ledger.catch_up(flow, partitions)

    def ledger_of_job(self, *unread: str) -> Any:
        """Returns the tables for a job: where the test keeps no journal, without those that nobody reads."""
        if self.spark is None or self.runs_on_spark or self.keeps_journal:
            return self.ledger
        ledger = _LedgerOfJob(self.spark, "spark_catalog", Path(self.warehouse).name, self.warehouse)
        ledger.unread, ledger.due = frozenset(unread), self.due
        return ledger

    @property
    def lines(self) -> list[str]:
        """Returns the lines that this process has logged about this world."""
        return [line for line in of_process() if self.alias in line]

    def metric(self, name: str, **labels: str) -> float | None:
        """Returns the value of a sample of this world's flow."""
        return of_this_process().registry.get_sample_value(f"mirrorlake_{name}", {"flow": self.flow_name, **labels})

    def engine(self, failpoint: str = "") -> Engine:
        """Returns the engine of the mirror jobs: this process, or Spark if the test or a transform needs it."""
        if not self.runs_on_spark and not self.flow.transforms:
            return InProcessEngine(failpoint=from_specification(failpoint))
        if not self.runs_on_spark:
            return SparkEngine(self.spark, failpoint)  # as in a notebook, for the sake of the transform
        return SparkEngine(self.spark, failpoint, self.small_records)

    def mirror_job(self, failpoint: str = "") -> MirrorJob:
        return MirrorJob(
            self.engine(failpoint),
            self.config,
            self.flow,
            self.ledger_of_job("cycles", "expectation_results"),
            ROOT / "expectations/offset_syncs.json",
            failpoint,
        )

    def disturbed_job(self, disturb: Failpoint, parallelism: int = 2) -> MirrorJob:
        """Returns a mirror job in this process that calls `disturb` with the name of each step (`failpoint`)."""
        engine, suite = InProcessEngine(parallelism, disturb), ROOT / "expectations/offset_syncs.json"
        job = MirrorJob(engine, self.config, self.flow, self.ledger_of_job("cycles", "expectation_results"), suite)
        job._failpoint = disturb  # its constructor takes a specification only
        return job

    def mirror(
        self, interval_s: float | None = None, run_for_s: float | None = None, failpoint: str = ""
    ) -> MirrorResult:
        """Runs the mirror job, by default until all existing records are mirrored."""
        return self.mirror_job(failpoint).run(interval_s, run_for_s)

    @contextmanager
    def mirroring(self, interval_s: float = 0.2) -> Iterator[Future[MirrorResult]]:
        """Runs the mirror job beside the block; ends it between two micro-batches, and raises its error."""
        job = self.mirror_job()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(job.run, interval_s)
            try:
                yield running
            finally:
                job.stop()
            running.result(DEADLINE_S)

    @property
    def batches(self) -> int:
        """Returns the number of micro-batches of this world that this process has logged."""
        return sum("micro_batch_committed" in line for line in self.lines)

    @contextmanager
    def mirroring_through(self, topic: str, partitions: int = 4) -> Iterator[None]:
        """Mirrors a growing topic while the block makes trouble, then the rest, and compares both sides."""
        self.produce(topic, 2_000, partitions)
        with self.mirroring(interval_s=0.1):
            eventually(lambda: self.batches, what="the first micro-batch")
            yield
            before = self.batches
            self.produce(topic, 1_000, partitions, seed=2)
            eventually(lambda: self.batches > before, what="a micro-batch after the trouble")
        self.mirror()
        assert self.assert_equal(topic) >= 3_000
        self.assert_nothing_open()

    def checkpoint(self, interval_s: float | None = None, run_for_s: float | None = None) -> CheckpointResult:
        """Runs one cycle of the checkpoint job, or several."""
        return self.checkpoint_job().run(interval_s, run_for_s)

    @contextmanager
    def checkpointing(self, interval_s: float = 0.2) -> Iterator[Future[CheckpointResult]]:
        """Runs the checkpoint job beside the block; ends it between two cycles, and raises its error."""
        job = self.checkpoint_job()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(job.run, interval_s)
            try:
                yield running
            finally:
                job.stop()
            running.result(DEADLINE_S)

    def checkpoint_job(self) -> CheckpointJob:
        cycles = SparkCycles(self.spark) if self.runs_on_spark else InProcessCycles(self.spark)
        suite = ROOT / "expectations/checkpoints.json"
        self._catch_up()
        ledger = self.ledger_of_job("expectation_results")  # plans with a dead source read its cycles
        return CheckpointJob(self.spark, self.config, self.flow, ledger, suite, cycles=cycles)

    def checkpoints(self) -> dict[tuple[str, str | None, int | None], Any]:
        """Returns the newest row of the table checkpoints for every group and partition."""
        rows = sorted(self.table("checkpoints"), key=lambda row: row["created_at"])
        return {(row["group_id"], row["topic"], row["partition"]): row for row in rows}

    # -- the source ---------------------------------------------------------------------------------

    def topic(
        self,
        name: str = "orders",
        partitions: int = 2,
        config: dict[str, str] | None = None,
        replication_factor: int = 1,
    ) -> str:
        """Creates a topic on the source that belongs to the flow; returns its name."""
        full = f"{self.alias}-{name}"
        self.source_admin.create_topics([NewTopic(full, partitions, replication_factor, config=config or {})])[
            full
        ].result()
        eventually(lambda: len(self.source_admin.list_topics(full, timeout=5).topics[full].partitions) == partitions)
        return full

    def remote(self, topic: str) -> str:
        return self.flow.policy.remote_topic(topic)

    def produce(
        self,
        topic: str,
        count: int,
        partitions: int = 2,
        codec: str = "lz4",
        size: int = 100,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """Produces records with keys, headers and timestamps of many kinds; the same for the same seed."""
        producer = Producer(
            {
                "bootstrap.servers": self.source_servers,
                "compression.type": codec,
                "linger.ms": 5,
                "batch.num.messages": 50,
                "log_level": 0,
                **settings,
            }
        )
        refused: list[Any] = []
        for record in _records(count, size, seed):
            _send(producer, topic, record, partitions, lambda error, _: refused.append(error) if error else None)
        assert producer.flush(DEADLINE_S) == 0
        assert not refused, refused[0]

    def produce_transactions(
        self, topic: str, transactions: int, each: int, partitions: int = 2, seed: int = 0, aborted: float = 0.3
    ) -> None:
        """Produces transactions, some of which are aborted."""
        dice = random.Random(seed)
        name, batches = f"{topic}-{seed}-{uuid.uuid4().hex[:6]}", {"compression.type": "lz4", "linger.ms": 2}
        producer = transactional_producer(self.source_servers, name, **batches)
        for number in range(transactions):
            producer.begin_transaction()
            for record in _records(dice.randint(1, each), 60, seed * 1_000 + number):
                _send(producer, topic, record, partitions)
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S) if dice.random() < aborted else producer.commit_transaction(
                DEADLINE_S
            )

    # -- both sides, as others see them -------------------------------------------------------------

    def source_records(self, topic: str) -> dict[int, list[tuple[int, Record]]]:
        return read_committed(self.source_servers, topic)

    def target_records(self, topic: str) -> dict[int, list[tuple[int, Record]]]:
        return read_committed(self.target_servers, self.remote(topic))

    def assert_equal(self, *topics: str) -> int:
        """Asserts that the read_committed target equals the source record by record, and that every run is true.

        Returns the number of records.
        """
        total = 0
        runs, gaps = self.ledger_map(*topics)
        for topic in topics:
            source, target = self.source_records(topic), self.target_records(topic)
            assert source.keys() == target.keys(), f"{topic}: partitions {sorted(source)} and {sorted(target)}"
            for partition, expected in source.items():
                actual = target[partition]
                assert len(actual) == len(expected), (
                    f"{topic}-{partition}: {len(expected)} records on the source, {len(actual)} on the target"
                )
                for (offset, record), (target_offset, copy) in zip(expected, actual, strict=True):
                    assert record == copy, f"{topic}-{partition}: offset {offset} differs from {target_offset}"
                total += len(expected)
            self.assert_runs_are_true([run for run in runs if run["topic"] == topic], source, target)
        _assert_accounted(runs, gaps)
        assert total > 0, "nothing was compared"
        return total

    def ledger_map(self, *topics: str) -> tuple[list[Any], list[Any]]:
        """Returns the flow's rows of offset_syncs and of gaps, with the offset columns of a run; gaps have a kind."""
        if self.spark is None:
            return map_on_target(self.target_servers, self.flow, set(topics), audits=self.audits_trace)
        names = {"upstream_start": "from_offset", "upstream_end": "to_offset"}
        runs = [
            {**run, "kind": None}
            for row in self.rows("offset_syncs")
            if row["topic"] in topics
            for run in unfolded_run(row)
        ]
        gaps = [
            {**gap, **{ours: gap[theirs] for ours, theirs in names.items()}}
            for row in self.rows("gaps")
            if row["topic"] in topics
            for gap in unfolded_gap(row)
        ]
        return runs, gaps

    def assert_runs_are_true(
        self, runs: list[Any], source: dict[int, list[tuple[int, Record]]], target: dict[int, list[tuple[int, Record]]]
    ) -> None:
        """Asserts that the runs of a topic have exactly the pairs of offsets that an alignment of both sides gives."""
        said: dict[int, list[tuple[int, int]]] = {partition: [] for partition in source}
        for row in sorted(runs, key=lambda row: row["upstream_start"]):
            assert (
                row["records"]
                == row["upstream_end"] - row["upstream_start"]
                == row["downstream_end"] - row["downstream_start"]
            )
            said[row["partition"]] += [
                (row["upstream_start"] + at, row["downstream_start"] + at) for at in range(row["records"])
            ]
        for partition, records in source.items():
            seen = [
                (offset, target_offset)
                for (offset, _), (target_offset, _) in zip(records, target[partition], strict=True)
            ]
            assert said[partition] == seen, (
                f"partition {partition}: the map says {said[partition][:3]}..., the logs {seen[:3]}..."
            )

    def assert_accounted(self, *topics: str) -> None:
        """Asserts that runs and gaps cover each offset that the flow has passed exactly once, by partition."""
        _assert_accounted(*self.ledger_map(*topics))

    def rows(self, table: str) -> list[Any]:
        """Returns the rows of this flow in a table of the ledger."""
        if self.spark is None:
            return list(self.memory.rows.get(table, ()))
        return self.table(table, [("source", "=", self.alias), ("target", "=", self.target_alias)])

    def table(self, name: str, filters: list[tuple[str, str, str]] | None = None) -> list[dict[str, Any]]:
        """Reads a table of the ledger by another implementation of Delta, which takes a tenth of Spark's time."""
        ledger, directory = self.ledger, Path(self.warehouse) / Path(self.warehouse).name / name
        if not directory.is_dir():
            ledger.ensure_tables()
        table = DeltaTable(directory).to_pyarrow_table(filters=filters)
        zoned = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        for column in zoned:  # as Spark gives them
            table = table.set_column(
                table.schema.get_field_index(column), column, table[column].cast(pa.timestamp("us"))
            )
        return table.to_pylist()

    def gaps(self, topic: str) -> list[tuple[int, int, int, str]]:
        """Returns (partition, from_offset, to_offset, kind) of a topic's gaps, in order."""
        _, gaps = self.ledger_map(topic)
        return sorted((row["partition"], row["upstream_start"], row["upstream_end"], row["kind"]) for row in gaps)

    def open_transactions(self) -> list[tuple[str, int]]:
        """Returns the partitions of the flow on the target in which a transaction is open."""
        asked = {
            TopicPartition(topic, partition): OffsetSpec.latest()
            for topic, metadata in self.target_admin.list_topics(timeout=10).topics.items()
            if self.alias in topic
            for partition in metadata.partitions
        }
        ends, stable_ends = (
            {
                (at.topic, at.partition): future.result().offset
                for at, future in self.target_admin.list_offsets(asked, isolation_level=level).items()
            }
            if asked
            else {}
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
        return [key for key, end in ends.items() if stable_ends[key] != end]

    def assert_nothing_open(self) -> None:
        """Asserts that no transaction of the flow is open on the target, so that nothing holds back readers."""
        eventually(lambda: not self.open_transactions())

    # -- groups -------------------------------------------------------------------------------------

    def commit(
        self, group: str, offsets: dict[tuple[str, int], int], *, metadata: str = "", target: bool = False
    ) -> str:
        """Commits offsets for a group without members; returns its full name."""
        full = group if group.startswith(self.alias) else f"{self.alias}-{group}"
        admin = self.target_admin if target else self.source_admin
        positions = [
            TopicPartition(topic, partition, offset, metadata) for (topic, partition), offset in offsets.items()
        ]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(full, positions)])[full].result()
        return full

    def committed(self, group: str, *, target: bool = True) -> dict[tuple[str, int], tuple[int, str]]:
        """Returns offset and metadata of a group, by topic and partition."""
        servers = self.target_servers if target else self.source_servers
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
        try:
            topics = {
                name: topic
                for name, topic in consumer.list_topics(timeout=10).topics.items()
                if self.alias in name and not name.startswith("mirrorlake.")
            }
            asked = [
                TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions
            ]
            found = consumer.committed(asked, timeout=30)
        finally:
            consumer.close()
        return {
            (position.topic, position.partition): (position.offset, position.metadata or "")
            for position in found
            if position.offset >= 0
        }


def _assert_accounted(runs: list[Any], gaps: list[Any]) -> None:
    """Does the same as `World.assert_accounted`; runs and gaps that a reset has voided don't count."""
    resets = [row for row in gaps if row["kind"] in RESETS]
    pieces = []
    for row in [*runs, *(row for row in gaps if row["kind"] not in RESETS)]:
        key = row["topic"], row["partition"]
        void_from = min(
            (
                reset["upstream_start"]
                for reset in resets
                if (reset["topic"], reset["partition"]) == key and reset["incarnation"] >= row["incarnation"]
            ),
            default=row["upstream_end"],
        )
        if row["upstream_start"] < void_from:
            pieces.append((key, row["upstream_start"], min(row["upstream_end"], void_from)))
    assert pieces, "nothing is accounted for"
    for (key, _, end), (following, start, _) in pairwise(sorted(pieces)):
        assert key != following or start == end, f"{key}: offsets {end} to {start} are in no run and no gap, or in two"


def unfolded_run(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the runs of a row of offset_syncs, as docs/sql.md says what it holds."""
    if row["runs"] is None:
        yield row
        return
    for run in row["runs"]:
        upstream, downstream = row["upstream_start"] + run["upstream"], row["downstream_start"] + run["downstream"]
        ends = {"upstream_end": upstream + run["records"], "downstream_end": downstream + run["records"]}
        yield {**row, **run, **ends, "upstream_start": upstream, "downstream_start": downstream}


def unfolded_gap(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the gaps of a row of gaps."""
    if row["parts"] is None:
        yield row
        return
    for part in row["parts"]:
        start, downstream = row["from_offset"] + part["upstream"], row["downstream_offset"] + part["downstream"]
        ends = {"to_offset": start + part["offsets"], "downstream_offset": downstream, "kind": part["kind"]}
        yield {**row, **ends, "from_offset": start}


def map_on_target(servers: str, flow: Flow, topics: set[str], *, audits: bool = True) -> tuple[list[Any], list[Any]]:
    """Returns runs and gaps from the flow's offset-syncs topic, with the columns of `World.ledger_map`.

    The trace of every flow that is compared keeps the invariants of the protocol (`audits`).
    """
    runs, gaps = [], []
    trace = read_committed(servers, flow.offset_syncs_topic)
    if audits:
        assert_trace(trace)
    for found in trace.values():
        for _, (_, value, _, _) in found:
            state = SlotState.from_json(value)
            runs += [{**asdict(run), "kind": None} for run in state.runs if run.topic in topics]
            for gap in map(asdict, state.gaps):
                if gap["topic"] in topics:
                    gaps.append({**gap, "upstream_start": gap["from_offset"], "upstream_end": gap["to_offset"]})
    return runs, gaps


def assert_trace(trace: dict[int, list[tuple[int, Record]]]) -> TraceAudit:
    """Asserts that the records of an offset-syncs topic keep the invariants of the protocol; returns the audit."""
    records = {slot: [(offset, record[1]) for offset, record in found] for slot, found in trace.items()}
    audit = TraceAudit({slot: whole_states("offset-syncs", found) for slot, found in records.items()}).run()
    assert not audit.violations, "\n".join(map(str, audit.violations))
    return audit


def transactional_producer(servers: str, transactional_id: str, **settings: Any) -> Producer:
    """Returns a producer of another program. A transaction that it leaves open stays open for ten minutes, not for the
    one that is the default: a slow machine needs longer than that to plan a failover."""
    given = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **given, **settings})
    producer.init_transactions(DEADLINE_S)
    return producer


def write_in_transaction(producer: Producer, *topics: str, records: int = 1) -> None:
    """Begins a transaction with so many records in partition 0 of each topic, and leaves it open."""
    producer.begin_transaction()
    for topic in topics:
        for _ in range(records):
            producer.produce(topic, b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_committed(servers: str, topic: str) -> dict[int, list[tuple[int, Record]]]:
    """Returns (offset, record) of every partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: dict[int, list[tuple[int, Record]]] = {partition: [] for partition in partitions}
        for message in _to_the_end(consumer, len(partitions)):
            found[message.partition()].append(
                (message.offset(), (message.key(), message.value(), message.headers(), message.timestamp()))
            )
        return found
    finally:
        consumer.close()


def consume_as(servers: str, group: str, topics: Iterable[str]) -> dict[tuple[str, int], list[Any]]:
    """Returns the values that a group reads from its committed offsets, up to the end of every such partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        asked = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        positions = [position for position in consumer.committed(asked, timeout=10) if position.offset >= 0]
        consumer.assign(positions)
        found: dict[tuple[str, int], list[Any]] = {(position.topic, position.partition): [] for position in positions}
        for message in _to_the_end(consumer, len(positions)):
            found[message.topic(), message.partition()].append(message.value())
        return found
    finally:
        consumer.close()


def _to_the_end(consumer: Consumer, partitions: int) -> Iterator[Any]:
    """Yields the messages of an assigned consumer until each of its partitions has ended."""
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, (
            f"only {sorted(ended)} of {partitions} partitions could be read to their end"
        )
        for message in consumer.consume(10_000, 0.05):
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
            else:
                raise KafkaException(message.error())


def eventually(condition: Callable[[], Any], deadline_s: float = DEADLINE_S, what: str = "the condition") -> Any:
    """Waits for a condition; an error of the condition counts as false."""
    deadline = time.monotonic() + deadline_s
    problem: object = "it is false"
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
        except (KafkaException, AssertionError, KeyError) as error:
            problem = error
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come true within {deadline_s} s: {problem}")


def configure(world: World, topic: str, values: dict[str, str], *, target: bool = False) -> None:
    """Sets properties of a topic on the source, or on the target, at once: some depend on each other."""
    admin = world.target_admin if target else world.source_admin
    _alter(admin, topic, [_entry(name, value) for name, value in values.items()])


def set_config(admin: AdminClient, topic: str, name: str, value: str | None) -> None:
    """Sets a property of a topic, or resets it."""
    _alter(admin, topic, [_entry(name, value)])


def _entry(name: str, value: str | None) -> ConfigEntry:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    return ConfigEntry(name, value or "", incremental_operation=operation)


def _alter(admin: AdminClient, topic: str, entries: list[ConfigEntry]) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result()


def config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result().items()}


def _offset(servers: str, topic: str, partition: int, isolation: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "x",
            "isolation.level": "read_committed" if isolation else "read_uncommitted",
        }
    )
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
    finally:
        consumer.close()


def _records(count: int, size: int, seed: int) -> Iterable[dict[str, Any]]:
    dice = random.Random(seed)
    now = now_ms()
    for number in range(count):
        headers = [("trace", dice.randbytes(8)), ("n", str(number).encode()), ("n", None)][: dice.randint(0, 3)]
        yield {
            "key": dice.choice([None, b"", f"key-{dice.randint(0, 50)}".encode()]),
            "value": dice.choice([None, b""])
            if dice.random() < 0.03
            else f"{seed}/{number}/".encode() + os.urandom(dice.randint(0, size)).hex().encode(),
            "headers": headers,
            "timestamp": now - dice.randint(0, 60_000),
        }


def _send(
    producer: Producer,
    topic: str,
    record: dict[str, Any],
    partitions: int,
    on_delivery: Callable[[Any, Any], None] = lambda error, message: None,
) -> None:
    while True:
        try:
            producer.produce(topic, partition=random.randrange(partitions), on_delivery=on_delivery, **record)
            return
        except BufferError:
            producer.poll(0.1)
