"""Ports that accept connections and say nothing: every step of connecting has a deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from mirrorlake.errors import MirrorlakeError
from mirrorlake.gate import Gate
from mirrorlake.protocol.cluster import Cluster

from tests.world import ROOT, World

CONNECT_TIMEOUT_MS = 2_000
SECOND_OPINION_S = 5  # librdkafka looks for the cause


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Returns a port whose connections are accepted by the operating system and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("side", "protocol"), [("source", "SSL"), ("source", "PLAINTEXT"), ("target", "SASL_SSL")])
def test_a_port_that_says_nothing_ends_the_job_within_the_connect_timeout(
    plain_world: World, silent_port: int, protocol: str, side: str
) -> None:
    alias = plain_world.alias if side == "source" else plain_world.target_alias
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    plain_world.write_config(
        **{
            f"{alias}.bootstrap.servers": f"127.0.0.1:{silent_port}",
            f"{alias}.security.protocol": protocol,
            f"{alias}.sasl.mechanism": "PLAIN",
            f"{alias}.sasl.jaas.config": login,
            "mirrorlake.connect.timeout.ms": str(CONNECT_TIMEOUT_MS),
        }
    )
    Gate(ROOT / "expectations/offset_syncs.json")  # loads what takes seconds
    began = time.monotonic()
    with pytest.raises(MirrorlakeError, match=f"can't be reached within {CONNECT_TIMEOUT_MS} ms"):
        plain_world.mirror()
    assert time.monotonic() - began < CONNECT_TIMEOUT_MS / 1_000 + SECOND_OPINION_S


def test_a_host_that_is_gone_is_noticed_by_keepalives_within_seconds(plain_world: World) -> None:
    """A slow broker's kernel answers them; Linux by itself begins to ask after two hours."""
    with closing(Cluster(plain_world.flow.target_connection, "target", "test").connect()) as target:
        sock = next(conn.transport._sock for conn in target._manager._conns.values() if conn.connected)
        idle, between, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle + between * count <= 15
        assert count >= 3, "a few lost packets are no end"
