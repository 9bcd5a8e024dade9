"""Both clusters are reached over TLS with client certificates, by raw requests, librdkafka and Spark's Kafka source."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from mirrorlake.errors import SourceError
from mirrorlake.local.cluster import Broker, LocalCluster, free_port, running

from tests.world import World


class TlsCluster(LocalCluster):
    """A local cluster with a further listener that requires client certificates; the test itself uses the plain one."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        self.tls_port = free_port(0, {each.port for each in self.brokers} | {self.controller_port})
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",SSL://localhost:{self.tls_port}"
        return properties


class Certificates:
    """A certificate authority, and PEM stores of the certificates that it has signed."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._authority = directory, trustme.CA()
        self.trusted = directory / "trusted.pem"
        self._authority.cert_pem.write_to_path(self.trusted)

    def store(self, name: str, *identities: str) -> Path:
        """Stores a key with its certificate in a form that Java and OpenSSL both read (PKCS #8)."""
        issued = self._authority.issue_cert(*identities)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        path = self._directory / f"{name}.pem"
        path.write_bytes(key + b"".join(certificate.bytes() for certificate in issued.cert_chain_pems))
        return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def clusters(
    root: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TlsCluster, TlsCluster]]:
    base = tmp_path_factory.mktemp("tls")
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("broker", "localhost")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.trusted),
        "ssl.client.auth": "required",
    }
    source, target = (
        TlsCluster(side, base / side, root / ".local/jars/kafka", properties=properties)
        for side in ("source", "target")
    )
    with running(source), running(target):
        yield source, target


@pytest.fixture
def world(
    clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates, spark: object, warehouse: str, tmp_path: Path
) -> World:
    world = World(*(cluster.bootstrap_servers for cluster in clusters), tmp_path, spark, warehouse)
    client = str(certificates.store("client", "somebody@example.org"))
    for alias, cluster in zip((world.alias, world.target_alias), clusters, strict=True):
        world.write_config(
            **{
                f"{alias}.bootstrap.servers": f"localhost:{cluster.tls_port}",
                f"{alias}.security.protocol": "SSL",
                "mirrorlake.connect.timeout.ms": "5000",
                f"{alias}.ssl.truststore.type": "PEM",
                f"{alias}.ssl.truststore.location": str(certificates.trusted),
                f"{alias}.ssl.keystore.type": "PEM",
                f"{alias}.ssl.keystore.location": client,
            }
        )
    return world


def test_records_and_groups_are_mirrored_over_tls(world: World) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, 300)
    group = world.commit("g", {(topic, 0): 17, (topic, 1): 3})
    world.mirror()
    assert world.assert_equal(topic) == 300
    world.checkpoint()
    assert {key[1]: offset for key, (offset, _) in world.committed(group).items()} == {0: 17, 1: 3}


class Impostor:
    """A TLS server on this machine with a certificate of its own, which keeps the bytes that clients send."""

    def __init__(self, certificate: Path) -> None:
        self.connections, self.received = 0, b""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        impostor = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                impostor.connections += 1
                self.request.settimeout(5)
                with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as tls:
                    while data := tls.recv(4096):
                        impostor.received += data

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    @contextlib.contextmanager
    def listening(self) -> Iterator[Impostor]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_cluster_that_is_not_trusted_is_refused_and_nothing_is_sent(
    world: World, certificates: Certificates, tmp_path: Path, is_trusted: bool
) -> None:
    """With its authority trusted, the same server receives requests, so the test would detect them."""
    (tmp_path / "others").mkdir()
    others = Certificates(tmp_path / "others")
    with Impostor(others.store("impostor", "localhost")).listening() as impostor:
        world.write_config(
            **{
                f"{world.alias}.bootstrap.servers": f"localhost:{impostor.port}",
                "mirrorlake.connect.timeout.ms": "2000",
                f"{world.alias}.ssl.truststore.location": str((others if is_trusted else certificates).trusted),
            }
        )
        with pytest.raises(SourceError, match=r"can't be reached"):
            world.mirror()
        assert impostor.connections > 0
        assert bool(impostor.received) == is_trusted
