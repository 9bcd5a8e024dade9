"""The clusters of a run, each behind a proxy that knows Kafka's requests. They serve all seeds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from mirrorlake.local.cluster import Broker, LocalCluster, running
from mirrorlake.local.proxy.control import Proxy, proxied

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / ".local/jars/kafka"
PASSWORD = "chaos-password"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
QUICK = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
TWO_REPLICAS = {
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
}


class LoginCluster(LocalCluster):
    """A cluster whose clients log in behind the proxy; the test itself uses the plain listener."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        protocols = "listener.security.protocol.map"
        properties[protocols] = properties[protocols].replace("PROXIED:PLAINTEXT", "PROXIED:SASL_PLAINTEXT")
        properties["listener.name.proxied.sasl.enabled.mechanisms"] = "PLAIN"
        properties["listener.name.proxied.plain.sasl.jaas.config"] = f'{PLAIN} user_mirror="{PASSWORD}";'
        return properties


@dataclass(frozen=True)
class Side:
    """A cluster with its proxy."""

    cluster: LocalCluster
    proxy: Proxy

    @property
    def servers(self) -> str:
        """The addresses without the proxy."""
        return self.cluster.bootstrap_servers

    def client_properties(self, alias: str) -> dict[str, str]:
        """Returns the properties of a flow's connection, through the proxy."""
        found = {f"{alias}.bootstrap.servers": self.cluster.proxied_servers}
        if isinstance(self.cluster, LoginCluster):
            found |= {
                f"{alias}.security.protocol": "SASL_PLAINTEXT",
                f"{alias}.sasl.mechanism": "PLAIN",
                f"{alias}.sasl.jaas.config": f'{PLAIN} username="mirror" password="{PASSWORD}";',
            }
        return found

    def delete_topics(self, of: str) -> None:
        """Deletes the topics with `of` in their names; a run leaves nothing behind for the next."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        topics = [topic for topic in admin.list_topics(timeout=30).topics if of in topic]
        for future in (admin.delete_topics(topics) if topics else {}).values():
            future.exception()


@dataclass(frozen=True)
class Clusters:
    """A source, a target, and a target with the transaction protocol of Kafka 3, which has requests of its own.

    There may be no older target; the target then has one broker.
    """

    source: Side
    target: Side
    older_target: Side | None


@contextmanager
def clusters(directory: Path, *, small: bool = False) -> Iterator[Clusters]:
    """Starts all clusters and their proxies for the length of a block.

    Args:
        directory: for the brokers; emptied.
        small: True for a source and a target of one broker each.
    """
    shutil.rmtree(directory, ignore_errors=True)
    size, replicas = (1, {}) if small else (2, TWO_REPLICAS)
    made = [
        LocalCluster("source", directory / "source", JARS, properties=QUICK, proxied=True),
        LoginCluster("target", directory / "target", JARS, size, properties={**QUICK, **replicas}, proxied=True),
    ]
    if not small:
        older = {"transaction.version": 0}
        made.append(LoginCluster("older", directory / "older", JARS, properties=QUICK, proxied=True, features=older))
    with ExitStack() as places:
        for cluster in made:
            places.enter_context(running(cluster))
        sides = [Side(cluster, places.enter_context(proxied(cluster, knows_requests=True))) for cluster in made]
        yield Clusters(sides[0], sides[1], sides[2] if len(sides) > 2 else None)
