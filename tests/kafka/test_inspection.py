"""Looks at real clusters by the commands that an operator types: doctor, assess, status, lag. They change nothing."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from mirrorlake.cli.app import main
from mirrorlake.cli.exit_code import ExitCode

from tests.world import World, configure, transactional_producer, write_in_transaction


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Returns a port whose connections are accepted by the operating system and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def look(world: World, *words: str) -> tuple[int, dict[str, Any]]:
    """Runs a command; returns its exit code and its object."""
    command, *more = words
    done = CliRunner().invoke(main, [command, "--config", world.config, "--output", "json", *more])
    return done.exit_code, json.loads(done.stdout)


def shown(world: World, command: str) -> str:
    return CliRunner().invoke(main, [command, "--config", world.config]).stdout


def levels(found: dict[str, Any], *checks: str) -> dict[str, str]:
    """Returns the worst level of checks; findings come worst first."""
    worst: dict[str, str] = {}
    for one in found["findings"]:
        if one["check"] in checks:
            worst.setdefault(one["check"], one["level"])
    return worst


def topics_there(world: World) -> set[str]:
    return {*world.target_admin.list_topics(timeout=10).topics, *world.source_admin.list_topics(timeout=10).topics}


def test_doctor_finds_a_sound_flow_well_and_names_each_problem_with_a_remedy(world: World) -> None:
    topic = world.topic()
    world.produce(topic, 30)
    world.commit("readers", {(topic, 0): 1})
    before = topics_there(world)
    checks = (
        "configuration reachability version cluster_id permission topics replication state clock java spark".split()
    )
    code, found = look(world, "doctor")
    assert (code, found["healthy"]) == (ExitCode.OK, True), found["findings"]
    assert levels(found, *checks) == dict.fromkeys(checks, "ok")
    assert topics_there(world) == before, "it changes nothing"
    world.write_config(
        **{"replication.factor": "3", "topicss": "x", f"{world.alias}.bootstrap.servers": world.target_servers}
    )
    code, found = look(world, "doctor")
    assert (code, found["healthy"]) == (ExitCode.FINDINGS, False)
    expected = {"configuration": "warning", "cluster_id": "problem", "replication": "problem", "topics": "warning"}
    assert levels(found, *expected) == expected
    assert all(one["remedy"] for one in found["findings"] if one["level"] != "ok")
    assert "would be mirrored into itself" in json.dumps(found)


def test_doctor_knows_states_of_others_and_records_from_the_future(world: World) -> None:
    topic = world.topic()
    producer = Producer({"bootstrap.servers": world.source_servers})
    producer.produce(topic, b"x", timestamp=int((time.time() + 1_000) * 1_000))
    world.produce(topic, 10)
    assert producer.flush(30) == 0
    world.mirror()
    assert levels(look(world, "doctor")[1], "clock", "state") == {"clock": "warning", "state": "ok"}
    world.audits_trace = False
    other = Producer({"bootstrap.servers": world.target_servers})
    for key, there in (None, 10), (b"slot-0", 20):
        other.produce(world.flow.offset_syncs_topic, b'{"version": 3, "runs": []}', key=key, partition=0)
        assert other.flush(30) == 0
        if there == 10:  # jobs pass over what can't be a state
            world.produce(topic, 10, seed=2)
            assert world.mirror().records == 10
            world.checkpoint()
            code, found = look(world, "doctor")
            (said,) = [one for one in found["findings"] if one["level"] == "warning" and one["check"] == "state"]
            assert re.search(r"another program has written to t: .*-0, offset \d+ is no state", said["detail"])
            assert look(world, "status")[1]["flows"][0]["condition"] == "ok"
    try:
        code, found = look(world, "doctor")
        assert code == ExitCode.FINDINGS
        assert "has records that are no states" in json.dumps(found)
        code, found = look(world, "status")
        assert (code, found["flows"][0]["condition"]) == (ExitCode.FINDINGS, "problem")
    finally:  # flows that copy local records only read the states of all others on this cluster
        world.target_admin.delete_topics([world.flow.offset_syncs_topic])[world.flow.offset_syncs_topic].result()


def test_a_peer_that_says_nothing_costs_its_deadline_and_hides_no_other_flow(world: World, silent_port: int) -> None:
    topic = world.topic()
    world.produce(topic, 30)
    world.mirror()
    world.produce(topic, 7, seed=2)
    names = [f"dead{number}" for number in range(30)]
    dead = {f"{name}.bootstrap.servers": f"127.0.0.1:{silent_port}" for name in names}
    flows = {f"{name}->t.enabled": "true" for name in names}
    world.write_config(clusters=", ".join((world.alias, "t", *names)), **dead, **flows)
    for command in ("doctor", "status", "lag"):
        began = time.monotonic()
        code, found = look(world, command, "--deadline", "6")
        assert code == ExitCode.FINDINGS
        assert time.monotonic() - began < 40, command
        if command == "doctor":
            assert sum(one["level"] == "problem" for one in found["findings"]) == len(names)
            assert levels(found, "state") == {"state": "ok"}
        elif command == "status":
            conditions = [one["condition"] for one in found["flows"]]
            assert conditions == ["down"] * len(names) + ["behind"], "worst first"
            assert found["flows"][-1]["lag"] == 7
            assert "--source dead" in found["flows"][0]["next"]
        else:
            assert sorted(found["not_measured"]) == sorted(f"{name}->t" for name in names)
            assert sum(one["lag"] for one in found["partitions"]) == 7


def test_status_and_lag_follow_a_flow_from_its_first_record(world: World, tmp_path: Path) -> None:
    topic = world.topic()
    world.produce(topic, 20)
    nowhere = ("--warehouse", str(tmp_path / "nowhere"))
    code, found = look(world, "status", *nowhere)
    (flow,) = found["flows"]
    assert (code, flow["condition"], flow["lag"], flow["next"].split()[1]) == (ExitCode.FINDINGS, "new", 20, "mirror")
    assert "no schema mirrorlake" in found["tables_not_read"]
    world.mirror()
    code, found = look(world, "status", *nowhere)
    assert (code, found["healthy"], found["flows"][0]["condition"]) == (ExitCode.OK, True, "ok")
    world.produce(topic, 5, seed=2)
    code, found = look(world, "lag", *nowhere)
    assert (code, sum(one["lag"] for one in found["partitions"])) == (ExitCode.OK, 5)
    assert all(one["lag_seconds"] < 3_600 for one in found["partitions"])
    assert topic in shown(world, "lag")
    code, found = look(world, "lag", "--stored", *nowhere)
    assert (code, [*found["not_measured"]]) == (ExitCode.FINDINGS, [world.flow_name])


def test_the_assessment_says_what_is_left_out_and_why_and_who_reads_uncommitted_records(world: World) -> None:
    plain, compacted = world.topic("plain", 1), world.topic("state", 1, {"cleanup.policy": "compact"})
    stamped = world.topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    for topic in (plain, stamped):
        world.produce(topic, 200, 1)
    keyed = Producer({"bootstrap.servers": world.source_servers})
    keyed.produce(compacted, b"value", b"key")
    assert keyed.flush(30) == 0
    money = world.topic("money", 1)
    world.produce_transactions(money, 4, 5, 1, aborted=0.0)
    open_one = transactional_producer(world.source_servers, f"{world.alias}-open")
    write_in_transaction(open_one, money)
    try:
        end = sum(len(records) for records in world.source_records(money).values())
        ahead = world.commit("ahead", {(money, 0): end + 100, (plain, 0): 150})
        world.commit("behind", {(plain, 0): 50})
        left_out = world.topic("left", 1)
        world.write_config(**{"topics.exclude": left_out, "groups": f"{world.alias}-ahead"})
        configure(world, plain, {"retention.ms": "-1"})
        code, found = look(world, "assess")
    finally:
        open_one.abort_transaction(30)
    (found,) = found["flows"]
    topics = {one["topic"]: one for one in found["topic_list"]}
    groups = {one["group_id"]: one for one in found["group_list"]}
    assert code == ExitCode.OK
    assert (found["topics"], found["compacted"], found["with_transactions"]) == (4, 1, 1)
    assert topics[plain]["remote_topic"] == world.remote(plain)
    assert (topics[plain]["offsets"], topics[plain]["format"]) == (200, "as is")
    assert topics[plain]["size"] > 1_000
    assert not topics[plain]["is_estimated"]
    assert "holes" in topics[compacted]["format"]
    assert "LogAppendTime" in topics[stamped]["format"]
    assert topics[left_out]["left_out"] == "topics does not name it, or topics.exclude does"
    assert topics["__consumer_offsets"]["left_out"].startswith("internal")
    assert (groups[ahead]["ahead"], groups[ahead]["lag"], groups[ahead]["state"]) == (1, 50, "Empty")
    assert groups[f"{world.alias}-behind"]["left_out"] == "groups does not name it, or groups.exclude does"
    assert found["groups_reading_uncommitted"] == 1
    assert any("1 groups read uncommitted records" in text for text in found["findings"])
    assert found["seconds"] is not None
    assert found["next"] == f"mirrorlake topics --flow '{world.flow_name}' --dry-run"
    assert "Not mirrored" in shown(world, "assess")
    world.write_config(topics="nothing")
    assert look(world, "assess")[0] == ExitCode.FINDINGS
