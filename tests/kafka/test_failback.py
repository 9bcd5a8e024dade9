"""Failback on real brokers, and flows in both directions.

The diverged tail is kept whole, exported or mirrored exactly once, even after crashes. Every group continues
at its exact position.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic
from mirrorlake.errors import ConfigurationError, GateError
from mirrorlake.failpoint import VARIABLE
from mirrorlake.jobs.failover.divergence import Divergence
from mirrorlake.jobs.failover.failback import Failback
from mirrorlake.jobs.failover.job import Failover
from mirrorlake.jobs.failover.plan import Choice
from mirrorlake.jobs.migration.handback import hand_back
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.model.slot import ClosedFor
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import closed_for

from tests.moving import (
    IDENTITY,
    Traffic,
    assert_nothing_is_lost_but_what_is_listed,
    assert_the_next_plan_is_exact,
    both_ways,
    failback,
    failover,
    text,
    texts,
)
from tests.world import (
    PROCESS_S,
    ROOT,
    Record,
    World,
    consume_as,
    eventually,
    transactional_producer,
    write_in_transaction,
)


def write_tail(world: World, topic: str, each: int) -> None:
    """Writes records of many kinds to two partitions, each unlike the others.

    They have null and empty keys and values, duplicate headers, and timestamps of their own. Some are in transactions,
    one of which is aborted.
    """
    producer = transactional_producer(world.source_servers, f"{topic}-tail", **{"compression.type": "lz4"})
    for name, is_kept in (("x", True), ("aborted", False), ("y", True)):
        producer.begin_transaction()
        for number in range(each):
            for partition in range(2):
                value = None if (name, number) == ("x", 0) else f"tail-{name}-{partition}-{number}".encode()
                headers = [[], [("h", b"1"), ("h", b"2")], [("none", None), ("empty", b"")]][number % 3]
                producer.produce(
                    topic,
                    value,
                    [None, b"", f"k{number}".encode()][number % 3],
                    partition,
                    timestamp=1_700_000_000_000 + 7 * number,
                    headers=headers,
                )
        assert producer.flush(60) == 0  # what is still under way when it is aborted confuses librdkafka
        producer.commit_transaction(60) if is_kept else producer.abort_transaction(60)


def expire(world: World, topic: str, before: int) -> None:
    """Deletes the records of the source before this offset of a topic's first partition, as retention does."""
    place = TopicPartition(topic, 0, before)
    world.source_admin.delete_records([place])[place].result()


def passed_over(world: World, topic: str) -> set[tuple[int, int, str]]:
    """Returns the source offsets of a topic with one partition that a failback has passed over, with the cause."""
    return {
        (row["from_offset"], row["to_offset"], row["kind"])
        for row in world.rows("gaps")
        if row["topic"] == topic and row["kind"] in ("retention", "dropped")
    }


def states(world: World) -> tuple[list[int], str]:
    """Returns the generation of every slot of a flow, and the reason for which it is closed."""
    flow = world.flow
    target = Cluster(flow.target_connection, "target", "test", 10_000).connect()
    try:
        found = offset_syncs.read_all_states(target, flow.offset_syncs_topic, 10_000)
    finally:
        target.close()
    return [state.generation for _, state in sorted(found.items())], closed_for(found.values())


def stored(frame: Any) -> dict[int, list[tuple[int, Record]]]:
    """Returns the rows of an export in the form of `World.source_records`."""
    found: dict[int, list[tuple[int, Record]]] = {}
    for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect():
        headers = (
            None
            if not row["headers"]
            else [(one["key"], None if one["value"] is None else bytes(one["value"])) for one in row["headers"]]
        )
        key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
        found.setdefault(row["partition"], []).append((row["offset"], (key, value, headers, (1, row["ms"]))))
    return found


