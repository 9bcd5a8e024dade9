"""Starts, kills and stops the client processes of a run, each with its own journal.

The consumers are programs of this room (`librdkafka_consumer.py`, `java/JournalConsumer.java`) and Kafka's own:
VerifiableConsumer, VerifiableProducer and TransactionalMessageCopier, from the jars.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mirrorlake.local.cluster import with_archive

from chaos.failover import journal
from chaos.failover.journal import Event, Progress
from chaos.failover.story import ClientKind, CopierDraw

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".local/jars/kafka"
CLASSES = ROOT / ".local/chaos/classes"
PROGRAM = ROOT / "chaos/failover/java/JournalConsumer.java"
STOP_S = 30
SESSION_MS = 6_000
TOOLS = "org.apache.kafka.tools"


@dataclass(frozen=True)
class ConsumerSettings:
    """The settings of one consumer process; `properties` are those of its client library."""

    servers: str
    group: str
    topics: tuple[str, ...]
    journal: str
    batch: int
    every: int
    is_async: bool
    rewinds: float
    pause_ms: int
    seed: int
    properties: dict[str, str] = field(default_factory=dict)


@dataclass
class Client:
    """A running process, and the file that it writes."""

    kind: ClientKind
    file: Path
    process: subprocess.Popen[bytes]
    _events: list[Event] = field(default_factory=list)
    _read_to: int = 0

    def events(self) -> list[Event]:
        """Returns what the journal has by now."""
        lines, self._read_to = journal.lines_from(self.file, self._read_to)
        parse = journal.verifiable_events if self.kind is ClientKind.VERIFIABLE else journal.events
        self._events += parse(lines, self.file.name)
        return self._events

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Lets the process commit and leave its group.

        Raises:
            AssertionError: it has not ended after STOP_S.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.file.name} did not end within {STOP_S} s") from None


def compile_java() -> None:
    """Compiles the Java consumer, unless that was done since its last change."""
    done = CLASSES / "JournalConsumer.class"
    if not done.exists() or done.stat().st_mtime < PROGRAM.stat().st_mtime:
        CLASSES.mkdir(parents=True, exist_ok=True)
        subprocess.run(["javac", "-proc:none", "-cp", f"{JARS}/*", "-d", str(CLASSES), str(PROGRAM)], check=True)


def java(*words: str) -> list[str]:
    """Returns the command of a small JVM with Kafka's jars and the classes of this room."""
    options = ("-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *with_archive(JARS.with_suffix(".jsa")))
    return ["java", *options, "-cp", f"{JARS}/*:{CLASSES}", *words]


def start_consumer(kind: ClientKind, settings: ConsumerSettings, protocol: str) -> Client:
    """Starts one member of a group."""
    file = Path(settings.journal)
    session = {} if protocol == "consumer" else {"session.timeout.ms": str(SESSION_MS)}
    given = {**asdict(settings), "properties": {"group.protocol": protocol, **session}}
    if kind is ClientKind.LIBRDKAFKA:
        command, output = (
            [sys.executable, "-m", "chaos.failover.librdkafka_consumer", json.dumps(given)],
            subprocess.DEVNULL,
        )
        return Client(kind, file, _start(command, output, file))
    if kind is ClientKind.JAVA:
        return Client(kind, file, _start(java("JournalConsumer", json.dumps(given)), subprocess.DEVNULL, file))
    config = file.with_suffix(".properties")
    config.write_text(
        f"isolation.level = read_committed\nfetch.max.wait.ms = 50\nmax.poll.records = {settings.batch}\n"
    )
    words = [
        *("--topic", settings.topics[0], "--group-id", settings.group, "--bootstrap-server", settings.servers),
        *("--verbose", "--command-config", str(config), "--group-protocol", protocol),
        *(() if protocol == "consumer" else ("--session-timeout", str(SESSION_MS))),
    ]
    with file.open("ab") as output:
        return Client(kind, file, _start(java(f"{TOOLS}.VerifiableConsumer", *words), output, file))


def start_verifiable_producer(servers: str, topic: str, prefix: int, per_second: int, file: Path) -> Client:
    """Starts Kafka's VerifiableProducer; its values are `prefix.number`."""
    words = ("--topic", topic, "--bootstrap-server", servers, "--throughput", str(per_second))
    with file.open("ab") as output:
        command = java(f"{TOOLS}.VerifiableProducer", *words, "--value-prefix", str(prefix))
        return Client(ClientKind.VERIFIABLE, file, _start(command, output, file))


class Copier:
    """A TransactionalMessageCopier, which ends at the end of its input, and is started again until it is stopped.

    It takes each offset for a record. Behind markers of transactions it does not see the end of its input, and goes on.

    Args:
        draw: how it works.
        servers: bootstrap servers of its cluster.
        names: its group, transactional id, input topic and output topic.
        directory: takes the output of each of its processes.
    """

    def __init__(self, draw: CopierDraw, servers: str, names: tuple[str, str, str, str], directory: Path) -> None:
        group, transactional_id, inputs, outputs = names
        self._command = java(
            f"{TOOLS}.TransactionalMessageCopier",
            *("--input-topic", inputs, "--input-partition", "0", "--output-topic", outputs),
            *("--broker-list", servers, "--consumer-group", group, "--transactional-id", transactional_id),
            *("--transaction-size", str(draw.transaction_size), "--transaction-timeout", "10000"),
            *(("--group-mode", "--use-group-metadata") if draw.joins_group else ()),
            *(("--enable-random-aborts",) if draw.has_aborts else ()),
        )
        self._directory = directory
        self._files: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Copier:
        """Starts the first process."""
        self._begin()
        self._thread.start()
        return self

    def stop(self, *, kill: bool) -> None:
        """Ends it: as a crash would, or by SIGTERM, which aborts the transaction under way."""
        self._stopped.set()
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self._thread.join()

    def runs(self) -> list[list[Progress]]:
        """Returns the lines of each of its processes."""
        return [journal.progress(journal.lines_from(file)[0]) for file in self._files]

    def _run(self) -> None:
        while True:
            assert self._process is not None
            self._process.wait()
            if self._stopped.wait(0.2):
                return
            self._begin()
            if self._stopped.is_set():  # stopped in between
                self._process.kill()

    def _begin(self) -> None:
        file = self._directory / f"copier-{len(self._files)}.out"
        with file.open("ab") as output:
            self._process = _start(self._command, output, file)
        self._files.append(file)


def _start(command: Sequence[str], output: Any, file: Path) -> subprocess.Popen[bytes]:
    with file.with_suffix(".err").open("ab") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'lib'}"},
            start_new_session=True,
        )
