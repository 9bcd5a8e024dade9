"""What the job leaves alone on the target: remote topics of others, and rights that nobody knows the origin of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.topics.topology import Topology
from mirrorlake.protocol.acls import Acl

VALUES = {
    "clusters": "a, b",
    "a.bootstrap.servers": "127.0.0.1:1",
    "b.bootstrap.servers": "127.0.0.1:2",
    "a->b.enabled": "true",
    "replication.policy.class": "IdentityReplicationPolicy",
    "sync.topic.acls.enabled": "true",
}
FLOW = Flow.from_properties(Properties(VALUES), "a->b")
ANN = Acl("t", "LITERAL", "User:ann", "*", "READ", "ALLOW")
BOB = replace(ANN, principal="User:bob")


def acl_changes(source: set[Acl], target: set[Acl], given: dict[str, set[Acl]], foreign: str = "") -> list[str]:
    """Returns the changes of access rights, where the flow back is open; `given` has those of each flow, by source."""
    back = SimpleNamespace(source="b")
    made = Topology(
        FLOW,
        SimpleNamespace(acls=lambda: source),  # type: ignore[arg-type]
        SimpleNamespace(acls=lambda: target),  # type: ignore[arg-type]
        SimpleNamespace(granted_acls=lambda flow: map(str, given.get(flow.source, ()))),  # type: ignore[arg-type]
        SimpleNamespace(giver=lambda *_: back),  # type: ignore[arg-type]
    )
    made.foreign = frozenset([foreign] if foreign else [])
    found: list[Any] = made._acl_changes(["t"])
    return [f"{change.kind} {change.before or change.after}" for change in found]


def test_a_right_that_both_flows_have_given_stays_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = {"a": {ANN}, "b": {ANN}}
    assert acl_changes({ANN}, {ANN}, given) == []
    assert "have both given ALLOW READ to User:ann" in caplog.text
    assert acl_changes({ANN}, set(), {"b": {ANN}}) == [], "it is the other flow's"
    assert acl_changes({BOB}, set(), {"b": {ANN}}) == [f"create_acl {BOB}"]
    assert acl_changes(set(), {BOB}, {"a": {BOB}}) == [f"delete_acl {BOB}"]


def test_a_topic_of_others_gets_no_reader_and_loses_those_that_it_got_before() -> None:
    assert acl_changes({ANN}, set(), {}, foreign="t") == []
    assert acl_changes(set(), {ANN}, {"a": {ANN}}, foreign="t") == [f"delete_acl {ANN}"]
