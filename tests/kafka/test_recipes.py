"""Each property file of docs/recipes/ is run on real clusters, and what its page promises is judged by other readers.

The files run as they are. Only addresses, the store of certificates, replication factors and waiting times are others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mirrorlake.errors import SourceError
from mirrorlake.local.cluster import LocalCluster, running

from tests.canary import CANARY
from tests.world import ROOT, World, config_of, consume_as, eventually, read_committed

RECIPES = ROOT / "docs/recipes"
SMALL = {  # for clusters of one broker, and for tests that do not want to wait
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "mirrorlake.ledger.interval.seconds": "0",
    "mirrorlake.transaction.timeout.ms": "20000",
}


@dataclass
class Recipe(World):
    """One flow of a recipe."""

    recipe: str = ""
    others: Mapping[str, str] = field(default_factory=dict)  # values in the place of those of the file

    @property
    def ledger(self) -> Any:
        return self.memory

    def write_config(self, **changes: str) -> None:
        """Writes the file of the recipe, with the addresses of these clusters."""
        servers = {self.alias: self.source_servers, self.target_alias: self.target_servers}
        values = {f"{alias}.bootstrap.servers": address for alias, address in servers.items()} | {**self.others}
        text = (RECIPES / f"{self.recipe}.properties").read_text()
        for name, value in values.items():
            text, found = re.subn(rf"^{re.escape(name)} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert found == 1, name
        assert not [name for name in SMALL if re.search(rf"^{re.escape(name)} ", text, re.MULTILINE)]
        Path(self.config).write_text(text + "".join(f"{name} = {value}\n" for name, value in SMALL.items()))

    def create(self, *topics: str, partitions: int = 2, config: Mapping[str, str] | None = None) -> None:
        """Creates topics on the source."""
        create(self.source_admin, *topics, partitions=partitions, config=config)

    def place(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commits offsets of a group on the source."""
        positions = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        self.source_admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, positions)])[group].result()

    def assert_goes_on(self, group: str, topic: str) -> None:
        """Asserts that a group reads on the target exactly what it had not read on the source."""
        unread = consume_as(self.source_servers, group, [topic])
        found = consume_as(self.target_servers, group, [self.remote(topic)])
        assert [*unread.values()] == [*found.values()]
        assert all(unread.values())


def create(admin: AdminClient, *topics: str, partitions: int = 2, config: Mapping[str, str] | None = None) -> None:
    new = [NewTopic(topic, partitions, 1, config=dict(config or {})) for topic in topics]
    for topic, done in admin.create_topics(new).items():
        done.result()
        eventually(lambda topic=topic: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == partitions)


def contents(servers: str, topic: str) -> list[str]:
    return sorted(repr(record) for records in read_committed(servers, topic).values() for _, record in records)


