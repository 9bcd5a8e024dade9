"""Clusters of older Kafka releases; before 3.3 they keep their metadata in ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from mirrorlake.local.cluster import QUICK_START, Broker, LocalCluster
from mirrorlake.local.ports import HOST, free_port

ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
FIRST_WITH_KRAFT = (3, 3)
ZOOKEEPER = """\
dataDir={directory}
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
maxClientCnxns=0
"""


class ZooKeeperCluster(LocalCluster):
    """A cluster of a release before 3.3."""

    _zookeeper: subprocess.Popen[bytes] | None = None
    _zookeeper_port = 0

    def start(self) -> LocalCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._zookeeper_port = free_port()
        config = self.directory / "zookeeper.properties"
        config.write_text(
            ZOOKEEPER.format(directory=self.directory / "zookeeper", port=self._zookeeper_port, host=HOST)
        )
        with (self.directory / "zookeeper.log").open("ab") as log:
            self._zookeeper = subprocess.Popen(
                ["java", "-Xmx256m", *QUICK_START, "-cp", f"{self.jars}/*", ZOOKEEPER_MAIN, str(config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return super().start()

    def stop(self) -> None:
        super().stop()
        if self._zookeeper is not None:
            self._zookeeper.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._zookeeper.wait(20)
            self._zookeeper.kill()

    def _prepare_storage(self, home: Path) -> None:
        """Needs no formatting."""

    def is_own(self, cluster_id: str) -> bool:
        """ZooKeeper gives the id."""
        return True

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        kraft = ("process.roles", "node.id", "controller.quorum.voters", "controller.listener.names")
        properties = {name: value for name, value in super()._server_properties(broker).items() if name not in kraft}
        return {
            **properties,
            "broker.id": str(broker.node_id),
            "zookeeper.connect": f"{HOST}:{self._zookeeper_port}",
            "zookeeper.connection.timeout.ms": "60000",
            "listeners": properties["advertised.listeners"],
        }


def older_cluster(version: str, name: str, directory: Path, root: Path, **given: object) -> LocalCluster:
    """Returns a cluster of a release, from the jars that `make test` has fetched."""
    jars = root / f".local/jars/kafka-{version}"
    major, minor, *_ = (int(part) for part in version.split("."))
    kind = LocalCluster if (major, minor) >= FIRST_WITH_KRAFT else ZooKeeperCluster
    return kind(name, directory, jars, **given)  # type: ignore[arg-type]
