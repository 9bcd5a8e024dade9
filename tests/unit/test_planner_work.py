"""The work of a plan: requests, and partitions that are looked into. It must not grow with what has not changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.reload import LiveFlow
from mirrorlake.config.start import Start, StartSpec, StartWord
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.jobs.mirror.planning import planner as planner_module
from mirrorlake.jobs.mirror.planning import readiness
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.model.copy_plan import Partition
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Topic
from mirrorlake.protocol.log_reader import UNKNOWN_LOG

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

    def leader(self, topic: str, partition: int) -> int:
        return 1

    def __init__(self, topics: Iterable[str], records: int) -> None:
        leaders = dict.fromkeys(range(PER_TOPIC), 1)
        self.topics = {name: Topic(name, f"id-{name}", leaders) for name in topics}
        self.ends = {(name, index): records for name in self.topics for index in leaders}
        self.asked, self.doubts, self.epoch = Counter[str](), dict[str, str](), 0
        self.silent: set[PartitionKey] = set()

    def refresh(self, topics: Iterable[str] | None, *_: object, **__: object) -> dict[str, Topic]:
        self.asked["Metadata"] += 1
        names = self.topics if topics is None else topics
        return {name: self.topics[name] for name in names if name in self.topics}

    def offsets(self, keys: Iterable[PartitionKey], at: int, _: int) -> dict[PartitionKey, int]:
        self.asked["ListOffsets"] += 1
        return {key: 0 if at == EARLIEST_TIMESTAMP else self.ends[key] for key in keys}

    def stable_ends(
        self, keys: Iterable[PartitionKey], *_: int, **__: bool
    ) -> tuple[dict[PartitionKey, Any], dict[Any, str]]:
        self.asked["ListOffsets"] += 1
        asked = list(keys)
        ends = {key: (self.ends[key], self.epoch) for key in asked if key not in self.silent}
        return ends, {key: "no answer" for key in asked if key in self.silent}

    def log_bounds(self, keys: Iterable[PartitionKey]) -> tuple[dict[PartitionKey, Any], dict[Any, str]]:
        self.asked["ListOffsets"] += 3
        return {key: (0, self.ends[key], self.ends[key]) for key in keys}, {}

    def high_watermarks(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        self.asked["ListOffsets"] += 1
        return {key: self.ends[key] for key in keys}

    def leader_epoch(self, *_: object) -> int:
        return 0

    def call(self, what: str, attempt: Callable[[], Any], _: int) -> Any:
        return attempt()

    def ask_every_broker(self, topics: list[str], **_: object) -> tuple[dict[str, Topic], dict[str, str]]:
        """Also for itself: what one broker says is what all say."""
        self.asked["Metadata of each broker"] += 1
        return {name: self.topics[name] for name in topics}, self.doubts

    def close(self) -> None:
        """It has no connections."""


class Planned:
    """A planner of a flow with that many topics, whose slots have the given positions."""

    def __init__(
        self, topics: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, until_now: bool = False
    ) -> None:
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
        self.planner = cast("Any", Planner(LiveFlow(config, FLOW), until_now=until_now))
        self.planner._clusters = self.source, self.target
        self.planner._pause = SimpleNamespace(begin=lambda *_: None, look=lambda *_: None)

    def _partition(self, *key: Any, **values: Any) -> Partition:
        self.looked_into.append(Partition(*key, **values))
        return self.looked_into[-1]

    def copied(self, epoch: int = 0) -> None:
        """Lets the slot commit all that the source has, of leaders with an epoch."""
        positions = tuple(
            Position(*key, f"id-{key[0]}", f"a.{key[0]}", key[1], end, end, 0, 0, epoch, f"id-a.{key[0]}", 0)
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


@pytest.mark.parametrize("until_now", [True, False])
def test_a_run_with_an_end_lets_no_partition_linger_whose_leader_has_answered_late(
    until_now: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would end without these records. A job that goes on lets them wait for others."""
    planned = Planned(1, monkeypatch, tmp_path, until_now=until_now)
    planned.planner._live.flow = replace(FLOW, linger_ms=60_000)
    planned.copied()
    planned.source.ends |= dict.fromkeys([("t0", 1), ("t0", 2)], RECORDS + 3)
    planned.source.silent = {("t0", 1)}
    assert [one.partition for one in planned.next()[0].ranges] == [2]
    planned.source.silent = set()
    assert [one.partition for one in planned.next()[0].ranges] == ([1, 2] if until_now else [2])


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


