"""Take-over from MirrorMaker 2 on its remote topics, and hand-back: no record is lost, and none is copied again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from mirrorlake.errors import ConfigurationError, GateError, TargetError
from mirrorlake.jobs.migration.handback import hand_back
from mirrorlake.jobs.migration.takeover import Takeover, TakeoverResult
from mirrorlake.jobs.mirror.topics.topics_job import keep_in_step
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.connect_offsets import MirrorMaker
from mirrorlake.state import generation
from mirrorlake.state.closure import promoted_topics
from mirrorlake.state.offset_syncs import read_all_states

from tests.log_lines import logged
from tests.mirrormaker import mirrormaker
from tests.moving import IDENTITY, both_ways, failover
from tests.world import (
    ROOT,
    Record,
    World,
    consume_as,
    eventually,
    read_committed,
    transactional_producer,
    write_in_transaction,
)


def take_over(world: World, *, dry_run: bool = False) -> TakeoverResult:
    suite = ROOT / "expectations/takeover.json"
    return Takeover(world.spark, world.flow, world.ledger, suite).run(dry_run=dry_run)


def run_mirrormaker(world: World, *, kill: bool = False) -> Any:
    properties = {
        "topics": f"{world.alias}-.*",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
    }
    sides = (world.alias, world.source_servers), (world.target_alias, world.target_servers)
    return mirrormaker(world.directory / "mm2", *sides, properties, kill=kill)


def copy(world: World, topic: str, partition: int, records: Iterable[tuple[int, Record]], **settings: Any) -> None:
    """Appends records unchanged to the remote topic, as another mirror would."""
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": world.target_servers, "linger.ms": 5, "log_level": 0, **settings})
    for _, (key, value, headers, (_, timestamp)) in records:
        producer.produce(
            world.remote(topic),
            value,
            key,
            partition,
            headers=headers,
            timestamp=timestamp,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not refused, refused[0]


def remote_topic(world: World, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    world.target_admin.create_topics([NewTopic(world.remote(topic), partitions, 1, config=config or {})])[
        world.remote(topic)
    ].result()
    eventually(
        lambda: (
            len(world.target_admin.list_topics(world.remote(topic), timeout=5).topics[world.remote(topic)].partitions)
            == partitions
        )
    )


def test_mirrormaker_2_is_taken_over_groups_far_behind_are_exact_and_it_gets_the_flow_back(world: World) -> None:
    topic = world.topic("orders", 2)
    world.produce(topic, 300, seed=1)
    world.produce_transactions(topic, 15, 10, seed=2)
    at_target = lambda: sum(map(len, world.target_records(topic).values()))  # noqa: E731
    with run_mirrormaker(world, kill=True):  # it dies before it has committed its offsets
        everything = sum(map(len, read_committed(world.source_servers, topic).values()))
        eventually(lambda: at_target() >= everything, 120, "the first copy of MirrorMaker 2")
    world.produce(topic, 200, seed=3)
    with run_mirrormaker(world):  # and so it copies all records again
        eventually(lambda: at_target() >= 2 * everything + 200, 120, "the second copy")
        with pytest.raises(TargetError, match="MirrorMaker 2 runs"):
            take_over(world)
        world.write_config(group_id="another")  # which it reads where it runs in Connect
        with pytest.raises(TargetError, match=f"MirrorMaker 2 runs: group {world.alias}-mm2 "):
            take_over(world)
    del world.properties["group.id"]
    world.write_config()
    left = world.target_records(topic)
    world.produce(topic, 250, seed=4)  # not copied by anyone yet

    preview = take_over(world, dry_run=True)
    assert preview.generation == 0
    result = take_over(world)
    assert result.generation == 1
    assert result.findings == preview.findings
    assert result.to_json()["missing"] == result.to_json()["foreign"] == 0
    assert result.to_json()["repeated"] >= everything
    assert all(found.upstream_next == found.mirrormaker_next for found in result.findings)
    rows = [row for row in world.table("offset_syncs") if row["source"] == world.alias]
    assert rows
    assert all(row["inferred"] and row["digest"] is None for row in rows)

    world.mirror()
    source, target = world.source_records(topic), world.target_records(topic)
    for found in result.findings:  # existing records stay, and missing ones are mirrored once
        before = [record for _, record in left[found.partition]]
        new = [record for offset, record in source[found.partition] if offset >= found.upstream_next]
        assert [record for _, record in target[found.partition]] == before + new
    assert not all(
        row["inferred"] for row in [row for row in world.table("offset_syncs") if row["source"] == world.alias]
    )

    proof = Verification(world.spark, world.flow, world.ledger, ROOT / "expectations/verification.json").run(
        VerificationScope("full")
    )
    assert (proof.passed, proof.total("records")) == (True, sum(map(len, source.values()))), proof.statement()

    dice = random.Random(7)
    groups = {}
    for number in range(12):
        offsets = {(topic, partition): dice.randint(0, records[-1][0] + 1) for partition, records in source.items()}
        groups[world.commit(f"g{number}", offsets)] = offsets
    assert set(world.checkpoint().statuses) <= {"exact", "before_mirror"}
    for group, offsets in groups.items():
        got = consume_as(world.target_servers, group, [world.remote(topic)])
        for partition, records in source.items():
            committed = {
                record[1] for _, record in records if record[1]
            }  # MirrorMaker 2 has copied what was aborted, too
            unread = [record[1] for offset, record in records if offset >= offsets[topic, partition] and record[1]]
            assert [value for value in got[world.remote(topic), partition] if value in committed] == unread

    closed = hand_back(world.flow)
    assert closed.generation == 3
    assert {(one.topic, one.partition): one.mirrormaker_next for one in closed.positions} == {
        found.key: found.upstream_next for found in result.findings
    }
    world.produce(topic, 100, seed=5)
    with run_mirrormaker(world):
        whole = sum(map(len, target.values())) + 100
        eventually(lambda: at_target() >= whole, 120, "MirrorMaker 2 going on")
    for partition, records in world.target_records(topic).items():
        new = [record for offset, record in world.source_records(topic)[partition] if offset > source[partition][-1][0]]
        assert [record for _, record in records] == [record for _, record in target[partition]] + new

    with pytest.raises(ConfigurationError, match="was handed back to MirrorMaker 2"):
        world.mirror()
    before = world.target_records(topic)
    again = take_over(world)
    assert (again.generation, again.to_json()["copied"], again.to_json()["repeated"]) == (4, 100, 0)
    world.produce(topic, 50, seed=6)
    assert world.mirror().records == 50
    for partition, records in world.target_records(topic).items():
        assert [record for _, record in records[: len(before[partition])]] == [
            record for _, record in before[partition]
        ]
    end = {(topic, partition): records[-1][0] + 1 for partition, records in world.source_records(topic).items()}
    group = world.commit("late", {key: offset - 60 for key, offset in end.items()})
    world.checkpoint()
    got = consume_as(world.target_servers, group, [world.remote(topic)])
    for (_, partition), offset in end.items():
        unread = [record[1] for at, record in world.source_records(topic)[partition] if at >= offset - 60]
        assert got[world.remote(topic), partition] == unread


def test_what_another_mirror_has_lost_repeated_or_mixed_in_is_found_and_written_down(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 300, partitions=1)
    records = world.source_records(topic)[0]
    remote_topic(world, topic)
    foreign = [(0, (b"not", b"from there", None, (TIMESTAMP_CREATE_TIME, records[0][1][3][1])))]
    copy(world, topic, 0, [*records[20:100], *records[80:120], *foreign, *records[150:200], *records[180:190]])
    (found,) = take_over(world).findings
    assert (found.copied, found.repeated, found.missing, found.foreign) == (150, 30, 30, 1)
    assert found.upstream_next == records[199][0] + 1
    rows = {row["kind"]: row for row in [row for row in world.table("anomalies") if row["source"] == world.alias]}
    assert (rows["missing"]["from_offset"], rows["missing"]["to_offset"], rows["missing"]["records"]) == (
        records[120][0],
        records[149][0] + 1,
        30,
    )
    assert (rows["repeated"]["records"], rows["foreign"]["records"]) == (30, 1)
    world.mirror()
    values = [record[1] for _, record in world.target_records(topic)[0]]
    assert values[-100:] == [record[1] for _, record in records[200:]]
    groups = {at: world.commit(f"g{at}", {(topic, 0): records[at][0]}) for at in (0, 50, 90, 130, 170, 250)}
    world.checkpoint()
    log = [
        *range(20, 100),
        *range(80, 120),
        *range(150, 200),
        *range(180, 190),
        *range(200, 300),
    ]  # which record of the source each one on the target is, but for the foreign one
    for at, group in groups.items():
        first = min(copied for copied in log if copied >= at)
        begin = len(log) - 1 - log[::-1].index(first)
        read = [
            value
            for value in consume_as(world.target_servers, group, [world.remote(topic)])[world.remote(topic), 0]
            if value != b"from there"
        ]
        assert read == [records[copied][1][1] for copied in log[begin:]]


def test_a_copy_with_timestamps_of_its_own_is_recognised(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, partitions=1)
    remote_topic(world, topic, config={"message.timestamp.type": "LogAppendTime"})
    records = world.source_records(topic)[0]
    copy(world, topic, 0, records[:60])
    (found,) = take_over(world, dry_run=True).findings
    assert (found.copied, found.foreign, found.upstream_next) == (60, 0, records[59][0] + 1)


def test_where_retention_has_left_nothing_to_match_a_group_is_placed_behind_what_was_there(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, partitions=1)
    remote_topic(world, topic)
    copy(world, topic, 0, world.source_records(topic)[0][:60])
    end = world.target_records(topic)[0][-1][0] + 1
    deleted = TopicPartition(world.remote(topic), 0, end)
    world.target_admin.delete_records([deleted])[deleted].result()
    mirrormaker = MirrorMaker(world.flow, Admin(world.flow.target_connection, "target", world.flow_name))
    mirrormaker.ensure_topic()
    mirrormaker.write({(topic, 0): 60, (topic, 1): 5})
    mirrormaker.write({(topic, 1): 0})
    assert mirrormaker.positions() == {(topic, 0): 60}, "what begins at the first record has no offset"
    (found,) = take_over(world).findings
    assert (found.upstream_next, found.runs) == (60, ())
    group = world.commit("g", {(topic, 0): found.upstream_next})
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["downstream_offset"]) == ("exact", end)
    assert failover(world).lines[0].downstream_offset == end
    world.mirror()
    assert world.target_records(topic)[0][0][0] == end


def test_partitions_without_a_copy_begin_where_mirrormaker_2_would_begin(world: World) -> None:
    topic = world.topic(partitions=3)
    world.produce(topic, 60, partitions=3)
    world.write_config(**{"mirrorlake.start": "latest"})
    remote_topic(world, topic, 3)
    before = world.source_records(topic)
    copy(world, topic, 0, before[0])
    mirrormaker = MirrorMaker(world.flow, Admin(world.flow.target_connection, "target", world.flow_name))
    mirrormaker.ensure_topic()
    mirrormaker.write({(topic, 1): 5})  # its remote topic was deleted, and created anew
    world.topic("x" * (249 - len(f"{world.alias}-")), partitions=1)  # no mirror can give it a remote name
    found = {one.partition: one.upstream_next for one in take_over(world).findings}
    assert found == {0: before[0][-1][0] + 1, 1: 5}
    world.produce(topic, 30, partitions=3, seed=2)
    world.mirror()
    source, target = world.source_records(topic), world.target_records(topic)
    for partition, first in ((1, 5), (2, before[2][-1][0] + 1)):
        wanted = [record for offset, record in source[partition] if offset >= first]
        assert [record for _, record in target[partition]] == wanted


def test_a_flow_that_was_given_back_and_taken_over_without_a_record_between_keeps_its_map(world: World) -> None:
    topic = world.topic(partitions=1)
    world.mirror()
    hand_back(world.flow)
    assert take_over(world).findings == (), "nothing was mirrored"
    world.produce(topic, 50, partitions=1)
    world.mirror()
    hand_back(world.flow)
    with pytest.raises(ConfigurationError, match="was handed back to MirrorMaker 2, which has its records and groups"):
        failover(world, mode="promote", signed_by="ann", close="true")
    (found,) = take_over(world).findings
    assert found.runs == ()
    group = world.commit("g", {(topic, 0): 50})
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["downstream_offset"], row["reason"]) == ("exact", 50, None)
    assert failover(world).lines[0].blocks == ()
    world.produce(topic, 10, partitions=1, seed=2)
    world.mirror()
    world.assert_equal(topic)


def test_a_take_over_of_another_topic_leaves_promoted_ones_promoted(world: World) -> None:
    for name in ("first", "second"):
        topic = world.topic(name, 1)
        world.produce(topic, 20, partitions=1)
        remote_topic(world, topic)
        copy(world, topic, 0, world.source_records(topic)[0])
        assert [found.topic for found in take_over(world).findings] == [topic]
        if name == "first":
            failover(world, mode="promote", topics=topic, signed_by="ann", close="true")
    with closing(Cluster(world.flow.target_connection, "target", "test").connect()) as target:
        states = read_all_states(target, world.flow.offset_syncs_topic, 30_000).values()
    assert promoted_topics(states) == {f"{world.alias}-first"}


def test_what_is_no_copy_is_refused(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, partitions=1)
    remote_topic(world, topic)
    copy(world, topic, 0, [(0, (None, b"something else", None, world.source_records(topic)[0][0][1][3]))])
    with pytest.raises(TargetError, match=r"none of the 1 records of .* is in .*\. Either the remote topic is no copy"):
        take_over(world)
    assert world.flow.offset_syncs_topic not in world.target_admin.list_topics(timeout=5).topics


def test_a_target_that_grows_while_it_is_compared_is_refused(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, partitions=1)
    records = world.source_records(topic)[0]
    remote_topic(world, topic)
    copy(world, topic, 0, records[:20])

    def interfere(event: str) -> None:
        if event == "comparing_logs":
            copy(world, topic, 0, records[20:21])

    refused = r"log_end_now.*nothing was changed|nothing was changed.*log_end_now"
    with logged(interfere), pytest.raises(GateError, match=refused):
        take_over(world)
    failed = (
        world.ledger.read("expectation_results")
        .filter(f"suite = 'takeover' AND NOT success AND subject = '{world.flow_name}'")
        .count()
    )
    assert failed == 1
    assert world.flow.offset_syncs_topic not in world.target_admin.list_topics(timeout=5).topics
    assert take_over(world).generation == 1  # once it is quiet


def test_an_open_transaction_on_the_target_is_waited_for(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, partitions=1)
    remote_topic(world, topic)
    producer = transactional_producer(world.target_servers, world.alias)
    write_in_transaction(producer, world.remote(topic))
    world.write_config(**{"mirrorlake.connect.timeout.ms": "2000"})
    with pytest.raises(TargetError, match="MirrorMaker 2 still runs, or its last transaction has not timed out yet"):
        take_over(world)
    producer.abort_transaction(30)


def test_there_is_nothing_to_take_over_where_nothing_was_copied(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, partitions=1)
    assert take_over(world).to_json()["partitions"] == 0
    world.mirror()
    world.assert_equal(topic)
    assert take_over(world).to_json()["partitions"] == 0  # it is known already
    with pytest.raises(ConfigurationError, match="never been mirrored"):
        hand_back(World(world.source_servers, world.target_servers, Path(world.directory) / "other").flow)


def test_a_take_over_behind_a_mirror_job_that_was_started_first_says_what_to_do(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, partitions=1)
    remote_topic(world, topic, 1)
    copy(world, topic, 0, world.source_records(topic)[0])
    world.write_config(**{"mirrorlake.start": "latest"})
    with pytest.raises(TargetError, match="holds records already"):
        world.mirror()
    with pytest.raises(ConfigurationError, match=r"a mirror job was started before .* delete (\S+) there") as refused:
        take_over(world)
    syncs = world.flow.offset_syncs_topic
    assert syncs in str(refused.value)
    world.target_admin.delete_topics([syncs])[syncs].result()
    eventually(lambda: syncs not in world.target_admin.list_topics(timeout=5).topics)
    assert len(take_over(world).findings) == 1


def test_where_both_flows_keep_names_no_first_start_copies_again_what_mirrormaker_2_has_copied(world: World) -> None:
    home = both_ways(world, **IDENTITY)
    enabled = f"{home.flow_name}.enabled"
    topic = world.topic(partitions=1)
    world.produce(topic, 40, partitions=1)
    remote_topic(world, topic)
    copy(world, topic, 0, world.source_records(topic)[0])
    mirrormaker = MirrorMaker(world.flow, Admin(world.flow.target_connection, "target", world.flow_name))
    mirrormaker.ensure_topic()
    mirrormaker.write({(topic, 0): 40})
    refused = f"MirrorMaker 2 has copied topic {topic} .*{home.flow_name}.enabled = false"
    for start in (world.mirror, lambda: keep_in_step(world.config, world.flow, world.ledger, dry_run=True)):
        with pytest.raises(ConfigurationError, match=refused):
            start()
    assert world.flow.offset_syncs_topic not in world.target_admin.list_topics(timeout=5).topics
    with pytest.raises(ConfigurationError, match=f"the default, as {home.flow_name} is enabled"):
        take_over(world)

    world.write_config(**{enabled: "false"})
    assert take_over(world).to_json()["copied"] == 40
    world.write_config(**{enabled: "true"})
    world.produce(topic, 10, partitions=1, seed=2)
    assert world.mirror().records == 10
    assert world.mirror().records == 0, "from here on, the first states alone tell of the take-over"

    told = f"flow {world.flow_name} was taken over from MirrorMaker 2.*{home.flow_name}.mirrorlake.start to a time"
    with pytest.raises(ConfigurationError, match=told):
        home.mirror()
    assert home.flow.offset_syncs_topic not in home.target_admin.list_topics(timeout=5).topics
    home.produce(topic, 5, partitions=1, seed=3)
    home.write_config(**{f"mirrorlake.start.topic.{topic}": "0:40"})
    assert home.mirror().records == 5
    assert [record for _, record in world.source_records(topic)[0]] == [
        record for _, record in world.target_records(topic)[0]
    ]


def test_a_flow_that_was_given_back_is_not_mirrored(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 50, partitions=1)
    plain_world.mirror()
    hand_back(plain_world.flow)
    plain_world.produce(topic, 50, partitions=1, seed=2)
    with pytest.raises(ConfigurationError, match="was handed back to MirrorMaker 2"):
        plain_world.mirror()
    with closing(Cluster(plain_world.flow.target_connection, "target", "tests", 10_000)) as target:
        target.connect()
        with pytest.raises(ConfigurationError, match="was handed back to MirrorMaker 2"):  # one that had looked before
            generation.begin_again(plain_world.flow, target, generation.Beginning())
    assert len(plain_world.target_records(topic)[0]) == 50


def test_a_flow_that_mirrormaker_2_can_not_go_on_with_is_not_given_back(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 20, partitions=1)
    plain_world.mirror()
    as_it_is = dict(plain_world.properties)
    for changes, why in (
        (
            {
                "mirrorlake.transforms": "t",
                "mirrorlake.transform.t.topics": topic,
                "mirrorlake.transform.t.value": "key",
            },
            "has transform t,",
        ),
        ({"mirrorlake.records": "local"}, "leaves out records that other flows have brought"),
    ):
        plain_world.write_config(**changes)
        with pytest.raises(ConfigurationError, match=why):
            hand_back(plain_world.flow)
        plain_world.properties = dict(as_it_is)
        plain_world.write_config()
    plain_world.mirror()
    assert hand_back(plain_world.flow).positions[0].upstream_next == 20


def test_a_takeover_that_died_half_way_is_completed_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, idle = world.topic(partitions=2), world.topic("idle", 4)
    world.write_config(**{"mirrorlake.start": "latest"})
    world.produce(idle, 40)
    world.produce(topic, 200, partitions=2)
    remote_topic(world, topic, 2)
    source = world.source_records(topic)
    for partition, records in source.items():
        copy(world, topic, partition, records[:50])
    real = generation.transaction.end_all

    def die_after_the_first(target: Any, producers: Any, **options: Any) -> Any:
        real(target, producers[:1], **options)
        raise RuntimeError("killed")

    monkeypatch.setattr(generation.transaction, "end_all", die_after_the_first)
    with pytest.raises(RuntimeError, match="killed"):
        take_over(world)
    monkeypatch.undo()
    assert world.mirror().records == 0
    assert any("topic_held" in line and "holds records already" in line for line in world.lines)
    assert len(take_over(world).findings) == 1
    world.mirror()
    assert not any(world.target_records(idle).values()), "its starts are known"
    groups = {at: world.commit(f"g{at}", {(topic, partition): at for partition in source}) for at in (0, 7, 49, 51)}
    world.checkpoint()
    for at, group in groups.items():
        for partition, records in source.items():
            read = consume_as(world.target_servers, group, [world.remote(topic)])[world.remote(topic), partition]
            assert read == [record[1] for offset, record in records if offset >= at]
