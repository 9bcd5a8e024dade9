"""The logs of a source that has returned are held against what was mirrored of them, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.failover.failback import Failback
from mirrorlake.jobs.failover.lost_ends import LostEnd, lost_ends, require_refillable, set_back
from mirrorlake.jobs.failover.plan import ALIVE, Choice
from mirrorlake.jobs.failover.snapshot import connected
from mirrorlake.model.gap import GapKind
from mirrorlake.model.slot import Position, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state.offset_syncs import read_all_states

from tests.moving import IDENTITY, both_ways
from tests.world import ROOT, World, configure, eventually

UNKNOWN_EPOCH = 7  # the shared brokers are never elected anew, so no log of theirs has it


@contextmanager
def both_clusters(world: World) -> Iterator[tuple[Cluster, Cluster]]:
    """Connects to the target and the source of a flow."""
    with connected(world.flow, Choice(source=ALIVE)) as (target, source):
        assert source is not None
        yield target, source


def positions_of(world: World, target: Cluster) -> dict[PartitionKey, Position]:
    states = read_all_states(target, world.flow.offset_syncs_topic, world.flow.connect_timeout_ms)
    return merge_positions(states.values())


def found(
    world: World, source: Cluster, position: Position, **differs: object
) -> list[tuple[int, int, GapKind, int, int | None]]:
    """Returns the lost ends of a source that has the log of a position, had the flow mirrored another one."""
    known = replace(position, **differs)  # type: ignore[arg-type]
    ends = lost_ends(world.flow, world.ledger, source, {(known.topic, known.partition): known})
    return [(one.from_offset, one.to_offset, one.kind, one.records, one.downstream_from) for one in ends]


def test_a_lost_end_is_found_by_topic_id_log_end_and_leader_epoch(world: World) -> None:
    topic, compacted = world.topic(partitions=1), world.topic("table", 1)
    world.produce(topic, 100, 1)
    world.produce(compacted, 100, 1)
    world.mirror()
    configure(world, compacted, {"cleanup.policy": "compact"})
    with both_clusters(world) as (target, source):
        positions = positions_of(world, target)
        position, of_compacted = positions[topic, 0], positions[compacted, 0]
        start = min(row["downstream_start"] for row in world.rows("offset_syncs") if row["topic"] == topic)
        unknown = {"leader_epoch": UNKNOWN_EPOCH, "epoch_from": 30}

        assert found(world, source, position) == []
        assert found(world, source, position, leader_epoch=-1) == []
        assert found(world, source, position, upstream_next=0, topic_id="another") == [], "nothing was mirrored"
        assert found(world, source, position, topic="deleted") == [], "a deletion is no loss"
        assert found(world, source, position, upstream_next=130) == [(100, 130, "truncated", 0, None)]
        assert found(world, source, position, topic_id="another") == [(0, 100, "recreated", 100, start)]
        assert found(world, source, position, partition=1) == [(0, 100, "recreated", 0, None)]
        assert found(world, source, position, **unknown) == [(30, 100, "truncated", 70, start + 30)]
        assert found(world, source, of_compacted, **unknown)[0][:4] == (30, 100, "truncated", 70), (
            "compaction leaves the newest batch of a log, so it explains no epoch that is newer than all of the log"
        )

        before = TopicPartition(topic, 0, 60)
        world.source_admin.delete_records([before])[before].result()
        assert found(world, source, position) == []
        assert found(world, source, position, upstream_next=40, **unknown) == [], "retention has taken all of it"
        assert found(world, source, position, **unknown) == [(60, 100, "truncated", 40, start + 60)]


def test_a_refill_that_could_not_be_whole_is_refused(world: World) -> None:
    home = both_ways(world, **IDENTITY)
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1, **{"batch.num.messages": 10})
    world.mirror()
    copies = world.target_records(topic)[0]
    home.produce(topic, 20, 1, seed=2)
    assert home.mirror().records == 20
    with both_clusters(world) as (target, source):
        carried = positions_of(home, source)
        lost = LostEnd(topic, 0, 60, 100, GapKind.TRUNCATED, records=40, downstream_from=copies[60][0])

        def why(one: LostEnd, known: dict[PartitionKey, Position], message: str) -> None:
            with pytest.raises(ConfigurationError, match=message):
                require_refillable(home.flow, world.flow, [one], known, target)

        require_refillable(home.flow, world.flow, [lost], {}, target)
        why(lost, carried, "the flow back has brought records up to offset")
        why(replace(lost, kind=GapKind.RECREATED), carried, "the flow back has brought records")
        untouched = {(topic, 0): replace(carried[topic, 0], downstream_next=0)}
        why(lost, untouched, "both clusters were written at the same time")
        require_refillable(home.flow, world.flow, [replace(lost, downstream_from=copies[65][0])], {}, target)
        before = TopicPartition(topic, 0, copies[70][0])
        world.target_admin.delete_records([before])[before].result()
        why(lost, {}, "retention has deleted records")

        # what the flow back has copied is known from its states only, which the source may have lost, too
        failback = Failback(world.spark, world.config, world.flow, world.ledger, ROOT / "expectations")
        failback._require_own_states(source)
        states = home.flow.offset_syncs_topic
        world.source_admin.delete_topics([states])[states].result()
        eventually(lambda: states not in world.source_admin.list_topics(timeout=5).topics)
        with pytest.raises(ConfigurationError, match=rf"has lost records of {states}-\d+ as well"):
            failback._require_own_states(source)


def test_what_the_flow_back_had_brought_and_is_lost_as_well_comes_home_again_once_the_loss_is_accepted(
    world: World,
) -> None:
    home = both_ways(world, **IDENTITY)
    topic = world.topic(partitions=1)
    world.produce(topic, 60, 1)
    world.mirror()
    home.produce(topic, 20, 1, seed=2)
    assert home.mirror().records == 20
    ours, theirs = (both[0] for both in (world.source_records(topic), world.target_records(topic)))
    begin, at = ours[60][0], theirs[67][0]
    with both_clusters(world) as (target, source):
        carried = positions_of(home, source)
        brought = carried[topic, 0]
        for cluster in (source, target):
            cluster.refresh([topic], 30_000)
        lost = LostEnd(topic, 0, begin + 7, 90, GapKind.TRUNCATED)
        ((position,), (gap,)) = set_back(home.flow, world.flow, world.ledger, [lost], carried, target, source)
        assert (position.upstream_next, position.downstream_next, position.incarnation) == (at, 0, 1)
        assert (gap.from_offset, gap.to_offset, gap.kind) == (at, brought.upstream_next, "target_recreated")
        later = replace(lost, from_offset=brought.downstream_next)
        assert set_back(home.flow, world.flow, world.ledger, [later], carried, target, source) == ((), ())

        world.source_admin.delete_topics([topic])[topic].result()
        eventually(lambda: topic not in world.source_admin.list_topics(timeout=5).topics)
        world.topic(partitions=1)
        home.produce(topic, 5, 1, seed=3)
        with pytest.raises(TargetError, match="was deleted and created anew"):
            home.mirror()
        source.refresh([topic], 30_000)
        states = read_all_states(target, world.flow.offset_syncs_topic, 30_000)
        failback = Failback(world.spark, world.config, world.flow, world.ledger, ROOT / "expectations")
        whole = LostEnd(topic, 0, 0, 60, GapKind.RECREATED, records=60, downstream_from=theirs[0][0])
        signed = Choice(source=ALIVE, signed_by="ann")
        failback._reset([whole], "accept", choice=signed, here=target, there=source, states=states)
        with pytest.raises(ConfigurationError, match="was failed over"):
            home.mirror()
        assert failback._open(failback.home, source) > 0
    assert home.mirror().records == 25
    came = [record for _, record in world.source_records(topic)[0]]
    assert came == [record for _, record in world.target_records(topic)[0][60:]]
    assert "accept, signed by ann" in {row["action"] for row in home.rows("anomalies")}
