"""A TCP proxy in front of a local cluster: a line with delay, window and rate, which can fail in the ways lines fail.

Brokers of a cluster with `proxied=True` have a second listener, whose advertised addresses are the proxy's. A client
that bootstraps from `LocalCluster.proxied_servers` reaches all brokers through the proxy. The proxy is a process of its
own (`process.py`), so that it does not share a core's interpreter with what is measured or tested.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.local.cluster import LocalCluster
from mirrorlake.local.proxy.faults import Fault, Rule
from mirrorlake.local.session import worker_environment


@dataclass(frozen=True)
class NetworkLine:
    """The properties of a line, the same in both directions.

    Attributes:
        delay_ms: the time that a byte takes from one end to the other: half of a round trip.
        window_bytes: the most bytes of a connection that are under way, as TCP's window limits them; 0 for no limit.
        bytes_per_s: the rate, which all connections share; 0 for no limit.
        is_open: False to refuse new connections, as a closed port does.
        is_silent: True to pass nothing on. Connections are accepted and stay open.
        most_connections: the connections that may be open at once, as `max.connections.per.ip` limits them; further
            ones are closed as soon as they are accepted; 0 for no limit.
    """

    delay_ms: float = 0
    window_bytes: int = 0
    bytes_per_s: int = 0
    is_open: bool = True
    is_silent: bool = False
    most_connections: int = 0


@dataclass(frozen=True)
class Traffic:
    """Counters of a proxy, summed over its brokers.

    Attributes:
        connections: the connections that are open.
        accepted: the connections that were accepted since the start.
        sent_bytes: the bytes that were delivered to brokers.
        received_bytes: the bytes that were delivered to clients.
        late_requests: the requests that are to arrive over connections of their own.
    """

    connections: int
    accepted: int
    sent_bytes: int
    received_bytes: int
    late_requests: int = 0


class Proxy:
    """The proxy of a cluster, as the process that controls it sees it.

    Without `node_id`, each method concerns all brokers.
    """

    def __init__(self, process: subprocess.Popen[str], ports: Mapping[int, int]) -> None:
        self._process, self._ports = process, ports

    def line(self, line: NetworkLine, node_id: int | None = None) -> None:
        """Changes the line to a broker, also for open connections."""
        self._tell("line", node_id, line=asdict(line))

    def cut(self, node_id: int | None = None) -> None:
        """Closes the open connections to a broker; both ends notice it."""
        self._tell("cut", node_id)

    def half_open(self, node_id: int | None = None) -> None:
        """Closes the broker's ends of the open connections; the clients don't notice it, and get no more answers."""
        self._tell("half_open", node_id)

    def traffic(self, node_id: int | None = None) -> Traffic:
        """Returns the counters of the connections to a broker."""
        return Traffic(**self._tell("traffic", node_id))

    def arm(self, rules: Iterable[Rule]) -> None:
        """Replaces the rules by which single requests have faults; counting for `Rule.skip` begins anew."""
        self._tell("arm", None, rules=[rule.to_json() for rule in rules])

    def faults(self) -> tuple[Counter[str], Counter[tuple[str, Fault]]]:
        """Returns the requests seen and the faults made since the last call, by kind."""
        found = self._tell("faults", None)
        return Counter(found["seen"]), Counter({(api, Fault(fault)): count for api, fault, count in found["made"]})

    def _tell(self, command: str, node_id: int | None, **given: Any) -> dict[str, Any]:
        ports = list(self._ports.values()) if node_id is None else [self._ports[node_id]]
        return tell(self._process, {"command": command, "ports": ports, **given})


@contextmanager
def proxied(cluster: LocalCluster, line: NetworkLine | None = None, *, knows_requests: bool = False) -> Iterator[Proxy]:
    """Runs the proxy of a cluster that was made with `proxied=True`, for the length of a block.

    Args:
        cluster: the cluster.
        line: the line at the beginning.
        knows_requests: True to read Kafka's frames, for `Proxy.arm`.
    """
    routes = {
        broker.proxy_port: {"broker_port": broker.proxied_port, "side_port": broker.port} for broker in cluster.brokers
    }
    if not all(routes):
        raise ConfigurationError(f"cluster {cluster.name} has no listener for a proxy; make it with proxied=True")
    process = subprocess.Popen(
        [sys.executable, "-m", "mirrorlake.local.proxy.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=worker_environment(),
    )
    try:
        tell(process, {"routes": routes, "knows_requests": knows_requests})
        proxy = Proxy(process, {broker.node_id: broker.proxy_port for broker in cluster.brokers})
        if line is not None:
            proxy.line(line)
        yield proxy
    finally:
        process.communicate()  # it ends with its standard input


def tell(process: subprocess.Popen[str], words: dict[str, Any]) -> dict[str, Any]:
    """Sends one command to the proxy's process, and returns its answer.

    Raises:
        ConfigurationError: the process has ended, or can't do it.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(words) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise ConfigurationError(f"the proxy has ended ({process.wait()})")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise ConfigurationError(f"the proxy can't do it: {answer['error']}")
    return answer
