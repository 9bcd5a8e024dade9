"""Requests name the leader epoch that they are meant for, so that a broker that was the leader before refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.network.response_error import ResponseError, check

from tests.world import World


@pytest.fixture
def topic(plain_world: World) -> str:
    return plain_world.topic(partitions=1)


@pytest.fixture
def source(plain_world: World, topic: str) -> Iterator[Cluster]:
    with closing(Cluster(plain_world.flow.source_connection, "source", "test").connect()) as cluster:
        cluster.refresh([topic], 30_000)
        yield cluster


def list_end(source: Cluster, topic: str) -> None:
    source.net.run(lambda: source.list_offsets([(topic, 0)], LATEST_TIMESTAMP))


def fetch(source: Cluster, topic: str) -> None:
    limits = {"max_bytes": 1, "partition_max_bytes": 1, "max_wait_ms": 0}

    async def answer() -> None:
        (found,) = source.fetched(await source.fetch(source.leader(topic, 0), {(topic, 0): 0}, **limits))
        check(found.error_code)

    source.net.run(answer)


@pytest.mark.parametrize("request_of", [list_end, fetch], ids=["ListOffsets", "Fetch"])
def test_a_broker_of_another_leader_epoch_refuses_and_metadata_are_read_again(
    source: Cluster, topic: str, request_of: object
) -> None:
    known = source.topics[topic]
    request_of(source, topic)
    source.topics[topic] = replace(known, epochs={0: known.epochs[0] + 1})
    with pytest.raises(ResponseError) as caught:
        request_of(source, topic)
    assert (caught.value.code, caught.value.retriable) == (ErrorCode.UNKNOWN_LEADER_EPOCH, True)
