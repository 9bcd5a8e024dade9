"""Exactly once, proved by killing: after each crash the same job carries on, and the target equals the source, none
lost, none twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from mirrorlake.errors import FencedError, GateError, MirrorlakeError
from mirrorlake.failpoint import VARIABLE
from mirrorlake.jobs.mirror import gate_frame
from mirrorlake.jobs.mirror.copy import task
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.ledger import store
from mirrorlake.ledger.tables import TABLES
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import merge_positions
from mirrorlake.protocol import transaction
from mirrorlake.state.offset_syncs import read_states
from mirrorlake.state.slot_report import SlotReport

from tests.world import World, eventually

SCRIPT = Path(__file__).with_name("run_mirror.py")


def start(world: World, *times: float, failpoint: str = "") -> subprocess.Popen[str]:
    """The mirror job as a process."""
    words = [
        sys.executable,
        str(SCRIPT),
        world.config,
        world.flow_name,
        world.warehouse,
        Path(world.warehouse).name,
        *map(str, times),
    ]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, VARIABLE: failpoint}
    )


def sources(world: World) -> tuple[str, str]:
    """Two topics, one of them written in transactions."""
    plain, transactional = world.topic("plain", 3), world.topic("transactional", 2)
    world.produce(plain, 1_500, 3, seed=1)
    world.produce_transactions(transactional, 20, 20, seed=2)
    return plain, transactional


STEPS = ("driver.planned", "driver.copied", "driver.gated", "driver.committing", "driver.committed", "driver.ledger")


@pytest.fixture(scope="module")
def killed(
    servers: tuple[str, str], spark: object, warehouse: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[World, tuple[str, str], int, str]]]]:
    """Drivers that die at each step, two at a time: a Spark of its own takes each of them half a minute."""

    def die(step: str) -> tuple[World, tuple[str, str], int, str]:
        world = World(*servers, tmp_path_factory.mktemp(step.replace(".", "-")), spark, warehouse)
        topics = sources(world)
        world.write_config(**{"mirrorlake.batch.max.records": "600"})  # several micro-batches, killed in the second
        process = start(world, failpoint=step if step == "driver.ledger" else f"{step}:2")
        output, _ = process.communicate(timeout=240)
        return world, topics, process.returncode, output

    with ThreadPoolExecutor(2) as pool:
        yield {step: pool.submit(die, step) for step in STEPS}


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_killed_at_any_step_leaves_nothing_lost_or_twice(
    killed: dict[str, Future[tuple[World, tuple[str, str], int, str]]], step: str
) -> None:
    world, topics, code, output = killed[step].result()
    assert code == -signal.SIGKILL, output
    for topic in topics:
        world.produce(topic, 100, seed=3)
    world.mirror()
    world.assert_equal(*topics)
    world.assert_nothing_open()


@pytest.mark.parametrize("step", ["task.initialised", "task.compared", "task.producing", "task.copied", "task.written"])
def test_a_task_killed_at_any_step_is_done_again_by_the_same_job(world: World, step: str, tmp_path: Path) -> None:
    topics = sources(world)
    result = world.mirror(failpoint=f"{step}@{tmp_path / 'killed'}")
    assert (tmp_path / "killed").exists(), "the failpoint was not reached"
    assert any("a copy task was lost" in line for line in world.lines)
    assert result.records == world.assert_equal(*topics)
    world.assert_nothing_open()


def test_a_task_whose_plan_is_late_finds_its_work_done(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 300, partitions=1)
    generation, flow = world.mirror().generation, world.flow
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
    world.produce(topic, 100, partitions=1, seed=2)
    report = late(400)
    assert isinstance(report, SlotReport)
    assert [(stretch["upstream_from"], stretch["upstream_next"]) for stretch in report.stretches] == [(300, 400)]
    transaction.end(target, report.producer, commit=True, timeout_ms=10_000)
    world.mirror()
    assert world.assert_equal(topic) == 400


def test_of_two_jobs_of_one_flow_the_older_is_fenced_and_says_so(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 500)
    older = start(world, 0.2, 120)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(older.stdout or []))
    reader.start()
    eventually(lambda: any(line.startswith("batch 0") for line in lines), 120, "the first batch of the older job")
    stop = threading.Event()

    def produce() -> None:
        seed = 10
        while not stop.is_set():
            world.produce(topic, 50, seed=(seed := seed + 1))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        world.mirror(interval_s=0.2, run_for_s=15)
        assert older.wait(60) != 0
    finally:
        stop.set()
        producer.join()
        older.kill()
        reader.join()
    assert "a newer mirror job (generation 2) has taken over from this one (generation 1)" in "".join(lines), lines[-5:]
    world.mirror()
    world.assert_equal(topic)


def test_two_jobs_started_at_the_same_moment_leave_one(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 2_000)
    world.mirror()
    world.produce(topic, 2_000, seed=2)
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(world.mirror(interval_s=0.2, run_for_s=15))
        except FencedError as error:
            outcomes.append(error)

    jobs = [threading.Thread(target=run) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert sorted(isinstance(outcome, FencedError) for outcome in outcomes) == [False, True], outcomes
    world.assert_equal(topic)


def test_a_deleted_spark_checkpoint_directory_changes_nothing(world: World, tmp_path: Path) -> None:
    """The job is killed, so that the progress of its queries stays behind; then that is deleted."""
    world.warehouse = str(tmp_path / f"alone_{world.alias}")
    topic = world.topic()
    world.produce(topic, 300)
    start(world, failpoint="driver.committed").communicate(timeout=240)
    progress = Path(world.warehouse) / Path(world.warehouse).name / "_checkpoints"
    assert list(progress.glob("mirror/*/offsets/*")), "there was no checkpoint to delete"
    shutil.rmtree(progress)
    world.produce(topic, 300, seed=2)
    world.mirror()
    assert world.assert_equal(topic) == 600
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


def test_a_ledger_that_is_emptied_while_its_stream_runs_is_whole_again_with_the_next_append(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "JUST_NOW_S", 0)
    topic = world.topic(partitions=2)
    world.produce(topic, 100, 2)
    world.mirror()
    other = replace(world.ledger, schema=f"{world.ledger.schema}_emptied").ensure_tables()

    def runs(of: store.Ledger) -> Any:
        return of.of_flow("offset_syncs", world.flow)

    with other.checkpoint("ledger") as place:
        query = other.stream_offset_syncs(world.flow, world.flow.slots_on(2), 1, place)
        try:
            for seed in (1, 2):
                eventually(lambda: runs(other).count() == runs(world.ledger).count(), what="an append")
                world.spark.sql(f"DELETE FROM {other.table('offset_syncs')} WHERE source = '{world.alias}'")
                world.produce(topic, 100, 2, seed=seed)
                world.mirror()
            eventually(lambda: runs(other).count() == runs(world.ledger).count(), what="the last append")
        finally:
            query.stop()
    assert runs(other).count() >= 6
    assert_df_equality(runs(other), runs(world.ledger), ignore_row_order=True, ignore_nullable=True)


def test_an_interrupted_start_of_a_new_generation_loses_no_position(world: World) -> None:
    """More slots than before: partitions change hands, and every one of them keeps its position."""
    topics = sources(world)
    world.mirror()
    world.write_config(**{"mirrorlake.slots": "5"})
    for topic in topics:
        world.produce(topic, 200, seed=4)
    world.mirror()
    world.write_config(**{"mirrorlake.slots": "1"})
    for topic in topics:
        world.produce(topic, 200, seed=5)
    world.mirror()
    world.assert_equal(*topics)


def test_a_violated_gate_aborts_everything_and_the_job_carries_on_once_the_cause_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    world.produce(topic, 300)
    world.mirror()
    before = world.target_records(topic)
    world.produce(topic, 300, seed=2)
    honest = gate_frame.frame

    def shifted(*reports: object, **options: object) -> object:
        frame = honest(*reports, **options)
        frame["downstream_end"] += 1
        frame["downstream_length"] += 1
        return frame

    with monkeypatch.context() as patch:
        patch.setattr(gate_frame, "frame", shifted)
        with pytest.raises(GateError, match=r"expect_column_pair_values_to_be_equal\(column_A=\"downstream_length\".*"):
            world.mirror()
    assert world.target_records(topic) == before, "something became visible"
    world.assert_nothing_open()
    failed = world.ledger.read("expectation_results").filter(f"NOT success AND subject = '{world.flow_name}'").collect()
    assert ["downstream_length" in row["expectation"] for row in failed] == [True]
    assert world.mirror().records == 300
    world.assert_equal(topic)


def test_a_transaction_that_timed_out_before_the_commit_is_copied_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    world.produce(topic, 300)
    world.write_config(**{"mirrorlake.transaction.timeout.ms": "1000", "mirrorlake.batch.max.ms": "500"})
    honest, slow = gate_frame.frame, [True]

    def late(*reports: object, **options: object) -> object:
        if slow:
            slow.clear()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not _aborted_by_coordinator(world):
                time.sleep(0.2)
        return honest(*reports, **options)

    monkeypatch.setattr(gate_frame, "frame", late)
    assert world.mirror().records == 300
    assert any("was aborted before it could be committed" in line for line in world.lines)
    world.assert_equal(topic)


def _aborted_by_coordinator(world: World) -> bool:
    """True once nothing is open any more: the coordinator looks for expired transactions every ten seconds."""
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
