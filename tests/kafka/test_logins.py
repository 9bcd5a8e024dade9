"""Clusters are reached with client certificates, SCRAM and OAUTHBEARER, by raw requests, librdkafka and Spark's client.

Whoever may not reach them, or may no longer, is told so."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from mirrorlake.config.connection import Connection
from mirrorlake.errors import MirrorlakeError, SourceError, TargetError
from mirrorlake.protocol.clients.settings import librdkafka
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.spark.kafka_frames import log_records
from pyspark.sql import SparkSession

from tests.certificates import KEY_PASSWORD, STORE_PASSWORD, Certificates
from tests.client_logins import (
    over_tls,
    with_certificate,
    with_inline_certificate,
    with_password,
    with_references,
    with_token,
)
from tests.identity_provider import SECRET, IdentityProvider
from tests.impostor import Impostor
from tests.tls_cluster import (
    PASSWORD,
    PLAIN_PASSWORD,
    SESSION_MS,
    TlsCluster,
    cut_connections,
    grant,
    rotated,
    set_password,
    tls_clusters,
)
from tests.world import World, eventually

MECHANISMS = ("scram", "oauth", "certificate")
CLIENTS = ("kafka-python", "librdkafka", "Spark")
os.environ["OAUTH_CLIENT_SECRET"] = SECRET  # before a test starts a JVM, whose Kafka client reads it there


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
    with tls_clusters(tmp_path_factory.mktemp("tls"), root / ".local/jars/kafka", certificates, issuer) as found:
        yield found


@pytest.fixture
def world(clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates, tmp_path: Path) -> World:
    return certified(World(*(cluster.bootstrap_servers for cluster in clusters), tmp_path), clusters, certificates)


def certified(world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates) -> World:
    """Lets a flow reach both clusters with a client certificate."""
    world.write_config(**{"mirrorlake.connect.timeout.ms": "5000"})
    for alias, cluster in zip((world.alias, world.target_alias), clusters, strict=True):
        world.write_config(**with_certificate(alias, cluster, certificates))
    return world


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
    assert issuer.issued or mechanism != "oauth"  # clients of the case before may still renew theirs
    everything = caplog.text + "".join(world.lines) + repr(connection)
    assert not [one for one in (PASSWORD, SECRET, KEY_PASSWORD, *issuer.issued) if one in everything]
    issuer.issued.clear()


def end_seen_by(client: str, connection: Connection, topic: str, spark: SparkSession) -> int:
    """Returns the end of a log of ten records, as one of the clients reads it."""
    key, partition = (topic, 0), TopicPartition(topic, 0)
    if client == "kafka-python":
        with contextlib.closing(Cluster(connection, "source", "test", 5_000)) as cluster:
            cluster.connect().refresh([topic], 5_000)
            return cluster.offsets([key], LATEST_TIMESTAMP, 5_000)[key]
    if client == "librdkafka":
        admin = AdminClient(librdkafka(connection, log_level=0))
        if refused := admin.list_topics(topic, timeout=5).topics[topic].error:
            raise KafkaException(refused)
        return admin.list_offsets({partition: OffsetSpec.latest()}, request_timeout=5)[partition].result().offset
    return log_records(spark, connection, {key: 0}, {key: 10}, "read_committed", {}).count()


def connected(properties: Mapping[str, str]) -> Connection:
    return Connection("c", tuple((name.removeprefix("c."), value) for name, value in properties.items()))


def ten_records(world: World) -> str:
    topic = world.topic(partitions=1)
    world.produce(topic, 10, partitions=1)
    return topic


def test_a_certificate_in_the_file_is_shown_to_a_broker_that_only_requests_one(
    world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates, spark: SparkSession
) -> None:
    """A client without a certificate is ANONYMOUS, who may do everything. The principal of the certificate may not."""
    topic = ten_records(world)
    connection = connected(with_inline_certificate("c", clusters[0], certificates, "REQUESTED"))
    anonymous = connected(over_tls("c", clusters[0], "REQUESTED", certificates))
    assert end_seen_by("kafka-python", anonymous, topic, spark) == 10
    for client in CLIENTS:
        with pytest.raises(Exception, match=r"TOPIC_AUTHORIZATION_FAILED|TopicAuthorization(Failed|Exc)"):
            end_seen_by(client, connection, topic, spark)
    grant(world.source_admin, (ResourceType.TOPIC, topic, AclOperation.READ), principal="User:shown")
    eventually(lambda: end_seen_by("librdkafka", connection, topic, spark) == 10)
    assert [end_seen_by(client, connection, topic, spark) for client in CLIENTS] == [10, 10, 10]


@pytest.mark.parametrize("form", ["SCRAM", "OAUTHBEARER", "PEM", "encrypted PEM", "PKCS12 JKS", "JKS PKCS12"])
def test_secrets_behind_references_reach_all_three_clients_and_are_not_in_the_options_of_spark(
    world: World,
    clusters: tuple[TlsCluster, TlsCluster],
    certificates: Certificates,
    issuer: IdentityProvider,
    spark: SparkSession,
    tmp_path: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An encrypted PEM key is in the options without its password, because Java 17 can't decrypt it.

    A password of a key that is not encrypted may be set to nothing.
    """
    monkeypatch.setenv("KEY_PASSWORD", KEY_PASSWORD)
    topic = ten_records(world)
    connection = connected(with_references(form, clusters[0], certificates, issuer, tmp_path / "secrets.properties"))
    assert [end_seen_by(client, connection, topic, spark) for client in CLIENTS] == [10, 10, 10]
    options = str(connection.spark())
    secrets = (PLAIN_PASSWORD, SECRET, STORE_PASSWORD, KEY_PASSWORD, *issuer.issued)
    assert not [one for one in secrets if one in options]
    assert ("PRIVATE KEY" in options) == (form == "encrypted PEM")
    assert "config.providers" in options
    issuer.issued.clear()


