"""MirrorMaker 2, started from its jars in dedicated mode, and the settings of its measurements."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mirrorlake.local.ports import HOST, free_port

JARS = Path(__file__).resolve().parents[1] / ".local/jars/kafka"
STOP_S = 60
ONE_BROKER = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)

# The options of kafka-run-class.sh, with a heap of 1 GiB and all compilers.
JAVA = (
    "-Xms256m",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
QUICK_JAVA = ("-Xmx512m", "-XX:TieredStopAtLevel=1")


@contextmanager
def mirrormaker(
    directory: Path,
    source: tuple[str, str],
    target: tuple[str, str],
    properties: Mapping[str, str],
    *,
    kill: bool = False,
    java: Sequence[str] = QUICK_JAVA,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs MirrorMaker 2 from source to target for the length of a block.

    Its log is `mm2.log` in the directory.

    Args:
        directory: the working directory.
        source: alias and bootstrap servers of the source.
        target: alias and bootstrap servers of the target.
        properties: further properties.
        kill: True to end it with SIGKILL instead of a clean stop.
        java: the options of the JVM.
    """
    (a, a_servers), (b, b_servers) = source, target
    values = {
        "clusters": f"{a}, {b}",
        f"{a}.bootstrap.servers": a_servers,
        f"{b}.bootstrap.servers": b_servers,
        f"{a}->{b}.enabled": "true",
        "refresh.topics.interval.seconds": "2",
        "scheduled.rebalance.max.delay.ms": "0",
        **dict.fromkeys(ONE_BROKER, "1"),
        **properties,
    }
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "mm2.properties"
    config.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    words = ["java", *java, "-cp", f"{JARS}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(config)]
    with (directory / "mm2.log").open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        try:
            yield process
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(STOP_S)
        finally:
            process.kill()
            process.wait()


def tuned(source: str, target: str, codec: str) -> dict[str, str]:
    """Returns settings for throughput: several tasks, large fetches and polls, large batches, several in flight."""
    return {
        f"{source}->{target}.tasks.max": "4",
        **{
            f"{source}.consumer.{name}": value
            for name, value in {
                "max.poll.records": "20000",
                "fetch.max.bytes": str(64 << 20),
                "max.partition.fetch.bytes": str(8 << 20),
                "receive.buffer.bytes": str(2 << 20),
            }.items()
        },
        **{
            f"{target}.producer.{name}": value
            for name, value in {
                "batch.size": str(1 << 20),
                "linger.ms": "20",
                "compression.type": codec,
                "buffer.memory": str(64 << 20),
                "max.request.size": str(8 << 20),
                "send.buffer.bytes": str(2 << 20),
                "enable.idempotence": "true",
                "max.in.flight.requests.per.connection": "5",
            }.items()
        },
    }


def exactly_once(source: str, target: str) -> dict[str, str]:
    """Returns the settings of exactly-once.

    These are the worker's support for it, requests between its nodes, and a read_committed consumer.
    """
    return {
        f"{target}.exactly.once.source.support": "enabled",
        f"{source}.consumer.isolation.level": "read_committed",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{HOST}:{free_port()}",
    }
