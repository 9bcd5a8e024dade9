"""MirrorMaker 2's offsets topic on a cluster where MirrorMaker 2 never ran."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mirrorlake.config.flow import Flow, Properties
from mirrorlake.errors import TargetError
from mirrorlake.protocol.admin import Admin, NewTopic
from mirrorlake.protocol.connect_offsets import MirrorMaker

FLOW = Flow.from_properties(
    Properties(
        {
            "clusters": "a, b",
            "a.bootstrap.servers": "a:9092",
            "b.bootstrap.servers": "b:9092",
            "a->b.enabled": "true",
            "offset.storage.replication.factor": "2",
        }
    ),
    "a->b",
)
OFFSETS = FLOW.mirrormaker.offsets_topic


class FakeAdmin:
    """Has some topics, and creates or rejects others."""

    def __init__(self, topics: dict[str, int], refusals: dict[str, TargetError] | None = None) -> None:
        self.topics, self.refusals, self.created = topics, refusals or {}, list[NewTopic]()

    def partitions(self) -> dict[str, int]:
        return self.topics

    def create(self, topics: list[NewTopic]) -> dict[str, TargetError]:
        self.created += topics
        return self.refusals


def ensure_topic(admin: FakeAdmin) -> list[Any]:
    MirrorMaker(FLOW, cast(Admin, admin)).ensure_topic()
    return admin.created


def test_a_missing_topic_is_created_as_connect_would() -> None:
    assert ensure_topic(FakeAdmin({})) == [NewTopic(OFFSETS, 25, 2, {"cleanup.policy": "compact"})]


def test_a_topic_that_is_there_is_left_as_it_is() -> None:
    assert ensure_topic(FakeAdmin({OFFSETS: 1})) == []


def test_a_refusal_is_raised() -> None:
    with pytest.raises(TargetError, match="not allowed"):
        ensure_topic(FakeAdmin({}, {OFFSETS: TargetError("not allowed")}))
