"""A flow goes on from the states that an earlier version has left, on real brokers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from confluent_kafka import Producer
from mirrorlake.model.changes import whole_states
from mirrorlake.model.slot import VERSION

from tests.world import ROOT, World, read_committed


def fields_of(version: int) -> dict[str, Any]:
    return json.loads((ROOT / f"tests/older_states/format-{version}.json").read_text())


def rewrite_as(version: int, world: World) -> int:
    """Writes the last state of each slot once more, as a version with this format has it; returns the generation."""
    known = fields_of(version)
    producer = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
    for slot, records in read_committed(world.target_servers, world.flow.offset_syncs_topic).items():
        *_, (_, last) = whole_states("offset-syncs", ((offset, record[1]) for offset, record in records))
        state = asdict(last)
        older = {name: value for name, value in state.items() if name in known} | {"version": version, "runs": []}
        names = known["positions"][0]
        older["positions"] = [{name: position[name] for name in names} for position in state["positions"]]
        if "gaps" in known:
            older["gaps"] = []
        producer.produce(world.flow.offset_syncs_topic, json.dumps(older), f"slot-{slot}", partition=slot)
    assert producer.flush(30) == 0
    return state["generation"]


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_flow_goes_on_from_states_of_an_earlier_format_and_copies_nothing_twice(
    plain_world: World, version: int
) -> None:
    world = plain_world
    world.audits_trace = False  # the states that this test writes are no transactions of a slot
    topic = world.topic(partitions=3)
    world.produce(topic, 150, 3)
    world.produce_transactions(topic, 5, 8, 3)
    before = world.mirror().records
    generation = rewrite_as(version, world)
    assert world.mirror().records == 0
    world.produce(topic, 60, 3, seed=2)
    assert world.mirror().records == 60
    assert world.assert_equal(topic) == before + 60
    slots = read_committed(world.target_servers, world.flow.offset_syncs_topic).values()
    found = [json.loads(records[-1][1][1]) for records in slots]
    assert {state["version"] for state in found} == {VERSION}
    assert {state["generation"] for state in found} == {generation + 2}
