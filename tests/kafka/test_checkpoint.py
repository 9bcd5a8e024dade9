"""The checkpoint job on real brokers: groups continue exactly at their positions, and no other group is moved."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from mirrorlake.errors import ConfigurationError, GateError, LedgerError, TargetError
from mirrorlake.jobs.failover.job import close
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.recent_runs import RecentRuns
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.group_offsets import group_offsets
from mirrorlake.state import offset_syncs
from mirrorlake.translation import group_cache, live_map
from mirrorlake.translation.sql_join import MIRRORED, POSITIONS, Mirrored, translate

from tests.moving import failover
from tests.world import ROOT, World, consume_as, eventually


def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the runs in memory answer nothing, so that the ledger translates every position."""
    monkeypatch.setattr(RecentRuns, "near", lambda *_: None)


def test_groups_at_random_positions_read_exactly_what_they_had_not_read_by_the_runs_in_memory_as_by_the_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic("ledger", 3)
    for seed in range(4):
        world.produce_transactions(topic, 12, 12, 3, seed)
        world.produce(topic, 100, 3, seed=100 + seed)
        world.mirror()
    source = world.source_records(topic)
    dice = random.Random(11)
    groups = {}
    for number in range(40):
        offsets = {(topic, partition): dice.randint(0, records[-1][0] + 1) for partition, records in source.items()}
        groups[world.commit(f"g{number}", offsets)] = offsets
    result = world.checkpoint()
    assert result.statuses.keys() <= {"exact", "before_mirror"}
    skipped = again = compared = 0
    for group, offsets in groups.items():
        got = consume_as(world.target_servers, group, [world.remote(topic)])
        for partition, records in source.items():
            unread = [record[1] for offset, record in records if offset >= offsets[topic, partition]]
            read = got[world.remote(topic), partition]
            skipped, again, compared = (
                skipped + max(0, len(unread) - len(read)),
                again + max(0, len(read) - len(unread)),
                compared + len(unread),
            )
            assert read == unread
    assert (skipped, again) == (0, 0)
    assert compared > 1_000
    nothing_at_hand(monkeypatch)
    by_ledger = world.checkpoint()
    assert (by_ledger.rows, by_ledger.statuses) == (0, result.statuses), "the ledger gives other places"


