"""A target with logins behind a bad network: lines that are long, slow, silent or cut, and passwords that change."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from mirrorlake.jobs.mirror.copy import fetcher, slot_copy
from mirrorlake.jobs.mirror.copy.fetcher import Fetcher, PendingFetch
from mirrorlake.local.cluster import Broker, LocalCluster, running
from mirrorlake.local.proxy.control import NetworkLine, Proxy, proxied
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network import network_client
from mirrorlake.protocol.network.frames import SILENT_S

from tests.world import World, config_of, configure, eventually

MECHANISM = "SCRAM-SHA-256"
TRANSACTION_TIMEOUT_MS = 8_000
FIRST_PASSWORD, SECOND_PASSWORD = "first-canary", "second-canary"


class LoginCluster(LocalCluster):
    """A local cluster whose clients log in behind the proxy; the test itself uses the plain listener."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        protocols = "listener.security.protocol.map"
        properties[protocols] = properties[protocols].replace("PROXIED:PLAINTEXT", "PROXIED:SASL_PLAINTEXT")
        return properties


@pytest.fixture(scope="module")
def cluster(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    login = f"listener.name.proxied.{MECHANISM.lower()}.sasl.jaas.config"
    properties = {
        "listener.name.proxied.sasl.enabled.mechanisms": MECHANISM,
        login: "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    made = LoginCluster(
        "login", tmp_path_factory.mktemp("login"), root / ".local/jars/kafka", properties=properties, proxied=True
    )
    with running(made):
        yield made


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    with proxied(cluster) as made:
        yield made


@pytest.fixture
def world(servers: tuple[str, str], cluster: LocalCluster, proxy: Proxy, tmp_path: Path) -> World:
    world = World(servers[0], cluster.bootstrap_servers, tmp_path)
    set_password(world.target_admin, world, FIRST_PASSWORD)
    world.write_config(
        **{
            **login(world, "t", cluster),
            "mirrorlake.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
            "mirrorlake.batch.max.ms": "2000",
            "mirrorlake.batch.max.records": "400",
            "mirrorlake.connect.timeout.ms": "10000",
        }
    )
    return world


def login(world: World, alias: str, cluster: LocalCluster) -> dict[str, str]:
    """Returns the properties with which a cluster is reached through the proxy."""
    return {
        f"{alias}.bootstrap.servers": cluster.proxied_servers,
        f"{alias}.security.protocol": "SASL_PLAINTEXT",
        f"{alias}.sasl.mechanism": MECHANISM,
        f"{alias}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="mirror" password="${{file:{secret_of(world)}:password}}";'
        ),
    }


def secret_of(world: World) -> Path:
    return world.directory / "secret.properties"


