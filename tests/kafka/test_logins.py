"""Clusters are reached with client certificates, SCRAM and OAUTHBEARER, by raw requests, librdkafka and Spark's client.

Whoever may not reach them, or may no longer, is told so."""

from __future__ import annotations

import contextlib
import re
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError
from mirrorlake.local.cluster import Broker, LocalCluster, free_port, running
from mirrorlake.protocol.clients.settings import librdkafka
from mirrorlake.spark.kafka_frames import log_records
from pyspark.sql import SparkSession

from tests.identity_provider import CLIENT, SECRET, IdentityProvider
from tests.world import World, eventually

PASSWORD = 'scram"canary'
MODULES = "org.apache.kafka.common.security"
OAUTH = f"{MODULES}.oauthbearer.OAuthBearer"
LISTENERS = {"SSL": "SSL", "SCRAM": "SASL_SSL", "OAUTH": "SASL_SSL"}
MECHANISMS = ("scram", "oauth", "certificate")
SESSION_MS = 4_000  # of a login by SCRAM; a token's is its life


class TlsCluster(LocalCluster):
    """A local cluster with a listener for client certificates, one for SCRAM and one for tokens; the test itself uses
    the plain one."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        taken = {each.port for each in self.brokers} | {self.controller_port}
        self.ports = {name: free_port(0, taken) for name in LISTENERS}
        for name in ("listeners", "advertised.listeners"):
            properties[name] += "".join(f",{listener}://localhost:{port}" for listener, port in self.ports.items())
        properties["listener.security.protocol.map"] += ",SCRAM:SASL_SSL,OAUTH:SASL_SSL"
        return properties


class Certificates:
    """A certificate authority, and PEM stores of the certificates that it has signed."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._authority = directory, trustme.CA()
        self.trusted = directory / "trusted.pem"
        self._authority.cert_pem.write_to_path(self.trusted)

    def store(self, name: str, *identities: str, **validity: datetime) -> Path:
        """Stores a key with its certificate in a form that Java and OpenSSL both read (PKCS #8)."""
        issued = self._authority.issue_cert(*identities, **validity)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        path = self._directory / f"{name}.pem"
        path.write_bytes(key + b"".join(certificate.bytes() for certificate in issued.cert_chain_pems))
        return path


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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def issuer() -> Iterator[IdentityProvider]:
    with IdentityProvider().running() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def clusters(
    root: Path, certificates: Certificates, issuer: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TlsCluster, TlsCluster]]:
    base, keys = tmp_path_factory.mktemp("tls"), f"{issuer.url}/keys"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("broker", "localhost")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.trusted),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*$/mirror/",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "listener.name.scram.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{OAUTH}LoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}ValidatorCallbackHandler",
        "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": "kafka",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    options = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}",)
    source, target = (
        TlsCluster(side, base / side, root / ".local/jars/kafka", properties=properties, java_options=options)
        for side in ("source", "target")
    )
    with running(source), running(target):
        for cluster in (source, target):
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            grant(admin, *((kind, "*", AclOperation.ALL) for kind in KINDS))
            set_password(admin)
        yield source, target


@pytest.fixture
def world(clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates, tmp_path: Path) -> World:
    return certified(World(*(cluster.bootstrap_servers for cluster in clusters), tmp_path), clusters, certificates)


def certified(world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates) -> World:
    """Lets a flow reach both clusters with a client certificate."""
    world.write_config(**{"mirrorlake.connect.timeout.ms": "5000"})
    for alias, cluster in zip((world.alias, world.target_alias), clusters, strict=True):
        world.write_config(**with_certificate(alias, cluster, certificates))
    return world


KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def grant(admin: AdminClient, *rights: tuple[ResourceType, str, AclOperation]) -> None:
    """Lets the principal of all three listeners do something."""
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:mirror", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in rights
    ]
    for future in admin.create_acls(bindings).values():
        future.result()


def set_password(admin: AdminClient) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("mirror", info, PASSWORD.encode())
    admin.alter_user_scram_credentials([change])["mirror"].result()


