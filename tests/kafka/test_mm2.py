"""MirrorMaker 2's own Java classes read mirrorlake's topics, and so does MirrorMaker 2 itself."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from mirrorlake.local.cluster import LocalCluster, running

from tests.mirrormaker import mirrormaker
from tests.world import ROOT, World, eventually, read_committed

JARS = ROOT / ".local/jars/kafka"
PROBE = Path(__file__).parent / "java/MirrorProbe.java"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LocalCluster]]:
    """Starts three clusters, because clients of MirrorMaker 2 read all topics of a cluster."""
    base = tmp_path_factory.mktemp("chain")
    with (
        running(LocalCluster("a", base / "a", JARS)) as a,
        running(LocalCluster("b", base / "b", JARS)) as b,
        running(LocalCluster("c", base / "c", JARS)) as c,
    ):
        yield [a, b, c]


@pytest.fixture(scope="module")
def mirrored(
    chain: list[LocalCluster], spark: object, warehouse: str, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """Mirrors a -> b with all default features of MirrorMaker 2, a group, and offset syncs on the source."""
    properties = {
        "emit.heartbeats.enabled": "true",
        "heartbeats.replication.enabled": "true",
        "emit.offset-syncs.enabled": "true",
    }
    world = World(
        chain[0].bootstrap_servers,
        chain[1].bootstrap_servers,
        tmp_path_factory.mktemp("mm2"),
        spark,
        warehouse,
        properties,
        "a",
        "b",
    )
    topic = world.topic("orders", 2)
    world.produce(topic, 300)
    world.commit("g", {(topic, 0): 40, (topic, 1): 7}, metadata="note")
    for _ in range(2):  # as a workflow does: each run writes a heartbeat, and the second one mirrors it
        world.mirror()
    assert sum(map(len, world.target_records(topic).values())) == 300
    assert sum(map(len, read_committed(world.target_servers, "a.heartbeats").values())) >= 1
    world.checkpoint()
    return world


def probe(servers: str, source: str, group: str, *policy: str) -> dict[str, str]:
    words = ["java", "-cp", f"{JARS}/*", str(PROBE), servers, source, group, *policy]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return dict(line.split("=", 1) for line in finished.stdout.splitlines() if "=" in line)


def test_the_java_client_sees_clusters_hops_topics_and_translated_offsets(mirrored: World) -> None:
    seen = probe(mirrored.target_servers, "a", "a-g")
    assert seen["upstream"] == "[a]"
    assert seen["hops"] == "1"
    assert seen["heartbeats"] == "[a.heartbeats, heartbeats]"
    assert seen["checkpoints"] == "[a.checkpoints.internal]"
    assert seen["remote"] == "[a.a-orders, a.heartbeats]"
    assert seen["translated"].replace("\0", "") == "a.a-orders-0=40/note a.a-orders-1=7/note"


def test_the_latency_of_the_path_is_in_the_ledger(mirrored: World) -> None:
    latency = "avg(unix_millis(committed_at) - unix_millis(last_timestamp))"
    (row,) = mirrored.spark.sql(
        f"SELECT count(*), {latency} FROM {mirrored.ledger.table('offset_syncs')} WHERE source = 'a' AND topic = "
        "'heartbeats'"
    ).collect()
    assert row[0] >= 1
    assert 0 <= row[1] < 10_000


def test_offset_syncs_on_the_source_are_pairs_of_one_record(mirrored: World) -> None:
    consumer = Consumer(
        {"bootstrap.servers": mirrored.source_servers, "group.id": "x", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("mm2-offset-syncs.b.internal", 0, 0)])
    found = [message for message in consumer.consume(100_000, 3) if message.key().startswith(b"\0\x08a-orders")]
    consumer.close()
    pairs = {(*struct.unpack(">qq", message.value()), *struct.unpack(">i", message.key()[-4:])) for message in found}
    source, target = (
        read_committed(servers, topic)
        for servers, topic in ((mirrored.source_servers, "a-orders"), (mirrored.target_servers, "a.a-orders"))
    )
    assert pairs
    for upstream, downstream, partition in pairs:
        assert dict(source[partition])[upstream] == dict(target[partition])[downstream]


def test_offset_syncs_go_to_the_target_where_that_is_asked_for_and_nowhere_by_default(world: World) -> None:
    def named() -> set[tuple[str, str]]:
        return {
            (servers, name)
            for servers, admin in (
                (world.source_servers, world.source_admin),
                (world.target_servers, world.target_admin),
            )
            for name in admin.list_topics(timeout=10).topics
            if name.startswith("mm2-offset-syncs.")
        }

    before = named()  # other flows of these clusters may have theirs
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.mirror()
    assert named() == before
    world.write_config(**{"emit.offset-syncs.enabled": "true", "offset-syncs.topic.location": "target"})
    world.produce(topic, 20, 1, seed=2)
    world.mirror()
    assert named() - before == {(world.target_servers, f"mm2-offset-syncs.{world.alias}.internal")}


def test_mirrormaker_2_carries_on_what_was_mirrored_here(
    mirrored: World, chain: list[LocalCluster], tmp_path: Path
) -> None:
    """a -> (mirrorlake) -> b -> (MirrorMaker 2) -> c."""
    b, c = (("b", chain[1].bootstrap_servers), ("c", chain[2].bootstrap_servers))
    with mirrormaker(tmp_path, b, c, {"b->c.topics": ".*", "b->c.consumer.isolation.level": "read_committed"}):
        copied = lambda: read_committed(chain[2].bootstrap_servers, "b.a.a-orders")  # noqa: E731
        eventually(lambda: sum(map(len, copied().values())) == 300, 120, "the copy of the copy")
        source = read_committed(mirrored.source_servers, "a-orders")
        assert {partition: [record for _, record in records] for partition, records in copied().items()} == {
            partition: [record for _, record in records] for partition, records in source.items()
        }
        with mirrored.mirroring():  # heartbeats, while MirrorMaker 2 runs
            seen = eventually(
                lambda: (found := probe(chain[2].bootstrap_servers, "a", "a-g"))["upstream"] == "[a, b]" and found,
                60,
                "heartbeats of both",
            )
        assert seen["hops"] == "2"
        assert "b.a.heartbeats" in seen["heartbeats"]
