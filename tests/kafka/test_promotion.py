"""Single topics are promoted on real brokers: their groups move, only they are closed, and they come home."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import ConfigurationError
from mirrorlake.jobs.migration.handback import hand_back
from mirrorlake.jobs.verification.completeness import CountScope
from mirrorlake.jobs.verification.counting import Counting
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope

from tests.moving import IDENTITY, both_ways, failback, failover, texts
from tests.world import ROOT, World, consume_as


def write(servers: str, topic: str, name: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(records):
        producer.produce(topic, f"{name}{number}", partition=0)
    assert producer.flush(30) == 0


def number_of(records: dict[int, list[object]]) -> int:
    return sum(map(len, records.values()))


def test_a_topic_is_promoted_by_itself_and_the_rest_of_the_flow_goes_on(world: World) -> None:
    world.write_config(**{"mirrorlake.slots": "1"})  # no other slot remembers what its last state forgets
    orders, audit = world.topic("orders", 1), world.topic("audit", 1)
    for topic in (orders, audit):
        write(world.source_servers, topic, "a", 60)
    movers, stayers = world.commit("movers", {(orders, 0): 30}), world.commit("stayers", {(audit, 0): 40})
    world.mirror()
    with pytest.raises(ConfigurationError, match="parameter topics names no topic of the flow"):
        failover(world, topics="elsewhere")

    write(world.source_servers, orders, "late", 5)  # a promotion drains first
    done = failover(world, mode="promote", topics=orders, signed_by="ann")

    assert [(line.group_id, line.topic, line.outcome) for line in done.lines] == [(movers, orders, "committed")]
    assert done.drained == 5
    assert world.committed(movers) == {(world.remote(orders), 0): (30, "")}
    # Both are written on both sides; the flow goes on with one of them only.
    for topic in (orders, audit):
        write(world.source_servers, topic, "after", 10)
    write(world.target_servers, world.remote(orders), "b", 7)
    assert world.mirror().records == 10
    assert number_of(world.target_records(orders)) == 65 + 7
    assert number_of(world.target_records(audit)) == 70
    assert f"topics_promoted flow={world.flow_name} topics={orders} " in "".join(world.lines)
    world.commit("movers", {(orders, 0): 75})
    world.commit("stayers", {(audit, 0): 65})
    world.checkpoint()
    rows = world.checkpoints()
    assert (rows[movers, orders, 0]["status"], rows[movers, orders, 0]["sync"]) == ("not_covered", None)
    assert rows[movers, orders, 0]["reason"].startswith("the topic was promoted")
    assert rows[stayers, audit, 0]["sync"] == "committed"
    assert world.committed(movers) == {(world.remote(orders), 0): (30, "")}
    (place,) = (offset for offset, record in world.target_records(audit)[0] if record[1] == b"after5")
    assert world.committed(stayers) == {(world.remote(audit), 0): (place, "")}
    # Another promotion adds to the first one, and the plan of the whole flow leaves out what is done.
    assert {line.topic for line in failover(world).lines} == {audit}
    verified = Verification(world.spark, world.flow, world.ledger, ROOT / "expectations/verification.json").run(
        VerificationScope.parse("full", max_lateness_seconds="0")
    )
    assert {one.topic: (one.row()["status"], one.records) for one in verified.partitions} == {
        orders: ("not_covered", 0),
        audit: ("equal", 70),
    }
    assert verified.passed
    counted = Counting(world.spark, world.flow, world.ledger, ROOT / "expectations/counts.json").run(CountScope(0))
    assert {one.topic for one in counted.topics} == {audit}
    failover(world, mode="promote", topics=audit, signed_by="ann")
    write(world.source_servers, audit, "after", 3)
    write(world.source_servers, orders, "after", 3)
    assert world.mirror().records == 0
    with pytest.raises(ConfigurationError, match="was promoted, and MirrorMaker 2 would copy records onto it"):
        hand_back(world.flow)


def test_a_promoted_topic_comes_home_by_a_promotion_on_the_flow_back(world: World) -> None:
    home = both_ways(world, **IDENTITY)
    orders, audit = world.topic("orders", 1), world.topic("audit", 1)
    for topic in (orders, audit):
        write(world.source_servers, topic, "a", 40)
    group = world.commit("readers", {(orders, 0): 25})
    world.mirror()
    home.mirror()
    failover(world, mode="promote", topics=orders, signed_by="ann")

    assert world.committed(group)[orders, 0] == (25, "")
    read = consume_as(world.target_servers, group, [orders])[orders, 0]
    assert [value.decode() for value in read] == [f"a{number}" for number in range(25, 40)]
    write(world.target_servers, orders, "b", 20)
    at = number_of(world.target_records(orders))
    world.commit(group, {(orders, 0): world.target_records(orders)[0][49][0]}, target=True)  # it has read b0 to b8
    write(world.source_servers, audit, "more", 5)
    assert world.mirror().records == 5
    assert home.mirror().records == 20

    back = failover(home, mode="promote", topics=orders, signed_by="ann")

    assert [(line.group_id, line.outcome) for line in back.lines] == [(group, "committed")]
    read = consume_as(world.source_servers, group, [orders])[orders, 0]
    assert [value.decode() for value in read] == [f"b{number}" for number in range(9, 20)]
    write(world.source_servers, orders, "home", 8)
    assert world.mirror().records == 8, "the topic is open again"
    assert number_of(world.target_records(orders)) == at + 8
    write(world.target_servers, orders, "not-carried", 1)
    assert home.mirror().records == 0, "on the flow back, it is closed"
    assert texts(world.source_records(orders))[0] == texts(world.target_records(orders))[0][:-1]

    failover(world, mode="promote", signed_by="ann")  # all of it, and home again, with the topic
    write(world.target_servers, orders, "late", 3)
    failback(world, mode="begin", signed_by="ann")
    assert home.mirror().records == 4
    failback(world, mode="run", signed_by="ann")
    assert texts(world.source_records(orders))[0] == texts(world.target_records(orders))[0]
