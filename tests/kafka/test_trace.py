"""The audit of the offset-syncs topic of a real flow (`make audit-trace CONFIG=… FLOW=…`)."""

from __future__ import annotations

from confluent_kafka import OFFSET_END, Producer, TopicPartition
from mirrorlake.local import audit_trace

from tests.world import World, read_committed


def test_the_trace_of_restarts_with_other_numbers_of_slots_and_a_loss_passes_and_a_repeated_state_is_named(
    plain_world: World,
) -> None:
    topic = plain_world.topic(partitions=3)
    for number, slots in enumerate((2, 3, 1)):
        plain_world.write_config(**{"mirrorlake.slots": str(slots), "mirrorlake.on.loss": "continue"})
        plain_world.produce(topic, 300, 3, seed=number)
        plain_world.mirror()
    plain_world.produce(topic, 300, 3, seed=3)
    (lost,) = plain_world.source_admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values()
    lost.result()
    plain_world.mirror()
    report, is_true = audit_trace.audit_topic(plain_world.config, plain_world.flow_name)
    assert is_true, report
    syncs = plain_world.flow.offset_syncs_topic
    assert report[0].startswith(f"flow {plain_world.flow_name}, topic {syncs}: ")
    assert "4 generations" in report[0]
    assert "3 slots" in report[0]
    assert {line.split("  ")[1] for line in report[1:]} == {"holds"}
    environment = {"CONFIG": plain_world.config, "FLOW": plain_world.flow_name}
    assert audit_trace.main(environment) == 0

    _, (key, value, _, _) = read_committed(plain_world.target_servers, syncs)[0][-2]
    other = Producer({"bootstrap.servers": plain_world.target_servers})
    other.produce(syncs, value, key, partition=0)
    assert other.flush(30) == 0
    report, is_true = audit_trace.audit_topic(plain_world.config, plain_world.flow_name)
    assert not is_true
    assert any("FAILS  each epoch has one transaction, and epochs only grow" in line for line in report)
    assert any(line.startswith(f"  flow {plain_world.flow_name}, slot 0, state at offset ") for line in report)
    assert audit_trace.main(environment) == 1
