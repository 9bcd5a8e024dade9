"""Maintenance with a real source: groups keep their positions, and the ledger's stream does not begin anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TopicPartition
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.ledger import maintenance, views
from mirrorlake.ledger.maintenance import Maintenance, Retention
from mirrorlake.ledger.store import rows_of_pair

from tests.world import ROOT, World, eventually


def test_what_no_group_wants_and_the_source_no_longer_has_expires_does_not_come_back_and_is_called_expired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    concerned = ("offset_syncs", "gaps", "expired_ranges")  # others of this process's warehouse are many files
    monkeypatch.setattr(maintenance, "TABLES", {name: maintenance.TABLES[name] for name in concerned})
    topic = world.topic(partitions=1)
    for seed in range(3):
        world.produce(topic, 100, 1, seed=seed)
        world.mirror()
    group = world.commit("slow", {(topic, 0): 150})
    world.checkpoint()
    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=100)

    def maintain() -> set[int]:
        """Runs maintenance; returns the offsets at which the remaining runs begin."""
        result = Maintenance(world.ledger, Retention({"offset_syncs": 90}, None), later, world.config).run()
        assert not [note for note in result.notes if note.startswith(f"flow {world.flow_name}")]
        table = world.ledger.of_flow("offset_syncs", world.flow)
        return {row["upstream_start"] for row in table.collect()}

    def delete_records(before: int) -> None:
        for future in world.source_admin.delete_records([TopicPartition(topic, 0, before)]).values():
            future.result()

    def unmirrored() -> list[tuple[int, int, str]]:
        rows = rows_of_pair(views.read(world.ledger, "unmirrored"), world.alias, world.target_alias).collect()
        return [(row["from_offset"], row["to_offset"], row["kind"]) for row in rows]

    delete_records(250)
    assert unmirrored() == []
    assert maintain() == {100, 200}  # the group stands in the second run
    assert unmirrored() == [(0, 100, "expired")]
    world.commit("slow", {(topic, 0): 300})
    world.checkpoint()
    world.produce(topic, 10, 1, seed=9)
    world.mirror()
    assert maintain() == {200, 300}  # the source's log begins in the third one
    world.commit("slow", {(topic, 0): 305})
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["downstream_offset"]) == ("exact", world.target_records(topic)[0][305][0])

    delete_records(300)
    assert maintain() == {300}  # the source's log begins with it; the target has all records from 0 on
    assert verified(world) == (True, 10, 0)

    # The records of a log whose map has expired stand before those of the one that came after it.
    world.write_config(**{"mirrorlake.on.loss": "continue"})
    world.source_admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in world.source_admin.list_topics(timeout=5).topics)
    assert world.topic(topic.removeprefix(f"{world.alias}-"), 1) == topic
    world.produce(topic, 20, 1, seed=10)
    world.mirror()
    assert verified(world) == (True, 20, 0)


def verified(world: World) -> tuple[bool, int, int]:
    """Verifies everything; returns whether it passed, and the numbers of records and differences."""
    suite = ROOT / "expectations/verification.json"
    result = Verification(world.spark, world.flow, world.ledger, suite).run(VerificationScope.parse("full"))
    return result.passed, result.total("records"), result.total("differences")