def test_a_brokers_certificate_that_is_rotated_is_verified_by_the_new_connections_of_a_running_job(
    world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates, tmp_path: Path
) -> None:
    """The new certificate is of another authority, which is the only one to trust after the rotation."""
    (tmp_path / "new").mkdir()
    new, trusted, port = Certificates(tmp_path / "new"), tmp_path / "trusted.pem", clusters[1].ports["SSL"]
    trusted.write_bytes(certificates.trusted.read_bytes())
    world.write_config(**{f"{world.target_alias}.ssl.truststore.location": str(trusted)})
    topic = world.topic()
    world.produce(topic, 100)
    with world.mirroring() as job:
        eventually(lambda: world.batches, what="the first micro-batch")
        with rotated(world.target_admin, new.store("broker", "localhost")):
            trusted.write_bytes(new.trusted.read_bytes())
            cut_connections(port)
            before = world.batches
            world.produce(topic, 100, seed=2)
            eventually(lambda: world.batches > before or job.done(), what="a micro-batch over a new connection")
    assert world.assert_equal(topic) == 200


def test_a_rotated_password_is_used_when_a_session_is_renewed(
    world: World, clusters: tuple[TlsCluster, TlsCluster], certificates: Certificates
) -> None:
    """Some requests are always under way, so that others wait for the end of the renewal."""
    world.write_config(**with_password(world, clusters[1], certificates))
    with contextlib.closing(Cluster(world.flow.target_connection, "target", "test", 5_000)) as cluster:
        cluster.connect()
        until = time.monotonic() + 1.2 * SESSION_MS / 1000
        set_password(world.target_admin, password="another")
        (world.directory / "secrets.properties").write_text("password = another\n")
        try:
            while time.monotonic() < until:
                cluster.net.run(lambda: cluster.together(*[partial(cluster.update_metadata, [])] * 3))
        finally:
            set_password(world.target_admin)


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


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_right_that_is_revoked_ends_the_job_and_it_goes_on_once_it_is_granted_again(world: World, side: str) -> None:
    admin, alias = {
        "source": (world.source_admin, world.alias),
        "target": (world.target_admin, world.target_alias),
    }[side]
    # Between two looks for topics: what this principal must not describe is missing in the source's list of topics.
    world.write_config(refresh_topics_interval_seconds="600")
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
    try:
        error = ended(world, lambda: next(iter(admin.delete_acls([revoked]).values())).result(), topic)
    finally:
        grant(admin, own)
    assert re.search(rf"cluster {alias}\b.*lacks a permission on this TOPIC; grant", str(error))
    assert isinstance(error, {"source": SourceError, "target": TargetError}[side])
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
    assert isinstance(error, MirrorlakeError)
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
