"""The work of a plan: requests, and partitions that are looked into. It must not grow with what has not changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.reload import LiveFlow
from mirrorlake.config.start import Start, StartSpec, StartWord
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.planning import planner as planner_module
from mirrorlake.jobs.mirror.planning import readiness
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.model.copy_plan import Partition
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Topic

PER_TOPIC, RECORDS = 4, 7
FLOW = Flow.from_properties(
    Properties(
        {
            "clusters": "a, b",
            "a.bootstrap.servers": "h:1",
            "b.bootstrap.servers": "h:2",
            "a->b.enabled": "true",
            "topics": ".*",
        }
    ),
    "a->b",
)


class Side:
    """A cluster without a broker, which counts what it is asked for."""

    def __init__(self, topics: Iterable[str], records: int) -> None:
        leaders = dict.fromkeys(range(PER_TOPIC), 1)
        self.topics = {name: Topic(name, f"id-{name}", leaders) for name in topics}
        self.ends = {(name, index): records for name in self.topics for index in leaders}
        self.asked = Counter[str]()

    def refresh(self, topics: Iterable[str] | None, *_: object, **__: object) -> dict[str, Topic]:
        self.asked["Metadata"] += 1
        names = self.topics if topics is None else topics
        return {name: self.topics[name] for name in names if name in self.topics}

    def offsets(self, keys: Iterable[PartitionKey], at: int, _: int) -> dict[PartitionKey, int]:
        self.asked["ListOffsets"] += 1
        return {key: 0 if at == EARLIEST_TIMESTAMP else self.ends[key] for key in keys}

    def stable_ends(self, keys: Iterable[PartitionKey], _: int) -> tuple[dict[PartitionKey, Any], dict[Any, str]]:
        self.asked["ListOffsets"] += 1
        return {key: (self.ends[key], 0) for key in keys}, {}

    def log_bounds(self, keys: Iterable[PartitionKey]) -> tuple[dict[PartitionKey, Any], dict[Any, str]]:
        self.asked["ListOffsets"] += 3
        return {key: (0, self.ends[key], self.ends[key]) for key in keys}, {}

    def high_watermarks(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        self.asked["ListOffsets"] += 1
        return {key: self.ends[key] for key in keys}

    def leader_epoch(self, *_: object) -> int:
        return 0

    def close(self) -> None:
        """It has no connections."""


class Planned:
    """A planner of a flow with that many topics, whose slots have the given positions."""

    def __init__(self, topics: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        names = [f"t{number}" for number in range(topics)]
        self.source, self.target = Side(names, RECORDS), Side([f"a.{name}" for name in names], 0)
        self.target.topics[FLOW.offset_syncs_topic] = Topic(FLOW.offset_syncs_topic, "id", {0: 1})
        self.state = SlotState("a", "b", "c", 0, 1, 1, "x", 1, 0)
        self.looked_into = list[Partition]()
        monkeypatch.setattr(planner_module.offset_syncs, "read_states_and_ends", lambda *_: ({0: self.state}, {0: 1}))
        monkeypatch.setattr(planner_module.offset_syncs, "is_settled", lambda *_: True)
        monkeypatch.setattr(planner_module, "Partition", self._partition)
        config = tmp_path / "mm2.properties"
        config.write_text("")
        self.planner = cast("Any", Planner(LiveFlow(config, FLOW), until_now=False))
        self.planner._clusters = self.source, self.target
        self.planner._pause = SimpleNamespace(begin=lambda *_: None, look=lambda *_: None)

    def _partition(self, *key: Any, **values: Any) -> Partition:
        self.looked_into.append(Partition(*key, **values))
        return self.looked_into[-1]

    def copied(self) -> None:
        """Lets the slot commit all that the source has."""
        positions = tuple(
            Position(*key, f"id-{key[0]}", f"a.{key[0]}", key[1], end, end, 0, 0, 0, f"id-a.{key[0]}", 0)
            for key, end in self.source.ends.items()
        )
        self.state = SlotState("a", "b", "c", 0, 1, 1, "x", 1, 1, positions)

    def next(self) -> tuple[MirrorPlan, dict[str, int], int]:
        """Makes a plan; returns it, what was asked for, and the number of partitions that were looked into."""
        self.source.asked, self.target.asked, self.looked_into = Counter(), Counter(), []
        plan: MirrorPlan = self.planner.latest()
        if plan.error:
            raise plan.error
        return plan, self.source.asked + self.target.asked, len(self.looked_into)


def test_a_plan_sends_as_many_requests_for_many_topics_as_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Idle partitions cost a look at their ends, and nothing else."""
    asked = []
    for topics in (1, 50):
        planned = Planned(topics, monkeypatch, tmp_path)
        plan, first, looks = planned.next()
        assert (len(plan.ranges), plan.lag, looks) == (
            topics * PER_TOPIC,
            topics * PER_TOPIC * RECORDS,
            topics * PER_TOPIC,
        )
        planned.copied()
        idle, then, looks = planned.next()
        assert (idle.ranges, idle.lag, looks) == ((), 0, 0)
        again, _, _ = planned.next()
        assert again is idle, "no news"
        planned.source.ends["t0", 2] += 3
        news, _, looks = planned.next()
        assert [(one.topic, one.partition, one.start, one.end) for one in news.ranges] == [("t0", 2, 7, 10)]
        assert (looks, news.number) == (1, idle.number + 1)
        asked.append((first, then))
    assert asked[0] == asked[1]
    assert sum(asked[0][1].values()) == 1, "the ends on the source"


