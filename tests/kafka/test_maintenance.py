"""Maintenance with a real source: groups keep their positions, and the ledger's stream does not begin anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from confluent_kafka import TopicPartition
from mirrorlake.ledger.maintenance import Maintenance, Retention

from tests.world import World


def test_what_no_group_wants_and_the_source_no_longer_has_expires_and_does_not_come_back(world: World) -> None:
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

    for future in world.source_admin.delete_records([TopicPartition(topic, 0, 250)]).values():
        future.result()
    assert maintain() == {100, 200}  # the group stands in the second run
    world.commit("slow", {(topic, 0): 300})
    world.checkpoint()
    world.produce(topic, 10, 1, seed=9)
    world.mirror()
    assert maintain() == {200, 300}  # the source's log begins in the third one
    world.commit("slow", {(topic, 0): 305})
    world.checkpoint()
    row = world.checkpoints()[group, topic, 0]
    assert (row["status"], row["downstream_offset"]) == ("exact", world.target_records(topic)[0][305][0])