def test_names_that_are_changed_and_changed_back_the_whole_story_with_the_tail_exported_and_dropped(
    world: World, tmp_path: Path
) -> None:
    world.target_alias = f"{world.alias}b"
    one, other, at = world.alias, world.target_alias, f"{world.alias}-"
    home = both_ways(
        world,
        **{
            "emit.heartbeats.enabled": "true",  # which both flows write to both clusters
            f"{one}->{other}.topics.rename.regex": f"{at}west-(.*)",
            f"{one}->{other}.topics.rename.replacement": f"{at}east-$1",
            f"{other}->{one}.topics.rename.regex": f"{at}east-(.*)",
            f"{other}->{one}.topics.rename.replacement": f"{at}west-$1",
        },
    )
    topic = world.topic("west-orders")
    remote = f"{at}east-orders"
    assert (world.remote(topic), home.remote(remote)) == (remote, topic)
    traffic = Traffic(world.source_servers, topic, "a").start()
    eventually(lambda: len(traffic.acknowledged) > 200)
    traffic.stop()
    before = world.source_records(topic)
    early = world.commit("early", {(topic, 0): 30, (topic, 1): 45})
    late = world.commit("late", {(topic, partition): records[-1][0] + 1 for partition, records in before.items()})

    # Failover: groups continue with the remote topic at their unread records. A producer still writes to the source.
    moved = failover(world, mode="promote", signed_by="ann")
    write_tail(world, topic, 9)
    tail = {partition: records[len(before[partition]) :] for partition, records in world.source_records(topic).items()}
    assert [len(records) for records in tail.values()] == [18, 18]
    assert (moved.generation > 0, {line.outcome for line in moved.lines}) == (True, {"committed"})
    unread = consume_as(world.target_servers, early, [remote])
    assert unread == {
        (remote, partition): [record[1] for offset, record in before[partition] if offset >= {0: 30, 1: 45}[partition]]
        for partition in (0, 1)
    }
    assert consume_as(world.target_servers, late, [remote]) == {(remote, 0): [], (remote, 1): []}
    there = Traffic(world.target_servers, remote, "b").start()
    eventually(lambda: len(there.acknowledged) > 100)
    there.stop()
    log = world.target_records(topic)
    local = {
        partition: [offset for offset, record in records if record[1].startswith(b"b")]
        for partition, records in log.items()
    }
    world.commit(early, {(remote, partition): records[60][0] for partition, records in log.items()}, target=True)
    inside = world.commit(
        "inside", {(remote, partition): offsets[len(offsets) // 2] for partition, offsets in local.items()}, target=True
    )
    done = world.commit(
        "done", {(remote, partition): records[-1][0] + 1 for partition, records in log.items()}, target=True
    )

    # A failed export is refused before any change; a successful one has every record.
    untouched = states(world), states(home)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        ConfigurationError,
        match=r"can't be written to parquet:.*file/tail: .*No decision about these records was recorded",
    ):
        failback(world, "drop", f"parquet:{tmp_path}/file/tail", mode="begin", signed_by="ann")
    assert (states(world), states(home)) == untouched
    assert not [row for row in world.rows("anomalies") if row["kind"] == "diverged"]
    begun = failback(world, "drop", f"parquet:{tmp_path}/tail", mode="begin", signed_by="ann")
    assert (begun.divergence.records, begun.decided) == (36, "drop")
    assert stored(world.spark.read.parquet(f"{tmp_path}/tail")) == tail
    table = f"{world.ledger.schema}.tail_{world.alias}"
    begun.divergence.export(f"delta:{table}")
    begun.divergence.export(f"delta:{tmp_path}/delta")
    try:
        assert (
            stored(world.spark.table(table))
            == stored(world.spark.read.format("delta").load(f"{tmp_path}/delta"))
            == tail
        )
    finally:
        world.spark.sql(f"DROP TABLE {table}")
    world.spark.read.parquet(f"{tmp_path}/tail").filter("partition = 0").write.parquet(f"{tmp_path}/part")
    for place, said in (
        ("parquet:{}/part", "exists, but lacks the diverged records of 1 partitions"),
        ("delta:nowhere_at_all.tail", "can't be written"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            begun.divergence.export(place.format(tmp_path))

    # Failback: first the records written on the target, then the groups.
    final = failback(world, mode="run", signed_by="ann")
    assert (final.reopened > 0, {line.status for line in final.failover.lines}) == (True, {"exact"})
    assert {line.group_id for line in final.failover.lines} == {early, late, inside, done}
    assert {line.again for line in final.failover.lines} == {0}
    assert {*there.acknowledged} <= {
        value for values in texts(world.source_records(topic)).values() for value in values
    }
    assert_nothing_is_lost_but_what_is_listed(world, topic, {early, late, inside, done}, texts(tail))
    world.produce(topic, 8, seed=7)
    world.mirror()
    verified = Verification(world.spark, world.flow, world.ledger, ROOT / "expectations/verification.json").run(
        VerificationScope.parse("full")
    )
    assert verified.passed, "what an operator has dropped is no difference"
    assert verified.total("records") > 0


def test_a_death_in_the_midst_of_reapply_and_the_same_command_again_leave_every_diverged_record_there_once(
    world: World, tmp_path: Path
) -> None:
    home = both_ways(world, **IDENTITY)
    script = Path(__file__).with_name("run_failback.py")
    export = f"parquet:{tmp_path}/tail"
    words = [
        sys.executable,
        str(script),
        world.config,
        world.flow_name,
        world.warehouse,
        Path(world.warehouse).name,
        "reapply",
        export,
    ]
    # Spark starts meanwhile. The process dies when one of two slots is committed.
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, VARIABLE: "driver.committing"},
    )
    try:
        topic = world.topic()
        world.produce(topic, 120)
        group = world.commit("g", {(topic, 0): 10, (topic, 1): 20})
        assert failover(world, mode="promote", signed_by="ann").generation > 0
        before = world.source_records(topic)
        write_tail(world, topic, 10)
        tail = {
            partition: records[len(before[partition]) :] for partition, records in world.source_records(topic).items()
        }
        home.produce(topic, 60, seed=2)
        there = world.target_records(topic)
        output, _ = process.communicate("go\n", timeout=PROCESS_S)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGKILL, output
    assert states(world)[1] is ClosedFor.FAILOVER, "a flow that nobody has opened can be mirrored"
    assert states(home) == ([], "")
    with pytest.raises(ConfigurationError, match="was failed over"):
        world.mirror()

    again = failback(world, "reapply", export, mode="begin", signed_by="ann")
    assert (again.decided, again.reapplied, again.divergence.records) == ("reapply", 20, 20), "the other slot's"
    assert stored(world.spark.read.parquet(f"{tmp_path}/tail")) == tail, "what was exported is all of them, still"
    now = world.target_records(topic)
    for partition, records in now.items():
        assert records[: len(there[partition])] == there[partition], "what was there before is as it was"
        assert [record for _, record in records[len(there[partition]) :]] == [record for _, record in tail[partition]]
    said = world.ledger.of_flow("anomalies", world.flow).filter("kind = 'diverged'").orderBy("partition").collect()
    assert [(row["partition"], row["records"], row["action"]) for row in said] == [
        (0, 20, "reapply, signed by ann"),
        (1, 20, "reapply, signed by ann"),
    ]

    assert home.mirror().records == 60, "the tail is left where it is"
    world.commit(group, {(topic, partition): records[-1][0] + 1 for partition, records in now.items()}, target=True)
    assert failback(world, mode="run", signed_by="ann").reopened > 0
    west, east = world.source_records(topic), world.target_records(topic)
    for partition in (0, 1):
        assert Counter(map(repr, (record for _, record in west[partition]))) == Counter(
            map(repr, (record for _, record in east[partition]))
        )
    assert consume_as(world.source_servers, group, [topic]) == {(topic, 0): [], (topic, 1): []}
    world.assert_accounted(topic)
    home.assert_accounted(topic)
    world.produce(topic, 30, 2, seed=5)
    assert world.mirror().records == 30, "the flow goes on as before"
    middle = world.commit("middle", {(topic, 0): 75, (topic, 1): 90})  # among records that were written on the target
    assert_the_next_plan_is_exact(world, topic, {group, middle}, {})


def test_with_both_sides_written_at_once_and_drained_a_group_goes_on_exactly_or_its_line_says_how_much_it_reads_again(
    world: World,
) -> None:
    home, dice = both_ways(world, **IDENTITY), random.Random(7)
    topic = world.topic()
    world.mirror()  # makes the topic there
    eventually(lambda: topic in world.target_admin.list_topics(timeout=5).topics)
    for servers, name in ((world.target_servers, "y"), (world.source_servers, "x")):
        first = Traffic(servers, topic, name).start()
        eventually(lambda first=first: len(first.acknowledged) > 20)
        first.stop()
    world.mirror()
    new = world.commit("new", {(topic, 0): 0, (topic, 1): 0})
    assert [kind for line in failover(world).lines for kind, _ in line.blocks] == ["uncarried"] * 2, (
        "a flow back that has never run has carried nothing"
    )

    traffic = [
        Traffic(world.source_servers, topic, "a", pause_s=0.2).start(),
        Traffic(world.target_servers, topic, "b", pause_s=0.2).start(),
    ]
    with world.mirroring(), home.mirroring():
        eventually(lambda: all(len(one.acknowledged) > 20 for one in traffic))
        eventually(lambda: all(sum(map(len, one.target_records(topic).values())) > 20 for one in (world, home)))
    seen = [len(one.acknowledged) for one in traffic]
    eventually(lambda: all(len(one.acknowledged) > count + 40 for one, count in zip(traffic, seen, strict=True)))
    for one in traffic:
        one.stop()

    # Records that the flow back has not mirrored have no counterpart yet: a group that would skip them stays.
    world.mirror()
    records, copies = world.source_records(topic), world.target_records(topic)
    read = world.commit("read", {(topic, partition): found[-1][0] + 1 for partition, found in records.items()})
    for line in failover(world).lines:
        carried = {record[1] for _, record in records[line.partition]}
        skipped = sum(
            record[1] not in carried for offset, record in copies[line.partition] if offset < line.downstream_offset
        )
        said = [re.findall(r"[\d,]+", reason)[0] for kind, reason in line.blocks if kind == "uncarried"]
        assert said == [f"{skipped:,}"] * (skipped > 0)
        assert skipped or line.group_id == new, "nothing was left to be carried"
    home.mirror()

    assert {row["shared"] for row in world.rows("offset_syncs")} == {True}, "SQL would call its answers exact"

    west, east = texts(world.source_records(topic)), texts(world.target_records(topic))
    for partition in west:
        assert sorted(west[partition]) == sorted(east[partition]), "each record is on both sides"
        assert len({*west[partition]}) == len(west[partition]), "once"
    assert west != east, "nothing was written at once"

    records, copies = world.source_records(topic), world.target_records(topic)
    ends = {partition: found[-1][0] + 1 for partition, found in records.items()}
    world.commit(read, {(topic, partition): end for partition, end in ends.items()})
    inside = [
        world.commit(f"g{number}", {(topic, partition): dice.randint(0, end) for partition, end in ends.items()})
        for number in range(12)
    ]
    plan = failover(world, mode="rehearse")
    assert {line.proof for line in plan.lines} <= {"same record", "within bounds", "at the end"}
    for line in plan.lines:
        unread = {record[1] for offset, record in records[line.partition] if offset >= line.upstream_offset}
        to_come = {record[1] for offset, record in copies[line.partition] if offset >= line.downstream_offset}
        assert unread <= to_come, "skips"
        assert len(to_come - unread) == line.again, "reads again, and the line says less"
        assert {kind for kind, _ in line.blocks} == ({"again"} if line.again else set())
    blocked = {line.group_id for line in plan.lines if line.again}
    assert blocked
    assert not blocked & {new, read}

    with pytest.raises(GateError, match=r"no-go; no group was touched.*again"):
        failover(world, mode="promote", signed_by="ann")
    for group in blocked:  # they read on until they are past that
        world.commit(group, {(topic, partition): end for partition, end in ends.items()})
    done = failover(world, mode="promote", signed_by="ann")
    assert done.generation > 0
    for group in (new, read, *inside):
        at = {partition: world.committed(group, target=False)[topic, partition][0] for partition in ends}
        unread = {
            partition: {text(record[1]) for offset, record in records[partition] if offset >= at[partition]}
            for partition in ends
        }
        got = consume_as(world.target_servers, group, [topic])
        assert {partition: Counter(map(text, got[topic, partition])) for partition in ends} == {
            partition: Counter(unread[partition]) for partition in ends
        }


def test_records_that_come_while_a_failback_runs_or_that_a_transaction_hides_are_decided_about_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_ways(world, **IDENTITY)
    topic, expired, gone = world.topic(partitions=1), world.topic("expired", 1), world.topic("gone", 1)
    world.produce(topic, 20, 1)
    for one in (expired, gone):
        world.produce(one, 10, 1)
    group = world.commit("g", {(topic, 0): 5})
    assert failover(world, mode="promote", signed_by="ann").generation > 0
    for one, before in ((expired, 14), (gone, 16)):
        world.produce(one, 6, 1, seed=2)
        expire(world, one, before)
    producer = transactional_producer(world.source_servers, f"{topic}-open")
    write_in_transaction(producer, topic)
    world.produce(topic, 3, 1)  # acknowledged, and hidden
    planned = failback(world)
    assert planned.to_json()["open_transactions"] == 1, "a plan tells of it"
    assert planned.stopped_by == {
        "open_transaction": "1 partitions have an open transaction on the source",
        "diverged": "2 records have diverged, to decide about (mode = begin, diverged)",
    }
    assert not planned.go
    shown = planned.divergence.table()[["topic", "from_offset", "records", "deleted_from", "deleted"]]
    assert shown.to_numpy().tolist() == [[expired, 14, 2, 10, 4], [gone, 16, 0, 10, 6]]
    for mode in ("rehearse", "begin"):
        with pytest.raises(
            GateError, match=rf"a transaction is open in {topic}-0 since offset 20.*nothing was decided"
        ):
            failback(world, mode=mode, signed_by="ann")
    producer.abort_transaction(60)
    assert failback(world, "drop", mode="begin", signed_by="ann").divergence.records == 2 + 3
    assert passed_over(world, expired) == {(10, 14, "retention"), (14, 16, "dropped")}
    assert passed_over(world, gone) == {(10, 16, "retention")}
    said = [row for row in world.rows("anomalies") if row["kind"] == "retention"]
    assert {(row["topic"], row["from_offset"], row["to_offset"], row["action"]) for row in said} == {
        (expired, 10, 14, "continue"),
        (gone, 10, 16, "continue"),
    }

    drain = Failover._drain

    def drain_while_they_write(failover: Failover, target: Cluster) -> int:
        drained = drain(failover, target)
        world.produce(topic, 4, 1, seed=3)
        return drained

    with monkeypatch.context() as patched:
        patched.setattr(Failover, "_drain", drain_while_they_write)
        with pytest.raises(GateError, match=r"4 records of cluster .* have diverged.*No group was touched"):
            failback(world, mode="run", signed_by="ann")
    assert world.committed(group, target=False) == {(topic, 0): (5, "")}

    note = Failback._note

    def note_while_another_decides(job: Failback, divergence: Divergence, decide: str, choice: Choice) -> None:
        note(job, divergence, decide, choice)
        if decide == "drop":
            assert failback(world, "reapply", mode="begin", signed_by="bob").reapplied == 4

    with monkeypatch.context() as patched:
        patched.setattr(Failback, "_note", note_while_another_decides)
        with pytest.raises(ConfigurationError, match=r"another process has moved the flow from offset \d+ .* to \d+ "):
            failback(world, "drop", mode="begin", signed_by="ann")
    world.produce(gone, 3, 1, seed=4)
    expire(world, gone, 19)
    assert failback(world, mode="run", signed_by="ann").reopened > 0
    assert len(world.target_records(topic)[0]) == 24, "once"
    assert passed_over(world, gone) == {(10, 16, "retention"), (16, 19, "retention")}
    world.produce(gone, 1, 1, seed=5)
    assert world.mirror().records == 1, "the flow does not stop at what nobody can mirror any more"


def test_records_that_a_flow_back_has_left_behind_when_it_was_failed_over_are_not_skipped(world: World) -> None:
    home = both_ways(world, **IDENTITY)
    topic = world.topic(partitions=1)
    world.produce(topic, 10, 1)
    world.mirror()
    home.mirror()
    assert failover(home, mode="promote", signed_by="ann", close="true").generation > 0
    with pytest.raises(ConfigurationError, match=r"was failed over: .*MirrorMaker 2 would copy the diverged tail"):
        hand_back(home.flow)
    home.produce(topic, 5, 1, seed=2)  # the diverged tail of the flow back
    world.produce(topic, 10, 1, seed=3)
    world.mirror()
    world.commit("g", {(topic, 0): 20})
    (one,) = failover(world).lines
    assert [kind for kind, _ in one.blocks] == ["uncarried"]
    assert "has not mirrored 5 records yet" in one.blocks[0][1]


def test_a_map_of_the_way_back_whose_topic_was_created_anew_places_no_group(world: World) -> None:
    home = both_ways(world, **IDENTITY, **{"mirrorlake.on.loss": "continue"})
    topic = world.topic(partitions=1)
    world.mirror()
    home.produce(topic, 10, 1)
    home.mirror()
    assert failover(home, mode="promote", signed_by="ann", close="true").generation > 0
    world.commit("g", {(topic, 0): 5})
    (one,) = failover(world).lines
    assert (one.status, one.downstream_offset) == ("exact", 5), "the records came from there"
    world.target_admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in world.target_admin.list_topics(timeout=5).topics)
    world.target_admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    (one,) = failover(world).lines
    assert one.status != "exact", "a closed flow does not notice that its topic is another one"
    assert one.open_blocks
    home.produce(topic, 5, 1, seed=2)
    world.produce(topic, 10, 1, seed=3)
    world.mirror()
    world.commit("g", {(topic, 0): 15})
    (one,) = failover(world).lines
    assert "uncarried" in dict(one.blocks), "what the flow back has carried of the former topic are other records"
    assert "has not mirrored 5 records yet" in dict(one.blocks)["uncarried"]


