"""Replication policies on real brokers: renamed and merged topics, and one topic on two clusters without a loop."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.mirror.job import MirrorJob, MirrorResult
from mirrorlake.jobs.mirror.topics.topics_job import keep_in_step

from tests.world import ROOT, World, config_of, configure, eventually, map_on_target, read_committed, set_config

IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}


def back(world: World) -> World:
    """Returns the flow back between the same clusters, in the same property file."""
    return World(
        world.target_servers,
        world.source_servers,
        world.directory / "back",
        world.spark,
        world.warehouse,
        alias=world.target_alias,
        target_alias=world.alias,
    )


def in_both_directions(world: World) -> tuple[World, World]:
    """Configures a flow in either direction under the identity policy, in one file."""
    world.target_alias = f"t{world.alias[1:]}"
    there = f"{world.alias}->{world.target_alias}.enabled"
    here = f"{world.target_alias}->{world.alias}.enabled"
    world.write_config(**{there: "true", here: "true", **IDENTITY})
    other = back(world)
    other.properties = {
        there: "true",
        here: "true",
        **IDENTITY,
        "topics": f"{world.alias}-.*",
        "groups": f"{world.alias}-.*",
    }
    other.write_config()
    return world, other


@pytest.fixture
def both(plain_world: World) -> tuple[World, World]:
    return in_both_directions(plain_world)


@pytest.fixture
def both_with_ledger(world: World) -> tuple[World, World]:
    return in_both_directions(world)


def create_on_target(world: World, topic: str, partitions: int) -> None:
    world.target_admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    eventually(lambda: len(world.target_admin.list_topics(topic, timeout=5).topics[topic].partitions) == partitions)


def values(servers: str, topic: str) -> dict[int, list[object]]:
    return {
        partition: [record[1] for _, record in records] for partition, records in read_committed(servers, topic).items()
    }


def test_both_sides_write_one_topic_and_each_record_is_on_both_exactly_once(both: tuple[World, World]) -> None:
    there, here = both
    topic = there.topic(partitions=2)
    create_on_target(there, topic, 2)
    for round_number in range(2):
        there.produce(topic, 150, seed=10 + round_number)
        there.produce_transactions(topic, 5, 10, seed=20 + round_number)
        here.produce(topic, 100, seed=30 + round_number)
        here.produce_transactions(topic, 5, 10, seed=40 + round_number)
        there.mirror()
        here.mirror()
    there.mirror()
    west, east = values(there.source_servers, topic), values(there.target_servers, topic)
    for partition in west:
        assert sorted(map(repr, west[partition])) == sorted(map(repr, east[partition])), (
            "the sides hold different records"
        )
    assert sum(map(len, west.values())) > 500
    assert (there.mirror().records, here.mirror().records) == (0, 0), "records go round"


def test_two_flows_that_keep_names_do_not_undo_each_others_changes_of_a_topic(both: tuple[World, World]) -> None:
    """The flow back is followed or not by whether it is open; what mirroring needs is corrected in any case."""
    there, here = both
    topic = there.topic(partitions=1, config={"retention.ms": "7200000"})
    there.produce(topic, 5, 1)
    ends = {"source": there.source_admin, "target": there.target_admin}

    def retention() -> tuple[str, str]:
        first, second = (config_of(admin, topic)["retention.ms"] for admin in ends.values())
        return first, second

    there.mirror()
    set_config(ends["source"], topic, "retention.ms", "7300000")
    there.mirror()
    assert retention() == ("7300000", "7300000"), "the flow back is enabled, and has not begun"
    here.mirror()
    set_config(ends["target"], topic, "retention.ms", "7400000")
    set_config(ends["target"], topic, "message.timestamp.type", "LogAppendTime")
    for world in (there, here, there):
        world.mirror()
        assert retention() == ("7300000", "7400000")
    assert config_of(ends["target"], topic)["message.timestamp.type"] == "CreateTime"
    for world, (first, second) in ((there, ("7300000", "7400000")), (here, ("7400000", "7300000"))):
        (said,) = {line for line in world.lines if f"configs_not_synced flow={world.flow_name} " in line}
        assert f"retention.ms differs, for example: {first} on {world.alias}, {second} on {world.target_alias}" in said
    there.write_config(**{f"{here.flow_name}.sync.topic.configs.enabled": "false"})
    there.mirror()
    assert retention() == ("7300000", "7300000"), "the topics of its source follow"


def test_a_loop_is_seen_after_the_reverse_flow_was_restarted_with_other_producers(both: tuple[World, World]) -> None:
    there, here = both
    topic = there.topic(partitions=2)
    there.produce(topic, 200)
    assert there.mirror().records == 200
    there.write_config(**{"mirrorlake.slots": "5"})  # new slots write with unknown producer ids
    there.produce(topic, 200, seed=2)
    assert there.mirror().records == 200
    assert here.mirror().records == 0
    here.produce(topic, 50, seed=3)
    assert here.mirror().records == 50


def test_only_local_records_are_mirrored_when_asked(both: tuple[World, World]) -> None:
    """A third cluster's flow would mirror the first one's records; with local records it does not."""
    there, here = both
    topic = there.topic(partitions=1)
    there.produce(topic, 100, 1)
    assert there.mirror().records == 100
    here.produce(topic, 30, 1, seed=2)
    onward = World(
        there.target_servers,
        there.source_servers,
        there.directory / "back",
        there.spark,
        there.warehouse,
        alias=f"x{there.alias[1:]}",
        target_alias=f"y{there.alias[1:]}",
        properties={"topics": f"{there.alias}-.*", "mirrorlake.records": "local"},
    )
    assert onward.mirror().records == 30
    assert sum(map(len, values(there.source_servers, onward.remote(topic)).values())) == 30


def test_groups_of_topics_that_both_sides_write_are_recorded_and_not_moved(
    both_with_ledger: tuple[World, World],
) -> None:
    there, here = both_with_ledger
    topic = there.topic(partitions=1)
    create_on_target(there, topic, 1)
    here.produce(topic, 30, 1, seed=5)
    there.produce(topic, 100, 1)
    there.mirror()
    group = there.commit("g", {(topic, 0): 40})
    there.checkpoint()
    row = there.checkpoints()[group, topic, 0]
    assert (row["downstream_offset"], row["status"], row["sync"]) == (70, "exact", "held")
    assert "other programs write to the remote topic too" in row["reason"]
    assert not there.committed(group)


def test_topics_are_renamed_and_groups_follow(world: World) -> None:
    topic = world.topic("orders.v1")
    other = world.topic("plain")
    world.write_config(
        **{"topics.rename.regex": rf"({world.alias})-orders\.(.*)", "topics.rename.replacement": "$1-purchases_$2"}
    )
    world.produce(topic, 300)
    world.produce(other, 100)
    world.mirror()
    assert world.remote(topic) == f"{world.alias}-purchases_v1"
    assert world.remote(other) == other
    assert world.assert_equal(topic, other) == 400
    group = world.commit("g", {(topic, 0): 10})
    world.checkpoint()
    assert world.committed(group) == {(f"{world.alias}-purchases_v1", 0): (10, "")}


def test_two_topics_that_a_rule_gives_one_name_are_refused_before_anything_is_created(plain_world: World) -> None:
    plain_world.topic("a.orders")
    plain_world.topic("b.orders")
    plain_world.write_config(
        **{"topics.rename.regex": r".*\.orders", "topics.rename.replacement": f"{plain_world.alias}-all"}
    )
    with pytest.raises(
        ConfigurationError,
        match=r"a\.orders and .*b\.orders would both be called .*-all .* set mirrorlake.topics.shared = true",
    ):
        plain_world.mirror()
    assert not [
        name
        for name in plain_world.target_admin.list_topics(timeout=10).topics
        if plain_world.alias in name and not name.startswith("mirrorlake.")
    ]


def test_a_topic_whose_remote_name_a_mirrored_one_has_is_left_out_also_by_a_job_that_begins(plain_world: World) -> None:
    plain_world.write_config(
        **{"topics.rename.regex": r".*\.orders", "topics.rename.replacement": f"{plain_world.alias}-all"}
    )
    mirrored = plain_world.topic("a.orders")
    for seed in range(2):
        plain_world.produce(mirrored, 20, seed=seed)
        plain_world.mirror()
        if seed == 0:
            plain_world.produce(plain_world.topic("b.orders"), 10)
    plain_world.assert_equal(mirrored)
    assert [line for line in plain_world.lines if "would both be called" in line]


def test_topics_of_two_flows_and_two_topics_of_one_are_merged_with_exact_maps(plain_world: World) -> None:
    narrow, wide = plain_world.topic("a.orders", 1), plain_world.topic("b.orders", 3)
    third = f"u{plain_world.alias[1:]}"
    plain_world.write_config(
        **{
            "clusters": f"{plain_world.alias}, {third}, t",
            f"{third}.bootstrap.servers": plain_world.source_servers,
            f"{third}->t.enabled": "true",
            "topics.rename.regex": r".*\.orders",
            "topics.rename.replacement": f"{plain_world.alias}-all",
            "mirrorlake.topics.shared": "true",
            f"{third}->t.topics": f"{third}-.*",
        }
    )
    elsewhere = f"{third}-c.orders"
    plain_world.source_admin.create_topics([NewTopic(elsewhere, 2, 1)])[elsewhere].result()
    eventually(
        lambda: len(plain_world.source_admin.list_topics(elsewhere, timeout=5).topics[elsewhere].partitions) == 2
    )
    for number in range(2):
        plain_world.produce(narrow, 200, 1, seed=number)
        plain_world.produce(wide, 300, 3, seed=10 + number)
        plain_world.produce(elsewhere, 250, 2, seed=20 + number)
        plain_world.mirror()
        assert mirror_other(plain_world, f"{third}->t").records == 250
    merged = read_committed(plain_world.target_servers, f"{plain_world.alias}-all")
    assert sorted(merged) == [0, 1, 2], "the merged topic is as wide as the widest source"
    for topic, flow in ((narrow, plain_world.flow_name), (wide, plain_world.flow_name), (elsewhere, f"{third}->t")):
        assert_map_is_true(plain_world, flow, topic, merged)
    assert sum(map(len, merged.values())) == 2 * (200 + 300 + 250)


def mirror_other(world: World, flow: str) -> MirrorResult:
    return MirrorJob(
        world.engine(),
        world.config,
        Flow.load(world.config, flow),
        world.ledger,
        ROOT / "expectations/offset_syncs.json",
    ).run(None)


def assert_map_is_true(world: World, flow: str, topic: str, merged: dict[int, list[tuple[int, object]]]) -> None:
    """Asserts that every record of a source topic is at the offset that its run maps it to."""
    records = {
        (partition, offset): record
        for partition, found in read_committed(world.source_servers, topic).items()
        for offset, record in found
    }
    at = {(partition, offset): record for partition, found in merged.items() for offset, record in found}
    said = {}
    for row in map_on_target(world.target_servers, Flow.load(world.config, flow), {topic})[0]:
        for step in range(row["records"]):
            said[row["partition"], row["upstream_start"] + step] = at[
                row["target_partition"], row["downstream_start"] + step
            ]
    assert said == records


def test_records_of_others_in_a_remote_topic_are_not_taken_for_mirrored_ones(plain_world: World) -> None:
    """Under the identity policy, existing records in the topic are refused, unless sharing is configured.

    Nothing of the topic is changed either: its retention may be all that keeps these records.
    """
    topic, mine = plain_world.topic(partitions=2, config={"retention.ms": "3600000"}), plain_world.topic("mine", 1)
    plain_world.produce(topic, 20, 2)
    plain_world.produce(mine, 10, 1)
    plain_world.write_config(**IDENTITY, **{"sync.topic.configs.interval.seconds": "1"})
    create_on_target(plain_world, topic, 1)
    create_on_target(plain_world, mine, 1)
    own = {"retention.ms": "-1", "compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
    for name in (topic, mine):
        configure(plain_world, name, own, target=True)
    back(plain_world).produce(topic, 5, 1, seed=9)

    def as_it_was() -> bool:
        config = config_of(plain_world.target_admin, topic)
        found = plain_world.target_admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == 1 and own.items() <= config.items()

    with plain_world.mirroring():
        eventually(lambda: len(plain_world.target_records(mine)[0]) == 10, what="the other topic")
        configure(plain_world, mine, {"retention.ms": "-1"}, target=True)
        eventually(lambda: config_of(plain_world.target_admin, mine)["retention.ms"] != "-1", what="a sync of configs")
        assert plain_world.metric("held_topics") == 1
    held = [row["detail"] for row in plain_world.rows("anomalies") if row["kind"] == "held"]
    assert ["holds records already" in why for why in held] == [True]
    plan = keep_in_step(plain_world.config, plain_world.flow, plain_world.ledger, dry_run=True)
    assert topic not in {change.target_topic for change in plan.outcomes}
    plain_world.write_config(topics=topic)
    with pytest.raises(TargetError, match="holds records already"):
        plain_world.mirror()
    assert as_it_was()
    plain_world.write_config(**{"mirrorlake.topics.shared": "true"})
    assert plain_world.mirror().records == 20
    assert not as_it_was()