def set_password(admin: AdminClient, world: World, password: str) -> None:
    """Sets the password on the cluster, and in the file that the flow's properties refer to."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("mirror", info, password.encode())
    admin.alter_user_scram_credentials([change])["mirror"].result()
    secret_of(world).write_text(f"password={password}\n")


@contextmanager
def mirrored_through(world: World, proxy: Proxy) -> Iterator[str]:
    """Mirrors a growing topic while the block troubles the line, then the rest, and compares both sides."""
    topic = world.topic(partitions=4)
    with world.mirroring_through(topic):
        yield topic
        proxy.line(NetworkLine())


def test_a_long_and_slow_line_is_only_slow(world: World, proxy: Proxy) -> None:
    world.write_config(**{"mirrorlake.transaction.timeout.ms": "60000"})
    with mirrored_through(world, proxy) as topic:
        proxy.line(NetworkLine(delay_ms=100, bytes_per_s=125_000))
        before = world.batches
        world.produce(topic, 1_000, 4, seed=3)
        eventually(lambda: world.batches > before + 1, what="micro-batches over the slow line")
    assert not [line for line in world.lines if "retrying" in line or "slots_failed" in line]


@pytest.mark.parametrize("silent_s", [3, TRANSACTION_TIMEOUT_MS / 1000 + 3], ids=["healed", "timed_out"])
def test_a_line_that_is_silent_for_a_while_loses_and_doubles_nothing(
    world: World, proxy: Proxy, silent_s: float
) -> None:
    with mirrored_through(world, proxy) as topic:
        world.produce(topic, 1_000, 4, seed=3)
        proxy.line(NetworkLine(is_silent=True))
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + silent_s)


def world_beyond(side: str, cluster: LocalCluster, near_servers: str, directory: Path, **properties: str) -> World:
    """Returns a flow with the proxied cluster on one of its sides."""
    far = cluster.bootstrap_servers
    world = World(*((far, near_servers) if side == "source" else (near_servers, far)), directory)
    set_password(world.source_admin if side == "source" else world.target_admin, world, FIRST_PASSWORD)
    world.write_config(**login(world, world.alias if side == "source" else "t", cluster), **properties)
    return world


def test_a_source_that_answers_late_is_waited_for_where_nothing_else_is_to_be_done(
    servers: tuple[str, str], cluster: LocalCluster, proxy: Proxy, tmp_path: Path
) -> None:
    world = world_beyond("source", cluster, servers[0], tmp_path)
    topic = world.topic(partitions=2)
    world.produce(topic, 200)
    healing = threading.Timer(SILENT_S + 2, proxy.line, [NetworkLine()])

    def fall_silent(step: str) -> None:
        if step == "task.compared" and healing.ident is None:
            proxy.line(NetworkLine(is_silent=True))
            healing.start()

    assert world.disturbed_job(fall_silent, parallelism=1).run(None).batches == 1
    healing.join()
    world.assert_equal(topic)
    assert not [line for line in world.lines if "retrying" in line or "slots_failed" in line]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_far_cluster_is_reached_over_several_connections_and_to_lose_them_half_way_loses_nothing(
    servers: tuple[str, str],
    cluster: LocalCluster,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: str,
) -> None:
    world = world_beyond(side, cluster, servers[1 if side == "source" else 0], tmp_path)
    topic = world.topic(partitions=4)
    world.produce(topic, 2_000, 4, size=500, codec="none")
    world.produce_transactions(topic, 12, 30, 4)
    monkeypatch.setattr(network_client, "ROUND_TRIP_OF_A_CONNECTION_S", 0.06)  # what a slow machine adds is less
    proxy.line(NetworkLine(delay_ms=120, window_bytes=256 << 10))
    lanes: set[tuple[str, int]] = set()
    cuts: list[str] = []
    real = Cluster.send

    def send(self: Cluster, request: Any, node: int, lane: int = 0) -> Any:
        lanes.add((self.side, lane))
        return real(self, request, node, lane)

    def cut_once(step: str) -> None:
        if step == "task.producing" and not cuts:
            cuts.append(step)
            proxy.cut()

    monkeypatch.setattr(Cluster, "send", send)
    world.disturbed_job(cut_once, parallelism=1).run(None)
    other = "target" if side == "source" else "source"
    assert lanes - {(side, 4)} == {(side, 0), (side, 1), (side, 2), (side, 3), (other, 0)}, "one for each 60 ms"
    assert cuts
    world.assert_equal(topic)
    world.assert_nothing_open()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_far_cluster_that_accepts_fewer_connections_is_reached_over_those(
    servers: tuple[str, str], cluster: LocalCluster, proxy: Proxy, tmp_path: Path, side: str
) -> None:
    world = world_beyond(side, cluster, servers[1 if side == "source" else 0], tmp_path)
    topic = world.topic(partitions=4)
    world.produce(topic, 2_000, 4, size=500, codec="none")
    line = NetworkLine(delay_ms=50)
    proxy.line(line)
    accepted = list[int]()

    def be_full(step: str) -> None:
        if step == "task.compared" and not accepted:
            accepted.append(proxy.traffic().connections)
            proxy.line(replace(line, most_connections=accepted[0] + 1))

    world.disturbed_job(be_full, parallelism=1).run(None)
    assert accepted
    world.assert_equal(topic)
    world.assert_nothing_open()


@pytest.mark.parametrize("fault", ["none", "cut"])
def test_one_partition_of_a_far_source_is_read_over_several_connections_and_copied_in_order(
    servers: tuple[str, str],
    cluster: LocalCluster,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    memory = {"mirrorlake.batch.memory.bytes": "2097152"}
    world = world_beyond("source", cluster, servers[0], tmp_path, **memory)
    monkeypatch.setattr(fetcher, "LEAST_AHEAD_BYTES", 32 << 10)
    monkeypatch.setattr(fetcher, "LEAST_AHEAD_BATCHES", 1)
    topic = world.topic(partitions=1)
    for seed, size in enumerate((500, 50, 2_000, 500)):  # so that what a response has is not what was expected
        world.produce(topic, 2_000, 1, size=size, codec="none", seed=seed)
        world.produce_transactions(topic, 12, 30, 1)
    proxy.line(NetworkLine(delay_ms=50, window_bytes=512 << 10))
    asked: list[PendingFetch] = []
    cuts: list[str] = []
    most = [0]
    real = Fetcher._send

    def send(self: Fetcher, *given: Any, **options: Any) -> None:
        real(self, *given, **options)
        asked.extend(fetch for fetch in self._under_way.values() if fetch not in asked)
        most[0] = max(most[0], len(self._under_way))

    def cut_once(step: str) -> None:
        if fault == "cut" and step == "task.producing" and any(fetch.is_ahead for fetch in asked) and not cuts:
            cuts.append(step)
            proxy.cut()

    monkeypatch.setattr(Fetcher, "_send", send)
    world.disturbed_job(cut_once, parallelism=1).run(None)
    assert most[0] >= 4
    assert bool(cuts) == (fault == "cut")
    world.assert_equal(topic)
    world.assert_nothing_open()


def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(world: World, proxy: Proxy) -> None:
    dice, over = random.Random(7), threading.Event()

    def cut() -> None:
        while not over.wait(dice.uniform(0.05, 0.4)):
            proxy.cut()

    with mirrored_through(world, proxy) as topic:
        cutting = threading.Thread(target=cut)
        cutting.start()
        for seed in range(3, 13):
            world.produce(topic, 300, 4, seed=seed)
        over.set()
        cutting.join()


def test_a_target_that_is_out_of_reach_is_waited_for_and_no_transaction_stays_open_meanwhile(
    world: World, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_copy, "PRODUCE_TIMEOUT_MS", 3_000)
    monkeypatch.setattr(transaction, "END_TIMEOUT_MS", 3_000)
    with mirrored_through(world, proxy) as topic:
        proxy.line(NetworkLine(is_open=False))
        proxy.cut()
        world.produce(topic, 500, 4, seed=3)
        eventually(lambda: any("retrying" in line for line in world.lines), what="a retry")
        eventually(lambda: not world.open_transactions(), what="the end of the transactions")


def test_a_rotated_password_is_used_by_every_connection_of_a_job_that_runs(world: World, proxy: Proxy) -> None:
    world.write_config(**{"sync.topic.configs.interval.seconds": "1"})
    with mirrored_through(world, proxy) as topic:
        set_password(world.target_admin, world, SECOND_PASSWORD)
        proxy.cut()
        before = world.batches
        world.produce(topic, 500, 4, seed=3)
        eventually(lambda: world.batches > before, what="a micro-batch with the new password")
        configure(world, topic, {"retention.ms": "7200000"})
        remote = world.remote(topic)
        eventually(lambda: config_of(world.target_admin, remote)["retention.ms"] == "7200000")
    for password in (FIRST_PASSWORD, SECOND_PASSWORD):
        assert not [line for line in world.lines if password in line]