def test_records_before_the_start_of_the_flow_home_are_told_though_the_flow_away_has_written_before_them(
    world: World,
) -> None:
    home = both_ways(world, **IDENTITY)
    topics = world.topic("right", 1), world.topic("wrong", 1)
    for topic in topics:
        world.produce(topic, 30, 1)
    world.mirror()
    for topic in topics:
        home.produce(topic, 40, 1, seed=2)
    ends = {topic: home.source_records(topic)[0][-1][0] + 1 for topic in topics}
    starts = dict(zip(topics, (ends[topics[0]] - 40, ends[topics[1]] - 20), strict=True))
    both_ways(world, **IDENTITY, **{f"mirrorlake.start.topic.{topic}": f"0:{at}" for topic, at in starts.items()})
    assert home.mirror().records == 40 + 20
    group = world.commit("g", {(topic, 0): 25 for topic in topics}, target=True)
    lines = {one.topic: one for one in failover(home).lines if one.group_id == group}
    assert (lines[topics[0]].lost, lines[topics[0]].blocks) == (0, ()), "the flow away has brought what is before"
    assert lines[topics[1]].lost == 20
    assert (
        "20 offsets from 25 on are before the first mirrored record" in dict(lines[topics[1]].blocks)["before_mirror"]
    )


def test_what_was_written_to_a_topic_after_its_own_promotion_is_reapplied_once_with_the_rest(world: World) -> None:
    home = both_ways(world, **IDENTITY)
    orders, audit = world.topic("orders", 1), world.topic("audit", 1)
    for topic in (orders, audit):
        world.produce(topic, 20, 1)
    world.commit("movers", {(orders, 0): 10})
    world.commit("stayers", {(audit, 0): 10})
    failover(world, mode="promote", topics=orders, signed_by="ann")
    assert failover(world, mode="promote", signed_by="ann").generation > 0
    for topic, records in ((orders, 5), (audit, 5)):
        world.produce(topic, records, 1, seed=2)
    expire(world, audit, 22)
    begun = failback(world, "reapply", mode="begin", signed_by="ann")
    assert (begun.divergence.records, begun.reapplied) == (8, 8)
    assert passed_over(world, audit) == {(20, 22, "retention")}
    planned = failback(world)
    assert planned.divergence.table().empty
    assert planned.stopped_by == {}
    held = world.topic("held", 1)
    world.produce(held, 2, 1, seed=2)
    both_ways(world, **IDENTITY, **{"replication.factor": "5"})  # the target has one broker
    with pytest.raises(GateError, match=rf"topic {held}, partition 0, offsets 0 to 2: 2 diverged .* was not opened"):
        failback(world, "reapply", mode="begin", signed_by="ann")
    both_ways(world, **IDENTITY, **{"replication.factor": "1"})
    again = failback(world, "reapply", mode="begin", signed_by="ann")
    assert (again.divergence.records, again.reapplied) == (2, 2)
    for topic, records in ((orders, 25), (audit, 23)):
        assert len(world.target_records(topic)[0]) == records
    back = failover(home, mode="promote", topics=orders, signed_by="ann")
    assert [(one.topic, one.outcome) for one in back.lines] == [(orders, "in_step")], "one topic goes home first"
    failback(world, mode="run", accept="losses", signed_by="ann")
    world.produce(orders, 1, 1, seed=4)
    assert world.mirror().records == 1
