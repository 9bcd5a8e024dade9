"""The pause that an operator records: running jobs follow it, new ones wait, and a failover does not."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result
from mirrorlake.cli.app import main
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.in_process import InProcessEngine
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.protocol.clients.record import append_record
from mirrorlake.state.pause import LOOK_S, pause_topic

from tests.world import ROOT, World, eventually

FOLLOWED_S = LOOK_S + 10  # a look, and a busy machine


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


def command(world: World, *words: str) -> Result:
    return CliRunner().invoke(main, [words[0], "--config", world.config, "--output", "json", *words[1:]])


def order(world: World, *words: str) -> dict[str, object]:
    """Gives an order that must be carried out; returns its result."""
    done = command(world, *words)
    assert done.exit_code == ExitCode.OK, done.output
    return json.loads(done.stdout)


def end(world: World, topic: str) -> int:
    return sum(len(records) for records in world.target_records(topic).values())


def test_running_jobs_follow_a_pause_and_go_on_after_it(world: World) -> None:
    world.write_config(**{"sync.group.offsets.interval.seconds": "1"})
    topic = world.topic()
    world.produce(topic, 100)
    group = world.commit("readers", {(topic, 0): 5})
    with world.mirroring(), world.checkpointing(interval_s=0.5):
        eventually(lambda: world.committed(group), what="the group is moved")
        assert order(world, "pause", "--reason", "disks\x1b[2J are full", "--by", "ana")["changed"] is True
        eventually(lambda: sum("flow_paused" in line for line in world.lines) == 2, FOLLOWED_S, "both jobs say it")
        assert "paused by ana at " in "".join(world.lines)
        assert "\x1b" not in "".join(world.lines)
        before = end(world, topic)
        world.produce(topic, 50, seed=2)
        world.commit(group, {(topic, 0): 9})
        cycles = sum("checkpoint_cycle" in line for line in world.lines)
        eventually(lambda: sum("checkpoint_cycle" in line for line in world.lines) > cycles + 2, what="more cycles")
        assert end(world, topic) == before
        assert world.committed(group)[world.remote(topic), 0][0] == 5
        assert world.rows("checkpoints")[-1]["upstream_offset"] == 9, "a failover needs the positions"
        status = command(world, "status")
        (flow,) = json.loads(status.stdout)["flows"]
        assert (status.exit_code, flow["condition"], flow["lag"]) == (ExitCode.FINDINGS, "paused", 50)
        assert flow["pause"]["by"] == "ana"
        assert order(world, "pause", "--reason", "again")["changed"] is False
        assert order(world, "resume", "--by", "ben")["was_paused"]["by"] == "ana"
        eventually(lambda: end(world, topic) == before + 50, what="the rest is mirrored")
        eventually(lambda: world.committed(group)[world.remote(topic), 0][0] == 9, what="the group is moved on")
    assert order(world, "resume")["changed"] is False
    assert world.assert_equal(topic) == 150
    assert json.loads(command(world, "status").stdout)["flows"][0]["condition"] == "ok"


def test_a_job_that_starts_in_a_pause_waits_and_creates_nothing_unless_it_fails_over(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 30)
    order(world, "pause", "--reason", "not yet")
    result = world.mirror()
    assert (result.records, result.batches, result.paused.reason) == (0, 0, "not yet")
    began = time.monotonic()
    assert world.mirror(interval_s=0.1, run_for_s=1).paused is not None
    assert time.monotonic() - began < FOLLOWED_S
    world.write_config(**{"mirrorlake.lag.interval.seconds": "1"})
    job = world.mirror_job()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, 0.1)
        eventually(lambda: sum("flow_paused" in line for line in world.lines) >= 3, what="it says so")
        eventually(lambda: world.metric("paused_partitions"), what="a measurement, which alerts on long pauses need")
        world.write_config(**{"mirrorlake.topics.paused": "later"})
        eventually(lambda: job._lag_keeper.flow.is_paused("later"), what="an edit of the file reaches all parts")
        job.stop()
        assert running.result(FOLLOWED_S).records == 0
    there = set(world.target_admin.list_topics(timeout=10).topics)
    assert {name for name in there if world.alias in name} == {pause_topic(world.alias)}
    suite = ROOT / "expectations/offset_syncs.json"
    failing_over = replace(world.flow, ignores_pause=True)
    assert MirrorJob(InProcessEngine(), world.config, failing_over, world.ledger, suite).run(None).records == 30


def test_a_record_that_says_nothing_known_of_a_pause_stops_the_job(world: World) -> None:
    world.produce(world.topic(), 10)
    order(world, "pause", "--reason", "x")
    topic = pause_topic(world.alias)
    append_record(world.flow.target_connection, "test", topic, b"", b'{"version": 99, "paused": true}', 10)
    with pytest.raises(TargetError, match=rf"the last record of topic {topic} .* Upgrade mirrorlake"):
        world.mirror()
    assert command(world, "status").exit_code == ExitCode.FINDINGS
