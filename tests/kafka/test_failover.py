"""Failover and failback on real brokers.

Plans are right, a rehearsal changes nothing, and after a run every group reads exactly its unread records.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from mirrorlake.errors import ConfigurationError, GateError, MirrorlakeError, TargetError
from mirrorlake.jobs.checkpoint import group_positions, target_groups
from mirrorlake.jobs.failover import job, planner
from mirrorlake.jobs.failover.planner import PlanMaker
from mirrorlake.jobs.mirror import spark_engine
from mirrorlake.ledger.sql_text import literal
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.model.status import Status
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import PositionReason
from mirrorlake.translation.positions import ReaderPosition
from mirrorlake.translation.translator import Translator

from tests.moving import (
    IDENTITY,
    Traffic,
    assert_nothing_is_lost_but_what_is_listed,
    assert_the_next_plan_is_exact,
    both_ways,
    failback,
    failover,
    home_of,
    line,
    texts,
)
from tests.world import World, consume_as, eventually, transactional_producer, write_in_transaction


def transaction(world: World, topic: str, count: int) -> None:
    """Produces that many records to partition 0 in one transaction."""
    producer = transactional_producer(world.source_servers, f"{topic}-{datetime.now(UTC).timestamp()}")
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, f"t{number}".encode(), partition=0)
    producer.commit_transaction(60)


def everything(world: World, *groups: str) -> tuple[Any, ...]:
    """Returns topics, records and group offsets of this test on both clusters."""
    topics = [
        sorted(name for name in admin.list_topics(timeout=10).topics if world.alias in name)
        for admin in (world.source_admin, world.target_admin)
    ]
    return topics, [world.committed(group, target=target) for group in groups for target in (False, True)]


def add_verification(world: World, topic: str, partition: int, status: str) -> None:
    """Records the verification of a partition, as its job would."""
    table = world.ledger.ensure_tables().table("verifications")
    now = datetime.now(UTC).replace(tzinfo=None)
    said = {
        "verification_id": "v",
        "source": world.alias,
        "target": world.target_alias,
        "topic": topic,
        "partition": partition,
        "mode": "full",
        "status": status,
        "passed": status == "equal",
        "started_at": now,
        "finished_at": now,
    }
    zero = {"string": "", "bigint": 0, "int": 0, "boolean": False}
    row = {
        field.name: said.get(field.name, zero.get(field.dataType.simpleString()))
        for field in world.spark.table(table).schema
    }
    world.ledger.append("verifications", [row])


def test_a_group_at_the_end_of_logs_that_retention_has_emptied_goes_on_at_the_first_offset_that_is_left(
    world: World,
) -> None:
    topic = world.topic(partitions=1)
    remote = (world.remote(topic), 0)
    world.produce(topic, 50, 1)
    world.mirror()
    synced = world.commit("synced", {(topic, 0): 50})
    world.checkpoint()
    assert world.committed(synced)[remote][0] == 50
    for admin, place in ((world.source_admin, (topic, 0)), (world.target_admin, remote)):
        whole = TopicPartition(*place, OFFSET_END)
        admin.delete_records([whole])[whole].result()
    world.checkpoint()
    assert world.committed(synced)[remote][0] == 51, "the marker of the transaction is gone as well"
    (outside,) = Translator(world.flow, world.ledger).translate([ReaderPosition(topic, 0, 50, "reader")]).positions
    assert (outside.downstream_offset, outside.status) == (51, Status.EXACT), "as a group gets it"
    rows = len(world.table("checkpoints"))
    world.checkpoint()
    assert len(world.table("checkpoints")) == rows, "another job finds its place as it was"
    late = world.commit("late", {(topic, 0): 50})
    result = failover(world, mode="rehearse")
    assert {(one.downstream_offset, one.proof, one.go) for one in result.lines} == {(51, "at the end", True)}
    failover(world, mode="promote", signed_by="ann")
    producer = Producer({"bootstrap.servers": world.target_servers})
    producer.produce(remote[0], b"new", partition=0)
    assert producer.flush(30) == 0
    for group in (synced, late):
        assert consume_as(world.target_servers, group, [remote[0]]) == {remote: [b"new"]}


def test_a_group_whose_record_retention_has_deleted_on_the_target_continues_at_the_first_one_that_is_left(
    world: World,
) -> None:
    topic = world.topic(partitions=1)
    remote = (world.remote(topic), 0)
    world.produce(topic, 100, 1)
    world.mirror()
    group = world.commit("g", {(topic, 0): 20})

    def expire(before: int) -> None:
        place = TopicPartition(*remote, before)
        world.target_admin.delete_records([place])[place].result()

    def synced() -> tuple[int, str, str | None]:
        world.checkpoint()
        row = world.checkpoints()[group, topic, 0]
        return world.committed(group)[remote][0], row["sync"], row["reason"]

    expire(60)
    assert synced() == (60, "committed", PositionReason.PASSED_BY_RETENTION)
    assert world.checkpoints()[group, topic, 0]["downstream_offset"] == 20, "its place by the map"
    rows = len(world.table("checkpoints"))
    assert synced() == (60, "committed", PositionReason.PASSED_BY_RETENTION)
    assert len(world.table("checkpoints")) == rows, "nothing is new"
    world.commit(group, {(topic, 0): 80})
    assert synced() == (80, "committed", None)
    world.commit(group, {(topic, 0): 10})  # its owner goes back
    moved = PositionReason.MOVED_BACK.about(before=80, offset=10)
    assert synced() == (60, "committed", f"{PositionReason.PASSED_BY_RETENTION}; {moved}")
    assert [kind for kind, _ in line(failover(world), group).blocks] == ["losses"], "it is not ahead"
    expire(70)
    done = failover(world, mode="promote", signed_by="ann", accept="losses")
    assert [one.outcome for one in done.lines] == ["committed"]
    assert world.committed(group)[remote][0] == 70
    said = [row["downstream_offset"] for row in world.table("failovers") if row["source"] == world.alias]
    assert said == [70], "where the group continues"
    assert len(consume_as(world.target_servers, group, [remote[0]])[remote]) == 30


def test_an_interrupt_of_the_drain_ends_a_promotion_before_any_group_is_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.mirror()
    group = world.commit("g", {(topic, 0): 20})
    world.produce(topic, 20, 1, seed=2)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupting:
        interrupting.setattr(spark_engine.Running, "watched", interrupted)
        with pytest.raises(KeyboardInterrupt):
            failover(world, mode="promote", signed_by="ann", accept="lag")
    assert world.committed(group) == {}
    world.assert_nothing_open()
    world.mirror()  # the flow is open
    world.assert_equal(topic)


def test_a_plan_says_exactly_what_would_be_read_again_skipped_and_lost_and_changes_nothing(world: World) -> None:
    topic = world.topic(partitions=1)
    remote = (world.remote(topic), 0)
    for seed in (1, 2):  # two runs on the target, with a marker between them
        world.produce(topic, 50, 1, seed=seed)
        world.mirror()
    behind, ahead, new = (
        world.commit("behind", {(topic, 0): 60}),
        world.commit("ahead", {(topic, 0): 30}),
        world.commit("new", {(topic, 0): 100}),
    )
    world.commit(behind, {remote: 40}, target=True)
    world.commit(ahead, {remote: 55}, target=True)
    began = time.time() - 0.01  # timestamps of records are in whole milliseconds
    transaction(world, topic, 7)
    before = everything(world, behind, ahead, new)
    result = failover(world)
    assert everything(world, behind, ahead, new) == before
    assert not [row for row in world.table("failovers") if row["source"] == world.alias]
    numbers = {
        name: getattr(line(result, behind), name)
        for name in (
            "upstream_offset",
            "downstream_offset",
            "target_offset",
            "mirrored_to",
            "source_end",
            "not_mirrored",
        )
    }
    assert numbers == {
        "upstream_offset": 60,
        "downstream_offset": 61,
        "target_offset": 40,
        "mirrored_to": 100,
        "source_end": 108,
        "not_mirrored": 7,
    }
    assert (line(result, behind).re_reads, line(result, behind).skips) == (20, 0), (
        "records, not offsets: a marker lies between"
    )
    assert (line(result, ahead).re_reads, line(result, ahead).skips, line(result, ahead).downstream_offset) == (
        0,
        24,
        30,
    )
    assert (line(result, new).re_reads, line(result, new).skips, line(result, new).downstream_offset) == (
        None,
        None,
        101,
    )
    rpo_seconds = line(result, new).rpo_seconds
    assert rpo_seconds is not None
    assert 0 < rpo_seconds <= time.time() - began
    assert {one.group_id: {kind for kind, _ in one.blocks} for one in result.lines} == {
        behind: {"lag"},
        new: {"lag"},
        ahead: {"lag", "ahead"},
    }
    assert not result.go
    only = failover(world, groups=f"{new}, {world.alias}-nobody", max_lag="7")
    assert [one.group_id for one in only.lines] == [new]
    assert only.go
    later = world.topic("later", 1)  # the mirror job does not know it yet
    world.commit("late", {(later, 0): 0})
    world.checkpoint()
    rehearsed, dead = failover(world, mode="rehearse"), failover(world, source="dead")
    for plan in (rehearsed, dead):
        (late,) = [one for one in plan.lines if one.topic == later]
        assert (late.status, late.downstream_offset) == ("not_mirrored_yet", None)
        assert [kind for kind, _ in late.blocks] == ["not_mirrored_yet"]
        assert late.outcome == ("no_place" if plan is rehearsed else None)
    assert (
        line(dead, behind).seen_in,
        line(dead, behind).downstream_offset,
        line(dead, behind).not_mirrored,
        line(dead, behind).lag_seen,
    ) == ("ledger", 61, None, 8)
    assert not dead.is_source_alive
    synced = world.committed(new)[remote][0]
    world.commit(new, {(topic, 0): 70})  # its owner goes back, and no cycle has seen that
    (back,) = [one for one in failover(world, max_lag="7", groups=new).lines if one.topic == topic]
    assert (back.target_offset, back.downstream_offset, back.blocks) == (synced, 71, ())
    world.commit(new, {remote: synced + 1}, target=True)  # somebody goes on on the target
    (back,) = [one for one in failover(world, max_lag="7", groups=new).lines if one.topic == topic]
    assert [kind for kind, _ in back.blocks] == ["ahead"]


def test_every_block_is_seen_and_stops_a_run_unless_it_is_accepted(world: World) -> None:
    topic, other = world.topic(partitions=2), world.topic("unmirrored", 1)
    late, lossy = world.topic("late", 1), world.topic("lossy", 1)
    config = {"topics": f"{world.alias}-(orders|late|lossy)", "mirrorlake.on.loss": "continue"}
    world.produce(late, 50, 1)
    world.write_config(**config, **{"mirrorlake.start": "latest"})
    world.mirror()
    world.write_config(**config)
    world.produce(topic, 100, 1)
    world.produce(late, 10, 1)
    world.produce(lossy, 50, 1)
    world.mirror()
    world.produce(lossy, 50, 1)
    world.source_admin.delete_records([TopicPartition(lossy, 0, 80)])[TopicPartition(lossy, 0)].result()
    world.mirror()
    remote = TopicPartition(world.remote(late), 0, 3)
    world.target_admin.delete_records([remote])[remote].result()
    world.commit("late", {(late, 0): 20})
    world.commit("loses", {(lossy, 0): 40})
    world.commit("elsewhere", {(other, 0): 0})
    world.commit("clamped", {(topic, 0): 120})
    world.commit("ahead", {(topic, 0): 10})
    world.commit("ahead", {(world.remote(topic), 0): 50}, target=True)
    group = world.commit("fine", {(topic, 1): 0})
    member = Consumer(
        {
            "bootstrap.servers": world.target_servers,
            "group.id": f"{world.alias}-busy",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        world.commit("busy", {(topic, 0): 40})
        member.subscribe([world.remote(topic)])
        eventually(lambda: member.poll(0.5) is not None, what="the member's first record")
        world.produce(topic, 5, 1, seed=9)
        for partition, statuses in ((0, ("different", "equal")), (1, ("equal", "different"))):
            for status in (
                "not_comparable",
                *statuses,
                "not_covered",
            ):  # what was before, and the last one, prove nothing
                add_verification(world, topic, partition, status)
        plan = failover(world)
    finally:
        member.close()
    kinds = {one.group_id.removeprefix(f"{world.alias}-"): {kind for kind, _ in one.blocks} for one in plan.lines}
    assert kinds == {
        "elsewhere": {"not_mirrored"},
        "clamped": {"clamped", "lag"},
        "ahead": {"ahead", "lag"},
        "busy": {"members", "lag"},
        "fine": {"verification"},
        "late": {"before_mirror", "losses"},
        "loses": {"losses"},
    }
    assert line(plan, f"{world.alias}-late").lost == 33
    assert [reason for name in ("late", "loses") for _, reason in line(plan, f"{world.alias}-{name}").blocks] == [
        "30 offsets from 20 on are before the first mirrored record",
        "retention has deleted 3 records on the target at or after offset 0; the group continues at the start of that "
        "log, 3",
        "30 offsets ahead of the group were lost (retention)",
    ]
    proofs = {one.group_id: one.proof for one in failover(world, mode="rehearse").lines}
    for name, side in (("late", "target"), ("loses", "source")):
        assert str(proofs[f"{world.alias}-{name}"]).startswith(f"gone: the {side} has no record at"), "and no error"
    world.spark.sql(f"DELETE FROM {world.ledger.table('offset_syncs')} WHERE source = '{world.alias}'")
    assert "stale_map" in {kind for kind, _ in line(failover(world), f"{world.alias}-busy").blocks}
    world.mirror()
    world.write_config(**config, **{"sync.group.offsets.enabled": "false"})
    world.checkpoint()
    for table, column in (("cycles", "finished_at"), ("checkpoints", "created_at")):  # both confirm a position
        world.spark.sql(
            f"UPDATE {world.ledger.table(table)} SET {column} = {column} - INTERVAL 2 HOURS "
            f"WHERE source = '{world.alias}'"
        )
    assert "stale_position" in {kind for kind, _ in line(failover(world, source="dead"), group, 1).blocks}
    with pytest.raises(GateError, match=r"5 of 7 lines are no-go; no group was touched"):
        failover(world, mode="run", signed_by="ann", accept="verification", source="alive")
    assert world.committed(group) == {}
    done = failover(world, mode="run", signed_by="ann", accept="verification, clamped", partial="true", source="alive")
    outcomes = {one.group_id.removeprefix(f"{world.alias}-"): one.outcome for one in done.lines}
    assert outcomes == {
        "elsewhere": "held",
        "clamped": "committed",
        "ahead": "held",
        "busy": "committed",
        "fine": "committed",
        "late": "held",
        "loses": "held",
    }
    assert done.generation == 0, "a flow of which groups stay behind is not closed"
    rows = {
        row["group_id"]: row
        for row in [row for row in world.table("failovers") if row["failover_id"] == done.failover_id]
    }
    assert len(rows) == 7
    assert rows[f"{world.alias}-late"]["lost"] == 33
    assert (rows[group]["accepted"], rows[group]["signed_by"], rows[group]["go"], rows[group]["mode"]) == (
        ["verification"],
        "ann",
        True,
        "run",
    )
    assert rows[group]["blocks"] == ["verification: the last verification of this partition has found differences"]
    assert (
        world.ledger.read("expectation_results")
        .filter(f"suite = 'failover' AND subject = '{world.flow_name}' AND success")
        .count()
        == 12
    )


def test_a_flow_that_no_group_reads_is_closed_only_if_that_is_asked_for_and_somebody_has_signed(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 10, 1)
    world.mirror()
    with pytest.raises(GateError, match="no group matches; nothing was changed"):
        failover(world, mode="promote", signed_by="ann", close="true", groups="nobody")
    done = failover(world, mode="promote", signed_by="ann", close="true")
    assert done.generation
    (row,) = [row for row in world.table("failovers") if row["failover_id"] == done.failover_id]
    assert (row["status"], row["outcome"], row["signed_by"]) == ("no_groups", "closed", "ann")
    with pytest.raises(MirrorlakeError, match="failback"):
        world.mirror()


def test_a_flow_that_has_never_mirrored_is_closed_by_a_failover_as_well(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 5, 1)
    with contextlib.closing(Cluster(plain_world.flow.target_connection, "target", "tests", 10_000).connect()) as target:
        assert job.close(plain_world.flow, target) == 1
    with pytest.raises(ConfigurationError, match=r"was failed over \(generation 1\)"):
        plain_world.mirror()
    assert plain_world.remote(topic) not in plain_world.target_admin.list_topics(timeout=10).topics


def test_groups_go_on_exactly_behind_a_rehearsal_and_a_run_also_as_of_a_time_in_the_past(world: World) -> None:
    topic, dice = world.topic(partitions=2), random.Random(4)
    for seed in range(2):
        world.produce_transactions(topic, 9, 10, 2, seed)
        world.mirror()
    source = world.source_records(topic)
    ends = {partition: records[-1][0] + 1 for partition, records in source.items()}
    then = {
        world.commit(
            f"g{number}", {(topic, partition): dice.randint(0, end) for partition, end in ends.items()}
        ): number
        for number in range(6)
    }
    world.checkpoint()
    before = {group: {place: at for place, (at, _) in world.committed(group).items()} for group in then}
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    now = {group: {(topic, partition): end - dice.randint(0, 9) for partition, end in ends.items()} for group in then}
    for group, offsets in now.items():
        world.commit(group, offsets)
    late = world.commit("late", {(topic, 0): 5})  # not there at that time
    world.checkpoint()
    world.produce(topic, 40, 2, seed=77)

    seen = everything(world, *then)
    alive, dead = failover(world, mode="rehearse"), failover(world, mode="rehearse", source="dead")
    assert everything(world, *then) == seen
    assert {one.proof for one in alive.lines} <= {"same record", "at the end"}
    assert {one.proof for one in dead.lines} <= {"same digest", "at the end"}
    assert (
        [one.proof for one in alive.lines].count("same record")
        == [one.proof for one in dead.lines].count("same digest")
        > 6
    )
    assert {
        row["outcome"]
        for row in world.ledger.read("failovers")
        .filter(f"failover_id IN ('{alive.failover_id}', '{dead.failover_id}')")
        .collect()
    } == {"rehearsed"}
    table = world.ledger.table("offset_syncs")
    world.spark.sql(
        f"UPDATE {table} SET upstream_start = upstream_start + 1 WHERE source = '{world.alias}' AND records > 1"
    )
    with pytest.raises(GateError, match="differs: the record at"):
        failover(world, mode="rehearse", source="alive")
    world.spark.sql(f"DELETE FROM {table} WHERE source = '{world.alias}'")  # the next rehearsal or run fills it again

    done = failover(world, mode="run", signed_by="ann", source="alive")
    assert done.drained == 40
    assert done.generation > 0
    assert {one.outcome for one in done.lines} <= {"committed", "in_step"}
    source = world.source_records(topic)
    compared = 0
    for group, offsets in now.items():
        unread = {
            (world.remote(topic), partition): [
                record[1] for offset, record in records if offset >= offsets[topic, partition]
            ]
            for partition, records in source.items()
        }
        assert consume_as(world.target_servers, group, [world.remote(topic)]) == unread
        compared += sum(map(len, unread.values()))
    assert compared > 200
    with pytest.raises(ConfigurationError, match=r"was failed over .* notebooks/failback.ipynb"):
        world.mirror()
    with pytest.raises(ConfigurationError, match=r"was failed over .* its groups continue on the target"):
        world.checkpoint()
    again = failover(world, mode="promote", signed_by="ann")
    assert ({one.outcome for one in again.lines}, again.drained) == ({"in_step"}, 0)
    with pytest.raises(ConfigurationError, match="was failed over as a whole, so single topics can't be promoted"):
        failover(world, mode="promote", signed_by="ann", topics=topic)

    with pytest.raises(GateError, match="ahead"):
        failover(world, mode="run", signed_by="ann", at=at, source="dead")
    accept = "ahead,lag,not_covered"
    rewound = failover(world, mode="run", signed_by="ann", at=at, source="dead", accept=accept, close="false")
    (stays,) = [one for one in rewound.lines if one.group_id == late]
    assert (stays.outcome, [kind for kind, _ in stays.blocks]) == ("no_place", ["not_covered"])
    rows = [one for one in rewound.lines if one is not stays]
    assert {one.outcome for one in rows} <= {"committed", "in_step"}
    assert {(one.group_id, one.partition, one.seen_in) for one in rows} == {
        (group, partition, "ledger") for group in then for partition in ends
    }
    assert {group: {place: at for place, (at, _) in world.committed(group).items()} for group in then} == before


def test_with_source_and_ledger_lost_the_target_alone_tells_where_every_group_goes_on(world: World) -> None:
    world.write_config(**{"sync.group.offsets.enabled": "false"})
    topic, dice = world.topic(partitions=3), random.Random(5)
    world.produce_transactions(topic, 9, 10, 2, 3)
    world.mirror()
    source = {0: [], 1: [], 2: []} | world.source_records(topic)
    ends = {partition: records[-1][0] + 1 if records else 0 for partition, records in source.items()}
    assert ends[2] == 0, "no state has a position of a partition without records"
    positions = {}
    for numbers in ((0, 1), (0,)):  # of the first group, the newest position counts
        for number in numbers:
            offsets = {(topic, partition): dice.randint(0, end) for partition, end in ends.items()}
            positions[world.commit(f"g{number}", offsets)] = offsets
        world.checkpoint()
    elsewhere = World(
        "127.0.0.1:1",  # nobody answers there
        world.target_servers,
        world.directory / "elsewhere",
        world.spark,
        str(world.directory / f"lost{world.alias}"),
        dict(world.properties),
        world.alias,
        world.target_alias,
    )
    assert failover(elsewhere, source="dead").lines == ()
    assert any("positions_not_in_ledger" in text for text in world.lines)
    done = failover(elsewhere, mode="failover", signed_by="ann")
    assert {(one.group_id, one.outcome) for one in done.lines} == {(group, "committed") for group in positions}
    assert done.generation > 0
    assert elsewhere.ledger_map(topic) == world.ledger_map(topic)
    for group, offsets in positions.items():
        unread = {
            (world.remote(topic), partition): [
                record[1] for offset, record in records if offset >= offsets[topic, partition]
            ]
            for partition, records in source.items()
        }
        assert consume_as(world.target_servers, group, [world.remote(topic)]) == unread


def test_a_group_that_somebody_joins_between_plan_and_commit_is_refused_the_others_move_and_a_second_run_finishes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 60, 1)
    world.mirror()
    remote = (world.remote(topic), 0)
    joined, moved = world.commit("joined", {(topic, 0): 20}), world.commit("moved", {(topic, 0): 30})
    member = Consumer(
        {
            "bootstrap.servers": world.target_servers,
            "group.id": joined,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    commit = target_groups.commit

    def join_and_commit(*given: Any) -> dict[str, str]:
        member.subscribe([remote[0]])
        eventually(lambda: member.poll(0.5) is not None, what="the member's first record")
        return commit(*given)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(target_groups, "commit", join_and_commit)
            with pytest.raises(
                TargetError,
                match=r"has refused 1 groups, the others were moved\. Group .*-joined: refused: a consumer has joined "
                r"this group on the target",
            ) as said:
                failover(world, mode="promote", signed_by="ann")
    finally:
        member.close()
    assert "Remove the cause and run again" in str(said.value)
    assert (world.committed(joined), world.committed(moved)) == ({}, {remote: (30, "")})
    rows = {
        row["group_id"]: row["outcome"]
        for row in [row for row in world.table("failovers") if row["source"] == world.alias]
    }
    assert rows == {joined: "refused: a consumer has joined this group on the target", moved: "committed"}
    world.produce(topic, 10, 1, seed=2)
    assert world.mirror().records == 10, "a flow of which a group stays behind is not closed"

    def die(*_: Any) -> int:
        raise TargetError("the coordinator has moved")

    with monkeypatch.context() as patched:
        patched.setattr(job, "close", die)
        with pytest.raises(
            TargetError, match=r"groups were moved, and closing the flow has failed: the coordinator has moved\. Run it"
        ):
            failover(world, mode="promote", signed_by="ann", close="true")
    newest = sorted(world.table("failovers"), key=lambda row: row["created_at"])[-2:]
    assert {row["group_id"]: row["outcome"] for row in newest} == {joined: "committed", moved: "in_step"}
    done = failover(world, mode="promote", signed_by="ann")
    assert {one.group_id: one.outcome for one in done.lines} == {joined: "in_step", moved: "in_step"}
    assert done.generation > 0
    assert world.committed(joined) == {remote: (20, "")}


def test_a_group_that_works_and_stops_again_between_plan_and_commit_is_not_moved_by_the_old_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 60, 1)
    world.mirror()
    remote = (world.remote(topic), 0)
    here, there, still = (
        world.commit(name, {(topic, 0): at}) for name, at in (("here", 20), ("there", 30), ("still", 40))
    )
    world.commit(there, {remote: 10}, target=True)
    look = PlanMaker.lines

    def work(plan: PlanMaker, choice: Any) -> Any:
        lines = look(plan, choice)
        world.commit(here, {(topic, 0): 25})  # by members that are gone when the groups are moved
        return lines

    commit = target_groups.commit

    def work_and_commit(*given: Any) -> Any:
        world.commit(there, {remote: 50}, target=True)  # while other groups are moved
        return commit(*given)

    with monkeypatch.context() as patched:
        patched.setattr(PlanMaker, "lines", work)
        patched.setattr(job, "COMMITTED_AT_ONCE", 1)
        patched.setattr(target_groups, "commit", work_and_commit)
        with pytest.raises(TargetError, match="has refused 2 groups, the others were moved"):
            failover(world, mode="promote", signed_by="ann")
    rows = {row["group_id"]: row["outcome"] for row in world.table("failovers") if row["source"] == world.alias}
    assert rows == {
        here: f"refused: the group's offset in {topic}-0 on cluster {world.alias} was 20 in the plan, and is 25 now",
        there: f"refused: the group's offset in {remote[0]}-0 on cluster t was 10 in the plan, and is 50 now",
        still: "committed",
    }
    assert [world.committed(group) for group in (here, there, still)] == [{}, {remote: (50, "")}, {remote: (40, "")}]
    plan = failover(world)
    assert [(line(plan, group).go, line(plan, group).downstream_offset) for group in (here, there)] == [
        (True, 25),
        (False, 30),
    ]


def test_a_group_whose_coordinator_is_away_is_named_by_the_plan_and_not_left_behind_in_silence(
    servers: tuple[str, str],
    spark: object,
    warehouse: str,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = LocalCluster("coordinators", tmp_path / "coordinators", root / ".local/jars/kafka", size=2)
    with running(source):
        settings = {"mirrorlake.connect.timeout.ms": "4000"}
        world = World(source.bootstrap_servers, servers[1], tmp_path / "w", spark, warehouse, settings)
        topic, away = world.topic(partitions=1, replication_factor=2), f"{world.alias}-away"
        new = NewTopic(away, 2, replica_assignment=[[1], [2]])
        world.source_admin.create_topics([new])[away].result()
        world.produce(topic, 60, 1)
        world.produce(away, 20, 2)
        groups = {world.commit(f"g{number}", {(topic, 0): 10 + number}): 10 + number for number in range(12)}
        world.mirror()
        world.checkpoint()
        listed = group_positions.list_groups_of_each
        with monkeypatch.context() as patched:  # a broker that is still registered, and does not answer
            patched.setattr(group_positions, "list_groups_of_each", lambda *given: (listed(*given)[0], False))
            patched.setattr(group_positions, "LOADING_S", 0)
            (unheard,) = [one for one in failover(world, groups=world.alias + ".*").lines if not one.group_id]
        assert (unheard.topic, unheard.partition, unheard.go) == ("__consumer_offsets", None, False)
        assert [(str(kind), reason) for kind, reason in unheard.blocks] == [("unreadable", planner.SILENT)]
        source.stop_broker(2)  # with the only replica of half the coordinators' log, and of a partition
        plan = failover(world)
        of_groups = [one for one in plan.lines if one.group_id]
        assert {one.group_id: one.upstream_offset for one in of_groups} == groups
        blocks = {one.group_id: [kind for kind, _ in one.blocks] for one in of_groups}
        assert {tuple(kinds) for kinds in blocks.values()} == {(), ("unreadable",)}
        leaderless = [one for one in plan.lines if not one.group_id]
        assert {(one.topic, one.status) for one in leaderless} == {
            ("__consumer_offsets", "no_groups"),
            (away, "no_groups"),
        }
        assert len(leaderless) == 3, "half of the partitions: other groups, and other records, may be there"
        assert not any(one.go for one in leaderless)
        (unread,) = [one for one in leaderless if one.topic == away]
        ((_, reason),) = unread.blocks
        assert (unread.partition, unread.source_end, unread.rpo_seconds) == (1, None, None)
        assert reason.startswith(f"the source does not tell the ends of {away}-1 now")
        for one in of_groups:
            assert one.seen_in == ("ledger" if one.blocks else "source")
        with pytest.raises(GateError, match=r"no-go; no group was touched.*unreadable"):
            failover(world, mode="promote", signed_by="ann")
        done = failover(world, mode="promote", signed_by="ann", accept="unreadable")
        assert {one.outcome for one in done.lines if one.group_id} <= {"committed", "in_step"}
        assert done.generation > 0
        assert {group: world.committed(group)[world.remote(topic), 0][0] for group in groups} == groups


def test_a_group_or_a_remote_partition_that_the_target_does_not_tell_of_holds_up_no_other(
    servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path, root: Path
) -> None:
    properties = {"transaction.state.log.replication.factor": "2"}
    target = LocalCluster("half", tmp_path / "half", root / ".local/jars/kafka", size=2, properties=properties)
    with running(target):
        settings = {"mirrorlake.connect.timeout.ms": "4000", "mirrorlake.slots": "1"}
        world = World(servers[0], target.bootstrap_servers, tmp_path / "w", spark, warehouse)
        both_ways(world, **IDENTITY, **settings)  # a plan then asks what others have written there
        topic, away = world.topic("there", 1), world.topic("away", 1)
        places = {world.flow.offset_syncs_topic: 1, world.remote(topic): 1, world.remote(away): 2}
        new = [NewTopic(name, 1, replica_assignment=[[broker]]) for name, broker in places.items()]
        for future in world.target_admin.create_topics(new).values():
            future.result()
        for name in (topic, away):
            world.produce(name, 60, 1)
        world.mirror()
        groups = {world.commit(f"g{number}", {(topic, 0): 10 + number}): 10 + number for number in range(12)}
        groups_away = [world.commit(f"h{number}", {(away, 0): 10}) for number in range(6)]
        target.stop_broker(2)  # with the only replica of half the coordinators' log
        plan = failover(world)
        blocks = {one.group_id: [kind for kind, _ in one.blocks] for one in plan.lines if one.group_id}
        assert {tuple(blocks[group]) for group in groups} == {(), ("unreadable",)}
        assert {tuple(blocks[group]) for group in groups_away} == {("unreadable",)}
        done = failover(world, mode="run", source="alive", signed_by="ann", partial="true", close="false")
        moved = [one.group_id for one in done.lines if one.outcome == "committed"]
        assert sorted(moved) == sorted(group for group in blocks if not blocks[group])
        assert {group: world.committed(group)[world.remote(topic), 0][0] for group in moved} == {
            group: groups[group] for group in moved
        }


def test_a_partition_that_no_group_reads_and_that_is_not_mirrored_is_not_left_behind_in_silence(world: World) -> None:
    read, unread = (
        world.topic("read", 1),
        world.topic("x" * (249 - len(world.alias) - 1), 1),
    )  # its remote name is too long
    for topic in (read, unread):
        world.produce(topic, 20, 1)
    group = world.commit("g", {(read, 0): 5})
    world.mirror()
    plan = failover(world)
    assert line(plan, group).go
    assert [(one.topic, one.status, one.not_mirrored, one.blocks) for one in plan.lines if not one.group_id] == [
        (unread, "no_groups", 20, (("lag", "20 records are not mirrored, allowed are 0"),))
    ]
    with pytest.raises(GateError, match=r"no-go; no group was touched.*20 records are not mirrored"):
        failover(world, mode="promote", signed_by="ann")
    assert failover(world, mode="promote", signed_by="ann", accept="lag").generation


def test_a_position_that_the_source_has_not_told_for_long_is_not_called_confirmed(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.mirror()
    hidden, seen = (world.commit(name, {(topic, 0): 5}) for name in ("hidden", "seen"))
    world.checkpoint()
    world.spark.sql(
        f"UPDATE {world.ledger.table('checkpoints')} SET reason = {literal(PositionReason.NOT_PERMITTED)}, "
        f"created_at = created_at - INTERVAL 2 HOURS WHERE source = '{world.alias}' AND group_id = '{hidden}'",
    )
    plan = failover(world, source="dead")
    assert [[kind for kind, _ in line(plan, group).blocks] for group in (hidden, seen)] == [["stale_position"], []]


def test_acknowledged_records_behind_an_open_transaction_are_not_called_mirrored(world: World) -> None:
    topic, unread = world.topic(partitions=1), world.topic("unread", 1)
    world.produce(topic, 20, 1)
    group = world.commit("g", {(topic, 0): 5})
    world.mirror()
    producer = transactional_producer(world.source_servers, f"{topic}-open")
    write_in_transaction(producer, topic, unread)
    for name in (topic, unread):
        world.produce(name, 7, 1)  # acknowledged
    with pytest.raises(
        GateError,
        match=rf"2 of 2 lines are no-go; no group was touched.*open_transaction \(a transaction is open in {unread}-0 "
        rf"since offset 0, and hides the records up to offset 8, .*kafka-transactions.sh --bootstrap-server .* abort "
        rf"--topic {unread} --partition 0 --start-offset 0\)",
    ):
        failover(world, mode="promote", signed_by="ann")
    plan = failover(world)
    assert [(one.group_id, one.topic, one.not_mirrored, [kind for kind, _ in one.blocks]) for one in plan.lines] == [
        ("", unread, 0, ["open_transaction"]),
        (group, topic, 0, ["open_transaction"]),
    ]
    assert "since offset 20, and hides the records up to offset 28" in plan.lines[1].blocks[0][1]
    assert failover(world, accept="open_transaction").go
    producer.abort_transaction(60)
    done = failover(world, mode="promote", signed_by="ann")
    assert (done.drained, [one.outcome for one in done.lines]) == (14, ["committed"])


def test_an_offset_that_a_transaction_is_about_to_commit_is_waited_for_or_named(world: World) -> None:
    world.write_config(**{"mirrorlake.connect.timeout.ms": "3000"})
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    group = world.commit("copier", {(topic, 0): 5})
    world.mirror()
    world.checkpoint()
    producer = transactional_producer(world.source_servers, f"{topic}-copier")
    consumer = Consumer({"bootstrap.servers": world.source_servers, "group.id": group, "log_level": 0})
    try:
        producer.begin_transaction()
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 12)], metadata, 60)
        (pending,) = failover(world).lines
        assert (pending.upstream_offset, [kind for kind, _ in pending.blocks]) == (5, ["unreadable"])
        assert "UnstableOffsetCommit" in pending.blocks[0][1]
        producer.commit_transaction(60)
    finally:
        consumer.close()
    (decided,) = failover(world).lines
    assert (decided.upstream_offset, decided.blocks) == (12, ())


def last_step(world: World, source: str) -> str:
    """Returns the last job of the table cycles that says whether the flow from a cluster is mirrored."""
    rows = [row for row in world.table("cycles") if row["source"] == source]
    return max((row for row in rows if row["job"] in ("mirror", "open", "close")), key=itemgetter("finished_at"))["job"]


def test_with_the_alias_in_front_positions_go_home_by_the_map_of_either_direction(world: World) -> None:
    world.target_alias = f"{world.alias}t"
    world.write_config(**{f"{world.flow_name}.enabled": "true", f"{world.target_alias}->{world.alias}.enabled": "true"})
    topic, local = world.topic(partitions=1), f"{world.alias}-local"
    world.produce(topic, 100, 1)
    group = world.commit("g", {(topic, 0): 60})
    assert failover(world, mode="promote", signed_by="ann").generation > 0
    assert last_step(world, world.alias) == "close", "alerts on silence leave it out"
    assert world.committed(group) == {(world.remote(topic), 0): (60, "")}
    world.target_admin.create_topics([NewTopic(local, 1, 1)])[local].result()
    eventually(lambda: local in world.target_admin.list_topics(timeout=5).topics)
    there = Traffic(world.target_servers, local, "b", 1).start()
    eventually(lambda: len(there.acknowledged) > 20)
    there.stop()
    world.commit(group, {(world.remote(topic), 0): 80, (local, 0): 7}, target=True)
    assert failback(world, mode="begin", signed_by="ann").divergence.records == 0
    home = failback(world, mode="run", signed_by="ann")
    assert home.reopened > 0
    assert (last_step(world, world.alias), last_step(world, world.target_alias)) == ("open", "close")
    brought = (f"{world.target_alias}.{local}", 0)
    assert world.committed(group, target=False) == {(topic, 0): (80, ""), brought: (7, "")}
    assert world.mirror().records == 0
    for offset in (9, 12):  # of a topic that is the flow back's, the history keeps each position, too
        world.commit(group, {brought: offset})
        world.checkpoint()
    plan = {one.topic: one for one in failover(world, source="dead").lines if one.group_id == group}
    assert (plan[brought[0]].upstream_offset, plan[brought[0]].target_topic) == (12, local)
    assert plan[brought[0]].downstream_offset == 12
    (known,) = [row["known"] for row in world.ledger.last_checkpoints(world.flow) if row["known"].topic == brought[0]]
    now = datetime.now(UTC).replace(tzinfo=None)
    former = replace(known, upstream_offset=7, reason=str(PositionReason.NOT_OF_FLOW), created_at=now)
    world.ledger.append("checkpoints", [former])  # as without a flow back, where only the first offset is recorded
    (unknown,) = [one for one in failover(world, source="dead").lines if one.topic == brought[0]]
    assert (unknown.status, unknown.downstream_offset, unknown.go) == (Status.NOT_COVERED, None, False)


# -- the whole story --------------------------------------------------------------------------------


def test_the_source_dies_in_traffic_everybody_moves_works_there_and_goes_home_and_only_what_is_listed_is_left_behind(
    servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path, root: Path
) -> None:
    jars = root / ".local/jars/kafka"
    alias = f"s{uuid.uuid4().hex[:8]}"
    with running(LocalCluster("a", tmp_path / "a", jars)) as a:
        settings = {
            "replication.policy.class": "IdentityReplicationPolicy",
            "topics": f"{alias}-.*",
            "groups": f"{alias}-.*",
            "mirrorlake.retry.timeout.ms": "0",
            "mirrorlake.connect.timeout.ms": "10000",
            f"{alias}->{alias}b.enabled": "true",
            f"{alias}b->{alias}.enabled": "true",
        }
        world = World(a.bootstrap_servers, servers[1], tmp_path / "w", spark, warehouse, settings, alias, f"{alias}b")
        home = home_of(world)
        topic = world.topic(partitions=2)

        # Traffic, a mirror, groups; then the source is killed in the middle of it.
        traffic = Traffic(a.bootstrap_servers, topic, "a").start()
        eventually(lambda: len(traffic.acknowledged) > 300)
        world.mirror()
        early = world.commit("early", {(topic, 0): 40, (topic, 1): 55})
        late = world.commit(
            "late",
            {(topic, partition): records[-1][0] + 1 for partition, records in world.source_records(topic).items()},
        )
        world.checkpoint()
        mirror, said = threading.Thread(target=_until_it_fails, args=(world,)), len(world.lines)
        mirror.start()
        eventually(lambda: any(" batch=1 " in text for text in world.lines[said:]) and len(traffic.acknowledged) > 900)
        a.stop_broker(1, kill=True)
        traffic.stop()
        mirror.join()

        # All groups move to the target; the source is not read.
        moved = failover(world, mode="failover", signed_by="ann", accept="clamped, lag")
        assert not moved.is_source_alive
        assert {one.outcome for one in moved.lines} == {"committed"}
        copied = texts(world.target_records(topic))
        for group, offsets in (
            (early, {0: 40, 1: 55}),
            (late, {one.partition: one.upstream_offset for one in moved.lines if one.group_id == late}),
        ):
            for partition, offset in offsets.items():
                assert [
                    value.decode() for value in consume_as(world.target_servers, group, [topic])[topic, partition]
                ] == copied[partition][offset:]

        # They work there.
        there = Traffic(world.target_servers, topic, "b").start()
        eventually(lambda: len(there.acknowledged) > 200)
        there.stop()
        log = world.target_records(topic)
        local = {
            partition: [offset for offset, record in records if record[1].startswith(b"b")]
            for partition, records in log.items()
        }
        inside = world.commit(
            "inside",
            {(topic, partition): offsets[len(offsets) // 2] for partition, offsets in local.items()},
            target=True,
        )
        done = world.commit(
            "done", {(topic, partition): records[-1][0] + 1 for partition, records in log.items()}, target=True
        )
        world.commit(early, {(topic, partition): copies[60][0] for partition, copies in log.items()}, target=True)

        # The old source comes back: its diverged tail is computed, exported and decided about.
        a.start_broker(1)
        lost = {
            partition: values[len(copied[partition]) :]
            for partition, values in texts(world.source_records(topic)).items()
        }
        assert {*traffic.acknowledged} <= {*copied[0], *copied[1], *lost[0], *lost[1]}, (
            "a record is neither mirrored nor listed"
        )
        planned = failback(world)
        assert {tail.partition: tail.records for tail in planned.divergence.tails} == {
            partition: len(values) for partition, values in lost.items()
        }
        assert planned.divergence.records > 0
        with pytest.raises(
            ConfigurationError, match=r"records of cluster .* have diverged\. Set parameter diverged: drop leaves"
        ):
            failback(world, mode="begin", signed_by="ann")
        with pytest.raises(GateError, match="have diverged, and no decision about them was recorded"):
            failback(world, mode="run", signed_by="ann")
        for one in (world, home):
            one.write_config(**{"mirrorlake.retry.timeout.ms": "60000"})
        begun = failback(world, "drop", f"json:{tmp_path}/tail", mode="begin", signed_by="ann")
        assert {tail.partition: tail.records for tail in begun.divergence.tails} == {
            partition: len(values) for partition, values in lost.items()
        }
        assert begun.divergence.records > 0
        assert begun.reapplied == 0
        exported = [
            json.loads(text) for file in (tmp_path / "tail").glob("*.json") for text in file.read_text().splitlines()
        ]
        assert sorted(base64.b64decode(row["value"]).decode() for row in exported) == sorted(lost[0] + lost[1])
        with pytest.raises(ConfigurationError, match="was failed over"):
            world.mirror()

        # The flow back mirrors the target's records while groups continue; then the groups follow.
        home.mirror()
        final = failback(world, mode="run", signed_by="ann", close="true", accept="ahead")
        assert final.reopened > 0
        final_lines = {one.group_id for one in final.failover.lines}
        assert final_lines == {early, done, late, inside}

        assert {*traffic.acknowledged, *there.acknowledged} <= {
            value for values in texts(world.source_records(topic)).values() for value in values
        }
        assert_nothing_is_lost_but_what_is_listed(world, topic, final_lines, lost)

        # And the flow goes on as before.
        world.produce(topic, 30, 2, seed=5)
        assert world.mirror().records == 30
        assert_the_next_plan_is_exact(world, topic, final_lines, lost)
        assert [found for found in world.gaps(topic) if found[3] == "dropped"]


def _until_it_fails(world: World) -> None:
    with contextlib.suppress(MirrorlakeError):
        world.mirror(interval_s=0.2, run_for_s=60)
