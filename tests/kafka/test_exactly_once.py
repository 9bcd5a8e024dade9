"""Exactly-once, tested by kills: after each crash a new job continues, and the target equals the source.

No record is missing, and none is there twice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from mirrorlake.config.reload import LiveFlow
from mirrorlake.errors import FencedError, GateError, LedgerError, MirrorlakeError, TargetError
from mirrorlake.failpoint import VARIABLE
from mirrorlake.jobs.mirror import gate_frame
from mirrorlake.jobs.mirror.copy import task
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.ledger import store, views
from mirrorlake.ledger.tables import TABLES
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import Position, SlotState, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.batches.messages import encode_message
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state import offset_syncs
from mirrorlake.state.generation import Beginning, begin_generation
from mirrorlake.state.offset_syncs import read_all_states, read_states
from mirrorlake.state.slot_report import SlotReport

from tests import forked_mirror
from tests.disk import fill, small_disk
from tests.world import PROCESS_S, World, eventually, read_committed

MAP = ("offset_syncs", "gaps")
SCRIPT = Path(__file__).with_name("run_mirror.py")


def start(world: World, *times: float, failpoint: str = "") -> subprocess.Popen[str]:
    """Starts the mirror job in a process; without Spark in a world without Spark."""
    words = [sys.executable, str(SCRIPT), *arguments(world), *map(str, times)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, VARIABLE: failpoint}
    )


def arguments(world: World) -> list[str]:
    warehouse = world.warehouse if world.runs_on_spark else ""
    return [world.config, world.flow_name, warehouse, Path(world.warehouse).name]


def sources(world: World) -> tuple[str, str]:
    """Fills two topics, one of them in transactions."""
    plain, transactional = world.topic("plain", 3), world.topic("transactional", 2)
    world.produce(plain, 1_500, 3, seed=1)
    world.produce_transactions(transactional, 20, 20, seed=2)
    return plain, transactional


def die(world: World, failpoint: str) -> tuple[str, str]:
    """Mirrors in several micro-batches with a process that is killed at a step; returns the topics."""
    topics = sources(world)
    world.write_config(**{"mirrorlake.batch.max.records": "600"})
    kill(world, failpoint)
    return topics


def kill(world: World, failpoint: str) -> None:
    """Mirrors with a process that is killed at a step."""
    if world.runs_on_spark:
        process = start(world, failpoint=failpoint)
        output, _ = process.communicate(timeout=PROCESS_S)
        code = process.returncode
    else:
        printed = world.directory / "killed.log"
        code = forked_mirror.run(arguments(world), failpoint, printed, deadline_s=PROCESS_S)
        output = printed.read_text()
    assert code == -signal.SIGKILL, output


def assert_carried_on(world: World, topics: tuple[str, str]) -> None:
    """Mirrors the rest with another job; asserts that no record is lost or twice, and no transaction open."""
    for topic in topics:
        world.produce(topic, 100, seed=3)
    world.mirror()
    world.assert_equal(*topics)
    world.assert_nothing_open()


STEPS = ("planned", "copied", "gated", "committed")
TASK_STEPS = ("initialised", "compared", "producing", "copied", "written")


@pytest.mark.parametrize("step", [*(f"driver.{step}" for step in STEPS), *(f"task.{step}" for step in TASK_STEPS)])
def test_a_job_killed_at_any_step_leaves_nothing_lost_or_twice(plain_world: World, step: str) -> None:
    assert_carried_on(plain_world, die(plain_world, f"{step}:3"))


def test_a_driver_killed_between_the_commits_of_two_slots_leaves_nothing_lost_or_twice(plain_world: World) -> None:
    topics = die(plain_world, "driver.committing:3")  # two slots: the second micro-batch is committed by half
    commits = [sum(map(bool, runs)) for runs in runs_of_commits(plain_world).values()]
    assert sorted(commits) == [1, 2], "the driver was to die between the two EndTxn of its second micro-batch"
    assert_carried_on(plain_world, topics)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_a_job_in_a_backlog_and_leaves_no_transaction_open(plain_world: World, number: int) -> None:
    plain_world.write_config(**{"mirrorlake.batch.max.records": "200"})
    plain, transactional = sources(plain_world)
    for seed in range(4, 14):
        plain_world.produce(plain, 1_500, 3, seed=seed)
    process = start(plain_world)
    eventually(lambda: any(map(len, plain_world.target_records(plain).values())))
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert re.search(r"lag=[1-9]", output), "there was a backlog still"
    assert plain_world.open_transactions() == []
    plain_world.write_config(**{"mirrorlake.batch.max.records": "10000"})
    assert_carried_on(plain_world, (plain, transactional))


@pytest.mark.parametrize("step", ["task.written", "driver.copied"])
def test_an_interrupt_in_a_micro_batch_aborts_its_transactions(plain_world: World, step: str) -> None:
    topic, interrupted = plain_world.topic(partitions=1), list[str]()
    plain_world.produce(topic, 100, 1)

    def interrupt(reached: str) -> None:
        if reached == step and not interrupted:
            interrupted.append(reached)
            raise KeyboardInterrupt

    assert plain_world.disturbed_job(interrupt).run(None).records == 0
    assert interrupted
    assert plain_world.open_transactions() == []
    assert plain_world.mirror().records == 100
    plain_world.assert_equal(topic)


def runs_of_commits(world: World) -> dict[int, list[list[Any]]]:
    """Returns the runs of each committed transaction, by slot."""
    found = read_committed(world.target_servers, world.flow.offset_syncs_topic)
    return {
        slot: [SlotState.from_json(value).runs for _, (_, value, _, _) in records] for slot, records in found.items()
    }


def test_a_driver_on_spark_killed_twice_leaves_nothing_lost_or_twice(spark_world: World) -> None:
    topics = die(spark_world, "driver.committed:2")
    kill(spark_world, "driver.ledger")
    assert_carried_on(spark_world, topics)


def test_sigterm_ends_a_job_on_spark_between_two_micro_batches(
    spark_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORLAKE_TEST_LEDGER", "memory")  # the first append of a JVM takes ten seconds
    spark_world.write_config(**{"mirrorlake.batch.max.records": "200"})
    plain, transactional = sources(spark_world)
    process = start(spark_world)
    assert process.stdout is not None
    lines = list[str]()
    for line in process.stdout:
        lines.append(line)
        if "micro_batch_committed" in line:
            process.send_signal(signal.SIGTERM)
            break
    lines += process.stdout.readlines()
    assert process.wait(120) == 0, "".join(lines)
    assert re.search(r"lag=[1-9]", "".join(lines)), "there was a backlog still"
    assert spark_world.open_transactions() == []
    assert_carried_on(spark_world, (plain, transactional))


@pytest.mark.parametrize("step", ["task.producing", "task.written"])
def test_a_task_on_spark_killed_at_any_step_is_done_again_by_the_same_job(
    spark_world: World, step: str, tmp_path: Path
) -> None:
    topics = sources(spark_world)
    result = spark_world.mirror(failpoint=f"{step}@{tmp_path / 'killed'}")
    assert (tmp_path / "killed").exists(), "the failpoint was not reached"
    assert any("a copy task was lost" in line for line in spark_world.lines)
    assert result.records == spark_world.assert_equal(*topics)
    for more, small, is_lost in ((90, 100, False), (110, 100, True)):  # a few records need no task
        (tmp_path / "killed").unlink()
        spark_world.produce(topics[0], more, 3, seed=more)
        spark_world.small_records = small
        assert spark_world.mirror(failpoint=f"{step}@{tmp_path / 'killed'}").records == more
        assert (tmp_path / "killed").exists() is is_lost
        (tmp_path / "killed").touch()
    assert spark_world.assert_equal(*topics) == result.records + 200
    spark_world.assert_nothing_open()


def test_an_attempt_whose_sequence_a_broker_refuses_is_aborted_and_done_again(plain_world: World) -> None:
    """Somebody else produces in the name of the task, so that the broker expects another sequence number (code 45)."""
    topic, interfered = plain_world.topic(partitions=1), list[str]()
    plain_world.produce(topic, 100, 1)
    plain_world.mirror()
    plain_world.produce(topic, 100, 1, seed=2)

    def interfere(step: str) -> None:
        if step == "task.compared" and not interfered:
            interfered.append(step)
            with closing(Cluster(plain_world.flow.target_connection, "target", "test").connect()) as other:
                produce_as(other, plain_world.flow.transactional_id(0), plain_world.remote(topic))

    assert plain_world.disturbed_job(interfere).run(None).records == 100
    assert interfered
    assert any("OutOfOrderSequenceNumberError (45)" in line for line in plain_world.lines)
    assert plain_world.assert_equal(topic) == 200
    plain_world.assert_nothing_open()


def produce_as(cluster: Cluster, transactional_id: str, topic: str) -> None:
    """Produces a record to partition 0 in the open transaction of another producer."""
    cluster.refresh([topic], 10_000)

    async def attempt() -> None:
        coordinator = await cluster.coordinator(transactional_id)
        described = await cluster.ask(DescribeTransactionsRequest[0](transactional_ids=[transactional_id]), coordinator)
        (state,) = described.transaction_states
        theirs = transaction.Producer(transactional_id, state.producer_id, state.producer_epoch)
        batch = encode_message(theirs, 0, timestamp=1, key=b"", value=b"")
        produced = await cluster.produce(cluster.leader(topic, 0), transactional_id, {(topic, 0): batch}, 10_000)
        assert list(cluster.produced(produced))

    cluster.call("producing as the task", attempt, 10_000)


def test_a_task_whose_plan_is_late_finds_its_work_done(plain_world: World) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 300, partitions=1)
    generation, flow = plain_world.mirror().generation, plain_world.flow
    connections = task.worker_connections(flow)
    target = connections[1]
    target.refresh([flow.offset_syncs_topic], 10_000)
    states = read_states(target, flow.offset_syncs_topic, range(2), 10_000)
    ((_, position),) = merge_positions(states.values()).items()

    def late(end: int) -> SlotReport | MirrorlakeError:
        planned = Range(topic, 0, position.topic_id, 1, position.slot, 0, end)
        return copy_slot(flow, lambda: connections, position.slot, 2, generation, [planned])

    report = late(300)
    assert isinstance(report, SlotReport)
    assert (report.is_open, report.stretches) == (False, [])
    plain_world.produce(topic, 100, partitions=1, seed=2)
    report = late(400)
    assert isinstance(report, SlotReport)
    assert [(stretch["upstream_from"], stretch["upstream_next"]) for stretch in report.stretches] == [(300, 400)]
    transaction.end(target, report.producer, commit=True, timeout_ms=10_000)
    plain_world.mirror()
    assert plain_world.assert_equal(topic) == 400


def test_a_task_copies_nothing_for_an_older_job_or_where_the_state_of_its_slot_is_behind_its_plan(
    plain_world: World,
) -> None:
    topic = plain_world.topic(partitions=1)
    plain_world.produce(topic, 300, partitions=1)
    generation, flow = plain_world.mirror().generation, plain_world.flow
    connections = task.worker_connections(flow)
    states = read_all_states(connections[1], flow.offset_syncs_topic, 10_000)
    ((_, position),) = merge_positions(states.values()).items()
    plain_world.produce(topic, 100, partitions=1, seed=2)

    def planned(start: int, generation: int) -> SlotReport | MirrorlakeError:
        ranges = [Range(topic, 0, position.topic_id, 1, position.slot, start, 400)]
        return copy_slot(flow, lambda: connections, position.slot, 2, generation, ranges)

    assert isinstance(planned(300, generation - 1), FencedError)
    behind = planned(350, generation)
    assert isinstance(behind, TargetError)
    assert "the committed position is 300, before the plan's start 350" in behind.message
    plain_world.mirror()
    assert plain_world.assert_equal(topic) == 400


def test_a_new_planner_places_no_partition_that_a_slot_may_have_begun_by_a_commit_that_can_not_be_read_yet(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, flow, plans = plain_world.topic("b", partitions=1), plain_world.flow, list[dict[tuple[str, int], int]]()
    read, before = offset_syncs.read_states_and_ends, list[tuple[dict[int, SlotState], dict[int, int]]]()
    plain_world.produce(later, 100, partitions=1)

    def planned() -> dict[tuple[str, int], int]:
        planner = Planner(LiveFlow(plain_world.config, flow), until_now=True)
        try:
            plan = planner.latest()
        finally:
            planner.close()
        assert plan.is_waiting == (not plan.ranges)
        assert plan.held == {}
        return {(one.topic, one.partition): one.slot for one in plan.ranges}

    def look(step: str) -> None:
        if step == "driver.gated" and not plans:  # slot 0 has the records and the state, and readers don't see them yet
            earlier = plain_world.topic("a", partitions=1)
            plain_world.produce(earlier, 100, partitions=1)
            remote = plain_world.remote(earlier)
            plain_world.target_admin.create_topics([NewTopic(remote, 1, 1)])[remote].result()
            with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
                target.refresh([flow.offset_syncs_topic], 30_000)
                before.append(read(target, flow.offset_syncs_topic, range(2), 30_000))
            plans.append(planned())
        if step == "driver.committed" and len(plans) == 1:
            with monkeypatch.context() as patch:  # the records can be read by now, and the state that was read can't
                patch.setattr(offset_syncs, "read_states_and_ends", lambda *_: before[0])
                assert planned() == {}, "the flow's own records are not those of another program"
            eventually(lambda: plans.append(planned()) or plans[-1], 20, "a plan after the commit")

    plain_world.disturbed_job(look).run(None)
    first, *_, last = plans
    assert first == {}, "the topic that is first by its name would push the other one into the other slot"
    assert last == {(f"{plain_world.alias}-a", 0): 1}
    plain_world.mirror()
    assert plain_world.assert_equal(later, f"{plain_world.alias}-a") == 200


def test_a_target_whose_states_go_back_behind_the_generation_of_a_job_is_named(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_world.write_config(**{"mirrorlake.retry.timeout.ms": "500"})
    topic, flow, honest = plain_world.topic(partitions=1), plain_world.flow, offset_syncs.read_states_and_ends
    plain_world.produce(topic, 100, partitions=1)
    generation = plain_world.mirror().generation
    with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
        target.refresh([flow.offset_syncs_topic], 30_000)
        before = honest(target, flow.offset_syncs_topic, range(2), 30_000)
    plain_world.produce(topic, 100, partitions=1, seed=1)
    opened: list[str] = []

    def go_back(step: str) -> None:
        opened.extend([step] * (step == "driver.opening"))
        if len(opened) == 2:
            monkeypatch.setattr(offset_syncs, "read_states_and_ends", lambda *_: before)

    with pytest.raises(TargetError, match=f"went back from generation {generation + 1} to {generation}"):
        plain_world.disturbed_job(go_back).run(None)


def test_a_start_between_whose_slots_an_attempt_of_an_older_job_comes_opens_the_next_generation(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ENDED_AT_ONCE", 1)
    topic, flow, begun = plain_world.topic(partitions=2), plain_world.flow, list[str]()
    plain_world.produce(topic, 100)
    generation = plain_world.mirror().generation

    def come_between(step: str) -> None:
        if step == "driver.opening" and not begun:  # slot 0 is opened, slot 1 is not
            begun.append(step)
            with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
                transaction.begin(target, flow.transactional_id(1), 10_000, 10_000)

    plain_world.produce(topic, 100, seed=1)
    assert plain_world.disturbed_job(come_between).run(None).generation == generation + 2
    assert plain_world.assert_equal(topic) == 200


def test_a_first_start_between_whose_slots_another_attempt_comes_keeps_its_start_offsets(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ENDED_AT_ONCE", 1)
    topic, flow, begun = plain_world.topic(partitions=4), plain_world.flow, list[str]()
    plain_world.write_config(**{"mirrorlake.start.new": "latest", "mirrorlake.slots": "2"})
    plain_world.produce(topic, 200)

    def come_between(step: str) -> None:
        if step == "driver.opening" and not begun:
            begun.append(step)
            with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
                transaction.begin(target, flow.transactional_id(1), 10_000, 10_000)

    result = plain_world.disturbed_job(come_between).run(None)
    assert (result.generation, result.records) == (2, 200)


def test_of_two_jobs_of_one_flow_the_older_is_fenced_and_says_so(plain_world: World) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 500)
    older = start(plain_world, 0.2, 120)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(older.stdout or []))
    reader.start()
    eventually(lambda: any("micro_batch_committed" in line for line in lines), 120, "the first batch of the older job")
    stop = threading.Event()

    def produce() -> None:
        seed = 10
        while not stop.is_set():
            plain_world.produce(topic, 50, seed=(seed := seed + 1))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with plain_world.mirroring():
            assert older.wait(60) != 0
    finally:
        stop.set()
        producer.join()
        older.kill()
        reader.join()
    assert "a newer mirror job (generation 2) has fenced this one (generation 1)" in "".join(lines), lines[-5:]
    plain_world.mirror()
    plain_world.assert_equal(topic)


def test_a_newer_job_takes_over_from_one_that_is_busy_also_where_its_start_takes_longer_than_micro_batches(
    plain_world: World,
) -> None:
    """As with many slots, or a far target: the older job could begin new transactions of all slots in the meantime."""
    plain_world.write_config(**{"mirrorlake.slots": "1"})
    topic = plain_world.topic(partitions=4)
    plain_world.produce(topic, 500, 4)
    stop = threading.Event()

    def produce() -> None:
        seed = 10
        while not stop.is_set():
            plain_world.produce(topic, 50, 4, seed=(seed := seed + 1))

    def dawdle(step: str) -> None:
        if step == "driver.stated":
            time.sleep(0.7)  # what a start takes, not a wait for something

    producer = threading.Thread(target=produce)
    flow = plain_world.flow

    def take_over() -> None:
        with plain_world.mirroring(interval_s=0.0) as older:
            eventually(lambda: plain_world.batches, what="the first batch of the older job")
            producer.start()
            with closing(Cluster(flow.target_connection, "target", "test", 10_000).connect()) as target:
                assert begin_generation(flow, "", target, slots=1, failpoint=dawdle) >= 2
            eventually(older.done, what="the end of the older job")

    try:
        with pytest.raises(FencedError, match="a newer mirror job"):
            take_over()
    finally:
        stop.set()
        producer.join()
    plain_world.mirror()
    plain_world.assert_equal(topic)


def test_two_jobs_started_at_the_same_moment_leave_one(plain_world: World) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 2_000)
    plain_world.mirror()
    plain_world.produce(topic, 2_000, seed=2)
    jobs = [plain_world.mirror_job() for _ in range(2)]
    outcomes: list[object] = []

    def run(job: MirrorJob) -> None:
        try:
            outcomes.append(job.run(0.2))
        except FencedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    eventually(lambda: outcomes, what="the end of one of the jobs")
    eventually(lambda: sum(map(len, plain_world.target_records(topic).values())) == 4_000, what="all records")
    for job in jobs:
        job.stop()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(outcome, FencedError) for outcome in outcomes) == [False, True], outcomes
    plain_world.assert_equal(topic)


def test_a_deleted_spark_checkpoint_directory_changes_nothing(spark_world: World, tmp_path: Path) -> None:
    """The job is killed, so that the checkpoints of its queries remain; then the test deletes them."""
    spark_world.warehouse = str(tmp_path / f"alone_{spark_world.alias}")
    topic = spark_world.topic()
    spark_world.produce(topic, 300)
    process = start(spark_world, 0.2)
    progress = Path(spark_world.warehouse) / Path(spark_world.warehouse).name / "_checkpoints"
    eventually(lambda: list(progress.glob("ledger/*/offsets/*")), PROCESS_S, what="a checkpoint to delete")
    process.kill()
    process.communicate(timeout=60)
    shutil.rmtree(progress)
    spark_world.produce(topic, 300, seed=2)
    spark_world.mirror()
    assert spark_world.assert_equal(topic) == 600
    assert not list(progress.glob("*/*")), "a run that ended has left its checkpoint behind"


def test_deleted_delta_tables_are_rebuilt_identically(world: World, tmp_path: Path) -> None:
    world.warehouse = str(tmp_path / f"alone_{world.alias}")
    topics = sources(world)
    world.write_config(**{"mirrorlake.batch.max.records": "500"})
    world.mirror()
    before = world.ledger.read("offset_syncs").localCheckpoint()
    for name in TABLES:
        world.spark.sql(f"DROP TABLE {world.ledger.table(name)}")
    shutil.rmtree(world.warehouse)
    world.mirror()
    assert before.count() > 5
    assert_df_equality(world.ledger.read("offset_syncs"), before, ignore_row_order=True, ignore_nullable=True)
    world.assert_equal(*topics)


def test_a_full_warehouse_stops_no_copy_but_a_run_fails_at_its_end_and_the_ledger_is_whole_once_there_is_room(
    servers: tuple[str, str], spark: Any, tmp_path: Path
) -> None:
    warehouse = tmp_path / "small"
    world = World(*servers, tmp_path, spark, str(warehouse), keeps_journal=True)
    with small_disk(warehouse, "32m"):
        topic = world.topic(partitions=1)
        world.produce(topic, 100, 1)
        with world.mirroring():
            eventually(lambda: world.metric("ledger_runs_total"), what="an append")
            fill(warehouse / "ballast")
            for seed in (2, 3):
                world.produce(topic, 100, 1, seed=seed)
                eventually(lambda: world.metric("ledger_away_seconds"), what="an append that fails")
                eventually(lambda at=100 * seed: len(world.target_records(topic)[0]) == at, what="copies")
            (warehouse / "ballast").unlink()
            eventually(lambda: not world.metric("ledger_away_seconds"), what="an append once there is room")
            world.produce(topic, 100, 1, seed=4)
            eventually(
                lambda: max(row["upstream_end"] for row in world.rows("offset_syncs")) == 400,
                what="an append of the stream",
            )
        assert world.assert_equal(topic) == 400
        (away,) = (row for row in world.rows("anomalies") if row["kind"] == "ledger_away")
        assert "space left" in away["detail"]

        fill(warehouse / "ballast")
        world.produce(topic, 100, 1, seed=5)
        with pytest.raises(LedgerError, match=r"[Nn]o space left"):
            world.mirror()
        assert len(world.target_records(topic)[0]) == 500
        world.assert_nothing_open()

        def refuse(step: str) -> None:
            raise TargetError(f"refused at {step}")

        world.produce(topic, 1, 1, seed=5)
        with pytest.raises(TargetError, match="refused at"):  # the error of the ledger does not hide that of the job
            world.disturbed_job(refuse).run(None)
        assert any("ledger_behind" in line and "space left" in line for line in world.lines[-5:])
        (warehouse / "ballast").unlink()
        world.produce(topic, 100, 1, seed=6)
        world.mirror()
        assert world.assert_equal(topic) == 601


def test_a_table_of_the_map_that_is_emptied_while_its_stream_runs_is_whole_again_within_seconds_of_appends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(partitions=2)
    world.produce_transactions(topic, 5, 20)
    world.mirror()
    other = replace(world.ledger, schema=f"{world.ledger.schema}_emptied").ensure_tables()

    def rows(name: str, of: store.Ledger) -> Any:
        return of.of_flow(name, world.flow)

    appended: list[int] = []

    def is_appended() -> bool:
        return sum(appended) == views.runs_of_pair(world.ledger, world.flow.source, world.flow.target).count()

    with other.checkpoint("ledger") as place:
        query = other.stream_offset_syncs(
            world.flow, world.flow.slots_on(2), 1, place, lambda count, _: appended.append(count)
        )
        try:
            eventually(is_appended, what="an append")

            def is_whole_after_another_append() -> bool:
                world.produce_transactions(topic, 2, 10, seed=len(appended))
                world.mirror()
                eventually(is_appended, what="the next append")
                return all(rows(name, other).count() == rows(name, world.ledger).count() for name in MAP)

            for name in MAP:
                with monkeypatch.context() as patched:  # the next append comes before the next check
                    patched.setattr(store, "CHECKED_EVERY_S", float("inf"))
                    world.spark.sql(f"DELETE FROM {other.table(name)} WHERE source = '{world.alias}'")
                    assert not is_whole_after_another_append()
                eventually(is_whole_after_another_append, what=f"an append that notices the hole in {name}")
        finally:
            query.stop()
    world.spark.sql(f"DELETE FROM {other.table('gaps')} WHERE source = '{world.alias}'")
    other.catch_up(world.flow, world.flow.slots_on(2))
    for name in MAP:
        assert_df_equality(rows(name, other), rows(name, world.ledger), ignore_row_order=True, ignore_nullable=True)


def test_gaps_that_maintenance_has_expired_under_a_running_stream_do_not_come_back(
    plain_world: World, spark: Any, warehouse: str
) -> None:
    world, now = plain_world, [0.0]
    topic, slots = world.topic(partitions=1), world.flow.slots_on(2)
    other = store.Ledger(spark, "spark_catalog", Path(warehouse).name, warehouse).ensure_tables()
    gaps, runs = other.of_flow("gaps", world.flow), list[int]()

    def append(seconds: float) -> None:
        """Mirrors some records, and waits until the stream has appended them, by its clock some time later."""
        now[0] += seconds
        before = sum(runs)
        world.produce(topic, 5, 1, seed=len(runs))
        world.mirror()
        eventually(lambda: sum(runs) > before, what="an append")

    world.produce_transactions(topic, 3, 5, partitions=1)  # their markers are gaps
    world.mirror()
    with other.checkpoint("ledger") as place:
        query = other.stream_offset_syncs(
            world.flow, slots, 1, place, lambda count, _: runs.append(count), clock=lambda: now[0]
        )
        try:
            eventually(lambda: sum(runs), what="the first append")
            assert not gaps.isEmpty()
            for _ in range(2):
                append(store.KEPT_FOR_S / 2 + 1)
            spark.sql(f"DELETE FROM {other.table('gaps')} WHERE source = '{world.alias}'")
            append(store.CHECKED_EVERY_S + 1)
            assert gaps.isEmpty()
        finally:
            query.stop()


def test_partitions_that_change_slots_keep_their_positions(plain_world: World) -> None:
    topics = sources(plain_world)
    plain_world.mirror()
    for seed, slots in ((4, "5"), (5, "1")):
        plain_world.write_config(**{"mirrorlake.slots": slots})
        for topic in topics:
            plain_world.produce(topic, 200, seed=seed)
        plain_world.mirror()
    plain_world.assert_equal(*topics)


def test_a_partition_that_rests_keeps_its_position_while_others_of_its_slot_go_on(plain_world: World) -> None:
    topic = plain_world.topic(partitions=2)
    plain_world.write_config(**{"mirrorlake.slots": "1", "mirrorlake.batch.max.records": "100"})
    plain_world.produce(topic, 20, 2)
    plain_world.produce(topic, 300, 1, seed=2)
    result = plain_world.mirror()
    assert result.batches > 2
    assert result.records == plain_world.assert_equal(topic) == 320


@pytest.mark.parametrize("opened", [1, 2, 4])
def test_an_interrupted_start_of_a_new_generation_loses_no_position(plain_world: World, opened: int) -> None:
    """The driver dies when only some slots have opened the new generation; slots of both generations hold positions."""
    topics = sources(plain_world)
    plain_world.mirror()
    plain_world.write_config(**{"mirrorlake.slots": "5"})
    for topic in topics:
        plain_world.produce(topic, 200, seed=4)
    kill(plain_world, f"driver.opening:{opened}")
    assert sorted(newest_generations(plain_world).values()) == [*[1] * (5 - opened), *[2] * opened][-5:]
    assert_carried_on(plain_world, topics)


@pytest.mark.parametrize(("start", "copied"), [("earliest", 200), ("latest", 0)])
def test_an_interrupted_first_start_forgets_no_start_offset(plain_world: World, start: str, copied: int) -> None:
    """What a partition has that is there at the first start is not taken for that of one that appears later."""
    topic, new = plain_world.topic(partitions=4), {"earliest": "latest", "latest": "earliest"}[start]
    plain_world.write_config(**{"mirrorlake.start": start, "mirrorlake.start.new": new, "mirrorlake.slots": "2"})
    plain_world.produce(topic, 200)
    kill(plain_world, "driver.opening:1")
    assert plain_world.mirror().records == copied


def newest_generations(world: World) -> dict[int, int]:
    """Returns the generation of each slot's last committed state; 1 for slots that have none yet."""
    found = read_committed(world.target_servers, world.flow.offset_syncs_topic)
    return {
        slot: max((json.loads(value)["generation"] for _, (_, value, _, _) in records), default=1)
        for slot, records in found.items()
    }