def over_tls(alias: str, cluster: TlsCluster, listener: str, certificates: Certificates) -> dict[str, str]:
    return {
        f"{alias}.bootstrap.servers": f"localhost:{cluster.ports[listener]}",
        f"{alias}.security.protocol": LISTENERS[listener],
        f"{alias}.ssl.truststore.type": "PEM",
        f"{alias}.ssl.truststore.location": str(certificates.trusted),
    }


def with_certificate(alias: str, cluster: TlsCluster, certificates: Certificates) -> dict[str, str]:
    return {
        **over_tls(alias, cluster, "SSL", certificates),
        f"{alias}.ssl.keystore.type": "PEM",
        f"{alias}.ssl.keystore.location": str(certificates.store("client", "somebody@example.org")),
    }


def with_password(world: World, cluster: TlsCluster, certificates: Certificates) -> dict[str, str]:
    secrets, alias = world.directory / "secrets.properties", world.target_alias
    secrets.write_text(f"password = {PASSWORD}\n")
    return {
        **over_tls(alias, cluster, "SCRAM", certificates),
        f"{alias}.sasl.mechanism": "SCRAM-SHA-512",
        f"{alias}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required "
        f'username="mirror" password="${{file:{secrets}:password}}";',
    }


def with_token(alias: str, cluster: TlsCluster, certificates: Certificates, issuer: IdentityProvider) -> dict[str, str]:
    return {
        **over_tls(alias, cluster, "OAUTH", certificates),
        f"{alias}.sasl.mechanism": "OAUTHBEARER",
        f"{alias}.sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        f"{alias}.sasl.jaas.config": f'{OAUTH}LoginModule required clientId="{CLIENT}" clientSecret="{SECRET}";',
    }


def with_inline_certificate(alias: str, cluster: TlsCluster, certificates: Certificates) -> dict[str, str]:
    """Returns the properties of a client whose certificate and encrypted key are in the property file itself."""
    text = certificates.store("inline", "somebody@example.org").read_bytes()
    key = load_pem_private_key(text, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"key-canary"))
    inline = {
        "truststore.certificates": certificates.trusted.read_bytes(),
        "keystore.key": encrypted,
        "keystore.certificate.chain": text[text.index(b"-----BEGIN CERT") :],
        "truststore.type": b"PEM",
        "keystore.type": b"PEM",
        "key.password": b"key-canary",
    }
    found = over_tls(alias, cluster, "SSL", certificates)
    del found[f"{alias}.ssl.truststore.location"]
    return found | {f"{alias}.ssl.{name}": value.decode().replace("\n", " ") for name, value in inline.items()}


def test_records_and_groups_are_mirrored_over_tls(
    clusters: tuple[TlsCluster, TlsCluster],
    certificates: Certificates,
    spark: SparkSession,
    warehouse: str,
    tmp_path: Path,
) -> None:
    servers = (cluster.bootstrap_servers for cluster in clusters)
    world = certified(World(*servers, tmp_path, spark, warehouse), clusters, certificates)
    topic = world.topic(partitions=2)
    world.produce(topic, 300)
    group = world.commit("g", {(topic, 0): 17, (topic, 1): 3})
    world.mirror()
    assert world.assert_equal(topic) == 300
    world.checkpoint()
    assert {key[1]: offset for key, (offset, _) in world.committed(group).items()} == {0: 17, 1: 3}


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


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_is_spoken_by_all_three_clients(
    world: World,
    clusters: tuple[TlsCluster, TlsCluster],
    certificates: Certificates,
    issuer: IdentityProvider,
    spark: SparkSession,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Raw requests copy, librdkafka makes topics, Spark's client reads. Sessions are renewed while the job runs."""
    alias, target = world.target_alias, clusters[1]
    for name in [name for name in world.properties if name.startswith(f"{alias}.")]:
        del world.properties[name]
    world.write_config(
        **{
            "scram": lambda: with_password(world, target, certificates),
            "oauth": lambda: with_token(alias, target, certificates, issuer),
            "certificate": lambda: with_inline_certificate(alias, target, certificates),
        }[mechanism]()
    )
    issuer.lifetime_s = SESSION_MS / 1000
    topic, began = world.topic(partitions=2), time.monotonic()
    world.produce(topic, 200)
    with world.mirroring():
        eventually(lambda: world.batches, what="the first micro-batch")
        if mechanism != "certificate":
            eventually(lambda: time.monotonic() > began + 1.3 * SESSION_MS / 1000)
        before = world.batches
        world.produce(topic, 100, seed=2)
        eventually(lambda: world.batches > before, what="a micro-batch in a renewed session")
    assert world.assert_equal(topic) == 300
    assert not [line for line in world.lines if "retrying" in line or "slots_failed" in line]
    issuer.lifetime_s = 3600.0
    connection, partitions = world.flow.target_connection, [(world.remote(topic), index) for index in (0, 1)]
    start, end = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 10)
    read = log_records(spark, connection, start, end, "read_committed", {})
    assert read.count() > 0
    assert (mechanism == "oauth") == bool(issuer.issued)
    everything = caplog.text + "".join(world.lines) + repr(connection)
    assert not [one for one in (PASSWORD, SECRET, "key-canary", *issuer.issued) if one in everything]
    issuer.issued.clear()