@pytest.fixture(scope="module")
def third(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A third cluster, for the recipes that need one."""
    with running(LocalCluster("third", tmp_path_factory.mktemp("third"), root / ".local/jars/kafka")) as cluster:
        yield cluster.bootstrap_servers


def test_migration(servers: tuple[str, str], tmp_path: Path) -> None:
    flow = Recipe(*servers, tmp_path, recipe="migration", alias="legacy", target_alias="cloud")
    flow.create("orders", "payments")
    for topic in ("orders", "payments"):
        flow.produce(topic, 150)
        flow.produce_transactions(topic, 5, 8)
    flow.place("billing", {("orders", 0): 40, ("orders", 1): 10})
    flow.place("shipping", {("payments", 0): 5})
    flow.mirror()
    flow.checkpoint()
    assert flow.assert_equal("orders", "payments") > 300
    flow.assert_goes_on("billing", "orders")  # the same names
    flow.assert_goes_on("shipping", "payments")
    # Producers stay for a while. A consumer that has gone over reads what they write, too.
    flow.produce("orders", 60, seed=2)
    flow.mirror()
    flow.assert_goes_on("billing", "orders")


def test_disaster_recovery(servers: tuple[str, str], tmp_path: Path) -> None:
    there = Recipe(*servers, tmp_path, recipe="disaster-recovery", alias="primary", target_alias="standby")
    home = Recipe(
        *servers[::-1], tmp_path / "home", recipe="disaster-recovery", alias="standby", target_alias="primary"
    )
    there.create("bookings", "bookings-audit")
    there.produce("bookings", 200)
    there.produce("bookings-audit", 50)
    there.place("booking-desk", {("bookings", 0): 30, ("bookings", 1): 50})
    there.mirror()
    there.checkpoint()
    assert there.assert_equal("bookings", "bookings-audit") == 250
    home.mirror()
    assert there.assert_equal("bookings", "bookings-audit") == 250, "nothing goes back that has come from there"

    # The group is recorded, and was not moved. A failover commits what is recorded (test_failover.py).
    rows = [row for row in there.rows("checkpoints") if row["group_id"] == "booking-desk"]
    assert {(row["status"], row["sync"]) for row in rows} == {("exact", "off")}
    (asked,) = there.target_admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("booking-desk")]).values()
    assert asked.result().topic_partitions == []
    recorded = {("bookings", row["partition"]): row["downstream_offset"] for row in rows}
    home.place("booking-desk", recorded)
    there.assert_goes_on("booking-desk", "bookings")


def test_active_active(servers: tuple[str, str], tmp_path: Path) -> None:
    east = Recipe(*servers, tmp_path, recipe="active-active", alias="west", target_alias="east")
    west = Recipe(*servers[::-1], tmp_path / "back", recipe="active-active", alias="east", target_alias="west")
    for flow in (east, west):
        flow.create("profiles", "sessions")
    for number in range(2):
        east.produce("profiles", 80, seed=10 + number)
        west.produce("profiles", 60, seed=20 + number)
        west.produce_transactions("sessions", 4, 8, seed=30 + number)
        east.mirror()
        west.mirror()
    east.mirror()
    for topic in ("profiles", "sessions"):
        on_west, on_east = (contents(address, topic) for address in servers)
        assert on_west == on_east
        assert len(set(on_west)) == len(on_west) > 0, "each record is there once"
    assert len(contents(servers[0], "profiles")) == 280
    assert (east.mirror().records, west.mirror().records) == (0, 0), "records go round"


def test_fan_in(servers: tuple[str, str], third: str, tmp_path: Path) -> None:
    both = {"paris": servers[0], "tokyo": third}
    for alias, address in both.items():
        other = next((name, there) for name, there in both.items() if name != alias)
        flow = Recipe(
            address, servers[1], tmp_path / alias, recipe="fan-in", alias=alias, target_alias="hub",
            others={f"{other[0]}.bootstrap.servers": other[1]},
        )  # fmt: skip
        flow.create("telemetry")
        flow.produce("telemetry", 120, seed=len(alias) + ord(alias[0]))
        flow.place("telemetry-sink", {("telemetry", 0): 10})
        flow.mirror()
        flow.checkpoint()
        assert flow.assert_equal("telemetry") == 120
    admin = AdminClient({"bootstrap.servers": servers[1], "log_level": 0})
    found = [topic for topic in admin.list_topics(timeout=10).topics if re.fullmatch(r"\w+\.telemetry", topic)]
    assert sorted(found) == ["paris.telemetry", "tokyo.telemetry"]
    assert contents(servers[1], "paris.telemetry") == contents(servers[0], "telemetry")
    assert contents(servers[1], "tokyo.telemetry") == contents(third, "telemetry")


def test_fan_out(servers: tuple[str, str], third: str, tmp_path: Path) -> None:
    branches = {"north": servers[1], "south": third}
    for alias, address in branches.items():
        other = next((name, there) for name, there in branches.items() if name != alias)
        flow = Recipe(
            servers[0], address, tmp_path / alias, recipe="fan-out", alias="centre", target_alias=alias,
            others={f"{other[0]}.bootstrap.servers": other[1]},
        )  # fmt: skip
        if alias == "north":
            flow.create("prices", "catalogue")
            flow.produce("prices", 100)
            flow.produce("catalogue", 40)
        flow.mirror()
        wanted = {"north": ("prices", "catalogue"), "south": ("prices",)}[alias]
        assert flow.assert_equal(*wanted) == {"north": 140, "south": 100}[alias]
    assert "catalogue" not in AdminClient({"bootstrap.servers": third, "log_level": 0}).list_topics(timeout=10).topics


def test_hybrid_cloud(secured_clusters: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onprem, cloud = secured_clusters
    monkeypatch.setenv("SECRET_KAFKA_CLOUD", CANARY)
    login = cloud.client("cloud", "")
    names = ("cloud.bootstrap.servers", "cloud.ssl.truststore.location")
    flow = Recipe(
        onprem.bootstrap_servers, cloud.bootstrap_servers, tmp_path, recipe="hybrid-cloud", alias="onprem",
        target_alias="cloud", others={name: login[name] for name in names},
    )  # fmt: skip
    flow.create("inventory")
    flow.produce("inventory", 100)
    flow.place("inventory-count", {("inventory", 0): 20})
    flow.mirror()
    flow.checkpoint()
    assert flow.assert_equal("inventory") == 100
    flow.assert_goes_on("inventory-count", "inventory")
    assert str(cloud.trusted) in Path(flow.config).read_text()
    assert not [line for line in flow.lines if CANARY in line]


def test_gdpr_isolation(servers: tuple[str, str], tmp_path: Path, spark: Any) -> None:
    flow = Recipe(*servers, tmp_path, spark, recipe="gdpr-isolation", alias="eu", target_alias="us")
    flow.create("customers", partitions=1)
    people = [
        {"id": n, "country": "DE", "consent": n % 3 > 0, "name": f"Secret {n}", "email": f"{n % 5}@secret"}
        for n in range(30)
    ]
    write(flow, *(json.dumps(person).encode() for person in people), None)
    flow.mirror()

    (copies,) = flow.target_records("customers").values()
    *values, tombstone = (record[1] for _, record in copies)
    assert [json.loads(value) for value in values] == [
        {"id": person["id"], "country": "DE", "email": sha256(person["email"].encode()).hexdigest()}
        for person in people
        if person["consent"]
    ]
    assert tombstone is None, "a deletion arrives"
    assert {record[2] for _, record in copies} == {None}

    write(flow, b"Secret, and not JSON")
    with pytest.raises(SourceError, match="can't be transformed") as found:
        flow.mirror()
    assert "Secret" not in str(found.value)
    on_target = AdminClient({"bootstrap.servers": servers[1], "log_level": 0}).list_topics(timeout=10).topics
    written = [topic for topic in on_target if re.match(r"eu\.customers|mirrorlake\..*\beu\b", topic)]
    assert sorted(written) == ["eu.customers", "mirrorlake.offset-syncs.eu.internal"], "and no dead letters"
    assert not re.search("[Ss]ecret", "".join(line for topic in written for line in contents(servers[1], topic)))


def write(flow: World, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": flow.source_servers, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce("customers", value, str(number).encode(), partition=0, headers=[("seen", b"secret")])
    assert producer.flush(30) == 0


def test_region_move(servers: tuple[str, str], tmp_path: Path) -> None:
    flow = Recipe(*servers, tmp_path, recipe="region-move", alias="frankfurt", target_alias="dublin")
    kept = {"retention.ms": "86400000", "cleanup.policy": "delete", "segment.bytes": "1048576"}
    flow.create("shipments", partitions=3, config=kept)
    flow.create("parcels")
    flow.produce("shipments", 90, 3)
    flow.produce("parcels", 60)
    flow.place("parcel-desk", {("parcels", 0): 5, ("parcels", 1): 7})
    flow.mirror()
    flow.produce("parcels", 20, seed=3)  # on the evening itself, until the producers stop
    flow.mirror()
    flow.checkpoint()
    assert flow.assert_equal("shipments", "parcels") == 170
    flow.assert_goes_on("parcel-desk", "parcels")
    config = config_of(flow.target_admin, "shipments")
    assert {name: config[name] for name in kept} == kept
    assert len(flow.target_records("shipments")) == 3


def test_each_recipe_has_a_test_and_a_page_that_shows_the_file_as_it_is() -> None:
    files = sorted(RECIPES.glob("*.properties"))
    assert len(files) == 8
    for file in files:
        assert f"test_{file.stem.replace('-', '_')}" in globals()
        page = file.with_suffix(".md").read_text()
        assert f"```properties\n{file.read_text()}```" in page, file.stem