def test_a_violated_gate_aborts_everything_and_the_job_carries_on_once_the_cause_is_gone(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 300)
    plain_world.mirror()
    before = plain_world.target_records(topic)
    plain_world.produce(topic, 300, seed=2)
    honest = gate_frame.frame

    def shifted(*reports: object, **options: object) -> object:
        frame = honest(*reports, **options)
        frame["downstream_end"] += 1
        frame["downstream_length"] += 1
        return frame

    with monkeypatch.context() as patch:
        patch.setattr(gate_frame, "frame", shifted)
        with pytest.raises(GateError, match=r"expect_column_pair_values_to_be_equal\(column_A=\"downstream_length\".*"):
            plain_world.mirror()
    assert plain_world.target_records(topic) == before, "something became visible"
    plain_world.assert_nothing_open()
    failed = [row for row in plain_world.memory.rows["expectation_results"] if not row["success"]]
    assert ["downstream_length" in row["expectation"] for row in failed] == [True]
    (stop,) = (row for row in plain_world.memory.rows["anomalies"] if row["action"] == "stop")
    assert (stop["kind"], "downstream_length" in stop["detail"]) == ("stopped", True)
    assert plain_world.mirror().records == 300
    plain_world.assert_equal(topic)


def test_a_transaction_that_timed_out_before_the_commit_is_copied_again(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = plain_world.topic()
    plain_world.produce(topic, 300)
    plain_world.write_config(**{"mirrorlake.transaction.timeout.ms": "1000", "mirrorlake.batch.max.ms": "500"})
    honest, slow = gate_frame.frame, [True]

    def late(*reports: object, **options: object) -> object:
        if slow:
            slow.clear()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not _aborted_by_coordinator(plain_world):
                time.sleep(0.2)
        return honest(*reports, **options)

    monkeypatch.setattr(gate_frame, "frame", late)
    assert plain_world.mirror().records == 300
    assert any("was aborted before it could be committed" in line for line in plain_world.lines)
    plain_world.assert_equal(topic)


def _aborted_by_coordinator(world: World) -> bool:
    """Returns True once no transaction is open; the coordinator checks for expired ones every ten seconds."""
    from confluent_kafka import Consumer, TopicPartition

    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {"bootstrap.servers": world.target_servers, "group.id": "x", "isolation.level": isolation, "log_level": 0}
        )
        ends.append(
            [
                consumer.get_watermark_offsets(TopicPartition(world.flow.offset_syncs_topic, slot), timeout=5)[1]
                for slot in (0, 1)
            ]
        )
        consumer.close()
    return ends[0] == ends[1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_state_that_is_older_than_the_data_stops_the_job_before_a_record_is_doubled(
    plain_world: World, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    plain_world.write_config(**{"mirrorlake.topics.shared": str(shared).lower(), "mirrorlake.on.loss": "continue"})
    topic, honest = plain_world.topic(partitions=1), offset_syncs.read_states_and_ends
    plain_world.produce(topic, 100, 1)
    plain_world.mirror()
    flow = plain_world.flow
    with closing(Cluster(flow.target_connection, "target", "test").connect()) as target:
        target.refresh([flow.offset_syncs_topic], 30_000)
        stale, _ = honest(target, flow.offset_syncs_topic, range(2), 30_000)
    plain_world.produce(topic, 100, 1, seed=1)
    plain_world.mirror()

    def older(*given: object, **named: object) -> tuple[dict[int, SlotState], dict[int, int]]:
        """Returns the states of now with the positions of then."""
        found, ends = honest(*given, **named)
        return {slot: replace(state, positions=stale[slot].positions) for slot, state in found.items()}, ends

    monkeypatch.setattr(offset_syncs, "read_states_and_ends", older)
    plain_world.produce(topic, 100, 1, seed=2)
    with pytest.raises(TargetError, match="has committed records of this flow at offset 101 of"):
        plain_world.mirror()
    assert len(plain_world.target_records(topic)[0]) == 200
    monkeypatch.undo()
    with pytest.raises(TargetError, match="has committed records of this flow at offset 101 of"):
        plain_world.mirror()  # the job has opened its generation from what it was told
    assert len(plain_world.target_records(topic)[0]) == 200


def test_a_state_that_stands_behind_more_than_was_read_is_not_committed(plain_world: World) -> None:
    topic, flow, written = plain_world.topic(partitions=1), plain_world.flow, list[str]()
    plain_world.produce(topic, 100, 1)
    plain_world.mirror()
    plain_world.produce(topic, 100, 1, seed=1)

    def write_between(step: str) -> None:
        if step == "task.copied" and not written:
            written.append(step)
            plain_world.audits_trace = False
            last = max(read_committed(flow_servers, flow.offset_syncs_topic)[0])[1]
            producer = Producer({"bootstrap.servers": flow_servers})
            producer.produce(flow.offset_syncs_topic, last[1], last[0], partition=0)
            assert producer.flush(30) == 0

    flow_servers = plain_world.target_servers
    assert plain_world.disturbed_job(write_between).run(None).records == 100
    assert written
    assert any("but the state was appended at" in line for line in plain_world.lines)
    plain_world.assert_equal(topic)
    plain_world.assert_nothing_open()


def test_a_generation_begins_at_what_was_committed_by_the_time_its_slots_were_fenced(
    plain_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = plain_world
    topic = world.topic(partitions=1)
    world.produce(topic, 10, 1)
    begin_all, seen = transaction.begin_all, list[int]()

    def records() -> int:
        return len(world.target_records(topic).get(0, ()))

    def begin_late(*given: Any) -> Any:
        if len(seen) == 1:
            world.produce(topic, 10, 1, seed=2)
            eventually(lambda: records() == 20, what="a commit of the job that runs")
        return begin_all(*given)

    def beginning(known: Mapping[PartitionKey, Position]) -> Beginning:
        seen.append(known[topic, 0].upstream_next)
        return Beginning()

    fenced, target = pytest.raises(FencedError), Cluster(world.flow.target_connection, "target", "tests", 10_000)
    with closing(target.connect()), fenced, world.mirroring() as job:
        eventually(lambda: world.batches and records() == 10, what="the first commit")
        slots = read_all_states(target, world.flow.offset_syncs_topic, 10_000)[0].slots
        with monkeypatch.context() as patched:
            patched.setattr(transaction, "begin_all", begin_late)
            begin_generation(world.flow, "", target, slots, beginning)
        world.produce(topic, 1, 1, seed=3)
        eventually(job.done, what="the end of the older job")
    assert (seen[0], seen[-1]) == (10, 20)
