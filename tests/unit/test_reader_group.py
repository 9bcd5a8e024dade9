"""The group id under which Spark reads, and damage that it meets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mirrorlake.model.copy_plan import Range
from mirrorlake.protocol.batches.damage import SIGHTINGS
from mirrorlake.spark.kafka_frames import Damage
from mirrorlake.spark.reader_group import ReaderGroup


def planned(partition: int, leader_epoch: int = 5, topic_id: str = "id") -> Range:
    return Range("t", partition, topic_id, 4, slot=0, start=0, end=10, leader_epoch=leader_epoch)


def flow(**options: str) -> Any:
    return SimpleNamespace(source_connection=SimpleNamespace(spark=lambda: options))


def test_reads_have_one_group_until_a_log_may_be_another_one_or_options_differ() -> None:
    """Spark keeps what it has for each group for ever, and uses records again that were polled under it."""
    readers, given = ReaderGroup(), flow(password="old")
    first = readers.id_for(given, [planned(0), planned(1)])
    assert {readers.id_for(given, some) for some in ([planned(1)], [planned(2)], [planned(0), planned(2)])} == {first}
    elected = readers.id_for(given, [planned(0, leader_epoch=6)])
    assert elected != first
    assert readers.id_for(given, [planned(0, leader_epoch=6), planned(1)]) == elected
    recreated = readers.id_for(given, [planned(1, topic_id="another")])
    assert recreated not in (first, elected)
    rotated = readers.id_for(flow(password="new"), [planned(1, topic_id="another")])
    assert rotated not in (first, elected, recreated)
    unknown = replace(planned(3), leader_epoch=-1)
    for one in (unknown, planned(3, topic_id="")):
        assert readers.id_for(given, [one]) != readers.id_for(given, [one]), "nobody knows whether it is the same"


def test_damage_is_that_of_the_log_once_it_was_found_several_times_in_a_row() -> None:
    damage = Damage()
    assert [damage.is_of_the_log("a") for _ in range(SIGHTINGS - 1)] == [False] * (SIGHTINGS - 1)
    assert not damage.is_of_the_log("b")
    assert damage.is_of_the_log("a"), "another damage beside it does not make it less likely"
    damage.none()
    assert not damage.is_of_the_log("a")
