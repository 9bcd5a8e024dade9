"""Canaries on real clusters."""

from __future__ import annotations

from tests.world import World, eventually


def test_canaries_travel_the_whole_way_and_leave_no_group(plain_world: World) -> None:
    world = plain_world
    topic = world.topic("orders", 1)
    world.produce(topic, 10, 1)
    world.write_config(
        heartbeats_replication_enabled="true",
        mirrorlake_canary_enabled="true",
        mirrorlake_canary_interval_seconds="1",
    )
    group = world.flow.canary_group
    with world.mirroring(), world.checkpointing():
        for path in ("record", "group"):
            eventually(lambda path=path: world.metric("canary_seconds_count", path=path), what=f"a canary by {path}")
        assert world.metric("canary_quantile_seconds", path="record", quantile="0.5") < 10
        assert world.metric("canary_burn_ratio", path="record") == 0
        assert world.metric("canary_late_probes_total", path="group") in (None, 0)
        assert world.committed(group)
    assert not world.flow.moves_group(group)
    for admin in (world.source_admin, world.target_admin):
        eventually(
            lambda admin=admin: group not in {one.group_id for one in admin.list_consumer_groups().result().valid},
            what="the end of the canary's group",
        )
    assert {row["group_id"] for row in world.rows("checkpoints")} == {group}