def test_a_user_that_is_removed_ends_the_job_and_it_goes_on_once_there_is_one_again(
    world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates
) -> None:
    world.write_config(**with_password(world, clusters[1], certificates))
    topic = world.topic(partitions=2)
    world.produce(topic, 200)
    removal = UserScramCredentialDeletion("mirror", ScramMechanism.SCRAM_SHA_512)
    error = ended(world, lambda: world.target_admin.alter_user_scram_credentials([removal])["mirror"].result())
    assert re.search(rf"cluster {world.target_alias}\b.*uthentication", str(error))
    assert f"correct {world.target_alias}.sasl.jaas.config, and start again" in str(error)
    assert PASSWORD not in str(error)
    set_password(world.target_admin)
    world.produce(topic, 100, seed=2)
    world.mirror()
    assert world.assert_equal(topic) == 300


def test_a_right_that_is_revoked_ends_the_job_and_it_goes_on_once_it_is_granted_again(world: World) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, 200)
    own = (ResourceType.TOPIC, "*", AclOperation.ALL)
    revoked = AclBindingFilter(
        ResourceType.TOPIC,
        "*",
        ResourcePatternType.LITERAL,
        "User:mirror",
        None,
        AclOperation.ALL,
        AclPermissionType.ANY,
    )
    error = ended(world, lambda: next(iter(world.target_admin.delete_acls([revoked]).values())).result(), topic)
    assert re.search(rf"cluster {world.target_alias}\b.*lacks a permission on this TOPIC; grant", str(error))
    grant(world.target_admin, own)
    world.produce(topic, 50, seed=3)
    world.mirror()
    assert world.assert_equal(topic) == 300


def ended(world: World, trouble: Callable[[], object], topic: str = "") -> MirrorlakeError:
    """Lets trouble come over a running job; returns the error with which it ends, within a bounded time."""
    job = world.mirror_job()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, 0.2)
        try:
            eventually(lambda: world.batches, what="the first micro-batch")
            trouble()
            if topic:
                world.produce(topic, 50, seed=2)
            eventually(running.done, deadline_s=60, what="the end of the job")
        finally:
            job.stop()
    error = running.exception()
    assert isinstance(error, TargetError)
    return error


def said_by_librdkafka(world: World) -> list[str]:
    said: list[str] = []
    client = AdminClient(
        librdkafka(world.flow.source_connection, log_level=0), error_cb=lambda one: said.append(one.str())
    )
    with contextlib.suppress(Exception):
        client.list_topics(timeout=1)
    client.poll(0)
    return said


