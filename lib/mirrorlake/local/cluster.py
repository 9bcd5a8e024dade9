"""A Kafka cluster on this machine: KRaft brokers started from the jars, one directory and one port each.

Directory of a cluster (all of it may be deleted once the cluster is stopped)::

    <directory>/cluster.json             ports and process ids of the brokers
    <directory>/broker-<id>/server.properties
    <directory>/broker-<id>/data/        the log directory, kept over restarts
    <directory>/broker-<id>/broker.log   the output of the broker

A local cluster is not safe against loss (replication factor 1 by default) and listens on the loopback address only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from javaproperties import join_key_value

from mirrorlake.errors import ConfigurationError
from mirrorlake.local.jars import SETUP
from mirrorlake.local.java import require_java
from mirrorlake.local.ports import HOST, free_port

Setting = str | int | float | bool  # of librdkafka

QUICK_START = ("-XX:TieredStopAtLevel=1",)
QUIET_ARCHIVE = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
READY_DEADLINE_S = 90
STOP_DEADLINE_S = 30

LOG4J = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

# One broker must be enough for every internal topic, and a new cluster must be ready in seconds.
DEFAULTS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "controlled.shutdown.enable": "true",
    # By default, the controller writes a record every 0.5 s, which is almost half of an idle broker's CPU.
    "metadata.max.idle.interval.ms": "10000",
}


@dataclass
class Broker:
    """One broker process; `pid` is 0 while it is stopped.

    With a proxy, clients connect to `proxy_port`, and the proxy connects to `proxied_port`.
    """

    node_id: int
    port: int
    pid: int = 0
    proxied_port: int = 0
    proxy_port: int = 0


@dataclass
class LocalCluster:
    """A cluster of `size` brokers below `directory`. Broker 1 is the controller, too.

    Args:
        name: the name of the cluster in logs and errors.
        directory: the directory of the cluster; created if it is missing.
        jars: the directory of the Kafka jars (`jars.py` fills .local/jars/kafka).
        size: the number of brokers.
        port: the port of broker 1 if it is free. Other brokers get free ports, and so does broker
            1 if its port is taken.
        properties: broker properties that override the defaults of this module (listeners, security, limits).
        features: feature levels for formatting, for example {"transaction.version": 1}.
        quick_start: True to let the JVMs compile less: they are ready in half the time, and slower under load.
        java_options: more options of the brokers' JVMs.
        proxied: True for a second listener, which is reached through a proxy (`proxy/`).
    """

    name: str
    directory: Path
    jars: Path
    size: int = 1
    port: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    quick_start: bool = True
    java_options: tuple[str, ...] = ()
    proxied: bool = False
    brokers: list[Broker] = field(default_factory=list)
    controller_port: int = 0
    cluster_id: str = ""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers)

    @property
    def proxied_servers(self) -> str:
        """Returns the bootstrap servers for clients behind the proxy."""
        return ",".join(f"{HOST}:{broker.proxy_port}" for broker in self.brokers)

    def start(self) -> LocalCluster:
        """Starts the brokers that don't run, and waits until the cluster responds. It is safe to call it twice.

        Raises:
            ConfigurationError: the jars are missing, or a broker did not start; the message has the end of its log.
        """
        if not any(self.jars.glob("kafka_2.13-*.jar")):
            raise ConfigurationError(f"no Kafka jars in {self.jars}; {SETUP}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._load()
        if not self.brokers:
            self._format()
        for broker in self.brokers:
            if not _is_alive(broker.pid):
                self._require_port(broker)
                self._launch(broker)
        self.wait_ready()
        return self

    def _require_port(self, broker: Broker) -> None:
        """Raises ConfigurationError if another program has taken the port of a broker while that was stopped."""
        if free_port(broker.port) != broker.port:
            raise ConfigurationError(
                f"cluster {self.name}: port {broker.port} of its broker {broker.node_id} is in use by another program, "
                f"or by another cluster of mirrorlake. Stop that one, or delete {self.directory} to begin anew"
            )

    def stop(self) -> None:
        """Stops every broker cleanly (SIGKILL after a deadline). Data and logs stay. It is safe to call it twice."""
        self._load()
        for broker in self.brokers:
            if _is_alive(broker.pid):
                os.kill(broker.pid, signal.SIGTERM)
        for broker in reversed(self.brokers):
            _wait_gone(broker.pid)
            broker.pid = 0
        if self.brokers:
            self._save()

    def delete(self) -> None:
        """Stops the cluster and deletes its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.brokers = []

    def stop_broker(self, node_id: int, *, kill: bool = False) -> None:
        """Stops one broker: cleanly, or with SIGKILL as in a crash."""
        broker = self._broker(node_id)
        if _is_alive(broker.pid):  # a process id is given to other programs as soon as it is free
            os.kill(broker.pid, signal.SIGKILL if kill else signal.SIGTERM)
        _wait_gone(broker.pid)
        broker.pid = 0
        self._save()

    def start_broker(self, node_id: int, *, wait: bool = True) -> None:
        """Starts one broker again, with its port and its data."""
        self._launch(self._broker(node_id))
        if wait:
            self.wait_ready()

    def move_broker(self, node_id: int, port: int = 0) -> None:
        """Gives a stopped broker another port, any free one by default."""
        broker = self._broker(node_id)
        broker.port = port or free_port()
        self._configure(broker)
        self._save()

    def is_running(self, node_id: int) -> bool:
        """Returns True if the process of a broker exists."""
        return _is_alive(self._broker(node_id).pid)

    def freeze_broker(self, node_id: int) -> None:
        """Stops the threads of a broker (SIGSTOP): its connections stay open and say nothing."""
        self._signal(node_id, signal.SIGSTOP)

    def thaw_broker(self, node_id: int) -> None:
        """Lets a frozen broker go on."""
        self._signal(node_id, signal.SIGCONT)

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        pid = self._broker(node_id).pid
        if not _is_alive(pid):
            raise ConfigurationError(f"cluster {self.name}: broker {node_id} does not run")
        os.kill(pid, number)

    def wait_ready(self) -> None:
        """Waits until all brokers have joined and both coordinators respond.

        Raises:
            ConfigurationError: the cluster is not ready after READY_DEADLINE_S, or a broker has died.
        """
        deadline = time.monotonic() + READY_DEADLINE_S
        client: dict[str, Setting] = {
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": 0,
            **self.client_properties,
        }
        problem: object = "no answer"
        while time.monotonic() < deadline:
            dead = [broker for broker in self.brokers if not _is_alive(broker.pid)]
            if dead:
                raise ConfigurationError(
                    f"cluster {self.name}: broker {dead[0].node_id} has died:\n{self._log_tail(dead[0])}"
                )
            try:
                admin = AdminClient(client)
                metadata = admin.list_topics(timeout=2)
                if not self.is_own(str(metadata.cluster_id)):
                    raise ConfigurationError(
                        f"cluster {self.name}: another Kafka cluster (id {metadata.cluster_id}) answers at "
                        f"{self.bootstrap_servers}. Stop that one, or delete {self.directory} to begin anew"
                    )
                found = len(metadata.brokers)
                if found < len(self.brokers):
                    problem = f"{found} of {len(self.brokers)} brokers have joined"
                    time.sleep(0.1)
                    continue
                # The first transactional id makes the broker create __transaction_state; later clients don't wait then.
                producer = Producer({**client, "transactional.id": "local-ready-check"})
                producer.init_transactions(max(1.0, deadline - time.monotonic()))
                # The same for __consumer_offsets and the first group.
                consumer = Consumer({**client, "group.id": "local-ready-check"})
                consumer.committed(
                    [TopicPartition("local-ready-check", 0)], timeout=max(1.0, deadline - time.monotonic())
                )
                consumer.close()
                return
            except KafkaException as error:
                problem = error
                time.sleep(0.1)
        raise ConfigurationError(
            f"cluster {self.name} is not ready after {READY_DEADLINE_S} s: {problem}\n{self._log_tail(self.brokers[0])}"
        )

    def is_own(self, cluster_id: str) -> bool:
        """Tells whether an id is that of this cluster."""
        return cluster_id == self.cluster_id

    @property
    def client_properties(self) -> dict[str, str]:
        """Returns the properties of librdkafka clients besides bootstrap servers; secured clusters override it."""
        return {}

    def _format(self) -> None:
        self.cluster_id = f"{uuid.uuid4().hex[:21]}A"  # 16 bytes in Base64, which releases before 3.9 write anew
        for node_id in range(1, self.size + 1):
            broker = Broker(node_id, free_port(self.port if node_id == 1 else 0))
            if self.proxied:
                broker.proxied_port, broker.proxy_port = free_port(), free_port()
            self.brokers.append(broker)
        self.controller_port = free_port()
        for broker in self.brokers:
            home = self._home(broker)
            shutil.rmtree(home, ignore_errors=True)  # what an interrupted start has left
            (home / "data").mkdir(parents=True)
            (home / "log4j2.properties").write_text(LOG4J)
            self._configure(broker)
            self._prepare_storage(home)
        self._save()

    def _configure(self, broker: Broker) -> None:
        properties = self._server_properties(broker)
        (self._home(broker) / "server.properties").write_text(
            "".join(f"{join_key_value(key, value)}\n" for key, value in properties.items())  # Java reads Latin-1
        )

    def _prepare_storage(self, home: Path) -> None:
        """Formats the log directory of a broker."""
        features = [word for name, level in self.features.items() for word in ("--feature", f"{name}={level}")]
        formatting = subprocess.run(
            [
                *self._java(home, heap_mib=256),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                self.cluster_id,
                "-c",
                str(home / "server.properties"),
                *features,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatting.returncode:
            raise ConfigurationError(f"cluster {self.name}: formatting failed:\n{formatting.stdout}{formatting.stderr}")

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        controller = broker.node_id == 1
        listeners = advertised = f"PLAINTEXT://{HOST}:{broker.port}"
        if self.proxied:
            listeners += f",PROXIED://{HOST}:{broker.proxied_port}"
            advertised += f",PROXIED://{HOST}:{broker.proxy_port}"
        return {
            "process.roles": "broker,controller" if controller else "broker",
            "node.id": str(broker.node_id),
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listeners},CONTROLLER://{HOST}:{self.controller_port}" if controller else listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(
                (
                    "PLAINTEXT:PLAINTEXT",
                    "CONTROLLER:PLAINTEXT",
                    "PROXIED:PLAINTEXT",
                    *(f"{name}:{name}" for name in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")),
                )
            ),
            "log.dirs": str(self._home(broker) / "data"),
            **DEFAULTS,
            **self.properties,
        }

    def _launch(self, broker: Broker) -> None:
        home = self._home(broker)
        with (home / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *self._java(home, heap_mib=512, options=self.java_options),
                    "kafka.Kafka",
                    str(home / "server.properties"),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=home,
                start_new_session=True,
            )
        broker.pid = process.pid
        self._save()

    def _java(self, home: Path, heap_mib: int, options: Sequence[str] = ()) -> list[str]:
        return [
            require_java(),
            f"-Xms{heap_mib}m",
            f"-Xmx{heap_mib}m",
            "-Djava.awt.headless=true",
            "-XX:+UseG1GC",
            *(QUICK_START if self.quick_start else ()),
            *with_archive(self.jars.with_suffix(".jsa")),
            *options,
            f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
            "-cp",
            f"{self.jars}/*",
        ]

    def _home(self, broker: Broker) -> Path:
        return self.directory / f"broker-{broker.node_id}"

    def _broker(self, node_id: int) -> Broker:
        return next(broker for broker in self.brokers if broker.node_id == node_id)

    def _log_tail(self, broker: Broker) -> str:
        path = self._home(broker) / "broker.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        said = [line for line in lines if not line.startswith("\t")]  # without the frames of stacks
        return "\n".join([*said[-15:], f"(the whole log: {path})"])

    def _load(self) -> None:
        state = self.directory / "cluster.json"
        if state.exists():
            saved = json.loads(state.read_text())
            self.cluster_id, self.controller_port = saved["cluster_id"], saved["controller_port"]
            self.brokers = [Broker(**broker) for broker in saved["brokers"]]

    def _save(self) -> None:
        saved = {
            "cluster_id": self.cluster_id,
            "controller_port": self.controller_port,
            "brokers": [asdict(broker) for broker in self.brokers],
        }
        written = self.directory / "cluster.json.new"
        written.write_text(json.dumps(saved, indent=1))
        written.replace(self.directory / "cluster.json")


def with_archive(archive: Path) -> list[str]:
    """Returns the JVM options for a class archive (`class_archive.py`) if it exists.

    The JVM ignores an archive that doesn't fit.
    """
    return [f"-XX:SharedArchiveFile={archive}", *QUIET_ARCHIVE] if archive.exists() else []


@contextmanager
def running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Starts the cluster for the length of a block."""
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def _is_alive(pid: int) -> bool:
    """Returns True for a running broker, False for a process id that was reused by another program."""
    if pid <= 0:
        return False
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # an ended child is a zombie until its parent waits for it
    try:
        os.kill(pid, 0)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # no /proc on this system: the signal must suffice
        return not Path("/proc").is_dir()
    except OSError:
        return False
    return not command or b"kafka.Kafka" in command  # empty for a moment while Java replaces itself


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + STOP_DEADLINE_S
    while _is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
