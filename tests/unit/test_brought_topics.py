"""Topics of the source that the flow back may have written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint.brought_topics import BroughtTopics

CLUSTERS = {
    "clusters": "a, b",
    "a.bootstrap.servers": "h:1",
    "b.bootstrap.servers": "h:2",
    "a->b.enabled": "true",
    "a->b.topics": "orders",
}
BOTH = {"b->a.enabled": "true"}
IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}
RENAMED = {
    "b->a.replication.policy.class": "RenameReplicationPolicy",
    "b->a.topics.rename.regex": "x-(.*)",
    "b->a.topics.rename.replacement": "y-$1",
}


@pytest.mark.parametrize(
    ("given", "brought"),
    [
        ({}, ["b.orders"]),
        (BOTH, ["b.orders"]),
        (IDENTITY, []),
        ({**IDENTITY, **BOTH}, ["pay", "pay-1", "x-1"]),
        ({**IDENTITY, **BOTH, "b->a.topics": "pay.*", "b->a.topics.exclude": "pay-1"}, ["pay"]),
        ({**BOTH, **RENAMED}, ["b.orders", "pay", "pay-1", "y-1"]),
        ({**IDENTITY, **BOTH, "b->a.topics": "["}, []),
    ],
    ids=["alias in front", "both ways", "one way", "names kept", "some topics", "renamed", "no valid flow"],
)
def test_only_what_the_target_has_and_the_flow_back_takes_may_have_been_brought(
    tmp_path: Path, given: dict[str, str], brought: list[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in {**CLUSTERS, **given}.items()))
    there: Any = SimpleNamespace(refresh=lambda *_: dict.fromkeys(("pay", "pay-1", "x-1")))
    found = BroughtTopics(str(file), Flow.load(str(file), "a->b"), there)
    assert [topic for topic in ("audit", "b.orders", "pay", "pay-1", "x-1", "y-1") if topic in found] == brought