@pytest.mark.parametrize(("records", "epoch"), [(RECORDS - 1, 5), (RECORDS + 1, 4)])
def test_a_shorter_log_or_an_older_leader_is_believed_once_every_broker_agrees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: int, epoch: int
) -> None:
    planned = Planned(2, monkeypatch, tmp_path)
    planned.copied(epoch=5)
    source, key = planned.source, ("t1", 0)
    source.epoch = 5
    assert planned.next()[2] == 0
    source.ends[key], source.epoch = records, epoch
    source.doubts = {"t1": "broker 3 does not say who leads it"}
    _, asked, looked_into = planned.next()
    assert (looked_into, asked["Metadata of each broker"]) == (0, 1)
    _, asked, looked_into = planned.next()
    assert (looked_into, asked["Metadata of each broker"]) == (0, 0), "it is not asked for with each plan"
    planned.planner._stuck._clock = lambda: 1e9
    assert "t1-0 does not answer: broker 3 does not say who leads it" in planned.next()[0].stuck[key]
    source.doubts, planned.planner._former_leaders._due = {}, 0.0
    if records < RECORDS:
        with pytest.raises(SourceError, match="topic t1, partition 0: the log ends at offset 6, but the flow has"):
            planned.next()
    else:
        assert [one.leader_epoch for one in planned.next()[0].ranges] == [4]


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
    assert found.foreign == {"t"}
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
    monkeypatch.setattr(readiness, "first_records", lambda *_: ({}, {}))
    now_s += readiness.LONGEST_S
    there = Topic(remote, "emptied", {0: 1})
    found.held(FLOW, {"t": Topic("t", "id", {0: 1})}, cast("Any", target), {}, is_settled=lambda: True)
    assert not found.foreign


@pytest.mark.parametrize("has_records", [False, True])
def test_a_remote_topic_with_too_few_partitions_and_records_of_others_is_not_said_to_wait_for_partitions(
    has_records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, asked = FLOW.policy.remote_topic("t"), list[Any]()

    def first_records(_: Any, topics: dict[str, Any], *__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        asked.append(topics)
        return ({"t": (remote, 0)} if has_records else {}), {}

    monkeypatch.setattr(readiness, "first_records", first_records)
    target = SimpleNamespace(refresh=lambda *_, **__: {remote: Topic(remote, "id", {0: 1})})
    found, given = readiness.Readiness(), {"t": Topic("t", "id", {0: 1, 1: 1, 2: 1})}
    for _ in range(3):
        held = found.held(FLOW, given, cast("Any", target), {}, is_settled=lambda: True)["t"]
    assert [one for one in asked if one] == [{"t": [(remote, 0)]}], "one look, for some time"
    assert ("holds records already" if has_records else "does not have all 3 partitions yet") in held
    assert (found.foreign, found.waiting) == (({"t"}, set()) if has_records else (set(), {"t"}))


def test_a_log_on_the_target_that_can_not_be_read_holds_up_its_own_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader lists its ends, and fails each Fetch: a damaged disk, for example."""
    monkeypatch.setattr(readiness, "log_identity", lambda *_: UNKNOWN_LOG)

    def call(what: str, *_: Any) -> bool:
        if "damaged" in what:
            raise TargetError("storage error", retriable=True)
        if "denied" in what:
            raise TargetError("needs READ")
        return "foreign" in what

    leaders = {"damaged": 1, "beside": 1, "denied": 2, "foreign": 2, "mine": 2}
    keys = {name: [(name, 0)] for name in leaders}
    cluster: Any = SimpleNamespace(
        call=call,
        leader=lambda name, _: leaders[name],
        log_bounds=lambda asked: (dict.fromkeys(asked, (0, 5, 5)), {}),
    )
    found, unread = readiness.first_records(cluster, keys, 1_000, {})
    assert found == {"denied": ("denied", 0), "foreign": ("foreign", 0)}
    # Of that leader, no other log is looked at: each look would take its whole time.
    assert unread == {name: ((name, 0), "storage error") for name in ("damaged", "beside")}