def test_a_topic_that_appears_later_begins_where_its_end_was_when_it_was_first_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first plan may have failed, or its commit may not be seen yet."""
    planned = Planned(1, monkeypatch, tmp_path)
    planned.planner._live.flow = replace(FLOW, start=Start(new=StartSpec(StartWord.LATEST)))
    first, _, _ = planned.next()
    assert {one.start for one in first.ranges} == {RECORDS}
    planned.source.ends = dict.fromkeys(planned.source.ends, RECORDS + 5)
    again, _, _ = planned.next()
    assert {(one.start, one.end) for one in again.ranges} == {(RECORDS, RECORDS + 5)}
    planned.source.topics["t0"] = replace(planned.source.topics["t0"], topic_id="another")
    planned.planner._topics_due = 0.0
    anew, _, _ = planned.next()
    assert {one.start for one in anew.ranges} == {RECORDS + 5}, "another topic has another end"


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_is_looked_into_whose_topic_is_another_one_at_the_same_end(
    side: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = Planned(3, monkeypatch, tmp_path)
    planned.copied()
    planned.next()
    recreated = getattr(planned, side).topics
    name = {"source": "t1", "target": "a.t1"}[side]
    recreated[name] = Topic(name, "another", recreated[name].leaders)
    planned.planner._topics_due = 0.0
    if side == "source":
        with pytest.raises(SourceError, match=r"topic t1, partition 0: the topic was deleted and created anew"):
            planned.next()
    else:
        plan, _, looks = planned.next()
        assert ([one.is_set_back for one in plan.ranges], looks) == ([True] * PER_TOPIC, PER_TOPIC)


@pytest.mark.parametrize(("missing", "waited_s", "is_waiting"), [(1, 14, True), (1, 16, False), (100, 20, True)])
def test_many_remote_topics_are_waited_for_for_longer(
    missing: int, waited_s: int, is_waiting: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = Planned(missing + 1, monkeypatch, tmp_path)
    for number in range(missing):
        del planned.target.topics[f"a.t{number}"]
    now_s = 100.0
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now_s)
    assert planned.next()[0].is_waiting
    now_s += waited_s
    plan, _, _ = planned.next()
    assert (plan.is_waiting, len(plan.held)) == (is_waiting, 0 if is_waiting else missing)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_topic_that_was_deleted_while_its_remote_topic_was_missing_lets_no_later_one_be_held_at_once(
    is_seen: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = Planned(2, monkeypatch, tmp_path)
    deleted, remote = planned.source.topics["t0"], planned.target.topics.pop("a.t0")
    now_s = 100.0
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now_s)
    assert planned.next()[0].is_waiting
    del planned.source.topics["t0"]
    if is_seen:
        planned.planner._topics_due = 0.0
        assert not planned.next()[0].is_waiting
    now_s += 3_600
    planned.source.topics["t0"] = Topic("t0", "another", deleted.leaders)
    planned.planner._topics_due = 0.0
    plan, _, _ = planned.next()
    assert (plan.is_waiting, plan.held) == (True, {}), "as a new topic, whose remote topic is not there yet"
    planned.target.topics["a.t0"] = remote
    assert not planned.next()[0].is_waiting


@pytest.mark.parametrize("reason", ["occupied", "unread"])
def test_a_topic_that_is_held_is_looked_into_from_time_to_time_and_at_once_if_it_is_another_one(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, looks = 100.0, 0
    remote = FLOW.policy.remote_topic("t")
    target = SimpleNamespace(refresh=lambda *_, **__: {remote: there})

    def first_records(
        _: Any, topics: dict[str, Any], *__: Any
    ) -> tuple[dict[str, PartitionKey], dict[str, tuple[PartitionKey, str]]]:
        nonlocal now_s, looks
        if not topics:
            return {}, {}
        now_s, looks = now_s + 2, looks + 1  # its leader takes two seconds
        key = (remote, 0)
        return ({"t": key}, {}) if reason == "occupied" else ({}, {"t": (key, "no answer")})

    monkeypatch.setattr(readiness, "first_records", first_records)
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now_s)
    found, there = readiness.Readiness(), Topic(remote, "id", {0: 1})

    def held() -> str:
        given = {"t": Topic("t", "id", {0: 1})}
        return found.held(FLOW, given, cast("Any", target), {}, is_settled=lambda: True)["t"]

    why = held()
    if reason == "unread":
        assert found.waiting == {"t"}
        assert (held(), looks) == (why, 2), "it may be ready at any moment"
        now_s += readiness.WAIT_S
        held()
    before = looks
    assert [held() for _ in range(5)] == [why] * 5
    assert looks == before
    there = Topic(remote, "another", {0: 1})
    held()
    assert looks == before + 1
    now_s += readiness.LONGEST_S
    held()
    assert looks == before + 2
