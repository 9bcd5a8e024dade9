"""Connects to clusters, to see which answer: each once, side by side, within a deadline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic

from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.jobs.inspection.bounded import bounded
from mirrorlake.protocol.cluster import Cluster

CLIENT = "inspection"
LONGEST_CONNECT_MS = 8_000


@dataclass(frozen=True)
class ClusterFacts:
    """What a cluster has said at first contact.

    Attributes:
        alias: its alias in the property file.
        servers: its bootstrap servers.
        cluster_id: its id; empty if it did not answer.
        version: the release of its brokers.
        brokers: the number of its brokers.
        connect_ms: the time until it had answered.
        error: why it can't be used; None if it can.
    """

    alias: str
    servers: str
    cluster_id: str = ""
    version: str = ""
    brokers: int = 0
    connect_ms: float = 0.0
    error: MirrorlakeError | None = None


def timeout_ms(deadline_s: float) -> int:
    """Returns the deadline of one request, so that several fit within the deadline of a look."""
    return int(min(LONGEST_CONNECT_MS, max(500, deadline_s * 1_000 / 3)))


def contact(connections: Mapping[str, Connection], deadline_s: float) -> dict[str, ClusterFacts]:
    """Connects to each cluster; returns what it has said, or why it can't be used, by alias."""
    answers = bounded(
        {alias: partial(_first_contact, one, timeout_ms(deadline_s)) for alias, one in connections.items()}, deadline_s
    )
    found = {}
    for alias, answer in answers.items():
        servers = ", ".join(connections[alias].bootstrap_servers)
        late = ConfigurationError(f"cluster {alias} ({servers}) has not answered within {deadline_s:g} s")
        found[alias] = answer.value or ClusterFacts(alias, servers, error=answer.error or late)
    return found


def _first_contact(connection: Connection, limit_ms: int) -> ClusterFacts:
    began = monotonic()
    with connected(connection, "source", limit_ms) as cluster:
        brokers = cluster.net.run(cluster.brokers)
        return ClusterFacts(
            connection.alias,
            ", ".join(connection.bootstrap_servers),
            cluster.cluster_id,
            cluster.version,
            len(brokers),
            1_000 * (monotonic() - began),
        )


@contextmanager
def connected(connection: Connection, side: str, limit_ms: int) -> Iterator[Cluster]:
    """Connects to a cluster for the length of a block.

    Raises:
        SourceError, TargetError: see `Cluster.connect`.
    """
    cluster = Cluster(connection, side, CLIENT, limit_ms).connect()
    try:
        yield cluster
    finally:
        cluster.close()


def connections_of(flows: Iterable[Flow]) -> dict[str, Connection]:
    """Returns the connections of all clusters of some flows, by alias."""
    found: dict[str, Connection] = {}
    for flow in flows:
        found[flow.source], found[flow.target] = flow.source_connection, flow.target_connection
    return found
