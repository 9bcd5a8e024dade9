"""Helpers for tests of failover and failback.

They run both as the notebooks do, with a flow and its flow back, and with traffic that keeps the acknowledged records.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Producer
from mirrorlake.jobs.failover.failback import Failback, FailbackResult
from mirrorlake.jobs.failover.failback import choice as parse_failback
from mirrorlake.jobs.failover.job import Failover, FailoverResult
from mirrorlake.jobs.failover.plan import Choice, Line

from tests.world import ROOT, World, consume_as

IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}


def failover(world: World, **given: str) -> FailoverResult:
    """Runs the steps of the notebook with these parameters."""
    return Failover(world.spark, world.config, world.flow, world.ledger, ROOT / "expectations").carry_out(
        Choice.parse(given)
    )


def line(result: FailoverResult, group: str, partition: int = 0) -> Line:
    return next(one for one in result.lines if one.group_id == group and one.partition == partition)


class Traffic:
    """A producer of numbered records that keeps those that were acknowledged."""

    def __init__(self, servers: str, topic: str, prefix: str, partitions: int = 2, pause_s: float = 0.05) -> None:
        self._servers, self._topic, self._prefix, self._partitions, self._pause_s = (
            servers,
            topic,
            prefix,
            partitions,
            pause_s,
        )
        self.acknowledged: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> Traffic:
        self._thread.start()
        return self

    def stop(self) -> Traffic:
        self._stopped.set()
        self._thread.join()
        return self

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": 5_000,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        number = 0
        while not self._stopped.is_set():
            value = f"{self._prefix}{number}"
            producer.produce(
                self._topic,
                value,
                partition=number % self._partitions,
                on_delivery=lambda error, _, value=value: error or self.acknowledged.append(value),
            )
            number += 1
            if number % 20 == 0:
                producer.flush(5)
                self._stopped.wait(self._pause_s)  # a few hundred records a second are enough
        producer.flush(10)


def text(value: bytes | None) -> str:
    return (value or b"").decode()


def texts(records: dict[int, list[Any]]) -> dict[int, list[str]]:
    return {partition: [text(record[1]) for _, record in found] for partition, found in records.items()}


def home_of(world: World) -> World:
    """Returns the flow back, in the same property file."""
    other = World(
        world.target_servers,
        world.source_servers,
        world.directory / "back",
        world.spark,
        world.warehouse,
        dict(world.properties),
        world.target_alias,
        world.alias,
        due=world.due,  # both write to the same tables
    )
    other.properties |= {f"{other.flow_name}.enabled": "true", f"{world.flow_name}.enabled": "true"}
    other.write_config()
    return other


def both_ways(world: World, **settings: str) -> World:
    """Configures the world's flow and the flow back; returns the world of the flow back."""
    world.target_alias = f"{world.alias}b"
    names = {"topics": f"{world.alias}-.*", "groups": f"{world.alias}-.*"}  # of both flows
    world.write_config(
        **settings,
        **names,
        **{f"{world.flow_name}.enabled": "true", f"{world.target_alias}->{world.alias}.enabled": "true"},
    )
    return home_of(world)


def failback(world: World, decide: str = "", export: str = "", lost: str = "", **given: str) -> FailbackResult:
    """Runs the steps of the notebook with these parameters."""
    choice = parse_failback(given)
    return Failback(world.spark, world.config, world.flow, world.ledger, ROOT / "expectations").carry_out(
        choice, decide, export, lost
    )


def assert_nothing_is_lost_but_what_is_listed(
    world: World, topic: str, groups: set[str], lost: dict[int, list[str]]
) -> None:
    """Asserts that each record is on both sides once, except those that were dropped.

    On the original source, groups read exactly their unread records.
    """
    copies = world.target_records(topic)
    west, east = texts(world.source_records(topic)), texts(copies)
    for partition in west:
        assert len(set(west[partition])) == len(west[partition])
        assert len(set(east[partition])) == len(east[partition])
        assert set(west[partition]) - set(east[partition]) == set(lost[partition])
        assert set(east[partition]) - set(west[partition]) == set()
    for group in groups:
        left, unread = world.committed(group), consume_as(world.source_servers, group, [topic])
        for partition in west:
            at, _ = left[world.remote(topic), partition]
            read = {text(record[1]) for offset, record in copies[partition] if offset < at}
            got = [text(value) for value in unread[topic, partition]]
            assert len({*got}) == len(got)
            assert {*west[partition]} - read - {*got} <= {*lost[partition]}, f"{group} skips what is not listed"
            assert read & {*got} == set(), f"{group} reads again"


def assert_the_next_plan_is_exact(
    world: World, topic: str, groups: set[str], dropped: Mapping[int, Collection[str]]
) -> None:
    """Asserts that groups among records of either side are translated by the maps of both directions."""
    west, east = world.source_records(topic), world.target_records(topic)
    for one in (found for found in failover(world).lines if found.group_id in groups):
        unread = {repr(record): record for offset, record in west[one.partition] if offset >= one.upstream_offset}
        to_come = {repr(record) for offset, record in east[one.partition] if offset >= one.downstream_offset}
        known = {repr(record) for _, record in east[one.partition]}
        skipped = (unread.keys() & known) - to_come
        assert (one.status, skipped, len(to_come - unread.keys())) == ("exact", set(), one.again), one
        left_behind = {text(record[1]) for shown, record in unread.items() if shown not in known}
        assert left_behind <= {*dropped.get(one.partition, ())}
        assert not dropped or one.again == 0, "what is dropped comes nowhere, so the order is the same on both sides"