def test_every_status_says_what_it_means(world: World) -> None:
    topic, other = world.topic(partitions=2), "unrelated-" + world.alias
    world.source_admin.create_topics([NewTopic(other, 1, 1)])[other].result()
    world.produce(topic, 200, 1)
    world.mirror()
    end = len(world.source_records(topic)[0])
    world.produce(topic, 100, 1, seed=2)  # not mirrored yet
    group = world.commit("all", {(topic, 0): end // 2, (topic, 1): 0, (other, 0): 0})
    at_end, ahead, beyond = (
        world.commit(name, {(topic, 0): offset})
        for name, offset in (("end", end), ("ahead", end + 50), ("beyond", end + 100))
    )
    world.checkpoint()
    rows = world.checkpoints()

    def says(group: str, topic: str = topic, partition: int = 0) -> tuple[object, ...]:
        row = rows[group, topic, partition]
        return row["status"], row["downstream_offset"], row["source_lag"], row["sync"]

    assert says(group) == ("exact", end // 2, end + 100 - end // 2, "committed")
    assert says(group, partition=1) == ("exact", 0, 0, "committed")  # an empty partition: its start
    assert says(group, other) == ("not_mirrored", None, None, None)
    assert says(at_end) == ("exact", end, 100, "committed")
    assert says(ahead) == ("clamped", end, 50, "committed")
    assert says(beyond) == ("clamped", end, 0, "committed")
    counted = {"clamped": 2, "exact": 3, "not_mirrored": 1}
    assert {name: world.metric("checkpoint_positions", status=name) for name in counted} == counted
    assert world.metric("checkpoint_positions", status="deleted") == 0
    assert world.metric("checkpoint_synced_positions", status="committed") == 5
    assert "positions=6 status_clamped=2 status_exact=3 status_not_mirrored=1 sync_committed=5 " in "".join(world.lines)
    world.mirror()
    world.checkpoint()
    rows = world.checkpoints()
    assert rows[ahead, topic, 0]["status"] == "exact"
    downstream = {
        offset: target
        for (offset, _), (target, _) in zip(world.source_records(topic)[0], world.target_records(topic)[0], strict=True)
    }
    assert world.committed(ahead)[world.remote(topic), 0][0] == downstream[end + 50]
    assert world.committed(beyond)[world.remote(topic), 0][0] == downstream[end + 99] + 1


def test_a_group_waits_for_a_remote_topic_and_others_go_on(world: World) -> None:
    topic, gone = world.topic(partitions=1), world.topic("gone", 1)
    for name in (topic, gone):
        world.produce(name, 50, 1)
    world.mirror()
    new = world.topic("new", 1)  # from here on, the mirror job is late
    world.produce(new, 50, 1)
    foreign = world.topic("foreign", 1)
    world.target_admin.create_topics([NewTopic(world.remote(foreign), 1, 1)])[world.remote(foreign)].result()
    producer = Producer({"bootstrap.servers": world.target_servers})
    producer.produce(world.remote(foreign), b"of another mirror")
    assert producer.flush(30) == 0
    world.source_admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    world.produce(topic, 50, 2, seed=2)
    world.target_admin.delete_topics([world.remote(gone)])[world.remote(gone)].result()
    eventually(lambda: world.remote(gone) not in world.target_admin.list_topics(timeout=5).topics)
    waits = world.commit("waits", {(topic, 0): 10, (topic, 1): 5, (new, 0): 7})
    foreign_too = world.commit("foreign", {(foreign, 0): 0})
    refused, goes_on = world.commit("refused", {(gone, 0): 20}), world.commit("goes-on", {(topic, 0): 30})
    result = world.checkpoint()
    assert result.statuses == {"exact": 3, "not_mirrored_yet": 3}
    rows = world.checkpoints()
    for key in ((waits, topic, 1), (waits, new, 0)):
        assert (rows[key]["status"], rows[key]["downstream_offset"], rows[key]["sync"]) == (
            "not_mirrored_yet",
            None,
            "waiting",
        )
        assert "does not exist yet" in rows[key]["reason"]
    assert "the mirror job has not begun it" in rows[foreign_too, foreign, 0]["reason"]
    assert world.committed(foreign_too) == {}, "nothing says that the group has not read the record there"
    (planned,) = [one for one in failover(world).lines if one.group_id == foreign_too]
    assert (planned.status, planned.downstream_offset) == ("not_mirrored_yet", None)
    assert rows[refused, gone, 0]["sync"] == "refused"
    assert world.committed(waits)[world.remote(topic), 0][0] == 10
    assert world.committed(goes_on)[world.remote(topic), 0][0] == 30

    world.write_config(**{"mirrorlake.on.loss": "continue"})  # of the deleted remote topic
    world.mirror()
    world.checkpoint()
    assert {place: at for place, (at, _) in world.committed(waits).items()} == {
        (world.remote(topic), 0): 10,
        (world.remote(topic), 1): 5,
        (world.remote(new), 0): 7,
    }


def test_a_ledger_that_is_behind_the_mirror_is_made_up_for_by_the_offset_syncs_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_at_hand(monkeypatch)
    topic = world.topic(partitions=1)
    for seed in range(3):
        world.produce(topic, 100, 1, seed=seed)
        world.mirror()
    source, target = world.source_records(topic)[0], world.target_records(topic)[0]
    inside, behind = world.commit("inside", {(topic, 0): 50}), world.commit("behind", {(topic, 0): 250})
    table = world.ledger.table("offset_syncs")
    world.spark.sql(
        f"DELETE FROM {table} WHERE source = '{world.alias}' AND upstream_start >= 100"
    )  # as if its stream were late
    world.checkpoint()
    assert {group: world.checkpoints()[group, topic, 0]["status"] for group in (inside, behind)} == dict.fromkeys(
        (inside, behind), "exact"
    )
    world.spark.sql(f"DELETE FROM {table} WHERE source = '{world.alias}'")
    other = world.commit("other", {(topic, 0): 150})
    world.checkpoint()
    assert {group: world.committed(group)[world.remote(topic), 0][0] for group in (inside, behind, other)} == {
        inside: target[50][0],
        behind: target[250][0],
        other: target[150][0],
    }
    assert consume_as(world.target_servers, behind, [world.remote(topic)])[world.remote(topic), 0] == [
        record[1] for _, record in source[250:]
    ]


def test_the_map_of_now_is_whole_wherever_the_ledger_ends_and_though_it_is_emptied_meanwhile(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    for seed in (1, 2):
        world.produce_transactions(topic, 5, 10, 1, seed)
        world.mirror()
    source, target = world.source_records(topic)[0], world.target_records(topic)[0]
    end = source[-1][0] + 1
    row = Mirrored(topic, 0, world.remote(topic), 0, end, end, target[-1][0] + 1)
    mirrored = world.spark.createDataFrame([row], MIRRORED)
    positions = world.spark.createDataFrame([("g", topic, 0, offset, "") for offset in range(end)], POSITIONS)
    expected = {
        offset: next(copy for (at, _), (copy, _) in zip(source, target, strict=True) if at >= offset)
        for offset in range(end)
    }
    table = world.ledger.table("offset_syncs")
    newest = world.spark.sql(f"SELECT max(sync_offset) FROM {table} WHERE source = '{world.alias}'").first()[0]
    cluster = Cluster(world.flow.target_connection, "target", "test").connect()
    try:
        flow_map = live_map.LiveMap(world.ledger, world.flow, cluster)
        for gone in ("false", f"sync_offset = {newest}", "true"):
            world.spark.sql(f"DELETE FROM {table} WHERE source = '{world.alias}' AND {gone}")
            now = flow_map.read(world.spark)
            found = translate(positions, now.runs, now.gaps, mirrored).collect()
            assert {row["upstream_offset"]: row["downstream_offset"] for row in found} == expected
            assert len(found) == end
            assert {row["status"] for row in found} == {"exact"}
    finally:
        cluster.close()


def test_a_ledger_that_knows_more_than_the_topic_holds_is_of_another_topic_and_translates_nothing(world: World) -> None:
    world.produce(world.topic(partitions=1), 50, 1)
    world.mirror()
    world.spark.sql(
        f"UPDATE {world.ledger.table('offset_syncs')} SET sync_offset = sync_offset + 1000 WHERE source = "
        f"'{world.alias}'"
    )
    cluster = Cluster(world.flow.target_connection, "target", "test").connect()
    try:
        with pytest.raises(
            LedgerError,
            match=r"has offset 100\d of mirrorlake.offset-syncs.*, which ends at \d+: the topic was created anew",
        ):
            live_map.LiveMap(world.ledger, world.flow, cluster).read(world.spark)
    finally:
        cluster.close()


def test_a_flow_that_is_begun_anew_on_the_tables_of_the_former_one_is_refused_before_anything_is_created(
    world: World,
) -> None:
    """Its map would be that of the former topic, and groups would be moved by it."""
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    assert world.rows("offset_syncs")
    gone = [world.flow.offset_syncs_topic, world.remote(topic)]
    for future in world.target_admin.delete_topics(gone).values():
        future.result()
    eventually(lambda: not {*gone} & {*world.target_admin.list_topics(timeout=5).topics})
    with pytest.raises(ConfigurationError, match="They are the map of an earlier topic, and groups would be moved"):
        world.mirror()
    assert not {*gone} & {*world.target_admin.list_topics(timeout=5).topics}
    for name in ("offset_syncs", "gaps"):
        world.spark.sql(f"DELETE FROM {world.ledger.table(name)} WHERE source = '{world.alias}'")
    assert world.mirror().records == 50
    group = world.commit("g", {(topic, 0): 30})
    world.checkpoint()
    assert world.checkpoints()[group, topic, 0]["downstream_offset"] == 30


def test_a_write_of_the_ledger_that_fails_once_ends_no_checkpoint_job_and_loses_no_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.write_config(**{"sync.group.offsets.interval.seconds": "600"})
    world.mirror()
    group, failures = world.commit("g", {(topic, 0): 20}), iter([LedgerError("the object store is away")])
    honest = Ledger.append

    def append(ledger: Ledger, name: str, rows: Any) -> None:
        if name == "checkpoints" and (error := next(failures, None)):
            raise error
        honest(ledger, name, rows)

    monkeypatch.setattr(Ledger, "append", append)
    with world.checkpointing():
        eventually(lambda: (group, topic, 0) in world.checkpoints())
    assert next(failures, None) is None
    row = world.checkpoints()[group, topic, 0]
    assert (row["sync"], row["downstream_offset"]) == ("in_step", 20), "not waiting: it was moved"
    assert world.committed(group) == {(world.remote(topic), 0): (20, "")}


def test_the_ledger_is_asked_once_about_a_group_that_stands_far_back_and_never_about_one_near_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=2)
    world.produce_transactions(topic, 20, 10, 1, aborted=0.0)
    world.write_config(**{"mirrorlake.batch.max.records": "20"})  # a state for each few records
    world.mirror()
    monkeypatch.setattr(offset_syncs, "AT_FIRST", 0)  # a job reads only the newest one when it starts
    asked: list[set[int]] = []
    honest = group_cache.translate

    def noted(positions: Any, *frames: Any) -> Any:
        asked.append({row["upstream_offset"] for row in positions.collect()})
        return honest(positions, *frames)

    monkeypatch.setattr(group_cache, "translate", noted)
    cluster = Cluster(world.flow.target_connection, "target", "test").connect()
    try:
        translation = group_cache.GroupTranslation(world.ledger.ensure_tables(), world.flow, cluster)

        def places(*offsets: int) -> list[int]:
            """Returns the target offsets of groups at these offsets; one also has a position in the empty partition."""
            end = world.source_records(topic)[0][-1][0] + 2
            logs = [
                {"topic": topic, "partition": partition, "topic_id": "", "log_start": 0, "log_end": log_end}
                for partition, log_end in enumerate((end, 0))
            ]
            at = [(0, offset) for offset in offsets] + [(1, 0)]
            positions = [
                {"group_id": "g", "topic": topic, "partition": partition, "upstream_offset": offset, "metadata": ""}
                for partition, offset in at
            ]
            found = {
                (row["partition"], row["upstream_offset"]): row
                for row in translation.translate(world.spark, positions, logs)
            }
            assert {row["status"] for row in found.values()} == {"exact"}
            assert found[1, 0]["downstream_offset"] == 0
            return [found[0, offset]["downstream_offset"] for offset in offsets]

        source, target = world.source_records(topic)[0], world.target_records(topic)[0]
        first, second, last, later = source[5][0], source[30][0], source[-1][0], len(source)
        assert places(first, last) == [target[5][0], target[-1][0]]
        assert places(first, last) == [target[5][0], target[-1][0]]
        assert asked == [{first, 0}]
        world.produce_transactions(topic, 3, 10, 1, seed=1, aborted=0.0)
        world.mirror()  # a new generation: cached positions are translated again, once
        source, target = world.source_records(topic)[0], world.target_records(topic)[0]
        for _ in range(2):
            assert places(first, last, source[later][0]) == [target[5][0], target[later - 1][0], target[later][0]]
        assert places(second, last, source[-1][0]) == [target[30][0], target[later - 1][0], target[-1][0]]
        assert asked[1:] == [{first, 0}, {second}]
    finally:
        cluster.close()


def test_new_states_are_all_read_though_a_read_fails_half_way_and_a_topic_created_anew_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, 50)
    world.mirror()
    flow = world.flow
    target = Cluster(flow.target_connection, "target", "test").connect()
    try:
        reader = offset_syncs.NewStates(target, flow.offset_syncs_topic, 10_000)
        _, is_continued = reader.read()
        assert not is_continued
        world.produce(topic, 50, seed=2)
        world.mirror()
        honest, calls = offset_syncs.committed_values_async, []

        async def failing(*given: Any, **named: Any) -> Any:
            calls.append(given)
            if len(calls) == 2:
                raise TargetError("the leader is away", retriable=True)
            return await honest(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(offset_syncs, "committed_values_async", failing)
            with pytest.raises(TargetError):
                reader.read()
        states, is_continued = reader.read()
        assert is_continued
        assert sorted((state.slot, state.generation, bool(state.runs)) for state in states) == [
            (0, 2, False),
            (0, 2, True),
            (1, 2, False),
            (1, 2, True),
        ]
        assert reader.read() == ([], True)
        ends = target.offsets([(flow.offset_syncs_topic, 0)], LATEST_TIMESTAMP, 10_000)
        world.target_admin.delete_topics([flow.offset_syncs_topic])[flow.offset_syncs_topic].result()
        eventually(lambda: flow.offset_syncs_topic not in world.target_admin.list_topics(timeout=10).topics)
        world.target_admin.create_topics([NewTopic(flow.offset_syncs_topic, 1, 1)])[flow.offset_syncs_topic].result()
        eventually(lambda: target.refresh([flow.offset_syncs_topic], 10_000)[flow.offset_syncs_topic].partitions == 1)
        producer = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
        for _ in range(ends[flow.offset_syncs_topic, 0] + 5):  # longer than it was
            producer.produce(flow.offset_syncs_topic, states[0].to_json(), b"slot-0", partition=0)
        assert producer.flush(30) == 0
        again, is_continued = reader.read()
        assert not is_continued
        assert again
    finally:
        target.close()


def test_a_group_before_the_first_run_starts_with_it(world: World) -> None:
    from confluent_kafka import TopicPartition

    topic = world.topic(partitions=1)
    producer_batches = {"batch.num.messages": 10}
    world.produce(topic, 100, 1, **producer_batches)
    boundary = 50
    for future in world.source_admin.delete_records([TopicPartition(topic, 0, boundary)]).values():
        future.result()
    group = world.commit("early", {(topic, 0): 3})
    world.mirror()
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["downstream_offset"]) == ("before_mirror", 0)
    assert len(consume_as(world.target_servers, group, [world.remote(topic)])[world.remote(topic), 0]) == 50


def test_the_committed_metadata_string_is_kept(spark_world: World) -> None:
    topic = spark_world.topic(partitions=1)
    spark_world.produce(topic, 20, 1)
    spark_world.mirror()
    group = spark_world.commit("annotated", {(topic, 0): 7}, metadata='{"by": "éric"}')
    spark_world.checkpoint()
    assert spark_world.committed(group) == {(spark_world.remote(topic), 0): (7, '{"by": "éric"}')}
    # Byte for byte, with the NUL that confluent-kafka's admin client ends it with and its consumer does not show.
    clusters = [
        Cluster(connection, "source", "test").connect()
        for connection in (spark_world.flow.source_connection, spark_world.flow.target_connection)
    ]
    here, there = (
        [position.metadata for position in group_offsets(cluster, [group], 10_000)[group]] for cluster in clusters
    )
    assert here == there == [spark_world.checkpoints()[group, topic, 0]["metadata"]]


def test_a_group_is_never_moved_back_unless_its_owner_moved_it_back(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    remote = (world.remote(topic), 0)
    group = world.commit("rewound", {(topic, 0): 80})
    ahead = world.commit("ahead", {(topic, 0): 10})
    world.commit(ahead, {remote: 60}, target=True)
    world.checkpoint()
    assert world.committed(group)[remote][0] == 80
    assert world.committed(ahead)[remote][0] == 60, "a group that is ahead on the target was moved back"
    assert world.checkpoints()[ahead, topic, 0]["sync"] == "held"
    world.commit(group, {(topic, 0): 30})
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert world.committed(group)[remote][0] == 30
    assert (row["sync"], row["target_offset"]) == ("committed", 80)
    assert "its owner moved the group back on the source, from 80 to 30" in row["reason"]
    world.commit(group, {remote: 90}, target=True)  # another client has moved it on the target since
    world.commit(group, {(topic, 0): 20})
    world.checkpoint()
    assert world.committed(group)[remote][0] == 90
    assert world.checkpoints()[group, topic, 0]["sync"] == "held"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_somebody_uses_on_the_target_is_not_touched(world: World, protocol: str) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    group = world.commit("busy", {(topic, 0): 40})
    member = Consumer(
        {
            "bootstrap.servers": world.target_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        member.subscribe([world.remote(topic)])
        eventually(lambda: member.poll(0.5) is not None, what="the member's first record")
        world.checkpoint()
        row = world.checkpoints()[group, topic, 0]
        assert (row["status"], row["downstream_offset"], row["sync"]) == ("exact", 40, "held")
        assert "a consumer uses this group" in row["reason"]
        assert world.committed(group) == {}
    finally:
        member.close()
    world.checkpoint()
    assert world.committed(group)[world.remote(topic), 0][0] == 40


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_with_members_of_either_protocol_are_translated(spark_world: World, protocol: str) -> None:
    topic = spark_world.topic(partitions=1)
    spark_world.produce(topic, 60, 1)
    spark_world.mirror()
    group = f"{spark_world.alias}-{protocol}"
    member = Consumer(
        {
            "bootstrap.servers": spark_world.source_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        member.subscribe([topic])
        read = 0
        deadline = time.monotonic() + 60
        while read < 25 and time.monotonic() < deadline:
            message = member.poll(0.5)
            if message is not None and message.error() is None:
                read += 1
                member.commit(message, asynchronous=False)
        assert read == 25
        spark_world.checkpoint()
    finally:
        member.close()
    assert spark_world.committed(group)[spark_world.remote(topic), 0][0] == 25


def test_a_deleted_group_gets_a_last_row_and_stays_on_the_target(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.mirror()
    group = world.commit("mortal", {(topic, 0): 5})
    world.checkpoint()
    world.source_admin.delete_consumer_groups([group])[group].result()
    world.checkpoint()
    world.checkpoint()
    rows = [row for row in world.table("checkpoints") if row["group_id"] == group]
    assert [row["status"] for row in sorted(rows, key=lambda row: row["created_at"])] == ["exact", "deleted"]
    assert world.committed(group)[world.remote(topic), 0][0] == 5
    world.commit(group, {(topic, 0): 9})
    world.checkpoint()
    assert world.committed(group)[world.remote(topic), 0][0] == 9, "a group that came back was not followed"


def test_what_ends_on_the_source_ends_in_the_next_cycle_and_no_failover_moves_it(world: World) -> None:
    topic, other = world.topic(partitions=1), world.topic("other", 1)
    for name in (topic, other):
        world.produce(name, 20, 1)
    world.mirror()
    group, stays = world.commit("g", {(topic, 0): 5, (other, 0): 7}), world.commit("stays", {(topic, 0): 3})

    def status(*key: Any) -> str | None:
        row = world.checkpoints().get(key)
        return row and row["status"]

    with world.checkpointing():
        eventually(lambda: status(group, other, 0) == "exact")
        world.source_admin.delete_topics([other])[other].result()  # and with it the group's offset
        eventually(lambda: status(group, other, 0) == "deleted")
        assert status(group, topic, 0) == "exact"
        assert {(one.group_id, one.topic) for one in failover(world, source="dead").lines} == {
            (group, topic),
            (stays, topic),
        }
        world.source_admin.delete_consumer_groups([group])[group].result()
        eventually(lambda: status(group, None, None) == "deleted")  # though groups are listed every ten minutes only
    rows = [row for row in world.table("checkpoints") if row["group_id"] == group and row["status"] == "deleted"]
    assert len(rows) == 2
    assert [one.group_id for one in failover(world, source="dead").lines] == [stays]


def test_history_has_a_row_only_when_something_changed(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.mirror()
    group = world.commit("steady", {(topic, 0): 5})
    for offset in (5, 5, 8, 8):
        world.commit(group, {(topic, 0): offset})
        world.checkpoint()
    rows = [
        row for row in sorted(world.table("checkpoints"), key=lambda row: row["created_at"]) if row["group_id"] == group
    ]
    assert [row["upstream_offset"] for row in rows] == [5, 8]


def test_nothing_is_committed_while_sync_is_off(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.write_config(**{"sync.group.offsets.enabled": "false"})
    world.mirror()
    group = world.commit("watched", {(topic, 0): 5})
    assert world.checkpoint().syncs == {"off": 1}
    assert world.committed(group) == {}


def test_groups_are_synced_at_an_interval_of_their_own_and_recorded_in_every_cycle(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    world.write_config(**{"sync.group.offsets.interval.seconds": "3600"})
    group = world.commit("slow", {(topic, 0): 10})
    with world.checkpointing(interval_s=0.5):
        eventually(lambda: world.committed(group)[world.remote(topic), 0][0] == 10, what="the first sync")
        world.commit(group, {(topic, 0): 40})
        row = eventually(
            lambda: (row := world.checkpoints()[group, topic, 0])["upstream_offset"] == 40 and row,
            what="a row of the new position",
        )
        assert (row["downstream_offset"], row["sync"]) == (40, "waiting")
        assert world.committed(group)[world.remote(topic), 0][0] == 10
    world.checkpoint()  # the first cycle of a job syncs
    assert world.committed(group)[world.remote(topic), 0][0] == 40
    world.commit(group, {(topic, 0): 20})
    world.checkpoint()
    assert world.committed(group)[world.remote(topic), 0][0] == 20, (
        "its owner moved it back, from where it was last in step"
    )


def test_a_flow_that_is_failed_over_while_its_checkpoint_job_runs_moves_no_group_any_more(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    group, remote = world.commit("moved", {(topic, 0): 10}), (world.remote(topic), 0)
    stops = pytest.raises(ConfigurationError, match=r"was failed over .* moves none of them any more")
    with stops, world.checkpointing(interval_s=0.5) as job:
        eventually(lambda: world.committed(group)[remote][0] == 10, what="the first sync")
        with closing(Cluster(world.flow.target_connection, "target", "test").connect()) as target:
            close(world.flow, target)
        world.commit(group, {(topic, 0): 40})
        eventually(lambda: job.done() or world.committed(group)[remote][0] != 10, what="the end of the job")
    with stops:
        world.checkpoint()
    assert world.committed(group)[remote][0] == 10


def test_a_violated_gate_touches_no_group_and_is_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keeps_journal = True
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    group = world.commit("guarded", {(topic, 0): 30})
    honest = group_cache.by_runs_at_hand

    def wrong(*given: Any) -> dict[str, Any]:
        row = honest(*given)
        return row | {"downstream_offset": row["downstream_offset"] + 1}

    with monkeypatch.context() as patch:
        patch.setattr(group_cache, "by_runs_at_hand", wrong)
        with pytest.raises(GateError, match="recomputed"):
            world.checkpoint()
    assert world.committed(group) == {}
    failed = world.ledger.read("expectation_results").filter(f"NOT success AND subject = '{world.flow_name}'").collect()
    assert any("recomputed" in row["expectation"] for row in failed)
    world.checkpoint()
    assert world.committed(group)[world.remote(topic), 0][0] == 30


def test_a_thousand_groups_in_one_cycle(spark_world: World) -> None:
    topic = spark_world.topic(partitions=2)
    spark_world.produce(topic, 500)
    spark_world.mirror()
    ends = {partition: len(records) for partition, records in spark_world.source_records(topic).items()}
    dice = random.Random(3)
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = {
        f"{spark_world.alias}-k{number}": {partition: dice.randint(0, end) for partition, end in ends.items()}
        for number in range(1_000)
    }
    futures = []
    for group, offsets in wanted.items():
        positions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        futures.append(
            spark_world.source_admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, positions)])[
                group
            ]
        )
    for future in futures:
        future.result()
    result = spark_world.checkpoint()
    assert (result.groups, result.statuses, result.syncs) == (1_000, {"exact": 2_000}, {"committed": 2_000})
    for group in dice.sample(sorted(wanted), 30):
        assert {partition: offset for (_, partition), (offset, _) in spark_world.committed(group).items()} == wanted[
            group
        ]


def test_a_share_group_is_named_as_not_covered_once(
    world: World,
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 50, 1)
    world.mirror()
    ordinary, share = world.commit("ordinary", {(topic, 0): 5}), f"{world.alias}-share"
    words = [
        "java",
        "-cp",
        f"{ROOT / '.local/jars/kafka'}/*",
        str(Path(__file__).parent / "java/ShareProbe.java"),
        world.source_servers,
        share,
        topic,
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    assert world.checkpoint().groups == 1
    row = world.checkpoints()[share, None, None]
    assert (row["status"], row["sync"]) == ("not_covered", "held")
    assert "share group (KIP-932)" in row["reason"]
    assert world.committed(ordinary) == {(world.remote(topic), 0): (5, "")}
    assert world.checkpoint().rows == 0
    world.source_admin.delete_consumer_groups([share])[share].result()
    world.commit("share", {(topic, 0): 7})
    world.checkpoint()
    assert world.committed(share) == {(world.remote(topic), 0): (7, "")}
    rows = world.checkpoints()
    assert (rows[share, None, None]["status"], rows[share, topic, 0]["status"]) == ("deleted", "exact")
    plan = failover(world, mode="plan", source="dead").lines
    assert [(line.topic, line.blocks) for line in plan if line.group_id == share] == [(topic, ())]
