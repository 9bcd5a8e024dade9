"""The directories of the benchmarks, and their two clusters: brokers on this machine, with fully optimised JVMs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient
from mirrorlake.config.connection import Connection
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.proxy.control import NetworkLine, proxied
from mirrorlake.protocol.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local/bench"
JARS = ROOT / ".local/jars/kafka"

# The next run starts after the topics of the last one are deleted, so the brokers must delete files early.
BROKER = {"log.segment.delete.delay.ms": "500", "log.retention.check.interval.ms": "5000"}


@dataclass(frozen=True)
class Clusters:
    """Both clusters of a benchmark; `far` is the side that contestants reach over a long line, if there is one."""

    source: LocalCluster
    target: LocalCluster
    far: str = ""

    def servers(self, side: str) -> str:
        """Returns the bootstrap servers for contestants. The instruments are near both clusters."""
        cluster = self.source if side == "source" else self.target
        return cluster.proxied_servers if side == self.far else cluster.bootstrap_servers

    @contextmanager
    def with_line(self, side: str, line: NetworkLine) -> Iterator[Clusters]:
        """Puts one side at the end of a line for the length of a block."""
        with proxied(self.source if side == "source" else self.target, line):
            yield replace(self, far=side)

    def clean(self, *, keep: str = "") -> None:
        """Deletes every topic but `keep` and the brokers' internal ones, on both sides."""
        for cluster in (self.source, self.target):
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            topics = [
                topic for topic in admin.list_topics(timeout=30).topics if topic != keep and not topic.startswith("__")
            ]
            for future in (admin.delete_topics(topics) if topics else {}).values():
                future.result()


@contextmanager
def two_clusters(directory: Path) -> Iterator[Clusters]:
    """Starts both clusters for the length of a block.

    It empties their directory before and after, because backlogs are large.
    """
    shutil.rmtree(directory, ignore_errors=True)
    try:
        with running(_cluster("source", directory)) as source, running(_cluster("target", directory)) as target:
            yield Clusters(source, target)
    finally:
        for side in ("source", "target"):
            for data in (directory / side).glob("broker-*/data"):
                shutil.rmtree(data, ignore_errors=True)


def _cluster(name: str, directory: Path) -> LocalCluster:
    return LocalCluster(name, directory / name, JARS, quick_start=False, properties=BROKER, proxied=True)


@contextmanager
def connected(servers: str, side: str) -> Iterator[Cluster]:
    """Provides raw requests to a cluster for the length of a block."""
    cluster = Cluster(Connection(side, (("bootstrap.servers", servers),)), side, "bench").connect()
    try:
        yield cluster
    finally:
        cluster.close()
