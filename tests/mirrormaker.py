"""A real MirrorMaker 2, started from its jars in dedicated mode."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.world import ROOT

JARS = ROOT / ".local/jars/kafka"
ONE_BROKER = (
    "replication.factor", "checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor", "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor", "status.storage.replication.factor", "config.storage.replication.factor",
)  # fmt: skip


@contextmanager
def mirrormaker(directory: Path, source: tuple[str, str], target: tuple[str, str], properties: Mapping[str, str], *, kill: bool = False) -> Iterator[None]:
    """Runs MirrorMaker 2 from source to target (alias, bootstrap servers) for the length of a block; ends it cleanly, or with SIGKILL."""
    (a, a_servers), (b, b_servers) = source, target
    values = {
        "clusters": f"{a}, {b}", f"{a}.bootstrap.servers": a_servers, f"{b}.bootstrap.servers": b_servers, f"{a}->{b}.enabled": "true",
        "refresh.topics.interval.seconds": "2", "scheduled.rebalance.max.delay.ms": "0", **dict.fromkeys(ONE_BROKER, "1"), **properties,
    }  # fmt: skip
    directory.mkdir(exist_ok=True)
    config = directory / "mm2.properties"
    config.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    words = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(config)]
    with (directory / "mm2.log").open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        try:
            yield
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
            process.wait()
