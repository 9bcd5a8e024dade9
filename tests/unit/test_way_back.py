"""Which topics the flow back keeps in step, so that this flow leaves their configuration as it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.topics import way_back
from mirrorlake.jobs.mirror.topics.way_back import WayBack

FILE = """
clusters = a, b
a.bootstrap.servers = 127.0.0.1:1
b.bootstrap.servers = 127.0.0.1:2
a->b.enabled = true
b->a.enabled = true
replication.policy.class = IdentityReplicationPolicy
"""
OPEN: Any = SimpleNamespace(closed=False, promoted_topics=())
CLOSED: Any = SimpleNamespace(closed=True, promoted_topics=())


def kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: Any,
    *topics: str,
    gives: bool = False,
    **changes: str | None,
) -> tuple[set[str], list[tuple[Any, ...]]]:
    """Returns what is kept, or who gives access, and the topics whose states were read."""
    file, reads = tmp_path / "mm2.properties", list[tuple[Any, ...]]()
    values = dict(line.split(" = ") for line in FILE.split("\n") if line)
    values |= {name.replace("_", "."): value for name, value in changes.items()}
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items() if value is not None))
    flow = Flow.load(str(file), "a->b")

    def read(*given: Any) -> dict[int, Any]:
        reads.append(given[:2])
        if isinstance(states, Exception):
            raise states
        return dict(enumerate(states))

    monkeypatch.setattr(way_back, "read_all_states", read)
    source: Any = object()
    remote_of = {topic: flow.policy.remote_topic(topic) for topic in topics or ("t", "u")}
    looks = WayBack(str(file), source)
    giver = looks.giver(flow, remote_of)
    found = {giver.name} if giver else looks.kept(flow, remote_of)
    assert gives or giver is None
    assert all(given == (source, "mirrorlake.offset-syncs.b.internal") for given in reads)
    return found, reads


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], set()),
        ([CLOSED, OPEN], set()),
        ([OPEN, OPEN], {"t", "u"}),
        ([OPEN, SimpleNamespace(closed=False, promoted_topics=("u",))], {"t"}),
        (SourceError("needs READ"), set()),
        (SourceError("no answer", retriable=True), {"t", "u"}),
    ],
    ids=["never begun", "closed", "open", "one topic promoted", "not to be read", "not to be read now"],
)
def test_topics_are_kept_by_the_flow_back_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any, expected: set[str]
) -> None:
    assert kept(tmp_path, monkeypatch, states)[0] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"b->a.enabled": "false"},
        {"b->a.sync.topic.configs.enabled": "false"},
        {"a->b.sync.topic.configs.enabled": "false"},
        {"replication.policy.class": None},
        {"b->a.topics": "other"},
        {"b->a.topics": "["},
    ],
    ids=["not enabled", "told not to", "this one told not to", "names with aliases", "other topics", "no valid flow"],
)
def test_nothing_is_asked_where_the_flow_back_keeps_nothing_in_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None]
) -> None:
    assert kept(tmp_path, monkeypatch, [OPEN], **changes) == (set(), [])


def test_only_topics_that_both_flows_mirror_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, reads = kept(tmp_path, monkeypatch, [OPEN], "t", "u", **{"b->a.topics": "u"})
    assert (found, len(reads)) == ({"u"}, 1)


@pytest.mark.parametrize(
    ("states", "changes", "gives"),
    [
        ([OPEN], {}, True),
        ([CLOSED], {}, False),
        (SourceError("no answer", retriable=True), {}, True),
        ([OPEN], {"b->a.sync.topic.acls.enabled": "false"}, False),
        ([OPEN], {"replication.policy.class": None}, False),
    ],
    ids=["open", "closed", "not to be read now", "gives nothing", "names with aliases"],
)
def test_the_flow_back_gives_access_to_what_both_mirror_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any, changes: dict[str, str | None], gives: bool
) -> None:
    with_acls = {"sync.topic.acls.enabled": "true", "sync.topic.configs.enabled": "false"} | changes
    assert kept(tmp_path, monkeypatch, states, gives=True, **with_acls)[0] == ({"b->a"} if gives else set())
