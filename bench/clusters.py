"""The directories of the benchmarks, and their two clusters: brokers on this machine, with fully optimised JVMs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from mirrorlake.config.connection import Connection
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.protocol.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local/bench"
JARS = ROOT / ".local/jars/kafka"

# The next run starts after the topics of the last one are deleted, so the brokers must delete files early.
BROKER = {"log.segment.delete.delay.ms": "500", "log.retention.check.interval.ms": "5000"}


@dataclass(frozen=True)
class Clusters:
    """Both clusters of a benchmark."""

    source: LocalCluster
    target: LocalCluster

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
        with (
            running(LocalCluster("source", directory / "source", JARS, quick_start=False, properties=BROKER)) as source,
            running(LocalCluster("target", directory / "target", JARS, quick_start=False, properties=BROKER)) as target,
        ):
            yield Clusters(source, target)
    finally:
        for side in ("source", "target"):
            for data in (directory / side).glob("broker-*/data"):
                shutil.rmtree(data, ignore_errors=True)


@contextmanager
def connected(servers: str, side: str) -> Iterator[Cluster]:
    """Provides raw requests to a cluster for the length of a block."""
    cluster = Cluster(Connection(side, (("bootstrap.servers", servers),)), side, "bench").connect()
    try:
        yield cluster
    finally:
        cluster.close()
