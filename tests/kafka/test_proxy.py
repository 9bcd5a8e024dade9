"""The proxy that other tests rely on: what it does to a line is what a client of a real broker meets."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.proxy.control import NetworkLine, Proxy, proxied

from tests.world import eventually, read_committed

MIB = 1 << 20
RECORD_BYTES = MIB // 2
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # size, key, version, correlation id, no client id


@pytest.fixture(scope="module")
def cluster(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster("proxied", tmp_path_factory.mktemp("proxied"), root / ".local/jars/kafka", proxied=True)
    with running(made):
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result()
        yield made


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    with proxied(cluster) as made:
        yield made


def metadata_s(cluster: LocalCluster) -> float:
    """Returns the time from connecting to the topics' metadata."""
    admin = AdminClient({"bootstrap.servers": cluster.proxied_servers, "log_level": 0})
    began = time.monotonic()
    found = admin.list_topics(timeout=30)
    assert {broker.port for broker in found.brokers.values()} == {broker.proxy_port for broker in cluster.brokers}
    return time.monotonic() - began


def produce_s(cluster: LocalCluster, mebibytes: int) -> float:
    """Returns the time in which records arrive that can't be compressed."""
    producer = Producer({"bootstrap.servers": cluster.proxied_servers, "linger.ms": 5, "log_level": 0})
    producer.list_topics("t", timeout=30)
    refused: list[object] = []
    began = time.monotonic()
    for _ in range(2 * mebibytes):
        producer.produce("t", os.urandom(RECORD_BYTES), on_delivery=lambda error, _: error and refused.append(error))
    assert producer.flush(60) == 0
    assert not refused, refused[0]
    return time.monotonic() - began


def test_bytes_pass_unchanged(cluster: LocalCluster, proxy: Proxy) -> None:
    before = len(read_committed(cluster.bootstrap_servers, "t")[0])
    produce_s(cluster, 20)
    direct, through = (
        read_committed(servers, "t")[0] for servers in (cluster.bootstrap_servers, cluster.proxied_servers)
    )
    assert len(direct) == before + 40
    assert through == direct
    traffic = proxy.traffic()
    assert min(traffic.sent_bytes, traffic.received_bytes) > 20 * MIB


def test_a_delay_is_added_to_each_round_trip(cluster: LocalCluster, proxy: Proxy) -> None:
    proxy.line(NetworkLine(delay_ms=50))
    assert metadata_s(cluster) > 3 * 0.1, "the handshake, ApiVersions, Metadata"


def test_a_rate_and_a_window_bound_what_passes_in_a_second(cluster: LocalCluster, proxy: Proxy) -> None:
    proxy.line(NetworkLine(bytes_per_s=4 * MIB))
    assert produce_s(cluster, 8) > 1.8
    proxy.line(NetworkLine(delay_ms=50, window_bytes=MIB // 2))
    assert produce_s(cluster, 8) > 1.4, "half a mebibyte each 0.1 s"


def test_connections_are_cut_or_refused_and_made_again(cluster: LocalCluster, proxy: Proxy) -> None:
    metadata_s(cluster)
    with socket.create_connection(("127.0.0.1", cluster.brokers[0].proxy_port)) as client:
        eventually(lambda: proxy.traffic().connections > 0)
        proxy.cut()
        client.settimeout(10)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    eventually(lambda: proxy.traffic().connections == 0)
    proxy.line(NetworkLine(is_open=False))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", cluster.brokers[0].proxy_port))
    proxy.line(NetworkLine())
    metadata_s(cluster)


def answer(client: socket.socket) -> bytes:
    """Receives one whole response."""
    (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
    return client.recv(size, socket.MSG_WAITALL)


@pytest.mark.parametrize("fault", ["silent", "half_open"])
def test_a_silent_or_half_open_connection_stays_open_without_an_answer(
    cluster: LocalCluster, proxy: Proxy, fault: str
) -> None:
    with socket.create_connection(("127.0.0.1", cluster.brokers[0].proxy_port)) as client:
        client.settimeout(10)
        client.sendall(API_VERSIONS)
        answer(client)
        proxy.half_open() if fault == "half_open" else proxy.line(NetworkLine(is_silent=True))
        client.sendall(API_VERSIONS)
        client.settimeout(1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert proxy.traffic().connections >= 1
        if fault == "silent":
            proxy.line(NetworkLine())
            client.settimeout(10)
            answer(client)
