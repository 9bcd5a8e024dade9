"""Verification on real brokers: mirrored records are proven equal; planted differences are found by both offsets."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from mirrorlake.errors import ConfigurationError, GateError, TargetError
from mirrorlake.jobs.verification.completeness import CountScope
from mirrorlake.jobs.verification.counting import Counting
from mirrorlake.jobs.verification.job import Verification
from mirrorlake.jobs.verification.result import PartitionVerification, VerificationResult
from mirrorlake.jobs.verification.scope import VerificationScope
from mirrorlake.ledger import maintenance
from mirrorlake.ledger.maintenance import Maintenance, Retention
from mirrorlake.local.cluster import LocalCluster, running

from tests.moving import failover
from tests.world import (
    ROOT,
    World,
    _offset,
    configure,
    eventually,
    now_ms,
    transactional_producer,
    write_in_transaction,
)

Content = dict[str, Any]
HOLE = None  # two offsets without a record: those of an aborted one, and of its marker


def verify(world: World, mode: str = "full", **asked: str) -> VerificationResult:
    return Verification(world.spark, world.flow, world.ledger, ROOT / "expectations/verification.json").run(
        VerificationScope.parse(mode, **asked)
    )


def by_partition(result: VerificationResult) -> dict[int, PartitionVerification]:
    return {one.partition: one for one in result.partitions}


def findings(world: World, result: VerificationResult) -> dict[int, list[tuple[Any, ...]]]:
    """Returns the rows of verification_findings by partition: kind, both offsets, and detail."""
    rows = [row for row in world.table("verification_findings") if row["verification_id"] == result.verification_id]
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in sorted(rows, key=lambda row: row["downstream_offset"]):
        found.setdefault(row["partition"], []).append(
            (row["kind"], row["upstream_offset"], row["downstream_offset"], row["detail"])
        )
    return found


def record(number: int, **changes: Any) -> Content:
    """Returns the record of that number, always the same within a test."""
    headers = [("n", str(number).encode()), ("trace", None)]
    return {
        "key": f"key-{number % 7}".encode(),
        "value": f"value-{number}".encode(),
        "headers": headers,
        "timestamp": NOW + number,
        **changes,
    }


NOW = now_ms() - 100_000


def write(servers: str, topic: str, contents: dict[int, Iterable[Content | None]]) -> None:
    """Appends records to partitions unchanged, by a client independent of the mirror."""
    plain = Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})
    refused: list[Any] = []
    aborting = None
    for partition, records in contents.items():
        for one in records:
            if one is not HOLE:
                plain.produce(topic, partition=partition, **one)
                continue
            assert plain.flush(30) == 0
            if aborting is None:
                aborting = transactional_producer(servers, uuid.uuid4().hex)
            aborting.begin_transaction()
            aborting.produce(
                topic,
                b"never",
                partition=partition,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            assert aborting.flush(30) == 0
            assert not refused, refused[0]
            end = _offset(servers, topic, partition, 0)
            aborting.abort_transaction(30)
            eventually(
                lambda partition=partition, end=end: _offset(servers, topic, partition, 0) == end + 1, what="the marker"
            )  # it is written a moment later
        assert plain.flush(30) == 0


def rebuild(world: World, topic: str, contents: dict[int, list[Content | None]], *, source: bool = False) -> None:
    """Replaces a topic that the mirror has written (or read) by one with other contents."""
    admin, servers, name = (
        (world.source_admin, world.source_servers, topic)
        if source
        else (world.target_admin, world.target_servers, world.remote(topic))
    )
    delete(admin, name)
    admin.create_topics([NewTopic(name, len(contents), 1)])[name].result()
    eventually(lambda: len(admin.list_topics(name, timeout=5).topics[name].partitions) == len(contents))
    write(servers, name, contents)


def delete(admin: Any, topic: str) -> None:
    admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics)


def drop_before(admin: Any, topic: str, partition: int, offset: int) -> None:
    for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        future.result()


def compact(admin: Any, topic: str) -> None:
    """Makes a topic a compacted one that the cleaner leaves alone for an hour."""
    values = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in values.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def with_changes(changes: dict[int, Content | None], records: int = 40) -> list[Content | None]:
    """Returns the records of a partition with some of them replaced."""
    return [changes.get(number, record(number)) for number in range(records)]


def test_a_clean_mirror_passes_with_the_exact_number_of_records_and_the_same_version_says_the_same_later(
    world: World,
) -> None:
    plain, transactional, idle = world.topic("plain", 3), world.topic("transactional"), world.topic("idle", 1)
    stamped = world.topic(
        "stamped", 1, {"message.timestamp.type": "LogAppendTime"}
    )  # arrives with the broker's time as its own
    world.produce(plain, 600, 3, "zstd")
    world.produce_transactions(transactional, 20, 20, seed=1)
    world.produce(stamped, 50, 1, seed=6)
    world.mirror()
    world.produce(plain, 200, 3, "gzip", seed=2)
    world.produce_transactions(transactional, 5, 20, seed=3)
    world.mirror()
    expected = world.assert_equal(plain, transactional) + 50
    held = world.topic("not-mirrored-yet", 1)
    world.produce(held, 10, 1, seed=5)

    first = verify(world)
    first.require()
    assert (first.passed, first.total("records"), first.total("differences"), first.total("not_comparable")) == (
        True,
        expected,
        0,
        0,
    )
    assert f"{expected:,} records, 0 differences; 1 partition not covered" in first.statement()
    rows = [row for row in world.table("verifications") if row["verification_id"] == first.verification_id]
    assert sum(row["records"] for row in rows) == expected
    assert {(row["topic"], row["status"], row["passed"]) for row in rows} == {
        (plain, "equal", True),
        (transactional, "equal", True),
        (stamped, "equal", True),
        (held, "not_covered", False),
    }
    assert idle not in {row["topic"] for row in rows}
    runs = world.ledger.read("offset_syncs").filter(f"source = '{world.alias}'")
    assert first.verified_to.timestamp() == runs.selectExpr("max(unix_millis(committed_at))").first()[0] / 1000

    # A topic without a mirror, and records behind the mirrored ones, are no silence once they are late.
    hours_ago = {"timestamp": NOW - 2 * 3_600_000}
    write(world.source_servers, idle, {0: [record(1, **hours_ago), record(2)]})
    write(world.source_servers, plain, {1: [record(3, **hours_ago)]})
    late = verify(world, "incremental")
    assert {(one.topic, one.partition): (one.unmirrored, one.status) for one in late.partitions} == {
        (held, 0): (0, "not_covered"),
        (idle, 0): (2, "not_mirrored"),
        (plain, 1): (1, "not_mirrored"),
    }
    with pytest.raises(GateError, match="3 records of 2 partitions are late: not mirrored yet"):
        late.require()
    assert not verify(world, "incremental", max_lateness_seconds="86400").total("unmirrored")

    world.produce(plain, 100, 3, seed=4)
    world.mirror()
    again = verify(world, version=str(first.offset_syncs_version))
    assert [one for one in again.partitions if one.is_covered] == [one for one in first.partitions if one.is_covered]
    results = [row for row in world.table("expectation_results") if row["cycle_id"] == first.verification_id]
    assert results
    assert all(row["success"] for row in results)
    with pytest.raises(ConfigurationError, match="has no version after"):
        verify(world, version="999999")


def test_a_loss_a_duplicate_a_swap_and_every_changed_part_are_each_found_and_named_by_both_offsets(
    world: World,
) -> None:
    topic = world.topic(partitions=9)
    write(world.source_servers, topic, {partition: with_changes({}) for partition in range(9)})
    assert world.mirror().records == 360
    planted = {
        0: with_changes({}),
        1: with_changes({10: HOLE}, 11) + [record(number) for number in range(12, 40)],
        2: [*with_changes({}), record(7)],
        3: with_changes({5: record(25), 25: record(5)}),
        4: with_changes({8: record(8, value=b"valuE-8")}),
        5: with_changes({9: record(9, headers=[("n", b"9"), ("trace", b"")])}),
        6: with_changes({12: record(12, timestamp=NOW + 13)}),
        7: with_changes({3: record(3, key=None)}),
        8: [*with_changes({39: record(99)}), record(1, value=b"nobody's")],
    }
    rebuild(world, topic, planted)
    result = verify(world)
    assert findings(world, result) == {
        1: [("missing", 10, 10, None), ("missing", 11, 11, None)],
        2: [("duplicated", 7, 40, "an additional copy of the record")],
        3: [
            ("out_of_order", 25, 5, "the map has the record at downstream offset 25"),
            ("out_of_order", 5, 25, "the map has the record at downstream offset 5"),
        ],
        4: [("different", 8, 8, "value")],
        5: [("different", 9, 9, "headers")],
        6: [("different", 12, 12, "timestamp")],
        7: [("different", 3, 3, "key")],
        8: [
            ("different", 39, 39, "key, value, headers, timestamp"),
            ("unexpected", None, 40, "the record is in no run of the map"),
        ],
    }
    found = by_partition(result)
    assert [found[partition].records for partition in range(9)] == [40, 38, 40, 40, 40, 40, 40, 40, 40]
    assert [found[partition].differences for partition in range(9)] == [0, 2, 1, 2, 1, 1, 1, 1, 2]
    assert [found[partition].passed for partition in range(9)] == [True] + 8 * [False]
    assert (found[4].notes, found[8].notes) == (
        ["different in value (1)"],
        ["different in key, value, headers, timestamp (1)"],
    )
    assert result.statement().startswith("NOT EQUAL: verified to ")
    assert (
        "358 records, 11 differences (2 missing, 1 duplicated, 2 out of order, 5 different, 1 unexpected)"
        in result.statement()
    )
    with pytest.raises(GateError, match=rf"{topic}, partition 1: source offset 10, target offset 10: missing"):
        result.require()
    assert (
        world.ledger.read("expectation_results")
        .filter(f"cycle_id = '{result.verification_id}' AND NOT success")
        .count()
        == 5
    )

    sampled = verify(world, "sample")  # only batches that the digests don't cover are opened, with the same result
    assert {partition: rows for partition, rows in findings(world, sampled).items() if partition != 8} == {
        partition: rows for partition, rows in findings(world, result).items() if partition != 8
    }
    assert not sampled.passed


def test_digests_tell_what_is_equal_without_opening_it_and_a_fraction_of_the_runs_is_chosen_by_the_version(
    world: World,
) -> None:
    topic = world.topic("orders", 2)
    world.produce(topic, 200, seed=1)
    world.produce_transactions(topic, 20, 10, seed=2)  # each ends a run
    world.mirror()
    expected = world.assert_equal(topic)
    result = verify(world, "sample")
    assert (result.passed, result.total("records"), result.total("digested")) == (True, expected, expected)
    part = verify(world, "sample", fraction="0.5")
    assert 0 < part.total("digested") == part.total("records") < expected
    assert part.partitions == verify(world, "sample", fraction="0.5", version=str(part.offset_syncs_version)).partitions


def test_incremental_covers_what_is_new_a_stray_record_between_two_runs_is_found_and_zero_is_never_a_pass(
    world: World,
) -> None:
    topic = world.topic(partitions=2)
    empty = verify(world, "incremental")
    assert not empty.passed
    assert "nothing to compare" in empty.statement()
    with pytest.raises(GateError, match="not verified: there was nothing to compare"):
        empty.require()
    (row,) = [row for row in world.table("verifications") if row["verification_id"] == empty.verification_id]
    assert (row["topic"], row["records"], row["passed"]) == (None, 0, False)

    write(world.source_servers, topic, {0: with_changes({}), 1: with_changes({})})
    world.mirror()
    assert verify(world, "incremental").total("records") == 80
    nothing = verify(world, "incremental")
    assert (nothing.passed, nothing.total("records"), len(nothing.partitions)) == (False, 0, 0)
    assert nothing.statement().startswith("nothing new")
    nothing.require()  # a quiet flow does not fail a scheduled job
    (row,) = [row for row in world.table("verifications") if row["verification_id"] == nothing.verification_id]
    assert (row["topic"], row["status"], row["passed"]) == (None, "nothing_new", False)
    assert not [row for row in world.table("expectation_results") if row["cycle_id"] == nothing.verification_id]

    write(world.source_servers, topic, {1: [record(number) for number in range(40, 50)]})
    world.mirror()
    second = verify(world, "incremental")
    assert [(one.partition, one.upstream_from, one.upstream_to, one.records) for one in second.partitions] == [
        (1, 40, 50, 10)
    ]
    repeated = verify(world, "incremental", version=str(second.offset_syncs_version))
    assert repeated.partitions == second.partitions

    world.write_config(**{"mirrorlake.on.loss": "continue"})  # the mirror job itself would stop at these records
    copy = "an additional copy of the record"
    write(world.target_servers, world.remote(topic), {1: [record(3)]})  # behind the last run
    at_the_end = verify(world)
    assert findings(world, at_the_end) == {1: [("duplicated", 3, 52, copy)]}
    write(world.target_servers, world.remote(topic), {0: [record(3)]})  # soon between two runs
    write(world.source_servers, topic, {0: [record(number) for number in range(40, 45)]})
    world.mirror()
    third = verify(world, "incremental")  # the record that it copies is older than the new ones
    assert findings(world, third) == {
        0: [("unexpected", None, 41, "the record is in no run of the map")],
        1: [("duplicated", 3, 52, copy)],
    }, "nothing was mirrored to partition 1, but its difference is found again until it is gone"
    repeated = verify(world, version=str(at_the_end.offset_syncs_version))
    assert findings(world, repeated)[1] == findings(world, at_the_end)[1]


def test_what_was_mirrored_and_is_not_in_the_ledger_yet_is_verified_and_never_called_nothing_new(world: World) -> None:
    topic = world.topic(partitions=1)
    write(world.source_servers, topic, {0: with_changes({})})
    world.mirror()
    verify(world, "incremental").require()
    write(world.source_servers, topic, {0: [record(number) for number in range(40, 50)]})
    World(world.source_servers, world.target_servers, world.directory / "away", alias=world.alias).mirror()
    behind = verify(world, "incremental")
    assert (behind.passed, behind.total("records"), behind.total("differences")) == (True, 10, 0)
    assert verify(world, "incremental").is_neutral


def test_a_time_is_that_of_the_commits_on_the_target(world: World) -> None:
    topic = world.topic(partitions=1)
    ends = []
    for number in range(3):
        world.produce(topic, 50, 1, seed=number)
        world.mirror()
        ends.append(str(max(row["committed_at"] for row in world.rows("offset_syncs"))))
    middle = verify(world, "time", from_time=ends[1], to_time=ends[2])
    assert [(one.upstream_from, one.upstream_to, one.records, one.passed) for one in middle.partitions] == [
        (50, 100, 50, True)
    ]
    assert verify(world, "incremental").total("records") == 150, "a verified time is no place to go on from"
    assert not verify(world, "time", to_time="2020-01-01").passed


def test_what_retention_has_taken_is_not_comparable_unless_the_source_keeps_it(world: World) -> None:
    topic = world.topic(partitions=4)
    write(world.source_servers, topic, {partition: with_changes({}) for partition in range(4)})
    world.mirror()
    drop_before(world.source_admin, topic, 0, 15)
    drop_before(world.target_admin, world.remote(topic), 1, 25)
    drop_before(world.source_admin, topic, 2, 40)
    result = verify(world)
    found = by_partition(result)
    assert [(found[at].records, found[at].not_comparable, found[at].differences) for at in range(4)] == [
        (25, 15, 0),
        (15, 0, 25),
        (0, 40, 0),
        (40, 0, 0),
    ]
    assert [found[at].status for at in range(4)] == ["equal", "different", "not_comparable", "equal"]
    assert not result.passed
    assert "15 records of the map are before the first offsets" in found[0].notes[0]
    assert "25 records that the source keeps are deleted on the target" in found[1].notes[0]
    assert "55 can't be compared any more" in result.statement()
    configure(world, topic, {"retention.bytes": str(1 << 30)})  # so that the source may be about to delete them, too
    sampled = verify(world, "sample")
    assert (sampled.passed, by_partition(sampled)[1].not_comparable) == (True, 25)

    delete(world.source_admin, topic)  # after a migration
    after = verify(world)
    assert (after.passed, after.total("records"), after.total("differences"), after.total("not_comparable")) == (
        False,
        0,
        0,
        160,
    )
    delete(world.target_admin, world.remote(topic))
    world.topic(partitions=4)
    write(world.source_servers, topic, {partition: with_changes({}) for partition in range(4)})
    lost = verify(world)
    assert (lost.total("missing"), lost.total("differences"), lost.passed) == (160, 160, False)


def test_compaction_explains_what_a_newer_record_has_replaced_and_nothing_else(world: World) -> None:
    topic = world.topic(partitions=3)
    write(world.source_servers, topic, {partition: with_changes({}) for partition in range(3)})
    world.mirror()
    # Removed are: in partition 0, records 0 to 3, whose keys occur again; in partition 1, records 33 and 34, the last
    # of their keys; in partition 2, records 0 and 1 on both sides, although the source is not compacted.
    later = with_changes({})[2:]
    rebuild(
        world,
        topic,
        {0: [HOLE, HOLE, *later[2:]], 1: [*with_changes({})[:33], HOLE, *with_changes({})[35:]], 2: [HOLE, *later]},
    )
    rebuild(world, topic, {0: with_changes({}), 1: with_changes({}), 2: [HOLE, *later]}, source=True)
    compact(world.target_admin, world.remote(topic))
    result = verify(world)
    found = by_partition(result)
    assert (found[0].records, found[0].not_comparable, found[0].status) == (36, 4, "equal")
    assert (found[1].records, found[1].missing, found[1].status) == (38, 2, "different")
    assert (found[2].records, found[2].differences, found[2].status) == (38, 0, "different")
    assert found[2].notes == ["the map has 2 records that neither side has"]
    assert not result.passed


def test_a_deleted_key_whose_tombstone_only_one_side_has_left_is_equal_to_readers_of_the_latest_values(
    world: World,
) -> None:
    topic = world.topic(partitions=3)
    old = NOW - 3 * 86_400_000  # older than delete.retention.ms
    first, tombstones = record(0, key=b"gone"), [record(at, key=b"gone", value=None, timestamp=old) for at in (1, 2)]
    rest = [record(number) for number in range(3, 20)]
    deleted: list[Content | None] = [first, tombstones[0], *rest]
    kept = [first, *tombstones, *rest]
    write(world.source_servers, topic, {0: deleted, 1: deleted, 2: kept})
    world.mirror()
    # The cleaner has deleted record and tombstone on the target in partition 0, and on the source in partition 1. No
    # cleaner would delete the tombstones before the record, as the target has done it in partition 2.
    rebuild(world, topic, {0: [HOLE, *rest], 1: deleted, 2: [first, HOLE, *rest]})
    rebuild(world, topic, {0: deleted, 1: [HOLE, *rest], 2: kept}, source=True)
    for admin, name in ((world.source_admin, topic), (world.target_admin, world.remote(topic))):
        compact(admin, name)
    result = verify(world)
    found = by_partition(result)
    assert [(found[at].records, found[at].not_comparable, found[at].status) for at in range(3)] == [
        (17, 2, "equal"),
        (17, 2, "equal"),
        (18, 1, "different"),
    ]
    assert findings(world, result) == {2: [("missing", 2, 2, None)]}


def test_an_open_transaction_before_the_end_of_the_map_is_waited_for_and_named(world: World) -> None:
    world.write_config(**{"mirrorlake.on.loss": "continue"})  # else the mirror job would stop at these records
    topic = world.topic(partitions=1)
    world.produce(topic, 10, 1)
    world.mirror()
    producer = transactional_producer(world.target_servers, f"{topic}-open")
    write_in_transaction(producer, world.remote(topic))
    world.produce(topic, 10, 1, seed=2)
    world.mirror()
    world.write_config(**{"mirrorlake.connect.timeout.ms": "2000"})
    with pytest.raises(TargetError, match=r"a transaction is open at offset 11\. It is before the end of the map"):
        verify(world)
    producer.abort_transaction(30)
    assert verify(world).total("records") == 20


def test_what_a_lost_log_has_left_on_the_target_is_passed_over_and_the_new_one_is_compared(world: World) -> None:
    world.write_config(**{"mirrorlake.on.loss": "continue"})
    replaced, refilled = world.topic("replaced", 1), world.topic("refilled", 1)
    for topic in (replaced, refilled):
        write(world.source_servers, topic, {0: with_changes({})})
    world.mirror()
    before = verify(world)
    rebuild(world, replaced, {0: [record(number) for number in range(100, 130)]}, source=True)
    delete(world.target_admin, world.remote(refilled))
    write(world.source_servers, refilled, {0: [record(40)]})
    world.mirror()
    result = verify(world)
    found = {one.topic: one for one in result.partitions}
    assert result.passed, result.statement()
    assert (found[replaced].records, found[refilled].records) == (30, 41)
    assert found[replaced].notes == [
        "40 records on the target are of a log that the source has lost since (table gaps), and were not compared"
    ]
    write(world.target_servers, world.remote(replaced), {0: [record(105)]})
    assert by_partition(verify(world, topics=replaced))[0].duplicated == 1
    rows = [row for row in world.rows("verifications") if row["verification_id"] == before.verification_id]
    assert {(row["offset_syncs_version"], row["gaps_version"]) for row in rows} == {
        (before.offset_syncs_version, before.gaps_version)
    }


def test_topics_that_are_changed_on_the_way_are_not_covered(world: World) -> None:
    plain, slim = world.topic("plain", 1), world.topic("slim", 1)
    world.write_config(
        **{
            "mirrorlake.transforms": "slim",
            "mirrorlake.transform.slim.topics": slim,
            "mirrorlake.transform.slim.value": "upper(CAST(value AS STRING))",
        }
    )
    for topic in (plain, slim):
        write(world.source_servers, topic, {0: with_changes({})})
    world.mirror()
    result = verify(world)
    found = {one.topic: one for one in result.partitions}
    assert (result.passed, found[plain].records) == (True, 40)
    assert (found[slim].status, found[slim].notes) == (
        "not_covered",
        ["transform slim changes the records"],
    )


def test_records_that_were_gone_before_any_verification_fail_no_later_one(world: World) -> None:
    topic, gone = world.topic("there", 1), world.topic("gone", 1)
    for name in (topic, gone):
        write(world.source_servers, name, {0: with_changes({})})
    world.mirror()
    all_of_it = TopicPartition(gone, 0, 40)
    world.source_admin.delete_records([all_of_it])[all_of_it].result()
    assert verify(world, "incremental").passed
    for _ in range(2):
        past = verify(world, "incremental")
        assert [(one.topic, one.status) for one in past.partitions] == [(gone, "not_comparable")]
        past.require()
    rows = [row for row in world.table("verifications") if row["verification_id"] == past.verification_id]
    assert {(row["topic"], row["status"]) for row in rows} == {(gone, "not_comparable"), (None, "nothing_new")}


def test_records_that_had_expired_before_anything_compared_them_are_not_nothing_new(world: World) -> None:
    topic = world.topic(partitions=1)
    write(world.source_servers, topic, {0: with_changes({})})
    world.mirror()
    assert verify(world, "incremental").passed
    verified_at = world.ledger.verified_at(world.flow)
    write(world.source_servers, topic, {0: [record(number) for number in range(40, 45)]})
    world.mirror()
    drop_before(world.source_admin, topic, 0, 45)
    gone = verify(world, "incremental")
    (one,) = gone.partitions
    assert (one.status, one.upstream_from, one.upstream_to, gone.is_neutral) == ("not_comparable", 40, 45, False)
    with pytest.raises(GateError, match="not verified: there was nothing to compare"):
        gone.require()
    assert world.ledger.verified_at(world.flow) == verified_at
    again = verify(world, "incremental")  # it is said once: a quiet flow does not fail a scheduled job
    again.require()
    assert again.statement().startswith("nothing new: no record was mirrored since an earlier verification")


def test_a_partition_without_a_leader_is_not_covered_and_the_others_are_verified_counted_and_maintained(
    servers: tuple[str, str],
    spark: object,
    warehouse: str,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    concerned = ("offset_syncs", "gaps", "expired_ranges")
    monkeypatch.setattr(maintenance, "TABLES", {name: maintenance.TABLES[name] for name in concerned})
    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=100)
    source = LocalCluster("leaders", tmp_path / "leaders", root / ".local/jars/kafka", size=2)
    with running(source):
        world = World(source.bootstrap_servers, servers[1], tmp_path / "w", spark, warehouse)
        alive, dead, new = (f"{world.alias}-{name}" for name in ("alive", "dead", "new"))
        places = {alive: [[1]], dead: [[1], [2]], new: [[2]]}
        made = [NewTopic(name, len(on), replica_assignment=on) for name, on in places.items()]
        for future in world.source_admin.create_topics(made).values():
            future.result()
        for begin in (0, 10):
            records = [record(number) for number in range(begin, begin + 10)]
            write(world.source_servers, alive, {0: records})
            write(world.source_servers, dead, {0: records, 1: records})
            world.mirror()
        write(world.source_servers, new, {0: [record(1, timestamp=now_ms())]})  # not late yet
        for key in ((alive, 0), (dead, 1)):
            drop_before(world.source_admin, *key, 10)
        assert verify(world).passed
        whole_at = world.ledger.verified_at(world.flow)
        source.stop_broker(2)

        unseen = verify(world, "incremental")  # what reaches the partition from now on, nobody can tell
        blind = {(one.topic, one.partition): one.status for one in unseen.partitions}
        assert blind == {(dead, 1): "not_covered", (new, 0): "not_covered"}
        assert (unseen.is_neutral, unseen.is_whole) == (False, False)

        result = verify(world)
        found = {(one.topic, one.partition): one for one in result.partitions}
        assert {key: (one.status, one.records) for key, one in found.items()} == {
            (alive, 0): ("equal", 10),
            (dead, 0): ("equal", 20),
            (dead, 1): ("not_covered", 0),
            (new, 0): ("not_covered", 0),
        }
        reason = f"not looked at: cluster {world.alias} does not tell the ends of {dead}-1 now: "
        assert found[dead, 1].notes[0].startswith(reason)
        assert "; 2 partitions could not be looked at" in result.statement()
        assert result.passed
        assert not result.is_whole
        assert world.ledger.verified_at(world.flow) == whole_at, "not of the whole flow"
        quiet = verify(world, "incremental")
        assert quiet.statement().startswith("not verified: there was nothing to compare")

        counts = Counting(world.spark, world.flow, world.ledger, ROOT / "expectations/counts.json")
        assert {one.topic for one in counts.run(CountScope.parse()).topics} == {alive}

        maintained = Maintenance(world.ledger, Retention({"offset_syncs": 90}, None), later, world.config).run()
        assert any(
            note.startswith(f"flow {world.flow_name}: the map of {dead}-1, {new}-0 is kept")
            for note in maintained.notes
        )
        runs = {(row["topic"], row["partition"], row["upstream_start"]) for row in world.rows("offset_syncs")}
        assert runs == {(alive, 0, 10), (dead, 0, 0), (dead, 0, 10), (dead, 1, 0), (dead, 1, 10)}

        source.start_broker(2)
        world.mirror()
        again = verify(world)
        assert (again.passed, again.total("records"), again.is_whole) == (True, 41, True)
        assert world.ledger.verified_at(world.flow) > whole_at
        assert {(one.topic, one.status) for one in counts.run(CountScope.parse()).topics} >= {(new, "equal")}


def test_a_flow_of_which_nothing_can_be_compared_neither_passes_nor_fails(world: World) -> None:
    slim = world.topic("slim", 1)
    world.write_config(
        **{
            "mirrorlake.transforms": "slim",
            "mirrorlake.transform.slim.topics": ".*",
            "mirrorlake.transform.slim.value": "upper(CAST(value AS STRING))",
        }
    )
    write(world.source_servers, slim, {0: with_changes({})})
    with pytest.raises(GateError, match="are late: not mirrored yet"):
        verify(world, max_lateness_seconds="0").require()
    world.mirror()
    for mode in ("full", "incremental"):
        result = verify(world, mode)
        assert (result.passed, result.is_neutral) == (False, True)
        assert result.statement().startswith("nothing to compare: of all 1 partitions")
        result.require()
    assert {row["status"] for row in world.rows("verifications") if row["topic"] is None} == {"nothing_new"}
    with pytest.raises(ConfigurationError, match="parameter topics is 'slimm', which matches no topic of flow"):
        verify(world, "incremental", topics="slimm")


def test_what_others_write_after_a_failover_is_not_held_against_the_flow(world: World) -> None:
    topic = world.topic(partitions=1)
    write(world.source_servers, topic, {0: [record(number) for number in range(10)]})
    world.mirror()
    group = world.commit("g", {(topic, 0): 4})
    assert failover(world, mode="promote", signed_by="ann").generation
    assert group in {row["group_id"] for row in world.rows("failovers")}
    write(world.target_servers, world.remote(topic), {0: [record(number) for number in range(50, 53)]})
    write(world.source_servers, topic, {0: [record(60)]})  # by a producer that was not moved
    for mode, records in (("full", 10), ("incremental", 0)):
        result = verify(world, mode, max_lateness_seconds="0")
        result.require()
        assert (result.total("records"), result.total("differences")) == (records, 0)
    suite = ROOT / "expectations/counts.json"
    counts = Counting(world.spark, world.flow, world.ledger, suite).run(CountScope.parse("0"))
    counts.require()
    assert {(one.topic, one.reason) for one in counts.topics} == {
        (topic, "the flow is closed: others write to the remote topic")
    }


def test_a_map_that_has_records_twice_does_not_pass_even_if_both_copies_are_there(world: World) -> None:
    topic = world.topic(partitions=1)
    write(world.source_servers, topic, {0: with_changes({}, 10)})
    world.mirror()
    write(world.target_servers, world.remote(topic), {0: with_changes({}, 10)})
    (run,) = world.rows("offset_syncs")
    world.ledger.append("offset_syncs", [{**run, "downstream_start": 11, "downstream_end": 21}])
    result = verify(world)
    (found,) = result.partitions
    assert (found.duplicated, found.differences, found.passed) == (10, 10, False)
    assert findings(world, result) == {
        0: [("duplicated", 0, 11, "the map has 10 source offsets twice, from this one on")]
    }


def test_what_other_flows_have_brought_and_others_have_written_is_left_out(world: World) -> None:
    world.target_alias = f"t{world.alias[1:]}"
    there, here = f"{world.alias}->{world.target_alias}.enabled", f"{world.target_alias}->{world.alias}.enabled"
    world.write_config(**{there: "true", here: "true", "replication.policy.class": "IdentityReplicationPolicy"})
    back = World(
        world.target_servers,
        world.source_servers,
        world.directory / "back",
        world.spark,
        world.warehouse,
        alias=world.target_alias,
        target_alias=world.alias,
    )
    back.properties = {**world.properties, "topics": f"{world.alias}-.*"}
    back.write_config()
    topic = world.topic(partitions=2)
    for number in range(2):
        world.produce(topic, 100, seed=number)
        world.mirror()
        back.produce(topic, 60, seed=10 + number)
        back.mirror()
    result = verify(world)
    assert (result.passed, result.total("records")) == (True, 200)
    assert any("records were not compared: other flows" in note for one in result.partitions for note in one.notes)
    other = verify(back)
    assert (other.passed, other.total("records")) == (True, 120)


def test_a_mirror_that_goes_on_meanwhile_is_no_difference(world: World) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, 200, seed=0)
    world.mirror()
    stop = threading.Event()

    def traffic() -> None:
        seed = 1
        while not stop.is_set():
            world.produce(topic, 100, seed=seed)
            world.produce_transactions(topic, 2, 5, seed=1_000 + seed)
            seed += 1

    clients = [
        threading.Thread(target=traffic),
        threading.Thread(target=world.mirror, kwargs={"interval_s": 0.2, "run_for_s": 8}),
    ]
    for client in clients:
        client.start()
    results = [verify(world)]
    while clients[1].is_alive():
        results.append(verify(world, "incremental"))
    results.append(verify(world, "incremental"))
    stop.set()
    clients[0].join()
    assert all(result.total("differences") == 0 for result in results), [result.statement() for result in results]
    assert results[0].passed
    went_on = results[0].total("records") > 200 or sum(result.passed for result in results) >= 2
    assert went_on, "nothing was mirrored meanwhile"