@pytest.mark.parametrize(
    ("identity", "days", "reason"),
    [
        ("elsewhere.example.org", (-1, 1), r"[Hh]ostname mismatch"),
        ("localhost", (-2, -1), "certificate has expired"),
        ("localhost", (1, 2), "certificate is not yet valid"),
    ],
)
def test_a_brokers_certificate_that_does_not_hold_is_refused_with_the_reason(
    world: World, certificates: Certificates, spark: SparkSession, identity: str, days: tuple[int, int], reason: str
) -> None:
    """Where no check of the name is wanted, the same certificate does."""
    now = datetime.now(UTC)
    not_before, not_after = (now + timedelta(days=each) for each in days)
    store = certificates.store("bad", identity, not_before=not_before, not_after=not_after)
    with Impostor(store).listening() as impostor:
        world.write_config(
            **{
                f"{world.alias}.bootstrap.servers": f"localhost:{impostor.port}",
                "mirrorlake.connect.timeout.ms": "800",
            }
        )
        with pytest.raises(
            SourceError, match=rf"cluster {world.alias} \(.*can't be reached.*{reason}.*security properties"
        ):
            world.mirror()
        assert any("certificate" in text for text in said_by_librdkafka(world))
        key = {("t", 0): 0}
        with pytest.raises(Exception, match="SslAuthenticationException"):
            log_records(spark, world.flow.source_connection, key, {("t", 0): 1}, "read_committed", {}).count()
        assert not impostor.received
        world.write_config(**{f"{world.alias}.ssl.endpoint.identification.algorithm": ""})
        with pytest.raises(SourceError, match=r"can't be reached"):
            world.mirror()
        assert any("certificate" in text for text in said_by_librdkafka(world)) == (identity == "localhost")
        assert bool(impostor.received) == (identity != "localhost")


def test_a_clients_certificate_that_does_not_hold_is_refused_and_a_new_one_in_its_place_is_taken(
    world: World, certificates: Certificates, tmp_path: Path
) -> None:
    file, topic = tmp_path / "mine.pem", world.topic()
    world.produce(topic, 10)
    world.write_config(**{f"{world.alias}.ssl.keystore.location": str(file), "mirrorlake.connect.timeout.ms": "1500"})
    long_ago = datetime.now(UTC) - timedelta(days=2)
    expired = certificates.store("old", "a@example.org", not_before=long_ago, not_after=long_ago + timedelta(days=1))
    file.write_bytes(expired.read_bytes())
    with pytest.raises(SourceError, match=rf"cluster {world.alias} .*can't be reached.*certificate"):
        world.mirror()
    file.write_bytes(certificates.store("new", "a@example.org").read_bytes())
    assert world.mirror().records == 10


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((401, b'{"error": "invalid_client"}'), "answered 401: invalid_client"),
        ((200, b'{"access_token": "token-canary"}'), "a token that is not a JWT"),
        ((500, b"<html>token-canary"), "answered 500, and not with JSON"),
        ((302, b"{}"), "answered 302: no access_token"),
        ((200, b"x" * 300_000), "can't be reached: TimeoutError"),
        (None, "invalid_token|uthentication"),
    ],
    ids=["rejected", "opaque", "broken", "elsewhere", "endless", "forged"],
)
def test_a_token_that_is_not_to_be_had_is_explained_and_not_shown(
    world: World,
    clusters: tuple[TlsCluster, TlsCluster],
    certificates: Certificates,
    issuer: IdentityProvider,
    answer: tuple[int, bytes] | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    login = with_token(world.alias, clusters[0], certificates, issuer)
    url = f"{world.alias}.sasl.oauthbearer.token.endpoint.url"
    world.write_config(**{**login, "mirrorlake.connect.timeout.ms": "1500"})
    with IdentityProvider().running() as other:
        other.answer, other.headers = answer, {"Location": f"{issuer.url}/token"} if answer == (302, b"{}") else {}
        world.write_config(**{url: f"{other.url}/token"})
        with pytest.raises(SourceError, match=rf"cluster {world.alias} .*({reason}).*Check {world.alias}\.") as raised:
            world.mirror()
    assert not [one for one in (SECRET, "token-canary", *other.issued) if one in caplog.text + str(raised.value)]
    assert not issuer.issued, "the secret went elsewhere"
    asked_once = answer is None or (answer[0] < 500 and len(answer[1]) < 100)
    assert other.asked == 1 if asked_once else other.asked > 1
